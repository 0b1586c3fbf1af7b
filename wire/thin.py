"""Thin factors of matrices, summed among workers by a conversation in NumPy.

What `wire.lowrank` compiles for a sum among workers, for hosts: there XLA makes
each product in fresh memory and passes over it again.  Here matrices are passed
over block by block of their rows, in memory that is used again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from wire.codec import Room, Rows, State, Summed, Talk

_BLOCK = 2**15  # Numbers that stay in a core's cache while they are used.


class Thin(NamedTuple):
  """A worker's part of the conversation.

  Attributes:
    rank: Columns of each factor.
    matrices: In the order in which they lie.
    gaps: What is no matrix.
  """

  rank: int
  matrices: Sequence[Rows]
  gaps: Sequence[slice]

  def talk(
    self, state: State, vector: np.ndarray, scale: float, room: Room
  ) -> Talk:
    """Yields what a worker says; see `Codec.hosted`."""
    # Who has computed what is not finite has noticed.
    with np.errstate(over='ignore', invalid='ignore'):
      said = self._lefts(state, vector, np.float32(scale), room)
    heard = np.asarray((yield said))
    lefts, summed = self._factors(heard, [each.rows for each in self.matrices])
    lefts = [np.linalg.qr(left)[0].astype(np.float32) for left in lefts]
    summed = summed.copy()  # What is heard next may lie where this does.
    with np.errstate(over='ignore', invalid='ignore'):
      said = self._rights(lefts, vector, room)
    heard = np.array((yield said))
    with np.errstate(over='ignore', invalid='ignore'):
      total = self._total(lefts, said, heard, vector, room)
      if scale != 1:
        vector *= np.float32(1 / scale)
    for gap, numbers in self._between(summed):
      total[gap], vector[gap] = numbers, 0
    common, _ = self._factors(heard, self._columns)
    return Summed(total), State(vector, common=common)

  @property
  def _columns(self) -> list[int]:
    return [each.columns for each in self.matrices]

  def _lefts(
    self, state: State, vector: np.ndarray, scale: np.float32, room: Room
  ) -> np.ndarray:
    """Adds what was kept to a vector; returns first factors, and the rest."""
    kept = np.asarray(state.kept)
    rest = sum(gap.stop - gap.start for gap in self.gaps)
    rows = sum(each.rows for each in self.matrices)
    said = room('lefts', self.rank * rows + rest)
    lefts, others = self._factors(said, [each.rows for each in self.matrices])
    for each, left, right in zip(
      self.matrices, lefts, state.common, strict=True
    ):
      factor = np.asarray(right)
      for place, lines in _blocks(each):
        vector[place] += _times(kept[place], scale)
        np.matmul(_matrix(vector, place, each), factor, out=left[lines])
    for gap, numbers in self._between(others):
      vector[gap] += _times(kept[gap], scale)
      numbers[...] = vector[gap]
    return said

  def _rights(
    self, lefts: Sequence[np.ndarray], vector: np.ndarray, room: Room
  ) -> np.ndarray:
    """Returns the second factors, of what the first are among all."""
    said = room('rights', self.rank * sum(self._columns))
    rights, _ = self._factors(said, self._columns)
    said[...] = 0
    for each, left, right in zip(self.matrices, lefts, rights, strict=True):
      for place, lines in _blocks(each):
        right += _matrix(vector, place, each).T @ left[lines]
    return said

  def _total(
    self,
    lefts: Sequence[np.ndarray],
    own: np.ndarray,
    heard: np.ndarray,
    vector: np.ndarray,
    room: Room,
  ) -> Any:
    """Returns the sum of all; takes the own part of it from a vector."""
    longest = max((each.columns for each in self.matrices), default=0)
    scratch = room('scratch', max(_BLOCK, longest))
    total = room('sum', vector.size)
    (owns, _), (rights, _) = (
      self._factors(numbers, self._columns) for numbers in (own, heard)
    )
    for each, left, mine, right in zip(
      self.matrices, lefts, owns, rights, strict=True
    ):
      for place, lines in _blocks(each):
        np.matmul(left[lines], right.T, out=_matrix(total, place, each))
        sent = scratch[: place.stop - place.start]
        np.matmul(left[lines], mine.T, out=sent.reshape(-1, each.columns))
        vector[place] -= sent
    return total

  def _factors(
    self, numbers: np.ndarray, lengths: Sequence[int]
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns factors that lie end to end, and what lies after them."""
    found, start = [], 0
    for length in lengths:
      end = start + length * self.rank
      found.append(numbers[start:end].reshape(length, self.rank))
      start = end
    return found, numbers[start:]

  def _between(self, rest: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields where what is no matrix lies, and what."""
    start = 0
    for gap in self.gaps:
      end = start + gap.stop - gap.start
      yield gap, rest[start:end]
      start = end


def _blocks(matrix: Rows) -> Iterator[tuple[slice, slice]]:
  """Yields where some rows lie in the vector, and which they are."""
  step = max(_BLOCK // matrix.columns, 1)
  for first in range(0, matrix.rows, step):
    last = min(first + step, matrix.rows)
    start = matrix.start
    yield (
      slice(start + first * matrix.columns, start + last * matrix.columns),
      slice(first, last),
    )


def _matrix(vector: np.ndarray, place: slice, each: Rows) -> Any:
  return vector[place].reshape(-1, each.columns)


def _times(kept: np.ndarray, scale: np.float32) -> np.ndarray:
  return kept if scale == 1 else kept * scale
