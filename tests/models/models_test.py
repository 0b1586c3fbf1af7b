"""Tests for models.vgg and models.mlp."""

import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from models import initializers, mlp, vgg
from tests.support import small_models

# The columns A, D and E of the paper's table 1; 'M' is a pooling.
_LAYERS = {
  11: '64 M 128 M 256 256 M 512 512 M 512 512 M',
  16: '64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M',
  19: '64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M',
}


def _vgg(**changed):
  arguments = {
    'input_shape': (32, 32, 3),
    'num_classes': 10,
    'seed': 0,
    'depth': 11,
    'width': 1 / 64,
    'dropout': 0.0,
  }
  return vgg.make(**(arguments | changed))


def _mlp(**changed):
  arguments = {
    'input_shape': (4, 5, 2),
    'num_classes': 3,
    'seed': 0,
    'hidden': (7, 6),
  }
  return mlp.make(**(arguments | changed))


def _size(model) -> int:
  leaves = jax.tree.leaves(nnx.split(model)[1])
  return sum(math.prod(leaf.shape) for leaf in leaves)


def _images(shape, seed=0) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _training(model, images):
  """Returns a function of the seed of dropout, None for evaluation."""
  graph, params = nnx.split(model)

  @small_models.jit
  def logits(seed):
    rngs = None if seed is None else nnx.Rngs(dropout=jax.random.key(seed))
    return nnx.merge(graph, params)(images, rngs=rngs)

  return logits


def _reference_vgg(model, depth, images) -> np.ndarray:
  """Returns logits by the paper's layers, one after the other, in float64."""
  convs = iter([conv for block in model.blocks for conv in block])
  x = images.astype(np.float64)
  for layer in _LAYERS[depth].split():
    if layer == 'M':
      batch, pixels, _, channels = x.shape
      cells = (batch, pixels // 2, 2, pixels // 2, 2, channels)
      x = x.reshape(cells).max(axis=(2, 4))
    else:
      conv = next(convs)
      padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
      windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
      kernel = np.asarray(conv.kernel[...], np.float64)
      x = np.einsum('bhwcij,ijco->bhwo', windows, kernel)
      x = np.maximum(x + np.asarray(conv.bias[...]), 0)
  return _reference_dense([*model.hidden, model.logits], x)


def _reference_dense(layers, x) -> np.ndarray:
  x = x.reshape(len(x), -1).astype(np.float64)
  for i, layer in enumerate(layers):
    if i > 0:
      x = np.maximum(x, 0)
    x = x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])
  return x


def _with_random_biases(model):
  """Moves biases from 0, where they would hide their absence."""
  graph, params = nnx.split(model)
  rng = np.random.default_rng(1)
  return nnx.merge(
    graph,
    jax.tree.map(
      lambda p: (
        jnp.asarray(rng.normal(0, 0.1, p.shape), p.dtype) if p.ndim == 1 else p
      ),
      params,
    ),
  )


