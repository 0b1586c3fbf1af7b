"""Transient errors, retries of a start with backoff, and locks of folders.

A process that fails to start with exit code 1 is not restarted by a launcher or
a scheduler, so that only permanent errors may end it with this code.  A
transient error is retried with exponential backoff, up to a limit; after it the
exit code is EX_TEMPFAIL, 75, which means that a later start may succeed.
"""

import contextlib
import errno
import json
import os
import pathlib
import platform
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from absl import logging

from system import clock, net, processes

_T = TypeVar('_T')

# Limit of retries in a run of one process.  An NFS server keeps the locks of a
# lost client for its lease, 90 s by default.
WAIT_S = 100.0
# Limit of waiting for a lock that a live process of this host holds: a process
# that is ending releases it sooner, and one that is training much later.
LIVE_S = 10.0
_FIRST_S, _MOST_S = 0.1, 8.0  # First and largest backoff; it doubles.
_LOOK_S = 1.0  # Longest interval between two attempts to take a lock.
_WARN_S = 10.0  # Interval of log lines while waiting for a lock.
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
# Of those, what this host alone may lack.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# The errno in the text of an error, as written by TensorStore (under Orbax) and
# by Python, whose text may have come from another process.
_NUMBERED = re.compile(r"(?:os_error_code='|\[Errno )(\d+)['\]]")


class Busy(ValueError):
  """Error of a lock that another process held until the time limit."""


def is_transient(error: BaseException | None) -> bool:
  """Returns whether an error, or one of its causes, may pass by itself.

  Transient errors are timeouts, `Busy`, temporary failures of name resolution,
  and errors with an errno in `_PASSING`.
  """
  return any(
    isinstance(each, (Busy, TimeoutError))
    or _number(each) in _PASSING
    or (isinstance(each, net.gaierror) and each.errno == net.EAI_AGAIN)
    for each in _causes(error)
  )


def is_shortage(error: BaseException | None) -> bool:
  """Returns whether this host alone lacks memory or descriptors."""
  return any(
    isinstance(each, MemoryError) or _number(each) in _SHORTAGES
    for each in _causes(error)
  )


def retry(
  call: Callable[[], _T], *, limit_s: Callable[[], float], what: str
) -> _T:
  """Calls a function until it succeeds, while its errors are transient.

  Args:
    call: Function to call, perhaps several times.
    limit_s: Returns the time limit in seconds, after which one last attempt is
      made.  It is called only after a transient error, as the config that it
      reads may be the cause of a permanent one.
    what: Name of the operation, for the log.

  Returns:
    The result of the call.

  Raises:
    Exception: The error of the call, if it is permanent or past the limit.
  """
  start, wait_s = clock.monotonic(), _FIRST_S
  while True:
    try:
      return call()
    except Exception as error:
      # A lock that is busy has been waited for already.
      if isinstance(error, Busy) or not is_transient(error):
        raise
      left_s = limit_s() - (clock.monotonic() - start)
      if left_s <= 0:
        raise
      logging.warning(
        '%s failed, and is tried again for %.3g s: %s', what, left_s, error
      )
    clock.sleep(min(wait_s, left_s))
    wait_s = min(2 * wait_s, _MOST_S)


def start_limit_s(cluster: Mapping[str, Any]) -> float:
  """Returns the time limit for retries of a start, seconds.

  Args:
    cluster: `config.cluster`.  On real hosts the limit is `start_s`, for which
      the other processes also wait; in a virtual run it is `WAIT_S`.
  """
  real = cluster['runtime'] == 'distributed'
  return float(cluster['start_s']) if real else WAIT_S


def exit_code(error: Exception) -> int:
  """Prints the error of a failed start; returns EX_TEMPFAIL if it may pass."""
  passes = is_transient(error)
  how = 'Given up, but the same command may work later' if passes else 'Refused'
  print(f'{how}: {error}', file=sys.stderr)
  return os.EX_TEMPFAIL if passes else 1


def leave(error: Exception) -> NoReturn:
  """Prints the error of a failed start, and ends the process."""
  sys.exit(exit_code(error))


