"""Integer scales of fractional weights, and alignment of weighted lists."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def scale(*values: Fraction) -> Fraction:
  """Returns the smallest positive factor that makes all values integers.

  At least one value is not 0.
  """
  factor = math.lcm(*(value.denominator for value in values))
  common = math.gcd(*(multiple(value, factor) for value in values))
  return Fraction(factor, common)


def multiple(value: Fraction, factor: int) -> int:
  """Returns value * factor, which must be an integer; faster than `*`."""
  return value.numerator * (factor // value.denominator)


def align(
  *columns: Sequence[tuple[Any, Any]],
) -> list[tuple[tuple[Any, ...], Any]]:
  """Splits weighted lists, so that their items can be combined row by row.

  Args:
    *columns: Lists of (item, weight), all with the same sum of weights.

  Returns:
    Rows (items, weight), with one item of each list.

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
