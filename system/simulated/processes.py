"""Processes of a simulation, as `system.processes` has them.

state of a process   event                              next state
running              its main task returns, and so do   ended
its other tasks, but daemons
running              exit_now, a signal that kills      ended at once
running              SIGSTOP                            stopped
stopped              SIGCONT                            running
stopped              SIGKILL                            ended at once
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from system.simulated import net, threads
from system.simulated.scheduler import Abandoned, Scheduler, Task, active

Handler = Any  # As of `signal.signal`.
_DEADLY = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_FIRST_ID = 1_000_000


class Process:
  """A process of a simulation.

  Attributes:
    name: Its name.
    host: Address of its host.
    pid: Its id.
    main: Its main task.
    code: Its exit code, negative for a signal; None while it runs.
    is_dead: Whether it has ended.
    is_stopped: Whether it is stopped.
    held: Tasks that are ready once it continues.
    error: Text of the exception that ended it; '' for none.
  """

  def __init__(
    self,
    scheduler: Scheduler,
    network: net.Network,
    number: int,
    name: str,
    host: str,
    *,
    on_end: Callable[['Process'], object],
  ):
    self._on_end = on_end
    self.name, self.host, self.pid = name, host, _FIRST_ID + number
    self.code: int | None = None
    self.is_dead = self.is_stopped = False
    self.held: list[Task] = []
    self.error = ''
    self.handlers: dict[int, Handler] = {
      signal.SIGINT: signal.default_int_handler
    }
    self._scheduler, self._network = scheduler, network
    self._tasks: list[Task] = []
    self._signals: list[int] = []
    self.main: Task

  def start(self, function: Callable[[], object]) -> None:
    """Starts the main task, which calls a function."""
    self.main = self.start_task(
      'MainThread', lambda: self._run(function), is_daemon=False
    )
    self.main.handle = threads.MainThread()

  def start_task(
    self, name: str, function: Callable[[], object], *, is_daemon: bool
  ) -> Task:
    """Starts a task, which calls a function."""
    task = Task(self, name, is_daemon=is_daemon)
    self._tasks.append(task)
    self._scheduler.start(task, function)
    return task

  def signal(self, number: int) -> None:
    """Sends a signal to the process."""
    if self.is_dead:
      return
    if number == signal.SIGKILL:
      self.end(-number)
    elif number == signal.SIGSTOP:
      self.is_stopped = True
    elif number == signal.SIGCONT:
      self.is_stopped = False
      self._scheduler.release_held(self.held)
    elif self.handlers.get(number, signal.SIG_DFL) == signal.SIG_DFL:
      if number in _DEADLY:
        self.end(-number)
    elif self.handlers[number] != signal.SIG_IGN:
      self._signals.append(number)
      self._scheduler.interrupt(self.main)

  def handle_signals(self, task: Task) -> None:
    """Runs handlers of signals that wait for the main task."""
    while task is self.main and self._signals:
      number = self._signals.pop(0)
      self.handlers[number](number, None)

  def end(self, code: int, *, silently: bool = False) -> None:
    """Ends the process at once; returns unless it is that of the caller.

    Args:
      code: Exit code.
      silently: Whether its host ends as well, so that peers learn nothing.
    """
    current = self._scheduler.current
    if self.is_dead:
      if current is not None and current.owner is self:
        self._scheduler.vanish()
      return
    self.is_dead, self.code = True, code
    self._network.drop(self, silently=silently)
    held_locks.release(self)
    self._on_end(self)
    if current is not None and current.owner is self:
      self._scheduler.vanish()

  def _run(self, function: Callable[[], object]) -> None:
    """Calls the function of the main task, and ends the process."""
    code = 0
    try:
      function()
    except SystemExit as error:
      code = error.code if isinstance(error.code, int) else 0
      if isinstance(error.code, str):
        code, self.error = 1, error.code
    except KeyboardInterrupt:
      code = -signal.SIGINT
    except Abandoned:
      raise
    # As Python does: it prints the error, and ends with the code 1.
    except BaseException:
      code, self.error = 1, traceback.format_exc()
      print(f'{self.name}: {self.error}', file=sys.stderr)
    for task in [*self._tasks]:
      if not (task.is_daemon or task.is_over or task is self.main):
        self._scheduler.wait(task.joining)
    self.end(code)


class _Locks:
  """Locked files by their inodes."""

  def __init__(self) -> None:
    self._holders: dict[tuple[int, int], tuple[Process, int]] = {}

  def lock(self, descriptor: int) -> bool:
    """Locks an open file; returns whether no other descriptor has it."""
    status = os.fstat(descriptor)
    key = status.st_dev, status.st_ino
    owner = find_owner()
    holder = self._holders.get(key)
    if holder and not self._is_closed(key, holder[1]):
      return holder == (owner, descriptor)
    self._holders[key] = owner, descriptor
    return True

  def release(self, owner: Process) -> None:
    """Releases the locks of a process that has ended."""
    self._holders = {
      key: holder
      for key, holder in self._holders.items()
      if holder[0] is not owner
    }

  def _is_closed(self, key: tuple[int, int], descriptor: int) -> bool:
    """Returns whether a holder has closed its file."""
    try:
      status = os.fstat(descriptor)
    except OSError:
      return True
    return (status.st_dev, status.st_ino) != key


held_locks = _Locks()


def lock_file(descriptor: int) -> bool:
  """Locks an open file until the process ends: see `system.processes`."""
  return held_locks.lock(descriptor)


def find_owner() -> Any:
  """Returns the process of the task that runs; None outside of all."""
  current = active().current
  return current.owner if current else None


def getpid() -> int:
  """Returns the id of the process."""
  owner = find_owner()
  return owner.pid if owner else os.getpid()


def exit_now(code: int) -> None:
  """Ends the process at once."""
  find_owner().end(code)


def handle_signal(number: int, handler: Handler) -> Handler:
  """Sets the handler of a signal; returns the one before."""
  before = find_handler(number)
  find_owner().handlers[number] = handler
  return before


def find_handler(number: int) -> Handler:
  """Returns the handler of a signal."""
  return find_owner().handlers.get(number, signal.SIG_DFL)
