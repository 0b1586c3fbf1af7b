"""Tests that tasks take models as their users have written them."""

import jax
import numpy as np
import optax
from absl.testing import absltest, parameterized
from flax import nnx

from models import task

_INPUTS = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
_TARGETS = np.arange(16, dtype=np.int32) % 2


class WithRngs(nnx.Module):
  def __init__(self, rngs):
    self.linear = nnx.Linear(3, 2, rngs=rngs)
    self.norm = nnx.BatchNorm(2, momentum=0.0, rngs=rngs)

  def __call__(self, inputs, *, rngs=None):
    return self.norm(self.linear(inputs), use_running_average=rngs is None)


class WithoutRngs(WithRngs):
  def __call__(self, inputs):
    return self.norm(self.linear(inputs))


class Open(WithRngs):
  def __call__(self, inputs, **others):
    return super().__call__(inputs, **others)


def _task(model):
  return task.supervised(
    model,
    loss=optax.softmax_cross_entropy_with_integer_labels,
    correct=lambda logits, targets: logits.argmax(-1) == targets,
  )


class Dropped(nnx.Module):
  def __init__(self, rngs, dropout_rngs=None):
    self.linear = nnx.Linear(3, 2, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=dropout_rngs)

  def __call__(self, inputs):
    return self.dropout(self.linear(inputs))


class SupervisedTest(parameterized.TestCase):
  @parameterized.parameters(WithoutRngs, Open)
  def test_a_model_without_rngs_trains_and_evaluates_as_one_with_them(
    self, kind
  ):
    found = []
    for model in (WithRngs(nnx.Rngs(0)), kind(nnx.Rngs(0))):
      learned = _task(model)
      losses, stats = jax.jit(learned.loss)(
        learned.params, _INPUTS, _TARGETS, jax.random.key(1)
      )
      self.assertFalse(np.allclose(stats['norm']['mean'], 0))
      shares = learned.correct(learned.params, learned.stats, _INPUTS, _TARGETS)
      moved = jax.tree.map(lambda leaf: leaf + 3, learned.stats)
      other = learned.correct(learned.params, moved, _INPUTS, _TARGETS)
      found.append((losses, stats, shares, other))
    jax.tree.map(np.testing.assert_array_equal, *found)

  def test_dropout_without_an_argument_for_its_keys_is_refused(self):
    expected = r'expected __call__\(inputs, \*, rngs=None\), .* got .*\(inputs'
    with self.assertRaisesRegex(ValueError, expected):
      _task(Dropped(nnx.Rngs(0)))

  def test_keys_in_the_model_are_refused_with_what_to_write_instead(self):
    with self.assertRaisesRegex(ValueError, r'create nnx.Dropout\(rate\) with'):
      _task(Dropped(nnx.Rngs(0), dropout_rngs=nnx.Rngs(1)))

  def test_running_averages_are_refused_with_what_to_write_instead(self):
    model = WithRngs(nnx.Rngs(0))
    model.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    expected = r'nnx.BatchNorm\(..., momentum=0.0\).* got 0.99'
    with self.assertRaisesRegex(ValueError, expected):
      _task(model)


if __name__ == '__main__':
  absltest.main()
