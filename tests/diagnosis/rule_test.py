"""Tests for diagnosis.rule."""

import statistics

import numpy as np
from absl.testing import absltest, parameterized

from diagnosis import rule


def _blamed(*, workers, slowdown, seed):
  """Returns which workers are ever blamed, bool [runs, workers].

  Compute times of 200 runs of 200 iterations have 10 % jitter; those of worker
  0 are `slowdown` times as long.
  """
  draws = np.random.default_rng([seed, workers])
  detector = rule.make((200, workers))
  found = np.zeros((200, workers), bool)
  for _ in range(200):
    seconds = np.exp(0.1 * draws.standard_normal((200, workers)))
    seconds[:, 0] *= slowdown
    for changed in detector.update(seconds):
      found |= changed
  return found


class MedianTest(parameterized.TestCase):
  @parameterized.product(count=(1, 2, 3, 4, 5, 8), missing=(0, 1, 3))
  def test_it_is_the_median_of_the_others(self, count, missing):
    draws = np.random.default_rng([count, missing])
    for _ in range(20):
      values = draws.integers(0, 4, count).astype(float)  # With ties.
      values[draws.permutation(count)[:missing]] = np.nan
      found = rule.median_of_others(values)
      for k in range(count):
        others = [x for i, x in enumerate(values) if i != k and x == x]
        if others:
          self.assertEqual(found[k], statistics.median(others))
        else:
          self.assertTrue(np.isnan(found[k]))


class RuleTest(parameterized.TestCase):
  @parameterized.parameters(4, 16)
  def test_equal_workers_are_not_blamed(self, workers):
    found = _blamed(workers=workers, slowdown=1.0, seed=1)
    self.assertLessEqual(found.any(axis=1).sum(), 2)

  @parameterized.parameters(4, 16)
  def test_a_worker_slower_by_a_fifth_is_found(self, workers):
    found = _blamed(workers=workers, slowdown=1.2, seed=2)
    self.assertGreaterEqual(found[:, 0].sum(), 198)
    self.assertLessEqual(found[:, 1:].any(axis=1).sum(), 2)

  def test_a_slow_stretch_is_found_with_its_ends(self):
    draws = np.random.default_rng(3)
    seconds = np.exp(0.05 * draws.standard_normal((300, 6)))
    seconds[100:200, 4] *= 2
    (episode,) = rule.find_episodes(seconds)
    self.assertEqual(episode.series, 4)
    self.assertAlmostEqual(episode.start, 100, delta=3)
    self.assertAlmostEqual(episode.end, 200, delta=3)

  def test_a_worker_that_is_slow_from_the_start_is_slow_since_then(self):
    seconds = np.ones((40, 4))
    seconds[:, 2] = 3
    expected = [rule.Episode(2, 0, None)]
    self.assertEqual(rule.find_episodes(seconds), expected)

  def test_few_slow_iterations_are_not_a_straggler(self):
    seconds = np.ones((60, 4))
    seconds[30:34, 1] = 100  # Fewer than an alarm takes.
    self.assertEqual(rule.find_episodes(seconds), [])

  def test_only_the_slower_one_of_two_is_blamed(self):
    seconds = np.ones((60, 2))
    seconds[:, 1] = 1.5
    self.assertEqual(rule.find_episodes(seconds), [rule.Episode(1, 0, None)])

  def test_missing_iterations_are_passed_over(self):
    seconds = np.ones((90, 4))
    seconds[:, 3] = 3
    seconds[np.arange(90) % 3 > 0, 3] = np.nan
    (episode,) = rule.find_episodes(seconds)
    self.assertEqual((episode.series, episode.end), (3, None))

  def test_a_series_that_left_is_forgotten(self):
    detector = rule.make((3,))
    for _ in range(30):
      detector.update(np.array([1.0, 1.0, 4.0]))
    self.assertEqual(detector.is_slow.tolist(), [False, False, True])
    detector.forget(2)
    self.assertFalse(detector.is_slow.any())
    for _ in range(5):  # The others are compared with each other alone.
      detector.update(np.array([1.0, 1.0, np.nan]))
    self.assertFalse(detector.is_slow.any())


if __name__ == '__main__':
  absltest.main()
