"""Tests for predict.gate, against plain Python for one worker at a time."""

import copy
import math

import numpy as np
from absl.testing import absltest, parameterized

from predict import gate

_QUICK, _SLOW, _DISCOUNT = 0.7, 0.3, 0.03


def _make(workers: int = 1) -> gate.Gate:
  return gate.make(
    num_workers=workers, quick=_QUICK, slow=_SLOW, discount=_DISCOUNT
  )


def _expected(speeds, networks) -> list[float]:
  """Returns the prediction after each speed, computed by the formula."""
  averages, experts, near = None, None, True
  errors = {near: ([0.0] * 4, 0.0) for near in (True, False)}
  regrets = [0.0] * 4
  found = []
  for speed, network in zip(speeds, networks, strict=True):
    if not math.isnan(speed):
      if experts:
        squares = [(each - speed) ** 2 for each in experts]
        means, count = errors[near]
        count = (1 - _DISCOUNT) * count + 1
        pairs = zip(means, squares, strict=True)
        errors[near] = [m + (e - m) / count for m, e in pairs], count
        pairs = zip(regrets, squares, strict=True)
        regrets = [r + 0.2 * (e - min(squares) - r) for r, e in pairs]
      before = averages or [speed] * 3
      shares = zip((1, _QUICK, _SLOW), before, strict=True)
      averages = [a + s * (speed - a) for s, a in shares]
    if averages is None:
      found.append(math.nan)
      continue
    experts = [*averages, network]
    usual = math.sqrt(min(errors[True][0]))
    near = abs(averages[0] - averages[2]) <= 2 * usual
    means, count = errors[near]
    priors = (0.25,) * 4 if near else (0.3, 0.6, 0.05, 0.05)
    worst = [max(pair) for pair in zip(means, regrets, strict=True)]
    least = (1e-8 * averages[0]) ** 2
    scores = [
      math.log(prior) - count / 2 * math.log(mean + least)
      for prior, mean in zip(priors, worst, strict=True)
    ]
    weights = [math.exp(score - max(scores)) for score in scores]
    parts = (w * each for w, each in zip(weights, experts, strict=True))
    found.append(sum(parts) / sum(weights))
  return found


def _walk(gate_: gate.Gate, speeds, networks) -> np.ndarray:
  found = []
  for step in zip(speeds, networks, strict=True):
    gate_.observe(step[0])
    found.append(gate_.mix(step[1]))
  return np.array(found)


def _series(steps: int, seed: int = 0):
  """Returns noise with jumps and gaps, and a network that is right at first."""
  draws = np.random.default_rng(seed)
  speeds = 100 + draws.standard_normal((steps, 3))
  speeds[steps // 3 :] -= (
    np.cumsum(30 * (draws.uniform(size=(steps - steps // 3, 3)) < 0.03), axis=0)
    % 90
  )
  networks = np.roll(speeds, -1, axis=0) + draws.standard_normal(speeds.shape)
  networks[steps // 2 :] += 15
  speeds[draws.uniform(size=speeds.shape) < 0.1] = np.nan
  networks = np.where(np.isnan(networks), 100, networks)
  return speeds, networks


class GateTest(parameterized.TestCase):
  def test_predictions_follow_the_formula(self):
    speeds, networks = _series(300)
    found = _walk(_make(3), speeds, networks)
    for worker in range(3):
      expected = _expected(speeds[:, worker], networks[:, worker])
      np.testing.assert_allclose(found[:, worker], expected, rtol=1e-9)

  @parameterized.parameters(1e-12, 1.0, 1e12)
  def test_weights_do_not_depend_on_the_unit_of_speeds(self, unit):
    speeds, networks = _series(200)
    once = _walk(_make(3), speeds, networks)
    scaled = _walk(_make(3), unit * speeds, unit * networks)
    np.testing.assert_allclose(scaled, unit * once, rtol=1e-9)

  def test_workers_without_observations_have_no_prediction(self):
    nothing = np.full(3, np.nan)
    gate_ = _make(3)
    gate_.observe(nothing)
    np.testing.assert_array_equal(gate_.mix(nothing), nothing)
    gate_.observe(np.array([2.0, np.nan, 3.0]))
    found = gate_.mix(np.array([2.0, np.nan, 3.0]))
    np.testing.assert_allclose(found, [2.0, np.nan, 3.0])

  def test_a_network_that_becomes_wrong_loses_its_weight_quickly(self):
    draws = np.random.default_rng(0)
    speeds = 100 + 10 * draws.standard_normal((230, 1))
    networks = np.roll(speeds, -1, axis=0)
    networks[200:] = 200.0
    gate_, weights = _make(), []
    for step in zip(speeds, networks, strict=True):
      gate_.observe(step[0])
      gate_.mix(step[1])
      weights.append(gate_.weights[3, 0])
    self.assertGreater(min(weights[50:201]), 0.99)
    self.assertLess(max(weights[206:]), 0.01)

  def test_quick_averages_gain_weight_if_jumps_last(self):
    draws = np.random.default_rng(0)
    steady = 100 + draws.standard_normal((400, 2))
    steps = np.arange(400)
    steady[:, 0] -= 50 * (steps // 25 % 2)  # Jumps that last.
    steady[::25, 1] -= 50  # Jumps that do not.
    gate_ = _make(2)
    trusted = []
    for speeds in steady:
      gate_.observe(speeds)
      gate_.mix(gate_.averages[-1])
      trusted.append(gate_.weights[:2].sum(axis=0))
    after = np.array(trusted)[300::25]  # At each jump.
    self.assertGreater(after[:, 0].min(), 0.9)
    self.assertLess(after[:, 1].max(), 0.5)

  def test_reset_deletes_the_state_of_one_worker(self):
    speeds, networks = _series(120)
    gate_ = _make(3)
    _walk(gate_, speeds[:60], networks[:60])
    straight = _walk(copy.deepcopy(gate_), speeds[60:], networks[60:])
    gate_.reset(1)
    found = _walk(gate_, speeds[60:], networks[60:])
    np.testing.assert_array_equal(found[:, [0, 2]], straight[:, [0, 2]])
    fresh = _walk(_make(3), speeds[60:], networks[60:])
    np.testing.assert_array_equal(found[:, 1], fresh[:, 1])


if __name__ == '__main__':
  absltest.main()
