"""Measures times of schemes over those of BSP in a lab, and predicts them.

The ledger judges such ratios.  All schemes have the same workers, links, sizes
and speeds; runs and predictions are those of papers.measures.lab.  Needs root.
"""

import contextlib
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.lab.conditions import Condition
from papers.measures import lab

SCHEMES = 'asp', 'ssp', 'dssp', 'elastic', 'r2sp'
_BASE = 'bsp'
_RUN_S = {'quick': 6.0, 'full': 12.0}  # Approximate length of a run.
_UNEQUAL = 1.0, 1.5, 2.0, 3.0


class Setting(NamedTuple):
  """Cluster on which all schemes run.

  Attributes:
    lab: Name of the lab, one of those of papers.measures.lab.
    workers: Number of workers.
    servers: Number of servers.
    dedicated: True if servers have hosts of their own.
    size_bytes: Bytes of the parameters.
    compute_s: Mean seconds of computing of a worker that is not slowed down.
    is_unequal: Whether workers are 1, 1.5, 2 and 3 times as slow.
  """

  lab: str
  workers: int
  servers: int
  dedicated: bool
  size_bytes: int
  compute_s: float
  is_unequal: bool


# --scale=quick has the first three.
SETTINGS = (
  Setting('100 Mbit', 4, 1, True, 1_000_000, 0.05, False),
  Setting('200 Mbit', 4, 4, False, 1_000_000, 0.15, True),
  Setting('unequal links', 4, 1, True, 500_000, 0.15, False),
  Setting('100 Mbit', 8, 2, True, 500_000, 0.15, True),
  Setting('200 Mbit', 8, 2, False, 500_000, 0.15, False),
  Setting('unequal links', 8, 2, True, 1_000_000, 0.05, True),
)
_QUICK = 3


def measure(
  *, seed: int, scale: str, folder: pathlib.Path
) -> Sequence[Mapping[str, Any]]:
  """Returns times and ratios of each setting and scheme, and their errors.

  Args:
    seed: Number of the repetition; real runs differ anyway.
    scale: 'quick' for the first settings alone.
    folder: Folder of the measured times of each lab, which are measured once.
  """
  del seed
  settings = SETTINGS[:_QUICK] if scale == 'quick' else SETTINGS
  records: list[dict[str, Any]] = []
  with contextlib.redirect_stdout(sys.stderr):  # Progress of the runs.
    for place in lab.LABS:
      of_lab = [
        make_condition(setting, scheme)
        for setting in settings
        if setting.lab == place.name
        for scheme in (_BASE, *SCHEMES)
      ]
      if of_lab:
        records += lab.compare(place, of_lab, folder, _RUN_S[scale])
  return [*records, *summarize(records)]


def make_condition(setting: Setting, scheme: str) -> Condition:
  """Returns the condition of a scheme on a cluster."""
  fields: dict[str, Any] = {
    'sync.name': scheme,
    'model.none.size_bytes': setting.size_bytes,
    'cluster.speed.fixed_s': setting.compute_s / 2,
    'cluster.speed.per_example_s': setting.compute_s / 32,
  }
  where = 'of their own' if setting.dedicated else 'in workers'
  words = [
    scheme,
    f'{setting.workers} workers',
    f'{setting.servers} servers {where}',
    f'{setting.size_bytes / 1e6:g} MB',
    f'{setting.compute_s:g} s',
  ]
  if setting.is_unequal:
    words.append('unequal')
    times = -(-setting.workers // len(_UNEQUAL))
    fields['cluster.speed.slowdown'] = (_UNEQUAL * times)[: setting.workers]
  placed = setting.workers, setting.servers, setting.dedicated
  return Condition(', '.join(words), *placed, fields)


def summarize(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """Adds ratios to records; returns records of their errors.

  An error is the virtual ratio over the measured one, less 1.

  Args:
    records: Records of `lab.compare`, which get `real_ratio`, `virtual_ratio`
      and `ratio_error`; a scheme has failed if BSP has.

  Returns:
    A record of each scheme, with the mean error, and one of all.
  """
  base: dict[tuple[str, str], dict[str, Any]] = {}
  errors: dict[str, list[float]] = {}
  for record in records:  # BSP comes first on each cluster.
    if record['status'] != 'finished':
      continue
    scheme, _, cluster = record['condition'].partition(', ')
    key = record['lab'], cluster
    if scheme == _BASE:
      base[key] = record
    elif key not in base:
      record |= {'status': 'failed', 'error': f'{_BASE} has not finished'}
      continue
    real = record['real_s'] / base[key]['real_s']
    virtual = record['virtual_s'] / base[key]['virtual_s']
    error = virtual / real - 1
    record |= {'real_ratio': real, 'virtual_ratio': virtual}
    record['ratio_error'] = error
    if scheme != _BASE:
      errors.setdefault(scheme, []).append(error)
  if not errors:
    return []
  sizes = [abs(error) for each in errors.values() for error in each]
  return [
    *(
      {'part': scheme, 'mean_error': statistics.fmean(each)}
      for scheme, each in errors.items()
    ),
    {
      'part': 'all',
      'ratios': len(sizes),
      'median': float(np.median(sizes)),
      'p95': float(np.quantile(sizes, 0.95)),
      'worst': max(sizes),
    },
  ]
