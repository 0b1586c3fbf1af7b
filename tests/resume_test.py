"""Tests for checkpoints: a run that was stopped anywhere goes on exactly."""

import functools
import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from unittest import mock

import hypothesis
import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

import train
from cluster import checkpoints
from configs import default
from data import synthetic
from models import mlp, task
from sync import asp, bsp
from tests import small

_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp')
_ROOT = pathlib.Path(__file__).parents[1]
_CONFIG = """
from tests import resume_test

def get_config():
  return resume_test.eventful('elastic', epochs=40.0, checkpoint__every_s=0.05)
"""


class _Killed(BaseException):
  """Nobody catches it, as nobody catches SIGKILL."""


def eventful(scheme, **changed):
  """A config in which something of every kind is in flight at any moment."""
  fields = {
    'sync__name': scheme,
    'epochs': 3.0,
    'eval_every': 0.7,
    'log_every': 7,
    'checkpoint__every_examples': 10**9,
    'data__crop_padding': 1,
    'cluster__speed__name': 'lognormal',
    'cluster__network__server_up_Bps': (2e5,),
    'cluster__network__server_latency_s': (0.003,),
    'cluster__script': ((0.5, 'leave', 1), (1.1, 'join', 1)),
    'optimizer__sgd__momentum': 0.9,
    'route__server__servers': 2,
  }
  return small.config(**fields | changed)


@functools.cache
def _straight(scheme):
  """The results of a run that is not stopped, and its number of steps."""
  run = small.build(eventful(scheme))
  with mock.patch.object(run.cluster, 'step', wraps=run.cluster.step) as step:
    run()
  return _results(run), step.call_count


def _results(run):
  """All that a run leaves, wall times aside."""
  folder = pathlib.Path(run.files.workdir)
  summary = json.loads((folder / 'summary.json').read_text())
  return {
    'params': [
      np.asarray(x) for x in jax.tree.leaves(run.cluster.server.params)
    ],
    'metrics': [_timeless(row) for row in small.rows(run, 'metrics.jsonl')],
    'summary': _timeless(summary),
    'events': (folder / 'events.jsonl').read_bytes(),
    'trace': (folder / 'trace.json').read_bytes(),
  }


def _timeless(row):
  return {k: v for k, v in row.items() if not k.startswith('wall_')}


def _stop(run, *, saved_at, killed_at):
  """Runs until it is killed after `killed_at` steps."""
  done = 0

  def step():
    nonlocal done
    if done == killed_at:
      raise _Killed
    run_step()
    done += 1

  run_step = run.cluster.step
  with (
    mock.patch.object(run.cluster, 'step', step),
    mock.patch.object(run.checkpoints, 'due', lambda _: done in saved_at),
  ):
    run()


