"""Tests of damaged checkpoints: damage is noticed, and takes no memory."""

import collections
import pathlib
import resource
import tempfile

import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from outputs import arrays, serialization
from outputs.checkpoints import Checkpoints
from sync import scheme
from tests.support import small

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


def damaged_files(part, step):
  """Damages the files of a part in every way, one at a time.

  Yields after each damage, and restores the file afterwards.
  """
  for file in sorted(path for path in part.rglob('*') if path.is_file()):
    content = file.read_bytes()
    for other in damaged(content, step):
      file.write_bytes(other)
      yield
    file.write_bytes(content)


def check(path, step):
  """Damages the newest of two checkpoints in every way; returns how often."""
  resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
  expected, count = restored(path), 0
  for _ in damaged_files(path / '1' / 'coordinator', step):
    # The checkpoint before, if not this one: never another state.
    found = restored(path)
    if found != expected:
      raise AssertionError(found)
    count += 1
  return count


class ArraysTest(absltest.TestCase):
  def test_damage_to_a_part_is_noticed_or_has_no_effect(self):
    part = folder() / '1' / 'coordinator'
    expected = str(serialization.thaw(arrays.read(part)))
    messages = collections.Counter()
    for _ in damaged_files(part, 97):
      try:
        found = str(serialization.thaw(arrays.read(part)))
      # What damaged files raise is shown as it is.
      except Exception as error:
        messages[type(error).__name__] += 1
        self.assertNotEmpty(str(error))
      else:
        self.assertEqual(found, expected)
    self.assertGreater(messages.total(), 20)
    self.assertNotIn('MemoryError', messages)

  def test_arrays_survive_a_round_trip(self):
    part = pathlib.Path(tempfile.mkdtemp(), 'arrays')
    tree = {
      'scalar': np.array(3),
      'fortran': np.asfortranarray(np.arange(6.0).reshape(2, 3)),
      'large': np.arange(10**6),
    }
    arrays.write(part, tree)
    np.testing.assert_equal(arrays.read(part), tree)


class RestoreTest(absltest.TestCase):
  """Restores damaged checkpoints in a process with a limit of memory."""

  def _check(self, step):
    code = (
      'from tests.outputs import damage_test as t; '
      f'print(t.check(t.folder(), {step}))'
    )
    done = small.python('-c', code)
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    return int(done.stdout.splitlines()[-1])

  def test_a_damaged_checkpoint_is_never_restored_as_another_state(self):
    self.assertGreater(self._check(199), 10)

  @pytest.mark.soak
  @pytest.mark.timeout(7200)
  def test_damage_to_any_byte_is_noticed(self):
    self.assertGreater(self._check(1), 1000)


if __name__ == '__main__':
  absltest.main()
