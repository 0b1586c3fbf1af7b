"""Heartbeats: whether the coordinator is alive, and what its clock shows.

A process sends heartbeats to the coordinator, which answers each with its
clock.  The answer with the shortest round trip gives the offset between the two
clocks (as in NTP, RFC 5905).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from cluster.network import time_limits
from cluster.network.errors import InvalidMessage
from cluster.network.messages import (
  HeartbeatReply,
  Schema,
  ServerHeartbeat,
  SessionEnd,
  WorkerHeartbeat,
)
from cluster.network.streams import Stream, TransportError
from system import clock, threads

BEATS = 5  # Heartbeats within the silence after which a process is lost.

T = TypeVar('T')


@contextlib.contextmanager
def within(stream: Stream, limit_s: float) -> Iterator[None]:
  """Cancels a stream if the body takes longer than a limit, which ends waits.

  Args:
    stream: The stream.
    limit_s: The limit, seconds.
  """
  with time_limits.limit(limit_s, lambda: stream.cancel('no answer in time')):
    yield


class Heartbeat(Generic[T]):
  """Heartbeats on a stream to the coordinator, which has threads for them.

  Attributes:
    ended: Set once the coordinator has ended the session, or is lost.
    end: The coordinator's last message; of the kind 'lost' if there is none.
    invalid: Error of a message of the coordinator that cannot be true; None
      for none.
  """

  def __init__(
    self,
    stream: Stream,
    *,
    schema: Schema[HeartbeatReply | SessionEnd | T],
    timeout_s: float,
    beat: Callable[[float], WorkerHeartbeat | ServerHeartbeat],
    receive: Callable[[T], None],
    on_end: Callable[[], None],
  ):
    """Creates heartbeats; `start` sends them.

    Args:
      stream: Stream to the coordinator.
      schema: Messages that the coordinator may send.
      timeout_s: Silence of the coordinator after which it counts as lost,
        seconds.
      beat: Returns a heartbeat, given the time of this process's clock.
      receive: Called with all other messages, from another thread; may raise
        InvalidMessage, which ends the session.
      on_end: Called once `ended` is set, from another thread.
    """
    self.ended = threads.Event()
    self.end = SessionEnd('lost', '')
    self.invalid: InvalidMessage | None = None
    self._stream, self._schema = stream, schema
    self._timeout_s = timeout_s
    self._on_end = on_end
    self._receive = receive
    self._beat = beat
    self._finishing = threads.Lock()
    # Heartbeats, and how many had been sent when the last message arrived.
    # Each number is written by one thread alone, so that none gets lost.
    self._num_sent = self._num_answered = 0
    self._round_trip_s, self._offset_s = float('inf'), 0.0
    self._threads = [
      threads.Thread(target=self._run, args=[target], daemon=True)
      for target in (self._send, self._listen)
    ]

  def start(self) -> None:
    """Starts to send heartbeats, and to call `receive` and `on_end`."""
    # Heartbeats wait behind the body of another message, and count nothing.
    self._stream.limit_silence(self._timeout_s)
    self._stream.limit_unsent()
    for thread in self._threads:
      thread.start()

  def join(self, limit_s: float) -> bool:
    """Waits until nothing is called any more, after the stream's `cancel`.

    Args:
      limit_s: Limit of the wait, seconds.

    Returns:
      Whether that is so; if not, a call has not returned in time.
    """
    deadline = clock.monotonic() + limit_s
    for thread in self._threads:
      thread.join(max(deadline - clock.monotonic(), 0.0))
    return not any(thread.is_alive() for thread in self._threads)

  def coordinator_time(self, here: float) -> float:
    """Returns the coordinator's clock at a time of this process's clock.

    Args:
      here: Time as `clock.monotonic` gives it.
    """
    return here + self._offset_s

  def _run(self, thread: Callable[[], SessionEnd | None]) -> None:
    """Runs a thread; ends the session with its result, unless that is None."""
    # An error that nobody expects is printed when the thread ends.
    end: SessionEnd | None = SessionEnd('lost', 'its heartbeat has failed')
    try:
      end = thread()
    finally:
      if end:
        self._finish(end)

  def _send(self) -> SessionEnd | None:
    """Sends heartbeats until one fails, or none is answered."""
    while not self.ended.wait(self._timeout_s / BEATS):
      # Counts heartbeats, not seconds: this process may have been stopped.
      self._num_sent += 1
      if self._num_sent - self._num_answered >= BEATS:
        return SessionEnd('lost', f'no answer for {self._timeout_s:g} s')
      try:
        self._stream.send(self._beat(clock.monotonic()))
      except TransportError:
        break  # `_listen` meets the error, too, and reports it.
    return None

  def _listen(self) -> SessionEnd:
    """Receives messages; returns the last one."""
    try:
      self._stream.send(self._beat(clock.monotonic()))
      while True:
        message = self._stream.receive(self._schema).header
        self._num_answered = self._num_sent
        if isinstance(message, HeartbeatReply):
          self._compare(message, clock.monotonic())
        elif isinstance(message, SessionEnd):
          return message
        else:
          self._receive(message)
    except InvalidMessage as error:
      self.invalid = error
      return SessionEnd('lost', str(error))
    except TransportError as error:
      return SessionEnd('lost', str(error))

  def _compare(self, reply: HeartbeatReply, received: float) -> None:
    round_trip_s = received - reply.sent
    if round_trip_s < self._round_trip_s:
      self._round_trip_s = round_trip_s
      self._offset_s = reply.clock - (reply.sent + received) / 2

  def _finish(self, end: SessionEnd) -> None:
    """Ends the session; the first of both threads to call it decides how."""
    with self._finishing:
      if self.ended.is_set():
        return
      self.end = end
      self.ended.set()
    self._on_end()
