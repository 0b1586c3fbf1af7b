"""Runs what confirms or refutes published claims, and keeps the ledger.

  python reproduce.py --list
  python reproduce.py NAME [--scale=quick] [--seeds=6] [--out=results]
  python reproduce.py --all
  python reproduce.py --page            (of stored results alone)

The same command goes on where it was.
"""

import argparse
import sys

from claims import catalog, whole
from outputs import transient


def main(argv: list[str] | None = None) -> int:
  """Does what the flags say; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='reproduce.py', description=__doc__.split('\n')[0]
  )
  wanted = parser.add_mutually_exclusive_group(required=True)
  wanted.add_argument('name', nargs='?', help='of an entry')
  wanted.add_argument('--list', action='store_true', help='of all entries')
  wanted.add_argument('--all', action='store_true', help='entries')
  wanted.add_argument('--page', action='store_true', help='alone')
  parser.add_argument('--scale', choices=catalog.SCALES, default='quick')
  parser.add_argument('--seeds', type=int, default=0, help="the entry's own")
  parser.add_argument('--out', default='results', help='folder of results')
  given = parser.parse_args(argv)
  how = {'scale': given.scale, 'seeds': given.seeds, 'out': given.out}
  try:
    if given.list:
      print(whole.listed(given.out))
      return 0
    if given.page:
      return whole.paged(given.out)
    if given.all:
      return whole.all_of(**how)
    return whole.reproduce(given.name, **how)
  except (OSError, ValueError) as error:
    return transient.exit_code(error)
  except KeyboardInterrupt:
    return 130


if __name__ == '__main__':
  sys.exit(main())
