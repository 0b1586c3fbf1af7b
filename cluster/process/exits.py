"""Exit codes of a run's processes, their reasons, and the error that ends one.

Entry points and launchers read the codes, whatever the runtime: this module
therefore imports no network code.  `main.py` records the end of its process
with an `ExitRecord`, as a file for programs that supervise the run.
"""

import enum
import json
import os
import pathlib
import platform
import sys
import traceback
import types
from collections.abc import Callable
from typing import NoReturn

from absl import logging

from outputs import atomic, transient
from system import clock, processes, threads

LOST = os.EX_TEMPFAIL  # 75: a restart of the process may help.
STOPPED = 143  # SIGTERM or the coordinator has ended an unfinished run.
DRAINED = 79  # A worker has left a run, which continues, after SIGTERM.
FOLDER = 'exits'  # In the folder of the run.
_WRITE_S = 5.0  # Longest time that a record may delay an end.


class Reason(enum.StrEnum):
  """Reason for the end of a process."""

  FINISHED = 'finished'  # The run is complete.
  STOPPED = 'stopped'  # A signal, or the coordinator, has ended the run.
  DRAINED = 'drained'  # A worker has left after SIGTERM; the run continues.
  REFUSED = 'refused'  # The coordinator or a server refuses this process.
  INVALID = 'invalid'  # A setting, a folder or a file is wrong.
  TRANSIENT = 'transient'  # A resource was missing that may return.
  LOST = 'lost'  # The coordinator, the cluster or the rank was lost.
  HUNG = 'hung'  # A part of this process made no progress.
  UNMENDABLE = 'unmendable'  # The run cannot continue without a restart.
  NOT_FINITE = 'not_finite'  # A loss, gradient or parameter is not finite.
  FAILED = 'failed'  # An unexpected error.
  KILLED = 'killed'  # A signal has killed the process, by its launcher.


class Unmendable(Exception):
  """Raised if a run cannot continue, but can be resumed from a checkpoint."""


class Exit(SystemExit):
  """Raised to end a process for a reason.

  Attributes:
    reason: The reason.
    message: One or more lines for people.
  """

  def __init__(self, code: int, reason: Reason, message: str):
    """Creates the exception; a message of code 1 is printed as Python exits."""
    super().__init__(message if code == 1 else code)
    self.reason, self.message = reason, message


def find_reason(error: BaseException | None) -> Reason:
  """Returns the reason of an end by an exception; None for a regular end."""
  match error:
    case None:
      return Reason.FINISHED
    case Exit():
      return error.reason
    case KeyboardInterrupt():
      return Reason.STOPPED
    case SystemExit():
      is_signal = isinstance(error.code, int) and error.code > 128
      if error.code in (None, 0):
        return Reason.FINISHED
      return Reason.STOPPED if is_signal else Reason.FAILED
    case Unmendable():
      return Reason.UNMENDABLE
    case FloatingPointError():
      return Reason.NOT_FINITE
  return Reason.TRANSIENT if transient.is_transient(error) else Reason.FAILED


class ExitRecord:
  """Context that records the end of this process in the folder of its run.

  The record is exits/RANK.json.  There is none before the folder exists, nor if
  a signal kills the process: its launcher records that.

  Attributes:
    folder: Folder of the run; None while it is unknown.
    rank: Role of this process, such as 'worker:1'.
  """

  def __init__(self, folder: pathlib.Path | None, rank: str):
    """Creates the record of a process that has just started."""
    self.folder, self.rank = folder, rank
    self._is_written = False

  def __enter__(self) -> 'ExitRecord':
    _records.get().append(self)
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> None:
    _records.get().remove(self)
    code = 0
    if isinstance(error, SystemExit):
      code = error.code if isinstance(error.code, int) else 1
    elif isinstance(error, KeyboardInterrupt):
      code = 128 + 2
    elif error is not None:
      code = 1
    message = error.message if isinstance(error, Exit) else str(error or '')
    self.write(find_reason(error), code, message, error)
    _notify(code, message, at_once=False)

  def write(
    self,
    reason: Reason,
    code: int,
    message: str,
    error: BaseException | None = None,
    *,
    pid: int | None = None,
  ) -> None:
    """Writes the record, once; logs an error if that is not possible.

    A record that the process has written itself stays, even if a signal killed
    it afterwards, while Python was ending it.

    Args:
      reason: Reason for the end.
      code: Exit code; negative for the number of a signal.
      message: One or more lines for people.
      error: Exception that is the cause, if any.
      pid: Id of the process; None for this one.
    """
    if self._is_written or self.folder is None or not self.folder.is_dir():
      return
    self._is_written = True
    record = {
      'rank': self.rank,
      'reason': str(reason),
      'code': code,
      'message': message,
      'traceback': traceback.format_exception(error) if error else [],
      'time': clock.wall(),
      'host': platform.node(),
      'pid': pid or processes.getpid(),
    }
    path = self.folder / FOLDER / f'{self.rank.replace(":", "-")}.json'
    if pid and _read_pid(path) == pid:
      return
    try:
      path.parent.mkdir(exist_ok=True)
      atomic.write_object(path, record)
    except OSError as failure:
      logging.error('%s: %s', path, failure)


def _read_pid(path: pathlib.Path) -> int | None:
  """Returns the process of a record; None if there is none that is whole."""
  try:
    pid = json.loads(path.read_text())['pid']
  except (OSError, ValueError, KeyError, TypeError):
    return None
  return int(pid)


# Records of this process: none, or that of main.py.
_records = processes.Own[list[ExitRecord]](list)
# Functions that are called when the process ends: see `observe_end`.
_observers = processes.Own[list[Callable[[int, str, bool], None]]](list)


def observe_end(function: Callable[[int, str, bool], None]) -> None:
  """Calls a function, which must not block, when this process ends.

  Args:
    function: Called with the exit code, a text for people, and whether the
      process ends at once: then nothing that is registered for its exit runs.
  """
  _observers.get().append(function)


def _notify(code: int, message: str, *, at_once: bool) -> None:
  observers = _observers.get()
  while observers:
    observers.pop()(code, message, at_once)


def describe_process(
  *, folder: pathlib.Path | None = None, rank: str = ''
) -> None:
  """Names folder and rank of this process for its record, once known."""
  for record in _records.get():
    record.folder = folder or record.folder
    record.rank = rank or record.rank


def end(
  code: int,
  reason: Reason,
  message: str,
  error: BaseException | None = None,
) -> NoReturn:
  """Exits this process at once, even if other threads hang.

  Args:
    code: Exit code.
    reason: Reason for the record.
    message: Text for the record.
    error: Exception that is the cause, if any.
  """
  for record in _records.get():
    # The folder may be what hangs.
    writer = threads.Thread(
      target=record.write, args=(reason, code, message, error), daemon=True
    )
    writer.start()
    writer.join(_WRITE_S)
  _notify(code, message, at_once=True)
  sys.stdout.flush()
  sys.stderr.flush()
  processes.exit_now(code)


class Relinquished(Unmendable):
  """Raised if another process is to coordinate the run, which continues."""


class HandedOver(Relinquished):
  """Raised if this process leaves after SIGTERM, and others continue."""
