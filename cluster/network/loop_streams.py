"""Streams that an event loop serves, without a thread for each.

The other ends are those of `streams.connect`.  What is done with a stream is a
coroutine, which waits for bytes of its peer; messages are sent from any thread.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import numpy as np
from absl import logging

from cluster.network import frames, time_limits
from cluster.network.connection import Connection, drop_sent
from cluster.network.errors import (
  CLOSED,
  ENDED,
  Closed,
  TransportError,
  describe,
)
from cluster.network.frame_reader import READ_BYTES, FrameReader, Receiving
from cluster.network.frames import CHUNK, END, TEXT
from cluster.network.messages import Schema, encode_header
from cluster.network.socket_loop import IN, OUT, SocketLoop
from cluster.network.streams import (
  CONTROL,
  GRACE_S,
  HELLO,
  SMALL_BYTES,
  BaseListener,
  Port,
)
from system import net, threads

T = TypeVar('T')

# Bytes and buffers that the system is given at once.
_BATCH_BYTES, _BATCH_BUFFERS = 1 << 21, 64
_TURN_BYTES = 1 << 22  # Sent before other streams have their turn.
_MAX_TURNS = 16  # Calls to receive before other streams have their turn.
_MAX_MESSAGES = 2**14  # That wait for a peer, which does not read if more do.


class LoopStream:
  """One end of a stream, driven by an event loop.

  Coroutines of `receive`, `receive_chunk` and `fill` run in the loop.  `send`,
  `send_chunk` and `cancel` may be called from any thread and never block.

  Attributes:
    peer: Address of the other end.
  """

  def __init__(self, loop: SocketLoop, connection: Connection):
    """Creates a stream, in the thread of the loop; `run` starts it.

    Args:
      loop: The event loop.
      connection: Authenticated connection, which the stream then owns.
    """
    self.peer = connection.peer
    self._loop, self._connection = loop, connection
    self._reader = FrameReader(connection.peer)
    self._receive_some = connection.receiver()
    self._send_some = connection.sender()
    self._lock = threads.Lock()  # Of all below, and of TLS.
    self._frames: collections.deque[tuple[int, Any]] = collections.deque()
    self._num_waiting = 0  # Messages among the frames.
    self._unsent: list[Any] = []  # Buffers of frames that are being sent.
    self._num_sent = 0  # Frames.
    self._is_blocked = False  # Whether the system has no room.
    self._is_ending = False  # Whether the last frame is queued.
    self._reason = ''  # Reason for the end of the connection.
    # In the loop.
    self._events = 0  # That are watched.
    self._steps: Receiving[None] | None = None
    self._wanted: list[memoryview] = []
    self._on_end: Callable[[], None] = lambda: None

  def receive(
    self, schema: Schema[T], most_bytes: int | None = None
  ) -> Receiving[tuple[T, int]]:
    """Receives a message: see `FrameReader.receive`."""
    return self._reader.receive(schema, most_bytes)

  def receive_chunk(
    self, left: int, into: memoryview | None = None
  ) -> Receiving[np.ndarray]:
    """Receives a chunk of its body: see `FrameReader.receive_chunk`."""
    return self._reader.receive_chunk(left, into)

  def fill(self, into: np.ndarray) -> Receiving[None]:
    """Receives its whole body: see `FrameReader.fill`."""
    return self._reader.fill(into)

  def send(
    self, header: Any, chunks: Iterable[np.ndarray] = (), size_bytes: int = 0
  ) -> None:
    """Queues a message, and sends what the system has room for.

    Does nothing if the stream has ended, which `receive` reports.  A stream
    whose peer does not read ends once too many messages wait.

    Args:
      header: A message of the schema.
      chunks: uint8 [n], contiguous, which must not change any more; those that
        are missing follow by `send_chunk`, before the next message.
      size_bytes: Bytes of all chunks.
    """
    text = encode_header(header, size_bytes)
    queued = [(TEXT, text), *((CHUNK, chunk.data) for chunk in chunks)]
    self._queue(queued, messages=1)

  def send_chunk(self, chunk: np.ndarray) -> None:
    """Queues the next chunk of the last message's body: see `send`."""
    self._queue([(CHUNK, chunk.data)])

  def cancel(self, reason: str = 'cancelled') -> None:
    """Ends the stream at once; its coroutine raises Closed.

    The last messages may be lost.
    """
    with self._lock:
      self._reason = self._reason or reason
      self._frames.clear()
      self._unsent.clear()
    self._connection.shut_down()

  @property
  def has_unsent(self) -> bool:
    """True if the system has not taken all that was sent."""
    with self._lock:
      return bool(self._frames or self._unsent)

  def limit_silence(self, timeout_s: float) -> None:
    """Ends the stream if the peer does not take what was sent.

    Args:
      timeout_s: Seconds without progress.
    """
    with contextlib.suppress(OSError):  # It may have ended.
      self._connection.limit_silence(timeout_s)

  def run(self, steps: Receiving[None], on_end: Callable[[], None]) -> None:
    """Runs a coroutine until it returns; then closes the connection.

    Args:
      steps: The coroutine.
      on_end: Called at the end, in the loop.
    """
    self._steps, self._on_end = steps, on_end
    self._guard(lambda: self._advance(lambda: next(steps)))
    if self._has_decrypted:  # Without an event.
      self._handle(IN)

  def end(self, reason: str) -> None:
    """Queues the last frame; nothing can be sent after it.  From any thread.

    Args:
      reason: Text that `receive` of the peer raises.
    """
    with self._lock:
      if not self._reason and not self._is_ending:
        self._is_ending = True
        self._frames.append((END, (reason or CLOSED).encode()))
        self._flush()

  def close(self, reason: str) -> Receiving[None]:
    """Ends the stream after everything that was sent; takes at most seconds.

    Args:
      reason: Text that `receive` of the peer raises.
    """
    self.end(reason)
    # Bytes that the system has and nobody reads would make it reset the
    # connection, and the peer might lose our last messages.
    scratch = [memoryview(bytearray(READ_BYTES))]
    with time_limits.limit(GRACE_S, self._connection.shut_down):
      try:
        while True:
          yield scratch
      except Closed:
        pass  # The peer has ended, too.

  def abandon(self) -> None:
    """Closes the connection and ends the coroutine, in the loop."""
    self.cancel('the listener has closed')
    steps, self._steps = self._steps, None
    if steps is None:
      return
    self._loop.forget(self._connection.sock)
    self._connection.close()
    try:
      steps.close()
    finally:
      self._on_end()

  @property
  def _has_decrypted(self) -> bool:
    """Returns whether TLS holds decrypted bytes, while other threads send."""
    with self._lock:
      return self._connection.has_decrypted

  def _queue(self, queued: list[tuple[int, Any]], *, messages: int = 0) -> None:
    with self._lock:
      if self._reason or self._is_ending:
        return
      self._frames += queued
      self._num_waiting += messages
      self._flush()
      is_stuck = self._num_waiting > _MAX_MESSAGES
    if is_stuck:
      self.cancel(f'{_MAX_MESSAGES} messages wait for the peer')

  def _flush(self) -> None:
    """Sends what the system has room for; under the lock."""
    if self._is_blocked:
      return
    count = 0
    try:
      # Others have their turn even if there is always room.
      while count < _TURN_BYTES and (self._unsent or self._frames):
        if not self._unsent:
          self._pack()
        sent = self._send_some(self._unsent)
        drop_sent(self._unsent, sent)
        count += sent
    except BlockingIOError:
      pass
    except OSError as error:
      self._reason = self._reason or f'cannot send: {describe(error)}'
      self._frames.clear()
      self._unsent.clear()
      self._connection.shut_down()  # The coroutine is notified.
      return
    if self._unsent or self._frames:
      self._is_blocked = True
      self._loop.post(self._watch)
    elif self._is_ending:
      self._connection.shut_down(net.SHUT_WR)

  def _pack(self) -> None:
    """Makes buffers of the next frames."""
    size = 0
    while (
      self._frames
      and size < _BATCH_BYTES
      and len(self._unsent) < _BATCH_BUFFERS
    ):
      kind, payload = self._frames.popleft()
      self._num_waiting -= kind == TEXT
      self._unsent += frames.pack_header(kind, self._num_sent, payload), payload
      self._num_sent += 1
      size += frames.HEADER_BYTES + len(payload)
    if size <= SMALL_BYTES:
      self._unsent = [b''.join(self._unsent)]

  def _watch(self) -> None:
    """Watches the events that the stream waits for, in the loop."""
    events = IN | (OUT if self._is_blocked else 0)
    if self._steps is not None and events != self._events:
      self._events = events
      self._loop.watch(self._connection.sock, events, self._handle)

  def _handle(self, events: int) -> None:
    self._guard(functools.partial(self._handle_events, events))

  def _handle_events(self, events: int) -> None:
    if events & OUT:
      with self._lock:
        self._is_blocked = False
        self._flush()
    if events & ~OUT:
      self._read()
    self._watch()

  def _read(self) -> None:
    """Gives the coroutine what has arrived."""
    encrypted = self._connection.is_encrypted
    for _ in range(_MAX_TURNS):
      wanted = self._wanted
      try:
        with self._lock:
          count = self._receive_some(wanted)
      except BlockingIOError:
        return
      except OSError as error:
        self._lose(describe(error))
        return
      if not count:
        self._lose(ENDED)
        return
      self._feed(count)
      is_drained = not encrypted and count < sum(map(len, wanted))
      if self._steps is None or is_drained:
        return
    if self._has_decrypted:  # Without an event.
      self._loop.post(lambda: self._handle(IN))

  def _feed(self, count: int) -> None:
    steps = self._steps
    if steps is not None:
      self._advance(lambda: steps.send(count))

  def _lose(self, why: str) -> None:
    """Raises Closed in the coroutine."""
    steps = self._steps
    if steps is not None:
      with self._lock:
        self._reason = self._reason or why
      lost = Closed(f'{self.peer}: {self._reason}')
      self._advance(lambda: steps.throw(lost))

  def _advance(self, resume: Callable[[], list[memoryview]]) -> None:
    """Resumes the coroutine until it waits again, or returns."""
    try:
      self._wanted = resume()
    except StopIteration:
      self._steps = None
      self._loop.forget(self._connection.sock)
      self._connection.close()
      self._on_end()
    else:
      self._watch()

  def _guard(self, function: Callable[[], None]) -> None:
    """Calls a function; closes the connection if that raises."""
    is_expected = False
    try:
      function()
      is_expected = True
    finally:
      if not is_expected:
        self.abandon()


