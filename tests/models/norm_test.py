"""Tests for models.norm, in layers alone and in whole models."""

import jax
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from models import norm
from tests.support import references, small_models


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
    first, second = 100 + 5 * small_models.images((2, 8, 4, 4, 3))
    layer(first, train=True)
    normalised = layer(second, train=True)

    axes = (0, 1, 2)
    wide = second.astype(np.float64)
    np.testing.assert_allclose(layer.mean[...], wide.mean(axes), rtol=1e-6)
    np.testing.assert_allclose(layer.var[...], wide.var(axes), rtol=1e-5)
    expected = (wide - wide.mean(axes)) / np.sqrt(wide.var(axes) + 1e-5)
    np.testing.assert_allclose(normalised, expected, rtol=1e-4, atol=1e-4)

  def test_batch_norm_evaluates_with_its_running_statistics(self):
    layer = norm.make('batch', 3, nnx.Rngs(0))
    layer.mean[...] += 2
    layer.var[...] += 3
    inputs = small_models.images((2, 4, 4, 3))

    outputs = layer(inputs, train=False)

    np.testing.assert_allclose(outputs, (inputs - 2) / 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(layer.mean[...], [2, 2, 2])
    np.testing.assert_array_equal(layer.var[...], [4, 4, 4])

  @parameterized.parameters('group', 'none')
  def test_training_changes_only_batch(self, kind):
    layer = norm.make(kind, 6, nnx.Rngs(0))
    inputs = small_models.images((2, 4, 4, 6))
    np.testing.assert_array_equal(
      layer(inputs, train=True), layer(inputs, train=False)
    )

  def test_norm_none_is_the_identity(self):
    inputs = small_models.images((2, 4, 4, 6))
    layer = norm.make('none', 6, nnx.Rngs(0))
    np.testing.assert_array_equal(layer(inputs, train=True), inputs)

  @parameterized.product(
    make=[small_models.make_resnet, small_models.make_alexnet],
    kind=['group', 'batch', 'none'],
  )
  def test_only_batch_brings_more_than_parameters(self, make, kind):
    model = nnx.eval_shape(lambda: make(norm=kind))
    _, params, stats, rest = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
    self.assertNotEmpty(jax.tree.leaves(params))
    self.assertEqual(bool(jax.tree.leaves(stats)), kind == 'batch')
    self.assertEmpty(jax.tree.leaves(rest))

  def test_an_unknown_kind_is_refused(self):
    message = "norm: expected 'group', 'batch' or 'none', got 'layer'"
    with self.assertRaisesRegex(ValueError, message):
      norm.make('layer', 4, nnx.Rngs(0))


class StatisticsTest(absltest.TestCase):
  def test_a_training_pass_leaves_the_statistics_of_its_batch(self):
    model = small_models.make_by_numpy(small_models.make_resnet, norm='batch')
    images = small_models.MODELS['resnet'][1]
    inner = references.f64(model.stem.conv(images))
    graph, params, rest = small_models.parts(model)

    @small_models.jit
    def statistics(params, rest):
      model = nnx.merge(graph, params, rest)
      model(images, rngs=nnx.Rngs(dropout=0))
      return nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))

    stats = statistics(params, rest)
    stem = stats['stem']['norm']
    axes = (0, 1, 2)
    np.testing.assert_allclose(stem['mean'], inner.mean(axes), atol=1e-5)
    np.testing.assert_allclose(stem['var'], inner.var(axes), rtol=1e-5)
    # Earlier statistics have no effect.
    zeros = jax.tree.map(np.zeros_like, rest)
    jax.tree.map(
      np.testing.assert_array_equal, stats, statistics(params, zeros)
    )


if __name__ == '__main__':
  absltest.main()
