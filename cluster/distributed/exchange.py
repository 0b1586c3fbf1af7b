"""How a worker receives a version from a server, and sends it a push.

In pieces, both go on at once: each piece of a version comes back as soon as all
workers have sent theirs.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from cluster.transport.streams import (
  Closed,
  Corrupt,
  Stream,
  TransportError,
  chunked,
)
from wire.flat import AHEAD

# What chunks go through on their way.
Through = Callable[[Iterable[np.ndarray]], Iterable[np.ndarray]]


class Window:
  """Lets a push in pieces be but a little ahead of the pull that answers it.

  Attributes:
    pieces: Bytes of each; empty if pushes do not travel in pieces.
  """

  def __init__(self, pieces: Sequence[int]):
    self.pieces = pieces
    self._back = 0  # Pieces that have come back.
    self._lost = False
    self._changed = threading.Condition()

  def cut(self, vector: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the pieces of a vector, uint8, when they may be sent."""
    with self._changed:
      self._back = 0
    ends = np.cumsum(self.pieces)
    for number, piece in enumerate(np.split(vector, ends[:-1])):
      with self._changed:
        self._changed.wait_for(
          lambda n=number: n < self._back + AHEAD or self._lost
        )
        if self._lost:
          raise Closed('The stream was lost.')
      yield piece

  def came(self) -> None:
    """Notes that a piece has come back."""
    with self._changed:
      self._back += 1
      self._changed.notify_all()

  def lose(self) -> None:
    """Lets nobody wait any more: nothing will come."""
    with self._changed:
      self._lost = True
      self._changed.notify_all()


def pull(
  stream: Stream, buffer: np.ndarray, window: Window, through: Through = iter
) -> dict[str, Any]:
  """Returns the header of a version, which is in the buffer then.

  Args:
    stream: From the server.
    buffer: uint8 [pull_bytes].
    window: Of the push whose answer it is.
    through: What chunks go through.

  Raises:
    TransportError: If the stream has ended, or what came is something else.
  """
  try:
    message = stream.receive()
    header, start = message.header, 0
    for chunk in through(message.chunks):
      buffer[start : start + chunk.size] = chunk
      start += chunk.size
      del chunk  # Before the next one arrives, which so takes its memory.
      if not header:  # It comes in pieces, before the barrier.
        window.came()
    if start != buffer.size:
      raise Corrupt(f'Expected {buffer.size} bytes to pull, got {start}.')
    if header:
      return header
    message = stream.receive()
    if message.size_bytes:  # They were void: somebody was lost meanwhile.
      message.read(buffer)
    return message.header
  except TransportError:
    window.lose()
    raise


def push(
  stream: Stream,
  report: dict[str, Any],
  message: list[np.ndarray],
  window: Window,
  through: Through = iter,
  *,
  corrupt: bool = False,
  short: bool = False,
) -> None:
  """Sends a push.

  Args:
    stream: To the server.
    report: What goes with it.
    message: uint8 [n] each.
    window: For its pieces.
    through: What chunks go through.
    corrupt: Whether to flip a bit on its way.
    short: Whether to send but half of it.

  Raises:
    Closed: If the stream has ended.
  """
  if short:
    message = [part[: part.size // 2] for part in message]
  size = sum(part.size for part in message)
  chunks = chunked(message)
  if window.pieces and not short:
    chunks = window.cut(*message)
  stream.send(report, through(chunks), size, spoil=corrupt)
