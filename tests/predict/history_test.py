"""Tests for predict.history, against lists of all observations."""

import numpy as np
from absl.testing import absltest, parameterized

from predict import history

_CAPACITY = 9


def _fill(steps: int, seed: int = 0):
  """Returns a history of three workers, and the rows of each in a list."""
  draws = np.random.default_rng(seed)
  history_ = history.make(
    num_workers=3, num_factors=2, capacity=_CAPACITY, smoothing=0.4
  )
  rows = [[], [], []]
  average = [None, None, None]
  for _ in range(steps):
    speeds = draws.uniform(1, 2, 3)
    speeds[draws.uniform(size=3) < 0.3] = np.nan
    factors = draws.uniform(size=(3, 2))
    factors[draws.uniform(size=(3, 2)) < 0.1] = np.nan
    history_.add(speeds, factors)
    for worker in np.flatnonzero(~np.isnan(speeds)):
      speed, old = speeds[worker], average[worker]
      average[worker] = speed if old is None else old + 0.4 * (speed - old)
      rows[worker].append([speed, *factors[worker], average[worker]])
  return history_, [np.array(row).reshape(-1, 4) for row in rows]


def _standardise(rows: np.ndarray, history_: history.History, worker: int):
  mean, deviation = history_.mean[worker], np.sqrt(history_.variance[worker])
  deviation = np.where(deviation > 0, deviation, 1.0)
  scaled = (rows - mean[[0, 1, 2, 0]]) / deviation[[0, 1, 2, 0]]
  return np.where(np.isnan(scaled), 0, scaled)


class HistoryTest(parameterized.TestCase):
  def test_statistics_weigh_first_observations_equally(self):
    history_, rows = _fill(60)
    for worker in range(3):
      speeds = rows[worker][:, :3]
      np.testing.assert_allclose(
        history_.mean[worker], np.nanmean(speeds, axis=0)
      )
      np.testing.assert_allclose(
        history_.variance[worker], np.nanvar(speeds, axis=0)
      )

  def test_statistics_are_exponential_averages_later(self):
    history_, rows = _fill(2 * history.SCALE_WINDOW)
    for worker in range(3):
      speeds = rows[worker][:, 0]
      mean = speeds[: history.SCALE_WINDOW].mean()
      for speed in speeds[history.SCALE_WINDOW :]:
        mean += (speed - mean) / history.SCALE_WINDOW
      np.testing.assert_allclose(history_.mean[worker, 0], mean)

  @parameterized.parameters(4, 10, 60)
  def test_latest_returns_the_newest_rows_oldest_first(self, steps):
    history_, rows = _fill(steps)
    latest = history_.latest(5)
    self.assertEqual(latest.dtype, np.float32)
    for worker in range(3):
      tail = rows[worker][-5:]
      missing = np.zeros((5 - len(tail), 4))
      expected = np.r_[missing, _standardise(tail, history_, worker)]
      np.testing.assert_allclose(latest[worker], expected, atol=1e-5)
      stored = rows[worker][-_CAPACITY:, 0]
      np.testing.assert_array_equal(history_.speeds(worker), stored)

  @parameterized.parameters(6, 12, 60)
  def test_samples_are_all_stored_windows_with_the_next_speed(self, steps):
    history_, rows = _fill(steps)
    expected = []
    for worker in range(3):
      stored = rows[worker][-_CAPACITY:]
      for end in range(4, len(stored)):
        gain = (stored[end, 0] - stored[end - 1, 3]) / history_.deviation()[
          worker
        ]
        window = _standardise(stored[end - 4 : end], history_, worker)
        expected.append(np.r_[window.ravel(), gain])

    windows, gains = history_.samples(np.random.default_rng(0), 500, 4)

    found = np.column_stack([windows.reshape(500, -1), gains])
    apart = np.abs(found[:, None] - np.array(expected)).max(axis=2)
    self.assertLess(apart.min(axis=1).max(), 1e-5)  # Every sample is a window,
    self.assertLess(apart.min(axis=0).max(), 1e-5)  # and every window occurs.

  def test_there_are_no_samples_without_a_complete_window(self):
    history_, _ = _fill(2)
    self.assertIsNone(history_.samples(np.random.default_rng(0), 10, 4))

  def test_reset_deletes_all_data_of_one_worker(self):
    history_, _ = _fill(40)
    other = history_.latest(5)[0]
    fresh, _ = _fill(0)
    history_.reset(1)
    for name, value in vars(fresh).items():
      if isinstance(value, np.ndarray):
        np.testing.assert_array_equal(
          getattr(history_, name)[1], value[1], name
        )
    np.testing.assert_array_equal(history_.latest(5)[0], other)

  def test_outliers_are_clipped(self):
    history_, _ = _fill(40)
    history_.add(np.array([1e50, np.nan, np.nan]), np.full((3, 2), 1e50))
    self.assertTrue(np.isfinite(history_.latest(5)).all())
    self.assertLessEqual(np.abs(history_.latest(5)).max(), 5.0)


if __name__ == '__main__':
  absltest.main()
