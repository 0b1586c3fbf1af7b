"""Tables of texts as aligned text, Markdown, LaTeX and CSV.

A table is its rows, of which the first is the head; all have as many cells.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from configs import cells

Rows = Sequence[Sequence[str]]

_LATEX = str.maketrans(
  {
    **{mark: f'\\{mark}' for mark in '&%$#_{}'},
    '\\': r'\textbackslash{}',
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    '<': r'\textless{}',
    '>': r'\textgreater{}',
    '|': r'\textbar{}',
    '±': r'$\pm$',
    '−': '$-$',
    '–': '--',
    'Δ': r'$\Delta$',
    '✓': r'$\checkmark$',
    '≈': r'$\approx$',
    '✗': r'$\times$',
    '∞': r'$\infty$',
  }
)
_EXPONENT = re.compile(r'(?<=\d)e([+-]\d+)')  # Of a number such as 1.2e-05.


def text(rows: Rows, *, align: str = 'lr') -> str:
  """Returns a table whose columns are aligned by spaces.

  Args:
    rows: Rows of the table.
    align: 'l' or 'r' for each column, left or right; the last one is that of
      all further columns.
  """
  widths = _widths(rows)
  sides = [
    str.ljust if each == 'l' else str.rjust
    for each in align.ljust(len(widths), align[-1])
  ]
  return '\n'.join(
    '  '.join(
      side(cell, width)
      for side, cell, width in zip(sides, row, widths, strict=True)
    ).rstrip()
    for row in rows
  )


def markdown(rows: Rows, *, is_padded: bool = True) -> str:
  """Returns a table as Markdown.

  Args:
    rows: Rows of the table.
    is_padded: Whether columns are aligned by spaces, for terminals.
  """
  rows = [[cell.replace('|', '/') for cell in row] for row in rows]
  widths = _widths(rows) if is_padded else [0] * len(rows[0])
  lines = [rows[0], ['-' * max(width, 1) for width in widths], *rows[1:]]
  return '\n'.join(
    f'| {" | ".join(map(str.ljust, line, widths))} |' for line in lines
  )


def latex(
  rows: Rows,
  *,
  caption: str,
  groups: Sequence[tuple[str, int]] = (),
) -> str:
  r"""Returns a table as a float of LaTeX, with the rules of booktabs.

  Args:
    rows: Rows of the table; special characters are escaped.
    caption: Caption, above the table; it is escaped, too.
    groups: Headings above the head: text and number of columns of each, for
      the columns after the first.
  """
  above, at = '', 2
  if groups:
    heads, lines = [], []
    for title, count in groups:
      heads.append(f'\\multicolumn{{{count}}}{{c}}{{{escape_latex(title)}}}')
      lines.append(f'\\cmidrule(lr){{{at}-{at + count - 1}}}')
      at += count
    above = f'   & {" & ".join(heads)} \\\\\n  {" ".join(lines)}\n'
  head, *body = (
    f'  {" & ".join(map(escape_latex, row))} \\\\\n' for row in rows
  )
  return (
    '% Needs \\usepackage{booktabs}.\n\\begin{table}\n\\centering\n'
    f'\\caption{{{escape_latex(caption)}}}\n'
    f'\\begin{{tabular}}{{l{"r" * (len(rows[0]) - 1)}}}\n\\toprule\n'
    f'{above}{head}\\midrule\n{"".join(body)}\\bottomrule\n'
    '\\end{tabular}\n\\end{table}\n'
  )


def escape_latex(cell: str) -> str:
  r"""Returns a text that LaTeX prints as it is.

  Example:
    >>> print(escape_latex('a_b < 50 % ± 2e-05'))
    a\_b \textless{} 50 \% $\pm$ 2$\times10^{-5}$
  """
  return _EXPONENT.sub(
    lambda found: f'$\\times10^{{{int(found[1])}}}$', cell.translate(_LATEX)
  )


def csv_text(rows: Iterable[Sequence[object]]) -> str:
  """Returns rows as CSV; a spreadsheet takes no text in it for a formula."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerows(map(cells.escape, row) for row in rows)
  return file.getvalue()


def _widths(rows: Rows) -> list[int]:
  return [max(map(len, column)) for column in zip(*rows, strict=True)]
