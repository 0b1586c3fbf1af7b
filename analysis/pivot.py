"""Tables of a sweep: fields of the config in rows and columns, means in cells.

A cell has the runs that differ in nothing but the fields of repetition, such as
the seed.
"""

import collections
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis import intervals, labels
from analysis.intervals import Interval
from configs import declared, user_parts
from configs.checks import require
from outputs import figures

# Prefix of times to a level, which tables interpolate, and their columns in
# the results of a sweep.
TIME_TO = 'time_to.'
_INTERPOLATED = 'time_to_interpolated.'
_ACCURACY, _TIME, _RESOLUTION = 'accuracy.', '.time_s', '.resolution_s'
# Columns that are neither fields of the config nor measured.
_OTHERS = (
  *('run', 'status', 'host', 'cores', 'python', 'devices', 'xla_flags'),
  *('git_revision', 'identity', 'folder', 'log', 'error', 'ended', 'reason'),
)
_OTHER_SECTIONS = 'versions.', 'numerics.'

Row = Mapping[str, Any]  # Of the results of a sweep.
Labels = tuple[str, ...]  # Values of fields, as texts.


class Layout(NamedTuple):
  """Rows, columns and values of a table.

  Attributes:
    rows: Fields of its rows.
    columns: Fields of its columns; may be none.
    values: Names of what its cells measure, one or several.
    where: Values, as texts, of fields that all runs of the table have.
    over: Fields of the repetitions in a cell.
    baseline: Row that differences refer to, as its label; '' for none.
  """

  rows: Sequence[str]
  columns: Sequence[str] = ()
  values: Sequence[str] = ('final_accuracy',)
  where: Mapping[str, str] = {}
  over: Sequence[str] = ('seed',)
  baseline: str = ''


class Cell(NamedTuple):
  """Runs of a cell.

  Attributes:
    numbers: Number of each repetition; inf for a level that was never reached,
      None for a run that has no number.
    why: Statuses of the runs without a number.
  """

  numbers: Mapping[Labels, float | None]
  why: Sequence[str]

  @property
  def finite(self) -> list[float]:
    """Numbers that a mean can have."""
    known = (x for x in self.numbers.values() if x is not None)
    return [x for x in known if math.isfinite(x)]

  @property
  def never(self) -> int:
    """Number of repetitions that never reached the level."""
    return sum(x == math.inf for x in self.numbers.values())

  @property
  def mean(self) -> Interval | None:
    """Mean of the repetitions; None without one, or if one is infinite."""
    return (
      intervals.mean(self.finite) if self.finite and not self.never else None
    )

  def minus(self, other: 'Cell') -> tuple[Interval | None, int]:
    """Returns the mean difference of common repetitions, and their number.

    The difference is None without any, or if a number is infinite.
    """
    pairs = [
      (own, theirs)
      for key, own in self.numbers.items()
      if own is not None and (theirs := other.numbers.get(key)) is not None
    ]
    if not pairs or math.inf in map(max, pairs):
      return None, len(pairs)
    return intervals.mean([a - b for a, b in pairs]), len(pairs)


class Pivot(NamedTuple):
  """Table of a sweep.

  Attributes:
    layout: Its layout.
    rows: Labels of its rows, in the order of the sweep.
    columns: Labels of its columns.
    cells: Cell by row, column and name of the value, where there are runs.
    resolutions_s: Smallest and largest distance of the evaluations between
      which times were interpolated, seconds; None without any.
    clock: Kind of the runs' seconds, 'virtual' or 'real'.
  """

  layout: Layout
  rows: Sequence[Labels]
  columns: Sequence[Labels]
  cells: Mapping[tuple[Labels, Labels, str], Cell]
  resolutions_s: tuple[float, float] | None
  clock: str

  def baseline_of(self, column: Labels, value: str) -> Cell | None:
    """Returns the cell that differences in a column refer to.

    None if the table has no baseline, or the column no runs of it.
    """
    names = {row_label(row): row for row in self.rows}
    row = names.get(self.layout.baseline)
    return None if row is None else self.cells.get((row, column, value))


