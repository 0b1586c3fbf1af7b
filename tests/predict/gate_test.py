"""Tests for predict.gate, against one worker at a time in plain Python."""

import copy
import math

import numpy as np
from absl.testing import absltest, parameterized

from predict import gate

_QUICK, _SLOW, _DISCOUNT = 0.7, 0.3, 0.03


def _made(workers: int = 1) -> gate.Gate:
  return gate.make(
    num_workers=workers, quick=_QUICK, slow=_SLOW, discount=_DISCOUNT
  )


def _expected(speeds, networks) -> list[float]:
  """What is predicted after each speed, written down from the formula."""
  averages, said, near = None, None, True
  memory = {near: ([0.0] * 4, 0.0) for near in (True, False)}
  lately = [0.0] * 4
  found = []
  for speed, network in zip(speeds, networks, strict=True):
    if not math.isnan(speed):
      if said:
        missed = [(each - speed) ** 2 for each in said]
        means, count = memory[near]
        count = (1 - _DISCOUNT) * count + 1
        pairs = zip(means, missed, strict=True)
        memory[near] = [m + (e - m) / count for m, e in pairs], count
        pairs = zip(lately, missed, strict=True)
        lately = [r + 0.2 * (e - min(missed) - r) for r, e in pairs]
      before = averages or [speed] * 3
      shares = zip((1, _QUICK, _SLOW), before, strict=True)
      averages = [a + s * (speed - a) for s, a in shares]
    if averages is None:
      found.append(math.nan)
      continue
    said = [*averages, network]
    usual = math.sqrt(min(memory[True][0]))
    near = abs(averages[0] - averages[2]) <= 2 * usual
    means, count = memory[near]
    priors = (0.25,) * 4 if near else (0.3, 0.6, 0.05, 0.05)
    worst = [max(pair) for pair in zip(means, lately, strict=True)]
    least = (1e-8 * averages[0]) ** 2
    scores = [
      math.log(prior) - count / 2 * math.log(mean + least)
      for prior, mean in zip(priors, worst, strict=True)
    ]
    weights = [math.exp(score - max(scores)) for score in scores]
    parts = (w * each for w, each in zip(weights, said, strict=True))
    found.append(sum(parts) / sum(weights))
  return found


def _walk(made: gate.Gate, speeds, networks) -> np.ndarray:
  found = []
  for step in zip(speeds, networks, strict=True):
    made.observe(step[0])
    found.append(made.mix(step[1]))
  return np.array(found)


def _series(steps: int, seed: int = 0):
  """Noise, then jumps, gaps, and a network that is right half of the time."""
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
  def test_mixes_by_the_formula(self):
    speeds, networks = _series(300)
    found = _walk(_made(3), speeds, networks)
    for worker in range(3):
      expected = _expected(speeds[:, worker], networks[:, worker])
      np.testing.assert_allclose(found[:, worker], expected, rtol=1e-9)

  @parameterized.parameters(1e-12, 1.0, 1e12)
  def test_has_no_unit(self, unit):
    speeds, networks = _series(200)
    once = _walk(_made(3), speeds, networks)
    scaled = _walk(_made(3), unit * speeds, unit * networks)
    np.testing.assert_allclose(scaled, unit * once, rtol=1e-9)

  def test_predicts_nothing_of_whom_it_has_not_seen(self):
    nothing = np.full(3, np.nan)
    made = _made(3)
    made.observe(nothing)
    np.testing.assert_array_equal(made.mix(nothing), nothing)
    made.observe(np.array([2.0, np.nan, 3.0]))
    found = made.mix(np.array([2.0, np.nan, 3.0]))
    np.testing.assert_allclose(found, [2.0, np.nan, 3.0])

  def test_drops_a_network_that_stops_to_know_in_a_few_observations(self):
    draws = np.random.default_rng(0)
    speeds = 100 + 10 * draws.standard_normal((230, 1))
    networks = np.roll(speeds, -1, axis=0)
    networks[200:] = 200.0
    made, weights = _made(), []
    for step in zip(speeds, networks, strict=True):
      made.observe(step[0])
      made.mix(step[1])
      weights.append(made.weights[3, 0])
    self.assertGreater(min(weights[50:201]), 0.99)
    self.assertLess(max(weights[206:]), 0.01)

  def test_learns_whether_jumps_stay(self):
    draws = np.random.default_rng(0)
    steady = 100 + draws.standard_normal((400, 2))
    steps = np.arange(400)
    steady[:, 0] -= 50 * (steps // 25 % 2)  # They stay.
    steady[::25, 1] -= 50  # They do not.
    made = _made(2)
    trusted = []
    for speeds in steady:
      made.observe(speeds)
      made.mix(made.averages[-1])
      trusted.append(made.weights[:2].sum(axis=0))
    after = np.array(trusted)[300::25]  # At each jump.
    self.assertGreater(after[:, 0].min(), 0.9)
    self.assertLess(after[:, 1].max(), 0.5)

  def test_a_worker_that_is_reset_is_new_and_the_others_stay(self):
    speeds, networks = _series(120)
    made = _made(3)
    _walk(made, speeds[:60], networks[:60])
    straight = _walk(copy.deepcopy(made), speeds[60:], networks[60:])
    made.reset(1)
    found = _walk(made, speeds[60:], networks[60:])
    np.testing.assert_array_equal(found[:, [0, 2]], straight[:, [0, 2]])
    fresh = _walk(_made(3), speeds[60:], networks[60:])
    np.testing.assert_array_equal(found[:, 1], fresh[:, 1])


if __name__ == '__main__':
  absltest.main()
