"""Memory for large vectors: used again, and as XLA takes it without a copy."""

import os
from collections.abc import Mapping

import numpy as np
from absl import logging

# For a process that moves large vectors.  glibc would give freed blocks back to
# the kernel, and every new one, of XLA or of gRPC, would cost a page fault for
# each 4 KiB, which takes longer than to fill it.  With these it keeps them, in
# one heap for all threads, of huge pages where the kernel has them.  It reads
# them when a process starts; other C libraries do not.
ENVIRONMENT: Mapping[str, str] = {
  'GLIBC_TUNABLES': ':'.join(
    [
      'glibc.malloc.arena_max=1',
      'glibc.malloc.hugetlb=1',
      f'glibc.malloc.mmap_threshold={2**30}',
      f'glibc.malloc.trim_threshold={2**40}',
    ]
  )
}
_XLA_ALIGNMENT = 64  # Bytes; XLA copies, slowly, what begins elsewhere.


def advise() -> None:
  """Logs how this process could keep its memory, if nobody has seen to it."""
  for name, value in ENVIRONMENT.items():
    if name not in os.environ:
      logging.info('Large vectors move faster with %s=%s', name, value)


def aligned(size_bytes: int) -> np.ndarray:
  """Returns an array, uint8 [size_bytes], that XLA takes without a copy."""
  whole = np.empty(size_bytes + _XLA_ALIGNMENT, np.uint8)
  start = -whole.ctypes.data % _XLA_ALIGNMENT
  return whole[start : start + size_bytes]
