"""Small linear programs in exact arithmetic, to which rows can be added."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from topology.algorithms import stopping

Row = tuple[Sequence[int], int]  # Coefficients, and their limit.
_PATIENCE = 50  # Pivots without progress after which the slow rule takes over.
_SAFE = 2**31 - 1  # Two products of integers up to this fit 64 bits.


class Program:
  """Linear program: largest `objective . z` with `rows . z <= limits`, z >= 0.

  The simplex method from z = 0, and its dual after rows have been added; on a
  dictionary of integers, of 64 bits if these suffice, in which each row has a
  denominator of its own and loses common factors once numbers grow.  The
  variable with the largest coefficient enters or, after many steps without
  progress, the first one (Bland), with which the method always ends.  A pivot
  costs O(n) for each row that holds the entering variable; `stop` is asked
  before each, and for each row.  All numbers are integers, limits at least 0.
  """

  def __init__(
    self,
    objective: Sequence[int],
    rows: Iterable[Row],
    stop: stopping.Stop = stopping.never,
  ) -> None:
    self._n = len(objective)
    self._stop = stop
    # The first row holds the costs, the last columns the limits and the
    # denominators.  Variables are those of z, then the slack of each row.
    table = [_narrow(np.array([*(-c for c in objective), 0, 1], object))]
    for row, limit in rows:
      stopping.check(stop)
      table.append(_narrow(np.array([*row, limit, 1], object)))
    self._table = np.array(table)
    self._across = list(range(self._n))
    self._down = [-1, *range(self._n, self._n + len(table) - 1)]
    self._stalled = 0

  def add(self, row: Sequence[int], limit: int) -> None:
    """Adds a row, of integers [n], that z = 0 must satisfy."""
    used = [
      (self._table[i].astype(object), row[variable])
      for i, variable in enumerate(self._down)
      if 0 <= variable < self._n and row[variable]
    ]
    scale = math.lcm(*(entries[-1] for entries, _ in used))
    new = np.zeros(self._n + 2, object)
    new[-2] = limit * scale
    for j, variable in enumerate(self._across):
      if variable < self._n:
        new[j] += row[variable] * scale
    for entries, factor in used:
      new -= factor * (scale // entries[-1]) * entries
    new[-1] = scale
    self._down.append(self._n + len(self._table) - 1)
    # Together they are of 64 bits if both are.
    self._table = np.vstack([self._table, _narrow(new // np.gcd.reduce(new))])

  def solve(self) -> tuple[list[Fraction], list[Fraction]]:
    """Returns the optimal z, and the prices y >= 0 of the rows that prove it.

    `limits . y` equals `objective . z`, and `y . rows >= objective`.

    Raises:
      ValueError: If the optimum is not bounded.
    """
    while (row := self._violated()) is not None:
      stopping.check(self._stop)
      self._pivot(row, self._cheapest(row))
    while (column := self._improving()) is not None:
      stopping.check(self._stop)
      self._pivot(self._binding(column), column)
    z = [Fraction(0)] * self._n
    y = [Fraction(0)] * (len(self._table) - 1)
    for i, variable in enumerate(self._down):
      if 0 <= variable < self._n:
        z[variable] = self._fraction(i, -2)
    for j, variable in enumerate(self._across):
      if variable >= self._n:
        y[variable - self._n] = self._fraction(0, j)
    return z, y

  def _fraction(self, row: int, column: int) -> Fraction:
    entries = self._table[row]
    return Fraction(int(entries[column]), int(entries[-1]))

  def _improving(self) -> int | None:
    costs: list[int] = self._table[0, : self._n].tolist()
    across = self._across
    if min(costs) >= 0:
      return None
    if self._stalled < _PATIENCE:
      return costs.index(min(costs))
    negative = [j for j in range(self._n) if costs[j] < 0]
    return min(negative, key=across.__getitem__)

  def _binding(self, column: int) -> int:
    """Returns the first row that limits a variable; ties: lowest basic one."""
    entries, limits = (
      self._table[:, column].tolist(),
      self._table[:, -2].tolist(),
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
    limits, down = self._table[:, -2].tolist(), self._down
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
    held = np.flatnonzero(self._table[:, column])
    block = self._shortened(held)
    at = int(np.searchsorted(held, row))
    source = block[at].copy()
    if source[column] < 0:
      source *= -1
    # Solved for the variable that enters, the row has its denominator where
    # the variable has been, and the pivot as its denominator.
    pivot = source[column]
    source[column], source[-1] = source[-1], 0
    factors = block[:, column].copy()
    block[:, column] = 0
    common = np.gcd(factors, pivot)
    block *= (pivot // common)[:, None]
    block -= np.outer(factors // common, source)
    source[-1] = pivot
    block[at] = source
    self._table[held] = block
    across, down = self._across, self._down
    across[column], down[row] = down[row], across[column]

  def _shortened(self, rows: np.ndarray) -> np.ndarray:
    """Returns a copy of rows, without common factors where size matters."""
    block: np.ndarray = self._table[rows]
    if not _fits(block):
      block //= np.gcd.reduce(block, axis=1)[:, None]
      if block.dtype != object and not _fits(block):
        self._table = self._table.astype(object)
        block = block.astype(object)
    return block


def _fits(entries: np.ndarray) -> bool:
  """Returns whether entries and the results of a pivot fit into 64 bits."""
  if entries.dtype == object:
    return False
  return bool(max(entries.max(), -entries.min()) <= _SAFE)


def _narrow(entries: np.ndarray) -> np.ndarray:
  """Returns 64-bit integers if the results of a pivot fit into them."""
  return entries.astype(np.int64) if abs(entries).max() <= _SAFE else entries
