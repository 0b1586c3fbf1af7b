"""Ends of a connection that read and write frames without blocking.

Payloads are received into their destination and sent from their source, without
a copy: for event loops.
"""

from collections.abc import Callable, Sequence
from typing import Any

import xxhash

from cluster.network.errors import Corrupt
from cluster.network.frames import HEADER_BYTES, FrameHeader, parse_header

_MAX_FRAMES = 16  # Frames read from one connection before the others' turn.
Receive = Callable[[Sequence[memoryview]], int]
Send = Callable[[Sequence[Any]], int]


class Reader:
  """Receiving end of a connection.

  Attributes:
    received_bytes: Number of bytes received so far, with headers.
  """

  def __init__(
    self,
    receive: Receive,
    allocate: Callable[[FrameHeader], memoryview],
    deliver: Callable[[FrameHeader, memoryview], None],
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
    self._frame: FrameHeader | None = None
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

  def _start(self, frame: FrameHeader) -> None:
    self._body = self._allocate(frame)
    self._frame, self._count = frame, 0
    if not frame.size:
      self._finish(frame)

  def _finish(self, frame: FrameHeader) -> None:
    body, self._body = self._body, self._header[:0]
    # Bytes after the body are the start of the next header.
    self._frame, self._count = None, self._count - frame.size
    if xxhash.xxh3_64_intdigest(body) != frame.checksum:
      raise Corrupt(f'chunk {frame.number} has another checksum')
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
