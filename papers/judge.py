"""Verdicts on the cells of a table, from records of runs and their rules.

Two schemes are compared by pairs of numbers of the same seed: ratios by their
logarithms, differences as they are.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from statsmodels.stats import multitest

from analysis import intervals
from configs.checks import require
from papers.schema import Cell, Range, Selection

MATCH = 'match'
SAME = 'same direction'
DIFFERS = 'differs'
UNDECIDED = 'no difference at this n'
UNAVAILABLE = 'cannot be had here'
NOT_RUN = 'not run'
VERDICTS = (MATCH, SAME, DIFFERS, UNDECIDED, UNAVAILABLE, NOT_RUN)
# Two schemes are alike if they differ by less: a ratio from 1, and accuracies.
MARGIN_RATIO, MARGIN_DIFFERENCE = 0.05, 0.01
_ALIKE = 'the two are shown to be alike'
_SMALL = 'a difference shows, but one below 5 % or 0.01 of accuracy'
_SIGNIFICANT = 0.05
_ROUNDING = 1e-12  # Spreads of deterministic numbers below this are rounding.
# Prefixes of times to a level: None means never reached, which is infinite.
_TIMES = 'time_to.', 'iterations_to.', 'examples_to.', 'time_to_bits_per_byte.'

Record = Mapping[str, Any]
_Pair = tuple[float | None, float | None]


class Judged(NamedTuple):
  """Verdict on a cell with our numbers.

  Attributes:
    cell: The cell.
    verdict: One of VERDICTS.
    reason: Why, where the rule alone does not say, or ''.
    median: Median over seeds; None without a number.
    low: Lower end of the interval of the median, or of the range of seeds.
    high: Upper end.
    seeds: Number of seeds with a number.
    p: p-value of the test that the cell needs, corrected within the table; None
      without a comparison.
  """

  cell: Cell
  verdict: str
  reason: str = ''
  median: float | None = None
  low: float | None = None
  high: float | None = None
  seeds: int = 0
  p: float | None = None


class _Test(NamedTuple):
  """Test of a cell: 'differs', 'alike', or the verdict that it allows."""

  name: str
  p: float


def judge(
  cells: Sequence[Cell], records: Sequence[Record] | None
) -> list[Judged]:
  """Returns the verdicts on the cells of one table.

  A median in the range `match` matches, one in the range `same` has the same
  direction, and any other differs.  Comparisons of two schemes need a test over
  seeds beside this:

  - If the range has no equality, a difference has to show, or the cell has no
    difference at this n.  It differs if the schemes are shown to be alike.
  - If it has, the range has to be shown to hold.  The cell differs if the whole
    interval of the median is outside.

  Tests of differences, of likeness and of ranges are three groups; p-values of
  each are corrected by Holm's method within the table.

  Args:
    cells: Cells of the table.
    records: Records of its runs; None if nothing has run.

  Raises:
    ValueError: If a cell does not select one record of each seed.
  """
  if records is None:
    return [
      _unavailable(cell) if cell.needs else Judged(cell, NOT_RUN)
      for cell in cells
    ]
  pairs = [[] if cell.needs else _pairs(cell, records) for cell in cells]
  measured = [
    _measure(cell, of_cell, records)
    for cell, of_cell in zip(cells, pairs, strict=True)
  ]
  tests = [
    () if row.verdict else _tests(row.cell, of_cell)
    for row, of_cell in zip(measured, pairs, strict=True)
  ]
  corrected = _correct(tests)
  return [
    row if row.verdict else _decide(row, of_cell, ps)
    for row, of_cell, ps in zip(measured, tests, corrected, strict=True)
  ]


def differ_p(
  ours: Sequence[float], others: Sequence[float], *, log: bool
) -> float:
  """Returns the two-sided p-value of the claim that two schemes are equal.

  The test is the paired t-test, or the exact signed-rank test if a number is
  infinite.  A single seed shows nothing.

  Args:
    ours: A number per seed.
    others: That of the other scheme with the same seeds.
    log: Whether effects are ratios instead of differences.
  """
  effects = _effects(ours, others, log=log)
  if effects is None:
    return _signed_rank_p(ours, others, log=log)
  return _t_p(effects, 0.0, 'two-sided')


def within_p(
  ours: Sequence[float], others: Sequence[float], limits: Range, *, log: bool
) -> float:
  """Returns the p-value of the claim that the effect is outside of limits.

  The test is two one-sided paired t-tests (Schuirmann, 1987); 1 if a number is
  infinite.
  """
  effects = _effects(ours, others, log=log)
  if effects is None:
    return 1.0
  low, high = limits
  if log:
    low = math.log(low) if low > 0 else -math.inf
    high = math.log(high)
  sides = ((low, 'greater'), (high, 'less'))
  return max(
    0.0 if math.isinf(end) else _t_p(effects, end, side) for end, side in sides
  )


def read_number(field: str, record: Record) -> float | None:
  """Returns a number of a record; None if it is unknown.

  The time to a level that was never reached is infinite.
  """
  value = record.get(field)
  if value is None and field.startswith(_TIMES):
    return None if record['status'] == 'failed' else math.inf
  if record['status'] != 'finished':
    return None
  require(value is not None, 'results', f'{field} in each record', [*record])
  return float(value)  # type: ignore[arg-type]


def _unavailable(cell: Cell) -> Judged:
  return Judged(cell, UNAVAILABLE, f'needs {cell.needs}')


def _measure(
  cell: Cell, pairs: Sequence[_Pair], records: Sequence[Record]
) -> Judged:
  """Returns our numbers; the verdict is '' if the rule has to give it."""
  if cell.needs:
    return _unavailable(cell)
  values = [_value(cell, *pair) for pair in pairs]
  numbers = [value for value in values if value is not None]
  row = Judged(cell, '', seeds=len(numbers))
  if 2 * len(numbers) <= len(values):
    missing = len(values) - len(numbers)
    reason = f'{missing} of {len(values)} seeds have no number'
    return row._replace(verdict=UNDECIDED, reason=reason)
  median, low, high = intervals.median(numbers)
  row = row._replace(median=median, low=low, high=high)
  if cell.same_as is not None:
    twins = _pairs(cell._replace(of=cell.of | cell.same_as), records)
    if twins == pairs:
      named = ', '.join(f'{k}={v}' for k, v in cell.same_as.items())
      reason = f'the setting never acts here: all numbers are those of {named}'
      return row._replace(verdict=UNAVAILABLE, reason=reason)
  return row


def _tests(cell: Cell, pairs: Sequence[_Pair]) -> tuple[_Test, ...]:
  """Returns the tests that the verdict on a cell needs."""
  if cell.other is None:
    return ()
  known = [pair for pair in pairs if _value(cell, *pair) is not None]
  ours = [a for a, _ in known if a is not None]
  others = [b for _, b in known if b is not None]
  log = not cell.is_difference
  if _claims_likeness(cell):
    return tuple(
      _Test(name, within_p(ours, others, limits, log=log))
      for name, limits in ((MATCH, cell.match), (SAME, cell.same))
      if limits
    )
  ratio = 1 + MARGIN_RATIO
  margin = (
    (1 / ratio, ratio) if log else (-MARGIN_DIFFERENCE, MARGIN_DIFFERENCE)
  )
  return (
    _Test('differs', differ_p(ours, others, log=log)),
    _Test('alike', within_p(ours, others, margin, log=log)),
  )


def _correct(tests: Sequence[Sequence[_Test]]) -> list[dict[str, float]]:
  """Returns the corrected p-values of each cell by the names of its tests."""
  corrected: list[dict[str, float]] = [{} for _ in tests]
  for group in (('differs',), ('alike',), (MATCH, SAME)):
    places = [
      (place, test)
      for place, of_cell in enumerate(tests)
      for test in of_cell
      if test.name in group
    ]
    if places:
      ps = [test.p for _, test in places]
      found = multitest.multipletests(ps, method='holm')[1]
      for (place, test), p in zip(places, found, strict=True):
        corrected[place][test.name] = float(p)
  return corrected


def _decide(
  row: Judged, tests: Sequence[_Test], corrected: Mapping[str, float]
) -> Judged:
  """Returns the verdict by the rule and the tests."""
  median = row.median
  if median is None:
    raise ValueError(f'{row.cell.row}: expected a median, got none.')
  verdict = DIFFERS
  for name, limits in ((SAME, row.cell.same), (MATCH, row.cell.match)):
    if limits and limits[0] <= median <= limits[1]:
      verdict = name
  if not tests:
    return row._replace(verdict=verdict)
  if tests[0].name != 'differs':
    return _decide_likeness(row, tests, corrected)
  row = row._replace(p=corrected['differs'])
  if verdict != MATCH and corrected['alike'] <= _SIGNIFICANT:
    shows = corrected['differs'] <= _SIGNIFICANT
    return row._replace(verdict=DIFFERS, reason=_SMALL if shows else _ALIKE)
  if corrected['differs'] > _SIGNIFICANT:
    return row._replace(verdict=UNDECIDED)
  return row._replace(verdict=verdict)


def _decide_likeness(
  row: Judged, tests: Sequence[_Test], corrected: Mapping[str, float]
) -> Judged:
  """Returns the verdict on a cell whose rule is that two are alike."""
  for test in tests:
    if corrected[test.name] <= _SIGNIFICANT:
      return row._replace(verdict=test.name, p=corrected[test.name])
  row = row._replace(p=corrected[tests[-1].name])
  low, high = row.cell.same or row.cell.match or (-math.inf, math.inf)
  at_most = math.inf if row.high is None else row.high
  at_least = -math.inf if row.low is None else row.low
  if at_most < low or high < at_least:
    return row._replace(verdict=DIFFERS)
  return row._replace(verdict=UNDECIDED)


def _claims_likeness(cell: Cell) -> bool:
  """Returns whether the range of a comparison contains equality."""
  equal = 0.0 if cell.is_difference else 1.0
  low, high = cell.match or cell.same or (equal, equal)
  return low < equal < high


def _pairs(cell: Cell, records: Sequence[Record]) -> list[_Pair]:
  """Returns the number of each seed, and that of its baseline."""
  seeds = {record['seed'] for record in records if 'seed' in record}
  return [
    (
      _read(cell, cell.of, cell.spread, seed, records),
      None
      if cell.other is None
      else _read(cell, cell.other, cell.spread_over, seed, records),
    )
    for seed in sorted(seeds)
  ]


def _read(
  cell: Cell,
  selection: Selection,
  spread: str,
  seed: int,
  records: Sequence[Record],
) -> float | None:
  """Returns the number of a seed, or its spread or mean; None if unknown."""
  place = f'results: {cell.row}: {cell.column}'
  of_seed = [record for record in records if record.get('seed') == seed]
  selected = [
    record
    for record in of_seed
    if all(record.get(field) == value for field, value in selection.items())
  ]
  if not selected and any(each['status'] == 'failed' for each in of_seed):
    return None
  varied = spread or cell.mean_over
  if not varied:
    expected = f'one record of seed {seed} with {selection}'
    require(len(selected) == 1, place, expected, len(selected))
    return read_number(cell.measure, selected[0])
  expected = f'records of seed {seed} with {selection} and any {varied}'
  values = {str(record[varied]) for record in selected}
  require(len(values) > 1, place, expected, len(values))
  numbers = [read_number(cell.measure, record) for record in selected]
  known = [number for number in numbers if number is not None]
  if len(known) < len(numbers):
    return None
  if spread:
    return _divide(max(known), min(known))
  require(len(selected) == len(values), place, expected, len(selected))
  return math.fsum(known) / len(known)


def _value(cell: Cell, ours: float | None, other: float | None) -> float | None:
  if cell.other is None:
    return ours
  if ours is None or other is None:
    return None
  return ours - other if cell.is_difference else _divide(ours, other)


def _divide(a: float, b: float) -> float | None:
  """Returns a quotient; None if b is 0 or both are infinite."""
  return None if a == b == math.inf or b == 0 else a / b


def _effects(
  ours: Sequence[float], others: Sequence[float], *, log: bool
) -> np.ndarray | None:
  """Returns the effect of each seed; None if one of them is not finite."""
  a, b = np.asarray(ours, float), np.asarray(others, float)
  if log:
    if not np.all((a > 0) & (b > 0)):
      return None
    a, b = np.log(a), np.log(b)
  return np.asarray(a - b) if np.all(np.isfinite(a) & np.isfinite(b)) else None


def _t_p(effects: np.ndarray, mean: float, alternative: str) -> float:
  """Returns the p-value of a t-test; 1 for less than two effects."""
  if len(effects) < 2:
    return 1.0
  rounding = _ROUNDING * max(1.0, float(np.max(np.abs(effects))))
  if np.ptp(effects) <= rounding:  # Seeds do not matter.
    above = float(effects[0]) - mean
    distance = {'greater': above, 'less': -above}.get(alternative, abs(above))
    return 0.0 if distance > rounding else 1.0
  return float(stats.ttest_1samp(effects, mean, alternative=alternative).pvalue)


def _signed_rank_p(
  ours: Sequence[float], others: Sequence[float], *, log: bool
) -> float:
  """Returns the two-sided p-value of the exact signed-rank test."""
  a, b = np.asarray(ours, float), np.asarray(others, float)
  numbers = np.concatenate([a, b])
  if log and np.all(numbers > 0):
    a, b, numbers = np.log(a), np.log(b), np.log(numbers)
  finite = np.abs(numbers[np.isfinite(numbers)])
  most = 10 * max(1.0, float(np.max(finite, initial=0.0)))  # Ranks last.
  differences = np.minimum(a, most) - np.minimum(b, most)
  if not np.any(differences):
    return 1.0
  exact = stats.PermutationMethod(n_resamples=2**16)
  return float(stats.wilcoxon(differences, method=exact).pvalue)
