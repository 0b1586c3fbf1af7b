"""Runs on clusters whose links and compute times are known, for tests.

Without a model, they have the files of real runs and take no time.
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
from tools import calibrate

UP = (20e6, 60e6, 40e6, 25e6)
DOWN = (50e6, 25e6, 60e6, 30e6)
SERVERS = {'down': 80e6, 'up': 70e6}  # All of them together.
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
  'model.none.size_bytes': 5_000_004,  # 4 x no multiple of the servers.
  'model.none.num_train': 10_000,
  # Without a model these are at their defaults.
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
  own = {'sync.name': scheme, 'route.server.servers': servers}
  fields = _CLUSTER | shares | own
  fields |= {name.replace('__', '.'): value for name, value in changed.items()}
  return small.config(**fields)


@functools.cache
def run(scheme: str, servers: int = 1, **changed: Any) -> pathlib.Path:
  """Returns the folder of a run that has ended."""
  made = small.build(config(scheme, servers, **changed))
  made()
  return made.files.workdir


@functools.cache
def measured(scheme: str, servers: int = 1) -> calibrate.Calibration:
  """Returns the calibration that was measured in a run."""
  return calibrate.measure(run(scheme, servers))


def changed(
  folder: pathlib.Path, change: Callable[[dict], object]
) -> pathlib.Path:
  """Returns a copy of a run with other rows in its timeline."""
  copy = pathlib.Path(tempfile.mkdtemp(), 'copy')
  shutil.copytree(folder, copy)
  rows = json.loads((copy / 'trace.json').read_text())
  for row in rows:
    if row['ph'] == 'X':
      change(row)
  lines = ',\n'.join(map(json.dumps, rows))
  (copy / 'trace.json').write_text(f'[\n{lines}\n]\n')
  return copy


def noisy(folder: pathlib.Path, deviation: float) -> pathlib.Path:
  """Returns a copy of a run with errors of durations, as a share of them."""
  generator = random.Random(0)

  def change(row):
    row['dur'] *= 1 + generator.gauss(0, deviation)

  return changed(folder, change)
