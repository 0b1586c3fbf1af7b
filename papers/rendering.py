"""Tables in the layout of their papers: text, Markdown, LaTeX and CSV.

A cell has the published number, ours with its interval, and the verdict.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import printing
from papers import judge
from papers.judge import Judged
from papers.schema import Entry, Table

MARKS = {
  judge.MATCH: '✓',
  judge.SAME: '≈',
  judge.DIFFERS: '✗',
  judge.UNDECIDED: '?',
  judge.UNAVAILABLE: '–',
  judge.NOT_RUN: '',
}
_NOTHING = 1e-6  # Rounding of differences.


def number(value: float | None) -> str:
  """Returns a number with three digits; '' for None."""
  if value is None:
    return ''
  if math.isinf(value):
    return 'never'
  if abs(value) < _NOTHING:
    return '0'
  if abs(value) >= 1e5 or abs(value) < 1e-3:
    return f'{value:.2e}'
  if abs(value) >= 100:
    return f'{value:,.0f}'
  return f'{value:.3g}'


def theirs(one: Judged) -> str:
  """Returns the published number or text; a dash for neither."""
  return number(one.cell.paper) or one.cell.text or '-'


def ours(one: Judged) -> str:
  """Returns our median with its interval; '' without one."""
  text = number(one.median)
  if one.low is not None and number(one.low) != number(one.high):
    text += f' ({number(one.low)} to {number(one.high)})'
  return text


def counts(rows: Sequence[Judged]) -> str:
  """Returns the numbers of verdicts, as words."""
  found = Counter(one.verdict for one in rows)
  return ', '.join(f'{found[v]} {v}' for v in judge.VERDICTS if found[v])


def marks(rows: Sequence[Judged]) -> str:
  """Returns the numbers of verdicts, as marks."""
  found = Counter(one.verdict for one in rows)
  return ' '.join(
    f'{found[v]} {MARKS[v] or v}' for v in judge.VERDICTS if found[v]
  )


def largest_difference(rows: Sequence[Judged]) -> str:
  """Returns the cell that is farthest from its published number, or ''."""
  known = [
    one
    for one in rows
    if one.median is not None
    and one.cell.paper is not None
    and one.verdict not in (judge.UNAVAILABLE, judge.NOT_RUN)
  ]
  if not known:
    return ''
  worst = max(known, key=_distance)
  has_one = len({one.cell.column for one in rows}) == 1
  place = (
    worst.cell.row if has_one else f'{worst.cell.row}, {worst.cell.column}'
  )
  return f'{place}: {theirs(worst)} / {number(worst.median)}'


def grid(table: Table, rows: Sequence[Judged]) -> list[list[str]]:
  """Returns head and rows of a table in the paper's layout, as texts."""
  by_place = {(one.cell.row, one.cell.column): one for one in rows}
  lines = [['', *(column.name for column in table.columns)]]
  for row in table.rows:
    found = (by_place.get((row.name, c.name)) for c in table.columns)
    lines.append([row.name, *map(_cell, found)])
  return lines


def latex(entry: Entry, table: Table, rows: Sequence[Judged]) -> str:
  """Returns the table as a LaTeX float for an appendix."""
  caption = f'{entry.paper}, {table.name}: {table.title}. Published / ours.'
  return printing.latex(grid(table, rows), caption=caption)


def csv_text(table: Table, rows: Sequence[Judged]) -> str:
  """Returns a line for each cell, as CSV."""
  lines: list[tuple[Any, ...]] = [
    (
      *('table', 'row', 'column', 'published', 'ours', 'low', 'high'),
      *('seeds', 'p_holm', 'verdict', 'reason'),
    )
  ]
  for one in rows:
    published = one.cell.text if one.cell.paper is None else one.cell.paper
    place = (table.name, one.cell.row, one.cell.column, published)
    found = (one.median, one.low, one.high, one.seeds, one.p)
    lines.append((*place, *found, one.verdict, one.reason))
  return printing.csv_text(lines)


def sentence(
  entry: Entry, table: Table, rows: Sequence[Judged], about: Mapping[str, Any]
) -> str:
  """Returns the sentence for the appendix of an artifact.

  Args:
    about: What is known of the results, of `store.provenance`.
  """
  revision = str(about.get('git_revision') or 'unknown')[:10]
  kind = table.evidence or entry.evidence
  return (
    f'{table.name} of {entry.paper} ({table.title}) was run with Syncopate at '
    f'revision {revision} by `{about["command"]}` on {about["cores"]} cores '
    f'({about["date"]}; {kind}): of {len(rows)} cells {counts(rows)}.'
  )


def _cell(one: Judged | None) -> str:
  if one is None:
    return ''
  return f'{theirs(one)} / {ours(one) or "-"} {MARKS[one.verdict]}'


def _distance(one: Judged) -> float:
  """Returns how far ours is from the published number."""
  paper, median = one.cell.paper, one.median
  if paper is None or median is None:
    return 0.0
  if one.cell.is_difference or paper <= 0 or median <= 0:
    return abs(median - paper)
  return math.inf if math.isinf(median) else abs(math.log(median / paper))
