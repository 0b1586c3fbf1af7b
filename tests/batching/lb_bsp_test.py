"""Tests for LB-BSP: batching.lb_bsp, .lb_bsp_gpu and .windowed."""

import dataclasses
import math

import numpy as np
from absl.testing import absltest, parameterized

from batching import allocation, lb_bsp, lb_bsp_gpu
from batching.batching import Measurement
from batching.curves import Curve


@dataclasses.dataclass
class _Average:
  """Predictor of an exponential average; `weight` 1 gives the last speed."""

  weight: float
  speeds: np.ndarray
  observations: list[tuple[np.ndarray, np.ndarray]] = dataclasses.field(
    default_factory=list
  )

  def observe(self, speeds, factors):
    self.observations.append((speeds, factors))
    first = np.where(np.isnan(self.speeds), speeds, self.speeds)
    newest = np.where(np.isnan(speeds), first, speeds)
    self.speeds = first + self.weight * (newest - first)

  def predict(self):
    return self.speeds.copy()

  def reset(self, worker):
    self.speeds[worker] = np.nan


def _lb_bsp(num_workers=4, weight=1.0, **changed):
  arguments = {'worker_batch': 16, 'threshold': 0.0, 'least': 1, 'most': ()}
  predictor = _Average(weight, np.full(num_workers, np.nan))
  return lb_bsp.make(
    num_workers=num_workers, predictor=predictor, **arguments | changed
  )


def _gpu(num_workers=4, **changed):
  arguments = {
    'worker_batch': 16,
    'curves': (),
    'smoothing': 0.2,
    'window': 5,
    'step': 4,
    'threshold': 0.0,
    'least': 1,
    'most': (),
  }
  return lb_bsp_gpu.make(num_workers=num_workers, **arguments | changed)


def _superstep(policy, seconds, workers=range(4)):
  """Runs a superstep; returns the batches, by worker."""
  sizes = policy.assign(list(workers))
  for worker, examples in sizes.items():
    time_s = seconds(worker, examples)
    policy.observe(Measurement(worker, 0.0, time_s, 0.0, 0.0, examples))
  return sizes


def _run(policy, seconds, supersteps, workers=range(4)):
  """Runs supersteps; returns the batches, [supersteps, workers]."""
  rows = [_superstep(policy, seconds, workers) for _ in range(supersteps)]
  return np.array([[row[w] for w in workers] for row in rows])


def _linear(fixed_s, per_example_s):
  return lambda worker, examples: (
    fixed_s[worker] + per_example_s[worker] * examples
  )


def _noisy(seconds, sigma, seed=0):
  rng = np.random.default_rng(seed)
  return lambda worker, examples: (
    seconds(worker, examples) * rng.lognormal(0, sigma)
  )


def _end_s(seconds, sizes):
  return max(seconds(worker, x) for worker, x in enumerate(sizes))


def _changes(rows):
  return int((np.diff(rows, axis=0) != 0).any(1).sum())


_PROPORTIONAL = _linear([0.0] * 4, [1.0, 1.0, 1 / 2, 1 / 3])


