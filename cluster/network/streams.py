"""Long-lived streams of messages between processes, over TCP.

`connect` opens a stream; `loop_streams.LoopListener` accepts streams on a
`Port`.  Both complete the handshake.  A message is a header, one of the classes
of `messages`, and a body in chunks of bytes.  Chunks travel as soon as they are
sent, and arrive in their destination, without a copy unless they are small.
"""

import abc
import contextlib
import logging as log
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import msgspec
import numpy as np
from absl import logging

from cluster.network import frames, time_limits
from cluster.network.connection import Connection, open_channel
from cluster.network.errors import (
  CLOSED,
  ENDED,
  Closed,
  Corrupt,
  Refused,
  TransportError,
  describe,
)
from cluster.network.frame_reader import READ_BYTES, FrameReader, Receiving
from cluster.network.frames import CHUNK, END, TEXT
from cluster.network.handshake import Security, open_connection
from cluster.network.interfaces import interface_address
from cluster.network.messages import NOTHING, Schema, encode, encode_header
from cluster.network.port import Port
from cluster.network.rate_limited_log import RateLimitedLog
from configs.checks import require
from system import clock, net, threads

__all__ = [
  'CONTROL',
  'ELECTION',
  'STATES',
  'Closed',
  'Corrupt',
  'Incoming',
  'Port',
  'Refused',
  'Security',
  'Spoil',
  'Stream',
  'TransportError',
  'chunked',
  'connect',
  'interface_address',
  'push_service',
]

CHUNK_BYTES = 1 << 21  # The fastest on loopback.
GRACE_S = 2.0  # Limit of the other end's answer when a stream ends.
# Services: processes of a run and their coordinator, states of replicas,
# standings in an election.  Pushes to a server have a service of their own.
CONTROL, STATES, ELECTION = 'control', 'states', 'election'
_RETRY_S = 0.05
SMALL_BYTES = 2**14  # Largest frames that are copied into one buffer.
HELLO: Schema[msgspec.Raw] = Schema(msgspec.Raw)
Spoil = Literal['first', 'last']  # Chunk that is corrupted on purpose.


def push_service(server: int) -> str:
  """Returns the name of the service that takes pushes to a server."""
  return f'push{server}'


T = TypeVar('T')
S = TypeVar('S', bound='_Accepted')


class Incoming(NamedTuple, Generic[T]):
  """A message whose body may still be on its way.

  Attributes:
    header: The decoded message.
    size_bytes: Size of the body.
    chunks: uint8 [n], as they were sent; each is valid for as long as it is
      referred to.  The next `Stream.receive` skips chunks that are left.  The
      iterator raises the errors of `Stream.receive`.
  """

  header: Any
  size_bytes: int
  chunks: Iterator[np.ndarray]

  def read(self, into: np.ndarray) -> None:
    """Receives the whole body into an array, uint8 [size_bytes].

    Raises:
      ValueError: If the array has another dtype or shape.
      TransportError: As of `Stream.receive`.
    """
    valid = into.dtype == np.uint8 and into.shape == (self.size_bytes,)
    expected, got = f'uint8 [{self.size_bytes}]', (into.dtype, into.shape)
    require(valid, 'into', expected, got)
    if isinstance(self.chunks, _Body):
      self.chunks.fill(into)
      return
    start = 0
    for chunk in self.chunks:
      into[start : start + chunk.size] = chunk
      start += chunk.size


class _Unsent(NamedTuple):
  """A frame to be written: its kind, payload, and whether that is damaged."""

  kind: int
  payload: Any
  spoil: bool


