"""Messages with bodies, over one call of Arrow Flight between two processes.

A message is a header, one of the classes of `messages`, and a body in chunks of
bytes, each with a checksum; the header travels with the first chunk.  Chunks
travel as soon as they are sent and are handed over as soon as they arrive,
without a copy unless they are small.
"""

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from cluster.network import frames
from cluster.network.errors import Closed, Corrupt, TransportError, ended
from cluster.network.frames import CHUNK, END, HEADER, Frame
from cluster.network.messages import Schema, encode_header
from configs.checks import require

# Exceptions of Flight, from any of its layers.
ERRORS = (pa.ArrowException, flight.FlightError, OSError)
CHUNK_BYTES = 1 << 21  # The fastest on loopback.
GRACE_S = 2.0  # Limit of the other end's answer when a stream ends.
_HEADER_BYTES = 2**24  # Orders for a thousand workers take a tenth of it.
Spoil = Literal['first', 'last']  # Chunk that is corrupted on purpose.
_REASON = 300  # Characters of a peer's text that are logged.

T = TypeVar('T')


class Incoming(NamedTuple, Generic[T]):
  """A message whose body may still be on its way.

  Attributes:
    header: The decoded message.
    size_bytes: Size of the body.
    chunks: uint8 [n], read-only, as they were sent and without a copy; each is
      valid for as long as it is referred to.  The next `Stream.receive` skips
      chunks that are left.  The iterator raises the errors of `Stream.receive`.
  """

  header: Any
  size_bytes: int
  chunks: Iterator[np.ndarray]

  def read(self, into: np.ndarray) -> None:
    """Copies the whole body into an array, uint8 [size_bytes].

    Raises:
      ValueError: If the array has another dtype or shape.
      TransportError: As of `Stream.receive`.
    """
    valid = into.dtype == np.uint8 and into.shape == (self.size_bytes,)
    expected, got = f'uint8 [{self.size_bytes}]', (into.dtype, into.shape)
    require(valid, 'into', expected, got)
    start = 0
    for chunk in self.chunks:
      whole = slice(start, start + chunk.size)
      if chunk.size > frames.SMALL_BYTES:
        into[whole] = chunk
      else:  # NumPy would release Python's lock, and wait for it again.
        into.data[whole] = chunk.data
      start += chunk.size
      del chunk  # Before the next one arrives, which so uses its memory.


