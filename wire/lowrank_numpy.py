"""NumPy implementation of the low-rank allreduce of `wire.lowrank`, for hosts.

There XLA makes each product in newly allocated memory and passes over it again.
Here matrices are passed over block by block of their rows, in memory that is
used again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wire.codec import PartialVector, Rounds, Rows, State, Workspace
from wire.factors import FactorSettings

_BLOCK = 2**15  # Numbers that stay in a core's cache while they are used.


class NumpyFactors(FactorSettings):
  """NumPy implementation of a worker's part in the low-rank allreduce."""

  def allreduce(
    self, state: State, vector: np.ndarray, scale: float, workspace: Workspace
  ) -> Rounds:
    """Yields left factors and numbers between matrices, then right factors."""
    # A worker whose gradient is not finite has reported that already.
    with np.errstate(over='ignore', invalid='ignore'):
      contribution = self._project(state, vector, np.float32(scale), workspace)
    reduced = np.asarray((yield contribution))
    rows = [each.rows for each in self.matrices]
    left_sums, rest = self._factors(reduced, rows)
    lefts = [np.linalg.qr(left)[0].astype(np.float32) for left in left_sums]
    rest = rest.copy()  # The next sum may lie where this one does.
    with np.errstate(over='ignore', invalid='ignore'):
      contribution = self._project_back(lefts, vector, workspace)
    reduced = np.array((yield contribution))
    with np.errstate(over='ignore', invalid='ignore'):
      total = self._multiply(lefts, contribution, reduced, vector, workspace)
      if scale != 1:
        vector *= np.float32(1 / scale)
    for gap, numbers in self._between(rest, vector.size):
      total[gap], vector[gap] = numbers, 0
    replicated, _ = self._factors(reduced, self._columns)
    return PartialVector(total), State(vector, replicated=replicated)

  @property
  def _columns(self) -> list[int]:
    return [each.columns for each in self.matrices]

  def _project(
    self,
    state: State,
    vector: np.ndarray,
    scale: np.float32,
    workspace: Workspace,
  ) -> np.ndarray:
    """Adds the residual to a vector; returns the first contribution."""
    residual = np.asarray(state.residual)
    between = sum(gap.stop - gap.start for gap in self.gaps(vector.size))
    rows = [each.rows for each in self.matrices]
    contribution = workspace.array('lefts', self.rank * sum(rows) + between)
    lefts, rest = self._factors(contribution, rows)
    for each, left, right in zip(
      self.matrices, lefts, state.replicated, strict=True
    ):
      factor = np.asarray(right)
      for place, lines in _blocks(each):
        vector[place] += _times(residual[place], scale)
        np.matmul(_matrix(vector, place, each), factor, out=left[lines])
    for gap, numbers in self._between(rest, vector.size):
      vector[gap] += _times(residual[gap], scale)
      numbers[...] = vector[gap]
    return contribution

  def _project_back(
    self, lefts: Sequence[np.ndarray], vector: np.ndarray, workspace: Workspace
  ) -> np.ndarray:
    """Returns the second contribution, of the orthogonal left factors."""
    contribution = workspace.array('rights', self.rank * sum(self._columns))
    rights, _ = self._factors(contribution, self._columns)
    contribution[...] = 0
    for each, left, right in zip(self.matrices, lefts, rights, strict=True):
      for place, lines in _blocks(each):
        right += _matrix(vector, place, each).T @ left[lines]
    return contribution

  def _multiply(
    self,
    lefts: Sequence[np.ndarray],
    contribution: np.ndarray,
    reduced: np.ndarray,
    vector: np.ndarray,
    workspace: Workspace,
  ) -> np.ndarray:
    """Returns the reduced products; takes the worker's own from a vector."""
    longest = max((each.columns for each in self.matrices), default=0)
    scratch = workspace.array('scratch', max(_BLOCK, longest))
    total = workspace.array('sum', vector.size)
    (own_rights, _), (rights, _) = (
      self._factors(numbers, self._columns)
      for numbers in (contribution, reduced)
    )
    for each, left, own_right, right in zip(
      self.matrices, lefts, own_rights, rights, strict=True
    ):
      for place, lines in _blocks(each):
        np.matmul(left[lines], right.T, out=_matrix(total, place, each))
        sent = scratch[: place.stop - place.start]
        np.matmul(left[lines], own_right.T, out=sent.reshape(-1, each.columns))
        vector[place] -= sent
    return total

  def _factors(
    self, numbers: np.ndarray, lengths: Sequence[int]
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the factors that lie end to end in a vector, and what follows."""
    found, start = [], 0
    for length in lengths:
      end = start + length * self.rank
      found.append(numbers[start:end].reshape(length, self.rank))
      start = end
    return found, numbers[start:]

  def _between(
    self, rest: np.ndarray, n: int
  ) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields places of a vector [n] in no matrix, and their part of `rest`."""
    start = 0
    for gap in self.gaps(n):
      end = start + gap.stop - gap.start
      yield gap, rest[start:end]
      start = end


def _blocks(matrix: Rows) -> Iterator[tuple[slice, slice]]:
  """Yields, for blocks of rows, their place in the vector and their indices."""
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


def _times(residual: np.ndarray, scale: np.float32) -> np.ndarray:
  return residual if scale == 1 else residual * scale
