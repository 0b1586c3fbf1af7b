"""Tables of sweeps as text, Markdown, LaTeX and CSV, with what they mean."""

import collections
import math
from collections.abc import Iterator

from analysis import pivot, printing
from analysis.intervals import Interval
from analysis.pivot import Cell, Labels, Pivot

FORMATS = ('text', 'csv', 'latex', 'markdown')
_DIGITS = 2  # Digits of half an interval; those of a mean go as far.
_ALONE = 4  # Digits of a number without an interval.
_DASH = '–'
_DELTA = 'Δ'


def write(table: Pivot, form: str) -> str:
  """Returns a table with its notes, in one of `FORMATS`."""
  if form == 'csv':
    return printing.csv_text(_records(table))
  rows = _grid(table)
  if form == 'latex':
    return printing.latex(
      _without_groups(rows, table),
      caption=' '.join([f'{_title(table)}.', *notes(table)]),
      groups=_groups(table),
    )
  body = printing.markdown(rows) if form == 'markdown' else printing.text(rows)
  end = '\n' if form == 'text' else '\n\n'
  return f'{_title(table)}\n\n{body}\n\n{end.join(notes(table))}\n'


def notes(table: Pivot) -> list[str]:
  """Returns what the numbers of a table are, as sentences."""
  cells = [*table.cells.values()]
  layout = table.layout
  said = []
  repeated = pivot.short_names(layout.over)
  over = ' and '.join(f'{name}s' for name in repeated)
  usual = _usual_count(table)
  has_others = any(len(cell.finite) != usual for cell in cells)
  numbers = f'n = {usual}' + (', or the n in brackets' if has_others else '')
  if any(cell.mean and cell.mean.half is not None for cell in cells):
    said.append(
      f"Mean ± half of its 95 % interval (Student's t) over {over}, {numbers}."
    )
  else:
    said.append(f'Mean over {over}, {numbers}, without an interval.')
  if layout.baseline:
    pairs = ' and '.join(repeated)
    said.append(
      f'{_DELTA}: mean difference from {layout.baseline} of runs with the same '
      f'{pairs}, with its interval; intervals are not corrected for their '
      'number.'
    )
  if table.resolutions_s:
    low, high = (f'{each:.2g}' for each in table.resolutions_s)
    apart = low if low == high else f'{low} to {high}'
    said.append(
      f'Times lie on straight lines between evaluations, {apart} s apart.'
    )
  if any(cell.never for cell in cells):
    said.append(
      '"k of m": only k of m runs reached the level, so that there is no mean.'
    )
  said += _missing(table)
  return said


def _title(table: Pivot) -> str:
  names = [
    pivot.value_label(name, table.clock)[0] for name in table.layout.values
  ]
  title = ', '.join(names)
  where = ', '.join(f'{k}={v}' for k, v in table.layout.where.items())
  title = f'{title}, {where}' if where else title
  return title[:1].upper() + title[1:]


def _missing(table: Pivot) -> Iterator[str]:
  """Yields why cells have fewer numbers than runs, or none."""
  if any((r, c, v) not in table.cells for r, c, v in _places(table)):
    yield f'{_DASH}: no run.'
  told = set()
  for (row, column, _), cell in table.cells.items():
    if not cell.why:
      continue
    counts = collections.Counter(cell.why)
    which = ', '.join(filter(None, map(pivot.row_label, (row, column))))
    said = ', '.join(
      f'{count} of {len(cell.numbers)} runs '
      + ('have no number' if status == 'finished' else status)
      for status, count in counts.items()
    )
    told.add(f'{which}: {said}.')
  yield from sorted(told)


def _places(table: Pivot) -> Iterator[tuple[Labels, Labels, str]]:
  """Yields row, column and value of each place of the table."""
  for row in table.rows:
    for value in table.layout.values:
      for column in table.columns:
        yield row, column, value


def _usual_count(table: Pivot) -> int:
  counts = collections.Counter(len(c.finite) for c in table.cells.values())
  return counts.most_common(1)[0][0]


