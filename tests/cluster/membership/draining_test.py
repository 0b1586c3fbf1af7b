"""Tests of runs whose processes get SIGTERM."""

import os
import signal

import pytest
from absl.testing import absltest, parameterized

from tests.support import processes, replays

_FIELDS = {
  'sync__name': 'bsp',
  'cluster__speed__injected': True,
  'cluster__speed__fixed_s': 0.05,
  'cluster__speed__per_example_s': 0.0,
  'model': False,
  'data__ahead': 1,
}
# The launcher may send SIGTERM to a process that is about to end.
_STOPPED = {143, -signal.SIGTERM}
_RING = {'route__name': 'ring', 'servers': 0}
_SERVER = {'servers': 1, 'dedicated': True}


class DrainingTest(processes.TestCase, parameterized.TestCase):
  def _check(self, launch):
    """Checks that every example is applied, or listed once as outstanding."""
    self._check_nothing_left(launch)
    summary, events = launch.summary, launch.rows('events.jsonl')
    pushed = [event['examples'] for event in events if event['event'] == 'push']
    self.assertLen(pushed, summary['iterations'])
    self.assertEqual(
      sum(pushed), summary['examples'] + summary['examples_pending']
    )
    held = sum(stop - start for start, stop in summary['outstanding'])
    self.assertEqual(summary['issued'], sum(pushed) + held)
    replays.check(self, launch.folder)

  @parameterized.named_parameters(
    ('ring', _RING, signal.SIGTERM),
    ('server', _SERVER, signal.SIGTERM),
    ('server_hangup', _SERVER, signal.SIGHUP),
  )
  def test_a_worker_that_gets_a_signal_leaves_and_the_others_continue(
    self, fields, number
  ):
    with processes.launch(
      workers=3, epochs=100.0, **_FIELDS, **fields
    ) as launch:
      launch.reach(48)
      os.kill(launch.pid('worker:2'), number)
      launch.until('worker 2 was drained')
      launch.reach(launch.rows('metrics.jsonl')[-1]['examples'] + 160)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143)
    rows = launch.rows('launch.jsonl')
    codes = [
      (row['role'], row['code']) for row in rows if row['event'] == 'exit'
    ]
    self.assertEqual(codes[0], ('worker:2', 79))
    self.assertLen(rows, 2 * len(codes))  # None was started again.
    self.assertLessEqual({code for _, code in codes[1:]}, _STOPPED)
    leaves = [
      row for row in launch.rows('events.jsonl') if row['event'] == 'leave'
    ]
    self.assertEqual([row['worker'] for row in leaves], [2])
    self._check(launch)

  def test_sigterm_to_all_saves_a_checkpoint_and_stops(self):
    self._check_stop(_SERVER)

  @pytest.mark.soak
  def test_sigterm_to_all_of_a_ring_saves_a_checkpoint_and_stops(self):
    self._check_stop(_RING)

  def _check_stop(self, fields):
    with processes.launch(
      workers=3, epochs=100.0, **_FIELDS, **fields
    ) as launch:
      launch.reach(48)
      roles = ['worker:2', 'worker:1', 'worker:0']
      for role in [*roles, *(['server:0'] if fields is _SERVER else [])]:
        os.kill(launch.pid(role), signal.SIGTERM)
      self.assertEqual(launch.wait(), 143)
    codes = {
      row['code']
      for row in launch.rows('launch.jsonl')
      if row['event'] == 'exit'
    }
    self.assertLessEqual(codes, _STOPPED)
    self._check(launch)
    before = launch.summary['examples']
    with processes.launch(
      workers=3, folder=launch.folder, epochs=100.0, **_FIELDS, **fields
    ) as launch:
      launch.reach(before + 48)
      launch.signal(signal.SIGTERM)
      launch.wait()
    self._check(launch)


if __name__ == '__main__':
  absltest.main()
