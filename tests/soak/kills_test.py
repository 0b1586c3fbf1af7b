"""Runs whose processes are killed, and tests of what checks them.

SYNCOPATE_KILLS and SYNCOPATE_KILLS_MEAN_S are other numbers of kills, and mean
seconds between two, of the runs in RUNS.
"""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import pytest
from absl.testing import absltest, parameterized

from tests.soak import killing
from tests.soak.killing import Kills
from tests.support import accounts, run_processes, small

_OF_WORKERS = Kills(
  'server', 10, mean_s=5.0, servers=0.0, scheme='quorum', slowdown='(1.0,)'
)
RUNS = {
  'server': Kills('server', 200),
  'server_in_workers': Kills('server_in_workers', 80, mean_s=2.5),
  'ring': Kills('ring', 60, mean_s=10.0),
  'quorum': _OF_WORKERS,
  'bsp': _OF_WORKERS._replace(scheme='bsp'),
  'local_steps': _OF_WORKERS._replace(local_steps=16, ahead=0),
}


@functools.cache
def _workdir():
  """Returns the folder of a run whose workers have left and rejoined."""
  script = ((0.2, 'leave', 0), (0.7, 'join', 0), (0.9, 'leave', 2))
  run, _ = small.execute(sync__name='elastic', cluster__script=script)
  return run.files.workdir


def _failed_checks(folder, growth=()):
  processes = run_processes.RunProcesses(folder)
  processes.growth |= dict(growth)
  checks = killing.checks_of(folder, processes, least=0.1)
  return [check.name for check in accounts.failed(checks)]


class ChecksTest(parameterized.TestCase):
  def test_a_run_that_loses_workers_passes_all_checks(self):
    summary = json.loads((_workdir() / 'summary.json').read_text())
    self.assertNotEmpty(summary['lost'])
    self.assertEmpty(_failed_checks(_workdir()))

  @parameterized.parameters(
    ('lost', lambda lost: lost[1:], 'lost iterations are listed'),
    ('examples', lambda n: n - 8, 'pushed examples are applied or pending'),
    ('issued', lambda n: n + 8, 'issued examples are pushed or outstanding'),
    ('final_accuracy', lambda a: 0.09, 'accuracy of at least 10%'),
  )
  def test_violated_invariants_fail_their_check(self, field, change, name):
    def falsify(summary):
      summary[field] = change(summary[field])

    falsified = small.copy_with_change(_workdir(), 'summary.json', falsify)
    self.assertEqual(_failed_checks(falsified), [name])

  def test_a_remaining_process_fails_its_check(self):
    code = 'import time; time.sleep(60)'
    words = [sys.executable, '-c', code, f'--workdir={_workdir()}']
    with subprocess.Popen(words) as process:
      while (
        not run_processes.command_line(process.pid).rstrip().endswith('/run')
      ):
        time.sleep(0.01)
      self.assertEqual(_failed_checks(_workdir()), ['no process is left'])
      process.kill()

  @parameterized.parameters(
    (63.0, 16, []),
    (65.0, 0, ['no process grows']),
    (0.0, 17, ['no process grows']),
  )
  def test_a_process_that_grows_fails_its_check(self, memory, files, expected):
    failed = _failed_checks(_workdir(), {'server:0': (memory, files)})
    self.assertEqual(failed, expected)

  def test_files_that_stay_open_count_as_growth_and_temporary_ones_do_not(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    row = {'role': 'worker:1', 'pid': os.getpid(), 'code': None}
    row |= {'event': 'start', 'time': time.time() - 60}
    (folder / 'launch.jsonl').write_text(json.dumps(row) + '\n')
    processes = run_processes.RunProcesses(folder)
    processes.update()
    processes.pushes = 1000

    def measure(num_temporary):
      with contextlib.ExitStack() as stack:
        for _ in range(num_temporary):
          stack.enter_context((folder / 'launch.jsonl').open())
        processes.measure()

    for num_temporary in (0, 0, 0, 0, 0, 0, 30, 30, 0, 30, 30, 30, 30, 0):
      measure(num_temporary)
    self.assertEqual(processes.growth['worker:1'][1], 0)
    self.assertGreaterEqual(processes.peak['worker:1'], 30)
    with contextlib.ExitStack() as stack:  # A process that leaks.
      for number in range(20):
        stack.enter_context((folder / 'launch.jsonl').open())
        measure(30 * (number % 2))
      self.assertBetween(processes.growth['worker:1'][1], 14, 16)

  def test_only_the_worker_that_was_started_is_killed(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    code = 'import time; time.sleep(60)'
    words = [sys.executable, '-c', code, '--role=worker:1']
    with subprocess.Popen(words) as process:
      while '--role' not in run_processes.command_line(process.pid):
        time.sleep(0.01)
      for role in ('worker:1', 'worker:2', 'server:0'):
        row = {'time': time.time(), 'role': role, 'pid': process.pid}
        with (folder / 'launch.jsonl').open('a') as file:
          file.write(json.dumps(row | {'event': 'start', 'code': None}) + '\n')
      processes = run_processes.RunProcesses(folder)
      processes.update()
      self.assertEqual(processes.victims('worker'), ['worker:1', 'worker:2'])
      self.assertFalse(processes.kill('worker:2'))
      self.assertIsNone(process.poll())
      self.assertTrue(processes.kill('worker:1'))
      self.assertEqual(process.wait(), -9)
    self.assertFalse(processes.kill('worker:1'))

  def test_workers_that_repeatedly_die_early_are_not_killed(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    processes = run_processes.RunProcesses(folder)
    for session in range(4):
      self.assertEqual(
        processes.victims('worker'), ['worker:1'] if session else []
      )
      for event, code in (('exit', -9), ('start', None))[not session :]:
        row = {'time': time.time(), 'role': 'worker:1', 'pid': 1}
        with (folder / 'launch.jsonl').open('a') as file:
          file.write(json.dumps(row | {'event': event, 'code': code}) + '\n')
      processes.update()
    self.assertEqual(processes.victims('worker'), [])
    self.assertEqual((processes.starts, processes.deaths), (4, 3))


@pytest.mark.soak
@pytest.mark.timeout(7200)
class KillsTest(parameterized.TestCase):
  @parameterized.named_parameters(*((name, name) for name in RUNS))
  def test_a_run_continues_after_kills(self, name):
    planned = RUNS[name]
    kills = int(os.environ.get('SYNCOPATE_KILLS', planned.kills))
    mean_s = float(os.environ.get('SYNCOPATE_KILLS_MEAN_S', planned.mean_s))
    path = pathlib.Path(tempfile.mkdtemp(), name)
    checks = killing.execute(path, planned._replace(kills=kills, mean_s=mean_s))
    self.assertEmpty(accounts.failed(checks))


if __name__ == '__main__':
  absltest.main()
