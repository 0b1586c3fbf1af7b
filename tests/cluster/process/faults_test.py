"""Tests for injected failures of real processes, each kind in one scheme.

`make soak` tests every kind in every scheme.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time

import pytest
from absl.testing import absltest, parameterized

from launch.processes import ProcessError
from outputs import checkpoints
from tests.support import processes, requires
from tests.support.processes import BATCH

_TIMEOUT_S = 3.0
_EVERY = 320  # Examples between checkpoints.
# Worker and iteration of each kind.
_FAULTS = {
  'die': (1, 4),
  'stop': (2, 6),
  'slow': (3, 6),
  'corrupt': (0, 3),
  'wrong_size': (3, 9),
  'hang': (3, 12),
}
_FIELDS = {
  'checkpoint__every_examples': _EVERY,
  'cluster__timeout_s': _TIMEOUT_S,
  'cluster__speed__injected': True,
  'cluster__speed__fixed_s': 0.05,
  'cluster__speed__per_example_s': 0.0,
}


def _but(scheme):
  return [name for name in processes.SCHEMES if name != scheme]


class KindsTest(processes.TestCase, parameterized.TestCase):
  """Injected failures of all kinds but `nan` in one run."""

  def test_every_kind_has_its_outcome(self):
    self._check_run('bsp')

  @parameterized.parameters(_but('bsp'))
  @pytest.mark.soak
  def test_every_kind_has_its_outcome_in_other_schemes(self, scheme):
    self._check_run(scheme)

  def _check_run(self, scheme):
    faults = tuple((*where, kind) for kind, where in _FAULTS.items())
    with (
      processes.launch(
        workers=4,
        dedicated=True,
        sync__name=scheme,
        model=False,
        epochs=1000.0,
        cluster__faults=faults,
        **_FIELDS,
      ) as launch,
      _resume(launch, worker=2),
    ):
      launch.until('Worker 3 is lost: It has computed for')
      for worker in (1, 2):
        launch.until(f'Worker {worker} has rejoined')
      launch.until('Worker 3 has rejoined', 2)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)

    self._check_die(launch)
    self._check_stop(launch)
    self._check_slow(launch)
    self._check_hang(launch)
    self._check_damaged(launch)
    self.assertEqual(launch.summary['admissions'], [2, 2, 2, 3])
    self.assertLen(launch.summary['lost'], 5)
    self.check(launch)

  def test_a_gradient_that_is_not_finite_ends_the_run(self):
    self._check_nan('bsp')

  @parameterized.parameters(_but('bsp'))
  @pytest.mark.soak
  def test_a_gradient_that_is_not_finite_ends_the_run_in_other_schemes(
    self, scheme
  ):
    self._check_nan(scheme)

  def _check_nan(self, scheme):
    with processes.launch(
      workers=1,
      sync__name=scheme,
      cluster__faults=((0, 4, 'nan'),),
      **_FIELDS,
    ) as launch:
      self.assertEqual(launch.wait(), 1, launch.text)
    ended = r'FloatingPointError: .* worker 0, iteration 4, is not finite'
    self.assertRegex(launch.summary['ended'], ended)
    self.assertIn('FloatingPointError', launch.text)
    self._check_nothing_left(launch)

  def _check_die(self, launch):
    died = self._find_failure_time(launch, 'die')
    ended, started = (
      [
        row['time']
        for row in launch.rows('launch.jsonl')
        if (row['role'], row['event']) == ('worker:1', event)
      ]
      for event in ('exit', 'start')
    )
    self.assertGreaterEqual(ended[0], died)
    # By the end of its stream, before its heartbeats are missed.
    self.assertEmpty(launch.times('Worker 1 is lost: It was silent'))
    self.assertGreaterEqual(launch.times('Worker 1 is lost')[0], died)
    self.assertGreater(started[1], ended[0])
    self.assertGreater(launch.times('Worker 1 has rejoined')[0], started[1])

  def _check_stop(self, launch):
    stopped = self._find_failure_time(launch, 'stop')
    self._check_left(launch, 'Worker 2 is lost: It was silent', stopped, 1)
    back = launch.times('Worker 2 has rejoined')
    self.assertLen(back, 1)
    # The same process: it was not started again.
    self.assertEqual(self._starts(launch, 'worker:2'), 1)

  def _check_slow(self, launch):
    self._find_failure_time(launch, 'slow')
    # Its losses are those by the push that was too short and by the hang.
    self.assertLen(launch.times('Worker 3 is lost'), 2)
    self.assertLen(launch.times('Worker 3 is lost: WrongPush'), 1)

  def _check_hang(self, launch):
    hung = self._find_failure_time(launch, 'hang')
    self._check_left(launch, 'Worker 3 is lost: It has computed', hung, 2)
    self.assertLen(launch.times('Worker 3 hangs.$'), 1)
    self.assertEqual(self._starts(launch, 'worker:3'), 2)

  def _check_left(self, launch, why, since, timeouts):
    """Checks that the coordinator evicts it after a number of timeouts."""
    seconds = re.search(rf'{why} for ([0-9.]+) s', launch.text)[1]
    # On a busy machine beats come late, and so do looks, one in a beat.
    self.assertGreaterEqual(float(seconds), timeouts * _TIMEOUT_S)
    self.assertLess(float(seconds), timeouts * _TIMEOUT_S + 10.0)
    self.assertGreaterEqual(launch.times(why)[0], since)

  def _check_damaged(self, launch):
    for kind, reason in (
      ('corrupt', 'Corrupt: .* has another checksum'),
      ('wrong_size', 'WrongPush: Expected 1768 bytes, got 884'),
    ):
      self._find_failure_time(launch, kind)
      worker, iteration = _FAULTS[kind]
      (lost,) = [
        lost
        for lost in launch.summary['lost']
        if (lost['worker'], lost['iteration']) == (worker, iteration)
      ]
      self.assertRegex(lost['reason'], reason)
      self.assertEqual(lost['examples'], BATCH)
      self.assertNotEmpty(launch.times(f'Worker {worker} has rejoined'))

  def _find_failure_time(self, launch, kind):
    """Returns the time at which a failure of a kind happened."""
    worker, iteration = _FAULTS[kind]
    mark = launch.folder / 'faults' / f'{worker}-{iteration}-{kind}'
    return mark.stat().st_mtime

  def _starts(self, launch, role):
    rows = launch.rows('launch.jsonl')
    return sum((r['role'], r['event']) == (role, 'start') for r in rows)


class CoordinatorTest(processes.TestCase):
  """Death of the process that holds parameters, without mirrors of them.

  All processes restart.
  """

  def test_no_more_than_a_checkpoint_interval_is_lost(self):
    self._check_run('ssp', dedicated=False, role='worker:0')

  @pytest.mark.soak
  def test_no_more_than_a_checkpoint_interval_is_lost_without_a_worker(self):
    self._check_run('dssp', dedicated=True, role='server:0')

  def _check_run(self, scheme, *, dedicated, role):
    copy = pathlib.Path(tempfile.mkdtemp(), 'copy')
    with processes.launch(
      workers=2,
      dedicated=dedicated,
      model=False,
      sync__name=scheme,
      epochs=8.0,
      route__server__mirror_s=0.0,
      **_FIELDS | {'cluster__speed__fixed_s': 0.1},
    ) as launch:
      # A checkpoint that is still being written does not count.
      directory = launch.folder / 'checkpoints'
      while max(checkpoints.steps(directory), default=-1) < 1:
        self.assertIsNone(launch.code, launch.text)
        time.sleep(0.02)
      os.kill(launch.pid(role), signal.SIGKILL)
      launch.until('starting all again')
      reached = launch.rows('metrics.jsonl')[-1]['examples']
      shutil.copytree(directory, copy / 'checkpoints')
      self.assertEqual(launch.wait(), 0, launch.text)

    self.check(launch)
    state, _ = processes.newest(copy)
    kept = state['recorder']['accounting'].examples
    # It may hold one push more than the last log row.
    self.assertGreater(kept, 0)
    self.assertLessEqual(reached - kept, _EVERY + 0.1 * _EVERY)
    self.assertLen(launch.times('Resuming from checkpoint'), 1)
    self.assertEqual(launch.summary['ended'], 'finished')
    self.assertGreaterEqual(launch.summary['examples'], 8 * 192)
    starts = [r for r in launch.rows('events.jsonl') if r['event'] == 'start']
    self.assertLen(starts, 2)


class HangTest(processes.TestCase):
  """A hanging worker in a process that also holds a shard."""

  @pytest.mark.soak
  def test_the_other_workers_continue_and_the_process_ends_with_them(self):
    with processes.launch(
      workers=2,
      servers=2,
      sync__name='bsp',
      model=False,
      epochs=20.0,
      cluster__faults=((1, 4, 'hang'),),
      **_FIELDS,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertLen(launch.times('Worker 1 is lost: It has computed'), 1)
    self.assertLen(launch.times('Worker 1 hangs, and stays away'), 1)
    rows = launch.rows('launch.jsonl')
    self.assertLen([row for row in rows if row['event'] == 'start'], 2)
    self.assertEqual({row['code'] for row in rows}, {None, 0})
    self.assertEqual(launch.summary['admissions'], [1, 1])
    self.check(launch)


class CutTest(processes.TestCase, parameterized.TestCase):
  """A host that is cut off from all others, in a lab."""

  def setUp(self):
    super().setUp()
    requires.lab()

  def test_a_worker_that_is_cut_off_is_evicted(self):
    self._check_run('r2sp')

  def test_a_half_open_connection_ends(self):
    """Packets of worker 1 are lost: it hears, and is not heard."""
    with self._launch('bsp', ((1, 4, 'drop'),)) as launch:
      left = launch.until(r'Worker 1 is lost: It was silent for')
      dropped = (launch.folder / 'faults' / '1-4-drop').stat().st_mtime
      self.assertLess(left - dropped, 3 * _FIELDS['cluster__timeout_s'])
      coordinator = launch.pid('server:0')
      deadline = time.monotonic() + 3 * _FIELDS['cluster__timeout_s']
      while _established(coordinator, '10.213.0.3'):
        self.assertLess(time.monotonic(), deadline)
        time.sleep(0.1)
      self.assertTrue(_established(coordinator, '10.213.0.2'))
      launch.until('Outputs are in')
      launch.signal(signal.SIGTERM)
      launch.wait()
    self.check(launch)

  def _launch(self, scheme, faults):
    return processes.launch(
      before=(sys.executable, '-m', 'tools.lab', '--hosts=3', '--'),
      workers=2,
      dedicated=True,
      sync__name=scheme,
      epochs=5.0,
      cluster__faults=faults,
      cluster__interface='eth0',
      model=False,
      **_FIELDS,
    )

  @parameterized.parameters(_but('r2sp'))
  @pytest.mark.soak
  def test_a_worker_that_is_cut_off_is_evicted_in_other_schemes(self, scheme):
    self._check_run(scheme)

  def _check_run(self, scheme):
    with self._launch(scheme, ((1, 4, 'cut'),)) as launch:
      left = launch.until(r'Worker 1 is lost: It was silent for')
      launch.until('Outputs are in')
      launch.signal(signal.SIGTERM)
      launch.wait()

    cut = (launch.folder / 'faults' / '1-4-cut').stat().st_mtime
    self.assertGreater(left, cut)
    summary = launch.summary
    self.assertEqual(summary['ended'], 'finished')
    self.assertGreaterEqual(summary['examples'], 5 * 192)
    self.assertEqual(summary['admissions'], [1, 1])
    self.assertEqual([lost['worker'] for lost in summary['lost']], [1])
    self.check(launch)


def _established(pid, address):
  """Returns the open TCP connections of a process's host to an address."""
  number = socket.inet_aton(address)[::-1].hex().upper()
  lines = pathlib.Path(f'/proc/{pid}/net/tcp').read_text().splitlines()[1:]
  rows = [line.split() for line in lines]
  return [r for r in rows if r[2].startswith(number + ':') and r[3] == '01']


@contextlib.contextmanager
def _resume(launch, worker):
  """Resumes a stopped worker once the coordinator has evicted it."""

  def resume():
    with contextlib.suppress(ProcessError):  # The test will see it.
      launch.until(f'Worker {worker} is lost: It was silent')
      pid = launch.pid(f'worker:{worker}')
      status = pathlib.Path('/proc', str(pid), 'stat').read_text()
      if status.rpartition(')')[2].split()[0] == 'T':
        os.kill(pid, signal.SIGCONT)

  thread = threading.Thread(target=resume)
  thread.start()
  try:
    yield
  finally:
    thread.join()


if __name__ == '__main__':
  absltest.main()
