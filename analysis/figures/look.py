"""Look of all figures: a paper's column, colours, legends, and saving.

Figures have no titles: captions, headings and file names say what they show.
"""

import functools
import io
import math
import pathlib
import re
import textwrap
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib.figure import Figure

_P = ParamSpec('_P')
_R = TypeVar('_R')
FORMATS = ('png', 'svg', 'pdf')
COLUMN, PAGE = 3.3, 6.9  # Widths of a paper's column and page, inches.
# Okabe and Ito's colors, which color-blind people can tell apart; yellow is
# left out because lines of it vanish on white.
COLORS = (
  '#0072B2',
  '#D55E00',
  '#000000',
  '#009E73',
  '#CC79A7',
  '#56B4E9',
  '#E69F00',
)
PHASES = {
  'pull': '#56B4E9',
  'compute': '#0072B2',
  'push': '#009E73',
  'wait': '#E69F00',
}
# Style and marker repeat after other numbers of lines than colors do.
_STYLES = ('-', (0, (4, 1.5)), (0, (1.2, 1.5)))
_MARKERS = 'os^Dv'
_FONT = 7.0  # Points: the smallest that is readable in a column.
_CHARACTER, _HANDLE = 0.56 * _FONT, 4.4 * _FONT  # Widths in legends, points.
_LINE = 0.15  # Height of a line of a legend, inches.
_STYLE: Any = {
  'axes.axisbelow': True,
  'axes.grid': True,
  'axes.labelsize': _FONT + 0.5,
  'axes.linewidth': 0.6,
  'axes.spines.right': False,
  'axes.spines.top': False,
  'axes.titlesize': _FONT,
  'figure.constrained_layout.h_pad': 0.02,
  'figure.constrained_layout.use': True,
  'figure.constrained_layout.w_pad': 0.02,
  'figure.dpi': 250,
  'font.size': _FONT,
  'grid.alpha': 0.3,
  'grid.linewidth': 0.5,
  'hatch.linewidth': 0.5,
  'legend.columnspacing': 1.2,
  'legend.fontsize': _FONT,
  'legend.frameon': False,
  'legend.handlelength': 2.6,
  'lines.linewidth': 1.1,
  'lines.markersize': 3.0,
  'pdf.fonttype': 42,  # TrueType, as publishers ask for.
  'svg.fonttype': 'none',  # Text, which can be searched.
  'svg.hashsalt': 'figures',  # Equal figures give equal files.
  'xtick.labelsize': _FONT,
  'xtick.major.width': 0.6,
  'ytick.labelsize': _FONT,
  'ytick.major.width': 0.6,
}


def styled(draw: Callable[_P, _R]) -> Callable[_P, _R]:
  """Returns a function that draws in the style of figures."""

  @functools.wraps(draw)
  def in_style(*args: _P.args, **kwargs: _P.kwargs) -> _R:
    with matplotlib.rc_context(_STYLE):
      return draw(*args, **kwargs)

  return in_style


def line(index: int) -> dict[str, Any]:
  """Returns color, style and marker of one of several lines.

  Args:
    index: Number of the line, from 0; after some lines the looks repeat.
  """
  return {
    'color': COLORS[index % len(COLORS)],
    'linestyle': _STYLES[index % len(_STYLES)],
    'marker': _MARKERS[index % len(_MARKERS)],
  }


def wrap(text: str, width: float = COLUMN) -> str:
  """Returns text in lines that fit into a width, inches.

  Args:
    width: Inches, with room for the handle of a legend.
  """
  return textwrap.fill(text, int((72 * width - _HANDLE) / _CHARACTER))


def choose_unit(Bps: float) -> tuple[str, float]:
  """Returns the unit for rates up to one, and its bytes per second.

  It is GB/s, MB/s or, for all lower rates, kB/s.
  """
  units = (('GB/s', 1e9), ('MB/s', 1e6), ('kB/s', 1e3))
  return next((unit for unit in units if Bps >= unit[1]), units[-1])


def add_legend(figure: Figure, title: str | None = None) -> None:
  """Adds a legend of the first axes, and room for it, below the axes.

  It has as many columns as fit.

  Args:
    figure: Figure, which grows by the height of the legend.
    title: Text above the legend; None for none.
  """
  handles, labels = figure.axes[0].get_legend_handles_labels()
  if not labels:
    return
  width, height = figure.get_size_inches()
  labels = [wrap(label, width) for label in labels]
  longest = max(len(row) for label in labels for row in label.splitlines())
  most = int(72 * width / (_HANDLE + longest * _CHARACTER))
  columns = min(max(most, 1), len(labels))
  lines = sum(label.count('\n') + 1 for label in labels) / columns
  if title is not None:
    title = wrap(title, width)
    lines += title.count('\n') + 1
  height += _LINE * math.ceil(lines)
  figure.set_size_inches(width, height)
  figure.legend(
    handles, labels, loc='outside lower center', ncols=columns, title=title
  )


@styled
def save(figure: Figure, path: pathlib.Path) -> None:
  """Writes a figure in the format of the file's suffix.

  Args:
    path: File; one of `FORMATS` is its suffix.

  Raises:
    OSError: If the file cannot be written.
  """
  metadata = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}
  kind = path.suffix.removeprefix('.')
  figure.savefig(path, format=kind, metadata=metadata.get(kind))


@styled
def svg(figure: Figure) -> str:
  """Returns a figure as an SVG element, which loads nothing."""
  file = io.StringIO()
  figure.savefig(file, format='svg', metadata={'Date': None})
  text = file.getvalue()
  # Metadata name the program by the address of its site.
  text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
  return text[text.index('<svg') :]