def _grid(table: Pivot) -> list[list[str]]:
  """Returns the head and the rows of the table."""
  usual = _usual_count(table)
  head = [', '.join(pivot.short_names(table.layout.rows))]
  for value in table.layout.values:
    for column in table.columns:
      name = _heading(table, column, value)
      head += [name, f'{_DELTA} {name}'] if table.layout.baseline else [name]
  rows = [head]
  for row in table.rows:
    line = [pivot.row_label(row)]
    for value in table.layout.values:
      factor = pivot.value_label(value, table.clock)[1]
      for column in table.columns:
        cell = table.cells.get((row, column, value))
        line.append(_cell(cell, factor, usual))
        if table.layout.baseline:
          line.append(_difference(table, row, column, value, factor))
    rows.append(line)
  return rows


def _heading(table: Pivot, column: Labels, value: str) -> str:
  """Returns the heading of a column: its fields, and what it measures."""
  names = pivot.short_names(table.layout.columns)
  parts = [
    f'{name} {label}'
    for name, label in zip(names, column, strict=True)
    if label
  ]
  if len(table.layout.values) > 1 or not parts:
    parts.insert(0, pivot.value_label(value, table.clock)[0])
  return ', '.join(parts)


def _groups(table: Pivot) -> list[tuple[str, int]]:
  """Returns the headings above those of the columns, with their widths."""
  layout = table.layout
  if layout.baseline:
    return [
      (_heading(table, column, value), 2)
      for value in layout.values
      for column in table.columns
    ]
  if layout.columns and len(layout.values) == 1:
    title = ', '.join(pivot.short_names(layout.columns))
    return [(title, len(table.columns))]
  return []


def _without_groups(rows: list[list[str]], table: Pivot) -> list[list[str]]:
  """Returns the rows with a head that does not repeat the groups above it."""
  head = rows[0]
  if table.layout.baseline:
    places = len(head) // 2
    return [[head[0], *['mean', _DELTA] * places], *rows[1:]]
  if _groups(table):
    return [[head[0], *map(pivot.row_label, table.columns)], *rows[1:]]
  return rows


def _cell(cell: Cell | None, factor: float, usual: int) -> str:
  if cell is None:
    return _DASH
  if cell.never:
    return f'{len(cell.finite)} of {len(cell.numbers)}'
  if cell.mean is None:
    return _DASH
  text = _number(cell.mean, factor)
  count = len(cell.finite)
  return text if count == usual else f'{text} ({count})'


def _difference(
  table: Pivot, row: Labels, column: Labels, value: str, factor: float
) -> str:
  cell = table.cells.get((row, column, value))
  base = table.baseline_of(column, value)
  if cell is None or base is None or cell is base:
    return '' if cell is base else _DASH
  found, count = cell.minus(base)
  if found is None:
    return _DASH
  text = _number(found, factor, is_signed=True)
  return text if count == len(cell.numbers) else f'{text} ({count})'


def _number(found: Interval, factor: float, *, is_signed: bool = False) -> str:
  """Returns a mean with half of its interval, to as many digits as it has."""
  value, half = factor * found.value, factor * (found.half or 0.0)
  sign = '+' if is_signed else ''
  if not half:
    text = f'{value:{sign}.{_ALONE}g}'
  else:
    decimals = max(_DIGITS - 1 - math.floor(math.log10(half)), 0)
    if decimals > 6 or abs(value) >= 1e6:
      text = f'{value:{sign}.{_ALONE - 1}e} ± {half:.{_DIGITS - 1}e}'
    else:
      text = f'{value:{sign}.{decimals}f} ± {half:.{decimals}f}'
  return text.replace('-', '−', 1) if text.startswith('-') else text


def _records(table: Pivot) -> Iterator[list[object]]:
  """Yields a head, and a row for each cell that has runs."""
  layout = table.layout
  yield [
    *(*layout.rows, *layout.columns, 'value', 'mean', 'low', 'high', 'n'),
    *('runs', 'never_reached', 'difference', 'difference_low'),
    *('difference_high', 'pairs'),
  ]
  for (row, column, value), cell in table.cells.items():
    base = table.baseline_of(column, value)
    found, pairs = (None, 0) if base is None else cell.minus(base)
    yield [
      *(*row, *column, value, *(cell.mean or (None, None, None))),
      *(len(cell.finite), len(cell.numbers), cell.never),
      *(found or (None, None, None)),
      pairs if base is not None else None,
    ]
