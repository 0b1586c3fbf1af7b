"""Tests of what a run folder holds in each phase of a run."""

import errno
import json
import os
import pathlib
import resource
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from outputs import manifests
from outputs.files import RunFiles
from tests.support import small

_GROWING = ('metrics.jsonl', 'events.jsonl', 'trace.json')


def _manifest(**changed):
  config = small.timing(outputs__board=False, **changed)
  return manifests.manifest(
    config.to_dict(), {}, measures={}, prefetched_iterations=2
  )


def _started(case, folder, *, sizes=None):
  """Returns the files of a run that has begun, or begun again."""
  files = RunFiles(str(folder))
  case.addCleanup(files.abandon)
  files.claim(_manifest())
  files.rows.check(sizes or {})
  files.begin(num_workers=2, sizes=sizes, examples=0)
  return files


def _write_rows(files, numbers):
  """Writes a row to each file that grows, for each of the numbers."""
  for number in numbers:
    files.rows.metric(
      {'kind': 'log', 'time': float(number), 'examples': number}
    )
    files.rows.event({'event': 'push', 'number': number})
    files.rows.span(0, 'compute', number, number + 1.0, 8)


def _content(folder):
  """Returns the bytes of the files that are not hidden, by name."""
  return {
    path.name: path.read_bytes()
    for path in folder.iterdir()
    if path.is_file() and path.name[0] != '.'
  }


def _names(folder):
  return sorted(path.name for path in folder.iterdir())


def _numbers(folder):
  """Returns the numbers of the rows in each file that grows."""
  metrics, events, trace = ((folder / name).read_text() for name in _GROWING)
  spans = json.loads(trace if trace.endswith(']\n') else trace + ']')
  return (
    [json.loads(line)['examples'] for line in metrics.splitlines()],
    [json.loads(line)['number'] for line in events.splitlines()],
    [round(row['ts'] / 1e6) for row in spans if row['ph'] == 'X'],
  )


class PhasesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')

  def _assert_rows(self, numbers):
    for found in _numbers(self.folder):
      self.assertEqual(found, [*numbers])

  def test_a_folder_that_is_claimed_has_no_rows_and_no_start(self):
    files = RunFiles(str(self.folder))
    self.assertFalse(self.folder.exists())
    files.claim(_manifest())
    self.assertEqual(_names(self.folder), ['.lock', 'manifest.json'])
    manifest = json.loads((self.folder / 'manifest.json').read_text())
    self.assertNotIn('starts', manifest)
    self.assertFalse(files.has_earlier_starts)

  def test_a_run_that_writes_has_its_rows_in_order_and_no_summary(self):
    files = _started(self, self.folder)
    _write_rows(files, range(3))
    files.rows.live({'time': 3.0})
    expected = {'.lock', 'live.json', 'manifest.json', *_GROWING}
    self.assertCountEqual(_names(self.folder), expected)
    self._assert_rows(range(3))
    self.assertIsNone(files.read_summary())

  def test_a_row_of_metrics_is_readable_at_once(self):
    files = _started(self, self.folder)
    _write_rows(files, range(1))
    self.assertTrue((self.folder / 'metrics.jsonl').read_text())

  def test_a_run_that_was_killed_in_a_row_continues_after_the_checkpoint(self):
    straight = _started(self, self.folder.with_name('straight'))
    _write_rows(straight, range(5))
    straight.close({'ended': 'finished'})

    files = _started(self, self.folder)
    _write_rows(files, range(3))
    sizes = files.rows.state()
    _write_rows(files, range(7, 9))
    files.rows.state()
    files.release()  # As the kernel does for a process that was killed.
    for name in _GROWING:
      with (self.folder / name).open('a') as file:
        file.write('{"tim')
    (self.folder / 'summary.json').write_text('{"ended": "stop')
    again = _started(self, self.folder, sizes=sizes)
    self.assertTrue(again.has_earlier_starts)
    self.assertNotIn('summary.json', _names(self.folder))
    _write_rows(again, range(3, 5))
    again.close({'ended': 'finished'})

    expected = _content(self.folder.with_name('straight'))
    got = _content(self.folder)
    for name in (*_GROWING, 'summary.json'):
      self.assertEqual(got[name], expected[name])

  def test_a_return_to_an_earlier_state_drops_the_rows_since(self):
    files = _started(self, self.folder)
    _write_rows(files, range(3))
    sizes = files.rows.state(is_durable=False)
    _write_rows(files, range(7, 9))
    files.rows.rewind(sizes)
    _write_rows(files, range(3, 5))
    files.close({'ended': 'finished'})
    self._assert_rows(range(5))

  def test_the_bytes_of_a_checkpoint_are_on_the_disk(self):
    files = _started(self, self.folder)
    _write_rows(files, range(3))
    flushed = {}

    def flush(handle):
      path = pathlib.Path(os.readlink(f'/proc/self/fd/{handle}'))
      flushed[path.name] = path.stat().st_size

    with mock.patch('os.fsync', flush):
      self.assertEqual(files.rows.state(), flushed)
    self.assertCountEqual(flushed, _GROWING)

  def test_rows_are_on_the_disk_before_a_summary_says_how_the_run_ended(self):
    files = _started(self, self.folder)
    _write_rows(files, range(3))
    calls = []

    def flush(handle):
      calls.append(pathlib.Path(os.readlink(f'/proc/self/fd/{handle}')).name)

    def replace(path, target):
      calls.append(f'to {pathlib.Path(target).name}')
      os.rename(path, target)

    with (
      mock.patch('os.fsync', flush),
      mock.patch('pathlib.Path.replace', replace),
    ):
      files.close({'ended': 'finished'})
    self.assertCountEqual(calls[:3], _GROWING)
    _, written, renamed, folder = calls[2:]
    self.assertIn('summary.json', written)
    self.assertEqual((renamed, folder), ('to summary.json', 'run'))

  def test_a_run_that_has_ended_gives_its_folder_back_with_all_its_rows(self):
    files = _started(self, self.folder)
    _write_rows(files, range(3))
    files.close({'ended': 'finished', 'time_s': 3.0})
    self._assert_rows(range(3))
    other = RunFiles(str(self.folder))
    other.claim(_manifest())
    self.assertEqual(other.read_summary(), {'ended': 'finished', 'time_s': 3.0})

  def test_a_second_end_changes_nothing(self):
    files = _started(self, self.folder)
    _write_rows(files, range(3))
    files.close({'ended': 'finished'})
    before = _content(self.folder)
    with self.assertRaises(ValueError):
      files.close({'ended': 'interrupted'})
    files.release()
    self.assertEqual(_content(self.folder), before)


