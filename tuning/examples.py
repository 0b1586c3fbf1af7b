"""Examples until an accuracy relative to BSP, from the user's own runs.

A run's examples are divided by those of BSP with equal batches, float32 and one
local step on the same cluster and with the same seed, so that only the scheme,
the batching, the wire or the local steps differ.  Routes change no update.
Without runs, only a combination that keeps learning as it is has a ratio, 1.
"""

import json
import math
import pathlib
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import analysis
from configs.checks import require
from tuning.combinations import STALENESS, Combination


class Learning(NamedTuple):
  """Scheme, batching, wire and local steps: they decide the examples of a run.

  Attributes:
    sync: Value of config.sync.name.
    batching: Value of config.batching.name.
    dtype: Value of config.wire.dense.dtype.
    local_steps: Value of config.batching.local_steps.
  """

  sync: str = 'bsp'
  batching: str = 'fixed'
  dtype: str = 'float32'
  local_steps: int = 1


class ExamplesRatio(NamedTuple):
  """Examples to an accuracy relative to those of BSP.

  Attributes:
    median: Median over clusters and seeds.
    least: Smallest ratio.
    most: Largest ratio; infinite if a run never reached the accuracy, or if
      nothing is known.
    runs: Number of runs; 0 if it was not measured.
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

  @property
  def is_known(self) -> bool:
    """True if the ratio was measured, or is 1 by definition."""
    return self.runs > 0 or math.isfinite(self.most)


SAME = ExamplesRatio(1.0, 1.0, 1.0, 0, 0.0)
UNKNOWN = ExamplesRatio(1.0, 1.0, math.inf, 0, 0.0)
Ratios = Mapping[Learning, ExamplesRatio]


def find(
  ratios: Ratios, combination: Combination, local_steps: int = 1
) -> ExamplesRatio:
  """Returns the ratio of a combination: measured, 1, or unknown.

  Batches in proportion to speeds and a bfloat16 wire do not count as a change
  of learning: weighted means are those of the pooled batch.

  Args:
    ratios: Ratios of `read_ratios`.
    local_steps: Number of local steps, where the base has one.
  """
  learning = Learning(*combination[:3], local_steps)
  keeps = not STALENESS.get(combination.sync, 0) and local_steps == 1
  return ratios.get(learning, SAME if keeps else UNKNOWN)


def read_ratios(
  folder: pathlib.Path, level: str
) -> dict[Learning, ExamplesRatio]:
  """Returns the ratios of the runs in a folder, such as that of a sweep.

  Of runs that differ in other fields, such as the learning rate, the one with
  the fewest examples counts.

  Args:
    folder: Folder that has the runs' folders, at any depth.
    level: Accuracy of config.time_to, as summary.json has it.

  Raises:
    ValueError: If no run is comparable, or has the level; names the folder.
    OSError: If a file cannot be read.
  """
  best: dict[tuple[str, Learning], float] = {}
  stale: dict[Learning, float] = {}
  for manifest in sorted(folder.rglob('manifest.json')):
    run = analysis.read(manifest.parent)
    summary = run.summary
    if summary is None or level not in summary['to_accuracy']:
      continue
    learning, where = _learning(run.config), _cluster(run.config)
    examples = summary['to_accuracy'][level]['examples'] or math.inf
    before = best.get((where, learning), math.inf)
    best[where, learning] = min(before, float(examples))
    own = float(summary['staleness_mean'])
    stale[learning] = max(stale.get(learning, 0.0), own)
  ratios: dict[Learning, list[float]] = {}
  for (where, learning), examples in best.items():
    base = best.get((where, Learning()), math.inf)
    if math.isfinite(base):
      ratios.setdefault(learning, []).append(examples / base)
  expected = f'ended runs of BSP that reached {level}, and of others'
  require(len(ratios) > 1, f'{folder}', expected, [*map(tuple, stale)])
  return {
    learning: ExamplesRatio(
      statistics.median(found),
      min(found),
      max(found),
      len(found),
      stale[learning],
    )
    for learning, found in ratios.items()
  }


def _learning(config: Mapping[str, Any]) -> Learning:
  """Returns the learning of a config; `dtype` is the name of other wires."""
  wire, batching = config['wire'], config['batching']
  is_dense = wire['name'] == 'dense'
  dtype = wire['dense']['dtype'] if is_dense else wire['name']
  return Learning(
    config['sync']['name'], batching['name'], dtype, batching['local_steps']
  )


def _cluster(config: Mapping[str, Any]) -> str:
  """Returns seed, cluster and workload: equal in runs that are comparable."""
  workload = config['model'], config['data'], config['batching']['worker_batch']
  return json.dumps([config['seed'], config['cluster'], workload])
