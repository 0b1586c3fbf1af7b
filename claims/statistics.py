"""Tests of paired numbers, corrections for many tests, and intervals.

Pairs are two numbers of the same seed.  Ratios are compared by their
logarithms, differences as they are.  All results are the same on every machine
to rounding, because resamples come from a generator with a fixed stream.
"""

import functools
import math
import random
from collections.abc import Sequence

import numpy as np
from scipy import special

from configs.checks import require

MOST_SEEDS = 16  # The exact test enumerates 2 ** 16 signs.
_RESAMPLES = 4000
_COVERAGE = 0.95
# Spreads of deterministic quantities below this share of them are rounding.
_ROUNDING = 1e-12


def median_of(values: Sequence[float]) -> float:
  """Returns the median; values may be infinite."""
  ordered = sorted(values)
  low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
  return low if low == high else (low + high) / 2


def interval_of(values: Sequence[float]) -> tuple[float, float] | None:
  """Returns the 95 % percentile bootstrap interval of the median.

  Efron, 'Bootstrap methods: another look at the jackknife', 1979.  With six
  numbers it covers the median of a normal distribution in 94 % of cases.

  Args:
    values: Number of each seed; may be infinite.

  Returns:
    Lower and upper end; None if there is only one value.
  """
  if len(values) < 2:
    return None
  samples = np.sort(np.asarray(values, float)[_resamples(len(values))], axis=1)
  middle = len(values) // 2
  medians = samples[:, middle]
  if len(values) % 2 == 0:
    medians = (samples[:, middle - 1] + medians) / 2
  medians = np.sort(medians)
  tail = round((1 - _COVERAGE) / 2 * _RESAMPLES)
  return float(medians[tail]), float(medians[-1 - tail])


def differ_p(
  ours: Sequence[float], others: Sequence[float], *, log: bool
) -> float:
  """Returns the two-sided p-value of the claim that two schemes are equal.

  It is that of the paired t-test (Student, 1908).  Numbers without a mean, such
  as infinite times, are compared by the exact signed-rank test.  A single seed
  shows nothing.

  Args:
    ours: Number of each seed.
    others: Numbers of the same seeds to compare with.
    log: Whether ratios are tested, and not differences.
  """
  effects = _effects(ours, others, log=log)
  if effects is None:
    return signed_rank_p(ours, others)
  if len(effects) < 2:
    return 1.0
  return min(1.0, 2 * _upper_tail(effects, abs(float(np.mean(effects)))))


def within_p(
  ours: Sequence[float],
  others: Sequence[float],
  limits: tuple[float, float],
  *,
  log: bool,
) -> float:
  """Returns the p-value of the claim that the effect is outside of limits.

  It is that of two one-sided paired t-tests (Schuirmann, 1987), which show that
  the mean effect is within the limits.  It is 1 if an effect has no mean.

  Args:
    ours: Number of each seed.
    others: Numbers of the same seeds to compare with.
    limits: Ends of the range of ratios, or of differences.
    log: Whether ratios are tested, and not differences.
  """
  effects = _effects(ours, others, log=log)
  if effects is None or len(effects) < 2:
    return 1.0
  low, high = (_transform(limit) if log else limit for limit in limits)
  mean = float(np.mean(effects))
  return max(
    _upper_tail(effects, mean - low), _upper_tail(effects, high - mean)
  )


def holm(ps: Sequence[float]) -> list[float]:
  """Returns p-values that are corrected for the number of tests.

  Holm, 'A simple sequentially rejective multiple test procedure', 1979.
  """
  adjusted, largest = [0.0] * len(ps), 0.0
  order = sorted(range(len(ps)), key=lambda place: ps[place])
  for rank, place in enumerate(order):
    largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
    adjusted[place] = largest
  return adjusted


def signed_rank_p(ours: Sequence[float], others: Sequence[float]) -> float:
  """Returns the two-sided p-value of the exact signed-rank test.

  The test (Wilcoxon, 1945) enumerates all signs of the ranks.  Ties get the
  mean of their ranks, and equal pairs are omitted.  Six seeds are the fewest
  that can be significant.  Infinite times are allowed.

  Args:
    ours: Number of each seed.
    others: Numbers of the same seeds to compare with.
  """
  seeds = len(ours)
  require(seeds <= MOST_SEEDS, '--seeds', f'at most {MOST_SEEDS}', seeds)
  pairs = [
    (float(a), float(b)) for a, b in zip(ours, others, strict=True) if a != b
  ]
  if not pairs:
    return 1.0
  distances = np.array([_distance(a, b) for a, b in pairs])
  signs = np.array([1.0 if a > b else -1.0 for a, b in pairs])
  ranks = np.array(
    [
      np.sum(distances < each) + (np.sum(distances == each) + 1) / 2
      for each in distances
    ]
  )
  sums = functools.reduce(
    lambda sums, rank: np.concatenate([sums - rank, sums + rank]),
    ranks,
    np.zeros(1),
  )
  return float(np.mean(np.abs(sums) >= abs(signs @ ranks) - 1e-9))


@functools.cache
def _resamples(count: int) -> np.ndarray:
  """Returns Int [_RESAMPLES, count], places drawn with replacement."""
  rng = random.Random(0)  # Its stream is the same in all versions of Python.
  places = [int(rng.random() * count) for _ in range(_RESAMPLES * count)]
  return np.array(places).reshape(_RESAMPLES, count)


def _effects(
  ours: Sequence[float], others: Sequence[float], *, log: bool
) -> np.ndarray | None:
  """Returns the effect of each seed; None if one of them is not finite."""
  a, b = np.asarray(ours, float), np.asarray(others, float)
  if not np.all(np.isfinite(a) & np.isfinite(b)):
    return None
  if not log:
    return np.asarray(a - b)
  if not np.all((a > 0) & (b > 0)):
    return None
  return np.asarray(np.log(a / b))


def _transform(ratio: float) -> float:
  return math.log(ratio) if ratio > 0 else -math.inf


def _upper_tail(effects: np.ndarray, distance: float) -> float:
  """Returns the chance of a mean that is a distance above the true one."""
  error = float(np.std(effects, ddof=1)) / math.sqrt(len(effects))
  if error <= _ROUNDING * max(1.0, float(np.max(np.abs(effects)))):
    # Seeds do not matter: the distance is known exactly.
    return 0.0 if distance > _ROUNDING else 1.0
  return float(special.stdtr(len(effects) - 1, -distance / error))


def _distance(a: float, b: float) -> float:
  """Returns the distance of two numbers, of their logarithms if positive."""
  if min(a, b) > 0:
    return math.inf if math.inf in (a, b) else abs(math.log(a / b))
  return abs(a - b)
