"""Tests for models.norm, resnet, alexnet, inception_v3 and transformer."""

import functools
import itertools
import math
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from models import alexnet, inception_v3, norm, resnet, transformer

# Compiling takes most of the time of these tests.
_jit = functools.partial(
  jax.jit,
  compiler_options={
    'xla_backend_optimization_level': 0,
    'xla_llvm_disable_expensive_passes': True,
  },
)


def _resnet(**changed):
  arguments = {
    'input_shape': (32, 32, 3),
    'num_classes': 10,
    'seed': 0,
    'depth': 20,
    'width': 1 / 8,
    'norm': 'group',
  }
  return resnet.make(**(arguments | changed))


def _resnet50(**changed):
  return _resnet(**({'depth': 50, 'width': 1 / 64, 'norm': 'batch'} | changed))


def _alexnet(**changed):
  arguments = {
    'input_shape': (32, 32, 3),
    'num_classes': 10,
    'seed': 0,
    'width': 1 / 8,
    'norm': 'none',
    'dropout': 0.5,
  }
  return alexnet.make(**(arguments | changed))


def _inception(**changed):
  arguments = {
    'input_shape': (75, 75, 3),
    'num_classes': 10,
    'seed': 0,
    'width': 1 / 32,
    'norm': 'none',
    'dropout': 0.5,
  }
  return inception_v3.make(**(arguments | changed))


def _transformer(**changed):
  arguments = {
    'input_shape': (8,),
    'num_classes': 11,
    'seed': 0,
    'layers': 2,
    'width': 12,
    'heads': 3,
    'dropout': 0.1,
  }
  return transformer.make(**(arguments | changed))


def _images(shape) -> np.ndarray:
  return np.random.default_rng(0).standard_normal(shape, np.float32)


def _tokens(shape) -> np.ndarray:
  return np.random.default_rng(0).integers(0, 11, shape, np.int32)


# Each with inputs.
_MODELS = {
  'resnet': (_resnet, _images((4, 32, 32, 3))),
  'resnet50': (_resnet50, _images((4, 32, 32, 3))),
  'alexnet': (_alexnet, _images((4, 32, 32, 3))),
  'inception_v3': (_inception, _images((4, 75, 75, 3))),
  'transformer': (_transformer, _tokens((4, 8))),
}


def _size(model, kind=nnx.Param) -> int:
  leaves = jax.tree.leaves(nnx.state(model, kind))
  return sum(math.prod(leaf.shape) for leaf in leaves)


def _shape(model, *shape, dtype=np.float32) -> tuple[int, ...]:
  inputs = jax.ShapeDtypeStruct(shape, dtype)
  logits = nnx.eval_shape(lambda model, x: model(x), model, inputs)
  return logits.shape


def _parts(model):
  """The model without its arrays, its parameters, and its other arrays."""
  graph, params, rest = nnx.split(model, nnx.Param, ...)
  return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(rest)


def _drawn(make, **changed):
  """Makes a model from draws of NumPy, which compiles nothing."""
  rng = np.random.default_rng(0)

  def draw(key, lower, upper, shape, dtype):
    del key
    row = rng.standard_normal((math.prod(shape), 8)).astype(dtype)
    inside = (lower < row) & (row < upper)
    return row[np.arange(len(row)), inside.argmax(axis=1)].reshape(shape)

  with mock.patch.object(jax.random, 'truncated_normal', draw):
    return make(**changed)


@functools.cache
def _made(name):
  return _parts(_drawn(_MODELS[name][0]))


def _moved(model):
  """Moves scales, biases and statistics from where they hide their absence."""
  graph, params, rest = _parts(model)
  rng = np.random.default_rng(1)

  def move(leaf):
    if leaf.ndim > 1:
      return leaf
    return leaf + rng.uniform(0, 0.3, leaf.shape).astype(np.float32)

  return nnx.merge(graph, *jax.tree.map(move, (params, rest)))


def _evaluated(model, inputs) -> np.ndarray:
  graph, params, rest = _parts(model)
  logits = _jit(lambda *arrays: nnx.merge(graph, *arrays)(inputs))
  return np.asarray(logits(params, rest))


def _f64(variable) -> np.ndarray:
  return np.asarray(variable[...], np.float64)


