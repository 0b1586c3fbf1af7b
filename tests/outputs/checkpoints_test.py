"""Tests for cluster.checkpoints: damage, safety, and when they are made."""

import functools
import gc
import os
import pathlib
import pickle
import shutil
import subprocess
import tempfile
import threading
import time
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import train
from outputs import checkpoints
from tests.support import small, stopping


@functools.cache
def _stopped():
  """Returns the folder of a run that was killed after two checkpoints."""
  run = small.build(stopping.eventful('asp'))
  try:
    stopping.stop(run, saved_at=[30, 60], killed_at=70)
  except stopping.Killed:
    return run.files.workdir
  raise AssertionError('It has ended.')


# Orbax leaves the other reads that it began to the garbage collector.
@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning',
)
class DamageTest(parameterized.TestCase):
  """The newest checkpoint cannot be read."""

  def setUp(self):
    super().setUp()
    gc.freeze()  # Collections find what this test leaves, and that soon.
    self.workdir = pathlib.Path(tempfile.mkdtemp()) / 'run'
    shutil.copytree(_stopped(), self.workdir)
    self.newest = self.workdir / 'checkpoints' / '1'

  def tearDown(self):
    for _ in range(3):  # Here, where what that finds is filtered.
      gc.collect()
      time.sleep(0.05)
    gc.unfreeze()
    super().tearDown()

  def _cut(self):
    for path, content in _content(self.newest / 'd'):
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

  def _remove_data(self):
    shutil.rmtree(self.newest / 'd')

  @parameterized.parameters(
    ('_cut',), ('_flip',), ('_empty_metadata',), ('_remove_data',)
  )
  def test_the_one_before_it_is_used(self, damage):
    getattr(self, damage)()
    before = _content(self.newest)

    with self.assertLogs('absl', 'WARNING') as logs:
      run = train.build(stopping.eventful('asp'), workdir=str(self.workdir))

    self.assertIn(f'{self.newest} cannot be read; it is', str(logs.output))
    self.assertEqual(_content(self.newest), before)
    run()
    results = stopping.results(run)
    np.testing.assert_equal(results, stopping.straight('asp')[0])

  def test_without_any_that_can_be_read_the_run_is_refused(self):
    self._flip()
    self.newest = self.workdir / 'checkpoints' / '0'
    self._cut()
    with self.assertRaisesRegex(ValueError, r'workdir: .* got \[0, 1\]'):
      train.build(stopping.eventful('asp'), workdir=str(self.workdir))

  def test_what_was_being_written_is_ignored(self):
    shutil.copytree(self.newest, f'{self.newest}.orbax-checkpoint-tmp')
    self.newest.rename(f'{self.newest.parent}/2.orbax-checkpoint-tmp')
    run = train.build(stopping.eventful('asp'), workdir=str(self.workdir))
    run()
    np.testing.assert_equal(stopping.results(run), stopping.straight('asp')[0])


def _content(folder):
  files = [path for path in sorted(folder.rglob('*')) if path.is_file()]
  return [(path, path.read_bytes()) for path in files]


class _Evil:
  def __reduce__(self):
    return os.mkdir, ('evil',)


class PackingTest(parameterized.TestCase):
  def test_an_array_that_is_referred_to_twice_is_stored_once(self):
    array = jax.numpy.arange(5.0)
    tree = checkpoints.frozen({'a': [array, array], 'b': (array, None)})()
    self.assertEqual(sorted(tree), ['array0', 'format', 'plain'])
    state = checkpoints.thawed(tree)
    self.assertIs(state['a'][0], state['b'][0])
    np.testing.assert_array_equal(state['a'][1], np.arange(5.0))

  @parameterized.parameters(
    (_Evil(),), (train.build,), (subprocess.Popen,), ([{'a': os.system}],)
  )
  def test_reading_runs_nothing(self, value):
    tree = checkpoints.frozen(value)()
    with self.assertRaisesRegex(pickle.UnpicklingError, 'Expected plain data'):
      checkpoints.thawed(tree)

  def test_other_formats_are_refused(self):
    tree = checkpoints.frozen(1)()
    tree['format'][0] += 1
    with self.assertRaisesRegex(ValueError, 'format: expected 7, got 8; it'):
      checkpoints.thawed(tree)

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
      stopping.eventful(
        'asp', checkpoint__every_examples=100, checkpoint__keep=3
      )
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
    run = small.build(stopping.eventful('asp', checkpoint__every_examples=0))
    run()
    self.assertFalse((run.files.workdir / 'checkpoints').exists())

  def test_other_threads_run_without_handling_signals(self):
    run = small.build(stopping.eventful('asp'))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    np.testing.assert_equal(stopping.results(run), stopping.straight('asp')[0])


if __name__ == '__main__':
  absltest.main()
