"""Deaths in the middle of writing: at the n-th thing done to the disk.

An audit hook sees what Python does to files, whoever does it; those who are
killed do nothing more.
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
  """Nobody catches it, as nobody catches SIGKILL."""


class Crash:
  """What happens to the processes of a run.

  Attributes:
    happened: Whether it has.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    at: int,
    dies: Callable[[str], bool],
    error: BaseException | None = None,
  ):
    """Waits for its moment.

    Args:
      directory: What is done elsewhere does not count.
      at: Before which thing that it does to the directory.
      dies: Whether a thread, by its name, is part of the process that dies.
      error: What is raised then, once; None kills.
    """
    self.happened = False
    self._directory = str(directory)
    self._left = at
    self._dies = dies
    self._error = error
    self._lock = threading.Lock()

  def do(self, path: str) -> None:
    """Something is done to a path."""
    name = threading.current_thread().name
    if not path.startswith(self._directory) or not self._dies(name):
      return
    with self._lock:
      self._left -= 1
      now = self._left < 0
      if not now or (self.happened and self._error):
        return
      self.happened = True
    raise self._error or Killed


_crash: list[Crash] = []
_hooked: list[bool] = []


@contextlib.contextmanager
def crashing(crash: Crash) -> Iterator[Crash]:
  """Lets it happen."""
  if not _hooked:
    sys.addaudithook(_seen)  # For ever.
    _hooked.append(True)

  _crash.append(crash)
  try:
    with _unsynced(crash):
      yield crash
  finally:
    _crash.clear()


def full(path: pathlib.Path) -> OSError:
  """Returns what a full disk raises."""
  return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextlib.contextmanager
def _unsynced(crash: Crash) -> Iterator[None]:
  def synced(handle):
    crash.do(os.readlink(f'/proc/self/fd/{handle}'))

  with mock.patch.object(os, 'fsync', synced):
    yield


def _seen(event: str, arguments: tuple) -> None:
  if (
    _crash and event in _EVENTS and isinstance(arguments[0], (str, os.PathLike))
  ):
    read = event == 'open' and not _writes(arguments)
    if not read:
      _crash[0].do(os.fspath(arguments[0]))


def _writes(arguments: tuple) -> bool:
  return bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