class FolderLock:
  """Lock of a folder, which one process holds until it ends or releases it.

  The lock is on the file `.lock` in the folder.  Its content is a JSON object
  with the holder's `host` and `pid`, and `run`, the fingerprint of the run in
  the folder.  The holder is logged while this process waits.

  Args:
    folder: An existing folder.
    busy: Beginning of the message of `Busy`.
    limit_s: Limit of waiting, seconds.
    live_s: Limit of waiting if a live process of this host holds the lock,
      seconds; None for `limit_s`.
    seizes: Whether to replace the file, and so to take the lock from another
      process, which may be stopped: see `is_held`.

  Attributes:
    run: Fingerprint that the last holder recorded; '' without one.
    release: Releases the lock.

  Raises:
    Busy: If the lock is not free in time, or if this process holds it.
    OSError: If the lock cannot be taken.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    busy: str,
    limit_s: float,
    live_s: float | None = None,
    seizes: bool = False,
  ):
    self._busy, self._folder = busy, folder
    self._path = folder / '.lock'
    self._open(
      self._path.with_name(f'.lock.{processes.getpid()}') if seizes else None
    )
    try:
      self._wait(limit_s, limit_s if live_s is None else min(live_s, limit_s))
      self.run = self._content().get('run', '')
      self.record(self.run)
    except BaseException:
      self.release()
      raise

  def _open(self, new: pathlib.Path | None = None) -> None:
    """Opens the file; replaces it by a new one, which is locked, if given."""
    handle = os.open(new or self._path, os.O_RDWR | os.O_CREAT, 0o666)
    # The kernel releases the lock when the process ends, even by a kill.
    self.release = weakref.finalize(self, os.close, handle)
    self._handle = handle
    if new:
      self._flock()
      new.replace(self._path)

  def is_held(self) -> bool:
    """Returns whether no other process has seized the lock.

    Raises:
      OSError: If the folder cannot be read.
    """
    own = os.fstat(self._handle)
    try:
      return os.path.samestat(own, self._path.stat())
    except FileNotFoundError:
      return False

  def record(self, run: str) -> None:
    """Writes the holder and the fingerprint of the run into the lock's file.

    Raises:
      OSError: If the file cannot be written.
    """
    self.run = run
    holder = {'host': platform.node(), 'pid': processes.getpid(), 'run': run}
    data = json.dumps(holder).encode() + b'\n'
    os.pwrite(self._handle, data, 0)
    os.ftruncate(self._handle, len(data))
    os.fsync(self._handle)

  def _wait(self, limit_s: float, live_s: float) -> None:
    """Waits until this process has taken the lock."""
    start, warn_at, wait_s = clock.monotonic(), 0.0, _FIRST_S / 2
    while not self._try_lock():
      holder, limit = self._content(), limit_s
      waited_s = clock.monotonic() - start
      if _is_live(holder):
        limit = 0.0 if holder.get('pid') == processes.getpid() else live_s
      other = 'a process'
      if holder:
        other = f'process {holder.get("pid")} on {holder.get("host")}'
      if waited_s >= limit:
        raise Busy(
          f'{self._busy}: {other} has held {self._folder}/.lock for the '
          f'{waited_s:.1f} s that were waited.'
        )
      if waited_s >= warn_at:
        warn_at = waited_s + _WARN_S
        logging.warning(
          'Waiting for %s to release %s/.lock, for %.3g s at most.',
          *(other, self._folder, limit - waited_s),
        )
      clock.sleep(min(wait_s, limit - waited_s))
      wait_s = min(2 * wait_s, _LOOK_S)

  def _try_lock(self) -> bool:
    """Locks the file; returns False if another process holds the lock."""
    if not self.is_held():  # The file that was opened has been replaced.
      self.release()
      self._open()
    return self._flock() and self.is_held()

  def _flock(self) -> bool:
    """Locks the open file; returns False if another process has locked it."""
    return processes.lock_file(self._handle)

  def _content(self) -> dict[str, Any]:
    """Returns the content of the lock's file; {} if it is no JSON object."""
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


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  """Yields an error and its causes."""
  while error is not None:
    yield error
    error = error.__cause__


def _number(error: BaseException) -> int | None:
  """Returns the errno of an error, or None without one."""
  if isinstance(error, net.gaierror):
    return None  # Its numbers are not those of errno.
  if isinstance(error, OSError) and error.errno:
    return error.errno
  found = _NUMBERED.search(str(error))
  return int(found[1]) if found else None
