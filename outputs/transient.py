"""Errors that may pass by themselves, and how a start waits for that.

A start that fails for good ends with exit code 1, and no launcher or scheduler
tries it again.  So only what no retry can mend may end it like that.  All else
is tried again, at growing intervals and up to a limit; then the exit code is
EX_TEMPFAIL, 75, after which starting again may help.
"""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import platform
import re
import socket
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from absl import logging

_T = TypeVar('_T')

# Seconds that the only process of a run waits at its start.  A server of NFS
# keeps the locks of a client that has gone for its lease, 90 s by default.
WAIT_S = 100.0
# The same, for a lock that a live process of this host holds: an ending process
# lets go of it within that, and another run will not do so soon.
LIVE_S = 10.0
_FIRST_S, _MOST_S = 0.1, 8.0  # Between two tries; doubles.
_LOOK_S = 1.0  # Between two looks at a lock, at most.
_TELL_S = 10.0  # Between two lines of what is waited for.
_PASSING = frozenset(
  {
    *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOMEM, errno.ENOLCK),
    *(errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS),
    *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT),
    *(errno.EADDRINUSE, errno.ECONNREFUSED, errno.ECONNRESET),
    *(errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH),
  }
)
# How an error of the system is named in texts: by TensorStore, under Orbax, and
# by Python, of which another process may have told.
_NUMBERED = re.compile(r"(?:os_error_code='|\[Errno )(\d+)['\]]")


class Busy(ValueError):
  """A lock that another process holds, and held for as long as was waited."""


def is_transient(error: BaseException | None) -> bool:
  """Returns whether an error may pass by itself.

  Those do that say so by the number of the system's error, or are raised from
  one that does.
  """
  while error is not None:
    if isinstance(error, (Busy, TimeoutError)) or _number(error) in _PASSING:
      return True
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
      return True
    error = error.__cause__
  return False


def retry(
  call: Callable[[], _T], *, limit_s: Callable[[], float], what: str
) -> _T:
  """Returns what a call returns, which is tried again while errors may pass.

  Args:
    call: May be called several times.
    limit_s: Returns for how many seconds; the last try is made when they are
      over.  It is called if the first try has failed, as errors that do not
      pass may be those of the config that has it.
    what: Is done, for the log.

  Raises:
    Exception: Of the call: one that does not pass, or has not in time.
  """
  start, wait_s = time.monotonic(), _FIRST_S
  while True:
    try:
      return call()
    except Exception as error:
      # Whoever found a lock held has waited for it already.
      if isinstance(error, Busy) or not is_transient(error):
        raise
      left_s = limit_s() - (time.monotonic() - start)
      if left_s <= 0:
        raise
      logging.warning(
        '%s failed, and is tried again for %.3g s: %s', what, left_s, error
      )
    time.sleep(min(wait_s, left_s))
    wait_s = min(2 * wait_s, _MOST_S)


def start_limit_s(cluster: Mapping[str, Any]) -> float:
  """Returns the seconds for which a start is tried again.

  Args:
    cluster: `config.cluster`.  On real hosts `start_s` is the limit, for which
      the others wait as well; the only process of a run has `WAIT_S`.
  """
  real = cluster['runtime'] == 'distributed'
  return float(cluster['start_s']) if real else WAIT_S


def exit_code(error: Exception) -> int:
  """Says why a process ends that an error has kept from starting.

  Returns:
    EX_TEMPFAIL if the error may pass, else 1.
  """
  passes = is_transient(error)
  how = 'Given up, but the same command may work later' if passes else 'Refused'
  print(f'{how}: {error}', file=sys.stderr)
  return os.EX_TEMPFAIL if passes else 1


def leave(error: Exception) -> NoReturn:
  """Ends the process that an error has kept from starting.

  Raises:
    SystemExit: With `exit_code`.
  """
  sys.exit(exit_code(error))


class FolderLock:
  """The lock of a folder, which one process holds until it ends or releases it.

  The file `.lock` in the folder is locked, and says who holds it: a JSON object
  of `host`, `pid` and `run`, what tells the run in the folder from others.

  Attributes:
    run: As recorded by those who held the lock before; '' if they did not.
    release: Lets others have the folder.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    busy: str,
    limit_s: float,
    live_s: float | None = None,
  ):
    """Takes the lock, once it is free.

    What is waited for is said in the log.

    Args:
      folder: Which there is.
      busy: What an error says of a lock that is held.
      limit_s: Seconds to wait.
      live_s: The same if a live process of this host holds the lock; None:
        `limit_s`.

    Raises:
      Busy: If it was not free in time, or if this process holds it.
      OSError: If it cannot be taken.
    """
    self._busy, self._folder = busy, folder
    handle = os.open(folder / '.lock', os.O_RDWR | os.O_CREAT, 0o666)
    # The system lets go of it when the process ends, however it does.
    self.release = weakref.finalize(self, os.close, handle)
    self._handle = handle
    try:
      self._wait(limit_s, limit_s if live_s is None else min(live_s, limit_s))
      self.run = self._content().get('run', '')
      self.record(self.run)
    except BaseException:
      self.release()
      raise

  def record(self, run: str) -> None:
    """Writes down who holds the lock, and which run is in the folder.

    Raises:
      OSError: If it cannot be written.
    """
    self.run = run
    own = {'host': platform.node(), 'pid': os.getpid(), 'run': run}
    data = json.dumps(own).encode() + b'\n'
    os.pwrite(self._handle, data, 0)
    os.ftruncate(self._handle, len(data))
    os.fsync(self._handle)

  def _wait(self, limit_s: float, live_s: float) -> None:
    """Returns once the lock is this process's."""
    start, tell_at, wait_s = time.monotonic(), 0.0, _FIRST_S / 2
    while not self._taken():
      holder = self._content()
      waited_s = time.monotonic() - start
      limit = min(limit_s, live_s) if _is_live(holder) else limit_s
      if holder.get('pid') == os.getpid() and _is_live(holder):
        limit = 0.0
      who = 'a process'
      if holder:
        who = f'process {holder.get("pid")} on {holder.get("host")}'
      if waited_s >= limit:
        raise Busy(
          f'{self._busy}: {who} has held {self._folder}/.lock for the '
          f'{waited_s:.1f} s that were waited.'
        )
      if waited_s >= tell_at:
        tell_at = waited_s + _TELL_S
        logging.warning(
          'Waiting for %s to let go of %s/.lock, for %.3g s at most.',
          *(who, self._folder, limit - waited_s),
        )
      time.sleep(min(wait_s, limit - waited_s))
      wait_s = min(2 * wait_s, _LOOK_S)

  def _taken(self) -> bool:
    try:
      fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return False
    return True

  def _content(self) -> dict[str, Any]:
    """Returns what the holder has written; nothing if that cannot be read."""
    with contextlib.suppress(ValueError):
      found = json.loads(os.pread(self._handle, 4096, 0))
      if isinstance(found, dict):
        return found
    return {}


def _is_live(holder: Mapping[str, Any]) -> bool:
  """Returns whether the holder of a lock is a live process of this host."""
  if holder.get('host') != platform.node():
    return False
  return pathlib.Path('/proc', str(holder.get('pid'))).exists()


def _number(error: BaseException) -> int | None:
  """Returns the number of the system's error; None if there is none."""
  if isinstance(error, socket.gaierror):
    return None  # Its numbers are others.
  if isinstance(error, OSError) and error.errno:
    return error.errno
  found = _NUMBERED.search(str(error))
  return int(found[1]) if found else None
