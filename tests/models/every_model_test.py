"""Tests of gradients, evaluation and seeds of every model."""

import math

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from tests.support import small_models


def _gradient(name):
  """Returns a function that gives gradient and statistics, and its arguments.

  The arguments are no constants, which would be folded when it is compiled.
  """
  graph, params, rest = small_models.parts_of(name)

  def loss(params, inputs, key):
    model = nnx.merge(graph, params, rest)
    logits = model(inputs, rngs=nnx.Rngs(dropout=key))
    stats = nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
    return (logits**2).mean(), stats

  arguments = params, small_models.MODELS[name][1], jax.random.key(0)
  return jax.grad(loss, has_aux=True), arguments


@parameterized.parameters(*small_models.MODELS)
class EveryModelTest(parameterized.TestCase):
  def test_training_gives_float32_gradients_and_promotes_nothing(self, name):
    rest = small_models.parts_of(name)[2]
    function, arguments = _gradient(name)
    with (
      jax.numpy_rank_promotion('raise'),
      jax.numpy_dtype_promotion('strict'),
    ):
      gradient, stats = jax.eval_shape(function, *arguments)
    leaves = jax.tree.leaves(gradient)
    self.assertEqual({leaf.dtype for leaf in leaves}, {np.dtype(np.float32)})
    self.assertEqual(jax.tree.structure(stats), jax.tree.structure(rest))

  def test_kernels_have_the_published_variance(self, name):
    _, params, _ = small_models.parts_of(name)
    gains = {'kernel': math.sqrt(2)}  # He et al., for ReLU.
    if name == 'transformer':  # LeCun et al.; less where branches are added.
      gains = {
        'queries_keys_values': 1,
        'gate_and_up': 1,
        'mix': 0.5,
        'down': 0.5,
      }
    scaled = [
      np.asarray(leaf) * math.sqrt(leaf[..., 0].size) / gain
      for path, leaf in jax.tree.leaves_with_path(params)
      for part, gain in gains.items()
      if path[-1].key == 'kernel' and part in [key.key for key in path]
    ]
    values = np.concatenate([k.ravel() for k in scaled])
    self.assertAlmostEqual(values.std(), 1, delta=5 / math.sqrt(values.size))
    self.assertLess(abs(values).max(), 2.28)


class EvaluationTest(parameterized.TestCase):
  @parameterized.parameters('resnet', 'alexnet', 'transformer')
  def test_is_deterministic(self, name):
    self._assert_deterministic(name)

  @parameterized.parameters('resnet50', 'inception_v3')
  @pytest.mark.soak  # Seconds of compilation each.
  def test_is_deterministic_in_deep_models(self, name):
    self._assert_deterministic(name)

  def _assert_deterministic(self, name):
    inputs = small_models.MODELS[name][1]
    graph, params, rest = small_models.parts_of(name)
    logits = small_models.jit(
      lambda inputs: nnx.merge(graph, params, rest)(inputs)
    )
    first = logits(inputs)
    np.testing.assert_array_equal(first, logits(inputs))
    np.testing.assert_allclose(  # No example sees its neighbours.
      logits(inputs[::-1])[::-1], first, rtol=1e-3, atol=1e-4
    )


class GradientTest(parameterized.TestCase):
  @parameterized.parameters('resnet', 'alexnet', 'transformer')
  def test_is_finite(self, name):
    self._assert_finite(name)

  @parameterized.parameters('resnet50', 'inception_v3')
  @pytest.mark.soak  # Seconds of compilation each.
  def test_is_finite_in_deep_models(self, name):
    self._assert_finite(name)

  def _assert_finite(self, name):
    function, arguments = _gradient(name)
    gradient, _ = small_models.jit(function)(*arguments)
    leaves = jax.tree.leaves(gradient)
    self.assertTrue(all(np.isfinite(leaf).all() for leaf in leaves))
    last = 'tokens' if name == 'transformer' else 'logits'
    for leaf in jax.tree.leaves(gradient[last]):
      self.assertTrue(np.any(leaf))


class DropoutTest(parameterized.TestCase):
  @parameterized.parameters('alexnet', 'transformer')
  def test_follows_the_key_and_is_off_in_evaluation(self, name):
    make, inputs = small_models.MODELS[name]
    graph, params, rest = small_models.parts_of(name)
    plain, *_ = nnx.split(nnx.eval_shape(lambda: make(dropout=0.0)))

    @small_models.jit
    def train(key):
      return nnx.merge(graph, params, rest)(inputs, rngs=nnx.Rngs(dropout=key))

    keys = jax.random.key(0), jax.random.key(1)
    np.testing.assert_array_equal(train(keys[0]), train(keys[0]))
    self.assertFalse(np.array_equal(train(keys[0]), train(keys[1])))
    np.testing.assert_array_equal(
      small_models.evaluate(nnx.merge(graph, params, rest), inputs),
      small_models.evaluate(nnx.merge(plain, params, rest), inputs),
    )

  @parameterized.parameters('alexnet', 'transformer')
  def test_parameters_follow_the_seed(self, name):
    make, _ = small_models.MODELS[name]
    first, again, other = (
      jax.tree.leaves(small_models.parts(model)[1])
      for model in (
        small_models.make_by_numpy(make, keyed=True, seed=seed)
        for seed in (0, 0, 1)
      )
    )
    for one, two, three in zip(first, again, other, strict=True):
      np.testing.assert_array_equal(one, two)
      self.assertEqual(np.array_equal(one, three), one.ndim == 1)


if __name__ == '__main__':
  absltest.main()
