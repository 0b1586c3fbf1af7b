"""Tests of resumed runs: a run that was stopped anywhere continues exactly."""

import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import types
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

import train
from configs import default
from data import synthetic
from models import mlp, task
from outputs import checkpoints
from sync import asp, bsp
from tests.support import commands, small, stopping, terminals

_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp', 'quorum')


_ROOT = pathlib.Path(__file__).parents[2]


# After its first checkpoint the run is so slow that a signal finds it running.
_CONFIG = """
import time
from cluster.training_loop import Run
from tests.cluster import resume_test

def save(self, original=Run._save):
  original(self)
  step = type(self.runtime).step
  self.runtime.step = lambda: (time.sleep(0.05), step(self.runtime))

def get_config():
  Run._save = save
  return resume_test._long()
"""


def _long():
  return stopping.eventful(
    'elastic', epochs=10.0, checkpoint__every_examples=300
  )


class ResumeTest(parameterized.TestCase):
  @parameterized.parameters(*_SCHEMES)
  def test_a_killed_run_gives_the_results_of_an_uninterrupted_one(self, scheme):
    expected, steps = stopping.straight(scheme)
    cuts = sorted(random.Random(scheme).sample(range(1, steps - 1), 2))
    workdir = pathlib.Path(tempfile.mkdtemp()) / 'run'
    run = train.build(stopping.eventful(scheme), workdir=str(workdir))
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=cuts, killed_at=steps - 1)
    for number in (1, 0):  # Number of the newest checkpoint.
      again = shutil.copytree(workdir, f'{tempfile.mkdtemp()}/run')
      if number == 0:
        shutil.rmtree(f'{again}/checkpoints/1')
      run = train.build(stopping.eventful(scheme), workdir=again)
      summary = run()
      with self.subTest(cuts=cuts, number=number):
        self.assertEqual(summary['compilations'], 0)
        self._check(stopping.results(run), expected)

  def test_a_killed_run_evaluates_at_the_times_of_an_uninterrupted_one(self):
    changed = {'eval_every': '0.9s', 'time_to': (0.12, 0.13)}
    expected, steps = stopping.straight('asp', **changed)
    rows = expected['metrics']
    times = [row['time'] for row in rows if row['kind'] == 'evaluation']
    decided = [json.loads(x)['time'] for x in expected['events'].splitlines()]
    due_s = 0.9 * np.arange(1, 1 + decided[-1] // 0.9)
    firsts = {min(t for t in decided if t >= each) for each in due_s}
    self.assertEqual(times, sorted(firsts | {decided[-1]}))
    run = small.build(stopping.eventful('asp', **changed))
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[steps // 2], killed_at=steps - 1)
    run.files.release()
    again = train.build(
      stopping.eventful('asp', **changed), workdir=str(run.files.workdir)
    )
    again()
    self._check(stopping.results(again), expected)
    self.assertIsNotNone(
      expected['summary']['time_to_interpolated']['accuracy']['0.12']['time_s']
    )

  @parameterized.parameters(
    (signal.SIGTERM, SystemExit),
    (signal.SIGHUP, SystemExit),
    (signal.SIGINT, KeyboardInterrupt),
  )
  def test_a_signal_stops_a_run_after_a_checkpoint(self, number, raised):
    self.addCleanup(signal.signal, number, signal.getsignal(number))
    run = small.build(stopping.eventful('asp'))
    step = run.runtime.step
    with (
      mock.patch.object(
        run.runtime, 'step', lambda: (step(), signal.raise_signal(number))
      ),
      self.assertRaises(raised) as stopped,
    ):
      run()
    if raised is SystemExit:
      self.assertEqual(stopped.exception.code, 128 + number)
    run = train.build(stopping.eventful('asp'), workdir=str(run.files.workdir))
    run()
    self._check(stopping.results(run), stopping.straight('asp')[0])

  def test_an_ignored_hangup_stops_no_run(self):
    """Runs go on under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    self.addCleanup(signal.signal, signal.SIGHUP, before)
    run = small.build(stopping.eventful('asp'))
    step = run.runtime.step
    with mock.patch.object(
      run.runtime, 'step', lambda: (step(), signal.raise_signal(signal.SIGHUP))
    ):
      self.assertEqual(run()['ended'], 'finished')

  def test_batches_and_predictions_are_restored(self):
    self._check_balanced('bsp', 'narx')

  @pytest.mark.soak
  def test_batches_and_predictions_are_restored_where_barriers_move(self):
    self._check_balanced('elastic', 'ema')

  def test_windows_of_tuned_batches_are_restored(self):
    config = small.timing(
      sync__name='r2sp',
      batching__name='r2sp',
      cluster__speed__name='lognormal',
      cluster__script=((4.0, 'leave', 1), (4.5, 'join', 1)),
      checkpoint__every_examples=10**9,
      epochs=20.0,
    )
    straight = small.build(config)
    straight()
    workdir = f'{tempfile.mkdtemp()}/run'
    for saved_at in (100, 321):
      run = train.build(config, workdir=workdir)
      with self.assertRaises(stopping.Killed):
        stopping.stop(run, saved_at=[saved_at], killed_at=saved_at + 9)
    run = train.build(config, workdir=workdir)
    run()
    self.assertEqual(
      run.runtime.coordinator.batching, straight.runtime.coordinator.batching
    )
    events = small.rows(run, 'events.jsonl')
    self.assertEqual(events, small.rows(straight, 'events.jsonl'))
    sizes = {row['examples'] for row in events if row['event'] == 'push'}
    self.assertGreater(len(sizes), 5)

  def _check_balanced(self, scheme, predictor):
    balanced = {
      'batching__name': 'lb_bsp',
      'batching__lb_bsp__predictor__name': predictor,
      'batching__lb_bsp__threshold': 0.0,
      'cluster__speed__name': 'regime',
      'cluster__speed__regime__sigma': 0.1,
      'cluster__speed__regime__noise': 0.1,
    }
    expected, steps = stopping.straight(scheme, **balanced)
    config = stopping.eventful(scheme, **balanced)
    workdir = f'{tempfile.mkdtemp()}/run'
    run = train.build(config, workdir=workdir)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[steps // 2], killed_at=steps // 2 + 9)
    run = train.build(config, workdir=workdir)
    summary = run()
    self.assertEqual(summary['compilations'], 0)
    self._check(stopping.results(run), expected)

  def test_a_run_can_be_stopped_again_and_again(self):
    expected, steps = stopping.straight('elastic')
    workdir = f'{tempfile.mkdtemp()}/run'
    for _ in range(4):
      run = train.build(stopping.eventful('elastic'), workdir=workdir)
      with self.assertRaises(stopping.Killed):
        stopping.stop(run, saved_at=[steps // 6], killed_at=steps // 6 + 5)
    run = train.build(stopping.eventful('elastic'), workdir=workdir)
    run()
    self._check(stopping.results(run), expected)

  def test_a_finished_run_is_not_run_again(self):
    config = stopping.eventful('bsp')
    run = small.build(config)
    summary = run()
    again = train.build(config, workdir=str(run.files.workdir))
    self.assertEqual(again(), json.loads(json.dumps(summary)))
    self._check(stopping.results(again), stopping.results(run))

  @parameterized.parameters('scheme', 'task', 'dataset')
  def test_other_parts_of_the_callers_own_are_rejected(self, part):
    def built(number, workdir):
      dataset = synthetic.make(
        directory=None,
        num_train=192 if part != 'dataset' else 192 + number,
        num_test=64,
        pixels=4,
        channels=1,
        num_classes=10,
      )
      model = mlp.make(
        input_shape=(4, 4, 1),
        num_classes=10,
        seed=number if part == 'task' else 0,
        hidden=(4,),
      )
      config = default.get_config()
      config.epochs = 1.0
      return train.build(
        config,
        workdir=workdir,
        scheme=(asp, bsp)[number if part == 'scheme' else 0].make(
          num_workers=4
        ),
        task=task.classification(
          model, dataset.prepare, lambda inputs, key: inputs
        ),
        dataset=dataset,
      )

    workdir = f'{tempfile.mkdtemp()}/run'
    built(0, workdir)()
    summary = built(0, workdir)()
    self.assertEqual(summary['ended'], 'finished')
    with self.assertRaisesRegex(ValueError, f'own.{part}: expected .*, got'):
      built(1, workdir)

  def test_rows_between_checkpoints_are_not_kept(self):
    expected, steps = stopping.straight('asp')
    workdir = f'{tempfile.mkdtemp()}/run'
    for saved_at, killed_at in (([], steps // 2), ([1], 1), ([2], 2)):
      run = train.build(stopping.eventful('asp'), workdir=workdir)
      with self.assertRaises(stopping.Killed):
        stopping.stop(run, saved_at=saved_at, killed_at=killed_at)
    run = train.build(stopping.eventful('asp'), workdir=workdir)
    run()
    self._check(stopping.results(run), expected)

  def test_files_that_are_not_of_a_run_are_not_touched(self):
    for name in ('metrics.jsonl', 'summary.json', 'events.out.tfevents.7'):
      folder = pathlib.Path(tempfile.mkdtemp())
      (folder / name).write_text('{}')
      with self.assertRaisesRegex(ValueError, f'workdir: .* is .*{name} and'):
        train.build(stopping.eventful('asp'), workdir=str(folder))
      self.assertEqual((folder / name).read_text(), '{}')

  def test_a_scheme_that_cannot_be_saved_is_refused_at_once(self):
    scheme = types.SimpleNamespace(start=lambda time: None)
    with self.assertRaisesRegex(
      ValueError, 'scheme, task: expected plain data'
    ):
      config = stopping.eventful('asp')
      config.sync = default.get_config().sync
      small.build(config, scheme=scheme)

  def test_the_frequency_of_checkpoints_may_change(self):
    run = small.build(stopping.eventful('bsp'))
    run()
    config = stopping.eventful(
      'bsp', checkpoint__keep=5, checkpoint__every_s=7.0
    )
    train.build(config, workdir=str(run.files.workdir))

  def test_another_machine_or_version_is_logged(self):
    run = small.build(stopping.eventful('bsp'))
    run()
    path = run.files.workdir / 'manifest.json'
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {'cores': 999}))
    with self.assertLogs('absl', 'WARNING') as logs:
      train.build(stopping.eventful('bsp'), workdir=str(run.files.workdir))
    self.assertLen(logs.output, 1)
    self.assertIn('began with cores 999 and continues with', logs.output[0])

  def test_two_runs_cannot_share_a_folder(self):
    run = small.build(stopping.eventful('bsp'))
    with self.assertRaisesRegex(ValueError, 'workdir: .* another run writes'):
      train.build(stopping.eventful('bsp'), workdir=str(run.files.workdir))

  def test_a_run_that_is_refused_gives_the_folder_back(self):
    workdir = self._stop()
    other = stopping.eventful('asp')
    other.seed = 7
    refusals = []  # They keep alive what raised them.
    for _ in range(2):
      try:
        train.build(other, workdir=str(workdir))
      except ValueError as error:
        refusals.append(error)
    for refusal in refusals:
      self.assertRegex(str(refusal), 'another config.*seed')

  def test_a_file_that_lost_its_end_is_named(self):
    workdir = self._stop()
    (workdir / 'events.jsonl').write_text('')
    with self.assertRaisesRegex(ValueError, 'events.jsonl to have .* got 0'):
      train.build(stopping.eventful('asp'), workdir=str(workdir))

  def _stop(self):
    workdir = pathlib.Path(tempfile.mkdtemp()) / 'run'
    with self.assertRaises(stopping.Killed):
      run = train.build(stopping.eventful('asp'), workdir=str(workdir))
      stopping.stop(run, saved_at=[30, 60], killed_at=70)
    return workdir

  def _check(self, got, expected):
    for one, other in zip(got['params'], expected['params'], strict=True):
      np.testing.assert_array_equal(one, other)
    for name in ('metrics', 'summary', 'events', 'trace'):
      self.assertEqual(got[name], expected[name])


class ProcessTest(parameterized.TestCase):
  """Real processes and real signals."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    (self.folder / 'config.py').write_text(_CONFIG)

  def _start(self, name):
    command = [sys.executable, 'main.py', f'--config={self.folder}/config.py']
    command.append(f'--workdir={self.folder / name}')
    return commands.start(command, env={'PYTHONPATH': str(_ROOT)})

  def test_a_run_whose_terminal_closes_saves_a_checkpoint(self):
    words = (sys.executable, 'main.py', f'--config={self.folder}/config.py')
    with terminals.start(
      [*words, f'--workdir={self.folder}/run'],
      cwd=_ROOT,
      env=os.environ | {'PYTHONPATH': str(_ROOT)},
    ) as terminal:
      deadline = time.monotonic() + 60
      while not self._newest_checkpoint() and terminal.process.poll() is None:
        terminal.read()
        self.assertLess(time.monotonic(), deadline)
        time.sleep(0.01)
      saved = self._newest_checkpoint()
      terminal.close()
      time.sleep(0.01)  # The kernel has sent SIGHUP; a shell repeats it.
      terminal.process.send_signal(signal.SIGHUP)
      self.assertEqual(terminal.process.wait(60), 128 + signal.SIGHUP)
    self.assertGreater(self._newest_checkpoint(), saved)
    summary = json.loads((self.folder / 'run/summary.json').read_text())
    self.assertEqual(summary['ended'], 'interrupted')
    (record,) = (self.folder / 'run/exits').iterdir()
    self.assertEqual(json.loads(record.read_text())['code'], 129)

  def _stop(self, number):
    """Stops the run once it has saved; returns its exit code and log."""
    before = self._newest_checkpoint()
    with self._start('run') as process:
      deadline = time.monotonic() + 60
      while self._newest_checkpoint() == before and process.code is None:
        self.assertLess(time.monotonic(), deadline)
        time.sleep(0.01)
      process.signal(number)
      return process.wait(), process.text

  def _newest_checkpoint(self):
    """Returns the number of the newest complete checkpoint."""
    return max(
      checkpoints.steps(self.folder / 'run' / 'checkpoints'), default=0
    )

  def test_the_same_command_resumes_after_any_signal(self):
    code, log = self._stop(signal.SIGKILL)
    self.assertEqual(code, -9, log)
    code, log = self._stop(signal.SIGINT)
    self.assertEqual(code, 130, log)
    self.assertIn('Resuming from checkpoint', log)
    self.assertIn('the same command with --workdir=', log)
    summary = json.loads((self.folder / 'run/summary.json').read_text())
    self.assertEqual(summary['ended'], 'interrupted')

    with self.assertLogs('absl', 'INFO') as logs:
      train.build(_long(), workdir=str(self.folder / 'run'))()
    self.assertIn('Resuming from checkpoint', '\n'.join(logs.output))
    train.build(_long(), workdir=str(self.folder / 'straight'))()

    for name in ('events.jsonl', 'trace.json', 'metrics.jsonl', 'summary.json'):
      one, other = (
        [
          line.partition('"wall_')[0]
          for line in (self.folder / run / name).read_text().splitlines()
        ]
        for run in ('run', 'straight')
      )
      self.assertEqual(one, other)


if __name__ == '__main__':
  absltest.main()
