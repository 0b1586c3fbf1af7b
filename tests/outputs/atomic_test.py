"""Tests for outputs.atomic, and that all stored files are written by it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from outputs import atomic
from tests.support import small

# Kills itself before the n-th thing that it does to the folder: flushing a
# file, renaming one, or flushing the folder.
_KILLED = """
import os, pathlib, signal, sys
folder, at, code = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
exec(code.partition('---')[0])
count = 0
def done(name):
  global count
  if str(folder) in str(name):
    if count == at:
      os.kill(os.getpid(), signal.SIGKILL)
    count += 1
fsync = os.fsync
def synced(handle):
  done(os.readlink(f'/proc/self/fd/{handle}'))
  fsync(handle)
os.fsync = synced
sys.addaudithook(
  lambda event, args: done(args[0]) if event == 'os.rename' else None
)
exec(code.partition('---')[2])
"""
_RESULTS = """
from papers import store
---
store.write(folder, 'x', store.Results({}, {}, [{'status': 'new'}]), ['status'])
"""
_PAGE = """
from unittest import mock
from papers import page, schema
schema.names = lambda: []
---
page.write(folder)
"""
_PLAIN = """
from outputs import atomic
---
atomic.write(folder / 'file', 'new')
"""


class KillTest(parameterized.TestCase):
  @parameterized.parameters(
    ('file', 'old', _PLAIN),
    ('x.json', '{"old": 1}', _RESULTS),
    ('RESULTS.md', 'old', _PAGE),
  )
  def test_a_kill_during_a_write_leaves_the_old_file_complete(
    self, name, old, code
  ):
    folder = pathlib.Path(tempfile.mkdtemp())
    for at in (0, 1):  # Before the file is flushed, and before it is renamed.
      (folder / name).write_text(old)
      done = small.python('-c', _KILLED, str(folder), str(at), code)
      self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
      self.assertEqual((folder / name).read_text(), old)
    # It has been renamed before its folder is flushed.
    done = small.python('-c', _KILLED, str(folder), '2', code)
    self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
    self.assertNotEqual((folder / name).read_text(), old)
    # The remaining file is hidden, and does not prevent the next write.
    shown = [p.name for p in folder.iterdir() if p.name[0] != '.']
    self.assertEqual(shown, [name])
    done = small.python('-c', _KILLED, str(folder), '9', code)
    self.assertEqual(done.returncode, 0, done.stderr)


class WriteTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def test_the_folder_is_flushed_after_the_file_was_renamed(self):
    path, seen = self.folder / 'file', []

    def synced(handle):
      name = os.readlink(f'/proc/self/fd/{handle}')
      seen.append((os.path.isdir(name), path.exists()))

    with mock.patch.object(os, 'fsync', synced):
      atomic.write(path, b'new')
    self.assertEqual(seen, [(False, False), (True, True)])

  def test_a_failed_write_leaves_the_old_file_unchanged(self):
    path = self.folder / 'file'
    atomic.write(path, 'old')
    with (
      mock.patch.object(os, 'fsync', side_effect=OSError(28, 'No space')),
      self.assertRaisesRegex(OSError, 'No space'),
    ):
      atomic.write(path, 'new')
    self.assertEqual(path.read_text(), 'old')
    self.assertEqual([p.name for p in self.folder.iterdir()], ['file'])

  def test_links_and_devices_stay_what_they_are(self):
    target, link = self.folder / 'target', self.folder / 'link'
    target.write_text('old')
    link.symlink_to(target)
    atomic.write(link, 'new')
    self.assertTrue(link.is_symlink())
    self.assertEqual(target.read_text(), 'new')
    code = "from outputs import atomic; atomic.write('/dev/stdout', 'decision')"
    done = subprocess.run(
      [sys.executable, '-c', code],
      stdout=subprocess.PIPE,
      check=True,
      env=os.environ | {'PYTHONPATH': os.getcwd()},
    )
    self.assertEqual(done.stdout, b'decision')

  def test_the_remains_of_an_interrupted_write_are_named_and_ignored(self):
    path = self.folder / 'summary.json'
    self.assertIsNone(atomic.read_object(path))
    whole = json.dumps({'ended': 'finished', 'é': 1.5}, ensure_ascii=False)
    data = whole.encode()
    atomic.write(path, whole)
    self.assertEqual(atomic.read_object(path), json.loads(whole))
    for left in (b'', data[:9], data[:-6], b'\0' * len(data), b'[1, 2]'):
      path.write_bytes(left)
      with self.assertLogs('absl', 'WARNING') as logs:
        self.assertIsNone(atomic.read_object(path))
      self.assertIn(str(path), logs.output[0])


if __name__ == '__main__':
  absltest.main()
