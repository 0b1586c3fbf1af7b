"""Small linear programs in exact arithmetic, to which rows can be added."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

_PATIENCE = 50  # Pivots without progress after which the slow rule takes over.
_SAFE = 2**31 - 1  # Two products of integers up to this fit 64 bits.


class Program:
  """The z >= 0 of largest `objective . z` with `rows . z <= limits`.

  The simplex method from z = 0, and its dual after rows have been added; on a
  dictionary of integers over one common denominator (Edmonds), in which every
  division is exact, of 64 bits as long as they suffice.  The largest
  coefficient enters, or after a while without progress the first (Bland), with
  which the method always ends.  A pivot costs O(m n) for m rows.

  Args:
    objective: Integers [n].
    rows: Integers [m][n].
    limits: Integers [m], at least 0.
  """

  def __init__(
    self,
    objective: Sequence[int],
    rows: Sequence[Sequence[int]],
    limits: Sequence[int],
  ) -> None:
    self._n = len(objective)
    # The first row holds the costs, the last column the limits.  Variables
    # are those of z, then the slack of each row.
    table = [[*(-c for c in objective), 0]]
    table += [[*row, limit] for row, limit in zip(rows, limits, strict=True)]
    self._table = np.array(table, object)
    if abs(self._table).max() <= _SAFE:
      self._table = self._table.astype(np.int64)
    self._across = list(range(self._n))
    self._down = [-1, *range(self._n, self._n + len(table) - 1)]
    self._denominator = 1
    self._stalled = 0

  def add(self, row: Sequence[int], limit: int) -> None:
    """Adds a row, of integers [n], that z = 0 must satisfy."""
    new = np.zeros(self._n + 1, object)
    new[-1] = limit * self._denominator
    for j, variable in enumerate(self._across):
      if variable < self._n:
        new[j] += row[variable] * self._denominator
    for i, variable in enumerate(self._down):
      if 0 <= variable < self._n and row[variable]:
        new -= row[variable] * self._table[i].astype(object)
    small = abs(new).max() <= _SAFE
    self._down.append(self._n + len(self._table) - 1)
    # Together they are of 64 bits if both are.
    self._table = np.vstack(
      [self._table, new.astype(np.int64) if small else new]
    )

  def solve(self) -> tuple[list[Fraction], list[Fraction]]:
    """Returns the optimum and its proof.

    Returns:
      z, and the prices y >= 0 of the rows: `limits . y` equals the optimum,
      and `y . rows >= objective`, which proves it.

    Raises:
      ValueError: If the optimum is not bounded.
    """
    while (row := self._violated()) is not None:
      self._pivot(row, self._cheapest(row))
    while (column := self._improving()) is not None:
      self._pivot(self._binding(column), column)
    z = [Fraction(0)] * self._n
    y = [Fraction(0)] * (len(self._table) - 1)
    for i, variable in enumerate(self._down):
      if 0 <= variable < self._n:
        z[variable] = self._fraction(i, -1)
    for j, variable in enumerate(self._across):
      if variable >= self._n:
        y[variable - self._n] = self._fraction(0, j)
    return z, y

  def _fraction(self, row: int, column: int) -> Fraction:
    return Fraction(int(self._table[row, column]), self._denominator)

  def _improving(self) -> int | None:
    costs, across = self._table[0, :-1].tolist(), self._across
    if min(costs) >= 0:
      return None
    if self._stalled < _PATIENCE:
      return costs.index(min(costs))
    negative = [j for j in range(self._n) if costs[j] < 0]
    return min(negative, key=across.__getitem__)

  def _binding(self, column: int) -> int:
    """The row that first limits a variable, of the least basic variable."""
    entries, limits = (
      self._table[:, column].tolist(),
      self._table[:, -1].tolist(),
    )
    best = 0
    for i in range(1, len(entries)):
      if entries[i] > 0:
        # The ratio limit / entry against the smallest, without dividing.
        ahead = limits[i] * entries[best] - limits[best] * entries[i]
        first = self._down[i] < self._down[best]
        if not best or ahead < 0 or (ahead == 0 and first):
          best = i
    if not best:
      raise ValueError('Expected a bounded program, got an unbounded one.')
    self._stalled = 0 if limits[best] else self._stalled + 1
    return best

  def _violated(self) -> int | None:
    # Only added rows can be: before the first solution none is.
    limits, down = self._table[:, -1].tolist(), self._down
    rows = [i for i in range(1, len(limits)) if limits[i] < 0]
    return min(rows, key=down.__getitem__, default=None)

  def _cheapest(self, row: int) -> int:
    costs, entries = self._table[0].tolist(), self._table[row].tolist()
    across = self._across
    best = -1
    for j in range(self._n):
      if entries[j] < 0:
        ahead = costs[best] * entries[j] - costs[j] * entries[best]
        if best < 0 or ahead < 0 or (ahead == 0 and across[j] < across[best]):
          best = j
    return best

  def _pivot(self, row: int, column: int) -> None:
    if self._table.dtype != object and abs(self._table).max() > _SAFE:
      self._table = self._table.astype(object)
    source, factors = self._table[row].copy(), self._table[:, column].copy()
    pivot, last = int(source[column]), self._denominator
    sign = 1 if pivot > 0 else -1
    table = self._table * (sign * pivot)
    table -= np.outer(sign * factors, source)
    if last != 1:
      table //= last
    table[:, column] = -sign * factors
    table[row] = sign * source
    table[row, column] = sign * last
    self._table, self._denominator = table, sign * pivot
    across, down = self._across, self._down
    across[column], down[row] = down[row], across[column]


def maximize(
  objective: Sequence[int],
  rows: Sequence[Sequence[int]],
  limits: Sequence[int],
) -> tuple[list[Fraction], list[Fraction]]:
  """Returns z and y of a `Program` to which no row is added.

  Raises:
    ValueError: If the optimum is not bounded.
  """
  return Program(objective, rows, limits).solve()
