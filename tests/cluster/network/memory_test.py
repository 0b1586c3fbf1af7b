"""Tests for cluster.memory."""

import os
import platform
import subprocess
import sys
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from cluster.network import memory
from tests.support import requires

# Takes and frees 100 MB ten times in a thread of several; says how many pages
# the kernel has given after the first times.
_REPEATED = """
import resource, threading
def take():
  block = bytearray(10**8)
  for start in range(0, len(block), 4096):
    block[start] = 1
def faults():
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def repeat(kept):
  take()
  before = faults()
  for _ in range(10):
    take()
  kept.append(faults() - before)
kept = []
for _ in range(2):
  thread = threading.Thread(target=repeat, args=(kept,))
  thread.start()
  thread.join()
print(kept[-1])
"""


def _faults(environ):
  left = {k: v for k, v in os.environ.items() if k not in memory.ENVIRONMENT}
  done = subprocess.run(
    [sys.executable, '-S', '-c', _REPEATED],
    env=left | environ,
    capture_output=True,
    text=True,
    check=True,
  )
  return int(done.stdout)


class EnvironmentTest(absltest.TestCase):
  def test_freed_memory_is_used_again(self):
    requires.host(platform.libc_ver()[0] == 'glibc', 'The libc is not glibc.')
    pages = 10 * 10**8 // 4096
    self.assertGreater(_faults({}), pages * 0.9)
    self.assertLess(_faults(dict(memory.ENVIRONMENT)), pages * 0.01)

  def test_missing_settings_are_logged(self):
    (name,) = memory.ENVIRONMENT
    with (
      mock.patch.dict(os.environ, {name: ''}),
      self.assertNoLogs('absl', level='INFO'),
    ):
      memory.advise()
    with (
      mock.patch.dict(os.environ),
      self.assertLogs('absl', level='INFO') as logs,
    ):
      os.environ.pop(name, None)
      memory.advise()
    self.assertIn(f'{name}={memory.ENVIRONMENT[name]}', logs.output[0])


class AlignedTest(parameterized.TestCase):
  @parameterized.parameters(1, 64, 100, 10**6)
  def test_xla_takes_aligned_arrays_without_a_copy(self, size):
    array = memory.aligned(size)

    self.assertEqual((array.dtype, array.shape), (np.uint8, (size,)))
    self.assertEqual(array.ctypes.data % 64, 0)
    cpu = jax.local_devices(backend='cpu')[0]
    taken = jax.device_put(array, cpu, may_alias=True)
    self.assertEqual(taken.unsafe_buffer_pointer(), array.ctypes.data)


if __name__ == '__main__':
  absltest.main()
