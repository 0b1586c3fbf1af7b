"""Frames: what executors send each other, on connections that go one way.

A frame is a header of 48 bytes, which says of what dtype numbers are, and a
body, the bytes of a chunk.  Both have a checksum (xxh3) of their own, so that a
size is believed before the body is there.  Bodies are received where they
belong and sent from where they are, without a copy of ours.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import xxhash

from cluster.network.errors import Corrupt

UP, DOWN, LEFT = 1, 2, 3
# Of numbers; the code of one is its place.
DTYPES = tuple(map(np.dtype, (np.float32, ml_dtypes.bfloat16, np.float16)))
FLOAT32, BFLOAT16, FLOAT16 = range(3)
HEADER_BYTES = 48
_FIELDS = struct.Struct('<QQIIIHHQ')
_CHECKSUM = struct.Struct('<Q')
_MOST = 16  # Frames that one connection may have read before the others.
Receive = Callable[[Sequence[memoryview]], int]
Send = Callable[[Sequence[Any]], int]


class Frame(NamedTuple):
  """A header.

  Attributes:
    generation: Of the group.
    iteration: That the chunk is of.
    layout: Code of the pool's chunks and their trees, the same on all workers.
    chunk: Number of the chunk in the pool.
    size: Bytes of the body.
    kind: UP for a part of a sum, DOWN for a sum, LEFT for the last frame of who
      has given the generation up.
    dtype: What the body's numbers are: the place in `DTYPES`.
    checksum: Of the body.
  """

  generation: int
  iteration: int
  layout: int
  chunk: int
  size: int
  kind: int
  dtype: int
  checksum: int


def packed(
  generation: int,
  iteration: int,
  layout: int,
  chunk: int,
  kind: int,
  body: Any,
  dtype: int = 0,
) -> bytes:
  """Returns the header of a body, bytes."""
  checksum = xxhash.xxh3_64_intdigest(body)
  fields = _FIELDS.pack(
    generation, iteration, layout, chunk, len(body), kind, dtype, checksum
  )
  return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))


def parsed(header: memoryview) -> Frame:
  """Returns what a header says.

  Raises:
    Corrupt: If its checksum is another one.
  """
  fields = header[: _FIELDS.size]
  (checksum,) = _CHECKSUM.unpack_from(header, _FIELDS.size)
  if xxhash.xxh3_64_intdigest(fields) != checksum:
    raise Corrupt('the header of a frame has another checksum')
  return Frame(*_FIELDS.unpack(fields))


class Reader:
  """The receiving end of a connection.

  Attributes:
    received_bytes: So far, with headers.
  """

  def __init__(
    self,
    receive: Receive,
    place: Callable[[Frame], memoryview],
    arrived: Callable[[Frame, memoryview], None],
    *,
    drained: bool,
  ):
    """Has received nothing yet.

    Args:
      receive: Fills buffers, one after the other; returns how many bytes, 0 at
        the end.  Raises BlockingIOError if there are none now.
      place: Gives the memory for the body of a frame; may raise Corrupt.
      arrived: Is told of a body that is as it was sent.
      drained: Whether nothing is left once a buffer was not filled.
    """
    self._receive, self._place, self._arrived = receive, place, arrived
    self._drained = drained
    self._header = memoryview(bytearray(HEADER_BYTES))
    self._frame: Frame | None = None
    self._body = self._header[:0]
    self._got = 0  # Of the body if there is a frame, of the header otherwise.
    self.received_bytes = 0

  @property
  def within(self) -> bool:
    """Whether the last frame has not arrived whole."""
    return self._frame is not None or self._got > 0

  def read(self) -> bool:
    """Reads what there is, up to some frames; returns whether more may come.

    Raises:
      Corrupt: If it is not what was sent, or is none of what is expected.
      OSError: If the connection is broken.
    """
    frames = 0
    while frames < _MOST:
      if self._frame is None:
        wanted = [self._header[self._got :]]
      else:
        wanted = [self._body[self._got :], self._header]
      try:
        count = self._receive(wanted)
      except BlockingIOError:
        return True
      if not count:
        return False
      self.received_bytes += count
      self._got += count
      if self._frame is not None and self._got >= self._frame.size:
        frames += 1
        self._finish(self._frame)
      if self._frame is None and self._got == HEADER_BYTES:
        self._start(parsed(self._header))
      if self._drained and count < sum(map(len, wanted)):
        return True
    return True

  def _start(self, frame: Frame) -> None:
    self._body = self._place(frame)
    self._frame, self._got = frame, 0
    if not frame.size:
      self._finish(frame)

  def _finish(self, frame: Frame) -> None:
    body, self._body = self._body, self._header[:0]
    # What came after the body is the beginning of the next header.
    self._frame, self._got = None, self._got - frame.size
    if xxhash.xxh3_64_intdigest(body) != frame.checksum:
      raise Corrupt(f'chunk {frame.chunk} has another checksum')
    self._arrived(frame, body)


class Writer:
  """The sending end of a connection.

  Attributes:
    sent_bytes: So far, with headers, handed to the system.
  """

  def __init__(self, send: Send):
    """Has sent nothing yet.

    Args:
      send: Sends from buffers, one after the other; returns how many bytes.
        Raises BlockingIOError if there is no room now.
    """
    self._send = send
    self._left: list[Any] = []
    self.sent_bytes = 0

  @property
  def within(self) -> bool:
    """Whether the last frame has not been sent whole."""
    return bool(self._left)

  def write(self, *buffers: Any) -> bool:
    """Sends what is left and then buffers, which are left if there is no room.

    Returns:
      Whether nothing is left.

    Raises:
      OSError: If the connection is broken.
    """
    left: list[Any] = [*self._left, *buffers]
    while left:
      try:
        count = self._send(left)
      except BlockingIOError:
        break
      self.sent_bytes += count
      while left and count >= len(left[0]):
        count -= len(left.pop(0))
      if count:
        left[0] = memoryview(left[0])[count:]
    self._left = left
    return not left