class Stream:
  """One end of a stream, for threads.

  One thread may receive while others send.  Neither has a time limit: a caller
  that expects messages of a peer calls `cancel` if the peer is silent, since a
  stopped process or a cut link raises no error.

  Attributes:
    peer: Address of the other end.
  """

  def __init__(self, connection: Connection):
    """Creates a stream, for `connect`.

    Args:
      connection: Authenticated connection, which the stream then owns.
    """
    self.peer = connection.peer
    self._connection = connection
    self._channel = open_channel(connection)
    # A stream that a failed thread has left open.
    weakref.finalize(self, connection.close).atexit = False
    self._reader = FrameReader(connection.peer)
    self._finished = False
    self._sending = threads.Lock()  # Held for a message with its body,
    self._writing = threads.Lock()  # and for frames that are written at once.
    self._receiving = threads.Lock()
    self._closing = threads.Lock()
    self._sent = 0  # Frames.
    self._reason = ''  # Reason for the end of the stream.

  def send(
    self,
    header: Any,
    chunks: Iterable[np.ndarray] = (),
    size_bytes: int = 0,
    *,
    spoil: Spoil | None = None,
  ) -> None:
    """Sends a message; each chunk is sent before the next is produced.

    Returns once the arrays may change again: the system has all bytes.  If
    producing the body fails, the stream ends.

    Args:
      header: A message of the schema.
      chunks: uint8 [n], contiguous, of any sizes above 0.
      size_bytes: Sum of their sizes.
      spoil: Chunk of which a bit is flipped after its checksum was computed, or
        of the header if there is no chunk; None for none.

    Raises:
      Closed: If the stream has ended.
      ValueError: If a chunk or the sum of sizes is invalid.
      Exception: Exceptions of `chunks`.
    """
    text = encode_header(header, size_bytes)
    with self._sending:
      try:
        self._send(text, chunks, size_bytes, spoil)
      except BaseException as error:
        self._end(f'{type(error).__name__}: {error}')
        raise

  def receive(
    self, schema: Schema[T], most_bytes: int | None = None
  ) -> Incoming[T]:
    """Waits for the next message.

    After Corrupt the stream is still usable, as the damaged message is skipped;
    unless the header of a frame was damaged, after which it has ended.

    Args:
      schema: The messages that may come.
      most_bytes: Largest size of its body; None for no limit.

    Raises:
      Closed: If the stream has ended; carries the peer's reason.
      Corrupt: If a checksum, a size or the order is wrong, or if the message is
        not one of the schema.
    """
    header, size_bytes = self._run(self._reader.receive(schema, most_bytes))
    return Incoming(header, size_bytes, _Body(self, size_bytes))

  def receive_chunk(self, left: int, into: memoryview | None) -> np.ndarray:
    """Waits for the next chunk of a body: see `FrameReader.receive_chunk`."""
    return self._run(self._reader.receive_chunk(left, into))

  def fill(self, into: np.ndarray) -> None:
    """Waits for the rest of a body: see `FrameReader.fill`."""
    self._run(self._reader.fill(into))

  def close(self, reason: str = '') -> None:
    """Ends the stream after everything that was sent; blocks for some seconds.

    Messages that the peer has not received by then may be lost.

    Args:
      reason: Text that `receive` of the peer raises.
    """
    with self._closing:
      if self._finished:
        return
      self._finished = True
      deadline = clock.monotonic() + GRACE_S
      # A body whose next chunk is not produced in time is cut off: the peer
      # still gets the reason.
      is_idle = self._sending.acquire(timeout=GRACE_S / 2)
      left_s = max(deadline - clock.monotonic(), 0.0)
      self._end(reason or CLOSED, left_s)
      if is_idle:
        self._sending.release()
      self._connection.shut_down(net.SHUT_WR)
      # Bytes that the system has and nobody reads would make it reset the
      # connection, and the peer might lose our last messages.
      left_s = max(deadline - clock.monotonic(), 0.0)
      if self._receiving.acquire(timeout=left_s):
        self._drain(deadline)
        self._receiving.release()
      self._reason = self._reason or CLOSED
      self._connection.shut_down()
      # Other threads leave their calls now.
      with self._receiving:
        self._connection.close()

  def cancel(self, reason: str = 'cancelled') -> None:
    """Ends the stream at once: calls that block on it raise Closed.

    May be called from any thread.  The last messages may be lost.  The client
    still has to close the stream.
    """
    self._reason = self._reason or reason
    self._connection.shut_down()

  def limit_silence(self, timeout_s: float) -> None:
    """Ends the stream if the peer does not take what was sent.

    Args:
      timeout_s: Seconds without progress.
    """
    with contextlib.suppress(OSError):  # It may have ended.
      self._connection.limit_silence(timeout_s)

  @property
  def sent_bytes(self) -> int:
    """Number of bytes that were sent and have arrived."""
    return self._connection.acknowledged_bytes

  @property
  def busy_s(self) -> float:
    """Seconds during which something was on its way to the peer."""
    return self._connection.busy_s

  def limit_unsent(self) -> None:
    """Limits the bytes that wait in the kernel before the next message."""
    with contextlib.suppress(OSError):  # It may have ended.
      self._connection.limit_unsent()

  def _send(
    self,
    text: bytes,
    chunks: Iterable[np.ndarray],
    size_bytes: int,
    spoil: Spoil | None,
  ) -> None:
    unsent = [_Unsent(TEXT, text, bool(spoil) and not size_bytes)]
    sent = 0
    for chunk in chunks:
      first = not sent
      sent += chunk.size
      valid = 0 < chunk.nbytes == chunk.size <= frames.MAX_PAYLOAD_BYTES
      valid = valid and chunk.ndim == 1 and chunk.flags.c_contiguous
      require(valid, 'chunks', 'uint8 [n], n > 0', (chunk.dtype, chunk.shape))
      require(sent <= size_bytes, 'chunks', f'{size_bytes} bytes', sent)
      is_spoilt = (spoil == 'first' and first) or (
        spoil == 'last' and sent == size_bytes
      )
      self._write([*unsent, _Unsent(CHUNK, chunk.data, is_spoilt)])
      unsent = []
    require(sent == size_bytes, 'chunks', f'{size_bytes} bytes', sent)
    if unsent:
      self._write(unsent)

  def _write(self, unsent: Sequence[_Unsent]) -> None:
    with self._writing:
      self._write_all(unsent, None)

  def _write_all(
    self, unsent: Sequence[_Unsent], deadline: float | None
  ) -> None:
    """Writes frames; under the lock of writing."""
    if self._reason:
      raise Closed(f'{self.peer}: {self._reason}')
    buffers: list[Any] = []
    for kind, payload, spoil in unsent:
      header = frames.pack_header(kind, self._sent, payload)
      self._sent += 1
      if spoil:
        payload = bytearray(payload)
        payload[-1] ^= 1
      buffers += header, payload
    if sum(map(len, buffers)) <= SMALL_BYTES:
      buffers = [b''.join(buffers)]
    try:
      self._channel.send(buffers, deadline)
    except OSError as error:
      why = self._reason or f'cannot send: {describe(error)}'
      # `receive` knows the reason, and may have more to read before it.
      raise Closed(f'{self.peer}: {why}') from error

  def _end(self, reason: str, limit_s: float = GRACE_S) -> None:
    """Sends the last frame, unless the stream has ended."""
    deadline = clock.monotonic() + limit_s
    if not self._writing.acquire(timeout=limit_s):
      return  # The peer does not take a frame.
    try:
      self._write_all([_Unsent(END, reason.encode(), False)], deadline)
      self._reason = reason
    except Closed:
      pass  # It has ended before.
    finally:
      self._writing.release()

  def _run(self, steps: Receiving[T]) -> T:
    """Runs a coroutine of the reader to its end; returns its result."""
    if self._reason:
      steps.close()
      raise Closed(f'{self.peer}: {self._reason}')
    try:
      buffers = next(steps)
      while True:
        buffers = steps.send(self._receive(buffers))
    except StopIteration as end:
      result: T = end.value
      return result
    except Corrupt:
      if self._reader.end:  # Where the next frame begins is unknown.
        self.cancel(self._reader.end)
      raise
    except Closed:
      self._reason = self._reason or self._reader.end
      raise

  def _receive(self, buffers: list[memoryview]) -> int:
    """Waits for bytes; returns how many have come, at least 1."""
    with self._receiving:
      if self._reason:
        raise Closed(f'{self.peer}: {self._reason}')
      try:
        count = self._channel.receive(buffers)
      except OSError as error:
        raise self._lost(describe(error)) from error
    if not count:
      raise self._lost(ENDED)
    return count

  def _drain(self, deadline: float) -> None:
    """Reads and drops what arrives until the peer has ended, too."""
    scratch = memoryview(bytearray(READ_BYTES))
    with contextlib.suppress(OSError):
      while self._channel.receive([scratch], deadline):
        pass

  def _lost(self, why: str) -> TransportError:
    self._reason = self._reason or why
    return Closed(f'{self.peer}: {self._reason}')