def _reference_conv(layer, x, strides=1, padding=None) -> np.ndarray:
  """Of a norm.Conv in evaluation, with the zeros around the image spelt out."""
  kernel = _f64(layer.conv.kernel)
  size = kernel.shape[0]
  padding = size // 2 if padding is None else padding
  x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))
  windows = windows[:, ::strides, ::strides]
  x = np.einsum('bhwcij,ijco->bhwo', windows, kernel, optimize=True)
  if layer.conv.bias is not None:
    return x + _f64(layer.conv.bias)
  return _reference_norm(layer.norm, x)


def _reference_norm(layer, x) -> np.ndarray:
  if 'mean' in vars(layer):
    mean, var = _f64(layer.mean), _f64(layer.var)
  else:
    groups = x.reshape(*x.shape[:3], layer.num_groups, -1)
    mean, var = (
      np.repeat(moment(groups, axis=(1, 2, 4)), groups.shape[-1], axis=1)
      for moment in (np.mean, np.var)
    )
    mean, var = mean[:, None, None], var[:, None, None]
  x = (x - mean) / np.sqrt(var + 1e-5)
  return x * _f64(layer.scale) + _f64(layer.bias)


def _reference_dense(layer, x) -> np.ndarray:
  return x @ _f64(layer.kernel) + _f64(layer.bias)


def _relu(x):
  return np.maximum(x, 0)


