"""Tests for loss scales: their rule, and that they cancel to the last bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from configs import default
from data.dataset import Split
from learning import scaling
from learning.digest import digest
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.layout import Layout
from learning.learner import TaskLearner
from learning.scaling import Scaling
from models import mlp, task
from tests.support import drawn
from wire.codec import Payload

_FIRST = Scaling(2.0**15, 0, 2)


def _config(**changed):
  config = default.get_config()
  for name, value in changed.items():
    config.precision[name] = value
  return config


class ScalingTest(parameterized.TestCase):
  def test_scale_halves_and_doubles_after_some_finite_gradients(self):
    now, seen = _FIRST, []
    for finite in (True, False, False, True, True, True, False, True, True):
      now = now.after(finite=finite)
      seen.append((np.log2(now.value), now.good))
    want = [(15, 1), (14, 0), (13, 0), (13, 1), (14, 0), (14, 1), (13, 0)]
    self.assertEqual(seen, [*want, (13, 1), (14, 0)])

  def test_scale_is_a_power_of_two_within_bounds(self):
    low, high = _FIRST, _FIRST
    for _ in range(100):
      low, high = low.after(finite=False), high.after(finite=True)
    self.assertEqual((low.value, high.value), (2.0**-8, 2.0**24))
    self.assertFalse(low.can_fall)
    self.assertTrue(high.can_fall)

  def test_overflow_at_the_smallest_scale_is_an_error(self):
    least = _FIRST._replace(value=2.0**-8)
    scaling.check([_FIRST, least], 0, 'This')
    scaling.check([_FIRST], 7, 'This')  # All have the same.
    with self.assertRaisesRegex(FloatingPointError, 'This is not finite, with'):
      scaling.check([_FIRST, least], 1, 'This')
    with self.assertRaisesRegex(FloatingPointError, r'This is not finite\.'):
      scaling.check([], 1, 'This')

  @parameterized.parameters(
    ({'dtype': 'float16'}, "loss_scaling: expected 'dynamic', or 'none' to go"),
    ({'dtype': 'float16', 'loss_scaling': 'static'}, 'loss_scaling: .*static'),
    ({'dtype': 'bfloat16', 'loss_scaling': 'dynamic'}, 'loss_scaling: .* no'),
    ({'loss_scaling': 'none'}, 'loss_scaling: .* as no gradient is in float16'),
    ({'grow_after': 3}, 'grow_after: 3 is ignored'),
  )
  def test_contradicting_settings_are_refused(self, changed, message):
    with self.assertRaisesRegex(ValueError, f'config.precision.{message}'):
      scaling.make(_config(**changed), own_task=False)

  def test_scaling_is_off_unless_configured(self):
    self.assertIsNone(scaling.make(_config(), own_task=False))
    without = _config(dtype='float16', loss_scaling='none')
    self.assertIsNone(scaling.make(without, own_task=False))
    dynamic = _config(loss_scaling='dynamic')
    self.assertEqual(scaling.make(dynamic, own_task=True).value, 2.0**15)
    dynamic.wire.dense.dtype = 'float16'
    self.assertEqual(scaling.make(dynamic, own_task=False).grow_after, 2000)


@functools.cache
def _gradient(dtype='float32', scaled=True):
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=(16, 4, 4, 1)).astype(np.float32)
  targets = rng.integers(3, size=16).astype(np.int32)
  make = functools.partial(
    mlp.make,
    input_shape=(4, 4, 1),
    num_classes=3,
    seed=0,
    hidden=(8,),
    dtype=jnp.dtype(dtype),
  )
  learned = task.classification(drawn.model(make), lambda x: x, lambda x, _: x)

  def indices(ranges):
    return np.concatenate([np.arange(*each) for each in ranges])

  split = Split(inputs, targets)
  return TaskGradient(
    learned, split, indices, micro_batch=8, seed=0, scaled=scaled
  )


def _make(gradient, **scale):
  ranges = ((0, 12),)  # In two parts.
  iteration = Iteration(ranges, worker=0, number=0, **scale)
  return gradient(gradient.task.params, iteration)


class GradientTest(parameterized.TestCase):
  def test_a_power_of_two_changes_no_bit_but_the_exponent(self):
    plain, loss = _make(_gradient(scaled=False))
    one, _ = _make(_gradient())
    scaled, same = _make(_gradient(), scale=2.0**15)
    jax.tree.map(np.testing.assert_array_equal, one, plain)
    unscaled = jax.tree.map(lambda leaf: leaf / 2.0**15, scaled.gradient)
    jax.tree.map(np.testing.assert_array_equal, unscaled, plain.gradient)
    self.assertEqual(loss, same)

  # A layer rounds its inputs, its parameters and its results, on the way
  # there and back: 6 roundings of at most eps / 2 in each of two layers, and
  # one at the logits' derivative; relative, of the norm.
  @parameterized.parameters(('bfloat16', 2.0**-7), ('float16', 2.0**-10))
  def test_half_precision_is_within_its_rounding_of_float32(self, dtype, eps):
    exact, loss = _make(_gradient())
    for scale in (1.0, 2.0**10):
      found, near = _make(_gradient(dtype), scale=scale)
      for got, want in zip(
        *map(jax.tree.leaves, (found.gradient, exact.gradient)), strict=True
      ):
        self.assertEqual(got.dtype, np.float32)
        apart = np.linalg.norm(got / scale - want)
        self.assertLess(apart, 6.5 * eps * np.linalg.norm(want))
      self.assertGreater(apart, 0)
      self.assertAlmostEqual(near / loss, 1, delta=6.5 * eps)

  def test_float16_overflows_and_a_smaller_scale_does_not(self):
    large, _ = _make(_gradient('float16'), scale=2.0**20)
    leaves = jax.tree.leaves(large.gradient)
    self.assertFalse(all(np.isfinite(leaf).all() for leaf in leaves))
    small, _ = _make(_gradient('float16'), scale=2.0**8)
    leaves = jax.tree.leaves(small.gradient)
    self.assertTrue(all(np.isfinite(leaf).all() for leaf in leaves))


def _learner():
  return TaskLearner(
    params={'a': jnp.array([1.0, -2.0]), 'b': jnp.ones((2, 3))},
    stats=jnp.zeros(2),
    tx=optax.sgd(1.0, momentum=0.9),
    schedule=lambda examples, updates: 0.1,
    reduction='sum',
    num_workers=2,
    worker_batch=8,
  )


def _payload(seed, scale=1.0):
  rng = np.random.default_rng(seed)
  gradient = {
    name: jnp.asarray(rng.normal(size=size) * scale, jnp.float32)
    for name, size in (('a', 2), ('b', (2, 3)))
  }
  return Payload(gradient, jnp.asarray(rng.normal(size=2), jnp.float32))


class LearnerTest(parameterized.TestCase):
  def _assert_same(self, one, other):
    names = ('params', 'stats', 'version', 'examples', '_state')
    pairs = ([getattr(x, name) for name in names] for x in (one, other))
    jax.tree.map(np.testing.assert_array_equal, *pairs)

  def test_pushes_of_different_scales_give_the_unscaled_update(self):
    plain, scaled = _learner(), _learner()
    for update in range(3):
      for seed, scale in enumerate((2.0**15, 1.0, 2.0**-3)):
        plain.add(update, _payload(seed), 8)
        scaled.add(update, _payload(seed, scale), 8, scale=scale)
      plain.commit(update)
      scaled.commit(update)
    self._assert_same(scaled, plain)

  def test_sums_of_one_scale_give_the_unscaled_update(self):
    plain, scaled, pooled = _learner(), _learner(), _learner()
    scaled.scaling = pooled.scaling = _FIRST
    layout = Layout(
      plain.params, plain.stats, order=(0, 1), bucket_bytes=0, step_statistics=1
    )
    for update in range(3):  # The scale doubles after two.
      scale = scaled.scaling.value
      payload = _payload(update, scale)
      vector = np.zeros(layout.size, np.float32)
      for leaf, array in enumerate(jax.tree.leaves(payload.gradient)):
        layout.write_leaf(vector, leaf, array)
      layout.write_stats(vector, payload.stats)
      pooled.apply(layout.payload(vector), 16, pushes=2)
      scaled.add(update, payload, 16, pushes=2)
      plain.add(update, _payload(update), 16, pushes=2)
      for each in (plain, scaled):
        each.commit(update)
    self._assert_same(scaled, plain)
    self._assert_same(pooled, plain)
    self.assertEqual(pooled.scaling, (2.0**16, 1, 2))
    self.assertEqual(digest(pooled.state()), digest(scaled.state()))

  def test_a_skipped_update_changes_the_version_and_the_scale_alone(self):
    learner = _learner()
    learner.scaling = _FIRST
    learner.add(0, _payload(0), 8)
    learner.commit(0)
    before = learner.state()
    learner.add(1, _payload(1, np.inf), 8)
    learner.skip(1)
    after = learner.state()
    self.assertEqual((after['version'], after['examples']), (2, 8))
    self.assertEqual(after['scaling'], (2.0**14, 0, 2))
    for name in ('params', 'stats', '_state', '_sums'):
      jax.tree.map(np.testing.assert_array_equal, before[name], after[name])
    again = _learner()
    again.restore(after)
    self.assertEqual(again.scaling, learner.scaling)

  def test_an_empty_update_increments_the_version(self):
    learner = _learner()
    learner.commit(5)
    self.assertEqual((learner.version, learner.examples), (1, 0))
    np.testing.assert_array_equal(learner.params['a'], [1.0, -2.0])


if __name__ == '__main__':
  absltest.main()
