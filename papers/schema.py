"""Published tables as data: the files papers/*.toml.

A file has the runs that reproduce one or more tables of a paper, and each table
in the paper's layout.  Options of a table hold for all of its cells; those of a
column, of a row and of a single cell replace them, in this order.  `where` and
`of` are joined instead.
"""

import hashlib
import math
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from configs.checks import require

FOLDER = pathlib.Path(__file__).parent
# Certainty of a published number.  RESULTS.md prints these texts.
CERTAINTIES = {
  'table': 'a table of the paper, or what its authors released',
  'text': 'the text of the paper',
  'abstract': 'the abstract',
  'notes': 'notes of others on the paper',
  'read off': 'read off a figure, to one or two per cent',
  'derived': 'our arithmetic from what was read',
  'measured': 'measured by others',
  'ours': 'our own question',
}
# Kinds of evidence from the strongest.  RESULTS.md prints these texts.
EVIDENCE = {
  'real links': 'times of real processes over real links',
  'timed': 'times of our code on this machine, without a network',
  'trained': 'a model is trained; times are those of the virtual clock',
  'simulated': 'virtual clock or synthetic traces; no model is trained',
  'arithmetic': 'computed from sizes and capacities; nothing runs',
}
SCALES = ('quick', 'full')
_SEEDS = {'quick': 6, 'full': 10}
Selection = dict[str, Any]  # Values of fields that records must have.
Range = tuple[float, float]
# Ranges of values that have the direction of the published one.
_DIRECTIONS: dict[tuple[str, bool], Range] = {
  ('below', False): (0.0, 1.0),
  ('above', False): (1.0, math.inf),
  ('below', True): (-1.0, 0.0),
  ('above', True): (0.0, 1.0),
}


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
  """Measure of a cell, and the rule that accepts it.

  Attributes:
    measure: Field of the records.
    where: Values that select the records of both sides of a comparison.
    of: Further values that select our side.
    over: Values that select the baseline, whose number divides ours.
    minus: Values that select the baseline, whose number is subtracted.
    spread: Field in which the selected records differ: the number is the
      largest over the smallest of them.
    spread_over: The same field of the baseline.
    mean_over: Field in which the selected records differ: the number is their
      mean.
    match: Share by which ours may deviate from the published number, or the
      range of ours; [] if nothing can match, as model or data are others.
    same: Range, or share, of the same direction: 'below' or 'above' 1 (or 0 for
      differences), or 'side' for the side of the published number.
    certainty: Key of CERTAINTIES.
    needs: What is missing here to measure the cell, or ''.
    same_as: Values of a scheme without the setting that the cell tests.  If all
      seeds have the same numbers, the setting has never acted.
  """

  measure: str | None = None
  where: Selection = {}
  of: Selection = {}
  over: Selection | None = None
  minus: Selection | None = None
  spread: str | None = None
  spread_over: str | None = None
  mean_over: str | None = None
  match: float | list[float] | None = None
  same: str | float | list[float] | None = None
  certainty: str | None = None
  needs: str | None = None
  same_as: Selection | None = None


class Published(Options):
  """Cell with options of its own; `paper` is its number, or a text."""

  paper: float | str = ''


class Column(Options):
  """Column of a table."""

  name: str


class Row(Options):
  """Row of a table with a published number for each column.

  A text stands where the paper has words and no number, and '-' where it has no
  cell.
  """

  name: str
  published: list[float | str | Published]


class Table(Options):
  """Table or figure of a paper.

  Attributes:
    name: Its name in the paper, such as 'Figure 7'.
    title: What it shows.
    columns: Columns from left to right.
    rows: Rows from top to bottom.
    evidence: Key of EVIDENCE; None for that of the file.
    figure: Whether RESULTS.md draws it.
  """

  name: str
  title: str
  columns: list[Column]
  rows: list[Row]
  evidence: str | None = None
  figure: bool = False