class NormTest(parameterized.TestCase):
  @parameterized.parameters(
    *((1, 1), (3, 3), (16, 16), (32, 32), (48, 24), (64, 32)),
    *((37, 1), (80, 20), (448, 32)),
  )
  def test_groups_are_as_many_as_divide_the_channels(self, channels, groups):
    layer = norm.make('group', channels, nnx.Rngs(0))
    self.assertEqual(layer.num_groups, groups)

  def test_batch_keeps_the_statistics_of_the_last_batch_alone(self):
    layer = norm.make('batch', 3, nnx.Rngs(0))
    first, second = 100 + 5 * _images((2, 8, 4, 4, 3))
    layer(first, train=True)
    normalised = layer(second, train=True)

    axes = (0, 1, 2)
    wide = second.astype(np.float64)
    np.testing.assert_allclose(layer.mean[...], wide.mean(axes), rtol=1e-6)
    np.testing.assert_allclose(layer.var[...], wide.var(axes), rtol=1e-5)
    expected = (wide - wide.mean(axes)) / np.sqrt(wide.var(axes) + 1e-5)
    np.testing.assert_allclose(normalised, expected, rtol=1e-4, atol=1e-4)

  def test_batch_evaluates_with_the_statistics_that_it_holds(self):
    layer = norm.make('batch', 3, nnx.Rngs(0))
    layer.mean[...] += 2
    layer.var[...] += 3
    inputs = _images((2, 4, 4, 3))

    outputs = layer(inputs, train=False)

    np.testing.assert_allclose(outputs, (inputs - 2) / 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(layer.mean[...], [2, 2, 2])
    np.testing.assert_array_equal(layer.var[...], [4, 4, 4])

  @parameterized.parameters('group', 'none')
  def test_training_changes_only_batch(self, kind):
    layer = norm.make(kind, 6, nnx.Rngs(0))
    inputs = _images((2, 4, 4, 6))
    np.testing.assert_array_equal(
      layer(inputs, train=True), layer(inputs, train=False)
    )

  def test_none_is_the_identity(self):
    inputs = _images((2, 4, 4, 6))
    layer = norm.make('none', 6, nnx.Rngs(0))
    np.testing.assert_array_equal(layer(inputs, train=True), inputs)

  @parameterized.product(
    make=[_resnet, _alexnet], kind=['group', 'batch', 'none']
  )
  def test_only_batch_brings_more_than_parameters(self, make, kind):
    model = nnx.eval_shape(lambda: make(norm=kind))
    _, params, stats, rest = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
    self.assertNotEmpty(jax.tree.leaves(params))
    self.assertEqual(bool(jax.tree.leaves(stats)), kind == 'batch')
    self.assertEmpty(jax.tree.leaves(rest))

  @parameterized.parameters(_resnet, _resnet50, _alexnet, _inception)
  def test_rejects(self, make):
    message = "norm: expected 'group', 'batch' or 'none', got 'layer'"
    with self.assertRaisesRegex(ValueError, message):
      make(norm='layer')


class ResNetTest(parameterized.TestCase):
  @parameterized.parameters(
    *((20, 'batch', 269_722), (20, 'group', 269_722)),
    *((32, 'group', 464_154), (110, 'group', 1_727_962)),
  )
  def test_cifar_network_has_the_known_number_of_parameters(
    self, depth, kind, size
  ):
    """0.27, 0.46 and 1.7 million in table 6 of the paper."""
    model = nnx.eval_shape(lambda: _resnet(depth=depth, width=1, norm=kind))
    self.assertEqual(_size(model), size)

  @parameterized.parameters((224, 1000, 25_557_032), (32, 10, 23_520_842))
  def test_bottleneck_network_has_the_known_number_of_parameters(
    self, pixels, num_classes, size
  ):
    """At 224 pixels that of torchvision; at 32 the stem and head differ."""
    model = nnx.eval_shape(
      lambda: _resnet50(
        width=1,
        input_shape=(pixels, pixels, 3),
        num_classes=num_classes,
      )
    )
    self.assertEqual(_size(model), size)
    self.assertEqual(_size(model, nnx.BatchStat), 2 * 26_560)
    self.assertEqual(_shape(model, 5, pixels, pixels, 3), (5, num_classes))

  @parameterized.product(
    depth=[20, 32], width=[0.3, 1e-3], kind=['group', 'none']
  )
  def test_width_multiplies_all_channels(self, depth, width, kind):
    model = nnx.eval_shape(lambda: _resnet(depth=depth, width=width, norm=kind))
    extra = {'group': 2, 'none': 1}[kind]  # Scale and bias, or bias.
    expected, features = 0, 3
    for stage in (16, 32, 64):
      out = max(1, round(stage * width))
      layers = (depth - 2) // 3 + (stage == 16)
      expected += 9 * features * out + 9 * (layers - 1) * out * out
      expected += extra * layers * out
      features = out
    self.assertEqual(_size(model), expected + (features + 1) * 10)

  @parameterized.parameters('group', 'batch', 'none')
  def test_logits_match_the_layers_of_the_paper(self, kind):
    model = _moved(_drawn(_resnet, norm=kind))
    images = _MODELS['resnet'][1][:2]

    x = _relu(_reference_conv(model.stem, images))
    for number, block in enumerate(model.blocks):
      strides = 2 if number in (3, 6) else 1
      first, second = block.convs
      inner = _relu(_reference_conv(first, x, strides))
      branch = _reference_conv(second, inner)
      new = branch.shape[-1] - x.shape[-1]
      x = np.pad(x[:, ::strides, ::strides], ((0, 0),) * 3 + ((0, new),))
      x = _relu(branch + x)
    expected = _reference_dense(model.logits, x.mean((1, 2)))

    logits = _evaluated(model, images)
    self.assertEqual((logits.shape, logits.dtype), ((2, 10), np.float32))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)

  def test_logits_match_bottleneck_layers(self):
    model = _moved(nnx.merge(*_made('resnet50')))
    images = _MODELS['resnet50'][1][:2]

    x = _relu(_reference_conv(model.stem, images))
    for number, block in enumerate(model.blocks):
      strides = 2 if number in (3, 7, 13) else 1
      reduce, middle, expand = block.convs
      inner = _relu(_reference_conv(reduce, x))
      inner = _relu(_reference_conv(middle, inner, strides))
      if number in (0, 3, 7, 13):
        x = _reference_conv(block.shortcut, x, strides)
      x = _relu(_reference_conv(expand, inner) + x)
    expected = _reference_dense(model.logits, x.mean((1, 2)))

    logits = _evaluated(model, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)

  def test_without_normalisation_many_blocks_keep_the_scale(self):
    model = _drawn(_resnet, depth=110, norm='none')
    logits = _evaluated(model, _MODELS['resnet'][1])
    self.assertBetween(np.sqrt(np.mean(logits**2)), 0.03, 30)

  @parameterized.parameters(
    ({'depth': 44}, 'depth: expected 20, 32, 50 or 110, got 44'),
    ({'width': 0.0}, 'width: expected more than 0, got 0.0'),
    ({'width': math.nan}, 'width: .* got nan'),
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    (
      {'input_shape': (224, 224, 3)},
      r'input_shape: expected 32 x 32 pixels, got \(224, 224, 3\)',
    ),
    (
      {'input_shape': (64, 64, 3), 'depth': 50},
      r'input_shape: expected 32 x 32 or 224 x 224 pixels, got \(64, 64, 3\)',
    ),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _resnet(**changed)


class AlexNetTest(parameterized.TestCase):
  @parameterized.parameters((224, 1000, 61_100_840), (32, 10, 145_578))
  def test_full_size_has_the_known_number_of_parameters(
    self, pixels, num_classes, size
  ):
    """That of torchvision, and that of Caffe's cifar10_quick."""
    model = nnx.eval_shape(
      lambda: _alexnet(
        width=1, input_shape=(pixels, pixels, 3), num_classes=num_classes
      )
    )
    self.assertEqual(_size(model), size)

  @parameterized.parameters(224, 32)
  def test_logits_match_the_layers(self, pixels):
    model = _moved(_drawn(_alexnet, input_shape=(pixels, pixels, 3)))
    images = _images((2, pixels, pixels, 3))

    pools = {
      224: (np.max, np.max, None, None, np.max),
      32: (np.max, np.mean, np.mean),
    }
    x = images
    for conv, pool in zip(model.convs, pools[pixels], strict=True):
      large = conv.conv.kernel.shape[0] == 11
      args = {'strides': 4, 'padding': 2} if large else {}
      x = _relu(_reference_conv(conv, x, **args))
      x = x if pool is None else _reference_pool(pool, x)
    x = x.reshape(2, -1)
    for dense in model.hidden:
      x = _relu(_reference_dense(dense, x))
    expected = _reference_dense(model.logits, x)

    logits = _evaluated(model, images)
    self.assertEqual((logits.shape, logits.dtype), ((2, 10), np.float32))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)

  @parameterized.parameters(
    ({'width': 0.0}, 'width: expected more than 0, got 0.0'),
    ({'dropout': 1.0}, 'dropout: .* got 1.0'),
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    ({'input_shape': (64, 64, 3)}, r'input_shape: .* got \(64, 64, 3\)'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _alexnet(**changed)


def _reference_pool(reduce, x) -> np.ndarray:
  """3x3 windows two pixels apart; a last one may reach over the edge."""
  size = math.ceil((x.shape[1] - 3) / 2) + 1
  pooled = np.empty((len(x), size, size, x.shape[-1]))
  for i, j in itertools.product(range(size), repeat=2):
    window = x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
    pooled[:, i, j] = reduce(window, axis=(1, 2))
  return pooled


@functools.cache
def _wide_inception(kind):
  return nnx.eval_shape(
    lambda: _inception(width=1, num_classes=1000, norm=kind)
  )


class InceptionV3Test(parameterized.TestCase):
  @parameterized.parameters(('group', 0), ('batch', 2 * 17_216))
  def test_full_size_has_the_known_number_of_parameters(self, kind, rest):
    """That of torchvision, less its auxiliary classifier."""
    model = _wide_inception(kind)
    auxiliary = (768 + 2) * 128 + (5 * 5 * 128 + 2) * 768 + (768 + 1) * 1000
    self.assertEqual(_size(model), 27_161_264 - auxiliary)
    self.assertEqual(_size(model), 23_834_568)
    self.assertEqual(_size(model, nnx.BatchStat), rest)

  @parameterized.parameters((299, 299, 8, 8), (75, 128, 1, 2))
  def test_images_shrink_as_published(self, height, width, rows, columns):
    model = _wide_inception('batch')
    mixed = jax.ShapeDtypeStruct((5, height, width, 3), np.float32)
    shapes = []
    for layer in model.layers.layers:
      mixed = nnx.eval_shape(
        lambda layer, x: layer(x, train=False), layer, mixed
      )
      shapes.append(mixed.shape[1:])

    self.assertEqual(shapes[-1], (rows, columns, 2048))
    if height == 299:  # Table 1 of the paper, from its second pooling on.
      self.assertEqual(
        [shapes[i] for i in (6, 9, 10, 14, 15)],
        [
          *((35, 35, 192), (35, 35, 288), (17, 17, 768), (17, 17, 768)),
          (8, 8, 1280),
        ],
      )

  @parameterized.parameters(
    ({'width': 0.0}, 'width: expected more than 0, got 0.0'),
    ({'dropout': -0.1}, 'dropout: .* got -0.1'),
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    (
      {'input_shape': (299, 74, 3)},
      r'input_shape: expected at least 75 x 75 pixels, got \(299, 74, 3\)',
    ),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _inception(**changed)


class TransformerTest(parameterized.TestCase):
  def test_number_of_parameters_is_that_of_gpt2_and_a_head(self):
    model = nnx.eval_shape(
      lambda: _transformer(
        input_shape=(1024,), num_classes=50257, layers=12, width=768, heads=12
      )
    )
    head = (768 + 1) * 50257
    self.assertEqual(_size(model), 124_439_808 + head)
    _, params, rest = nnx.split(model, nnx.Param, ...)
    self.assertNotEmpty(jax.tree.leaves(params))
    self.assertEmpty(jax.tree.leaves(rest))

  @parameterized.parameters(1, 5, 8)
  def test_short_inputs_give_the_logits_of_a_start(self, length):
    model = nnx.merge(*_made('transformer'))
    tokens = _tokens((4, 8))
    np.testing.assert_allclose(
      _evaluated(model, tokens[:, :length]),
      _evaluated(model, tokens)[:, :length],
      rtol=1e-4,
      atol=1e-5,
    )

  def test_a_token_changes_no_logits_before_it(self):
    graph, params, rest = _made('transformer')
    logits = _jit(lambda tokens: nnx.merge(graph, params, rest)(tokens))
    tokens = _tokens((4, 8))
    before = np.asarray(logits(tokens))

    self.assertEqual((before.shape, before.dtype), ((4, 8, 11), np.float32))
    for t in range(8):
      changed = tokens.copy()
      changed[:, t] = (changed[:, t] + 1) % 11
      after = np.asarray(logits(changed))
      np.testing.assert_array_equal(after[:, :t], before[:, :t])
      differs = (after != before).any(axis=-1)
      self.assertTrue(differs[:, t:].all())

  def test_logits_match_attention_by_hand(self):
    model = _moved(nnx.merge(*_made('transformer')))
    tokens = _tokens((4, 8))

    x = _f64(model.tokens.embedding)[tokens] + _f64(model.positions)
    for layer in model.layers:
      x = x + _reference_attention(layer, x, heads=3)
      hidden = _reference_dense(layer.up, _reference_layer(layer.dense_norm, x))
      cubic = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
      gelu = hidden * (1 + np.tanh(cubic)) / 2
      x = x + _reference_dense(layer.down, gelu)
    expected = _reference_dense(model.logits, _reference_layer(model.norm, x))

    logits = _evaluated(model, tokens)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)

  @parameterized.parameters(
    ({'input_shape': (0,)}, r'input_shape: .* got \(0,\)'),
    ({'input_shape': (8, 2)}, r'input_shape: .* got \(8, 2\)'),
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    ({'layers': 0}, 'layers: .* got 0'),
    ({'heads': 0}, 'heads: .* got 0'),
    ({'width': 10}, 'width: expected a multiple of heads, 3, got 10'),
    ({'width': 0}, 'width: .* got 0'),
    ({'dropout': 1.0}, 'dropout: .* got 1.0'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _transformer(**changed)


def _reference_layer(layer, x) -> np.ndarray:
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return x * _f64(layer.scale) + _f64(layer.bias)


def _reference_attention(layer, x, heads) -> np.ndarray:
  """Head by head, and query by query: each sees what is not after it."""
  normal = _reference_layer(layer.attention_norm, x)
  parts = np.split(_reference_dense(layer.queries_keys_values, normal), 3, -1)
  mixed = np.zeros_like(x)
  size = x.shape[-1] // heads
  for example, head in itertools.product(range(len(x)), range(heads)):
    units = slice(head * size, (head + 1) * size)
    query, key, value = (part[example][:, units] for part in parts)
    for t in range(len(query)):
      weight = np.exp(key[: t + 1] @ query[t] / math.sqrt(size))
      mixed[example, t, units] = weight @ value[: t + 1] / weight.sum()
  return _reference_dense(layer.mix, mixed)


@parameterized.parameters(*_MODELS)
class EveryModelTest(parameterized.TestCase):
  def test_training_gives_finite_float32_gradients(self, name):
    graph, params, rest = _made(name)

    def loss(params, inputs, key):
      model = nnx.merge(graph, params, rest)
      logits = model(inputs, rngs=nnx.Rngs(dropout=key))
      return (logits**2).mean(), nnx.to_pure_dict(
        nnx.state(model, nnx.BatchStat)
      )

    with (
      jax.numpy_rank_promotion('raise'),
      jax.numpy_dtype_promotion('strict'),
    ):
      gradient, stats = _jit(jax.grad(loss, has_aux=True))(
        params, _MODELS[name][1], jax.random.key(0)
      )
    leaves = jax.tree.leaves(gradient)
    self.assertEqual({leaf.dtype for leaf in leaves}, {np.dtype(np.float32)})
    self.assertTrue(all(np.isfinite(leaf).all() for leaf in leaves))
    self.assertTrue(np.any(gradient['logits']['kernel']))
    self.assertEqual(jax.tree.structure(stats), jax.tree.structure(rest))

  def test_evaluation_is_deterministic(self, name):
    inputs = _MODELS[name][1]
    graph, params, rest = _made(name)
    logits = _jit(lambda inputs: nnx.merge(graph, params, rest)(inputs))
    first = logits(inputs)
    np.testing.assert_array_equal(first, logits(inputs))
    np.testing.assert_allclose(  # No example sees its neighbours.
      logits(inputs[::-1])[::-1], first, rtol=1e-3, atol=1e-4
    )

  def test_kernels_have_the_variance_of_he(self, name):
    _, params, _ = _made(name)
    kernels = [
      np.asarray(leaf)
      for path, leaf in jax.tree.leaves_with_path(params)
      if path[-1].key == 'kernel'
    ]
    scaled = [k * math.sqrt(k[..., 0].size / 2) for k in kernels]
    values = np.concatenate([k.ravel() for k in scaled])
    self.assertAlmostEqual(values.std(), 1, delta=5 / math.sqrt(values.size))
    self.assertLess(abs(values).max(), 2.28)


class StatisticsTest(absltest.TestCase):
  def test_a_training_pass_leaves_the_statistics_of_its_batch(self):
    model = _drawn(_resnet, norm='batch')
    images = _MODELS['resnet'][1]
    inner = _f64(model.stem.conv(images))
    graph, params, rest = _parts(model)

    @_jit
    def statistics(params, rest):
      model = nnx.merge(graph, params, rest)
      model(images, rngs=nnx.Rngs(dropout=0))
      return nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))

    stats = statistics(params, rest)
    stem = stats['stem']['norm']
    axes = (0, 1, 2)
    np.testing.assert_allclose(stem['mean'], inner.mean(axes), atol=1e-5)
    np.testing.assert_allclose(stem['var'], inner.var(axes), rtol=1e-5)
    # Nothing is left of what was there before.
    zeros = jax.tree.map(np.zeros_like, rest)
    jax.tree.map(
      np.testing.assert_array_equal, stats, statistics(params, zeros)
    )


class DropoutTest(parameterized.TestCase):
  @parameterized.parameters('alexnet', 'transformer')
  def test_follows_the_key_and_is_off_in_evaluation(self, name):
    make, inputs = _MODELS[name]
    graph, params, rest = _made(name)
    plain, *_ = nnx.split(nnx.eval_shape(lambda: make(dropout=0.0)))

    @_jit
    def train(key):
      return nnx.merge(graph, params, rest)(inputs, rngs=nnx.Rngs(dropout=key))

    keys = jax.random.key(0), jax.random.key(1)
    np.testing.assert_array_equal(train(keys[0]), train(keys[0]))
    self.assertFalse(np.array_equal(train(keys[0]), train(keys[1])))
    np.testing.assert_array_equal(
      _evaluated(nnx.merge(graph, params, rest), inputs),
      _evaluated(nnx.merge(plain, params, rest), inputs),
    )

  @parameterized.parameters('alexnet', 'transformer')
  def test_parameters_follow_the_seed(self, name):
    make, _ = _MODELS[name]
    first, again, other = (
      jax.tree.leaves(_parts(model)[1])
      for model in (make(seed=0), make(seed=0), make(seed=1))
    )
    for one, two, three in zip(first, again, other, strict=True):
      np.testing.assert_array_equal(one, two)
      self.assertEqual(np.array_equal(one, three), one.ndim == 1)


if __name__ == '__main__':
  absltest.main()
