"""Further fields of records, derived from the files of a run."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis import records

_SKIPPED = 0.3  # Share of a run that is omitted at its start.
_ZERO = 0.1  # Gaps below this share of T / N count as zero, as in a figure.
_EVEN = 0.25  # Largest deviation of an even gap, as a share of T / N.


def gaps(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, float]:
  """Returns the shares of gaps of updates and releases that are 0 or T / N.

  The time of a push is that of its update, so pushes of one update have gaps
  of zero.  T is the mean time of an iteration, and N the
  number of workers, as in figure 8 of R2SP's paper.
  """
  del config
  update_times: list[float] = []
  release_times: list[float] = []
  pushes: dict[int, int] = {}
  for row in records.read_events(folder):
    decision = row['decision']
    if decision.get('into') is not None:
      pushes[decision['into']] = pushes.get(decision['into'], 0) + 1
    for update in decision.get('commit', ()):
      update_times += [row['time']] * pushes.pop(update, 0)
    release_times += [row['time']] * len(decision.get('release', ()))
  shares = {}
  for event, times in (('updates', update_times), ('releases', release_times)):
    gap = np.diff(times[int(_SKIPPED * len(times)) :])
    gap = gap / np.mean(gap)
    shares[f'{event}_at_once'] = float(np.mean(gap < _ZERO))
    shares[f'{event}_even'] = float(np.mean(np.abs(gap - 1) < _EVEN))
  return shares


def batches(
  folder: pathlib.Path, config: Mapping[str, Any]
) -> dict[str, float]:
  """Returns each worker's last batch, and the final examples per second."""
  del config
  pushes = _pushes(folder)
  last = {push['worker']: push['examples'] for push in pushes}
  span_s = pushes[-1]['time'] - pushes[0]['time']
  examples = sum(push['examples'] for push in pushes[1:])
  sizes = {f'batch.{worker}': size for worker, size in sorted(last.items())}
  return {**sizes, 'examples_per_s': examples / span_s}


def leads(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, float]:
  """Returns the largest lead of a worker since the last barrier, iterations."""
  none = dict.fromkeys(range(config['cluster']['workers']), 0)
  pushed, most = dict(none), 0
  for row in records.read_events(folder):
    if row['event'] == 'push':
      pushed[row['worker']] += 1
      most = max(most, pushed[row['worker']] - min(pushed.values()))
    if row['decision'].get('barrier'):
      pushed = dict(none)
  return {'largest_lead': most}


def _pushes(folder: pathlib.Path) -> list[dict[str, Any]]:
  pushes = [
    row for row in records.read_events(folder) if row['event'] == 'push'
  ]
  return pushes[int(_SKIPPED * len(pushes)) :]
