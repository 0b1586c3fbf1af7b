"""Verdicts on claims, from records of runs and the rules of their entries."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from claims import statistics
from claims.published import (
  IN_BITS,
  MARGIN_DIFFERENCE,
  MARGIN_RATIO,
  Claim,
  Measure,
  Range,
)
from claims.statistics import median_of
from configs.checks import require

CONFIRMED = 'confirmed'
SHAPE = 'in shape'
REFUTED = 'refuted'
NO_EFFECT = 'no effect'
UNDECIDED = 'undecided'
UNFALSIFIABLE = 'not falsifiable here'
UNAVAILABLE = 'cannot be had here'
NOT_RUN = 'not run'
VERDICTS = (
  *(CONFIRMED, SHAPE, REFUTED, NO_EFFECT, UNDECIDED),
  *(UNFALSIFIABLE, UNAVAILABLE, NOT_RUN),
)
_SIGNIFICANT = 0.05  # Largest corrected p-value of a result that shows.
# Prefixes of times to a level: None means never reached, which is infinite.
_TIMES = 'time_to.', 'iterations_to.', 'examples_to.', IN_BITS

Record = Mapping[str, Any]


class Judgement(NamedTuple):
  """Verdict on a claim, with our numbers.

  Attributes:
    verdict: One of VERDICTS.
    median: Median over seeds; None without one.
    least: Smallest number of a seed.
    most: Largest number of a seed.
    interval: 95 % bootstrap interval of the median; None for a single seed.
    seeds: Number of seeds with a number.
    missing: Number of seeds without one: runs failed or diverged.
    ratio: Ratio of our median to the published number.
    p: p-value of the test that the claim needs; None without a comparison.
    holm: The same, corrected for the tests of all claims of the family.
    reason: Reason of a verdict that does not follow from the rule, or ''.
  """

  verdict: str
  median: float | None = None
  least: float | None = None
  most: float | None = None
  interval: Range | None = None
  seeds: int = 0
  missing: int = 0
  ratio: float | None = None
  p: float | None = None
  holm: float | None = None
  reason: str = ''


class _Test(NamedTuple):
  """Test of a comparison: of a difference, or of being within limits."""

  name: str  # 'differs', 'negligible', or the verdict that it allows.
  p: float


def judge(claim: Claim, records: Sequence[Record]) -> Judgement:
  """Returns the verdict on a claim that is a family of its own."""
  return judge_family([(claim, records)])[0]


def judge_family(
  claims: Sequence[tuple[Claim, Sequence[Record]]],
) -> list[Judgement]:
  """Returns the verdicts on claims whose tests are corrected together.

  A median within `confirmed` confirms the claim, one within `shape` has its
  shape, and any other refutes it.  Comparisons of two schemes need a test over
  seeds beside this, by what the range of the rule says:

  - That they differ (it has no ratio of 1, or no difference of 0): the claim is
    undecided unless a difference shows.  If the difference is shown to be
    smaller than MARGIN_RATIO or MARGIN_DIFFERENCE instead, and does not confirm
    the claim, the verdict is 'no effect'.
  - That they are alike: the range has to be shown to hold.  The claim is
    refuted if the interval of the median is outside of all its ranges.

  Tests of differences, of negligible ones, and of ranges are three groups, and
  the p-values of each are corrected by Holm's method.  A claim is also
  undecided if at most half of the seeds have a number, and not falsifiable if
  its entry says so, or if the numbers are those of `same_as` in all seeds.

  Args:
    claims: Claims of a family, and the records of all runs of their entries.

  Raises:
    ValueError: If a measure does not select one record of each seed.
  """
  measured = [_measure(claim, records) for claim, records in claims]
  tests = [
    () if row.verdict else _tests(claim, records)
    for (claim, records), row in zip(claims, measured, strict=True)
  ]
  corrected = _correct(tests)
  return [
    row if row.verdict else _decide(claim, row, of_claim, corrected_ps)
    for (claim, _), row, of_claim, corrected_ps in zip(
      claims, measured, tests, corrected, strict=True
    )
  ]


def _measure(claim: Claim, records: Sequence[Record]) -> Judgement:
  """Returns our numbers; the verdict is '' if the rule has to give it."""
  if claim.measure is None:
    return Judgement(UNAVAILABLE, reason=claim.unavailable)
  pairs = read_pairs(claim.measure, records)
  values = [_value(claim.measure, *pair) for pair in pairs]
  numbers = [value for value in values if value is not None]
  missing = len(values) - len(numbers)
  row = Judgement('', seeds=len(numbers), missing=missing)
  if 2 * len(numbers) <= len(values):
    reason = f'{missing} of {len(values)} seeds have no number'
    return row._replace(verdict=UNDECIDED, reason=reason)
  median = median_of(numbers)
  row = row._replace(
    median=median,
    least=min(numbers),
    most=max(numbers),
    interval=statistics.interval_of(numbers),
    ratio=median / claim.paper if claim.paper else None,
  )
  reason = claim.unfalsifiable
  if not reason and claim.same_as is not None:
    twins = read_pairs(claim.measure._replace(of=claim.same_as), records)
    if twins == pairs:
      reason = f'all seeds have the numbers of {dict(claim.same_as)}'
  return row._replace(verdict=UNFALSIFIABLE, reason=reason) if reason else row


def _tests(claim: Claim, records: Sequence[Record]) -> tuple[_Test, ...]:
  """Returns the tests that the verdict on a claim needs."""
  measure = claim.measure
  if measure is None or not _compares(measure):
    return ()
  pairs = [p for p in read_pairs(measure, records) if None not in p]
  ours, others = zip(*pairs, strict=True)
  log = measure.minus is None
  if _claims_likeness(claim):
    return tuple(
      _Test(name, statistics.within_p(ours, others, limits, log=log))
      for name, limits in ((CONFIRMED, claim.confirmed), (SHAPE, claim.shape))
      if limits
    )
  margin = (
    (1 / (1 + MARGIN_RATIO), 1 + MARGIN_RATIO)
    if log
    else (-MARGIN_DIFFERENCE, MARGIN_DIFFERENCE)
  )
  return (
    _Test('differs', statistics.differ_p(ours, others, log=log)),
    _Test('negligible', statistics.within_p(ours, others, margin, log=log)),
  )


def _correct(tests: Sequence[Sequence[_Test]]) -> list[dict[str, float]]:
  """Returns the corrected p-values of each claim by the names of its tests."""
  corrected: list[dict[str, float]] = [{} for _ in tests]
  for group in (('differs',), ('negligible',), (CONFIRMED, SHAPE)):
    places = [
      (place, test)
      for place, of_claim in enumerate(tests)
      for test in of_claim
      if test.name in group
    ]
    ps = statistics.holm([test.p for _, test in places])
    for (place, test), p in zip(places, ps, strict=True):
      corrected[place][test.name] = p
  return corrected


def _decide(
  claim: Claim,
  row: Judgement,
  tests: Sequence[_Test],
  corrected: Mapping[str, float],
) -> Judgement:
  """Returns the verdict by the rule and the tests."""
  median = row.median
  if median is None:
    raise ValueError(f'{claim.text}: expected a median, got none.')
  verdict = _apply_rule(claim, median)
  if not tests:
    return row._replace(verdict=verdict)
  if tests[0].name != 'differs':
    return _decide_likeness(claim, row, tests, corrected)
  row = row._replace(p=tests[0].p, holm=corrected['differs'])
  if verdict != CONFIRMED and corrected['negligible'] <= _SIGNIFICANT:
    return row._replace(verdict=NO_EFFECT)
  if corrected['differs'] > _SIGNIFICANT:
    reason = 'no difference shows over the seeds'
    return row._replace(verdict=UNDECIDED, reason=reason)
  return row._replace(verdict=verdict)


def _decide_likeness(
  claim: Claim,
  row: Judgement,
  tests: Sequence[_Test],
  corrected: Mapping[str, float],
) -> Judgement:
  """Returns the verdict on a claim that two schemes are alike."""
  for test in tests:
    if corrected[test.name] <= _SIGNIFICANT:
      return row._replace(
        verdict=test.name, p=test.p, holm=corrected[test.name]
      )
  widest = tests[-1]
  row = row._replace(p=widest.p, holm=corrected[widest.name])
  low, high = claim.shape or claim.confirmed or (-math.inf, math.inf)
  interval = row.interval
  if interval and (interval[1] < low or high < interval[0]):
    return row._replace(verdict=REFUTED)
  reason = 'neither the range nor its opposite shows over the seeds'
  return row._replace(verdict=UNDECIDED, reason=reason)


def _claims_likeness(claim: Claim) -> bool:
  """Returns whether the range of a comparison contains equality."""
  equal = 0.0 if claim.measure and claim.measure.minus is not None else 1.0
  limits = claim.confirmed or claim.shape or (equal, equal)
  return limits[0] < equal < limits[1]


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


def has_records(claim: Claim, records: Sequence[Record]) -> bool:
  """Returns whether records have the numbers that a claim is judged by."""
  if claim.measure is None:
    return True
  try:
    read_pairs(claim.measure, records)
  except ValueError:  # None, or several, are selected.
    return False
  return True


def _read(
  measure: Measure, over: str, seed: int, records: Sequence[Record]
) -> float | None:
  """Returns the number of a seed, or its spread or mean; None if unknown.

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
  varied = over or measure.mean_over
  if not varied:
    expected = f'one record of seed {seed} with {dict(measure.of)}'
    require(len(selected) == 1, 'results', expected, len(selected))
    return read_number(measure.field, selected[0])
  expected = f'records of seed {seed} with {dict(measure.of)} and any {varied}'
  values = {str(each[varied]) for each in selected}
  require(len(values) > 1, 'results', expected, len(values))
  numbers = [read_number(measure.field, record) for record in selected]
  known_numbers = [number for number in numbers if number is not None]
  if len(known_numbers) < len(numbers):
    return None
  if over:
    return _divide(max(known_numbers), min(known_numbers))
  require(len(selected) == len(values), 'results', expected, len(selected))
  return math.fsum(known_numbers) / len(known_numbers)


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


def _apply_rule(claim: Claim, median: float) -> str:
  for verdict, limits in ((CONFIRMED, claim.confirmed), (SHAPE, claim.shape)):
    if limits and limits[0] <= median <= limits[1]:
      return verdict
  return REFUTED
