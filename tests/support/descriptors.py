"""Exhausted file descriptors, for tests."""

import contextlib
import os
import resource


@contextlib.contextmanager
def exhausted(left=0):
  """Leaves this process a number of descriptors within the context."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  taken = []
  resource.setrlimit(resource.RLIMIT_NOFILE, (_highest() + 16, hard))
  try:
    with contextlib.suppress(OSError):
      while True:
        taken.append(os.dup(0))
    for number in taken[:left]:
      os.close(number)
    del taken[:left]
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for number in taken:
      os.close(number)


def _highest():
  return max(map(int, os.listdir('/proc/self/fd')))