class ResumeTest(parameterized.TestCase):
  @parameterized.parameters(*_SCHEMES)
  def test_a_run_that_was_killed_gives_what_an_uninterrupted_one_does(
    self, scheme
  ):
    expected, steps = _straight(scheme)

    @hypothesis.settings(max_examples=5, deadline=None, database=None)
    @hypothesis.given(
      st.lists(st.integers(1, steps - 1), min_size=1, max_size=3, unique=True)
    )
    def check(cuts):
      *saved_at, killed_at = sorted(cuts)
      workdir = f'{tempfile.mkdtemp()}/run'
      run = train.build(eventful(scheme), workdir=workdir)
      with self.assertRaises(_Killed):
        _stop(run, saved_at=saved_at, killed_at=killed_at)
      run = train.build(eventful(scheme), workdir=workdir)
      self.assertEqual(run.sizes is not None, bool(saved_at))
      summary = run()
      self.assertEqual(summary['compilations'], 0)
      self._check(_results(run), expected)

    check()

  def test_it_may_be_stopped_again_and_again(self):
    expected, steps = _straight('elastic')
    workdir = f'{tempfile.mkdtemp()}/run'
    for _ in range(4):
      run = train.build(eventful('elastic'), workdir=workdir)
      with self.assertRaises(_Killed):
        _stop(run, saved_at=[steps // 6], killed_at=steps // 6 + 5)
    run = train.build(eventful('elastic'), workdir=workdir)
    run()
    self._check(_results(run), expected)

  def test_statistics_of_batch_normalisation_are_part_of_it(self):
    config = small.config(
      model__name='alexnet',
      model__alexnet__norm='batch',
      model__alexnet__width=0.05,
      model__mlp__hidden=(128,),
      data__synthetic__pixels=32,
      epochs=0.7,
      checkpoint__every_examples=10**9,
    )
    straight = small.build(config)
    straight()
    workdir = f'{tempfile.mkdtemp()}/run'
    with self.assertRaises(_Killed):
      _stop(train.build(config, workdir=workdir), saved_at=[20], killed_at=25)
    run = train.build(config, workdir=workdir)
    run()
    jax.tree.map(
      np.testing.assert_array_equal,
      run.cluster.server.state()['stats'],
      straight.cluster.server.state()['stats'],
    )
    self._check(_results(run), _results(straight))

  def test_a_finished_run_is_not_run_again(self):
    config = eventful('bsp')
    run = small.build(config)
    summary = run()
    again = train.build(config, workdir=str(run.files.workdir))
    self.assertEqual(again(), json.loads(json.dumps(summary)))
    self._check(_results(again), _results(run))

  @parameterized.parameters('scheme', 'task', 'dataset')
  def test_other_parts_of_ones_own_are_refused(self, part):
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
    expected, steps = _straight('asp')
    workdir = f'{tempfile.mkdtemp()}/run'
    for saved_at, killed_at in (([], steps // 2), ([1], 1), ([2], 2)):
      run = train.build(eventful('asp'), workdir=workdir)
      with self.assertRaises(_Killed):
        _stop(run, saved_at=saved_at, killed_at=killed_at)
    run = train.build(eventful('asp'), workdir=workdir)
    run()
    self._check(_results(run), expected)

  def test_files_that_are_not_of_a_run_are_not_touched(self):
    for name in ('metrics.jsonl', 'summary.json', 'events.out.tfevents.7'):
      folder = pathlib.Path(tempfile.mkdtemp())
      (folder / name).write_text('{}')
      with self.assertRaisesRegex(ValueError, f'workdir: .* is .*{name} and'):
        train.build(eventful('asp'), workdir=str(folder))
      self.assertEqual((folder / name).read_text(), '{}')

  def test_a_scheme_that_cannot_be_saved_is_refused_at_once(self):
    scheme = types.SimpleNamespace(start=lambda time: None)
    with self.assertRaisesRegex(
      ValueError, 'scheme, task: expected plain data'
    ):
      config = eventful('asp')
      config.sync = default.get_config().sync
      small.build(config, scheme=scheme)

  def test_how_often_it_is_saved_may_change(self):
    run = small.build(eventful('bsp'))
    run()
    config = eventful('bsp', checkpoint__keep=5, checkpoint__every_s=7.0)
    train.build(config, workdir=str(run.files.workdir))

  def test_another_machine_or_version_is_told(self):
    run = small.build(eventful('bsp'))
    run()
    path = run.files.workdir / 'manifest.json'
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {'cores': 999}))
    with self.assertLogs('absl', 'WARNING') as logs:
      train.build(eventful('bsp'), workdir=str(run.files.workdir))
    self.assertLen(logs.output, 1)
    self.assertIn('began with cores 999 and goes on with', logs.output[0])

  def test_two_runs_cannot_share_a_folder(self):
    run = small.build(eventful('bsp'))
    with self.assertRaisesRegex(ValueError, 'workdir: .* another run writes'):
      train.build(eventful('bsp'), workdir=str(run.files.workdir))

  def test_a_file_that_lost_its_end_is_named(self):
    workdir = self._stopped()
    (workdir / 'events.jsonl').write_text('')
    with self.assertRaisesRegex(ValueError, 'events.jsonl to have .* got 0'):
      train.build(eventful('asp'), workdir=str(workdir))

  def _stopped(self):
    workdir = pathlib.Path(tempfile.mkdtemp()) / 'run'
    with self.assertRaises(_Killed):
      run = train.build(eventful('asp'), workdir=str(workdir))
      _stop(run, saved_at=[30, 60], killed_at=70)
    return workdir

  def _check(self, got, expected):
    for one, other in zip(got['params'], expected['params'], strict=True):
      np.testing.assert_array_equal(one, other)
    for name in ('metrics', 'summary', 'events', 'trace'):
      self.assertEqual(got[name], expected[name])


# Orbax leaves the other reads that it began to the garbage collector.
@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning',
)
class DamageTest(parameterized.TestCase):
  """The newest checkpoint cannot be read."""

  def setUp(self):
    super().setUp()
    self.workdir = pathlib.Path(tempfile.mkdtemp()) / 'run'
    run = train.build(eventful('asp'), workdir=str(self.workdir))
    with self.assertRaises(_Killed):
      _stop(run, saved_at=[30, 60], killed_at=70)
    self.newest = self.workdir / 'checkpoints' / '1'

  def _cut(self):
    for path, content in _content(self.newest / 'state'):
      path.write_bytes(content[: len(content) // 2])

  def _flip(self):
    for path in self.newest.rglob('d/*'):
      content = bytearray(path.read_bytes())
      for place in range(0, len(content), 50):
        content[place] ^= 4
      path.write_bytes(content)

  def _empty_metadata(self):
    for path in self.newest.rglob('_*METADATA'):
      path.write_bytes(b'')

  def _remove_state(self):
    shutil.rmtree(self.newest / 'state')

  @parameterized.parameters(
    ('_cut',), ('_flip',), ('_empty_metadata',), ('_remove_state',)
  )
  def test_the_one_before_it_is_used(self, damage):
    getattr(self, damage)()
    before = _content(self.newest)

    with self.assertLogs('absl', 'WARNING') as logs:
      run = train.build(eventful('asp'), workdir=str(self.workdir))

    self.assertIn(f'{self.newest} cannot be read; it is', str(logs.output))
    self.assertEqual(_content(self.newest), before)
    run()
    results = _results(run)
    np.testing.assert_equal(results, _straight('asp')[0])

  def test_without_any_that_can_be_read_the_run_is_refused(self):
    self._flip()
    self.newest = self.workdir / 'checkpoints' / '0'
    self._cut()
    with self.assertRaisesRegex(ValueError, r'workdir: .* got \[0, 1\]'):
      train.build(eventful('asp'), workdir=str(self.workdir))

  def test_what_was_being_written_is_ignored(self):
    shutil.copytree(self.newest, f'{self.newest}.orbax-checkpoint-tmp')
    self.newest.rename(f'{self.newest.parent}/2.orbax-checkpoint-tmp')
    run = train.build(eventful('asp'), workdir=str(self.workdir))
    run()
    np.testing.assert_equal(_results(run), _straight('asp')[0])


def _content(folder):
  files = [path for path in sorted(folder.rglob('*')) if path.is_file()]
  return [(path, path.read_bytes()) for path in files]


class _Evil:
  def __reduce__(self):
    return os.mkdir, ('evil',)


class PackingTest(parameterized.TestCase):
  def test_an_array_that_is_referred_to_twice_is_stored_once(self):
    array = jax.numpy.arange(5.0)
    tree = checkpoints._packed({'a': [array, array], 'b': (array, None)})
    self.assertEqual(sorted(tree), ['array0', 'format', 'plain'])
    state = checkpoints._unpacked(tree)
    self.assertIs(state['a'][0], state['b'][0])
    np.testing.assert_array_equal(state['a'][1], np.arange(5.0))

  @parameterized.parameters(
    (_Evil(),), (train.build,), (subprocess.Popen,), ([{'a': os.system}],)
  )
  def test_reading_runs_nothing(self, value):
    tree = checkpoints._packed(value)
    with self.assertRaisesRegex(pickle.UnpicklingError, 'Expected plain data'):
      checkpoints._unpacked(tree)

  def test_other_formats_are_refused(self):
    tree = checkpoints._packed(1)
    tree['format'][0] += 1
    with self.assertRaisesRegex(ValueError, 'format: expected 1, got 2'):
      checkpoints._unpacked(tree)

  @parameterized.parameters(
    ({'every_s': 0.0}, 'every_s: expected more than 0 seconds, got 0.0'),
    ({'every_examples': -1}, 'every_examples: expected at least 0, got -1'),
    ({'keep': 0}, 'keep: expected at least 1, got 0'),
  )
  def test_fields_are_checked(self, changed, message):
    fields = {f'checkpoint__{name}': value for name, value in changed.items()}
    with self.assertRaisesRegex(ValueError, f'config.checkpoint.{message}'):
      small.build(small.config(**fields))


class ScheduleTest(parameterized.TestCase):
  def test_examples_and_the_newest_are_counted(self):
    run = small.build(
      eventful('asp', checkpoint__every_examples=100, checkpoint__keep=3)
    )
    with mock.patch.object(
      run.checkpoints, 'save', wraps=run.checkpoints.save
    ) as save:
      run()
    examples = [call.kwargs['examples'] for call in save.call_args_list]
    self.assertEqual(examples, [104, 208, 312, 416, 520, 576])
    kept = (run.files.workdir / 'checkpoints').iterdir()
    self.assertEqual(sorted(path.name for path in kept), ['3', '4', '5'])

  def test_a_run_may_leave_none(self):
    run = small.build(eventful('asp', checkpoint__every_examples=0))
    run()
    self.assertFalse((run.files.workdir / 'checkpoints').exists())

  def test_other_threads_run_without_handling_signals(self):
    run = small.build(eventful('asp'))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    np.testing.assert_equal(_results(run), _straight('asp')[0])


class ProcessTest(parameterized.TestCase):
  """Real processes and real signals."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    (self.folder / 'config.py').write_text(_CONFIG)

  def _start(self, name):
    command = [sys.executable, 'main.py', f'--config={self.folder}/config.py']
    return subprocess.Popen(
      [*command, f'--workdir={self.folder / name}'],
      cwd=_ROOT,
      env=os.environ | {'PYTHONPATH': str(_ROOT)},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    )

  def _finish(self, name):
    process = self._start(name)
    _, log = process.communicate(timeout=100)
    self.assertEqual(process.returncode, 0, log)
    return log

  @parameterized.parameters(
    (signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)
  )
  def test_the_same_command_goes_on(self, number, code):
    process = self._start('run')
    saved = self.folder / 'run' / 'checkpoints' / '1'
    while not saved.exists() and process.poll() is None:
      time.sleep(0.01)
    process.send_signal(number)
    _, log = process.communicate(timeout=60)
    self.assertEqual(process.returncode, code, log)
    if number != signal.SIGKILL:
      self.assertIn('the same command with --workdir=', log)
      summary = json.loads((self.folder / 'run/summary.json').read_text())
      self.assertEqual(summary['ended'], 'interrupted')

    self.assertIn('Going on from checkpoint', self._finish('run'))
    self._finish('straight')

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
