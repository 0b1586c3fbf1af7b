"""Tests for runs whose coordinator is lost, of real processes."""

import os
import signal
import time

import pytest
from absl.testing import absltest, parameterized

from tests.support import accounts, processes

_TIMEOUT_S = 2.0
_FIELDS = {
  'cluster__timeout_s': _TIMEOUT_S,
  'cluster__start_s': 60.0,
  'cluster__speed__injected': True,
  'cluster__speed__name': 'constant',
  'cluster__speed__fixed_s': 0.02,
  'cluster__speed__per_example_s': 0.0,
  'checkpoint__every_examples': 500,
  'log_every': 16,
}


class SuccessionTest(processes.TestCase, parameterized.TestCase):
  def _launch(self, **fields):
    return processes.launch(servers=0, **_FIELDS | fields)

  def _count_starts(self, launch):
    """Returns the number of processes that each worker has had."""
    rows = launch.rows('launch.jsonl')
    starts = [row['role'] for row in rows if row['event'] == 'start']
    return [starts.count(f'worker:{k}') for k in range(4)]

  def _wait_for_rows(self, launch, seconds):
    """Waits until events.jsonl grows; returns whether it does in time."""
    path = launch.folder / 'events.jsonl'
    end, before = time.monotonic() + seconds, path.stat()
    while time.monotonic() < end:
      now = path.stat()
      is_same = now.st_ino == before.st_ino
      if now.st_size > before.st_size or (not is_same and now.st_size):
        return True
      time.sleep(0.02)
    return False

  def _stop(self, launch):
    """Waits until worker 0 is back, and stops the run by a signal."""
    launch.until('Membership epoch 2 begins: a worker joins')
    self.assertTrue(self._wait_for_rows(launch, 3 * _TIMEOUT_S))
    launch.signal(signal.SIGTERM)
    self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(launch.summary['ended'], 'interrupted', launch.text)
    self.assertEqual(self._count_starts(launch), [2, 1, 1, 1])

  def _check_history(self, launch, *, with_model):
    self._check_nothing_left(launch)
    checks = list(accounts.accounts(launch.folder))
    if with_model:
      checks += accounts.check_parameters(launch.folder)
    for check in checks:
      self.assertTrue(check.holds, f'{check}\n{launch.text}')
    versions = [
      row['updates']
      for row in launch.rows('metrics.jsonl')
      if row['kind'] == 'barrier'
    ]
    self.assertEqual(versions, list(range(1, launch.summary['updates'] + 1)))

  def test_the_others_continue_when_the_coordinator_dies(self):
    self._check_death('ring', model=True)

  @pytest.mark.soak
  def test_the_others_continue_along_a_forest_when_the_coordinator_dies(self):
    self._check_death('forest', model=False)

  def _check_death(self, route, *, model):
    with self._launch(
      workers=4, route__name=route, model=model, epochs=10.0**4
    ) as launch:
      launch.reach(300)
      os.kill(launch.pid('worker:0'), signal.SIGKILL)
      died = time.time()
      elected = launch.until('coordinates the run in term 2')
      self.assertTrue(self._wait_for_rows(launch, 3 * _TIMEOUT_S))
      self._stop(launch)
    self.assertLess(elected - died, 3 * _TIMEOUT_S)
    self._check_history(launch, with_model=model)

  @pytest.mark.soak
  def test_rows_of_an_epoch_stay_if_its_coordinator_dies_at_once(self):
    faults = ((0, 3, 'die', 'applied'), (1, 4, 'die', 'first'))
    with self._launch(
      workers=4, route__name='ring', epochs=10.0**4, cluster__faults=faults
    ) as launch:
      launch.until('coordinates the run in term 3')
      self.assertTrue(self._wait_for_rows(launch, 3 * _TIMEOUT_S))
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    members = [
      row['members']
      for row in launch.rows('events.jsonl')
      if row.get('did') == 'forest'
    ]
    self.assertEqual(members[:3], [[0, 1, 2, 3], [1, 2, 3], [2, 3]])
    self._check_history(launch, with_model=True)

  def test_a_run_of_two_workers_finishes_without_the_coordinator(self):
    with self._launch(
      workers=2, route__name='double_tree', model=False, epochs=20.0
    ) as launch:
      launch.reach(300)
      os.kill(launch.pid('worker:0'), signal.SIGKILL)
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertEqual(launch.summary['ended'], 'finished', launch.text)
    self._check_history(launch, with_model=False)

  def test_a_worker_that_returns_waits_for_a_coordinator_that_hangs(self):
    with self._launch(
      workers=2, route__name='ring', model=False, epochs=10.0**4
    ) as launch:
      launch.reach(300)
      os.kill(launch.pid('worker:0'), signal.SIGKILL)
      launch.until('coordinates the run in term 2')
      other = launch.pid('worker:1')
      os.kill(other, signal.SIGSTOP)
      # Worker 0 is back, and the lock of the folder is held, perhaps by a
      # process that was stopped before it had written its number there.
      launch.until('Waiting for .*process.* to release')
      os.kill(other, signal.SIGCONT)
      launch.until('begins: a worker joins')
      self.assertTrue(self._wait_for_rows(launch, 3 * _TIMEOUT_S))
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(self._count_starts(launch), [2, 1, 0, 0])
    self._check_history(launch, with_model=False)

  def test_a_coordinator_hands_the_run_over_after_a_signal(self):
    with self._launch(workers=4, route__name='ring', epochs=10.0**4) as launch:
      launch.reach(300)
      os.kill(launch.pid('worker:0'), signal.SIGTERM)
      left = launch.until('worker 0 was drained: the others continue')
      elected = launch.until('coordinates the run in term 2')
      self.assertTrue(self._wait_for_rows(launch, 3 * _TIMEOUT_S))
      self.assertLess(elected - left, _TIMEOUT_S)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(self._count_starts(launch), [1, 1, 1, 1])
    self.assertTrue((launch.folder / 'summary.json').exists(), launch.text)
    self.assertEqual(launch.summary['ended'], 'interrupted', launch.text)
    self._check_history(launch, with_model=True)
    # Its next iteration was planned.
    self.assertLessEqual({row['worker'] for row in launch.summary['lost']}, {0})

  @pytest.mark.soak
  def test_a_coordinator_that_was_stopped_is_ignored_when_it_returns(self):
    with self._launch(
      workers=4, route__name='ring', epochs=10.0**4, eval_every=5.0
    ) as launch:
      launch.reach(300)
      coordinator = launch.pid('worker:0')
      os.kill(coordinator, signal.SIGSTOP)
      stopped = time.time()
      elected = launch.until('coordinates the run in term 2')
      self.assertTrue(self._wait_for_rows(launch, 3 * _TIMEOUT_S))
      os.kill(coordinator, signal.SIGCONT)
      self._stop(launch)
    self.assertLess(elected - stopped, 3 * _TIMEOUT_S)
    self._check_history(launch, with_model=True)


if __name__ == '__main__':
  absltest.main()
