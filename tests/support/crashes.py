"""Crashes of a process before its n-th write to a folder, for tests.

An audit hook observes all file operations of this Python process.  After the
crash every further write of the process fails, as after SIGKILL.
"""

import contextlib
import errno
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator
from unittest import mock

_EVENTS = ('open', 'os.mkdir', 'os.rename', 'os.remove', 'os.rmdir')


class Killed(BaseException):
  """Exception that no code catches, as SIGKILL cannot be caught."""


class Crash:
  """Crash of a process of a run at one of its writes.

  Attributes:
    happened: True after the crash.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    at: int,
    dies: Callable[[str], bool],
    error: BaseException | None = None,
  ):
    """Initializes a crash that has not happened.

    Args:
      directory: Folder whose writes count.
      at: Number of writes before the crash.
      dies: Returns whether a thread, by its name, belongs to the process that
        crashes.
      error: Exception that is raised once instead of the crash; None to crash.
    """
    self.happened = False
    self._directory = str(directory)
    self._remaining = at
    self._dies = dies
    self._error = error
    self._lock = threading.Lock()

  def write(self, path: str) -> None:
    """Counts a write to a path, and raises if the process crashes at it."""
    name = threading.current_thread().name
    if not path.startswith(self._directory) or not self._dies(name):
      return
    with self._lock:
      self._remaining -= 1
      is_due = self._remaining < 0
      if not is_due or (self.happened and self._error):
        return
      self.happened = True
    raise self._error or Killed


_crash: list[Crash] = []
_hooks: list[bool] = []


@contextlib.contextmanager
def inject(crash: Crash) -> Iterator[Crash]:
  """Injects a crash within the context."""
  if not _hooks:
    sys.addaudithook(_audit)  # Audit hooks cannot be removed.
    _hooks.append(True)

  _crash.append(crash)
  try:
    with _watch_fsync(crash):
      yield crash
  finally:
    _crash.clear()


def disk_full(path: pathlib.Path) -> OSError:
  """Returns the error of a full disk."""
  return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextlib.contextmanager
def _watch_fsync(crash: Crash) -> Iterator[None]:
  def fsync(handle):
    crash.write(os.readlink(f'/proc/self/fd/{handle}'))

  with mock.patch.object(os, 'fsync', fsync):
    yield


def _audit(event: str, arguments: tuple) -> None:
  if (
    _crash and event in _EVENTS and isinstance(arguments[0], (str, os.PathLike))
  ):
    is_read = event == 'open' and not _writes(arguments)
    if not is_read:
      _crash[0].write(os.fspath(arguments[0]))


def _writes(arguments: tuple) -> bool:
  return bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