class Stream:
  """One end of a stream.

  One thread may receive while others send.  Neither has a time limit: a caller
  that expects messages of a peer calls `cancel` if the peer is silent, since a
  stopped process or a cut link raises no error.

  Attributes:
    peer: Address of the other end.
  """

  def __init__(
    self,
    reader: Any,
    writer: Any,
    peer: str,
    cut: Callable[[], None],
    finish: Callable[[], None],
  ):
    """Creates a stream of a call, for `connect` and `Listener`.

    Args:
      reader: Flight's reader of the call.
      writer: Flight's writer of the call.
      peer: Address of the other end.
      cut: Ends the call at once.
      finish: Ends the call after everything that was sent.
    """
    self.peer = peer
    self._reader = reader
    self._writer = writer
    self._cut = cut
    self._finish = finish
    self._finished = False
    self._sending = threading.Lock()
    self._receiving = threading.Lock()
    self._closing = threading.Lock()
    self._sent = self._received = 0
    self._held: Frame | None = None  # Read, but of the next message.
    self._returned: queue.SimpleQueue[Any] = queue.SimpleQueue()
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

    Returns once the arrays may change again: all of them have been copied or
    handed to the kernel.  If producing the body fails, the stream ends.

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

    After Corrupt the stream is still usable: the damaged message is skipped.

    Args:
      schema: The messages that may come.
      most_bytes: Largest size of its body; None for no limit.

    Raises:
      Closed: If the stream has ended; carries the peer's reason.
      Corrupt: If a checksum, a size or the order is wrong, or if the message is
        not one of the schema.
    """
    frame = self._held or self._read()
    self._held = None
    while frame.kind == CHUNK:
      frame = self._read()
    if frame.chunk is not None:
      self._held = Frame(CHUNK, memoryview(b''), frame.chunk)
    try:
      header, size_bytes = schema.decode_header(frame.text)
    except ValueError as error:
      why = _printable(str(error)[:_REASON])
      raise Corrupt(f'{self.peer}: sent another message: {why}') from error
    if most_bytes is not None and size_bytes > most_bytes:
      raise Corrupt(
        f'{self.peer}: expected a body of at most {most_bytes} bytes, got one '
        f'of {size_bytes}'
      )
    return Incoming(header, size_bytes, self._body(size_bytes))

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
      timer = threading.Timer(GRACE_S, self.cancel)
      timer.start()
      # A body that waits to be produced keeps the lock, but writes nothing.
      if self._sending.acquire(timeout=2 * GRACE_S):
        self._end(reason or 'closed')
        self._sending.release()
      with self._receiving:
        self._finish()
        self._reason = self._reason or 'closed'
      timer.cancel()
      # Another stream may have the same address from here on.
      self._cut = lambda: None

  def cancel(self, reason: str = 'cancelled') -> None:
    """Ends the stream at once: calls that block on it raise Closed.

    May be called from any thread.  The last messages may be lost.  The client
    still has to close the stream.
    """
    self._reason = self._reason or reason
    self._returned.put(None)
    self._cut()

  def _send(
    self,
    text: bytes,
    chunks: Iterable[np.ndarray],
    size_bytes: int,
    spoil: Spoil | None,
  ) -> None:
    lent: list[weakref.ref[np.ndarray]] = []
    sent = 0
    for chunk in chunks:
      first = not sent
      sent += chunk.size
      valid = 0 < chunk.nbytes == chunk.size <= frames.BATCH_BYTES
      require(valid, 'chunks', 'uint8 [n], n > 0', (chunk.dtype, chunk.shape))
      require(sent <= size_bytes, 'chunks', f'{size_bytes} bytes', sent)
      view = chunk.view()
      if chunk.size > frames.SMALL_BYTES:
        lent.append(weakref.ref(view, self._returned.put))
      is_spoilt = (spoil == 'first' and first) or (
        spoil == 'last' and sent == size_bytes
      )
      kind, before = (HEADER, text) if first else (CHUNK, b'')
      self._write(kind, before, view, spoil=is_spoilt)
      del view
    require(sent == size_bytes, 'chunks', f'{size_bytes} bytes', sent)
    if not sent:
      self._write(HEADER, text, spoil=spoil is not None)
    # gRPC may still read the caller's memory after it has taken a write.
    for _ in lent:
      if self._returned.get() is None:
        raise Closed(f'{self.peer}: {self._reason}')

  def _write(
    self,
    kind: bytes,
    text: bytes,
    chunk: np.ndarray | None = None,
    *,
    spoil: bool = False,
  ) -> None:
    if self._reason:
      raise Closed(f'{self.peer}: {self._reason}')
    metadata, chunk = frames.packed(kind, self._sent, text, chunk, spoil=spoil)
    self._sent += 1
    try:
      if chunk is None:
        self._writer.write_metadata(metadata)
      else:
        self._writer.write_with_metadata(frames.batch(chunk), metadata)
    except ERRORS as error:
      # `receive` knows the reason, and may have more to read before it.
      raise Closed(f'{self.peer}: cannot send: {error}') from error

  def _end(self, reason: str) -> None:
    with contextlib.suppress(Closed):
      self._write(END, reason.encode())
      self._reason = reason

  def _body(self, left: int) -> Iterator[np.ndarray]:
    while left:
      data = self._chunk(left)
      left -= data.size
      # No reference is left while the next one arrives, which so can use the
      # same memory.
      lent = [data]
      del data
      yield lent.pop()

  def _chunk(self, left: int) -> np.ndarray:
    frame = self._held or self._read()
    self._held = None
    chunk = frame.chunk
    if frame.kind != CHUNK or chunk is None or chunk.size > left:
      self._held = frame
      raise Corrupt(f'{self.peer}: the body is not of the size announced')
    return chunk

  def _read(self) -> Frame:
    with self._receiving:
      if self._reason:
        raise Closed(f'{self.peer}: {self._reason}')
      try:
        read = self._reader.read_chunk()
      except StopIteration:
        raise self._lost('the connection ended') from None
      except ERRORS as error:
        raise self._lost(error) from error
    frame = self._parsed(read)
    if frame.kind == END:
      raise self._lost(
        _printable(str(frame.text[:_REASON], 'utf-8', 'replace'))
      )
    return frame

  def _parsed(self, read: flight.FlightStreamChunk) -> Frame:
    metadata = memoryview(read.app_metadata or b'')
    expected, self._received = self._received, self._received + 1
    if len(metadata) < frames.FORM.size:
      raise Corrupt(f'{self.peer}: expected a frame, got {len(metadata)} bytes')
    kind, number, checksum, size = frames.FORM.unpack_from(metadata)
    if number != expected:
      self._received = number + 1
      raise Corrupt(f'{self.peer}: expected frame {expected}, got {number}')
    sent = metadata[frames.FORM.size :]
    most = min(len(sent), _HEADER_BYTES)
    if size > most or kind not in (HEADER, CHUNK, END):
      raise Corrupt(
        f'{self.peer}: expected a header, a chunk or an end of up to {most} '
        f'bytes, got {size} in frame {number}'
      )
    chunk, small = None, len(sent) > size
    if len(sent) - size > frames.SMALL_BYTES:
      raise Corrupt(f'{self.peer}: expected a small chunk in frame {number}')
    if read.data is not None or (kind == CHUNK and not small):
      chunk = None if small else frames.unbatched(read.data)
      if chunk is None:
        raise Corrupt(f'{self.peer}: expected bytes in frame {number}')
    if frames.checksum(sent, chunk) != checksum:
      raise Corrupt(f'{self.peer}: frame {number} has another checksum')
    if small:
      chunk = np.frombuffer(sent[size:], np.uint8)
    return Frame(kind, sent[:size], chunk)

  def _lost(self, why: Exception | str) -> TransportError:
    error = ended(self.peer, self._reason or why)
    self._reason = self._reason or str(error).partition(': ')[2]
    return error


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


def _printable(text: str) -> str:
  """Returns a text with unprintable characters replaced."""
  return ''.join(c if c.isprintable() else '?' for c in text)
