"""Tests for tools.diagnose --live: who waits for whom."""

import pathlib
import signal
import tempfile
import time

import psutil
from absl.testing import absltest, parameterized

from analysis import live
from cluster.coordinator import Progress
from cluster.membership import live_status
from cluster.membership.members import Member
from tests.support import commands, small

_HANGS = """
import pathlib, sys, time
from cluster.process import stacks
stacks.dump_on_signal(pathlib.Path(sys.argv[1]), 'worker-2')
def hang_here():
  print('ready', flush=True)
  time.sleep(60)
hang_here()
"""


def _status(*workers, written=100.0):
  """Content of live.json: workers by iteration, doing, chunks and silence."""
  usual = {
    'host': '',
    'alive': True,
    'running': True,
    'doing': 'compute',
    'iteration': 7,
    'steps': 0,
    'still_s': 0.1,
    'silent_s': 0.1,
  }
  return {
    'written': written,
    'time': 50.0,
    'host': 'h',
    'pid': 1,
    'beat_s': 2.0,
    'workers': [
      {'worker': k, **usual, **changed} for k, changed in enumerate(workers)
    ],
  }


class ExplainTest(parameterized.TestCase):
  def _explain(self, status, now=101.0):
    return [*live.explain(status, (), now=now)][1:]

  def test_all_make_progress(self):
    found = self._explain(_status({}, {}, {'doing': 'transfer'}))
    self.assertEqual(found, ['All workers make progress.'])

  def test_others_wait_for_the_worker_that_computes_too_long(self):
    waits = {'running': False, 'doing': 'transfer', 'still_s': 24.0}
    found = self._explain(_status(waits, {'still_s': 25.0}, waits))
    self.assertEqual(
      found,
      [
        'Workers 0, 2 wait for worker 1, since 25.0 s before.',
        'Worker 1 computes in iteration 7 without progress for 25.0 s.',
      ],
    )

  def test_others_wait_for_the_worker_with_the_fewest_chunks(self):
    waits = {'doing': 'transfer', 'still_s': 9.0, 'steps': 5}
    found = self._explain(_status(waits, waits, waits | {'steps': 2}))
    self.assertStartsWith(found[0], 'Workers 0, 1 wait for worker 2')
    self.assertIn('Worker 2 transfers in iteration 7', found[1])

  def test_a_silent_worker_is_named(self):
    waits = {'doing': 'transfer', 'still_s': 9.0}
    silent = {'silent_s': 8.0, 'still_s': 9.5}
    found = self._explain(_status(silent, waits, {'alive': False}))
    self.assertEqual(
      found,
      [
        'Worker 0 has sent no heartbeat for 8.0 s: its process is stopped, or '
        'its link is cut.',
        'Worker 2 does not take part.',
        'Worker 1 waits for worker 0, since 9.5 s before.',
        'Worker 0 computes in iteration 7 without progress for 9.5 s.',
      ],
    )

  def test_a_coordinator_that_writes_nothing_is_named(self):
    found = self._explain(_status({}, {}), now=140.0)
    (line,) = found
    self.assertIn('has handled no event for 40 s', line)

  def test_the_coordinator_describes_what_is_explained(self):
    now = time.monotonic()
    members = [Member(last_heartbeat=now) for _ in range(2)]
    for member in members:
      member.stream = object()
      member.progress.update(('compute', 3, 0), now - 40)
    members[0].progress.update(('transfer', 3, 4), now - 20)
    workers = [Progress(), Progress(is_iterating=True)]
    status = live_status.describe(60.0, members, workers, beat_s=2.0)
    first, *found = live.explain(status, (), now=status['written'] + 1)
    self.assertEqual(first, 'At 60.0 s of the run, 1.0 s ago:')
    self.assertEqual(
      found,
      [
        'Worker 0 waits for worker 1, since 40.0 s before.',
        'Worker 1 computes in iteration 3 without progress for 40.0 s.',
      ],
    )

  def test_virtual_runs_are_refused(self):
    run = small.build(small.timing())
    run()
    with self.assertRaisesRegex(ValueError, "expected 'distributed'"):
      live.describe(pathlib.Path(run.files.workdir))


class StacksTest(absltest.TestCase):
  def test_a_process_that_hangs_shows_where(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    words = commands.python(_HANGS, str(folder))
    with commands.start(words, answers=True) as hanging:
      hanging.receive()
      process = live.Process('worker:2', hanging.process_id, 'sleeping', 0.0)
      _, text = live.dump_stacks(folder, process)
      self.assertIn('in hang_here', text)
      hanging.signal(signal.SIGSTOP)
      stopped = process._replace(status=psutil.STATUS_STOPPED)
      (line,) = live.dump_stacks(folder, stopped)
      self.assertIn('is stopped', line)


if __name__ == '__main__':
  absltest.main()