class LbBspTest(parameterized.TestCase):
  def test_batches_follow_the_speeds_after_one_superstep(self):
    rows = _run(_lb_bsp(), _PROPORTIONAL, 4)
    self.assertEqual(rows[0].tolist(), [16, 16, 16, 16])
    for row in rows[1:]:
      self.assertEqual(row.tolist(), [9, 9, 18, 28])

  def test_times_with_fixed_costs_up_to_half_converge_monotonically(self):
    # Fixed costs are 1/2, 1/2, 1/3 and 1/5 of the time at the start.
    fixed_s, per_s = [1.6, 0.8, 0.4, 0.1], [0.1, 0.05, 0.05, 0.025]
    seconds = _linear(fixed_s, per_s)
    best = allocation.equal_time(
      6400, [Curve(0.0, a, b) for a, b in zip(fixed_s, per_s, strict=True)], 1
    )

    rows = _run(_lb_bsp(worker_batch=1600), seconds, 40)

    apart = np.abs(rows - best)
    self.assertLessEqual(apart[-1].max(), 2)
    # No batch passes its limit or moves away from it, except by rounding.
    side = np.sign(rows[0] - best)
    self.assertTrue(((rows - best) * side >= -2).all())
    self.assertTrue((np.diff(apart, axis=0) <= 2).all())

  @parameterized.parameters(1.0, 0.3)
  def test_large_fixed_costs_converge_even_with_slow_predictors(self, weight):
    fixed_s, per_s = [1.6, 0.8, 0.4, 0.1], [0.1, 0.05, 0.025, 0.0125]
    seconds = _linear(fixed_s, per_s)
    rows = _run(_lb_bsp(weight=weight), seconds, 60)
    times = [[seconds(w, x) for w, x in enumerate(row)] for row in rows]
    end_s = np.max(times, axis=1)
    self.assertTrue((np.diff(end_s) <= 0.11).all())  # One example's time.
    best = allocation.equal_time(
      64, [Curve(0.0, a, b) for a, b in zip(fixed_s, per_s, strict=True)], 1
    )
    self.assertLessEqual(end_s[-1], _end_s(seconds, best) + 0.1)
    self.assertLessEqual(_changes(rows[-20:]), 1)

  def test_noise_of_5_percent_seldom_changes_batches(self):
    seconds = _noisy(_PROPORTIONAL, 0.05)
    arguments = {'weight': 0.2, 'worker_batch': 160}
    calm = _run(_lb_bsp(threshold=0.05, **arguments), seconds, 400)
    nervous = _run(_lb_bsp(threshold=0.0, **arguments), seconds, 400)
    self.assertLessEqual(_changes(calm), 12)
    self.assertGreater(_changes(nervous), 300)
    best_s = 640 / 7
    end_s = np.array([_end_s(_PROPORTIONAL, row) for row in calm[20:]])
    self.assertLess(end_s.mean(), 1.06 * best_s)

  @parameterized.parameters((1.0, 1), (0.5, 5), (0.2, 15))
  def test_a_worker_that_slows_down_gets_less(self, weight, supersteps):
    policy = _lb_bsp(weight=weight, threshold=0.05)
    _run(policy, _PROPORTIONAL, 50)
    slow = _linear([0.0] * 4, [1.0, 1.0, 1 / 2, 1.0])
    rows = _run(policy, slow, supersteps + 1)
    self.assertGreater(_end_s(slow, rows[0]), 28 - 1e-9)
    self.assertLess(_end_s(slow, rows[-1]), 1.1 * 64 / 5)

  def test_batches_stay_unless_a_change_saves_the_threshold(self):
    policy = _lb_bsp(num_workers=2, threshold=0.1)
    policy.assign([0, 1])
    for speed, expected in (
      (1.15, [16, 16]),  # 15 instead of 16 would save 6 %.
      (1.3, [14, 18]),  # 14 instead of 16 saves 12 %.
      (1.2, [14, 18]),
      (0.7, [19, 13]),
    ):
      policy.observe(Measurement(0, 0.0, 16.0, 0.0, 0.0, 16))
      policy.observe(Measurement(1, 0.0, 16.0 / speed, 0.0, 0.0, 16))
      self.assertEqual(list(policy.assign([0, 1]).values()), expected)

  def test_the_remaining_workers_compute_the_global_batch(self):
    policy = _lb_bsp(threshold=0.5)
    _run(policy, _PROPORTIONAL, 2)
    policy.leave(3)
    self.assertEqual(policy.assign([0, 1, 2]), {0: 16, 1: 16, 2: 32})
    policy.leave(0)
    self.assertEqual(policy.assign([1, 2]), {1: 21, 2: 43})
    policy.join(0)
    policy.join(3)
    # Workers that rejoin without measurements get the mean speed, 1.5.
    self.assertEqual(policy.assign([0, 1, 2, 3]), {0: 16, 1: 11, 2: 21, 3: 16})

  def test_bounds_hold_and_other_workers_share_the_rest(self):
    policy = _lb_bsp(most=(64, 64, 64, 20), least=2)
    self.assertEqual(
      _run(policy, _PROPORTIONAL, 3)[-1].tolist(), [11, 11, 22, 20]
    )
    self.assertEqual(policy.max_batch, 64)
    policy = _lb_bsp(most=(30,))
    self.assertEqual(policy.max_batch, 30)
    _run(policy, _PROPORTIONAL, 3)
    policy.leave(0)
    self.assertEqual(sum(policy.assign([1, 2, 3]).values()), 64)
    policy.leave(1)
    # Two may not compute 64.
    self.assertEqual(policy.assign([2, 3]), {2: 30, 3: 30})
    self.assertEqual(_lb_bsp(most=(500,)).max_batch, 64)

  def test_the_predictor_observes_once_per_superstep(self):
    policy = _lb_bsp(num_workers=3)
    policy.assign([0, 1, 2])
    self.assertEmpty(policy.predictor.observations)
    policy.observe(Measurement(0, 1.0, 4.0, 9.0, 9.0, 16, (0.5, 0.25)))
    policy.observe(Measurement(0, 2.0, 6.0, 9.0, 9.0, 24, (0.75, 0.5)))
    policy.observe(Measurement(2, 2.0, 2.0, 9.0, 9.0, 16))
    policy.assign([0, 1, 2])
    ((speeds, factors),) = policy.predictor.observations
    np.testing.assert_array_equal(speeds, [4.0, np.nan, 8.0])
    np.testing.assert_array_equal(
      factors, [[0.75, 0.5], [np.nan] * 2, [np.nan] * 2]
    )
    policy.assign([0, 1, 2])
    self.assertLen(policy.predictor.observations, 1)

  def test_measurements_of_a_worker_that_leaves_are_deleted(self):
    policy = _lb_bsp(num_workers=2)
    policy.assign([0, 1])
    for worker in (0, 1):
      policy.observe(Measurement(worker, 0.0, 1.0 + worker, 0.0, 0.0, 16))
    policy.leave(1)
    policy.join(1)
    policy.assign([0, 1])
    np.testing.assert_array_equal(
      policy.predictor.observations[0][0], [16.0, np.nan]
    )

  def test_wrong_numbers_of_factors_and_speeds_are_rejected(self):
    policy = _lb_bsp(num_workers=2)
    policy.observe(Measurement(0, 0.0, 1.0, 0.0, 0.0, 16, (0.5,)))
    policy.observe(Measurement(1, 0.0, 1.0, 0.0, 0.0, 16, (0.5, 0.5)))
    with self.assertRaisesRegex(ValueError, r'factors: expected .* \[1, 2\]'):
      policy.assign([0, 1])
    for speeds, message in (
      (np.ones(3), r'predictor: expected 2 speeds, .* \(3,\)'),
      (np.array([1.0, -1.0]), r'predictor: expected speeds above 0'),
    ):
      policy = _lb_bsp(num_workers=2)
      policy.predictor.speeds = speeds
      with self.assertRaisesRegex(ValueError, message):
        policy.assign([0, 1])


