"""One thread runs at a time: a seeded scheduler passes the baton.

  state of a task   event                          next state
  new               its process starts it          ready
  ready             chosen                         running
  running           it waits for something         waiting
  running           it yields                      ready
  waiting           what it waits for, a timeout,  ready
                    or a signal (main task only)
  ready, waiting    its process is stopped         held, until it continues
  any               its process ends               dead: never chosen again

Time stands still while a task runs, but for a microsecond each time that it
looks at the clock, and goes to the next timer when no task is ready.
"""

import _thread
import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any, Protocol

_LOOK_S = 1e-6  # By which looking at the clock advances it.
_CLOSE_S = 5.0  # Longest time that the end of a thread may take.


class Abandoned(BaseException):
  """Ends the threads of a simulation that is over."""


class Owner(Protocol):
  """The process of a task."""

  is_dead: bool
  is_stopped: bool

  def handle_signals(self, task: 'Task') -> None:
    """Runs handlers of signals that wait for the main task."""


class Call:
  """A call at a later time, unless it is cancelled."""

  def __init__(self, function: Callable[[], object]):
    self.function: Callable[[], object] | None = function

  def cancel(self) -> None:
    """Drops the call."""
    self.function = None


class Waiting:
  """A task that waits in a list until it is woken, or its time has passed."""

  def __init__(self, task: 'Task'):
    self.task = task
    self.is_pending = True
    self.is_woken = False


class Task:
  """A thread of a simulated process.

  Attributes:
    owner: Its process.
    name: Its name.
    is_daemon: Whether its process may end before it.
    is_over: Whether its function has returned.
  """

  def __init__(self, owner: Owner, name: str, *, is_daemon: bool):
    self.owner, self.name, self.is_daemon = owner, name, is_daemon
    self.is_over = False
    self.is_queued = False  # Ready, or held.
    self.is_abandoned = False
    self.thread: threading.Thread
    self.joining: list[Waiting] = []
    self.handle: Any = None  # Of `threads.Thread`, if it has one.
    self._gate = _thread.allocate_lock()
    self._gate.acquire()

  def enter(self) -> None:
    """Waits for the baton.

    Raises:
      Abandoned: If the simulation is over.
    """
    self._gate.acquire()
    if self.is_abandoned:
      raise Abandoned

  def admit(self) -> None:
    """Hands the baton to the task."""
    self._gate.release()


