"""Says which workers and links slow a run, since when, and what for.

  python -m tools.diagnose RUN_DIR
  python -m tools.diagnose --csv=FILE
  python -m tools.diagnose --live RUN_DIR [--stacks]

RUN_DIR may be a finished run, a running or a broken one.  FILE has the columns
worker, iteration, compute_s and sync_s, and perhaps host, examples, cpu and
memory (docs/diagnosis.md).

Prints verdicts, one a line, the most costly first.  What a worker costs is
found by replays of the recorded iterations.  Intervals are of 95 %.

With --live prints who waits for whom and since when, and which processes of
this host are alive without progress; with --stacks also their Python stacks.
"""

import pathlib
import sys

from absl import app, flags

import analysis
from analysis import checking, diagnosing, live
from configs import paths


def main(argv: list[str]) -> None:
  """Prints the verdicts on what the command line names."""
  values = flags.FLAGS
  sources = [values.csv, *argv[1:]]
  if sum(source is not None for source in sources) != 1:
    raise app.UsageError('Expected either RUN_DIR or --csv.')
  if (values.live or values.stacks) and len(argv) < 2:
    raise app.UsageError('--live: expected RUN_DIR, got none.')
  try:
    if values.live or values.stacks:
      path = pathlib.Path(argv[1])
      print(*live.describe(path, with_stacks=values.stacks), sep='\n')
      return
    if values.csv:
      found = diagnosing.diagnose_csv(pathlib.Path(values.csv))
    else:
      checking.import_modules()
      found = diagnosing.diagnose_run(analysis.read(argv[1]))
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  print(*(each.sentence for each in found), sep='\n')


if __name__ == '__main__':
  paths.define_path('csv', 'CSV file of iterations.')
  flags.DEFINE_bool('live', False, 'Show who waits for whom in a running run.')
  flags.DEFINE_list('own', [], checking.OWN)
  flags.DEFINE_bool('stacks', False, 'With --live: show stacks of processes.')
  app.run(main)
