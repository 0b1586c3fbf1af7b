"""Tests for deadlines: who has stood still for too long, by a clock of ours."""

import threading
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.process import deadlines
from cluster.process.deadlines import (
  Deadlines,
  ProgressCounter,
  ReportedProgress,
)

_TIMEOUT_S, _START_S = 10.0, 300.0


class DeadlinesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.now = 1000.0

  @parameterized.parameters(
    # Doing, seconds and examples of iterations before, examples, limit.
    ('transfer', [], 8, 20),
    ('transfer', [(100.0, 8)], 8, 20),
    ('compute', [], 8, 300),
    ('compute', [(1.0, 8)], 8, 24),
    ('compute', [(1.0, 8), (3.0, 8), (2.0, 8)], 8, 32),
    # Of a larger batch, it takes longer; of a smaller one, perhaps as long.
    ('compute', [(1.0, 8)], 80, 60),
    ('compute', [(1.0, 8)], 1, 24),
    # Only the last ten count.
    ('compute', [(50.0, 8)] + 10 * [(1.0, 8)], 8, 24),
  )
  def test_limits(self, doing, before, examples, limit_s):
    deadlines = self._deadlines()
    seen = ReportedProgress(moved=self.now)
    seen.record([doing, 3, 7], self.now)
    seen.computed.extend(before)
    self.now += limit_s
    running = [(5, seen, examples)]
    self.assertEmpty(deadlines.overdue(running, now=self.now, obeyed=0))
    self.now += 0.1
    ((index, reason),) = deadlines.overdue(running, now=self.now, obeyed=0)
    self.assertEqual(index, 5)
    self.assertIn(f'for {limit_s + 0.1:.1f} s', reason)

  def test_what_grows_is_not_overdue(self):
    deadlines, here = self._deadlines(), ProgressCounter()
    seen = ReportedProgress(moved=self.now)
    for iteration in range(3):
      here.begin_iteration(iteration)
      for change in (
        here.count_chunk,
        here.enter_transfer,
        here.enter_compute,
        here.enter_transfer,
      ):
        change()
        self.now += 19.0
        seen.record(here.report(), self.now)
        # The same again is not news.
        seen.record(here.report(), self.now)
        self.now += 0.5
        self.assertEmpty(
          deadlines.overdue([(0, seen, 1)], now=self.now, obeyed=0)
        )

  def test_a_count_of_the_iteration_before_hides_no_progress(self):
    here, counts = ProgressCounter(), []
    here.begin_iteration(1)

    def count():  # The next iteration begins while a beat looks at this one.
      thread = threading.Thread(target=here.begin_iteration, args=[2])
      thread.start()
      thread.join(0.05)
      counts.append(thread)
      return 500

    here.follow(count)
    counts[0].join()
    self.assertEqual(here.report(), ('transfer', 2, 0))
    here.follow(lambda: 1)
    here.follow(lambda: 0)
    self.assertEqual(here.report(), ('transfer', 2, 1))

  def test_nobody_is_blamed_for_servers_that_have_not_obeyed(self):
    deadlines = self._deadlines()
    seen = ReportedProgress(moved=self.now, after=4)
    self.now += 100.0
    self.assertEmpty(deadlines.overdue([(0, seen, 1)], now=self.now, obeyed=3))
    self.now += 20.0
    self.assertEmpty(deadlines.overdue([(0, seen, 1)], now=self.now, obeyed=4))
    self.now += 0.1
    self.assertLen(deadlines.overdue([(0, seen, 1)], now=self.now, obeyed=4), 1)

  def test_of_those_that_wait_for_one_another_the_last_is_given_up(self):
    deadlines = self._deadlines(windows=True)
    last, others = self._seen(7, 20), [self._seen(7, 40), self._seen(7, 44)]
    running = [(k, seen, 1) for k, seen in enumerate([others[0], last])]
    running.append((2, others[1], 1))
    self.now += 21.0
    found = deadlines.overdue(running, now=self.now, obeyed=0)
    self.assertEqual([index for index, _ in found], [1])

  def test_who_waits_for_one_that_computes_is_not_given_up(self):
    deadlines = self._deadlines(windows=True)
    waits, computes = self._seen(7, 40), self._seen(7, 3, doing='compute')
    computes.computed.append((50.0, 1))
    running = [(0, waits, 1), (1, computes, 1)]
    self.now += 200.0
    self.assertEmpty(deadlines.overdue(running, now=self.now, obeyed=0))
    self.now += 21.0
    found = deadlines.overdue(running, now=self.now, obeyed=0)
    self.assertEqual([index for index, _ in found], [1])

  def test_nobody_runs(self):
    for windows in (False, True):
      found = self._deadlines(windows=windows).overdue(
        [], now=self.now, obeyed=0
      )
      self.assertEmpty(found)

  def test_servers(self):
    deadlines = self._deadlines()
    self.assertEqual(deadlines.server('commit', 300.0, None), '')
    self.assertIn('commit', deadlines.server('commit', 300.1, None))
    self.assertEqual(deadlines.server('commit', 24.0, 1.0), '')
    self.assertIn('24.1 s', deadlines.server('commit', 24.1, 1.0))

  @parameterized.parameters(
    ([], 300.0),
    ([1.0, 0.5], 300.0),
    ([100.0, 0.5], 420.0),
  )
  def test_jobs_of_the_lead(self, before, limit_s):
    clock = mock.Mock(return_value=0.0)
    with mock.patch.object(deadlines.time, 'monotonic', clock):
      jobs = deadlines.Jobs(self._deadlines())
      for took_s in before:
        jobs.begin('a checkpoint')
        clock.return_value += took_s
        jobs.end('a checkpoint')
      self.assertFalse(jobs)
      jobs.begin('a checkpoint')
      clock.return_value += limit_s
      self.assertIsNone(jobs.overdue())
      self.assertTrue(jobs)
      clock.return_value += 0.1
      self.assertEqual(jobs.overdue()[0], 'a checkpoint')

  def _deadlines(self, windows=False):
    return Deadlines(timeout_s=_TIMEOUT_S, start_s=_START_S, windows=windows)

  def _seen(self, iteration, steps, doing='transfer'):
    seen = ReportedProgress(moved=self.now)
    seen.record([doing, iteration, steps], self.now)
    return seen


if __name__ == '__main__':
  absltest.main()
