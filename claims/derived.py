"""More fields of a run's record, from its files."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tools.reading import records

_SKIPPED = 0.3  # Of a run, while it settles.
_TOGETHER = 0.01  # Of a worker's share of an iteration: a gap of nothing.
_EVEN = 0.25  # From this, so far gaps may be.


def gaps(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, float]:
  """Returns shares of gaps between pushes: of nothing, and of T / N.

  T is the mean time of an iteration, N the number of workers, as in figure 8
  of R2SP's paper.
  """
  workers = config['cluster']['workers']
  times = [push['time'] for push in _pushes(folder)]
  gap = np.diff(times)
  fair = float(np.mean(gap))
  return {
    'gaps_of_nothing': float(np.mean(gap < _TOGETHER * fair)),
    'gaps_of_a_share': float(np.mean(np.abs(gap / fair - 1) < _EVEN)),
    'iteration_s_late': fair * workers,
  }


def batches(
  folder: pathlib.Path, config: Mapping[str, Any]
) -> dict[str, float]:
  """Returns each worker's last batch, and examples per second in the end."""
  pushes = _pushes(folder)
  last = {push['worker']: push['examples'] for push in pushes}
  span_s = pushes[-1]['time'] - pushes[0]['time']
  examples = sum(push['examples'] for push in pushes[1:])
  found = {f'batch.{worker}': size for worker, size in sorted(last.items())}
  return {**found, 'examples_per_s': examples / span_s}


def _pushes(folder: pathlib.Path) -> list[dict[str, Any]]:
  pushes = [row for row in records.events(folder) if row['told'] == 'push']
  return pushes[int(_SKIPPED * len(pushes)) :]
