"""Tests of checkpoints: damage, deaths while one is written, schedules."""

import functools
import itertools
import pathlib
import shutil
import tempfile
import threading
import time
from concurrent.futures import Future
from unittest import mock

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import train
from outputs import checkpoints, serialization
from outputs.checkpoints import Checkpoints
from tests.support import crashes, small, stopping

_KEEP = 2


@functools.cache
def _stopped():
  """Returns the folder of a run that was killed after two checkpoints."""
  run = small.build(stopping.eventful('asp'))
  try:
    stopping.stop(run, saved_at=[30, 60], killed_at=70)
  except stopping.Killed:
    run.checkpoints.close()
    return run.files.workdir
  raise AssertionError('It has ended.')


def _contents(part):
  return {file: file.read_bytes() for file in part.rglob('*') if file.is_file()}


def _largest(part):
  contents = _contents(part)
  return max(contents, key=lambda file: len(contents[file]))


class DamageTest(parameterized.TestCase):
  """The newest checkpoint cannot be read."""

  def setUp(self):
    super().setUp()
    self.workdir = pathlib.Path(tempfile.mkdtemp()) / 'run'
    shutil.copytree(_stopped(), self.workdir)
    self.part = self.workdir / 'checkpoints' / '1' / 'coordinator'
    self.file = _largest(self.part)

  def _cut(self):
    content = self.file.read_bytes()
    self.file.write_bytes(content[: len(content) // 2])

  def _flip(self):
    content = bytearray(self.file.read_bytes())
    for place in range(0, len(content), 50):
      content[place] ^= 4
    self.file.write_bytes(content)

  def _empty(self):
    for file in _contents(self.part):
      file.write_bytes(b'')

  def _lose(self):
    self.file.unlink()

  @parameterized.parameters(('_cut',), ('_flip',), ('_empty',), ('_lose',))
  def test_the_checkpoint_before_a_damaged_one_is_used(self, damage):
    getattr(self, damage)()
    before = _contents(self.part)

    with self.assertLogs('absl', 'WARNING') as logs:
      run = train.build(stopping.eventful('asp'), workdir=str(self.workdir))

    self.assertIn('checkpoints/1 cannot be read; it is', str(logs.output))
    self.assertEqual(_contents(self.part), before)
    run()
    results = stopping.results(run)
    np.testing.assert_equal(results, stopping.straight('asp')[0])

  def test_a_run_without_any_readable_checkpoint_is_refused(self):
    self._flip()
    self.part = self.workdir / 'checkpoints' / '0' / 'coordinator'
    self._empty()
    with self.assertRaisesRegex(ValueError, r'workdir: .* got \[0, 1\]'):
      train.build(stopping.eventful('asp'), workdir=str(self.workdir))

  def test_a_run_resumes_in_a_folder_whose_name_is_a_pattern(self):
    folder = self.workdir.rename(self.workdir.with_name('[x] ä*'))
    run = train.build(stopping.eventful('asp'), workdir=str(folder))
    run()
    np.testing.assert_equal(stopping.results(run), stopping.straight('asp')[0])
    newest = checkpoints.steps(folder / 'checkpoints')[-1]
    self.assertGreater(newest, 1)
    self.assertIn(
      checkpoints.COORDINATOR,
      checkpoints.read(folder / 'checkpoints', newest),
    )

  def test_an_incomplete_checkpoint_is_ignored_and_removed(self):
    for name in ('2/server0', '2/.coordinator.new', '1/.worker0.new'):
      (self.workdir / 'checkpoints' / name / 'd').mkdir(parents=True)
    run = train.build(stopping.eventful('asp'), workdir=str(self.workdir))
    self.assertFalse((self.workdir / 'checkpoints' / '2').exists())
    self.assertFalse((self.workdir / 'checkpoints/1/.worker0.new').exists())
    run()
    np.testing.assert_equal(stopping.results(run), stopping.straight('asp')[0])


def _save(writer, *versions):
  for version in versions:
    writer.save({'version': version, 'array': jnp.full(5, version)})


@functools.cache
def _two_saves():
  """Returns a folder with checkpoints of the versions 1 and 2."""
  directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'
  writer = Checkpoints(directory, keep=_KEEP)
  _save(writer, 1, 2)
  writer.close()
  return directory


class DeathTest(absltest.TestCase):
  """A process dies, or a disk is full, while a checkpoint is written."""

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'

  def test_a_death_at_any_step_of_a_save_leaves_a_complete_checkpoint(self):
    for step in itertools.count():
      happened, error = self._crash(step)
      if not happened:
        break
      self.assertIsInstance(error, crashes.Killed)
      self._check_continues()
      shutil.rmtree(self.directory)
    self.assertGreater(step, 8)

  def test_a_full_disk_ends_a_run_with_one_message_and_loses_nothing(self):
    failures = 0
    for step in itertools.count(1):
      self.directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'
      happened, error = self._crash(step, crashes.disk_full(self.directory))
      if not happened:
        break
      if error is None:  # Nothing that the checkpoint needs is missing.
        self.assertEqual(self._writer().restore()['version'], 3)
        continue
      failures += 1
      expected = r'Checkpoint 2 in .* could not be written; .*No space left'
      self.assertRegex(str(error), expected)
      self.assertEqual(self._names(), ['0', '1'])
      self._check_continues()
    self.assertGreater(failures, 8)

  def test_a_folder_that_has_vanished_is_made_again(self):
    writer = self._writer()
    _save(writer, 1)
    writer.close()
    shutil.rmtree(self.directory)
    writer = self._writer()
    _save(writer, 2, 3)
    writer.close()
    self.assertEqual(self._names(), ['0', '1'])

  def test_a_checkpoint_that_cannot_be_removed_is_logged(self):
    writer = self._writer()
    fails = mock.patch.object(shutil, 'rmtree', side_effect=PermissionError)
    _save(writer, 1, 2)
    with fails, self.assertLogs('absl', 'WARNING') as logs:
      _save(writer, 3)
      writer.close()
    self.assertIn('checkpoints/0 could not be removed', str(logs.output))
    self.assertEqual(checkpoints.steps(self.directory), [1, 2])

  def _crash(self, step, error=None):
    """Lets a step of a third save fail.

    Returns:
      Whether there was such a step, and the error of the save.
    """
    shutil.copytree(_two_saves(), self.directory)
    writer = self._writer()
    crash = crashes.Crash(
      self.directory, at=step, dies=lambda thread: True, error=error
    )
    with crashes.inject(crash):
      try:
        _save(writer, 3)
        writer.close()
      except (crashes.Killed, OSError) as raised:
        self.assertTrue(crash.happened)
        return True, raised
    return crash.happened, None

  def _check_continues(self):
    """Checks that the newest checkpoint is complete, and later ones succeed."""
    left = max(int(name) for name in self._names())
    writer = self._writer()
    state = writer.restore()
    self.assertIn(state['version'], (2, 3))
    np.testing.assert_array_equal(state['array'], np.full(5, state['version']))
    _save(writer, 4, 5)
    writer.close()
    self.assertEqual(self._names(), [str(left + 1), str(left + 2)])
    self.assertEqual(self._writer().restore()['version'], 5)

  def _writer(self):
    return Checkpoints(self.directory, keep=_KEEP)

  def _names(self):
    return sorted(path.name for path in self.directory.iterdir())


class ReadTest(absltest.TestCase):
  def test_all_parts_of_a_checkpoint_are_read_by_one_function(self):
    directory = pathlib.Path(tempfile.mkdtemp())
    for part in ('server0', 'worker3'):
      tree = serialization.freeze({'name': part})()
      checkpoints.write(directory, 0, part, tree)
    self.assertEqual(checkpoints.steps(directory), [])
    writer = Checkpoints(directory, keep=1, required=['server0'])
    tree = serialization.freeze({'parts': ['server0'], 'state': 7})()
    checkpoints.write(directory, 0, checkpoints.COORDINATOR, tree)

    found = checkpoints.read(directory, 0)
    self.assertEqual(
      found,
      {
        'coordinator': 7,
        'server0': {'name': 'server0'},
        'worker3': {'name': 'worker3'},
      },
    )
    self.assertEqual(writer.restore(), 7)
    self.assertEqual(
      writer.restored, (0, ['coordinator', 'server0', 'worker3'])
    )
    writer.close()

  def test_a_checkpoint_without_a_required_part_is_not_readable(self):
    directory = pathlib.Path(tempfile.mkdtemp())
    tree = serialization.freeze({'parts': ['server0'], 'state': 7})()
    checkpoints.write(directory, 0, checkpoints.COORDINATOR, tree)
    with self.assertRaisesRegex(OSError, 'server0'):
      checkpoints.read(directory, 0)


class RewindTest(absltest.TestCase):
  """A run that returns to an earlier state, or another process continues."""

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'
    self.part = Future()
    self.checkpoints = Checkpoints(
      self.directory,
      keep=2,
      save_others=lambda number: [self.part],
      waits=False,
    )

  def _save(self, count):
    for number in range(count):
      self.checkpoints.save({'number': number})
      self.part.set_result(None)
      while self.checkpoints.is_writing():
        time.sleep(0.01)
      self.part = Future()

  def _reopen(self):
    again = Checkpoints(self.directory, keep=2)
    return again.restore(), again.newest

  def test_later_checkpoints_do_not_count_and_go_at_the_next_save(self):
    self._save(3)
    self.checkpoints.take_over(1)
    self.assertEqual(checkpoints.steps(self.directory), [1])
    self.assertTrue((self.directory / '2').exists())  # Others may write to it.
    self._save(1)
    names = sorted(path.name for path in self.directory.iterdir())
    self.assertEqual(names, ['1', '4'])
    self.assertEqual(self._reopen(), ({'number': 0}, 4))

  def test_a_checkpoint_that_just_completes_does_not_count(self):
    self._save(1)
    write = checkpoints.write

    def write_slowly(*args):
      time.sleep(0.2)
      write(*args)

    with mock.patch.object(checkpoints, 'write', write_slowly):
      self.checkpoints.save({'number': 'later'})
      self.part.set_result(None)
      self.checkpoints.take_over(0)
    self.assertEqual(self._reopen()[0], {'number': 0})

  def test_an_abandoned_checkpoint_does_not_count_and_its_number_is_gone(self):
    self._save(1)
    self.checkpoints.save({'number': 'later'})
    checkpoints.write(
      self.directory, 1, 'server0', serialization.freeze({'x': 1})()
    )
    self.part.set_exception(checkpoints.Abandoned('a server is lost'))
    self.checkpoints.close()
    self.assertEqual(self._reopen(), ({'number': 0}, 1))


class ScheduleTest(parameterized.TestCase):
  def test_checkpoints_are_saved_by_examples_and_the_newest_are_kept(self):
    run = small.build(
      stopping.eventful(
        'asp', checkpoint__every_examples=100, checkpoint__keep=3
      )
    )
    with mock.patch.object(
      run.checkpoints, 'save', wraps=run.checkpoints.save
    ) as save:
      run()
    self.assertEqual(save.call_count, 6)
    directory = run.files.workdir / 'checkpoints'
    found = [
      checkpoints.read(directory, step)['coordinator']['recorder']
      for step in checkpoints.steps(directory)
    ]
    self.assertEqual(
      [state['accounting'].examples for state in found], [416, 520, 576]
    )
    names = sorted(path.name for path in directory.iterdir())
    self.assertEqual(names, ['3', '4', '5'])

  def test_a_run_may_save_no_checkpoint(self):
    run = small.build(stopping.eventful('asp', checkpoint__every_examples=0))
    run()
    self.assertFalse((run.files.workdir / 'checkpoints').exists())

  def test_a_run_in_another_thread_handles_no_signals(self):
    run = small.build(stopping.eventful('asp'))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    np.testing.assert_equal(stopping.results(run), stopping.straight('asp')[0])


if __name__ == '__main__':
  absltest.main()