class LoopListener(BaseListener[LoopStream]):
  """Accepts streams of one service of a port, and serves all in one thread."""

  def __init__(
    self,
    port: Port,
    handle: Callable[[LoopStream, msgspec.Raw], Receiving[None]],
    *,
    service: str = CONTROL,
  ):
    """Starts to listen.

    Args:
      port: Port of this process.
      handle: Returns the coroutine that serves a stream, given the encoded
        hello of its peer.  It runs in the thread of an event loop, which it
        must not block.  The stream ends when it returns; its exceptions are
        logged, and raised at the peer as Closed.
      service: Name that clients ask for, at most 8 characters.

    Raises:
      TransportError: If the address cannot be listened on; raised from the
        error of the system, if that says why.
      ValueError: If the port offers the service already.
      OSError: If the process has no descriptors or threads left.
    """
    super().__init__(port, service)
    self._coroutine = handle
    self._loop = SocketLoop(
      f'streams-{service}',
      after_events=lambda: None,
      tick=lambda: None,
      on_error=lambda _: None,  # The loop logs it, and the stream has ended.
      on_exit=self._finish,
    )
    is_offered = False
    try:
      self._offer()
      is_offered = True
    finally:
      if not is_offered:
        self._loop.close()

  def close(self, grace_s: float) -> None:
    """Stops to accept streams, and ends all that are open: see `BaseListener`.

    Args:
      grace_s: Seconds that they are given to end by themselves.
    """
    super().close(grace_s)
    self._loop.close()

  def _start(self, connection: Connection) -> None:
    if not self._loop.post(lambda: self._begin(connection)):
      connection.close()

  def _begin(self, connection: Connection) -> None:
    stream = LoopStream(self._loop, connection)
    if not self._add(stream):
      connection.close()
      return
    stream.run(self._run(stream), lambda: self._remove(stream))

  def _run(self, stream: LoopStream) -> Receiving[None]:
    reason = yield from self._serve(stream)
    yield from stream.close(reason)

  def _serve(self, stream: LoopStream) -> Receiving[str]:
    """Runs the coroutine of a stream; returns the reason of its end."""
    try:
      with self._limit_hello(stream):
        hello, _ = yield from stream.receive(HELLO, 0)
    except TransportError as error:
      return self._log_refusal(stream, error)
    stream.send(None)
    try:
      yield from self._coroutine(stream, hello.copy())
    # Nobody waits for the result: the error is logged, and sent to the client.
    except Exception as error:
      return self._log_end(stream, error)
    return ''

  def _finish(self, error: Exception | None) -> None:
    if error is not None:
      logging.error('%s: all its streams end.', self.address)
    for stream in self.open_streams():
      stream.abandon()