class TakeoverTest(absltest.TestCase):
  """A process continues the run of another one, which may only be stopped."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    self.first = _started(self, self.folder)
    self.first.record_workers({0: ['cpu']})
    _write_rows(self.first, range(3))
    self.sizes = self.first.rows.state(is_durable=False)
    self.second = RunFiles(str(self.folder))
    self.addCleanup(self.second.abandon)

  def test_copies_change_nothing_until_they_are_published(self):
    before = _content(self.folder)
    self.second.copy(_manifest(), self.sizes)
    _write_rows(self.second, range(7, 9))
    self.second.rows.state(is_durable=False)
    self.assertEqual(_content(self.folder), before)
    self.assertFalse(self.first.is_superseded)

  def test_a_takeover_that_is_given_up_leaves_nothing(self):
    before = _names(self.folder)
    self.second.copy(_manifest(), self.sizes)
    _write_rows(self.second, range(7, 9))
    self.second.abandon()
    self.assertEqual(_names(self.folder), before)
    _write_rows(self.first, range(3, 5))
    self.first.close({'ended': 'finished'})
    for found in _numbers(self.folder):
      self.assertEqual(found, [*range(5)])

  def test_a_takeover_without_space_for_the_copies_leaves_nothing(self):
    before, copy = _names(self.folder), shutil.copyfile

    def copy_one(source, target):
      if pathlib.Path(source).name != 'metrics.jsonl':
        pathlib.Path(target).write_bytes(b'{')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      copy(source, target)

    with (
      mock.patch('shutil.copyfile', copy_one),
      self.assertRaisesRegex(OSError, 'No space left'),
    ):
      self.second.copy(_manifest(), self.sizes)
    self.assertEqual(_names(self.folder), before)

  def test_a_process_that_has_lost_the_folder_changes_nothing_in_it(self):
    _write_rows(self.first, range(7, 9))  # Not in the successor's state.
    self.second.copy(_manifest(), self.sizes)
    (self.folder / 'summary.json').write_text('{"ended": "interrupted"}')
    self.second.take_over(_manifest())
    self.assertTrue(self.first.is_superseded)
    self.assertFalse(self.second.is_superseded)
    self.assertNotIn('summary.json', _names(self.folder))
    before = _content(self.folder)

    _write_rows(self.first, range(9, 12))
    self.first.rows.live({'time': 9.0})
    self.first.record_workers({1: ['NVIDIA H100']})
    self.first.close({'ended': 'interrupted'})
    self.assertEqual(_content(self.folder), before)
    self.assertEqual(
      [name for name in _names(self.folder) if name[0] == '.'], ['.lock']
    )

    _write_rows(self.second, range(3, 5))
    self.second.record_workers({1: ['cpu']})
    self.second.close({'ended': 'finished'})
    for found in _numbers(self.folder):
      self.assertEqual(found, [*range(5)])
    manifest = json.loads((self.folder / 'manifest.json').read_text())
    (start,) = manifest['starts']
    self.assertEqual(start['workers'], {'0': ['cpu'], '1': ['cpu']})

  def test_a_file_that_is_shorter_than_the_state_is_refused(self):
    before = _names(self.folder)
    longer = self.sizes | {'events.jsonl': self.sizes['events.jsonl'] + 1}
    with self.assertRaisesRegex(ValueError, 'events.jsonl to have .* bytes'):
      self.second.copy(_manifest(), longer)
    self.assertEqual(_names(self.folder), before)

  def test_a_folder_whose_manifest_is_lost_is_not_taken_over(self):
    self.second.copy(_manifest(), self.sizes)
    (self.folder / 'manifest.json').write_text('{"form')
    with self.assertRaisesRegex(ValueError, 'has no manifest of the run'):
      self.second.take_over(_manifest())


class FullDiskTest(absltest.TestCase):
  def test_a_full_disk_keeps_what_was_written_and_gives_the_folder_back(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    files = _started(self, folder)
    _write_rows(files, range(3))
    sizes = files.rows.state()
    before = _content(folder)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
      with self.assertRaises(OSError):
        _write_rows(files, range(3, 5))
      with self.assertRaises(OSError):
        files.close({'ended': 'interrupted', 'reason': 'x' * 100})
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for name, content in _content(folder).items():
      self.assertStartsWith(content.decode(), before[name].decode())
    self.assertEqual([each for each in _names(folder) if 'new' in each], [])

    again = _started(self, folder, sizes=sizes)
    _write_rows(again, range(3, 5))
    again.close({'ended': 'finished'})
    for found in _numbers(folder):
      self.assertEqual(found, [*range(5)])


class OtherRunTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_the_folder_of_another_run_stays_as_it_is(self, has_ended):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    files = _started(self, folder)
    _write_rows(files, range(3))
    if has_ended:
      files.close({'ended': 'finished'})
    else:
      files.rows.state()
      files.release()
    before, lock = _content(folder), (folder / '.lock').read_bytes()
    for _ in range(2):  # The refusal gives the folder back.
      with self.assertRaisesRegex(
        ValueError, 'holds a run of another config.  config.seed: expected 0'
      ):
        RunFiles(str(folder)).claim(_manifest(seed=1))
    self.assertEqual(_content(folder), before)
    self.assertEqual(
      json.loads((folder / '.lock').read_bytes())['run'],
      json.loads(lock)['run'],
    )
    RunFiles(str(folder)).claim(_manifest())


if __name__ == '__main__':
  absltest.main()
