"""Flow control of pushes in pieces, for pipelined parameter servers."""

from collections.abc import Iterator, Sequence

import numpy as np

from cluster.network.streams import Closed
from cluster.pipelining import AHEAD
from system import threads


class Window:
  """A window that limits how far a push is ahead of the pull that answers it.

  Attributes:
    pieces: Bytes of each piece; empty if pushes are sent as a whole.
  """

  def __init__(self, pieces: Sequence[int]):
    self.pieces = pieces
    self._answered = 0  # Pieces whose next version has been pulled.
    self._is_lost = False
    self._changed = threads.Condition()

  def cut(self, vector: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the pieces of a vector, uint8, as soon as they may be sent.

    Raises:
      Closed: If the stream is lost meanwhile.
    """
    with self._changed:
      self._answered = 0
    ends = np.cumsum(self.pieces)
    for number, piece in enumerate(np.split(vector, ends[:-1])):
      with self._changed:
        while number >= self._answered + AHEAD and not self._is_lost:
          self._changed.wait()
        if self._is_lost:
          raise Closed('The stream was lost.')
      yield piece

  def widen(self) -> None:
    """Widens the window by one piece, as its next version has been pulled."""
    with self._changed:
      self._answered += 1
      self._changed.notify_all()

  def lose(self) -> None:
    """Ends all waits with an error, as the stream is lost."""
    with self._changed:
      self._is_lost = True
      self._changed.notify_all()
