"""Tests of damaged checkpoints: damage is noticed, and takes no memory."""

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

from outputs import arrays, serialization
from outputs.checkpoints import Checkpoints
from sync import scheme
from tests.support import accelerators

_ROOT = pathlib.Path(__file__).parents[2]
_MEMORY_BYTES = (
  2**33
)  # Limit of the address space; JAX itself takes half of it.


def state():
  """Returns a small state with a value of each kind."""
  return {
    'members': scheme.make_members(3),
    'counts': collections.Counter('aab'),
    'numpy': [np.arange(3), np.float32(1.5)],
    'arrays': [jnp.arange(4.0), jnp.ones((2, 1))],
  }


def folder():
  """Returns a new folder with two checkpoints of the state."""
  path = pathlib.Path(tempfile.mkdtemp())
  writer = Checkpoints(path, keep=2)
  for _ in range(2):
    writer.save(state())
  writer.close()
  return path


def restored(path):
  """Returns the newest readable checkpoint, as text."""
  reader = Checkpoints(path, keep=2)
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


def check(path, step):
  """Damages the newest of two checkpoints in every way; returns how often."""
  resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
  whole, count = restored(path), 0
  file = path / '1' / 'coordinator.npz'
  content = file.read_bytes()
  for other in damaged(content, step):
    file.write_bytes(other)
    # The checkpoint before, if not this one: never another state.
    found = restored(path)
    if found != whole:
      raise AssertionError(f'{file}: {found}')
    count += 1
  return count


class ArraysTest(parameterized.TestCase):
  def test_a_flipped_or_missing_byte_is_noticed(self):
    file = folder() / '1' / 'coordinator.npz'
    content = file.read_bytes()
    whole = str(serialization.thaw(arrays.read(file)))
    messages = collections.Counter()
    for other in damaged(content, 7):
      file.write_bytes(other)
      try:
        found = str(serialization.thaw(arrays.read(file)))
      # The errors of damaged files are shown as they are.
      except Exception as error:
        messages[type(error).__name__] += 1
        self.assertNotEmpty(str(error))
      else:
        self.assertEqual(found, whole)  # A byte without meaning was flipped.
    self.assertGreater(messages.total(), len(content) / 7)
    self.assertNotIn('MemoryError', messages)

  def test_false_sizes_take_no_memory(self):
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

  def test_arrays_survive_a_round_trip(self):
    file = pathlib.Path(tempfile.mkdtemp(), 'arrays.npz')
    tree = {
      'zero': np.zeros((0, 3), np.float32),
      'scalar': np.array(3),
      'fortran': np.asfortranarray(np.arange(6.0).reshape(2, 3)),
      'large': np.arange(10**6),
    }
    np.savez(file, **tree)
    np.testing.assert_equal(arrays.read(file), tree)


class RestoreTest(absltest.TestCase):
  """Restores damaged checkpoints in a process with a limit of memory."""

  def _check(self, step):
    code = (
      'from tests.outputs import damage_test as t; '
      f'print(t.check(t.folder(), {step}))'
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

  def test_a_damaged_checkpoint_is_never_restored_as_another_state(self):
    self.assertGreater(self._check(40), 10)

  @pytest.mark.soak
  @pytest.mark.timeout(7200)
  def test_damage_to_any_byte_is_noticed(self):
    self.assertGreater(self._check(1), 1000)


if __name__ == '__main__':
  absltest.main()
