"""Intervals of 95 % over seeds, for tables, figures and verdicts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

_CONFIDENCE = 0.95


class Interval(NamedTuple):
  """Number with its interval.

  Attributes:
    value: The number.
    low: Lower end; None if there are too few seeds for an interval.
    high: Upper end.
  """

  value: float
  low: float | None = None
  high: float | None = None

  @property
  def half(self) -> float | None:
    """Half of the interval's width."""
    if self.low is None or self.high is None:
      return None
    return (self.high - self.low) / 2


def mean(numbers: Sequence[float]) -> Interval:
  """Returns the mean with its interval by Student's t (Gosset, 1908).

  It is exact for normal numbers.  One number has no interval.

  Args:
    numbers: Number of each seed, finite, at least one.
  """
  value = math.fsum(numbers) / len(numbers)
  if len(numbers) < 2:
    return Interval(value)
  error = float(stats.sem(numbers))
  if not error:  # Seeds do not matter.
    return Interval(value, value, value)
  low, high = stats.t.interval(_CONFIDENCE, len(numbers) - 1, value, error)
  return Interval(value, float(low), float(high))


def median(numbers: Sequence[float]) -> Interval:
  """Returns the median with its interval; numbers may be infinite.

  The interval is the exact one from order statistics, which at least six
  numbers have, and else the range of the numbers.  One number has none.
  """
  ordered = sorted(numbers)
  first, second = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
  value = first if first == second else (first + second) / 2
  if len(numbers) < 2:
    return Interval(value)
  found = stats.quantile_test(ordered, p=0.5).confidence_interval(_CONFIDENCE)
  if math.isnan(found.low) or math.isnan(found.high):
    return Interval(value, ordered[0], ordered[-1])
  return Interval(value, float(found.low), float(found.high))
