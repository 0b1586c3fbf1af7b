"""Weights made whole, and weighted lists put side by side."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def scale(*values: Fraction) -> Fraction:
  """Returns the least factor that makes integers of all values, if not 0."""
  factor = math.lcm(*(value.denominator for value in values))
  common = math.gcd(*(multiple(value, factor) for value in values))
  return Fraction(factor, common)


def multiple(value: Fraction, factor: int) -> int:
  """Returns the product of both, which is an integer; faster than theirs."""
  return value.numerator * (factor // value.denominator)


def align(
  *columns: Sequence[tuple[Any, Any]],
) -> list[tuple[tuple[Any, ...], Any]]:
  """Returns weighted items side by side, cut so that a row has one weight.

  Args:
    *columns: Lists of pairs of an item and a weight, of the same sum each.

  Returns:
    Pairs of a tuple, of an item of each column, and their weight.

  Example:
    >>> align([('a', 3)], [('b', 2), ('c', 1)])
    [(('a', 'b'), 2), (('a', 'c'), 1)]
  """
  rows = []
  rest = [list(reversed(column)) for column in columns]
  while all(rest):
    weight = min(column[-1][1] for column in rest)
    rows.append((tuple(column[-1][0] for column in rest), weight))
    for column in rest:
      item, left = column.pop()
      if left > weight:
        column.append((item, left - weight))
  return rows
