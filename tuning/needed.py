"""Measured examples to an accuracy of each combination, relative to BSP.

Measurements are results of `reproduce.py` (docs/ledger.md): eight workers on
three clusters, with several seeds.  A run's examples to the accuracy are its
time to the accuracy times its examples per second.  They are divided by those
of BSP with equal batches and float32 on the same cluster and with the same
seed, so that only the combination differs.
"""

import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from configs.checks import require

FOLDER = pathlib.Path(__file__).parents[1] / 'results'
SOURCES = ('combined_equal', 'combined_links', 'combined_workers')
_TO = 'time_to.0.93'
# Omitted batching: lb_bsp_gpu needs curves; steps of r2sp grow with the
# inequality of a cluster, so that measurements do not carry over; the last one
# diverges.
_SKIPPED = ('lb_bsp_gpu', 'r2sp', 'r2sp_released')


class Combination(NamedTuple):
  """Scheme, batching, dtype and route of a run.

  Attributes:
    sync: Value of config.sync.name.
    batching: Value of config.batching.name.
    dtype: Value of config.wire.dense.dtype.
    route: Value of config.route.name.
    pipelined: Value of config.route.server.pipelined.
    hosts: Hosts of a worker, an island if there are several.
    local_steps: Value of config.batching.local_steps.
    fragments: Value of config.route.fragments.
  """

  sync: str = 'bsp'
  batching: str = 'fixed'
  dtype: str = 'float32'
  route: str = 'server'
  pipelined: bool = False
  hosts: int = 1
  local_steps: int = 1
  fragments: int = 1

  def __str__(self) -> str:
    return f'{self.sync}, {self.batching}, {self.dtype}, {self.where}'

  @property
  def where(self) -> str:
    """Route and its options, as text."""
    parts = [self.route]
    if self.pipelined:
      parts.append('pipelined')
    if self.hosts > 1:
      parts.append(f'islands of {self.hosts}')
    if self.fragments > 1:
      parts.append(f'{self.fragments} fragments')
    return ', '.join(parts)

  @property
  def measured(self) -> 'Combination':
    """Combination whose measured examples are those of this one.

    An island computes the batches of its hosts, and fragments change them by
    less than the seed does (docs/routes.md).
    """
    return self._replace(hosts=1, local_steps=1, fragments=1)


BSP = Combination()


class ExamplesRatio(NamedTuple):
  """Examples to the accuracy relative to those of BSP.

  Attributes:
    median: Median over clusters and seeds.
    least: Smallest ratio.
    most: Largest ratio; infinite if a run never reached the accuracy.
    runs: Number of runs.
    staleness: Largest mean staleness of a run, updates.
  """

  median: float
  least: float
  most: float
  runs: int
  staleness: float

  @property
  def predicted(self) -> float:
    """Ratio for predictions, at least 1: staleness should gain nothing."""
    return max(1.0, self.median)


def read_ratios(
  folder: pathlib.Path = FOLDER,
) -> dict[Combination, ExamplesRatio]:
  """Returns the measured ratio of each combination in the results.

  A ratio is over the runs of all routes, because a route changes no update.

  Raises:
    ValueError: If results are missing or have another format; names the file.
  """
  ratios: dict[tuple[str, ...], list[float]] = {}
  stale: dict[tuple[str, ...], list[float]] = {}
  found = set()
  for source in SOURCES:
    records = _records(folder / f'{source}-quick.json')
    base = {r['seed']: _examples(r) for r in records if _of(r) == BSP}
    for record in records:
      combination = _of(record)
      if combination.batching in _SKIPPED or record['seed'] not in base:
        continue
      found.add(combination)
      ratio = _examples(record) / base[record['seed']]
      ratios.setdefault(combination[:3], []).append(ratio)
      stale.setdefault(combination[:3], []).append(record['staleness_mean'])
  return {
    combination: _summarize(ratios[combination[:3]], stale[combination[:3]])
    for combination in sorted(found)
  }


def read_local_ratio(folder: pathlib.Path = FOLDER) -> ExamplesRatio:
  """Returns the measured ratio of local steps whose parameters are averaged.

  The runs are those of entry local_steps_digits: four workers with 32 local
  steps under BSP, relative to one step, each with its best learning rate.

  Raises:
    ValueError: If results are missing or have another format; names the file.
  """
  path = folder / 'local_steps_digits-quick.json'
  base: dict[int, float] = {}
  local: dict[int, float] = {}
  for record in _records(path):
    fields = record['sync.name'], record['batching.name'], record['outer.name']
    if fields == ('bsp', 'fixed', 'sgd') and record['cluster.workers'] > 1:
      has_one = record['batching.local_steps'] == 1
      examples = record.get('examples_to.0.9') or math.inf
      (base if has_one else local)[record['seed']] = float(examples)
  ratios = [local[seed] / base[seed] for seed in sorted({*base} & {*local})]
  require(bool(ratios), f'{path}', 'runs of averages and of BSP', 'none')
  return _summarize(ratios, [0.0])


def _summarize(ratios: list[float], stale: Iterable[float]) -> ExamplesRatio:
  middle = statistics.median(ratios)
  return ExamplesRatio(
    middle, min(ratios), max(ratios), len(ratios), max(stale)
  )


def _records(path: pathlib.Path) -> list[Mapping[str, Any]]:
  expected = 'results of reproduce.py'
  try:
    records = json.loads(path.read_text())['records']
  except (OSError, ValueError, KeyError) as error:
    raise ValueError(f'{path}: expected {expected}, got {error!r}.') from error
  return [each for each in records if each['status'] == 'finished']


def _of(record: Mapping[str, Any]) -> Combination:
  return Combination(
    record['sync.name'],
    record['batching.name'],
    record['wire.dense.dtype'],
    record['route.name'],
    bool(record.get('route.server.pipelined')),
  )


def _examples(record: Mapping[str, Any]) -> float:
  """Returns the examples of a run until the accuracy; inf if never reached."""
  time_s: float = record.get(_TO) or math.inf
  return time_s * float(record['examples_per_s'])
