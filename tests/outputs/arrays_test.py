"""Tests of folders of arrays: paths of all kinds, absurd descriptions."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
from unittest import mock

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
from absl.testing import absltest, parameterized

from outputs import arrays

_ARRAYS = {
  'array0': np.arange(6.0).reshape(2, 3),
  'array1': np.ones((), ml_dtypes.bfloat16),
  'plain': np.zeros(5, np.uint8),
}
_ROUND_TRIP = """
import pathlib, sys
import numpy as np
from outputs import arrays
folder = pathlib.Path(sys.argv[1])
arrays.write(folder, {'a': np.arange(3.0)})
assert arrays.read(folder)['a'].tolist() == [0, 1, 2]
"""


class PathTest(parameterized.TestCase):
  @parameterized.parameters(
    'a', 'a b', 'a[1]', '[x]', 'a*', 'a?b', 'a\\b', '{a,b}', 'ä', 'a%20b', '~'
  )
  def test_arrays_in_a_folder_of_any_name_can_be_read(self, name):
    home = pathlib.Path(tempfile.mkdtemp())
    folder = home / name / 'new'
    folder.parent.mkdir()
    arrays.write(folder, _ARRAYS)
    moved = folder.rename(home / name / 'part')
    found = arrays.read(moved)
    self.assertEqual(found.keys(), _ARRAYS.keys())
    for key, array in _ARRAYS.items():
      self.assertEqual(found[key].dtype, array.dtype)
      np.testing.assert_array_equal(found[key], array)
    self.assertEqual(os.listdir(home), [name])
    self.assertEqual(os.listdir(home / name), ['part'])

  def test_a_relative_path_below_such_a_folder_is_read(self):
    home = pathlib.Path(tempfile.mkdtemp(), 'a[1]')
    home.mkdir()
    before = os.getcwd()
    os.chdir(home)
    try:
      arrays.write(pathlib.Path('part'), _ARRAYS)
      self.assertEqual(arrays.read(pathlib.Path('part')).keys(), _ARRAYS.keys())
    finally:
      os.chdir(before)

  def test_a_locale_that_is_not_utf_8_names_the_same_folder(self):
    folder = os.path.join(tempfile.mkdtemp(), 'wörk', 'part')
    os.mkdir(os.path.dirname(folder))
    settings = {
      'LC_ALL': 'C',
      'PYTHONUTF8': '0',
      'PYTHONCOERCECLOCALE': '0',
      'JAX_PLATFORMS': 'cpu',
    }
    subprocess.run(
      [sys.executable, '-c', _ROUND_TRIP, folder],
      check=True,
      env=os.environ | settings,
      cwd=pathlib.Path(__file__).parents[2],
    )
    self.assertEqual(arrays.read(pathlib.Path(folder))['a'].tolist(), [0, 1, 2])
    self.assertLen(os.listdir(pathlib.Path(folder).parents[1]), 1)

  def test_without_a_place_for_a_link_the_error_names_the_option(self):
    home = pathlib.Path(tempfile.mkdtemp(), 'a[1]')
    home.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(home)
    try:
      with self.assertRaisesRegex(OSError, '--workdir: expected .* TMPDIR'):
        arrays.write(home / 'part', _ARRAYS)
    finally:
      tempfile.tempdir = before
    self.assertEmpty(os.listdir(home))


class DescriptionTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self._folder = pathlib.Path(tempfile.mkdtemp(), 'part')

  def _describe(self, **shapes):
    """Lets Orbax find arrays of other shapes."""
    found = {
      name: types.SimpleNamespace(shape=shape, dtype=np.dtype('float64'))
      for name, shape in shapes.items()
    }
    metadata = types.SimpleNamespace(item_metadata=found)
    return mock.patch.object(
      ocp.Checkpointer, 'metadata', lambda *arguments: metadata
    )

  def test_what_cannot_be_found_again_was_not_written(self):
    for shapes in ({}, {'a': (2,)}):
      with (
        self._describe(**shapes),
        self.assertRaisesRegex(OSError, '--workdir: .* can be read'),
      ):
        arrays.write(self._folder, {'a': np.ones(3)})
      shutil.rmtree(self._folder)

  def test_arrays_larger_than_their_files_are_not_read(self):
    arrays.write(self._folder, {'a': np.ones(3)})
    with (
      self._describe(a=(1 << 40, 1 << 40)),
      self.assertRaisesRegex(ValueError, 'bytes of arrays'),
    ):
      arrays.read(self._folder)

  def test_zeros_take_their_place_on_the_disk(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'part')
    arrays.write(folder, {'a': np.zeros(100_000)})
    self.assertEqual(arrays.read(folder)['a'].shape, (100_000,))


if __name__ == '__main__':
  absltest.main()
