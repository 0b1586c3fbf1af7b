"""Frames that executors send each other, on one-way connections.

A frame is a header of 48 bytes, which names the dtype of the numbers, and a
body, the bytes of a chunk.  Both have a checksum (xxh3) of their own, so that
the size in a header can be trusted before the body has arrived.  Bodies are
received into their destination and sent from their source, without a copy.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import xxhash

from cluster.network.errors import Corrupt

UP, DOWN, LEFT = 1, 2, 3
# Dtypes of numbers on the network; the code of a dtype is its position.
DTYPES = tuple(map(np.dtype, (np.float32, ml_dtypes.bfloat16, np.float16)))
FLOAT32, BFLOAT16, FLOAT16 = range(3)
HEADER_BYTES = 48
_FIELDS = struct.Struct('<QQIIIHHQ')
_CHECKSUM = struct.Struct('<Q')
_MAX_FRAMES = 16  # Frames read from one connection before the others' turn.
Receive = Callable[[Sequence[memoryview]], int]
Send = Callable[[Sequence[Any]], int]


class Frame(NamedTuple):
  """Header of a frame.

  Attributes:
    membership_epoch: Number of the membership epoch.
    iteration: Number of the allreduce that the chunk belongs to.
    layout: Hash of the buffer's chunks and their trees, the same on all
      workers.
    chunk: Number of the chunk in the buffer.
    size: Bytes of the body.
    kind: UP for a partial sum, DOWN for a sum, LEFT for the last frame of a
      worker that leaves the membership.
    dtype: Dtype of the body's numbers: position in `DTYPES`.
    checksum: Checksum of the body.
  """

  membership_epoch: int
  iteration: int
  layout: int
  chunk: int
  size: int
  kind: int
  dtype: int
  checksum: int


def pack_header(
  membership_epoch: int,
  iteration: int,
  layout: int,
  chunk: int,
  kind: int,
  body: Any,
  dtype: int = 0,
) -> bytes:
  """Returns the header of a body, bytes; arguments as of `Frame`."""
  checksum = xxhash.xxh3_64_intdigest(body)
  fields = _FIELDS.pack(
    membership_epoch, iteration, layout, chunk, len(body), kind, dtype, checksum
  )
  return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))


def parse_header(header: memoryview) -> Frame:
  """Returns the fields of a header.

  Raises:
    Corrupt: If its checksum differs.
  """
  fields = header[: _FIELDS.size]
  (checksum,) = _CHECKSUM.unpack_from(header, _FIELDS.size)
  if xxhash.xxh3_64_intdigest(fields) != checksum:
    raise Corrupt('the header of a frame has another checksum')
  return Frame(*_FIELDS.unpack(fields))


class Reader:
  """Receiving end of a connection.

  Attributes:
    received_bytes: Number of bytes received so far, with headers.
  """

  def __init__(
    self,
    receive: Receive,
    allocate: Callable[[Frame], memoryview],
    deliver: Callable[[Frame, memoryview], None],
    *,
    is_drained: bool,
  ):
    """Creates a reader that has received nothing yet.

    Args:
      receive: Fills buffers, one after the other; returns the number of bytes,
        0 at the end of the connection.  Raises BlockingIOError if there are
        none now.
      allocate: Returns the memory for the body of a frame; may raise Corrupt.
      deliver: Called with each body whose checksum is right.
      is_drained: Whether a buffer that is not filled means that nothing is
        left to receive.
    """
    self._receive, self._allocate, self._deliver = receive, allocate, deliver
    self._is_drained = is_drained
    self._header = memoryview(bytearray(HEADER_BYTES))
    self._frame: Frame | None = None
    self._body = self._header[:0]
    # Bytes received of the body if there is a frame, of the header otherwise.
    self._count = 0
    self.received_bytes = 0

  @property
  def is_within_frame(self) -> bool:
    """True if the last frame has not arrived completely."""
    return self._frame is not None or self._count > 0

  def read(self) -> bool:
    """Reads available frames, up to a limit; returns False at the end.

    Raises:
      Corrupt: If a checksum differs, or a frame is not expected.
      OSError: If the connection is broken.
    """
    frames = 0
    while frames < _MAX_FRAMES:
      if self._frame is None:
        buffers = [self._header[self._count :]]
      else:
        buffers = [self._body[self._count :], self._header]
      try:
        count = self._receive(buffers)
      except BlockingIOError:
        return True
      if not count:
        return False
      self.received_bytes += count
      self._count += count
      if self._frame is not None and self._count >= self._frame.size:
        frames += 1
        self._finish(self._frame)
      if self._frame is None and self._count == HEADER_BYTES:
        self._start(parse_header(self._header))
      if self._is_drained and count < sum(map(len, buffers)):
        return True
    return True

  def _start(self, frame: Frame) -> None:
    self._body = self._allocate(frame)
    self._frame, self._count = frame, 0
    if not frame.size:
      self._finish(frame)

  def _finish(self, frame: Frame) -> None:
    body, self._body = self._body, self._header[:0]
    # Bytes after the body are the start of the next header.
    self._frame, self._count = None, self._count - frame.size
    if xxhash.xxh3_64_intdigest(body) != frame.checksum:
      raise Corrupt(f'chunk {frame.chunk} has another checksum')
    self._deliver(frame, body)


class Writer:
  """Sending end of a connection.

  Attributes:
    sent_bytes: Number of bytes handed to the system so far, with headers.
  """

  def __init__(self, send: Send):
    """Creates a writer that has sent nothing yet.

    Args:
      send: Sends from buffers, one after the other; returns the number of
        bytes.  Raises BlockingIOError if there is no room now.
    """
    self._send = send
    self._unsent: list[Any] = []
    self.sent_bytes = 0

  @property
  def is_within_frame(self) -> bool:
    """True if the last frame has not been sent completely."""
    return bool(self._unsent)

  def write(self, *buffers: Any) -> bool:
    """Sends unsent bytes, then buffers; keeps what finds no room.

    Returns:
      Whether everything was sent.

    Raises:
      OSError: If the connection is broken.
    """
    unsent: list[Any] = [*self._unsent, *buffers]
    while unsent:
      try:
        count = self._send(unsent)
      except BlockingIOError:
        break
      self.sent_bytes += count
      while unsent and count >= len(unsent[0]):
        count -= len(unsent.pop(0))
      if count:
        unsent[0] = memoryview(unsent[0])[count:]
    self._unsent = unsent
    return not unsent
