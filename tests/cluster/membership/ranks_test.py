"""Tests for runs whose processes have launchers of their own, host by host."""

import os
import signal

import pytest
from absl.testing import absltest

from tests.support import launches, processes, requires

_FIELDS = {
  'model': False,
  'sync__name': 'ssp',
  'epochs': 60.0,
  'cluster__timeout_s': 2.0,
  'cluster__speed__injected': True,
  'cluster__speed__fixed_s': 0.01,
}


class RanksTest(processes.TestCase):
  def setUp(self):
    super().setUp()
    requires.lab()

  def _kill(self, launch, role):
    pid = launch.pid(role, f'launch-{role.replace(":", "-")}.jsonl')
    os.kill(pid, signal.SIGKILL)

  def _starts(self, launch):
    rows = [launch.rows(f'launch-worker-{worker}.jsonl') for worker in range(3)]
    return [
      launches.starts(each)[f'worker:{worker}']
      for worker, each in enumerate(rows)
    ]

  @pytest.mark.soak
  def test_a_run_survives_killed_worker_and_coordinator(self):
    with processes.ranks(workers=3, servers=1, **_FIELDS) as launch:
      launch.reach(200)
      self._kill(launch, 'worker:2')
      launch.until('Worker 2 has rejoined')
      self._kill(launch, 'worker:0')
      launch.until('Coordinator at', 2)
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    self.assertEqual(launch.summary['ended'], 'finished')
    # Worker 1 has come to the next coordinator by itself.
    self.assertEqual(self._starts(launch), [2, 1, 2])

  @pytest.mark.soak
  def test_a_run_survives_a_killed_server(self):
    with processes.ranks(workers=3, servers=2, **_FIELDS) as launch:
      launch.reach(200)
      self._kill(launch, 'worker:1')
      launch.until('Coordinator at', 2)
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    self.assertEqual(launch.summary['ended'], 'finished')
    # The coordinator has lost a server, and has stopped worker 2.
    self.assertEqual(self._starts(launch), [2, 2, 2])


if __name__ == '__main__':
  absltest.main()
