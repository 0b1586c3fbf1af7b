"""Tests of the folder of compiled programs that stays between test runs."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from tests.support import compiled, small

_PROGRAM = 'import jax; jax.jit(lambda x: x * 3 + 1)(2.0)'


class CompiledTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _write(self, name, *, age_s):
    """Writes an entry of 100 bytes that is taken for whole if it is old."""
    path = self.folder / name
    path.write_bytes(bytes(100))
    time = path.stat().st_mtime - age_s
    os.utime(path, (time, time))

  def _entries(self):
    return {path.name for path in self.folder.glob('*/*-cache')}

  def test_what_jax_has_written_stays_unless_it_was_cut_short(self):
    cache = self.folder / 'a'
    small.python(
      '-c', _PROGRAM, JAX_COMPILATION_CACHE_DIR=str(cache)
    ).check_returncode()
    entries = self._entries()
    self.assertNotEmpty(entries)
    compiled.prune(self.folder, 2**30)
    self.assertEqual(self._entries(), entries)

    cut = min(cache.glob('*-cache'))
    cut.write_bytes(cut.read_bytes()[:-1])
    compiled.prune(self.folder, 2**30)
    self.assertEqual(self._entries(), entries - {cut.name})

  def test_entries_that_were_read_longest_ago_go_first(self):
    for cache in ('a', 'b'):
      (self.folder / cache).mkdir()
    compiled.prune(self.folder, 0)
    for name, age_s in [('a/1-cache', 30), ('b/2-cache', 20), ('a/3-cache', 9)]:
      self._write(name, age_s=age_s)

    compiled.prune(self.folder, 200)
    self.assertEqual(self._entries(), {'2-cache', '3-cache'})

    times = (self.folder / 'a/3-cache').stat()
    os.utime(self.folder / 'b/2-cache', (times.st_atime + 5, times.st_mtime))
    compiled.prune(self.folder, 100)
    self.assertEqual(self._entries(), {'2-cache'})

  def test_a_folder_that_is_not_there_is_not_needed(self):
    compiled.prune(self.folder / 'no', 0)
    self.assertFalse((self.folder / 'no').exists())

  def test_other_processors_versions_and_cores_have_other_caches(self):
    text = 'processor\t: 0\nmodel name\t: A\ncpu MHz\t\t: {}\nflags\t\t: {}\n'
    path, names = self.folder / 'cpuinfo', []
    with mock.patch.object(compiled, '_CPUINFO', path):
      for values in [(1, 'fma'), (2, 'fma'), (1, 'fma avx')]:
        path.write_text(text.format(*values))
        names.append(compiled.subfolder())
      self.assertEqual(names[0], names[1])
      self.assertNotEqual(names[0], names[2])
      with mock.patch.object(os, 'sched_getaffinity', return_value={0, 1, 2}):
        self.assertNotEqual(compiled.subfolder(), names[2])
      with mock.patch.object(compiled.metadata, 'version', return_value='9'):
        self.assertNotEqual(compiled.subfolder(), names[2])

  def test_the_folder_is_in_the_cache_of_the_user(self):
    found = compiled.root({'XDG_CACHE_HOME': '/cache'})
    self.assertEqual(found, pathlib.Path('/cache/syncopate/tests'))
    found = compiled.root({})
    self.assertEqual(found, pathlib.Path.home() / '.cache/syncopate/tests')


if __name__ == '__main__':
  absltest.main()
