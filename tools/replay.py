"""Replays the recorded events of runs on the current schemes.

  python -m tools.replay RUN_DIR [RUN_DIR ...]

Every decision must equal the recorded one, to the last bit.  The first decision
that differs is printed, and the exit code is then 1.  Each start of a run on
real hosts has a scheme of its own, for the number of workers at that start.
"""

import pathlib
from collections.abc import Iterator

from absl import app, flags

from analysis import checking, recorded_configs, runs
from sync import record


def main(argv: list[str]) -> None:
  """Replays the runs that the command line names."""
  checking.check_runs(argv, _replay)


def _replay(path: pathlib.Path) -> bool:
  """Prints whether a run's decisions are the current ones, and returns it."""
  count = 0
  for count, (recorded, replayed) in enumerate(pairs(path), start=1):
    if recorded != replayed:
      print(f'{path}: event {count} was {recorded}, is {replayed}.')
      return False
  print(f'{path}: {count} events, the same decisions.')
  return True


def pairs(path: pathlib.Path) -> Iterator[tuple[record.Row, record.Row]]:
  """Yields each recorded row of a run, with the row of the current scheme.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no run, or if its scheme has other fields now.
    OSError: If the run cannot be read.
  """
  config, scheme = runs.read(path).config, None
  for row in runs.read_events(path):
    if row['event'] == 'start' or scheme is None:
      workers = len(row['decision'].get('release', ()))
      scheme = recorded_configs.make_scheme(config, workers)
    yield from record.replay(scheme, [row])


if __name__ == '__main__':
  flags.DEFINE_list('own', [], checking.OWN)
  app.run(main)
