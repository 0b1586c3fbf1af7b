"""Divides examples among workers so that they finish at the same time.

Both functions are deterministic: ties go to the lowest index.
"""

import bisect
from collections.abc import Sequence

import numpy as np

from batching.curves import Curve
from configs import checks

_Numbers = Sequence[float] | np.ndarray


def proportional(
  total: int, speeds: _Numbers, least: int, most: Sequence[int]
) -> list[int]:
  """Returns the number of examples of each worker, in proportion to its speed.

  Without bounds these are total * v_i / sum(v), rounded by largest remainders.
  A worker that would exceed a bound gets the bound, and the others share the
  rest by their speeds.  In real numbers this is the one division that finishes
  first, and all workers that are not at a bound finish together.  The result is
  the integer division closest to it: each number is less than one example away,
  and the last worker finishes later by at most the time of one of its examples.
  A faster worker of the same bounds never gets fewer examples, nor does a
  worker that becomes faster.  O(n log n).

  Args:
    total: Sum of the result.
    speeds: Float [n], examples per second, each more than 0.
    least: Fewest examples of a worker, at least 1.
    most: Int [n], largest number of examples of each worker.

  Returns:
    Int [n].

  Raises:
    ValueError: If an argument is out of range, or if bounds forbid the sum.

  Example:
    >>> proportional(64, [1.0, 1.0, 2.0, 3.0], 1, [64] * 4)
    [9, 9, 18, 28]
    >>> proportional(64, [1.0, 1.0, 2.0, 3.0], 1, [64, 64, 64, 20])
    [11, 11, 22, 20]
  """
  v = np.asarray(speeds, np.float64)
  if not (np.isfinite(v) & (v > 0)).all():
    raise ValueError(f'speeds: expected numbers of more than 0, got {speeds}.')
  highest = _check_bounds(total, least, most, len(v))
  if not len(v):
    return []
  level_s = _level(total, v, least, highest)
  return _round(np.clip(level_s * v, least, highest), total)


def equal_time(total: int, curves: Sequence[Curve], least: int) -> list[int]:
  """Returns the number of examples of each worker, by its curve.

  No integer division finishes earlier: the end is the first time by which the
  workers can compute `total` examples, each as many as its curve allows, found
  by bisection down to neighboring floats.  If the workers could compute more
  than `total` by exactly that time, because curves are flat there or several
  batches end there, the surplus is taken from these workers in proportion to
  the examples that each gains at that time.  O(n) per step, about 60 steps.

  Args:
    total: Sum of the result.
    curves: Curves of n workers, with the largest batch of each.
    least: Fewest examples of a worker, at least 1.

  Returns:
    Int [n].

  Raises:
    ValueError: If an argument is out of range, or if bounds forbid the sum.

  Example:
    >>> slow, fast = Curve(0.0, 0.0, 2.0, 64), Curve(8.0, 0.0, 1.0, 64)
    >>> equal_time(12, [slow, fast], 1), equal_time(6, [slow, fast], 1)
    ([4, 8], [3, 3])
  """
  bounds = [total if curve.most is None else curve.most for curve in curves]
  highest = _check_bounds(total, least, bounds, len(curves))
  if total == least * len(curves):
    return [least] * len(curves)
  flat_s, intercept_s, slope_s = np.array([curve[:3] for curve in curves]).T

  def by(time_s: float) -> np.ndarray:
    line = np.floor((time_s - intercept_s) / slope_s)
    return np.clip(np.where(time_s < flat_s, 0, line), least, highest)

  early_s = 0.0
  late_s = 2 * max(c.seconds(m) for c, m in zip(curves, highest, strict=True))
  while early_s < (middle_s := (early_s + late_s) / 2) < late_s:
    if by(middle_s).sum() < total:
      early_s = middle_s
    else:
      late_s = middle_s
  before, after = by(early_s), by(late_s)
  more = after - before
  missing = total - before.sum()
  return _round(before + missing * more / more.sum(), total)


def _check_bounds(
  total: int, least: int, most: Sequence[int], count: int
) -> np.ndarray:
  """Returns `most` as an array if the bounds allow `total`."""
  checks.check_integer('total', total, at_least=0)
  checks.check_integer('least', least, at_least=1)
  if len(most) != count:
    raise ValueError(f'most: expected {count} numbers, got {len(most)}.')
  if any(bound < least for bound in most):
    raise ValueError(f'most: expected at least {least} each, got {most}.')
  if not count * least <= total <= sum(most):
    raise ValueError(
      f'total: expected {count * least} to {sum(most)}, which {count} workers '
      f'may compute, got {total}.'
    )
  return np.asarray(most, np.int64)


def _level(
  total: int, speeds: np.ndarray, least: int, most: np.ndarray
) -> float:
  """Returns the time by which workers within bounds do `total`, in reals."""
  # The sum grows with the time, linearly between the times at which a worker
  # reaches one of its bounds.
  low, high = least / speeds, most / speeds
  bends = np.sort(np.concatenate([low, high]))
  at = bisect.bisect_left(
    bends, total, key=lambda s: np.clip(s * speeds, least, most).sum()
  )
  bend = bends[min(max(at, 1), len(bends) - 1)]
  free = (low < bend) & (high >= bend)
  if not free.any():
    return float(bend)
  bounded = np.where(low >= bend, least, most)[~free].sum()
  return float((total - bounded) / speeds[free].sum())


def _round(quotas: np.ndarray, total: int) -> list[int]:
  """Returns the closest integers of sum `total`, by largest remainders."""
  sizes = np.floor(quotas).astype(np.int64)
  order = np.argsort(sizes - quotas, kind='stable')
  sizes[order[: total - sizes.sum()]] += 1
  return [int(size) for size in sizes]
