"""Tells a scheme of today what it was told in recorded runs.

  python -m tools.replay RUN_DIR [RUN_DIR ...]

Every decision must be the recorded one, to the last bit; the first one that is
not is printed, and the exit code is then 1.  Each start of a run on real hosts
has a scheme of its own, for as many workers as there were then.
"""

import importlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from absl import app

from sync import record
from sync.scheme import Scheme
from tools.reading import manifests, records


def main(argv: list[str]) -> None:
  """Replays the runs that the command line names."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  try:
    same = [_replayed(pathlib.Path(path)) for path in argv[1:]]
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  sys.exit(0 if all(same) else 1)


def scheme(config: Mapping[str, Any], num_workers: int) -> Scheme:
  """Returns the scheme of a run, as it was before the run.

  Args:
    config: Of the run; its scheme is one of sync/.
    num_workers: Number of workers.

  Raises:
    ValueError: If its scheme is not what it was.
  """
  name = config['sync']['name']
  module = importlib.import_module(f'sync.{name}')
  own = manifests.section(config, 'sync')[name].to_dict()
  return module.make(num_workers=num_workers, **own)


def _replayed(path: pathlib.Path) -> bool:
  """Prints whether a run's decisions are those of today, and returns it."""
  number = 0
  for number, (recorded, replayed) in enumerate(pairs(path), start=1):
    if recorded != replayed:
      print(f'{path}: event {number} was {recorded}, is {replayed}.')
      return False
  print(f'{path}: {number} events, the same decisions.')
  return True


def pairs(path: pathlib.Path) -> Iterator[tuple[record.Row, record.Row]]:
  """Yields each recorded row of a run beside that of today.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no run, or if its scheme is not what it was.
    OSError: If the run cannot be read.
  """
  config, fresh = records.config(path), None
  for row in records.events(path):
    if row['event'] == 'start' or fresh is None:
      fresh = scheme(config, len(row['decision'].get('release', ())))
    yield from record.replay(fresh, [row])


if __name__ == '__main__':
  app.run(main)
