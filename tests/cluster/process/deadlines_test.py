"""Tests for deadlines of progress, with a fake clock."""

import threading
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.process import deadlines
from cluster.process.deadlines import (
  Deadlines,
  ProgressCounter,
  ReceivedProgress,
  transfer_s,
)
from system import clock

_TIMEOUT_S, _START_S = 10.0, 300.0


class DeadlinesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.now = 1000.0

  @parameterized.parameters(
    # Phase, seconds and examples of iterations before, examples, limit.
    ('transfer', [], 8, 20),
    ('transfer', [(100.0, 8)], 8, 20),
    ('compute', [], 8, 300),
    ('compute', [(1.0, 8)], 8, 24),
    ('compute', [(1.0, 8), (3.0, 8), (2.0, 8)], 8, 32),
    # A larger batch takes longer; a smaller one may take as long.
    ('compute', [(1.0, 8)], 80, 60),
    ('compute', [(1.0, 8)], 1, 24),
    # Only the last ten count.
    ('compute', [(50.0, 8)] + 10 * [(1.0, 8)], 8, 24),
  )
  def test_a_worker_is_overdue_after_its_limit(
    self, phase, before, examples, limit_s
  ):
    deadlines = self._deadlines()
    received = ReceivedProgress(last_change=self.now)
    received.update([phase, 3, 7], self.now)
    received.compute_times.extend(before)
    self.now += limit_s
    running = [(5, received, examples)]
    self.assertEmpty(
      deadlines.overdue(running, now=self.now, executed_orders=0)
    )
    self.now += 0.1
    ((index, reason),) = deadlines.overdue(
      running, now=self.now, executed_orders=0
    )
    self.assertEqual(index, 5)
    self.assertIn(f'for {limit_s + 0.1:.1f} s', reason)

  def test_a_worker_whose_progress_changes_is_not_overdue(self):
    deadlines, counter = self._deadlines(), ProgressCounter()
    received = ReceivedProgress(last_change=self.now)
    for iteration in range(3):
      counter.begin_iteration(iteration)
      for change in (
        counter.count_chunk,
        counter.enter_transfer,
        counter.enter_compute,
        counter.enter_transfer,
      ):
        change()
        self.now += 19.0
        received.update(counter.read(), self.now)
        # The same progress again is no change.
        received.update(counter.read(), self.now)
        self.now += 0.5
        self.assertEmpty(
          deadlines.overdue([(0, received, 1)], now=self.now, executed_orders=0)
        )

  def test_a_count_of_the_previous_iteration_hides_no_progress(self):
    counter, counts = ProgressCounter(), []
    counter.begin_iteration(1)

    def count():  # The next iteration begins during a heartbeat of this one.
      thread = threading.Thread(target=counter.begin_iteration, args=[2])
      thread.start()
      thread.join(0.05)
      counts.append(thread)
      return 500

    counter.follow(count)
    counts[0].join()
    self.assertEqual(counter.read(), ('transfer', 2, 0))
    counter.follow(lambda: 1)
    counter.follow(lambda: 0)
    self.assertEqual(counter.read(), ('transfer', 2, 1))

  def test_a_worker_is_not_overdue_while_servers_have_orders_to_execute(self):
    deadlines = self._deadlines()
    received = ReceivedProgress(last_change=self.now, orders_before=4)
    self.now += 100.0
    self.assertEmpty(
      deadlines.overdue([(0, received, 1)], now=self.now, executed_orders=3)
    )
    self.now += 20.0
    self.assertEmpty(
      deadlines.overdue([(0, received, 1)], now=self.now, executed_orders=4)
    )
    self.now += 0.1
    self.assertLen(
      deadlines.overdue([(0, received, 1)], now=self.now, executed_orders=4), 1
    )

  def test_only_the_slowest_of_interdependent_workers_is_overdue(self):
    deadlines = self._deadlines(windows=True)
    last, others = (
      self._make_received(7, 20),
      [self._make_received(7, 40), self._make_received(7, 44)],
    )
    running = [(k, received, 1) for k, received in enumerate([others[0], last])]
    running.append((2, others[1], 1))
    self.now += 21.0
    found = deadlines.overdue(running, now=self.now, executed_orders=0)
    self.assertEqual([index for index, _ in found], [1])

  def test_a_worker_that_waits_for_a_computing_one_is_not_overdue(self):
    deadlines = self._deadlines(windows=True)
    waits, computes = (
      self._make_received(7, 40),
      self._make_received(7, 3, phase='compute'),
    )
    computes.compute_times.append((50.0, 1))
    running = [(0, waits, 1), (1, computes, 1)]
    self.now += 200.0
    self.assertEmpty(
      deadlines.overdue(running, now=self.now, executed_orders=0)
    )
    self.now += 21.0
    found = deadlines.overdue(running, now=self.now, executed_orders=0)
    self.assertEqual([index for index, _ in found], [1])

  def test_limits_of_a_transfer_follow_its_bytes(self):
    # 100 GB at 100 MB/s, and 3 GB to 63 replicas over one link of 1 Gbit/s.
    self.assertGreater(transfer_s(10**11, 1), 10**11 / 1e8)
    self.assertGreater(transfer_s(3 * 10**9, 63), 63 * 3e9 / 1.25e8)
    self.assertLess(transfer_s(10**6, 3), 1.0)

  def test_no_worker_is_overdue_if_none_runs(self):
    for windows in (False, True):
      found = self._deadlines(windows=windows).overdue(
        [], now=self.now, executed_orders=0
      )
      self.assertEmpty(found)

  def test_a_server_is_overdue_after_its_limit(self):
    deadlines = self._deadlines()
    self.assertEqual(deadlines.explain_server('commit', 300.0, None), '')
    self.assertIn('commit', deadlines.explain_server('commit', 300.1, None))
    self.assertEqual(deadlines.explain_server('commit', 24.0, 1.0), '')
    self.assertIn('24.1 s', deadlines.explain_server('commit', 24.1, 1.0))

  @parameterized.parameters(
    ([], 300.0),
    ([1.0, 0.5], 300.0),
    ([100.0, 0.5], 420.0),
  )
  def test_a_job_of_the_coordinator_is_overdue_after_its_limit(
    self, before, limit_s
  ):
    now = mock.Mock(return_value=0.0)
    with mock.patch.object(clock, 'monotonic', now):
      jobs = deadlines.Jobs(self._deadlines())
      for took_s in before:
        jobs.begin('a checkpoint')
        now.return_value += took_s
        jobs.end('a checkpoint')
      self.assertFalse(jobs)
      jobs.begin('a checkpoint')
      now.return_value += limit_s
      self.assertIsNone(jobs.overdue())
      self.assertTrue(jobs)
      now.return_value += 0.1
      self.assertEqual(jobs.overdue()[0], 'a checkpoint')

  def _deadlines(self, windows=False):
    return Deadlines(timeout_s=_TIMEOUT_S, start_s=_START_S, windows=windows)

  def _make_received(self, iteration, steps, phase='transfer'):
    received = ReceivedProgress(last_change=self.now)
    received.update([phase, iteration, steps], self.now)
    return received


if __name__ == '__main__':
  absltest.main()
