"""Prints a table of a sweep: means over seeds, with their intervals.

  python -m tools.table SWEEP --rows=sync.name
    [--columns=cluster.speed.slowdown] --value=time_to.0.95
    [--format=text] [--baseline=bsp]

Rows and columns are fields of the config; several are joined by commas.  A
value is a field of summary.json, with dots.  Times to a level are interpolated
between evaluations.  A wrong name ends the command, with those that there are.
"""

import pathlib
import sys

from absl import app, flags

from analysis import pivot, pivot_texts
from configs.checks import require
from sweeps import results


def main(argv: list[str]) -> None:
  """Prints the table that the flags describe."""
  if len(argv) != 2:
    raise app.UsageError(f'Expected the folder of a sweep, got {argv[1:]}.')
  values = flags.FLAGS
  try:
    layout = pivot.Layout(
      rows=values.rows,
      columns=values.columns,
      values=values.value,
      where=dict(map(_split, values.where)),
      over=values.over,
      baseline=values.baseline,
    )
    table = pivot.make(results.read(pathlib.Path(argv[1])), layout)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  print(pivot_texts.write(table, values.format), end='')


def _split(text: str) -> tuple[str, str]:
  field, mark, value = text.partition('=')
  require(bool(mark), '--where', 'FIELD=VALUE', text)
  return field, value


if __name__ == '__main__':
  flags.DEFINE_list('rows', ['sync.name'], 'Fields of the rows.')
  flags.DEFINE_list(
    'columns', [], 'Fields of the columns; none for one column.'
  )
  flags.DEFINE_list(
    'value', ['final_accuracy'], 'What cells measure, such as time_to.0.95.'
  )
  flags.DEFINE_multi_string(
    'where', [], 'FIELD=VALUE that all runs of the table have.'
  )
  flags.DEFINE_list('over', ['seed'], 'Fields of the repetitions in a cell.')
  flags.DEFINE_enum(
    'format', 'text', pivot_texts.FORMATS, 'Kind of text to print.'
  )
  flags.DEFINE_string(
    'baseline', '', 'Row that is compared with the others, seed by seed.'
  )
  app.run(main)
