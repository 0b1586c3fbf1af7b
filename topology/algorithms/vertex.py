"""Corners of a set `rows . x <= limits, x >= 0`, first in floats, then exact.

At a corner, the number of positive variables is at most that of rows.  A
simplex method in floating point finds a corner with the largest objective, or
nearly; the exact corner is then the solution of a square system of integers, by
p-adic lifting (Dixon, "Exact solution of linear equations using p-adic
expansions", 1982).  All operations are elementwise, so that every machine finds
the same.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from topology.algorithms import stopping

_NONE = 1e-10  # A gain that is none, ...
_FLAT = 1e-9  # ... and an entry that is no pivot.
_SHIFT = 1e-9  # Change of the limits, so that no two rows bind at once.
_PIVOTS = 10  # For each row and variable, at most.
_PRIME = 2**31 - 1

Basis = tuple[list[int], list[int]]  # Variables, and as many rows that bind.


def best(
  rows: np.ndarray, objective: np.ndarray, stop: stopping.Stop
) -> Basis | None:
  """Returns a corner of `rows . x <= 1` with nearly the largest objective.

  Rows are floats [m, K] of about 1, and so is the objective, [K].  A pivot
  costs O(m K), and there are a few for each row; `stop` is asked before each.
  None if the search does not end in time, or if the objective seems unbounded.
  """
  count, width = rows.shape
  table = np.zeros((count + 1, width + 1))
  table[:count, :width] = rows
  table[:count, width] = 1 + _SHIFT * np.arange(1, count + 1)
  table[count, :width] = -objective
  change = np.empty_like(table)
  across = list(range(width))
  down = list(range(width, width + count))
  for _ in range(_PIVOTS * (count + width)):
    stopping.check(stop)
    enter = int(table[count, :width].argmin())
    if table[count, enter] >= -_NONE:
      variables = sorted(v for v in down if v < width)
      return variables, sorted(v - width for v in across if v >= width)
    column = table[:, enter].copy()
    able = np.flatnonzero(column[:count] > _FLAT)
    if not len(able):
      return None
    leave = int(able[(table[able, width] / column[able]).argmin()])
    row = table[leave] / column[leave]
    row[enter] = 1 / column[leave]
    column[leave] = 0
    table[:, enter] = 0
    held = np.flatnonzero(column)
    if 2 * len(held) < count:
      table[held] -= column[held, None] * row
    else:
      np.multiply(column[:, None], row, out=change)
      table -= change
    table[leave] = row
    across[enter], down[leave] = down[leave], across[enter]
  return None


def solve(
  matrix: np.ndarray, right: Sequence[int], stop: stopping.Stop
) -> list[Fraction] | None:
  """Returns the x with `matrix . x = right`, or None if it is not found.

  The matrix is square, [n, n], of integers below 2^20.  O(n^3) modulo a prime,
  then O(n^2) for each 31 bits of the fractions; `stop` is asked at each.
  """
  inverse = _inverse(matrix.astype(np.int64) % _PRIME, stop)
  if inverse is None:
    return None
  whole = matrix.astype(object)
  rest = np.array([int(value) for value in right], object)
  total, power = np.zeros(len(rest), object), 1
  # By Hadamard's bound of all determinants by Cramer's rule.
  columns = [sum(int(v) ** 2 for v in column) for column in matrix.T]
  bits = sum(math.log2(max(square, 1)) / 2 for square in columns)
  bits += math.log2(sum(int(value) ** 2 for value in right) + 2)
  steps, tried = math.ceil((2 * bits + 2) / 30), 1
  for step in range(1, steps + 1):
    stopping.check(stop)
    digits = (inverse * (rest % _PRIME).astype(np.int64) % _PRIME).sum(1)
    digits = (digits % _PRIME).astype(object)
    total = total + power * digits
    power *= _PRIME
    rest = (rest - whole.dot(digits)) // _PRIME
    if step in (tried, steps):
      tried *= 2
      found = _fractions(total.tolist(), power)
      if found is not None and _solves(whole, found, right):
        return found
  return None


def _inverse(matrix: np.ndarray, stop: stopping.Stop) -> np.ndarray | None:
  """Returns the inverse modulo the prime; None if there is none."""
  count = len(matrix)
  both = np.hstack([matrix, np.eye(count, dtype=np.int64)])
  for k in range(count):
    stopping.check(stop)
    pivots = np.flatnonzero(both[k:, k])
    if not len(pivots):
      return None
    other = k + int(pivots[0])
    both[[k, other]] = both[[other, k]]
    both[k] = both[k] * pow(int(both[k, k]), -1, _PRIME) % _PRIME
    factor = both[:, k].copy()
    factor[k] = 0
    held = np.flatnonzero(factor)
    both[held] = (both[held] - factor[held, None] * both[k]) % _PRIME
  return both[:, count:]


def _fractions(values: Sequence[int], power: int) -> list[Fraction] | None:
  """Returns fractions of a small common denominator, equal modulo `power`."""
  common, most = 1, math.isqrt(power // 2)
  for value in values:
    low, high = value * common % power, power
    here, there = 1, 0  # Euclid's algorithm, until the rest is small.
    while low > most:
      high, (quotient, low) = low, divmod(high, low)
      here, there = there - quotient * here, here
    common *= abs(here)
    if common > most:
      return None
  found = []
  for value in values:
    numerator = value * common % power
    numerator -= power if 2 * numerator > power else 0
    found.append(Fraction(numerator, common))
  return found


def _solves(
  whole: np.ndarray, found: Sequence[Fraction], right: Sequence[int]
) -> bool:
  common = math.lcm(*(value.denominator for value in found))
  units = np.array([int(value * common) for value in found], object)
  products: list[int] = whole.dot(units).tolist()
  return products == [common * value for value in right]
