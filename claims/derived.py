"""More fields of a run's record, from its files."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tools.reading import records

_SKIPPED = 0.3  # Of a run, while it settles.
_TOGETHER = 0.1  # Of T / N: a gap of nothing, as far as a figure shows.
_EVEN = 0.25  # Of T / N: so far from it a gap of T / N may be.


def gaps(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, float]:
  """Returns shares of gaps that are nothing, or T / N: of updates, of releases.

  The time of a push is that at which it is applied: those that are summed have
  gaps of nothing.  T is the mean time of an iteration, N the number of workers,
  as in figure 8 of R2SP's paper.
  """
  del config
  applied, released = [], []
  summed: dict[int, int] = {}
  for row in records.events(folder):
    said = row['decision']
    if said.get('into') is not None:
      summed[said['into']] = summed.get(said['into'], 0) + 1
    for update in said.get('commit', ()):
      applied += [row['time']] * summed.pop(update, 0)
    released += [row['time']] * len(said.get('release', ()))
  found = {}
  for what, times in (('updates', applied), ('releases', released)):
    gap = np.diff(times[int(_SKIPPED * len(times)) :])
    gap = gap / np.mean(gap)
    found[f'{what}_at_once'] = float(np.mean(gap < _TOGETHER))
    found[f'{what}_even'] = float(np.mean(np.abs(gap - 1) < _EVEN))
  return found


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


def leads(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, float]:
  """Returns the largest lead of a worker since the last barrier, iterations."""
  none = dict.fromkeys(range(config['cluster']['workers']), 0)
  pushed, most = dict(none), 0
  for row in records.events(folder):
    if row['event'] == 'push':
      pushed[row['worker']] += 1
      most = max(most, pushed[row['worker']] - min(pushed.values()))
    if row['decision'].get('barrier'):
      pushed = dict(none)
  return {'largest_lead': most}


def _pushes(folder: pathlib.Path) -> list[dict[str, Any]]:
  pushes = [row for row in records.events(folder) if row['event'] == 'push']
  return pushes[int(_SKIPPED * len(pushes)) :]
