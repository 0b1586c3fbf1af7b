"""Tests for tools.demo: its refusal, and its use of the tools."""

import json
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from launch import lab
from tests.support import small
from tools import demo


def _run(*slowdown):
  """Folder of a virtual run of 60 iterations of 4 workers."""
  run = small.build(
    small.timing(
      cluster__workers=4,
      cluster__speed__slowdown=slowdown,
      batching__worker_batch=2,
      epochs=60 * 8 / 192,
    )
  )
  run()
  return str(run.files.workdir)


def _folder(winner):
  """Folder with the files of tools.tune; `winner` may be None."""
  folder = pathlib.Path(tempfile.mkdtemp())

  def measured(seconds, *slowdown):
    return {'iteration_s': {'value': seconds}, 'folder': _run(*slowdown)}

  content = {
    'present': {'measured': [measured(0.3, 1, 1, 1, 3)]},
    'candidates': [{'name': 'balanced', 'measured': measured(0.1, 1)}],
    'winner': winner,
  }
  (folder / 'faster.json').write_text(json.dumps(content))
  return folder


class DemoTest(absltest.TestCase):
  def test_it_says_that_it_needs_root_and_leaves_nothing(self):
    folder = pathlib.Path(tempfile.mkdtemp()) / 'demo'
    with (
      mock.patch.object(os, 'geteuid', lambda: 1000),
      self.assertRaisesRegex(ValueError, 'needs root'),
    ):
      lab.check_machine()
    drop = 'import os; os.geteuid = lambda: 1000; from tools import demo; '
    start = 'from absl import app; app.run(demo.main)'
    flags = "demo.flags.DEFINE_string('out', None, ''); "
    done = small.python('-c', f'{drop}{flags}{start}', f'--out={folder}')
    self.assertEqual(done.returncode, 1)
    self.assertStartsWith(done.stderr, 'Refused: tools.lab creates network')
    self.assertFalse(folder.exists())

  def test_it_says_that_a_command_is_missing(self):
    with (
      mock.patch.object(os, 'geteuid', lambda: 0),
      mock.patch.dict(os.environ, {'PATH': tempfile.mkdtemp()}),
      self.assertRaisesRegex(ValueError, r'expected ip \(of iproute2'),
    ):
      lab.check_machine()

  def test_diagnosis_tuning_and_both_runs_are_shown(self):
    folder = _folder('balanced')
    said = demo.conclude(folder, 'balanced takes 0.33 of the time.\n')
    self.assertRegex(said, r'Worker 3 takes 3\.0 times as long')
    self.assertIn('balanced takes 0.33 of the time.', said)
    self.assertRegex(said, r'Before *0\.300 s an iteration, workers wait 50%')
    self.assertRegex(said, r'After *0\.100 s an iteration, workers wait 0%')
    page = pathlib.Path(said.rpartition('Page: ')[2])
    self.assertEqual(page, (folder / 'report.html').resolve())
    self.assertIn('<html', page.read_text())

  def test_without_a_winner_the_page_has_one_run(self):
    said = demo.conclude(_folder(None), 'Keep what you have.\n')
    self.assertIn('Keep what you have.', said)
    self.assertNotIn('After', said)
    self.assertIn('Page: ', said)


if __name__ == '__main__':
  absltest.main()