class VggTest(parameterized.TestCase):
  @parameterized.parameters(
    (11, 132_863_336), (16, 138_357_544), (19, 143_667_240)
  )
  def test_full_size_has_the_published_number_of_parameters(self, depth, size):
    model = nnx.eval_shape(
      lambda: _vgg(
        depth=depth, width=1, input_shape=(224, 224, 3), num_classes=1000
      )
    )
    self.assertEqual(_size(model), size)

  @parameterized.parameters((11, 2), (16, 0.3), (19, 0.3), (11, 1e-3))
  def test_width_multiplies_all_channels(self, depth, width):
    model = nnx.eval_shape(
      lambda: _vgg(depth=depth, width=width, input_shape=(32, 32, 1))
    )
    expected, features = 0, 1
    for layer in _LAYERS[depth].replace('M', '').split():
      out = max(1, round(int(layer) * width))
      expected += 9 * features * out + out
      features = out
    hidden = max(1, round(512 * width))
    expected += (features + 1) * hidden + (hidden + 1) * hidden
    expected += (hidden + 1) * 10
    self.assertEqual(_size(model), expected)

  @parameterized.parameters(11, 16, 19)
  def test_logits_match_the_layers_of_the_paper(self, depth):
    model = _with_random_biases(small_models.make_by_numpy(_vgg, depth=depth))
    images = _images((2, 32, 32, 3))

    logits = small_models.evaluate(model, images)

    self.assertEqual((logits.shape, logits.dtype), ((2, 10), np.float32))
    expected = _reference_vgg(model, depth, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)

  def test_images_of_224_pixels_give_logits(self):
    model = nnx.eval_shape(
      lambda: _vgg(input_shape=(224, 224, 3), num_classes=1000)
    )
    images = jax.ShapeDtypeStruct((5, 224, 224, 3), np.float32)
    logits = nnx.eval_shape(lambda model, x: model(x), model, images)
    self.assertEqual((logits.shape, logits.dtype), ((5, 1000), np.float32))

  def test_dropout_follows_the_key_and_is_off_in_evaluation(self):
    images = _images((2, 32, 32, 3))
    plain = small_models.make_by_numpy(_vgg)
    dropping = small_models.make_by_numpy(_vgg, dropout=0.5)
    train = _training(dropping, images)

    np.testing.assert_array_equal(_training(plain, images)(None), train(None))
    np.testing.assert_array_equal(train(0), train(0))
    self.assertFalse(np.array_equal(train(0), train(1)))
    self.assertFalse(np.array_equal(train(0), train(None)))

  def test_dropout_keeps_the_expected_logits(self):
    model = small_models.make_by_numpy(_vgg, dropout=0.5)
    # The logits are linear in the outputs of the last dropout.
    model.hidden = nnx.List([model.hidden[0]])
    images = _images((1, 32, 32, 3))
    train = _training(model, images)

    logits = np.array([train(seed) for seed in range(1000)])

    error = logits.mean(axis=0) - train(None)
    sigma = logits.std(axis=0) / math.sqrt(len(logits))
    np.testing.assert_array_less(np.abs(error), 4 * sigma)

  @parameterized.parameters(
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    ({'input_shape': (64, 64, 3)}, r'input_shape: .* got \(64, 64, 3\)'),
    ({'input_shape': (224, 32, 3)}, r'input_shape: .* got \(224, 32, 3\)'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _vgg(**changed)


class HeNormalTest(parameterized.TestCase):
  @parameterized.parameters(((3, 3, 4, 8),), ((64, 32),), ((3, 2, 1),))
  def test_matches_the_initializer_of_jax(self, shape):
    key = jax.random.key(3)
    expected, kernel = (
      small_models.jit(lambda key, draw=draw: draw(key, shape, np.float32))(key)
      for draw in (jax.nn.initializers.he_normal(), initializers.he_normal)
    )
    np.testing.assert_allclose(kernel, expected, rtol=1e-6)

  def test_variance_is_two_over_the_inputs(self):
    key = jax.random.key(0)
    kernel = small_models.jit(
      lambda key: initializers.he_normal(key, (3, 3, 100, 200), np.float32)
    )(key)
    self.assertAlmostEqual(np.var(kernel) * 900 / 2, 1, delta=0.02)

  @parameterized.parameters((_vgg, vgg), (_mlp, mlp))
  def test_all_kernels_of_a_model_start_so(self, make, module):
    def zero(key, shape, dtype):
      return np.zeros(shape, dtype)

    with (
      mock.patch.object(module, 'he_normal', zero, create=True),
      mock.patch.object(initializers, 'he_normal', zero),
    ):
      params = nnx.split(make())[1]
    self.assertTrue(all(not leaf.any() for leaf in jax.tree.leaves(params)))


class MlpTest(parameterized.TestCase):
  @parameterized.parameters(((),), ((7,),), ((7, 6),), ((1, 9, 2),))
  def test_logits_match_matrix_products(self, hidden):
    model = _with_random_biases(small_models.make_by_numpy(_mlp, hidden=hidden))
    inputs = _images((8, 4, 5, 2))

    logits = small_models.evaluate(model, inputs)

    self.assertEqual((logits.shape, logits.dtype), ((8, 3), np.float32))
    expected = _reference_dense(model.layers, inputs)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)

  def test_number_of_parameters(self):
    model = nnx.eval_shape(_mlp)
    self.assertEqual(_size(model), (40 + 1) * 7 + (7 + 1) * 6 + (6 + 1) * 3)

  @parameterized.parameters(
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    ({'input_shape': (4, 0)}, r'input_shape: .* got \(4, 0\)'),
    ({'input_shape': ()}, r'input_shape: .* got \(\)'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _mlp(**changed)


@parameterized.named_parameters(
  ('vgg', lambda **own: _vgg(dropout=0.5, **own)), ('mlp', _mlp)
)
class EveryModelTest(parameterized.TestCase):
  def test_state_is_parameters_alone(self, make):
    _, params, rest = nnx.split(
      small_models.make_by_numpy(make), nnx.Param, ...
    )
    self.assertNotEmpty(jax.tree.leaves(params))
    self.assertEmpty(jax.tree.leaves(rest))

  def test_parameters_follow_the_seed(self, make):
    first, again, other = (
      jax.tree.leaves(
        nnx.split(small_models.make_by_numpy(make, keyed=True, seed=seed))[1]
      )
      for seed in (0, 0, 1)
    )
    for one, two in zip(first, again, strict=True):
      np.testing.assert_array_equal(one, two)
    kernels = [one.ndim > 1 for one in first]
    self.assertEqual(
      [not np.array_equal(*pair) for pair in zip(first, other, strict=True)],
      kernels,
    )

  def test_training_promotes_no_type_or_rank(self, make):
    shape = (32, 32, 3) if make is not _mlp else (4, 5, 2)
    graph, params = nnx.split(small_models.make_by_numpy(make))

    def loss(params, inputs, key):
      rngs = nnx.Rngs(dropout=key)
      return nnx.merge(graph, params)(inputs, rngs=rngs).sum()

    with (
      jax.numpy_rank_promotion('raise'),
      jax.numpy_dtype_promotion('strict'),
    ):
      gradient = jax.eval_shape(
        jax.grad(loss), params, _images((2, *shape)), jax.random.key(0)
      )
    self.assertEqual(
      {leaf.dtype for leaf in jax.tree.leaves(gradient)},
      {np.dtype(np.float32)},
    )


if __name__ == '__main__':
  absltest.main()
