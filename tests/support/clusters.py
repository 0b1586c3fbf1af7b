"""Timing-only runs on clusters with known links and compute times, for tests.

The runs write the files of real runs and take almost no time.
"""

import functools
import json
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from tests.support import small
from tuning import calibration as calibrating
from tuning.calibration import Calibration

UP = (20e6, 60e6, 40e6, 25e6)
DOWN = (50e6, 25e6, 60e6, 30e6)
SERVERS = {'down': 80e6, 'up': 70e6}  # Sum of all servers.
ITERATIONS = 240
_CLUSTER = {
  'epochs': ITERATIONS * 16 / 10_000,
  'eval_every': 100.0,
  'cluster.workers': 4,
  'cluster.speed.name': 'lognormal',
  'cluster.speed.fixed_s': 0.1,
  'cluster.speed.slowdown': (1.0, 1.5, 2.0, 3.0),
  'cluster.network.worker_up_Bps': UP,
  'cluster.network.worker_down_Bps': DOWN,
  'cluster.network.worker_latency_s': (2e-3,),
  'batching.worker_batch': 16,
  'model.name': 'none',
  'model.none.size_bytes': 5_000_004,  # Not a multiple of 4 times the servers.
  'model.none.num_train': 10_000,
  # Fields that must have their defaults without a model.
  'data.name': 'digits',
  'data.synthetic.num_train': 1024,
  'data.synthetic.num_test': 256,
  'data.synthetic.pixels': 32,
  'data.synthetic.channels': 3,
  'model.mlp.hidden': (128,),
  'optimizer.learning_rate': 0.015,
}


def config(scheme: str, servers: int = 1, **changed: Any) -> ConfigDict:
  """Returns a config of four unequal workers, changed as in small.config."""
  shares = {
    f'cluster.network.server_{link}_Bps': (SERVERS[link] / servers,)
    for link in ('up', 'down')
  }
  selection = {'sync.name': scheme, 'route.server.servers': servers}
  fields = _CLUSTER | shares | selection
  fields |= {name.replace('__', '.'): value for name, value in changed.items()}
  return small.config(**fields)


@functools.cache
def run(scheme: str, servers: int = 1, **changed: Any) -> pathlib.Path:
  """Returns the folder of a run that has ended."""
  built = small.build(config(scheme, servers, **changed))
  built()
  return built.files.workdir


@functools.cache
def calibration(scheme: str, servers: int = 1) -> Calibration:
  """Returns the calibration measured from a run."""
  return calibrating.measure(run(scheme, servers))


def with_timeline(
  folder: pathlib.Path, change: Callable[[dict], object]
) -> pathlib.Path:
  """Returns a copy of a run with changed rows in its timeline."""
  copy = pathlib.Path(tempfile.mkdtemp(), 'copy')
  shutil.copytree(folder, copy)
  rows = json.loads((copy / 'trace.json').read_text())
  for row in rows:
    if row['ph'] == 'X':
      change(row)
  lines = ',\n'.join(map(json.dumps, rows))
  (copy / 'trace.json').write_text(f'[\n{lines}\n]\n')
  return copy


def with_noise(folder: pathlib.Path, deviation: float) -> pathlib.Path:
  """Returns a copy of a run with relative errors of durations."""
  generator = random.Random(0)

  def change(row):
    row['dur'] *= 1 + generator.gauss(0, deviation)

  return with_timeline(folder, change)
