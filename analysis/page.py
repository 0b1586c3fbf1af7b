"""A page of runs: one HTML file with tables and figures, without a script.

Figures are embedded as SVG, so that the page needs no network and can be
printed.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from analysis.figures import look

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left;
  white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
svg { width: 34rem; max-width: 100%; height: auto; }
svg.page { width: 100%; }
"""
# Browsers load nothing, whatever names of runs contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Table(NamedTuple):
  """Table with a row for each run.

  Attributes:
    columns: Names of the columns.
    rows: Rows, each with a text, number, bool or None per column.
  """

  columns: Sequence[str]
  rows: Sequence[Sequence[Any]]


class Section(NamedTuple):
  """Part of a page: a heading, and what stands below it.

  Attributes:
    title: The heading.
    sentences: What its reader should know, a paragraph each.
    content: Tables or figures, one below the other.
    level: 2 for a heading below the title, 3 for one below that.
  """

  title: str
  sentences: Sequence[str]
  content: Sequence[Table | Figure] = ()
  level: int = 2


def render(title: str, sections: Iterable[Section]) -> str:
  """Returns the page."""
  parts = [
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
    '<meta name="viewport" content="width=device-width">',
    f'<title>{html.escape(title)}</title>',
    f'<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>',
    *map(_section, sections),
    '</body>\n</html>\n',
  ]
  return '\n'.join(parts)


def _section(section: Section) -> str:
  parts = [f'<h{section.level}>{html.escape(section.title)}</h{section.level}>']
  parts += [f'<p>{html.escape(each)}</p>' for each in section.sentences]
  parts += [
    _table(each) if isinstance(each, Table) else _figure(each)
    for each in section.content
  ]
  return '\n'.join(parts)


def _table(table: Table) -> str:
  head = ''.join(f'<th>{html.escape(name)}</th>' for name in table.columns)
  rows = ['<tr>' + ''.join(map(_cell, row)) + '</tr>' for row in table.rows]
  return (
    f'<div class="wide"><table>\n<tr>{head}</tr>\n'
    + '\n'.join(rows)
    + '\n</table></div>'
  )


def _cell(value: Any) -> str:
  if value is None:
    return '<td></td>'
  if isinstance(value, bool) or not isinstance(value, int | float):
    return f'<td>{html.escape(str(value))}</td>'
  return f'<td class="number">{value:.6g}</td>'


def _figure(figure: Figure) -> str:
  is_wide = figure.get_figwidth() > look.COLUMN
  text = look.svg(figure)
  return text.replace('<svg', '<svg class="page"', 1) if is_wide else text