class _Body(Iterator[np.ndarray]):
  """Chunks of a message that arrives on a stream."""

  def __init__(self, stream: Stream, size_bytes: int):
    self._stream, self._left = stream, size_bytes

  def __next__(self) -> np.ndarray:
    if not self._left:
      raise StopIteration
    chunk = self._stream.receive_chunk(self._left, None)
    self._left -= chunk.size
    return chunk

  def fill(self, into: np.ndarray) -> None:
    """Receives all chunks into an array of their size."""
    if not into.flags.c_contiguous:
      into[:] = np.concatenate([*self])
      return
    left, self._left = self._left, 0
    self._stream.fill(into[:left])


class _Accepted(Protocol):
  """A stream that a listener has accepted."""

  @property
  def peer(self) -> str:
    """Address of the other end."""

  def cancel(self, reason: str = ...) -> None:
    """Ends the stream at once."""


class BaseListener(abc.ABC, Generic[S]):
  """Accepts streams of one service of a port; a context manager.

  Attributes:
    address: 'address:port' of the port.
  """

  def __init__(self, port: Port, service: str):
    """Creates the listener, which accepts streams after `_offer`."""
    self.address = ''
    self._port, self._service = port, service
    self._refusals, self._failures = RateLimitedLog(), RateLimitedLog()
    self._ends = RateLimitedLog()
    self._streams: set[S] = set()
    self._changed = threads.Condition()
    self._is_closed = False

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: Any) -> None:
    self.close(GRACE_S)

  def close(self, grace_s: float) -> None:
    """Stops to accept streams, and ends all that are open.

    Args:
      grace_s: Seconds that they are given to end by themselves.  Handlers that
        do not wait for a stream are given up to 2 s more.
    """
    with self._changed:
      if self._is_closed:
        return
      self._is_closed = True
    self._port.withdraw(self._service)
    with self._changed:
      self._changed.wait_for(lambda: not self._streams, grace_s)
      for stream in self._streams:
        stream.cancel('the listener has closed')
      self._changed.wait_for(lambda: not self._streams, GRACE_S)
      count = len(self._streams)
    if count:
      logging.warning(
        '%s: %d streams are still handled after %g s',
        self.address,
        count,
        grace_s + GRACE_S,
      )
    self._refusals.close()
    self._failures.close()

  def open_streams(self) -> list[S]:
    """Returns the streams that have not ended."""
    with self._changed:
      return list(self._streams)

  @abc.abstractmethod
  def _start(self, connection: Connection) -> None:
    """Starts to serve a connection; in the thread of the port."""

  def _offer(self) -> None:
    self._port.offer(self._service, self._start)
    self.address = self._port.address

  def _add(self, stream: S) -> bool:
    """Records a stream; returns whether the listener is still open."""
    with self._changed:
      if not self._is_closed:
        self._streams.add(stream)
      return not self._is_closed

  def _remove(self, stream: S) -> None:
    with self._changed:
      self._streams.discard(stream)
      self._changed.notify_all()

  def _limit_hello(self, stream: S) -> contextlib.AbstractContextManager[None]:
    """Ends a stream whose first message takes too long."""
    late = f'no hello within {self._port.wait_s:g} s'
    return time_limits.limit(self._port.wait_s, lambda: stream.cancel(late))

  def _log_refusal(self, stream: S, error: TransportError) -> str:
    """Logs the error for which a hello is refused; returns it as text."""
    return _log_refusal(self._refusals, stream, error)

  def _log_end(self, stream: S, error: Exception) -> str:
    """Logs the error for which a stream ends; returns it as text.

    That a peer has ended without a reason is not logged: it does so at the end
    of a run.
    """
    if isinstance(error, Closed):
      if not str(error).endswith((f': {CLOSED}', f': {ENDED}')):
        self._ends.write(str(error), level=log.INFO)
      return str(error)
    if isinstance(error, TransportError):
      return _log_refusal(self._failures, stream, error)
    text = f'{stream.peer}: the handler of the stream failed'
    self._failures.write(text, level=log.ERROR, error=error)
    return f'{type(error).__name__}: {error}'


