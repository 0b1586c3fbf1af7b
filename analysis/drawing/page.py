"""A page of runs: one HTML file with tables and figures, without a script.

Figures are embedded as SVG, so that the page needs no network and can be
printed.
"""

import html
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

from analysis.tables import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left;
  white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; }
"""
# Browsers load nothing, whatever names of runs contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Section(NamedTuple):
  """Part of a page.

  Attributes:
    title: Its heading.
    sentences: What its reader should know, a paragraph each.
    figures: Figures, one below the other.
  """

  title: str
  sentences: Sequence[str]
  figures: Sequence[Figure]


def render(
  title: str, tables: Iterable[Table], sections: Iterable[Section]
) -> str:
  """Returns the page.

  Args:
    title: Title of the page.
    tables: Tables, which come first.
    sections: Sections in their order.
  """
  parts = [
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
    '<meta name="viewport" content="width=device-width">',
    f'<title>{html.escape(title)}</title>',
    f'<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>',
    *map(_table, tables),
    *map(_section, sections),
    '</body>\n</html>\n',
  ]
  return '\n'.join(parts)


def _table(table: Table) -> str:
  head = ''.join(f'<th>{html.escape(name)}</th>' for name in table.columns)
  rows = ['<tr>' + ''.join(map(_cell, row)) + '</tr>' for row in table.rows]
  return (
    f'<h2>{html.escape(table.title)}</h2>\n<div class="wide"><table>\n'
    f'<tr>{head}</tr>\n' + '\n'.join(rows) + '\n</table></div>'
  )


def _cell(value: Any) -> str:
  if value is None:
    return '<td></td>'
  if isinstance(value, bool) or not isinstance(value, int | float):
    return f'<td>{html.escape(str(value))}</td>'
  return f'<td class="number">{value:.6g}</td>'


def _section(section: Section) -> str:
  parts = [f'<h2>{html.escape(section.title)}</h2>']
  parts += [f'<p>{html.escape(each)}</p>' for each in section.sentences]
  parts += map(_svg, section.figures)
  return '\n'.join(parts)


def _svg(figure: Figure) -> str:
  """Returns a figure as an SVG element, the same for equal figures."""
  file = io.StringIO()
  with matplotlib.rc_context({'svg.hashsalt': '', 'svg.fonttype': 'none'}):
    figure.savefig(file, format='svg', metadata={'Date': None})
  text = file.getvalue()
  # Metadata name the program by the address of its site.
  text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
  return text[text.index('<svg') :]
