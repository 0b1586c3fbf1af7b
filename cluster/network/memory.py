"""Memory for large vectors, which XLA takes without a copy."""

import itertools
import mmap
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

# Settings of glibc for processes that move large vectors.  By default it gives
# freed blocks back to the kernel, so that every new one of XLA or NumPy costs a
# page fault for each 4 KiB, which takes longer than filling it.  With these
# settings it retains them, in one heap for all threads, of huge pages if the
# kernel has them.  It reads the settings when a process starts; other C
# libraries ignore them.
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
_XLA_ALIGNMENT = 64  # Bytes; XLA copies other arrays, slowly.


def advise() -> None:
  """Logs the settings in `ENVIRONMENT` that this process lacks."""
  for name, value in ENVIRONMENT.items():
    if name not in os.environ:
      logging.info('Large vectors move faster with %s=%s', name, value)


def available_bytes() -> int:
  """Returns how much memory of this host can be taken without swapping."""
  for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
    name, _, text = line.partition(':')
    if name == 'MemAvailable':
      return int(text.split()[0]) * 1024
  raise LookupError('/proc/meminfo: expected MemAvailable, got none')


def aligned(size_bytes: int) -> np.ndarray:
  """Returns an array, uint8 [size_bytes], which XLA takes without a copy."""
  whole = np.empty(size_bytes + _XLA_ALIGNMENT, np.uint8)
  start = -whole.ctypes.data % _XLA_ALIGNMENT
  return whole[start : start + size_bytes]


def aligned_arrays(sizes_bytes: Sequence[int]) -> list[np.ndarray]:
  """Returns arrays like `aligned` in one block, in huge pages if there are any.

  For large arrays that are filled once: a page fault for each 4 KiB takes
  longer than to receive them.  The block lasts as long as any of its arrays.

  Args:
    sizes_bytes: Sizes of the arrays.
  """
  ends = list(
    itertools.accumulate(-(-size // _XLA_ALIGNMENT) for size in sizes_bytes)
  )
  pages = mmap.mmap(
    -1,
    max(ends[-1] * _XLA_ALIGNMENT if ends else 0, 1),
    flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
  )
  pages.madvise(mmap.MADV_HUGEPAGE)
  whole = np.frombuffer(pages, np.uint8)
  starts = [0, *ends[:-1]]
  return [
    whole[start * _XLA_ALIGNMENT :][:size]
    for start, size in zip(starts, sizes_bytes, strict=False)
  ]