def connect(
  address: str,
  hello: object,
  security: Security,
  timeout_s: float,
  *,
  service: str = CONTROL,
  waits: Callable[[], bool] = lambda: True,
) -> Stream:
  """Returns a stream to a listener, waiting for the listener if need be.

  Args:
    address: 'host:port' of the listener.
    hello: Message that its handler is called with.
    security: Credentials of this process, of which `key` is not used.
    timeout_s: Seconds to wait for the listener and for its answer.
    service: Name of the service of the listener.
    waits: Returns, before each further try, whether to try again if there is no
      listener.

  Raises:
    Refused: If the token is not that of the listener.
    Closed: If there is no answer in time; says what went wrong last.
  """
  deadline = clock.monotonic() + timeout_s
  while True:
    try:
      return _open(address, hello, security, deadline, service)
    except Closed as error:
      if clock.monotonic() + _RETRY_S >= deadline or not waits():
        raise Closed(f'No stream within {timeout_s:g} s; {error}') from error
    clock.sleep(_RETRY_S)


def _open(
  address: str, hello: object, security: Security, deadline: float, service: str
) -> Stream:
  left_s = max(deadline - clock.monotonic(), 0.0)
  stream = Stream(open_connection(address, security, service, timeout_s=left_s))
  try:
    left_s = max(deadline - clock.monotonic(), 0.0)
    with time_limits.limit(left_s, lambda: stream.cancel('no answer')):
      stream.send(msgspec.Raw(encode(hello)))
      stream.receive(NOTHING, 0)
  except TransportError:
    stream.close()
    raise
  return stream


def chunked(
  arrays: Iterable[np.ndarray], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[np.ndarray]:
  """Yields views of arrays, uint8 [n], one array after the other.

  Args:
    arrays: The arrays.
    chunk_bytes: Size of each chunk but the last of an array.
  """
  for array in arrays:
    for start in range(0, array.size, chunk_bytes):
      yield array[start : start + chunk_bytes]


def _log_refusal(
  refusals: RateLimitedLog, stream: _Accepted, error: TransportError
) -> str:
  """Logs the error for which a stream ends; returns it as text."""
  why = str(error).removeprefix(f'{stream.peer}: ')
  refusals.write(f'{stream.peer}: refused: {why}')
  return why
