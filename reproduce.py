"""Runs published tables, and shows their numbers beside ours.

  python reproduce.py --list
  python reproduce.py TABLE... [--scale=quick] [--seeds=6] [--out=DIR]
    [--against=results] [--latex | --csv]
  python reproduce.py --all
  python reproduce.py TABLE... --show=results [--latex | --csv]
  python reproduce.py --page=results

The same command resumes an interrupted one.  --show and --page read stored
results, and run nothing.
"""

import pathlib
import sys

from absl import app, flags

from configs import paths
from configs.checks import require
from outputs import transient
from papers import command, page, schema

OUT = 'runs/reproduced'  # Never a folder of stored results.


def main(argv: list[str]) -> None:
  """Runs the command that the flags describe."""
  try:
    code = _run(argv[1:], flags.FLAGS)
  except (OSError, ValueError) as error:
    transient.leave(error)
  except KeyboardInterrupt:
    sys.exit(130)
  sys.exit(code)


def _run(chosen: list[str], values: flags.FlagValues) -> int:
  """Returns the exit code."""
  if values.list:
    print(command.list_entries())
    return 0
  if values.page:
    path = page.write(pathlib.Path(values.page))
    print(f'The page is {path}')
    return 0
  require(not (chosen and values['all'].value), '--all', 'no TABLE', chosen)
  names = command.all_names() if values['all'].value else chosen
  require(bool(names), 'TABLE', 'a name (see --list), or --all', names)
  for name in names:
    schema.read(name)
  kind = 'latex' if values.latex else 'csv' if values.csv else 'text'
  if values.show:
    folder = pathlib.Path(values.show)
    for name in names:
      print(command.show(page.read(folder, name), kind))
    return 0
  options = {'scale': values.scale, 'seeds': values.seeds, 'out': values.out}
  if len(names) > 1:
    against = values.against or ''
    return command.reproduce_many(names, **options, against=against, kind=kind)
  section = command.reproduce(names[0], **options)
  print(command.show(section, kind))
  if values.against:
    print(command.compare(section, values.against))
  return command.exit_code(section)


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_bool('list', False, 'List tables, minutes, needs and evidence.')
  flags.DEFINE_bool('all', False, 'Run all tables; those on real links first.')
  flags.DEFINE_enum('scale', 'quick', schema.SCALES, 'Size of the runs.')
  flags.DEFINE_integer('seeds', 0, "Seeds of each run; 0: the table's own.")
  flags.DEFINE_string('out', OUT, 'Folder of results, and of runs in DIR/runs.')
  paths.define_path('against', 'Folder of results to compare verdicts with.')
  paths.define_path('show', 'Show the stored results of this folder.')
  paths.define_path('page', 'Write the page of the results of this folder.')
  flags.DEFINE_bool('latex', False, 'Show tables as LaTeX.')
  flags.DEFINE_bool('csv', False, 'Show a line for each cell, as CSV.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