class Scheduler:
  """Tasks, timers and the clock.

  Attributes:
    random: Source of every choice.
    current: The task that runs; None outside of all.
    switches: Number of times that the baton was passed on.
    end: Reason for the end of the simulation; '' while it runs.
    is_closing: Whether the threads that are left are ending.
  """

  def __init__(self, seed: int, *, yields: float = 0.05):
    """Creates a scheduler without tasks.

    Args:
      seed: Seed of every choice.
      yields: Probability that a task gives way where it need not wait.
    """
    self.random = random.Random(seed)
    self.current: Task | None = None
    self.switches = 0
    self.end = ''
    self.is_closing = False
    self._yields = yields
    self._now = 0.0
    self._limit_s = 0.0
    self._ready: list[Task] = []
    self._timers: list[tuple[float, int, Call]] = []
    self._numbers = itertools.count()
    self._over = threading.Lock()
    self._tasks: list[Task] = []

  @property
  def now(self) -> float:
    """Seconds since the start."""
    return self._now

  def look(self) -> float:
    """Returns the time, and lets a little of it pass."""
    self._now += _LOOK_S
    return self._now

  def run(self, limit_s: float) -> None:
    """Runs until `stop` is called, nothing can happen, or a time has come."""
    self.end, self._limit_s = '', limit_s
    self._over.acquire()
    self._pass_on()
    self._over.acquire()
    self._over.release()

  def stop(self, reason: str) -> None:
    """Ends `run` as soon as the current task gives way."""
    self.end = self.end or reason

  def start(self, task: Task, function: Callable[[], object]) -> None:
    """Makes a task ready, which will call a function."""

    def run() -> None:
      try:
        task.enter()
        function()
      except Abandoned:
        pass
      finally:
        task.is_over = True
        if not task.is_abandoned:
          self.wake_all(task.joining)
          self._pass_on()

    task.thread = threading.Thread(target=run, name=task.name, daemon=True)
    task.thread.start()
    self._tasks.append(task)
    self.make_ready(task)

  def close(self) -> None:
    """Ends all threads that are left, after `run`.

    Their handlers and `finally` clauses run, of killed processes, too: read
    what the run has written before.
    """
    self.is_closing = True
    for task in self._tasks:
      if not task.is_over:
        task.is_abandoned = True
        self.current = task
        task.admit()
        task.thread.join(_CLOSE_S)
    self.current = None
    self._tasks.clear()
    self._timers.clear()
    self._ready.clear()

  def make_ready(self, task: Task) -> None:
    """Makes a waiting task eligible."""
    if not task.is_queued:
      task.is_queued = True
      self._ready.append(task)

  def call_at(self, when: float, function: Callable[[], object]) -> Call:
    """Calls a function, which must not wait, at a time."""
    call = Call(function)
    heapq.heappush(self._timers, (when, next(self._numbers), call))
    return call

  def call_after(self, delay_s: float, function: Callable[[], object]) -> Call:
    """Calls a function, which must not wait, after some seconds."""
    return self.call_at(self._now + max(delay_s, 0.0), function)

  def wait(
    self, waiters: list[Waiting], timeout_s: float | None = None
  ) -> bool:
    """Lets the current task wait in a list; returns whether it was woken."""
    task = self._find_current()
    waiting = Waiting(task)
    waiters.append(waiting)
    call = None
    if timeout_s is not None:
      call = self.call_after(timeout_s, lambda: self._settle(waiting, False))
    try:
      while waiting.is_pending:
        self._give_way(task)
        task.owner.handle_signals(task)
    finally:
      if call:
        call.cancel()
      if waiting in waiters:
        waiters.remove(waiting)
    return waiting.is_woken

  def wake(self, waiters: list[Waiting]) -> None:
    """Wakes one of the tasks in a list, if there is any."""
    pending = [waiting for waiting in waiters if waiting.is_pending]
    if pending:
      self._settle(self.random.choice(pending), True)

  def wake_all(self, waiters: list[Waiting]) -> None:
    """Wakes all tasks in a list."""
    for waiting in waiters:
      self._settle(waiting, True)

  def sleep(self, seconds: float) -> None:
    """Lets the current task wait for some seconds."""
    self.wait([], seconds)

  def may_yield(self) -> None:
    """Lets other tasks run now and then."""
    if self.is_closing:
      return
    if self.current is not None and self.random.random() < self._yields:
      task = self._find_current()
      self.make_ready(task)
      self._give_way(task)
      task.owner.handle_signals(task)

  def vanish(self) -> None:
    """Ends the current task, whose process has ended: nothing of it runs."""
    task = self._find_current()
    self._pass_on()
    task.enter()  # For ever: a dead task is never chosen.

  def interrupt(self, task: Task) -> None:
    """Lets a task look for signals, even if it waits."""
    if task is not self.current:
      self.make_ready(task)

  def release_held(self, tasks: list[Task]) -> None:
    """Makes tasks of a process eligible that was stopped."""
    self._ready += tasks
    tasks.clear()

  def _settle(self, waiting: Waiting, is_woken: bool) -> None:
    if waiting.is_pending:
      waiting.is_pending, waiting.is_woken = False, is_woken
      self.make_ready(waiting.task)

  def _find_current(self) -> Task:
    if self.current is None:
      raise RuntimeError('Nobody but simulated threads can wait.')
    if self.current.is_abandoned:
      raise Abandoned
    return self.current

  def _give_way(self, task: Task) -> None:
    self._pass_on()
    task.enter()

  def _pass_on(self) -> None:
    """Hands the baton to the next task, or to the caller of `run`."""
    self.current = None
    self.switches += 1
    while not self.end:
      if self._ready:
        place = self.random.randrange(len(self._ready))
        self._ready[place], self._ready[-1] = (
          self._ready[-1],
          self._ready[place],
        )
        task = self._ready.pop()
        if task.owner.is_dead or task.is_over:
          continue
        if task.owner.is_stopped:
          task.owner.held.append(task)  # type: ignore[attr-defined]
          continue
        task.is_queued = False
        self.current = task
        task.admit()
        return
      if not self._timers:
        self.end = 'nothing can happen any more'
        break
      when, _, call = heapq.heappop(self._timers)
      if when > self._limit_s:
        self.end = 'the time is over'
        break
      self._now = max(self._now, when)
      if call.function:
        call.function()
    self._over.release()


_active: list[Scheduler] = []


def active() -> Scheduler:
  """Returns the scheduler of the simulation that runs."""
  return _active[-1]


def activate(scheduler: Scheduler | None) -> None:
  """Makes a scheduler the active one; None for none."""
  _active[:] = [scheduler] if scheduler else []
