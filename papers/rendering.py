"""Tables in the layout of their papers: text, Markdown, LaTeX and CSV.

A cell has the published number, ours with its interval, and the verdict.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
_LATEX_MARKS = {
  judge.MATCH: r'$\checkmark$',
  judge.SAME: r'$\approx$',
  judge.DIFFERS: r'$\times$',
  judge.UNDECIDED: '?',
  judge.UNAVAILABLE: '--',
  judge.NOT_RUN: '',
}
_NOTHING = 1e-6  # Rounding of differences.
_LATEX_SPECIAL = str.maketrans(
  {c: f'\\{c}' for c in '&%$#_{}'} | {'~': r'\~{}', '^': r'\^{}'}
)


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


def grid(
  table: Table, rows: Sequence[Judged], *, marks: bool = True
) -> list[list[str]]:
  """Returns head and rows of a table in the paper's layout, as texts."""
  by_place = {(one.cell.row, one.cell.column): one for one in rows}
  lines = [['', *(column.name for column in table.columns)]]
  for row in table.rows:
    found = (by_place.get((row.name, c.name)) for c in table.columns)
    lines.append([row.name, *(_cell(one, marks=marks) for one in found)])
  return lines


def markdown(table: Table, rows: Sequence[Judged]) -> str:
  """Returns the table as Markdown."""
  return markdown_rows(grid(table, rows))


def markdown_rows(lines: Sequence[Sequence[str]]) -> str:
  """Returns rows of texts, of which the first is the head, as Markdown."""
  lines = [lines[0], ['-'] * len(lines[0]), *lines[1:]]
  return ''.join(
    f'| {" | ".join(text.replace("|", "/") for text in line)} |\n'
    for line in lines
  )


def text(table: Table, rows: Sequence[Judged]) -> str:
  """Returns the table as aligned text for a terminal."""
  lines = grid(table, rows)
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    '  '.join(
      word.ljust(width) for word, width in zip(line, widths, strict=True)
    ).rstrip()
    for line in lines
  )


def latex(entry: Entry, table: Table, rows: Sequence[Judged]) -> str:
  """Returns the table as a LaTeX float for an appendix."""
  lines = [
    [word.translate(_LATEX_SPECIAL) for word in line]
    for line in grid(table, rows, marks=False)
  ]
  by_place = {(one.cell.row, one.cell.column): one for one in rows}
  for line, row in zip(lines[1:], table.rows, strict=True):
    for place, column in enumerate(table.columns, start=1):
      one = by_place.get((row.name, column.name))
      if one is not None:
        line[place] += f' {_LATEX_MARKS[one.verdict]}'
  body = ' \\\\\n'.join('  ' + ' & '.join(line) for line in lines[1:])
  caption = f'{entry.paper}, {table.name}: {table.title}. Published / ours.'
  return (
    '\\begin{table}\n\\centering\n'
    f'\\caption{{{caption.translate(_LATEX_SPECIAL)}}}\n'
    f'\\begin{{tabular}}{{l{"r" * len(table.columns)}}}\n\\hline\n'
    f'  {" & ".join(lines[0])} \\\\\n\\hline\n{body} \\\\\n\\hline\n'
    '\\end{tabular}\n\\end{table}\n'
  )


def csv_text(table: Table, rows: Sequence[Judged]) -> str:
  """Returns a line for each cell, as CSV."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(
    (
      *('table', 'row', 'column', 'published', 'ours', 'low', 'high'),
      *('seeds', 'p_holm', 'verdict', 'reason'),
    )
  )
  for one in rows:
    published = one.cell.text if one.cell.paper is None else one.cell.paper
    place = (table.name, one.cell.row, one.cell.column, published)
    found = (one.median, one.low, one.high, one.seeds, one.p)
    writer.writerow((*place, *found, one.verdict, one.reason))
  return file.getvalue()


def sentence(
  entry: Entry, table: Table, rows: Sequence[Judged], about: Mapping[str, Any]
) -> str:
  """Returns the sentence for the appendix of an artifact."""
  revision = str(about.get('git_revision') or 'unknown')[:10]
  kind = table.evidence or entry.evidence
  return (
    f'{table.name} of {entry.paper} ({table.title}) was run with Syncopate at '
    f'revision {revision} by `{about["command"]}` on {about["cores"]} cores '
    f'({about["date"]}; {kind}): of {len(rows)} cells {counts(rows)}.'
  )


def _cell(one: Judged | None, *, marks: bool) -> str:
  if one is None:
    return ''
  mark = f' {MARKS[one.verdict]}' if marks else ''
  return f'{theirs(one)} / {ours(one) or "-"}{mark}'


def _distance(one: Judged) -> float:
  """Returns how far ours is from the published number."""
  paper, median = one.cell.paper, one.median
  if paper is None or median is None:
    return 0.0
  if one.cell.is_difference or paper <= 0 or median <= 0:
    return abs(median - paper)
  return math.inf if math.isinf(median) else abs(math.log(median / paper))