def make(results: Sequence[Row], layout: Layout) -> Pivot:
  """Returns the table of a sweep's results.

  Args:
    results: Rows of the results.
    layout: What the table shows.

  Raises:
    ValueError: If a field, a value or the baseline is unknown, or if a cell has
      several runs of one repetition; names what there is.
  """
  fields = _fields(results)
  for flag, names in (
    ('--rows', layout.rows),
    ('--columns', layout.columns),
    ('--where', layout.where),
  ):
    for name in names:
      expected = f'fields in which the runs differ, {fields}'
      require(name in fields, flag, expected, name)
  declared_fields = [path for path, _ in declared.iterate_fields()]
  for name in layout.over:
    is_known = name in fields or name in declared_fields
    expected = f'fields of repetition, such as seed, of {fields}'
    require(is_known, '--over', expected, name)
  require(bool(layout.rows), '--rows', f'some of the fields {fields}', '')
  require(bool(layout.values), '--value', 'a name', '')
  columns = {name: _column(results, name) for name in layout.values}
  chosen = _select(results, layout.where)
  runs: dict[tuple[Labels, Labels], list[Row]] = {}
  for run in chosen:
    place = _labels(run, layout.rows), _labels(run, layout.columns)
    runs.setdefault(place, []).append(run)
  for of_cell in runs.values():
    _check_repetitions(of_cell, layout, fields)
  rows = [*dict.fromkeys(row for row, _ in runs)]
  known = [*map(row_label, rows)]
  is_known = not layout.baseline or layout.baseline in known
  require(is_known, '--baseline', f'one of the rows {known}', layout.baseline)
  is_virtual = any(run.get('virtual_s') is not None for run in chosen)
  return Pivot(
    layout,
    rows,
    [*dict.fromkeys(column for _, column in runs)],
    {
      (*place, name): _cell(of_cell, layout, column)
      for place, of_cell in runs.items()
      for name, column in columns.items()
    },
    _resolutions(chosen, columns.values()),
    'virtual' if is_virtual else 'real',
  )


def row_label(labels: Labels) -> str:
  """Returns the label of a row, or of a column, in one text."""
  return ', '.join(filter(None, labels))


def short_names(fields: Sequence[str]) -> list[str]:
  """Returns names of fields for headings; whole paths where these collide.

  Example:
    >>> short_names(['sync.name', 'cluster.speed.slowdown'])
    ['sync', 'slowdown']
  """
  short = labels.shorten(fields)
  return [
    name if '.' in name else name.replace('_', ' ') for name in short.values()
  ]


def value_label(name: str, clock: str) -> tuple[str, float]:
  """Returns what a value measures, with its unit, and the unit's factor.

  Args:
    name: Name of the value, such as 'time_to.0.95'.
    clock: Kind of the runs' seconds.
  """
  seconds = 'virtual s' if clock == 'virtual' else 's'
  if name.startswith(TIME_TO):
    measure, _, level = f'accuracy {name.removeprefix(TIME_TO)}'.rpartition(' ')
    named = re.fullmatch(r'([a-z_]\w*)\.(.+)', level)
    if named:
      measure, level = named[1], named[2]
    return f'time to {figures.label(measure)} {level} ({seconds})', 1.0
  words = name.replace('.', ' ').replace('_', ' ')
  if figures.is_share(name) or name.endswith('_share') or name == 'goodput':
    return f'{words} (%)', 100.0
  if name == 'wall_s':
    return 'real time (s)', 1.0
  if name.endswith('_s'):
    return f'{words[:-2]} ({seconds})', 1.0
  return words, 1.0


def _fields(results: Sequence[Row]) -> list[str]:
  """Returns the fields of the config in which runs differ."""
  known = {path for path, _ in declared.iterate_fields()}
  own = f'.{user_parts.SECTION}.'
  return [
    name
    for name in results[0]
    if name in known or own in name or name.startswith('time_to_measure.')
  ]


def _column(results: Sequence[Row], name: str) -> str:
  """Returns the column of the results that has a value.

  Raises:
    ValueError: If there is none; names those that there are.
  """
  columns = {
    shown: column
    for column in results[0]
    if (shown := _shown(column)) and _is_measured(results, column)
  }
  close = difflib.get_close_matches(name, columns, n=1)
  hint = f', perhaps {close[0]!r}' if close else ''
  require(name in columns, '--value', f'one of {[*columns]}{hint}', name)
  return columns[name]


