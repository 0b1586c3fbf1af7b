"""An event-loop thread for sockets, which also runs calls of other threads."""

import collections
import contextlib
import errno
import functools
from collections.abc import Callable
from typing import TypeVar

from absl import logging

from system import clock, net, threads

IN, OUT = net.EPOLLIN, net.EPOLLOUT
# Edge-triggered: one event each time there is room again, or data arrives.
IN_OR_ROOM = net.EPOLLIN | net.EPOLLOUT | net.EPOLLET
Handler = Callable[[int], None]
_TICK_S = 0.1
_Result = TypeVar('_Result')


class SocketLoop:
  """An event-loop thread; all methods but `post`, `run`, `close` run in it.

  Attributes:
    is_ticking: Whether `tick` is called.
  """

  def __init__(
    self,
    name: str,
    *,
    after_events: Callable[[], None],
    tick: Callable[[], None],
    on_error: Callable[[Exception], None],
    on_exit: Callable[[Exception | None], None],
  ):
    """Starts the thread.

    Args:
      name: Name of the thread.
      after_events: Called after some events have been handled.
      tick: Called about every tenth of a second while `is_ticking`.
      on_error: Called with each exception of the functions above, of a handler
        or of a posted function.  The thread continues, and no longer watches
        the socket of that handler.
      on_exit: Called when the thread ends, with the exception that ended it,
        if any.

    Raises:
      OSError: If the process has no descriptors or threads left.
    """
    self.is_ticking = False
    self._after_events, self._tick = after_events, tick
    self._on_error, self._on_exit = on_error, on_exit
    self._next_tick_s = 0.0
    self._epoll = net.epoll()
    self._handlers: dict[int, Handler] = {}
    self._posted: collections.deque[Callable[[], object]] = collections.deque()
    try:
      self._wake = net.Wake()
    except OSError:
      self._epoll.close()
      raise
    self._epoll.register(self._wake.number, IN)
    self._is_ending = self._has_ended = False
    self._num_pings = self._last_ping = 0
    self._lock = threads.Lock()
    self._thread = threads.Thread(target=self._run, name=name, daemon=True)
    try:
      self._thread.start()
    except RuntimeError as error:
      self._epoll.close()
      self._wake.close()
      raise OSError(errno.EAGAIN, str(error)) from error

  def watch(self, sock: net.Socket, events: int, handler: Handler) -> None:
    """Registers the handler of a socket's events, replacing an earlier one."""
    number = sock.fileno()
    try:
      self._epoll.register(number, events)
    except FileExistsError:
      self._epoll.modify(number, events)
    self._handlers[number] = handler

  def forget(self, sock: net.Socket) -> None:
    """Unregisters a socket."""
    self._forget(sock.fileno())

  def post(self, function: Callable[[], object]) -> bool:
    """Schedules a call in the thread; returns whether the thread still runs.

    Thread-safe.
    """
    with self._lock:
      if self._has_ended:
        return False
      self._posted.append(function)
      if len(self._posted) == 1:
        self._wake.set()
    return True

  def run(self, function: Callable[[], _Result]) -> _Result | None:
    """Calls a function in the thread, and returns its result.

    Returns None if the thread has ended, or if the function has raised an
    exception, which `on_error` has received.  Not for the loop's own thread.
    """
    done = threads.Event()
    results: list[_Result] = []

    def call() -> None:
      try:
        self._guard(lambda: results.append(function()))
      finally:
        done.set()

    if self.post(call):
      done.wait()
    return results[0] if results else None

  def count_unanswered(self) -> int:
    """Pings the thread; returns the number of pings since its last response.

    Not for the loop's own thread.
    """
    self._num_pings += 1
    number = self._num_pings

    def respond() -> None:
      self._last_ping = number

    self.post(respond)
    return number - self._last_ping

  def close(self) -> None:
    """Ends the thread after all posted calls; not for the thread itself."""

    def end() -> None:
      self._is_ending = True

    self.post(end)
    self._thread.join()

  def _run(self) -> None:
    error: Exception | None = RuntimeError('its thread has ended')
    try:
      while not self._is_ending:
        self._turn()
      error = None
    # Threads that wait for this one are notified instead of waiting forever.
    except Exception as raised:
      logging.exception('The event loop %s ends.', self._thread.name)
      error = raised
    finally:  # An error that is no Exception ends the thread, too.
      self._end(error)

  def _end(self, error: Exception | None) -> None:
    """Calls `on_exit`, then what was posted before."""
    with self._lock:
      self._wake.close()
      self._has_ended = True
    try:
      self._on_exit(error)
    finally:
      while self._posted:
        try:
          self._posted.popleft()()
        except (OSError, ValueError):
          pass  # Sockets are closed.
        # Threads may wait for later calls.
        except Exception:
          logging.exception(
            'A function after the event loop %s failed.', self._thread.name
          )
      self._epoll.close()

  def _guard(self, function: Callable[[], object]) -> None:
    """Calls a function, and `on_error` with its exception."""
    try:
      function()
    # The one place where an unexpected error becomes known to waiting threads.
    except Exception as error:
      logging.exception(
        'A function in the event loop %s failed.', self._thread.name
      )
      self._on_error(error)

  def _handle(self, number: int, events: int) -> None:
    """Calls a handler; one that raises is not called again."""
    handler = self._handlers[number]
    is_handled = False
    try:
      handler(events)
      is_handled = True
    finally:
      # Another socket may have the number by now.
      if not is_handled and self._handlers.get(number) is handler:
        self._forget(number)

  def _forget(self, number: int) -> None:
    # A closed socket is no longer registered.
    if self._handlers.pop(number, None):
      with contextlib.suppress(OSError):
        self._epoll.unregister(number)

  def _turn(self) -> None:
    timeout_s = _TICK_S if self.is_ticking else None
    for number, events in self._epoll.poll(timeout_s):
      if number == self._wake.number:
        self._wake.clear()
      elif number in self._handlers:
        self._guard(functools.partial(self._handle, number, events))
    while self._posted and not self._is_ending:
      self._guard(self._posted.popleft())
    self._guard(self._after_events)
    if self.is_ticking and clock.monotonic() >= self._next_tick_s:
      self._next_tick_s = clock.monotonic() + _TICK_S
      self._guard(self._tick)
