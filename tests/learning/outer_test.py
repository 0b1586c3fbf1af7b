"""Tests for learning.outer, against Optax and plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from learning import outer


def _run(tx, displacements):
  """Returns the steps of an optimizer for scalars, one after the other."""
  params = jnp.zeros(3)
  state, steps = tx.init(params), []
  for each in displacements:
    step, state = jax.jit(tx.update)(each, state, params)
    steps.append(np.asarray(step))
  return steps


def _random(count):
  rng = np.random.default_rng(0)
  return list(rng.normal(size=(count, 3)).astype(np.float32))


class OuterTest(parameterized.TestCase):
  def test_sgd_moves_by_the_displacement(self):
    steps = _run(outer.sgd(), _random(3))
    np.testing.assert_array_equal(steps, -np.array(_random(3)))

  def test_nesterov_is_that_of_optax(self):
    expected = optax.sgd(1.0, momentum=0.9, nesterov=True)
    np.testing.assert_allclose(
      _run(outer.nesterov(momentum=0.9), _random(9)),
      _run(expected, _random(9)),
    )

  def test_without_a_delay_it_is_nesterov(self):
    np.testing.assert_allclose(
      _run(outer.delayed_nesterov(momentum=0.7, delay=1), _random(9)),
      _run(outer.nesterov(momentum=0.7), _random(9)),
      rtol=1e-5,
    )

  @parameterized.parameters(2, 3, 5)
  def test_delayed_updates_move_as_one_of_their_mean(self, delay):
    moved = _random(4 * delay)
    steps = _run(outer.delayed_nesterov(momentum=0.9, delay=delay), moved)

    means = [
      np.mean(moved[start : start + delay], axis=0)
      for start in range(0, len(moved), delay)
    ]
    expected = _run(outer.nesterov(momentum=0.9), means)
    for number, whole in enumerate(expected):
      of_group = steps[number * delay : (number + 1) * delay]
      np.testing.assert_allclose(
        np.sum(of_group, axis=0) / delay, whole, rtol=1e-4, atol=1e-5
      )
      others = moved[number * delay : (number + 1) * delay - 1]
      np.testing.assert_array_equal(of_group[:-1], -np.array(others))


if __name__ == '__main__':
  absltest.main()
