"""Tests for reading checkpoints: every damage is noticed, and costs nothing."""

import collections
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from outputs import arrays, checkpoints, stores
from outputs.checkpoints import Checkpoints
from sync import scheme
from tests.support import accelerators

_ROOT = pathlib.Path(__file__).parents[2]
_NEVER = {'every_s': float('inf'), 'every_examples': 0, 'keep': 2}
_MEMORY_BYTES = 2**33  # Of addresses; JAX itself takes half of it.


def state():
  """Returns a small state with something of everything."""
  return {
    'members': scheme.make_members(3),
    'counts': collections.Counter('aab'),
    'numpy': [np.arange(3), np.float32(1.5)],
    'arrays': [jnp.arange(4.0), jnp.ones((2, 1))],
  }


def folder(store):
  """Returns a new folder with two checkpoints of the state."""
  path = pathlib.Path(tempfile.mkdtemp())
  if store == 'Npz':
    for step in range(2):
      stores.write(path / str(step), checkpoints.frozen(state())())
    return path
  writer = Checkpoints(path, **_NEVER)
  for _ in range(2):
    writer.save(state(), examples=0)
  writer.close()
  return path


def restored(path, store):
  """Returns what can be read of the newest checkpoint, as text."""
  if store == 'Npz':

    def read(step):
      return checkpoints.thawed(stores.read(path / str(step)))

    return str(checkpoints.newest(path, stores.steps(path), read))
  reader = Checkpoints(path, **_NEVER)
  try:
    return str(reader.restore())
  finally:
    reader.close()


def damaged(content, step=1):
  """Yields a content with each byte flipped, and cut at each."""
  for place in range(0, len(content), step):
    for bit in (1 << place % 8, 0xFF):
      flipped = bytearray(content)
      flipped[place] ^= bit
      yield bytes(flipped)
    yield content[:place]


def check(path, store, step):
  """Damages the newest of two checkpoints in every way; returns how often."""
  resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
  whole, count = restored(path, store), 0
  for file in sorted((path / '1').rglob('*')):
    if file.is_dir():
      continue
    content = file.read_bytes()
    for other in damaged(content, step):
      file.write_bytes(other)
      # The one before, if not this one: never another state.
      found = restored(path, store)
      if found != whole:
        raise AssertionError(f'{file}: {found}')
      count += 1
    file.write_bytes(content)
  return count


class NpzTest(parameterized.TestCase):
  def test_every_byte_flipped_or_cut_is_noticed(self):
    file = folder('Npz') / '1' / 'arrays.npz'
    content = file.read_bytes()
    whole = str(checkpoints.thawed(arrays.read(file)))
    messages = collections.Counter()
    for other in damaged(content, 7):
      file.write_bytes(other)
      try:
        found = str(checkpoints.thawed(arrays.read(file)))
      # What damaged files raise is shown as it is.
      except Exception as error:
        messages[type(error).__name__] += 1
        self.assertNotEmpty(str(error))
      else:
        self.assertEqual(found, whole)  # What nobody reads has been flipped.
    self.assertGreater(messages.total(), len(content) / 7)
    self.assertNotIn('MemoryError', messages)

  def test_sizes_that_are_not_there_take_no_memory(self):
    file = pathlib.Path(tempfile.mkdtemp(), 'arrays.npz')
    np.savez(file, one=np.zeros(1000, np.uint8))
    content = file.read_bytes()
    for before, after in (
      (b"'shape': (1000,)", b"'shape': (9**9,)"),
      (b"'shape': (1000,)", b"'shape': (9999,)"),
      (b"'descr': '|u1'", b"'descr': '<f8'"),
      (b"'descr': '|u1'", b"'descr': '|O1'"),
    ):
      self.assertIn(before, content)
      file.write_bytes(content.replace(before, after))
      with self.assertRaises((ValueError, zipfile.BadZipFile)):
        arrays.read(file)

  def test_arrays_come_back(self):
    file = pathlib.Path(tempfile.mkdtemp(), 'arrays.npz')
    tree = {
      'zero': np.zeros((0, 3), np.float32),
      'scalar': np.array(3),
      'fortran': np.asfortranarray(np.arange(6.0).reshape(2, 3)),
      'large': np.arange(10**6),
    }
    np.savez(file, **tree)
    np.testing.assert_equal(arrays.read(file), tree)


class AllTest(parameterized.TestCase):
  """In a process of its own, as it could end that, with a limit of memory."""

  def _check(self, store, step):
    code = (
      'import sys, pathlib; from tests.outputs import damage_test as t; '
      f'print(t.check(t.folder({store!r}), {store!r}, {step}))'
    )
    done = subprocess.run(
      [sys.executable, '-c', code],
      cwd=_ROOT,
      env=os.environ | accelerators.inherited(),
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    return int(done.stdout.splitlines()[-1])

  def test_some_bytes_of_what_orbax_writes(self):
    self.assertGreater(self._check('Orbax', 400), 10)

  @parameterized.parameters('Npz', 'Orbax')
  @pytest.mark.soak
  @pytest.mark.timeout(7200)
  def test_all_bytes(self, store):
    self.assertGreater(self._check(store, 1), 1000)


if __name__ == '__main__':
  absltest.main()