class CurvesTest(parameterized.TestCase):
  _CURVES = (
    Curve(4.0, 0.0, 0.25),
    Curve(4.0, 0.0, 0.25),
    Curve(4.0, 0.0, 0.125),
    Curve(2.0, 1.0, 0.125, 24),
  )

  def _seconds(self, *scales):
    return lambda worker, examples: (
      scales[worker] * self._CURVES[worker].seconds(examples)
    )

  def test_curves_divide_from_the_start(self):
    policy = _gpu(curves=self._CURVES)
    rows = _run(policy, self._seconds(1, 1, 1, 1), 3)
    for row in rows:
      # All finish at the end of their flat parts, with examples to spare.
      self.assertEqual(row.tolist(), [10, 10, 20, 24])
    self.assertEqual(policy.max_batch, 64)
    self.assertEqual(
      _gpu(curves=self._CURVES[3:], worker_batch=4).max_batch, 16
    )
    self.assertEqual(_gpu(curves=self._CURVES[3:]).max_batch, 24)

  def test_curves_are_scaled_by_measured_times(self):
    policy = _gpu(curves=self._CURVES, worker_batch=48)
    seconds = self._seconds(2.0, 1.0, 1.0, 0.5)
    scaled = [
      curve.scaled(scale)
      for curve, scale in zip(self._CURVES, (2.0, 1.0, 1.0, 0.5), strict=True)
    ]
    best = [24, 48, 96, 24]  # 12 s each, except the last, at its bound.
    self.assertEqual(_run(policy, seconds, 3)[-1].tolist(), best)
    self.assertEqual(allocation.equal_time(192, scaled, 1), best)

  def test_a_worker_that_slows_down_gets_less(self):
    policy = _gpu(curves=self._CURVES, threshold=0.05, worker_batch=96)
    before = self._seconds(1.0, 1.0, 1.0, 1.0)
    _run(policy, before, 20)
    slow = self._seconds(1.0, 1.0, 3.0, 1.0)
    rows = _run(policy, slow, 16)
    scaled = [self._CURVES[w].scaled((1, 1, 3, 1)[w]) for w in range(4)]
    best = allocation.equal_time(384, scaled, 1)
    self.assertLess(_end_s(slow, rows[-1]), 1.1 * _end_s(slow, best))
    self.assertGreater(_end_s(slow, rows[0]), 1.5 * _end_s(slow, best))

  def test_noise_of_5_percent_seldom_changes_batches(self):
    seconds = _noisy(self._seconds(1.0, 1.0, 1.0, 1.0), 0.05)
    policy = _gpu(curves=self._CURVES, threshold=0.05, worker_batch=24)
    self.assertLessEqual(_changes(_run(policy, seconds, 400)), 12)

  def test_a_worker_that_rejoins_has_the_mean_scale(self):
    curve = self._CURVES[0]
    policy = _gpu(num_workers=3, curves=[curve], worker_batch=32)
    scales = {0: 2.0, 1: 5.0, 2: 4.0}
    _run(policy, lambda w, x: scales[w] * curve.seconds(x), 3, range(3))
    policy.leave(1)
    self.assertTrue(math.isnan(policy.scales[1]))
    self.assertEqual(policy.assign([0, 2]), {0: 64, 2: 32})
    policy.join(1)
    best = allocation.equal_time(96, [*map(curve.scaled, (2, 3, 4))], 1)
    self.assertEqual([*policy.assign([0, 1, 2]).values()], best)