class Runs(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
  """Runs whose records the cells select.

  Attributes:
    config: Config file of virtual runs.
    set: Fields that differ from this file.
    grid: Grid of the runs without seeds, see docs/sweeps.md; '' for none.
    full: Further axes of the grid at the scale 'full'.
    quick: Further axes of the grid at the scale 'quick'.
    add: Function that adds fields to a record from the files of its run, as
      MODULE:NAME, or ''.
    function: Function that returns records, as MODULE:NAME, or ''.
    keep: Fields of records that no cell selects and the page needs.
  """

  config: str = 'configs/default.py'
  set: dict[str, Any] = {}
  grid: str = ''
  quick: str = ''
  full: str = ''
  add: str = ''
  function: str = ''
  keep: list[str] = []


class Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
  """A file of papers/.

  Attributes:
    paper: The paper, with venue and year.
    published: Published set-up.
    ours: Our set-up.
    differences: Differences that may matter.
    notes: What was observed, and rules that were wrong.
    evidence: Key of EVIDENCE.
    minutes: Minutes of two cores at the scale 'quick'.
    needs: Requirements beside the program: 'root', 'torch', or a file in the
      folder SYNCOPATE_DATA.
    seeds: Number of seeds by scale.
    runs: Its runs.
    table: Its tables.
  """

  paper: str
  published: str = ''
  ours: str = ''
  differences: str = ''
  notes: str = ''
  evidence: str = 'simulated'
  minutes: float = 1.0
  needs: list[str] = []
  seeds: dict[str, int] = msgspec.field(default_factory=lambda: dict(_SEEDS))
  runs: Runs
  table: list[Table]


class Cell(NamedTuple):
  """Cell of a table with the rule that judges it.

  Attributes:
    row: Name of its row.
    column: Name of its column.
    paper: Published number; None without one.
    text: Text of the cell, as printed.
    measure: Field of the records.
    of: Values that select our records.
    other: Values that select the records of the baseline; None without one.
    is_difference: Whether the baseline is subtracted.
    match: Range of medians that match; None for none.
    same: Range of medians of the same direction; None for none.
    certainty: Key of CERTAINTIES.
    needs: What is missing to measure it, or ''.
    spread: See Options.
    spread_over: See Options.
    mean_over: See Options.
    same_as: See Options.
  """

  row: str
  column: str
  paper: float | None
  text: str
  measure: str
  of: Selection
  other: Selection | None
  is_difference: bool
  match: Range | None
  same: Range | None
  certainty: str
  needs: str
  spread: str
  spread_over: str
  mean_over: str
  same_as: Selection | None


def names() -> list[str]:
  """Returns the names of all entries, which are the files papers/*.toml."""
  return sorted(path.stem for path in FOLDER.glob('*.toml'))


def read(name: str) -> Entry:
  """Returns the entry of the file papers/NAME.toml.

  Raises:
    ValueError: If there is none of this name, or if it cannot be judged.
  """
  known = names()
  require(name in known, 'TABLE', f'one of {", ".join(known)}', name)
  return parse(name, (FOLDER / f'{name}.toml').read_bytes())


def parse(name: str, content: bytes) -> Entry:
  """Returns the entry of a file's content.

  Raises:
    ValueError: If the content is wrong; names the place.
  """
  try:
    entry = msgspec.toml.decode(content, type=Entry)
  except msgspec.MsgspecError as error:
    raise ValueError(f'{name}.toml: {error}') from error
  kinds = f'one of {[*EVIDENCE]}'
  for kind in (entry.evidence, *(x.evidence for x in entry.table)):
    require(kind is None or kind in EVIDENCE, name, kinds, kind)
  titles = [table.name for table in entry.table]
  require(len(titles) == len({*titles}), name, 'names that differ', titles)
  for table in entry.table:
    for cell in cells(table):
      _check(f'{name}: {table.name}: {cell.row}: {cell.column}', cell)
  has_runs = bool(entry.runs.grid) != bool(entry.runs.function)
  require(has_runs, name, 'either a grid or a function', entry.runs)
  return entry


def cells(table: Table) -> list[Cell]:
  """Returns the cells of a table, row by row, without those it lacks.

  Raises:
    ValueError: If a row has not one number for each column.
  """
  found = []
  for row in table.rows:
    count, place = len(table.columns), f'{table.name}: {row.name}'
    given = len(row.published)
    require(given == count, place, f'{count} published numbers', given)
    for column, value in zip(table.columns, row.published, strict=True):
      one = value if isinstance(value, Published) else Published(paper=value)
      if one.paper != '-':
        found.append(_cell(table, column, row, one))
  return found


def rule_digest(table: Table) -> str:
  """Returns a digest of the rules of a table.

  Results store the digest of their time, so that later changes are detected.
  """
  rules = [
    (c.row, c.column, c.paper, c.measure, c.of, c.other, c.match, c.same)
    for c in cells(table)
    if not c.needs
  ]
  return hashlib.sha256(msgspec.json.encode(rules)).hexdigest()[:16]


def fields(entry: Entry) -> list[str]:
  """Returns the fields of records that cells select or measure."""
  found: dict[str, None] = {'seed': None, 'status': None}
  for table in entry.table:
    for cell in cells(table):
      for selected in (cell.of, cell.other or {}, cell.same_as or {}):
        found |= dict.fromkeys(selected)
      varied = cell.spread, cell.spread_over, cell.mean_over, cell.measure
      found |= dict.fromkeys(filter(None, varied))
  return [*(found | dict.fromkeys(entry.runs.keep))]


def _cell(table: Table, column: Column, row: Row, one: Published) -> Cell:
  levels = (table, column, row, one)
  where = _joined(level.where for level in levels)
  other, is_difference = None, False
  for level in levels:
    if level.over is not None or level.minus is not None:
      is_difference = level.minus is not None
      other = level.minus if is_difference else level.over
  paper = float(one.paper) if not isinstance(one.paper, str) else None
  same = _range(_last(levels, 'same'), paper, is_difference=is_difference)
  match = _range(_last(levels, 'match'), paper, is_difference=is_difference)
  if match and same and isinstance(_last(levels, 'match'), (int, float)):
    match = max(match[0], same[0]), min(match[1], same[1])
  return Cell(
    row=row.name,
    column=column.name,
    paper=paper,
    text=one.paper if isinstance(one.paper, str) else '',
    measure=_last(levels, 'measure') or '',
    of=where | _joined(level.of for level in levels),
    other=None if other is None else where | other,
    is_difference=is_difference,
    match=match,
    same=same,
    certainty=_last(levels, 'certainty') or 'table',
    needs=_last(levels, 'needs') or '',
    spread=_last(levels, 'spread') or '',
    spread_over=_last(levels, 'spread_over') or '',
    mean_over=_last(levels, 'mean_over') or '',
    same_as=_last(levels, 'same_as') or None,
  )


def _joined(parts: Iterator[Selection]) -> Selection:
  return {field: value for part in parts for field, value in part.items()}


def _last(levels: tuple[Options, ...], name: str) -> Any:
  """Returns the option of the innermost level that has it, or None."""
  found = None
  for level in levels:
    value = getattr(level, name)
    found = found if value is None else value
  return found


def _range(
  value: Any, paper: float | None, *, is_difference: bool
) -> Range | None:
  """Returns the range that an option stands for; None for none."""
  if value is None or value == []:
    return None
  if isinstance(value, list):
    require(len(value) == 2, 'range', 'two ends', value)
    return float(value[0]), float(value[1])
  if value == 'side':
    require(paper is not None, "'side'", 'a published number', paper)
    middle = 0.0 if is_difference else 1.0
    value = 'below' if float(paper or 0) < middle else 'above'
  if isinstance(value, str):
    known = [word for word, _ in _DIRECTIONS]
    require(value in known, 'same', "'side' or one of {known}", value)
    return _DIRECTIONS[value, is_difference]
  require(paper is not None, 'share', 'a published number', value)
  low, high = sorted(float(paper or 0) * (1 + s * value) for s in (-1, 1))
  return low, high


def _check(place: str, cell: Cell) -> None:
  known = f'one of {[*CERTAINTIES]}'
  require(cell.certainty in CERTAINTIES, place, known, cell.certainty)
  if cell.needs:
    return
  require(bool(cell.measure), place, 'a measure', cell.measure)
  ranges = [each for each in (cell.match, cell.same) if each]
  require(bool(ranges), place, 'a rule: match, same', ranges)
  for low, high in ranges:
    require(low < high, place, 'a range from low to high', (low, high))
  if cell.match and cell.same:
    is_within = cell.same[0] <= cell.match[0] and cell.match[1] <= cell.same[1]
    expected = 'the range of matches within that of the direction'
    require(is_within, place, expected, (cell.match, cell.same))
