"""The receiving half of a stream: frames of messages and of their bodies.

A coroutine yields the buffers that it waits to be filled and is sent the number
of bytes that have arrived.  So a thread that blocks (`streams`) and an event
loop that does not (`loop_streams`) read frames by the same code.
"""

from collections.abc import Generator
from typing import TypeVar

import numpy as np
import xxhash

from cluster.network import frames
from cluster.network.errors import Closed, Corrupt
from cluster.network.frames import CHUNK, END, TEXT, FrameHeader
from cluster.network.messages import Schema, printable

T = TypeVar('T')
# A coroutine that yields buffers to receive into, and is sent the number of
# bytes received, at least 1.
Receiving = Generator[list[memoryview], int, T]

READ_BYTES = 2**15  # Read ahead: small messages arrive in one call.
_TEXT_BYTES = 2**24  # Orders for a thousand workers take a tenth of it.
_REASON = 300  # Characters of a peer's text that are logged.


class FrameReader:
  """Reader of the frames that one end of a stream receives.

  Attributes:
    end: Reason for which no frame follows; '' while frames may follow.
  """

  def __init__(self, peer: str):
    """Starts before the first frame.

    Args:
      peer: Address of the other end, for messages of errors.
    """
    self.end = ''
    self._peer = peer
    self._received = 0  # Frames.
    self._buffer = memoryview(bytearray(READ_BYTES))
    self._start = self._stop = 0  # Bytes of the buffer that are not used yet.
    self._frame: FrameHeader | None = None  # Whose payload is not read yet.

  def receive(
    self, schema: Schema[T], most_bytes: int | None = None
  ) -> Receiving[tuple[T, int]]:
    """Receives a message, whose body may still be on its way.

    Chunks of the message before that were not received are skipped.

    Args:
      schema: The messages that may come.
      most_bytes: Largest size of its body; None for no limit.

    Returns:
      The message, and the bytes of its body.

    Raises:
      Closed: If the peer has ended the stream; carries its reason.
      Corrupt: If a checksum, a size or the order is wrong, or if the message is
        not one of the schema.
    """
    while (frame := (yield from self._next_frame())).kind == CHUNK:
      yield from self._skip(frame)
    text = yield from self._payload(frame)
    try:
      header, size_bytes = schema.decode_header(text)
    except ValueError as error:
      raise Corrupt(f'{self._peer}: sent another message: {error}') from error
    if most_bytes is not None and size_bytes > most_bytes:
      raise Corrupt(
        f'{self._peer}: expected a body of at most {most_bytes} bytes, got one '
        f'of {size_bytes}'
      )
    return header, size_bytes

  def receive_chunk(
    self, left: int, into: memoryview | None
  ) -> Receiving[np.ndarray]:
    """Receives the next chunk of a body; returns it, uint8 [n].

    Args:
      left: Bytes of the body that have not arrived.
      into: Memory that becomes the chunk, at least `left` bytes; None for new
        memory.

    Raises:
      TransportError: As of `receive`.
    """
    frame = yield from self._next_frame()
    if frame.kind != CHUNK or frame.size > left:
      raise Corrupt(f'{self._peer}: the body is not of the size announced')
    if not frame.size:
      self._frame = None
      raise Corrupt(f'{self._peer}: expected bytes in frame {frame.number}')
    if into is None:
      into = np.empty(frame.size, np.uint8).data
    else:
      into = into[: frame.size]
    yield from self._fill(into)
    self._frame = None
    self._check(frame, into)
    return np.frombuffer(into, np.uint8)

  def fill(self, into: np.ndarray) -> Receiving[None]:
    """Receives a whole body into a contiguous array of its size, uint8 [n].

    Raises:
      TransportError: As of `receive`.
    """
    target = into.data
    while left := len(target):
      chunk = yield from self.receive_chunk(left, target)
      target = target[chunk.size :]

  def _next_frame(self) -> Receiving[FrameHeader]:
    """Returns the header of the next frame, whose payload is not read yet.

    Raises:
      Closed: If the stream has ended.
      Corrupt: If the frame is not one that may follow.
    """
    if self._frame is not None:
      return self._frame
    header = yield from self._take(frames.HEADER_BYTES)
    try:
      frame = frames.parse_header(header)
    except Corrupt as error:
      self.end = str(error)  # Where the next frame begins is unknown.
      raise Corrupt(f'{self._peer}: {error}') from error
    expected, self._received = self._received, frame.number + 1
    valid = frame.kind == CHUNK or frame.size <= _TEXT_BYTES
    if frame.number != expected:
      yield from self._skip(frame)
      raise Corrupt(
        f'{self._peer}: expected frame {expected}, got {frame.number}'
      )
    if not valid or frame.kind not in (TEXT, CHUNK, END):
      yield from self._skip(frame)
      raise Corrupt(
        f'{self._peer}: expected a header or an end of up to {_TEXT_BYTES} '
        f'bytes, or a chunk, got {frame.size} in frame {frame.number}'
      )
    if frame.kind == END:
      reason = bytes((yield from self._payload(frame))[:_REASON])
      self.end = printable(reason.decode('utf-8', 'replace'), _REASON)
      raise Closed(f'{self._peer}: {self.end}')
    self._frame = frame
    return frame

  def _payload(self, frame: FrameHeader) -> Receiving[memoryview]:
    """Receives the whole text of a frame; valid until the next call."""
    if frame.size <= READ_BYTES:
      text = yield from self._take(frame.size)
    else:
      text = memoryview(bytearray(frame.size))
      yield from self._fill(text)
    self._frame = None
    self._check(frame, text)
    return text

  def _check(self, frame: FrameHeader, payload: memoryview) -> None:
    if xxhash.xxh3_64_intdigest(payload) != frame.checksum:
      raise Corrupt(f'{self._peer}: frame {frame.number} has another checksum')

  def _skip(self, frame: FrameHeader) -> Receiving[None]:
    """Drops the payload of a frame."""
    left = frame.size
    while left:
      left -= len((yield from self._take(min(left, READ_BYTES))))
    self._frame = None

  def _take(self, size: int) -> Receiving[memoryview]:
    """Receives a few bytes; valid until the next call."""
    if self._stop - self._start < size:
      kept = self._stop - self._start
      if self._start:
        self._buffer[:kept] = bytes(self._buffer[self._start : self._stop])
        self._start, self._stop = 0, kept
      while self._stop < size:
        self._stop += yield [self._buffer[self._stop :]]
    taken = self._buffer[self._start : self._start + size]
    self._start += size
    return taken

  def _fill(self, into: memoryview) -> Receiving[None]:
    """Receives bytes into memory, and what follows them into the buffer."""
    count = min(self._stop - self._start, len(into))
    into[:count] = self._buffer[self._start : self._start + count]
    self._start += count
    while count < len(into):
      self._start = self._stop = 0  # The buffer is empty.
      count += yield [into[count:], self._buffer]
      self._stop = max(count - len(into), 0)
