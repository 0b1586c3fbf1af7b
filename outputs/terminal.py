"""Terminal of a process, which may close while the process goes on."""

import contextlib
import errno
import os
import termios
from collections.abc import Iterator


def drop_if_lost() -> bool:
  """Discards the output of this process from now on if its terminal is gone.

  Every write to such a terminal fails.

  Returns:
    Whether standard output or standard error was such a terminal.
  """
  lost = [each for each in (1, 2) if _is_lost(each)]
  for descriptor in lost:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
  return bool(lost)


@contextlib.contextmanager
def may_be_lost() -> Iterator[None]:
  """Drops what the body of the `with` statement writes to a lost terminal.

  Raises:
    OSError: If a write fails for another reason.
  """
  try:
    yield
  except OSError:
    if not drop_if_lost():
      raise


def _is_lost(descriptor: int) -> bool:
  """Returns whether a descriptor is of a terminal that has closed."""
  try:
    termios.tcgetattr(descriptor)
  except termios.error as error:
    return bool(error.args[0] == errno.EIO)
  return False
