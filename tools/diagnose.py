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
from collections.abc import Iterable

import numpy as np
from absl import app, flags

from analysis import checking, iterations, links, live, manifests, records
from configs import paths, user_parts
from diagnosis import costs, departures, verdicts
from diagnosis.verdicts import Verdict


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
      found = diagnose_csv(pathlib.Path(values.csv))
    else:
      checking.import_modules()
      found = diagnose_run(pathlib.Path(argv[1]))
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  print(*sentences(found), sep='\n')


def sentences(verdicts: Iterable[Verdict]) -> list[str]:
  """Returns verdicts as sentences."""
  return [each.text[0].upper() + each.text[1:] + '.' for each in verdicts]


def diagnose_run(path: pathlib.Path) -> list[Verdict]:
  """Returns the verdicts on a run.

  Without the code of its scheme there are no costs.  That is a scheme of the
  caller, or a user's module that this process has not imported.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no run or too little of it, or a file is broken.
    OSError: If a file cannot be read.
  """
  found, cluster = iterations.read_run(path)
  manifest = records.read_manifest(path)
  count = len(cluster.names)
  name = manifest['config']['sync']['name']
  is_known = manifest['own']['scheme'] is None
  is_known = is_known and not (
    user_parts.is_own(name) and name not in sys.modules
  )

  def replay(part: costs.Iterations, seconds: np.ndarray) -> float:
    if not is_known:
      return float('nan')
    scheme = manifests.make_scheme(manifest['config'], count)
    return costs.replay_s(part, seconds, scheme, count)

  judged = verdicts.judge(found, cluster, replay)
  if judged[0].kind == 'insufficient':
    return judged
  left = departures.measure(list(records.read_all_events(path)), count)
  away = verdicts.judge_departures(left)
  if cluster.has_links:
    of_links = links.judge_servers(path, cluster.hosts)
  else:
    of_links = links.judge(path)
  is_known = all(each.kind != 'insufficient' for each in of_links)
  if judged[0].kind == 'none' and (away or (of_links and is_known)):
    judged = []  # Something else is to blame.
  if cluster.has_links and is_known:
    return [*away, *of_links, *judged]
  return [*away, *judged, *of_links]


def diagnose_csv(file: pathlib.Path) -> list[Verdict]:
  """Returns the verdicts on a CSV file, whose iterations end in barriers.

  Args:
    file: The file: see `iterations.read_csv`.

  Raises:
    ValueError: If the file is wrong.
    OSError: If the file cannot be read.
  """
  return verdicts.judge(*iterations.read_csv(file), costs.barrier_s)


if __name__ == '__main__':
  paths.define_path('csv', 'CSV file of iterations.')
  flags.DEFINE_bool('live', False, 'Show who waits for whom in a running run.')
  flags.DEFINE_list('own', [], checking.OWN)
  flags.DEFINE_bool('stacks', False, 'With --live: show stacks of processes.')
  app.run(main)
