"""Tests for predict.history, against all that was observed, kept in lists."""

import numpy as np
from absl.testing import absltest, parameterized

from predict import history

_KEPT = 9


def _filled(steps: int, seed: int = 0):
  """A history of three workers, and the rows of each in a list."""
  draws = np.random.default_rng(seed)
  made = history.make(num_workers=3, num_factors=2, kept=_KEPT, smoothing=0.4)
  rows = [[], [], []]
  average = [None, None, None]
  for _ in range(steps):
    speeds = draws.uniform(1, 2, 3)
    speeds[draws.uniform(size=3) < 0.3] = np.nan
    factors = draws.uniform(size=(3, 2))
    factors[draws.uniform(size=(3, 2)) < 0.1] = np.nan
    made.add(speeds, factors)
    for worker in np.flatnonzero(~np.isnan(speeds)):
      speed, old = speeds[worker], average[worker]
      average[worker] = speed if old is None else old + 0.4 * (speed - old)
      rows[worker].append([speed, *factors[worker], average[worker]])
  return made, [np.array(row).reshape(-1, 4) for row in rows]


def _standardised(rows: np.ndarray, made: history.History, worker: int):
  mean, deviation = made.mean[worker], np.sqrt(made.variance[worker])
  deviation = np.where(deviation > 0, deviation, 1.0)
  scaled = (rows - mean[[0, 1, 2, 0]]) / deviation[[0, 1, 2, 0]]
  return np.where(np.isnan(scaled), 0, scaled)


class HistoryTest(parameterized.TestCase):
  def test_scales_by_all_that_was_seen_at_first(self):
    made, rows = _filled(60)
    for worker in range(3):
      seen = rows[worker][:, :3]
      np.testing.assert_allclose(made.mean[worker], np.nanmean(seen, axis=0))
      np.testing.assert_allclose(made.variance[worker], np.nanvar(seen, axis=0))

  def test_scales_by_a_running_mean_later(self):
    made, rows = _filled(2 * history.REMEMBERED)
    for worker in range(3):
      seen = rows[worker][:, 0]
      mean = seen[: history.REMEMBERED].mean()
      for speed in seen[history.REMEMBERED :]:
        mean += (speed - mean) / history.REMEMBERED
      np.testing.assert_allclose(made.mean[worker, 0], mean)

  @parameterized.parameters(4, 10, 60)
  def test_shows_the_newest_rows_oldest_first(self, steps):
    made, rows = _filled(steps)
    latest = made.latest(5)
    self.assertEqual(latest.dtype, np.float32)
    for worker in range(3):
      tail = rows[worker][-5:]
      missing = np.zeros((5 - len(tail), 4))
      expected = np.r_[missing, _standardised(tail, made, worker)]
      np.testing.assert_allclose(latest[worker], expected, atol=1e-5)
      kept = rows[worker][-_KEPT:, 0]
      np.testing.assert_array_equal(made.speeds(worker), kept)

  @parameterized.parameters(6, 12, 60)
  def test_draws_every_window_that_is_kept_and_what_came_after_it(self, steps):
    made, rows = _filled(steps)
    expected = []
    for worker in range(3):
      kept = rows[worker][-_KEPT:]
      for end in range(4, len(kept)):
        gain = (kept[end, 0] - kept[end - 1, 3]) / made.deviation()[worker]
        window = _standardised(kept[end - 4 : end], made, worker)
        expected.append(np.r_[window.ravel(), gain])

    windows, gains = made.samples(np.random.default_rng(0), 500, 4)

    found = np.column_stack([windows.reshape(500, -1), gains])
    apart = np.abs(found[:, None] - np.array(expected)).max(axis=2)
    self.assertLess(apart.min(axis=1).max(), 1e-5)  # No other is drawn,
    self.assertLess(apart.min(axis=0).max(), 1e-5)  # and none is left out.

  def test_draws_nothing_where_there_is_no_window(self):
    made, _ = _filled(2)
    self.assertIsNone(made.samples(np.random.default_rng(0), 10, 4))

  def test_forgets_all_of_a_worker(self):
    made, _ = _filled(40)
    other = made.latest(5)[0]
    fresh, _ = _filled(0)
    made.reset(1)
    for name, value in vars(fresh).items():
      if isinstance(value, np.ndarray):
        np.testing.assert_array_equal(getattr(made, name)[1], value[1], name)
    np.testing.assert_array_equal(made.latest(5)[0], other)

  def test_clips_what_is_far_out(self):
    made, _ = _filled(40)
    made.add(np.array([1e50, np.nan, np.nan]), np.full((3, 2), 1e50))
    self.assertTrue(np.isfinite(made.latest(5)).all())
    self.assertLessEqual(np.abs(made.latest(5)).max(), 5.0)


if __name__ == '__main__':
  absltest.main()
