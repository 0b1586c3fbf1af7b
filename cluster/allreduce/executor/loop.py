"""A thread that waits for sockets, and does what other threads ask of it."""

import collections
import contextlib
import functools
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from absl import logging

IN, OUT = select.EPOLLIN, select.EPOLLOUT
# Told once each time there is room again, and of anything that comes.
IN_OR_ROOM = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
Handle = Callable[[int], None]
_TICK_S = 0.1


class Loop:
  """An event-loop thread; all methods but `call` and `ask` run in it.

  Attributes:
    ticking: Whether `tick` is called.
  """

  def __init__(
    self,
    name: str,
    *,
    each: Callable[[], None],
    tick: Callable[[], None],
    failed: Callable[[Exception], None],
    ended: Callable[[Exception | None], None],
  ):
    """Starts the thread.

    Args:
      name: Of the thread.
      each: Called after some events have been handled.
      tick: Called about every tenth of a second while it is to be.
      failed: Called with what one of the functions above, a handler or a
        function that the thread was asked to call has raised.  The thread goes
        on, and watches the socket of that handler no more.
      ended: Called at the end, with what was raised if that is why.

    Raises:
      OSError: If the process has no descriptors left.
    """
    self.ticking = False
    self._each, self._tick = each, tick
    self._failed, self._ended = failed, ended
    self._next_s = 0.0
    self._epoll = select.epoll()
    self._handles: dict[int, Handle] = {}
    self._asked: collections.deque[Callable[[], None]] = collections.deque()
    try:
      self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError:
      self._epoll.close()
      raise
    self._epoll.register(self._wake, IN)
    self._ending = False
    self._beats = self._answered = 0
    self._lock = threading.Lock()
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._thread.start()

  def watch(self, sock: socket.socket, events: int, handle: Handle) -> None:
    """Registers the handler of a socket's events, replacing an earlier one."""
    number = sock.fileno()
    try:
      self._epoll.register(number, events)
    except FileExistsError:
      self._epoll.modify(number, events)
    self._handles[number] = handle

  def forget(self, sock: socket.socket) -> None:
    """Unregisters a socket."""
    self._forget(sock.fileno())

  def call(self, function: Callable[[], None]) -> bool:
    """Schedules a call in the thread; returns whether the thread still runs.

    Thread-safe.
    """
    with self._lock:
      if self._wake < 0:
        return False
      self._asked.append(function)
      if len(self._asked) == 1:
        os.eventfd_write(self._wake, 1)
    return True

  def ask(self, function: Callable[[], Any]) -> Any:
    """Returns what a function returns that the thread calls.

    None if the thread has ended, or if the function has raised something, of
    which `failed` was told before.  From any thread but that of the loop.
    """
    done, answers = threading.Event(), []

    def answer() -> None:
      try:
        self._guarded(lambda: answers.append(function()))
      finally:
        done.set()

    if self.call(answer):
      done.wait()
    return answers[0] if answers else None

  def unanswered(self) -> int:
    """Returns how often this was asked since the thread came to it last.

    From any other thread.
    """
    self._beats += 1
    number = self._beats

    def answer() -> None:
      self._answered = number

    self.call(answer)
    return number - self._answered

  def close(self) -> None:
    """Ends the thread, after what it was asked for; from any other thread."""

    def end() -> None:
      self._ending = True

    self.call(end)
    self._thread.join()

  def _run(self) -> None:
    error = None
    try:
      while not self._ending:
        self._turn()
    # Whoever waits for the thread is told, instead of waiting for ever.
    except Exception as raised:
      logging.exception('The thread of an executor ends.')
      error = raised
    with self._lock:
      os.close(self._wake)
      self._wake = -1
    try:
      self._ended(error)
    finally:
      while self._asked:
        with contextlib.suppress(OSError, ValueError):
          self._asked.popleft()()
      self._epoll.close()

  def _guarded(self, function: Callable[[], Any]) -> None:
    """Calls a function, and `failed` with what it raises."""
    try:
      function()
    # The one place where an unexpected error becomes known to waiting threads.
    except Exception as error:
      logging.exception('A function in the thread of an executor failed.')
      self._failed(error)

  def _handle(self, number: int, events: int) -> None:
    """Calls a handler; one that raises is not called again."""
    handle = self._handles[number]
    handled = False
    try:
      handle(events)
      handled = True
    finally:
      # Another socket may have the number by now.
      if not handled and self._handles.get(number) is handle:
        self._forget(number)

  def _forget(self, number: int) -> None:
    # A socket that was closed is watched no more.
    if self._handles.pop(number, None):
      with contextlib.suppress(OSError):
        self._epoll.unregister(number)

  def _turn(self) -> None:
    for number, events in self._epoll.poll(_TICK_S if self.ticking else None):
      if number == self._wake:
        os.eventfd_read(self._wake)
      elif number in self._handles:
        self._guarded(functools.partial(self._handle, number, events))
    while self._asked and not self._ending:
      self._guarded(self._asked.popleft())
    self._guarded(self._each)
    if self.ticking and time.monotonic() >= self._next_s:
      self._next_s = time.monotonic() + _TICK_S
      self._guarded(self._tick)
