"""Tells a scheme of today what it was told in recorded runs.

  python -m tools.replay RUN_DIR [RUN_DIR ...]

Every verdict must be the recorded one, to the last bit; the first one that is
not is printed, and the exit code is then 1.
"""

import importlib
import pathlib
import sys

from absl import app

from sync import record
from sync.scheme import Scheme
from tools import records


def main(argv: list[str]) -> None:
  """Replays the runs that the command line names."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  try:
    same = [_replayed(pathlib.Path(path)) for path in argv[1:]]
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  sys.exit(0 if all(same) else 1)


def scheme(path: pathlib.Path) -> Scheme:
  """Returns the scheme of a run, as it was before the run.

  Args:
    path: Folder of the run; its scheme is one of sync/.

  Raises:
    ValueError: If there is no run, or if its scheme is not what it was.
    OSError: If the run cannot be read.
  """
  config = records.config(path)
  name = config['sync']['name']
  module = importlib.import_module(f'sync.{name}')
  return module.make(
    num_workers=config['cluster']['workers'], **config['sync'][name]
  )


def _replayed(path: pathlib.Path) -> bool:
  """Prints whether a run's verdicts are those of today, and returns it."""
  number = 0
  pairs = record.replay(scheme(path), records.events(path))
  for number, (recorded, replayed) in enumerate(pairs, start=1):
    if recorded != replayed:
      print(f'{path}: event {number} was {recorded}, is {replayed}.')
      return False
  print(f'{path}: {number} events, the same verdicts.')
  return True


if __name__ == '__main__':
  app.run(main)
