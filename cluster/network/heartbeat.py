"""Heartbeats: whether the coordinator is alive, and what its clock shows.

A process sends heartbeats to the coordinator, which answers each with its
clock.  The answer with the shortest round trip gives the offset between the two
clocks (as in NTP, RFC 5905).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from cluster.network.messages import (
  HeartbeatReply,
  Schema,
  ServerHeartbeat,
  SessionEnd,
  WorkerHeartbeat,
)
from cluster.network.streams import Stream, TransportError
from cluster.network.time_limits import LIMITS

BEATS = 5  # Heartbeats within the silence after which a process is lost.

T = TypeVar('T')


@contextlib.contextmanager
def within(stream: Stream, limit_s: float) -> Iterator[None]:
  """Cancels a stream if the body takes longer than a limit, which ends waits.

  Args:
    stream: The stream.
    limit_s: The limit, seconds.
  """
  with LIMITS.limit(limit_s, lambda: stream.cancel('no answer in time')):
    yield


class Heartbeat(Generic[T]):
  """Heartbeats on a stream to the coordinator, which has threads for them.

  Attributes:
    ended: Set once the coordinator has ended the session, or is lost.
    end: The coordinator's last message; of the kind 'lost' if there is none.
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
    """Starts to send heartbeats.

    Args:
      stream: Stream to the coordinator.
      schema: Messages that the coordinator may send.
      timeout_s: Silence of the coordinator after which it counts as lost,
        seconds.
      beat: Returns a heartbeat, given the time of this process's clock.
      receive: Called with all other messages, from another thread.
      on_end: Called once `ended` is set, from another thread.
    """
    self.ended = threading.Event()
    self.end = SessionEnd('lost', '')
    self._stream, self._schema = stream, schema
    self._timeout_s = timeout_s
    self._on_end = on_end
    self._receive = receive
    self._beat = beat
    self._finishing = threading.Lock()
    self._unanswered = 0  # Heartbeats.
    self._round_trip_s, self._offset_s = float('inf'), 0.0
    # Heartbeats wait behind the body of another message, and count nothing.
    stream.limit_silence(timeout_s)
    stream.limit_unsent()
    for target in (self._send, self._listen):
      threading.Thread(target=self._run, args=[target], daemon=True).start()

  def coordinator_time(self, here: float) -> float:
    """Returns the coordinator's clock at a time of this process's clock.

    Args:
      here: Time as `time.monotonic` gives it.
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
      self._unanswered += 1
      if self._unanswered >= BEATS:
        return SessionEnd('lost', f'no answer for {self._timeout_s:g} s')
      try:
        self._stream.send(self._beat(time.monotonic()))
      except TransportError:
        break  # `_listen` meets the error, too, and reports it.
    return None

  def _listen(self) -> SessionEnd:
    """Receives messages; returns the last one."""
    try:
      self._stream.send(self._beat(time.monotonic()))
      while True:
        message = self._stream.receive(self._schema).header
        self._unanswered = 0
        if isinstance(message, HeartbeatReply):
          self._compare(message, time.monotonic())
        elif isinstance(message, SessionEnd):
          return message
        else:
          self._receive(message)
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