class WindowedTest(parameterized.TestCase):
  @parameterized.product(window=[1, 3], step=[1, 4, 16])
  def test_times_converge_on_linear_curves(self, window, step):
    fixed_s, per_s = [2.0, 1.0, 1.0, 0.5], [0.2, 0.1, 0.05, 0.05]
    seconds = _linear(fixed_s, per_s)
    curves = [Curve(0.0, a, b) for a, b in zip(fixed_s, per_s, strict=True)]
    best = allocation.equal_time(256, curves, 1)
    policy = _gpu(worker_batch=64, window=window, step=step, threshold=0.03)

    rows = _run(policy, seconds, 1000 * window)

    self.assertTrue((rows.sum(1) == 256).all())
    self.assertLess(_end_s(seconds, rows[-1]), 1.03 * _end_s(seconds, best))
    self.assertEqual(_changes(rows[-500:]), 0)

  def test_batches_fill_flat_parts(self):
    curves = [Curve(4.0, 0.0, 4 / 32), Curve(4.0, 0.0, 4 / 64)]
    policy = _gpu(num_workers=2, worker_batch=40, window=1, threshold=0.02)
    seconds = lambda worker, examples: curves[worker].seconds(examples)  # noqa: E731
    rows = _run(policy, seconds, 60, range(2))
    self.assertEqual(_end_s(seconds, rows[-1]), 4.0)

  def test_a_pair_that_changes_places_halves_step_and_doubles_window(self):
    policy = _gpu(num_workers=2, worker_batch=32, window=2, step=8)
    seconds = _linear([0.0, 0.0], [1.0, 0.8])  # Equal at 28.4 and 35.6.
    rows = _run(policy, seconds, 44, range(2))[:, 0].tolist()
    # Decisions after 2, 2, 4, 4, 8, 8 supersteps: 8 examples, back 4 and 4,
    # then 2 and 2, back 1.
    expected = [32] * 2 + [24] * 2 + [28] * 4 + [32] * 4
    expected += [30] * 8 + [28] * 8 + [29] * 16
    self.assertEqual(rows, expected)

  def test_times_are_averaged_over_the_window(self):
    policy = _gpu(num_workers=2, window=3, step=2, threshold=0.1)
    times = {0: [1.0, 1.0, 4.0], 1: [2.0, 2.0, 1.0]}  # 2 and 5/3 in the mean.
    for superstep in range(3):
      policy.assign([0, 1])
      for worker in (0, 1):
        policy.observe(
          Measurement(worker, 0.0, times[worker][superstep], 0.0, 0.0, 16)
        )
    self.assertEqual(policy.assign([0, 1]), {0: 14, 1: 18})

  def test_step_and_window_are_reset_when_speeds_change(self):
    before = _linear([0.0] * 4, [1.0, 1.0, 0.5, 0.25])
    after = _linear([0.0] * 4, [1.0, 1.0, 0.5, 2.0])
    policy = _gpu(worker_batch=64, window=1, step=16, threshold=0.05)
    _run(policy, _noisy(before, 0.05), 600)
    self.assertEqual((policy.window, policy.step), (32, 1))
    rows = _run(policy, _noisy(after, 0.05), 100)
    # Without a reset, the last worker would need 64 windows of 32 supersteps.
    best_s = 256 / (1 + 1 + 2 + 0.5)
    self.assertGreater(_end_s(after, rows[0]), 4 * best_s)
    self.assertLess(_end_s(after, rows[-1]), 1.1 * best_s)

  def test_noise_lengthens_windows_and_shortens_steps(self):
    seconds = _noisy(_PROPORTIONAL, 0.05)
    rows = _run(_gpu(worker_batch=64, threshold=0.05), seconds, 2000)
    best_s = 256 / 7
    late = [_end_s(_PROPORTIONAL, row) / best_s for row in rows[-500:]]
    self.assertLess(np.mean(late), 1.06)
    self.assertLess(_changes(rows[-500:]), 25)

  def test_bounds_hold(self):
    policy = _gpu(window=1, most=(64, 64, 64, 18))
    rows = _run(policy, _PROPORTIONAL, 100)
    self.assertEqual(rows[:, 3].max(), 18)
    # The others still divide the rest, although worker 3 is the first to end.
    best = allocation.proportional(64, [1, 1, 2, 3], 1, [64, 64, 64, 18])
    self.assertLessEqual(np.abs(rows[-1] - best).max(), 1)
    self.assertEqual(policy.max_batch, 64)
    policy = _gpu(num_workers=2, window=1, least=7)
    rows = _run(policy, _linear([0.0] * 2, [9.0, 1.0]), 100, range(2))
    self.assertEqual(rows[-1].tolist(), [7, 25])

  def test_the_remaining_workers_compute_the_global_batch(self):
    policy = _gpu(window=1)
    rows = _run(policy, _PROPORTIONAL, 100)
    policy.leave(3)
    sizes = policy.assign([0, 1, 2])
    self.assertEqual(sum(sizes.values()), 64)
    self.assertEqual(
      list(sizes.values()),
      allocation.proportional(64, rows[-1][:3], 1, [64] * 3),
    )
    policy.join(3)
    self.assertEqual(sum(policy.assign([0, 1, 2, 3]).values()), 64)
    self.assertEqual((policy.window, policy.step), (1, 4))


if __name__ == '__main__':
  absltest.main()
