"""Tests for cluster.network.time_limits."""

import queue
import threading
import time

from absl.testing import absltest

from cluster.network.time_limits import TimeLimits


class TimeLimitsTest(absltest.TestCase):
  def test_the_limits_that_pass_are_noted_in_their_order(self):
    limits, passed = TimeLimits(), queue.SimpleQueue()
    start = time.monotonic()
    with (
      limits.limit(60.0, lambda: passed.put('long')),
      limits.limit(0.3, lambda: passed.put('second')),
      limits.limit(0.1, lambda: passed.put('first')),
    ):
      with limits.limit(0.05, lambda: passed.put('kept')):
        pass
      self.assertEqual(
        [passed.get(timeout=10.0) for _ in 'ab'], ['first', 'second']
      )
      self.assertBetween(time.monotonic() - start, 0.3, 5.0)
    self.assertTrue(passed.empty())

  def test_a_limit_of_no_time_passes_at_once(self):
    limits, passed = TimeLimits(), queue.SimpleQueue()
    with limits.limit(0.0, lambda: passed.put('passed')):
      self.assertEqual(passed.get(timeout=10.0), 'passed')

  def test_all_limits_have_one_thread(self):
    limits, before = TimeLimits(), threading.active_count()
    for _ in range(100):
      with limits.limit(60.0, lambda: None):
        self.assertLessEqual(threading.active_count(), before + 1)


if __name__ == '__main__':
  absltest.main()