def _shown(column: str) -> str:
  """Returns the name by which a column is a value; '' if it is none."""
  if not column.startswith(_INTERPOLATED):
    # Times to accuracies are those that are interpolated.
    return '' if column.startswith(TIME_TO) else column
  if not column.endswith(_TIME):
    return ''
  level = column.removeprefix(_INTERPOLATED).removesuffix(_TIME)
  return TIME_TO + level.removeprefix(_ACCURACY)


def _is_measured(results: Sequence[Row], column: str) -> bool:
  if column in _OTHERS or column.startswith(_OTHER_SECTIONS):
    return False
  if column in _fields(results[:1]):
    return False
  if column.startswith(_INTERPOLATED):
    return True  # Perhaps no run reached it.
  kinds = {type(run[column]) for run in results} - {type(None)}
  return bool(kinds) and kinds <= {int, float}


def _select(results: Sequence[Row], where: Mapping[str, str]) -> list[Row]:
  """Returns the runs whose fields have given values.

  Raises:
    ValueError: If a field has no such value; names those that it has.
  """
  chosen = [*results]
  for field, wanted in where.items():
    known = [*dict.fromkeys(_text(run[field]) for run in chosen)]
    require(wanted in known, '--where', f'{field} as one of {known}', wanted)
    chosen = [run for run in chosen if _text(run[field]) == wanted]
  return chosen


def _check_repetitions(
  runs: Sequence[Row], layout: Layout, fields: Sequence[str]
) -> None:
  """Checks that the runs of a cell differ in the fields of repetition alone.

  Raises:
    ValueError: If not; names the fields in which they differ.
  """
  found = collections.Counter(_labels(run, layout.over) for run in runs)
  if all(count == 1 for count in found.values()):
    return
  differ = [
    field
    for field in fields
    if field not in layout.over and len({str(run[field]) for run in runs}) > 1
  ]
  raise ValueError(
    f'--rows, --columns: expected one run of each {" and ".join(layout.over)} '
    f'in a cell, got {max(found.values())} that differ in {differ}; add these '
    'to --rows, --columns or --over, or choose one by --where=FIELD=VALUE.'
  )


def _cell(runs: Sequence[Row], layout: Layout, column: str) -> Cell:
  numbers: dict[Labels, float | None] = {}
  why = []
  for run in runs:
    number = _number(run, column)
    numbers[_labels(run, layout.over)] = number
    if number is None:
      why.append(str(run['status']))
  return Cell(numbers, why)


def _number(run: Row, column: str) -> float | None:
  """Returns the number of a run; None if it has none."""
  value, status = run[column], run['status']
  if column.startswith(_INTERPOLATED) and status in ('finished', 'diverged'):
    return math.inf if value is None else float(value)
  return None if value is None or status != 'finished' else float(value)


def _resolutions(
  runs: Sequence[Row], columns: Sequence[str] | Any
) -> tuple[float, float] | None:
  found = [
    run[column.removesuffix(_TIME) + _RESOLUTION]
    for column in columns
    if column.startswith(_INTERPOLATED)
    for run in runs
    if run[column] is not None
  ]
  return (min(found), max(found)) if found else None


def _labels(run: Row, fields: Sequence[str]) -> Labels:
  """Returns the values of fields; '' of those that the run does not use."""
  return tuple(
    _text(run[field]) if _is_used(run, field) else ''
    for field in fields
    if field in run  # Runs of one seed do not differ in it.
  )


def _is_used(run: Row, field: str) -> bool:
  """Returns whether a run's choices include the section of a field."""
  parts = field.split('.')
  for depth in range(1, len(parts) - 1):
    section, option = '.'.join(parts[:depth]), parts[depth]
    chosen = run.get(f'{section}.name', option)
    if chosen != option and option in declared.options(section):
      return False
  return True


def _text(value: Any) -> str:
  """Returns the value of a field as text; lists are tuples, as in flags.

  Example:
    >>> _text(2.0), _text('(1.0, 1.5)'), _text([2.0]), _text('bsp')
    ('2', '(1, 1.5)', '(2)', 'bsp')
  """
  if isinstance(value, float):
    return f'{value:g}'
  text = '' if value is None else str(value)
  if text[:1] in ('[', '(') and text[-1:] in (']', ')'):
    items = re.sub(r'\.0(?=,|$)', '', text[1:-1].removesuffix(','))
    return f'({items})'
  return text
