"""Tests for cluster.network.time_limits."""

import queue
import threading
import time
from unittest import mock

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

  def test_a_function_that_raises_does_not_prevent_later_limits(self):
    limits, passed = TimeLimits(), threading.Event()

    def fail():
      raise RuntimeError('It fails.')

    with (
      self.assertLogs(level='ERROR'),
      limits.limit(0.0, fail),
      limits.limit(0.1, passed.set),
    ):
      self.assertTrue(passed.wait(10.0))

  def test_limits_pass_although_their_thread_could_not_start_at_first(self):
    limits, passed = TimeLimits(), threading.Event()
    with (
      mock.patch.object(threading.Thread, 'start', side_effect=RuntimeError),
      self.assertRaises(RuntimeError),
      limits.limit(0.0, lambda: None),
    ):
      pass
    with limits.limit(0.0, passed.set):
      self.assertTrue(passed.wait(10.0))


if __name__ == '__main__':
  absltest.main()
