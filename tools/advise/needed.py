"""Measured examples to an accuracy of combinations, relative to BSP.

The measurements are those of the ledger of `reproduce.py`: eight workers on
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

FOLDER = pathlib.Path(__file__).parents[2] / 'results'
SOURCES = ('combined_equal', 'combined_links', 'combined_workers')
_TO = 'time_to.0.93'
# In this order: needs curves; has larger steps the less equal a cluster is, so
# that measurements on other clusters say little; diverges.
_SKIPPED = ('lb_bsp_gpu', 'r2sp', 'r2sp_released')


class Combination(NamedTuple):
  """Scheme, batching, dtype and route of a run.

  Attributes:
    sync: As config.sync.name.
    batching: As config.batching.name.
    dtype: As config.wire.dense.dtype.
    route: As config.route.name.
    pipelined: As config.route.server.pipelined.
  """

  sync: str = 'bsp'
  batching: str = 'fixed'
  dtype: str = 'float32'
  route: str = 'server'
  pipelined: bool = False

  def __str__(self) -> str:
    where = f'{self.route}, pipelined' if self.pipelined else self.route
    return f'{self.sync}, {self.batching}, {self.dtype}, {where}'


BSP = Combination()


class Needed(NamedTuple):
  """Examples to the accuracy over those of BSP.

  Attributes:
    median: Over clusters and seeds.
    least: Of them.
    most: Of them; infinite if a run never got there.
    runs: How many there are.
    staleness: The largest mean staleness of them, updates.
  """

  median: float
  least: float
  most: float
  runs: int
  staleness: float

  @property
  def used(self) -> float:
    """Ratio for predictions: at least 1, as no gain by staleness is assumed."""
    return max(1.0, self.median)


def measured(folder: pathlib.Path = FOLDER) -> dict[Combination, Needed]:
  """Returns the measured ratios of the ledger's combinations, by combination.

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
    combination: _summed(ratios[combination[:3]], stale[combination[:3]])
    for combination in sorted(found)
  }


def _summed(ratios: list[float], stale: Iterable[float]) -> Needed:
  middle = statistics.median(ratios)
  return Needed(middle, min(ratios), max(ratios), len(ratios), max(stale))


def _records(path: pathlib.Path) -> list[Mapping[str, Any]]:
  expected = 'results of the ledger'
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
  return (record.get(_TO) or math.inf) * record['examples_per_s']
