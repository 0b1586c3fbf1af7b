"""Sends to MLflow what it has not got of runs that have ended.

  python -m tools.track RUN_DIR ...

A run whose server did not answer at its end names this command in its log.
"""

import pathlib
import sys

from absl import app

from configs.checks import require
from outputs import atomic, tracking
from sweeps import outcomes

_LIMIT_S = 60.0


def send(folder: pathlib.Path) -> bool:
  """Sends the rest of a run and its end; returns whether it was sent.

  Args:
    folder: Folder of the run.

  Raises:
    ValueError: If the run has not ended, or does not use MLflow.
  """
  summary = outcomes.read_summary(folder)
  manifest = atomic.read_object(folder / 'manifest.json')
  if summary is None or manifest is None:
    raise ValueError(f'RUN_DIR: expected a run that has ended, got {folder}.')
  uri = manifest['config']['outputs'].get('mlflow', '')
  require(bool(uri), tracking.FIELD, f'a URI in {folder}', uri)
  tracking.check(uri)
  size_bytes = (folder / 'metrics.jsonl').stat().st_size
  tracker = tracking.Tracker(folder, uri, manifest, size_bytes=size_bytes)
  return tracker.close(tracking.status_of(summary), limit_s=_LIMIT_S)


def main(argv: list[str]) -> None:
  """Sends the runs that the arguments name."""
  if len(argv) < 2:
    raise app.UsageError('Expected the folders of runs.')
  try:
    is_sent = [send(pathlib.Path(each)) for each in argv[1:]]
  except ValueError as error:
    sys.exit(f'Refused: {error}')
  sys.exit(not all(is_sent))


if __name__ == '__main__':
  app.run(main)
