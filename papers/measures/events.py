"""Further fields of records, derived from the files of a run."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import analysis
from analysis import pacing

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
  run = analysis.read(folder)
  shares = {}
  for event, gap in (
    ('updates', pacing.gaps(run)),
    ('releases', pacing.release_gaps(run)),
  ):
    gap = gap[int(_SKIPPED * (len(gap) + 1)) :]
    gap = gap / np.mean(gap)
    shares[f'{event}_at_once'] = float(np.mean(gap < _ZERO))
    shares[f'{event}_even'] = float(np.mean(np.abs(gap - 1) < _EVEN))
  return shares


def batches(
  folder: pathlib.Path, config: Mapping[str, Any]
) -> dict[str, float]:
  """Returns each worker's last batch, and the final examples per second.

  The rate is that of stored results, from a push to the last one; that of
  `analysis.pace` is of whole iterations.
  """
  del config
  events = analysis.read(folder).events
  pushes = events.select(events['event'] == 'push')
  first = int(_SKIPPED * len(pushes))
  workers, sizes = pushes['worker'][first:], pushes['examples'][first:]
  times = pushes['time'][first:]
  last = dict(zip(workers.tolist(), sizes.tolist(), strict=True))
  return {
    **{f'batch.{worker}': size for worker, size in sorted(last.items())},
    'examples_per_s': float(sizes[1:].sum() / (times[-1] - times[0])),
  }


def leads(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, float]:
  """Returns the largest lead of a worker since the last barrier, iterations."""
  del config
  return {'largest_lead': int(pacing.leads(analysis.read(folder)).max())}
