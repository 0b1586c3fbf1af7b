"""Figures of tables: published numbers beside ours, as SVG."""

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from papers.judge import Judged
from papers.schema import Table

_STYLE: dict[Any, Any] = {
  'svg.fonttype': 'none',
  'svg.hashsalt': 'papers',  # The same numbers give the same file.
  'font.size': 8,
  'axes.spines.top': False,
  'axes.spines.right': False,
}


def draw(table: Table, rows: Sequence[Judged]) -> str:
  """Returns the figure of a table: a group for each row, a colour per column.

  Published numbers are hollow; ours are filled, with their intervals.
  """
  with matplotlib.rc_context(_STYLE):
    names = [row.name for row in table.rows]
    figure = Figure(figsize=(max(3.6, 0.7 * len(names) + 2.2), 2.4))
    axes = figure.subplots()
    count = len(table.columns)
    for place, column in enumerate(table.columns):
      colour = f'C{place % 10}'
      shift = 0.7 * ((place + 0.5) / count - 0.5)
      label: str | None = column.name
      for one in rows:
        if one.cell.column != column.name:
          continue
        x = names.index(one.cell.row) + shift
        if one.cell.paper is not None:
          axes.plot(x, one.cell.paper, 'o', mfc='none', mec=colour, ms=5)
        if one.median is not None and math.isfinite(one.median):
          axes.plot(x, one.median, 'o', color=colour, ms=3.5, label=label)
          label = None
          if one.low is not None and one.high is not None:
            axes.plot([x, x], [one.low, one.high], color=colour, lw=1)
    axes.set_xticks(range(len(names)), names, rotation=20, ha='right')
    axes.set_title(f'{table.title}\n(hollow: published, filled: ours)')
    if count > 1:
      axes.legend(frameon=False, bbox_to_anchor=(1, 1), loc='upper left')
    file = io.StringIO()
    figure.savefig(
      file, format='svg', bbox_inches='tight', metadata={'Date': None}
    )
  return file.getvalue()
