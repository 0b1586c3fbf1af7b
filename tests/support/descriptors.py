"""Exhausted file descriptors, for tests."""

import contextlib
import os
import resource


@contextlib.contextmanager
def exhaust(free=0):
  """Occupies all file descriptors but `free` within the context."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  occupied = []
  resource.setrlimit(resource.RLIMIT_NOFILE, (_highest() + 16, hard))
  try:
    with contextlib.suppress(OSError):
      while True:
        occupied.append(os.dup(0))
    for number in occupied[:free]:
      os.close(number)
    del occupied[:free]
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for number in occupied:
      os.close(number)


def _highest():
  return max(map(int, os.listdir('/proc/self/fd')))
