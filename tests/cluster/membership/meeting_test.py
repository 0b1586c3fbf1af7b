"""Tests for the start of a process in its run's folder."""

import json
import os
import pathlib
import tempfile
import time
from unittest import mock

import jax
from absl.testing import absltest

import train
from cluster.process.exits import LOST, Unmendable
from outputs.files import RunFiles
from tests.support import processes, small

_SLURM = {
  'SLURM_JOB_ID': '7',
  'SLURM_STEP_ID': '0',
  'SLURM_STEP_NUM_TASKS': '2',
  'JAX_PLATFORMS': 'cpu',
}


class MeetingTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    self.enterContext(mock.patch.object(jax.config, 'update'))

  def _build(self, rank, **fields):
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      **fields,
    )
    own = _SLURM | {'SLURM_PROCID': str(rank)}
    with mock.patch.dict(os.environ, own):
      return train.build(config, workdir=str(self.folder))

  def _finish(self):
    self.folder.mkdir()
    summary = {'ended': 'finished'}
    (self.folder / 'summary.json').write_text(json.dumps(summary))

  def test_all_processes_find_the_coordinators_address_and_token(self):
    run = self._build(0)
    self.addCleanup(run.files.release)
    site = self._build(1)
    address = json.loads((self.folder / 'rendezvous.json').read_text())
    self.assertEqual(site.meeting.role.coordinator, address['address'])
    self.assertStartsWith(address['address'], '127.0.0.1:')
    token = (self.folder / 'token').read_text().strip()
    self.assertEqual(site.settings.security.token, token)

  def test_a_process_without_a_coordinator_exits_for_a_restart(self):
    with self.assertRaisesRegex(
      Unmendable, 'the token of the run in .*run/tok'
    ):
      self._build(1, cluster__start_s=0.2)
    file = processes.config_file(
      cluster__runtime='distributed', cluster__workers=2, cluster__start_s=0.2
    )
    words = ('main.py', f'--config={file}', f'--workdir={self.folder}')
    done = small.python(*words, **_SLURM, SLURM_PROCID='1')
    self.assertEqual(done.returncode, LOST, done.stderr)
    self.assertIn('Expected the token of the run in', done.stderr)

  def test_no_process_waits_in_a_finished_run(self):
    self._finish()
    start = time.monotonic()
    self._build(1)()
    self.assertLess(time.monotonic() - start, 60.0)
    self.assertEqual(os.listdir(self.folder), ['summary.json'])

  def test_a_second_coordinator_leaves_the_files_unchanged(self):
    other = RunFiles(str(self.folder))
    other.hold({'runtime': 'distributed', 'start_s': 0.2})
    self.addCleanup(other.release)
    with self.assertRaisesRegex(ValueError, 'another run writes to'):
      self._build(0, cluster__start_s=0.2)
    self.assertEqual(os.listdir(self.folder), ['.lock'])

  def test_the_folder_is_unlocked_if_the_run_cannot_be_built(self):
    with self.assertRaisesRegex(ValueError, 'config.cluster.key_file'):
      self._build(0, cluster__key_file='/no/file')
    other = RunFiles(str(self.folder))
    other.hold({'runtime': 'distributed', 'start_s': 0.2})
    other.release()


if __name__ == '__main__':
  absltest.main()
