"""Tests for what bench.soak and bench.accounts find in the files of runs."""

import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest, parameterized

from bench import launched, soak
from tests.support import small


@functools.cache
def _killed():
  """Returns the folder of a run that workers have left and come back to."""
  script = ((0.2, 'leave', 0), (0.7, 'join', 0), (0.9, 'leave', 2))
  run, _ = small.trained(sync__name='elastic', cluster__script=script)
  return run.files.workdir


def _failed(folder, grown=()):
  seen = launched.Launched(folder)
  seen.grown |= dict(grown)
  checks = soak.judged(folder, seen, least=0.1)
  return [check.name for check in checks if not check.holds]


class SoakTest(parameterized.TestCase):
  def test_a_run_that_loses_workers_keeps_its_accounts(self):
    summary = json.loads((_killed() / 'summary.json').read_text())
    self.assertNotEmpty(summary['lost'])
    self.assertEmpty(_failed(_killed()))

  @parameterized.parameters(
    ('lost', lambda lost: lost[1:], 'lost iterations are listed'),
    ('examples', lambda n: n - 8, 'pushed examples are applied or pending'),
    ('issued', lambda n: n + 8, 'issued examples are pushed or outstanding'),
    ('final_accuracy', lambda a: 0.09, 'accuracy of at least 10%'),
  )
  def test_violated_invariants_are_found(self, field, change, name):
    def falsify(summary):
      summary[field] = change(summary[field])

    falsified = small.changed(_killed(), 'summary.json', falsify)
    self.assertEqual(_failed(falsified), [name])

  def test_a_process_that_is_left_is_found(self):
    code = 'import time; time.sleep(60)'
    words = [sys.executable, '-c', code, f'--workdir={_killed()}']
    with subprocess.Popen(words) as process:
      while not launched.command_line(process.pid).rstrip().endswith('/run'):
        time.sleep(0.01)
      self.assertEqual(_failed(_killed()), ['no process is left'])
      process.kill()

  @parameterized.parameters((63.0, 16, []), (65.0, 0, 1), (0.0, 17, 1))
  def test_a_process_that_grows_is_found(self, memory, files, found):
    failed = _failed(_killed(), {'server:0': (memory, files)})
    self.assertEqual(failed, found and ['no process grows'])

  def test_only_the_worker_that_was_started_is_killed(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    code = 'import time; time.sleep(60)'
    words = [sys.executable, '-c', code, '--role=worker:1']
    with subprocess.Popen(words) as process:
      while '--role' not in launched.command_line(process.pid):
        time.sleep(0.01)
      for role in ('worker:1', 'worker:2', 'server:0'):
        row = {'time': time.time(), 'role': role, 'pid': process.pid}
        with (folder / 'launch.jsonl').open('a') as file:
          file.write(json.dumps(row | {'event': 'start', 'code': None}) + '\n')
      seen = launched.Launched(folder)
      seen.look()
      self.assertEqual(seen.victims('worker'), ['worker:1', 'worker:2'])
      self.assertFalse(seen.kill('worker:2'))
      self.assertIsNone(process.poll())
      self.assertTrue(seen.kill('worker:1'))
      self.assertEqual(process.wait(), -9)
    self.assertFalse(seen.kill('worker:1'))

  def test_workers_that_die_young_again_and_again_are_spared(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    seen = launched.Launched(folder)
    for life in range(4):
      self.assertEqual(seen.victims('worker'), ['worker:1'] if life else [])
      for event, code in (('exit', -9), ('start', None))[not life :]:
        row = {'time': time.time(), 'role': 'worker:1', 'pid': 1}
        with (folder / 'launch.jsonl').open('a') as file:
          file.write(json.dumps(row | {'event': event, 'code': code}) + '\n')
      seen.look()
    self.assertEqual(seen.victims('worker'), [])
    self.assertEqual((seen.starts, seen.deaths), (4, 3))


if __name__ == '__main__':
  absltest.main()
