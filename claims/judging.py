"""Verdicts on claims, from records of runs and the rules of their entries."""

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
_SIGNIFICANT = 0.05  # Largest p-value with which two schemes differ.
MOST_SEEDS = 16  # The exact test enumerates 2 ** 16 signs.
# Prefixes of times to a level: None means never reached, which is infinite.
_TIMES = 'time_to.', 'iterations_to.', 'examples_to.'

Record = Mapping[str, Any]


class Judgement(NamedTuple):
  """Verdict on a claim, with our numbers.

  Attributes:
    verdict: One of VERDICTS.
    median: Median over seeds; None without one.
    least: Smallest number of a seed.
    most: Largest number of a seed.
    seeds: Number of seeds with a number.
    missing: Number of seeds without one: runs failed or diverged.
    ratio: Ratio of our median to the published number.
    p: p-value of the comparison of two schemes, or None.
    reason: Reason of a verdict that does not follow from the rule, or ''.
  """

  verdict: str
  median: float | None = None
  least: float | None = None
  most: float | None = None
  seeds: int = 0
  missing: int = 0
  ratio: float | None = None
  p: float | None = None
  reason: str = ''


def judge(claim: Claim, records: Sequence[Record]) -> Judgement:
  """Returns the verdict on a claim.

  A median within `confirmed` confirms the claim, one within `shape` has its
  shape, and any other refutes it.  A claim that two schemes differ (the range
  has no ratio of 1, or no difference of 0) is undecided unless a paired test
  over seeds is significant.  A claim is also undecided if at most half of the
  seeds have a number.

  Args:
    claim: Claim with its rule.
    records: Records of all runs of the entry.

  Raises:
    ValueError: If the measure does not select one record of each seed.
  """
  if claim.measure is None:
    return Judgement(UNAVAILABLE, reason=claim.unavailable)
  pairs = read_pairs(claim.measure, records)
  values = [_value(claim.measure, *pair) for pair in pairs]
  numbers = [value for value in values if value is not None]
  missing = len(values) - len(numbers)
  if 2 * len(numbers) <= len(values):
    reason = f'{missing} of {len(values)} seeds have no number'
    return Judgement(
      UNDECIDED, seeds=len(numbers), missing=missing, reason=reason
    )
  median = median_of(numbers)
  verdict, reason, p = _apply_rule(claim, median), '', None
  if _compares(claim.measure):
    p = p_value(
      *zip(*[pair for pair in pairs if None not in pair], strict=True)
    )
    equal = 0.0 if claim.measure.minus is not None else 1.0
    limits = claim.confirmed or claim.shape or (equal, equal)
    if p > _SIGNIFICANT and not limits[0] < equal < limits[1]:
      verdict, reason = UNDECIDED, 'no difference shows over the seeds'
  ratio = median / claim.paper if claim.paper else None
  return Judgement(
    verdict,
    median,
    min(numbers),
    max(numbers),
    len(numbers),
    missing,
    ratio,
    p,
    reason,
  )


def read_pairs(
  measure: Measure, records: Sequence[Record]
) -> list[tuple[float | None, float | None]]:
  """Returns the number of each seed, and the number that it is compared with.

  Raises:
    ValueError: If the measure does not select one record of each seed.
  """
  seeds = sorted({record['seed'] for record in records})
  other = measure.by if measure.by is not None else measure.minus
  second = None if other is None else measure._replace(of=other)
  return [
    (
      _read(measure, measure.over, seed, records),
      None if second is None else _read(second, measure.over_by, seed, records),
    )
    for seed in seeds
  ]


def p_value(ours: Sequence[float], others: Sequence[float]) -> float:
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


def _distance(a: float, b: float) -> float:
  """Returns the distance of two numbers, of their logarithms if positive."""
  if min(a, b) > 0:
    return math.inf if math.inf in (a, b) else abs(math.log(a / b))
  return abs(a - b)


def _read(
  measure: Measure, over: str, seed: int, records: Sequence[Record]
) -> float | None:
  """Returns the number of a seed, or the spread over a field; None if unknown.

  Args:
    measure: Quantity; `of` selects the records.
    over: Field in which the selected records differ; '' for one record.
    seed: The seed.
    records: Records of all runs of the entry.
  """
  selected = [
    record
    for record in records
    if record['seed'] == seed
    and all(record.get(key) == _as_json(v) for key, v in measure.of.items())
  ]
  if not over:
    expected = f'one record of seed {seed} with {dict(measure.of)}'
    require(len(selected) == 1, 'results', expected, len(selected))
    return read_number(measure.field, selected[0])
  expected = f'records of seed {seed} with {dict(measure.of)} and any {over}'
  require(
    len({str(each[over]) for each in selected}) > 1, 'results', expected, 0
  )
  numbers = [read_number(measure.field, record) for record in selected]
  known_numbers = [number for number in numbers if number is not None]
  if len(known_numbers) < len(numbers):
    return None
  return _divide(max(known_numbers), min(known_numbers))


def _as_json(value: Any) -> Any:
  return [*value] if isinstance(value, tuple) else value


def read_number(field: str, record: Record) -> float | None:
  """Returns a number of a record; None if it is unknown.

  The time to a level that was never reached is infinite.
  """
  value = record.get(field)
  if value is None and field.startswith(_TIMES):
    return None if record['status'] == 'failed' else math.inf
  if record['status'] != 'finished':
    return None
  require(field in record, 'results', f'{field} in each record', [*record])
  number: float | None = value
  return number


def _value(
  measure: Measure, ours: float | None, other: float | None
) -> float | None:
  if not _compares(measure):
    return ours
  if ours is None or other is None:
    return None
  if measure.minus is not None:
    return ours - other
  return _divide(ours, other)


def _divide(a: float, b: float) -> float | None:
  """Returns a quotient; None if b is 0 or both are infinite."""
  if a == b == math.inf or b == 0:
    return None
  return a / b


def _compares(measure: Measure) -> bool:
  return measure.by is not None or measure.minus is not None


def median_of(values: Sequence[float]) -> float:
  """Returns the median; values may be infinite."""
  ordered = sorted(values)
  low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
  return low if low == high else (low + high) / 2


def _apply_rule(claim: Claim, median: float) -> str:
  for verdict, limits in ((CONFIRMED, claim.confirmed), (SHAPE, claim.shape)):
    if limits and limits[0] <= median <= limits[1]:
      return verdict
  return REFUTED
