"""Verdicts: what records of runs say of a claim, by the rule of its entry."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from claims.published import Claim, Measure
from configs.checks import require

CONFIRMED = 'confirmed'
SHAPE = 'in shape'
REFUTED = 'refuted'
UNDECIDED = 'undecided'
UNAVAILABLE = 'cannot be had here'
NOT_RUN = 'not run'
VERDICTS = (CONFIRMED, SHAPE, REFUTED, UNDECIDED, UNAVAILABLE, NOT_RUN)
_SURE = 0.05  # Largest p-value with which two schemes differ.
MOST = 16  # Seeds up to which all signs are tried.
# Never reached is after any time; None of other fields is not known.
_NEVER = 'time_to.', 'iterations_to.', 'examples_to.'

Record = Mapping[str, Any]


class Judged(NamedTuple):
  """What ours is beside what was published.

  Attributes:
    verdict: One of VERDICTS.
    median: Of ours over seeds; None if there is none.
    least: The smallest of ours.
    most: The largest.
    seeds: How many of them have a number.
    lost: How many have none: runs failed, diverged or never got there.
    ratio: Of our median to what was published.
    p: That two schemes are the same, where two are compared.
    reason: Of the verdict, if it is not the rule's.
  """

  verdict: str
  median: float | None = None
  least: float | None = None
  most: float | None = None
  seeds: int = 0
  lost: int = 0
  ratio: float | None = None
  p: float | None = None
  reason: str = ''


def judge(claim: Claim, records: Sequence[Record]) -> Judged:
  """Returns the verdict on a claim.

  Medians within `confirmed` confirm it, those within `shape` have its shape,
  others refute it.  Where two schemes are compared and the claim is that they
  differ (1 is not confirmed; 0 of differences), it is undecided unless they
  do: a paired test over seeds.  It is so, too, if no more than half of the
  seeds have a number.

  Args:
    claim: As its entry has it.
    records: Of all runs of the entry.

  Raises:
    ValueError: If records are not as the measure says.
  """
  if claim.measure is None:
    return Judged(UNAVAILABLE, reason=claim.unavailable)
  pairs = pairs_of(claim.measure, records)
  values = [_value(claim.measure, *pair) for pair in pairs]
  known = [value for value in values if value is not None]
  lost = len(values) - len(known)
  if 2 * len(known) <= len(values):
    why = f'{lost} of {len(values)} seeds have no number'
    return Judged(UNDECIDED, seeds=len(known), lost=lost, reason=why)
  median = middle(known)
  verdict, reason, p = _by_rule(claim, median), '', None
  if _compares(claim.measure):
    p = p_value(
      *zip(*[pair for pair in pairs if None not in pair], strict=True)
    )
    nothing = 0.0 if claim.measure.minus is not None else 1.0
    differ = claim.confirmed or claim.shape or (nothing, nothing)
    if p > _SURE and not differ[0] < nothing < differ[1]:
      verdict, reason = UNDECIDED, 'no difference shows over the seeds'
  ratio = median / claim.paper if claim.paper else None
  return Judged(
    verdict, median, min(known), max(known), len(known), lost, ratio, p, reason
  )


def pairs_of(
  measure: Measure, records: Sequence[Record]
) -> list[tuple[float | None, float | None]]:
  """Returns for each seed what is measured, and what that is compared with.

  Raises:
    ValueError: If a seed has another number of records than one.
  """
  seeds = sorted({record['seed'] for record in records})
  other = measure.by if measure.by is not None else measure.minus
  second = None if other is None else measure._replace(of=other)
  return [
    (
      _one(measure, measure.over, seed, records),
      None if second is None else _one(second, measure.over_by, seed, records),
    )
    for seed in seeds
  ]


def p_value(ours: Sequence[float], others: Sequence[float]) -> float:
  """Returns how likely so clear a difference is by chance, both ways.

  The exact signed-rank test (Wilcoxon, 1945), by all signs of ranks: ties have
  the mean of their ranks, seeds without a difference none.  It needs six
  seeds to call anything sure, and knows infinite times.

  Args:
    ours: One number for each seed.
    others: Those of the same seeds.
  """
  require(len(ours) <= MOST, '--seeds', f'at most {MOST}', len(ours))
  pairs = [
    (float(a), float(b)) for a, b in zip(ours, others, strict=True) if a != b
  ]
  if not pairs:
    return 1.0
  apart = np.array([_apart(a, b) for a, b in pairs])
  signs = np.array([1.0 if a > b else -1.0 for a, b in pairs])
  ranks = np.array(
    [np.sum(apart < each) + (np.sum(apart == each) + 1) / 2 for each in apart]
  )
  every = functools.reduce(
    lambda sums, rank: np.concatenate([sums - rank, sums + rank]),
    ranks,
    np.zeros(1),
  )
  return float(np.mean(np.abs(every) >= abs(signs @ ranks) - 1e-9))


def _apart(a: float, b: float) -> float:
  """Returns how far two numbers are apart, as a ratio if both are positive."""
  if min(a, b) > 0:
    return math.inf if math.inf in (a, b) else abs(math.log(a / b))
  return abs(a - b)


def _one(
  measure: Measure, over: str, seed: int, records: Sequence[Record]
) -> float | None:
  """Returns the number of a seed; None if it is not known."""
  found = [
    record
    for record in records
    if record['seed'] == seed
    and all(record.get(key) == _json(v) for key, v in measure.of.items())
  ]
  if not over:
    expected = f'one record of seed {seed} with {dict(measure.of)}'
    require(len(found) == 1, 'results', expected, len(found))
    return known_of(measure.field, found[0])
  expected = f'records of seed {seed} with {dict(measure.of)} and any {over}'
  require(len({str(each[over]) for each in found}) > 1, 'results', expected, 0)
  numbers = [known_of(measure.field, record) for record in found]
  known = [number for number in numbers if number is not None]
  if len(known) < len(numbers):
    return None
  return _divided(max(known), min(known))


def _json(value: Any) -> Any:
  return [*value] if isinstance(value, tuple) else value


def known_of(field: str, record: Record) -> float | None:
  """Returns a number of a record; None if it is not known.

  What was never reached is infinitely late.
  """
  value = record.get(field)
  if value is None and field.startswith(_NEVER):
    return None if record['status'] == 'failed' else math.inf
  if record['status'] != 'finished':
    return None
  require(field in record, 'results', f'{field} in each record', [*record])
  return value


def _value(
  measure: Measure, ours: float | None, other: float | None
) -> float | None:
  if not _compares(measure):
    return ours
  if ours is None or other is None:
    return None
  if measure.minus is not None:
    return ours - other
  return _divided(ours, other)


def _divided(a: float, b: float) -> float | None:
  """Returns a quotient; None if both are infinite or nothing."""
  if a == b == math.inf or b == 0:
    return None
  return a / b


def _compares(measure: Measure) -> bool:
  return measure.by is not None or measure.minus is not None


def middle(values: Sequence[float]) -> float:
  """Returns the median, also of infinite numbers."""
  ordered = sorted(values)
  low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
  return low if low == high else (low + high) / 2


def _by_rule(claim: Claim, median: float) -> str:
  for verdict, limits in ((CONFIRMED, claim.confirmed), (SHAPE, claim.shape)):
    if limits and limits[0] <= median <= limits[1]:
      return verdict
  return REFUTED
