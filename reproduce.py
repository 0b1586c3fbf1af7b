"""Runs the experiments that confirm or refute published claims.

  python reproduce.py --list
  python reproduce.py NAME [--scale=quick] [--seeds=6] [--out=results]
  python reproduce.py --all
  python reproduce.py --page            (of stored results alone)
  python reproduce.py clusters --data=FILE [--out=results]

`clusters` predicts steps that others measured, from their file.

The same command resumes an interrupted one.
"""

import argparse
import pathlib
import sys

from claims import catalog, commands
from claims.clusters import page as clusters
from configs.checks import require
from outputs import transient


def main(argv: list[str] | None = None) -> int:
  """Runs the command that the flags name; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='reproduce.py', description=(__doc__ or '').split('\n')[0]
  )
  action = parser.add_mutually_exclusive_group(required=True)
  action.add_argument('name', nargs='?', help='run the entry of this name')
  action.add_argument('--list', action='store_true', help='list entries')
  action.add_argument('--all', action='store_true', help='run all entries')
  action.add_argument('--page', action='store_true', help='write the page')
  parser.add_argument('--scale', choices=catalog.SCALES, default='quick')
  parser.add_argument('--seeds', type=int, default=0, help="the entry's own")
  parser.add_argument('--out', default='results', help='folder of results')
  parser.add_argument('--data', default='', help='steps, for clusters')
  args = parser.parse_args(argv)
  options = {'scale': args.scale, 'seeds': args.seeds, 'out': args.out}
  try:
    if args.name == clusters.NAME:
      return _predict_clusters(args.data, args.out)
    expected = f"'', as {clusters.NAME!r} alone reads a file"
    require(not args.data, '--data', expected, args.data)
    if args.list:
      print(commands.list_entries(args.out))
      return 0
    if args.page:
      return commands.write_page(args.out)
    if args.all:
      return commands.reproduce_all(**options)
    return commands.reproduce(args.name, **options)
  except (OSError, ValueError) as error:
    return transient.exit_code(error)
  except KeyboardInterrupt:
    return 130


def _predict_clusters(data: str, out: str) -> int:
  name = pathlib.Path(data).name
  command = f'python reproduce.py {clusters.NAME} --data={name}'
  about = commands.provenance(command)
  return clusters.reproduce(data, out=out, about=about)


if __name__ == '__main__':
  sys.exit(main())
