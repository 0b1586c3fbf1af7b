"""How far a push in pieces may be ahead of the pull that answers it."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from cluster.network.streams import Closed
from cluster.pipelining import AHEAD


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
