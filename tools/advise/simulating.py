"""How many examples per second a combination processes on a cluster."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import train
from configs import default
from outputs import console
from sweeps import scratch
from tools.advise.clusters import Described
from tools.advise.needed import BSP, Combination

_FLOWS = 5_000  # Of an iteration of all, times iterations; bounds the time.
_LEAST, _MOST = 8, 40  # Iterations of each worker.
_SETTLED = 0.4  # Share of a run that is left out at its start.


class Pace(NamedTuple):
  """How fast a simulated run was, once settled.

  Attributes:
    examples_per_s: Of all workers.
    staleness: Mean, updates.
    compute_s: Of an iteration, mean over workers.
  """

  examples_per_s: float
  staleness: float
  compute_s: float


class Workload(NamedTuple):
  """What is trained.

  Attributes:
    size_bytes: Of the parameters, in float32.
    batch: Examples of a worker's iteration.
  """

  size_bytes: int
  batch: int


def possible(
  cluster: Described, combinations: Mapping[Combination, Any]
) -> list[Combination]:
  """Returns the combinations that a cluster's file says enough for."""
  return [
    each for each in combinations if cluster.serves or each.route != 'server'
  ]


def check(
  cluster: Described, workload: Workload, combinations: list[Combination]
) -> None:
  """Refuses a cluster that is wrong, with servers and among workers.

  Raises:
    ValueError: If a value is out of its range; names the field.
  """
  for served in (True, False):
    same = [c for c in combinations if (c.route == 'server') == served]
    plain = sorted(same, key=lambda c: (c.sync != 'bsp', c.route != 'ring'))
    if plain:
      with console.hidden():
        train.check(_config(cluster, workload, plain[0]))


def pace(
  cluster: Described, workload: Workload, combination: Combination
) -> Pace:
  """Returns how fast a combination is on a cluster."""
  return _paced(_config(cluster, workload, combination))


def unlimited(cluster: Described, workload: Workload) -> Pace:
  """Returns how fast BSP would be over links without limits."""
  config = _config(cluster, workload, BSP)
  network = config.cluster.network
  network.servers_in_workers = False
  config.route.server.servers = 1
  for host in ('worker', 'server'):
    network[f'{host}_up_Bps'] = network[f'{host}_down_Bps'] = (math.inf,)
    network[f'{host}_latency_s'] = (0.0,)
  return _paced(config)


def flags(cluster: Described, combination: Combination) -> list[str]:
  """Returns the flags of main.py for a combination."""
  own = fields(cluster, combination)
  return [f'--config.{field}={value}' for field, value in own.items()]


def fields(cluster: Described, combination: Combination) -> dict[str, Any]:
  """Returns the fields of a config, by dotted name, for a combination."""
  own: dict[str, Any] = {'sync.name': combination.sync}
  own['batching.name'] = combination.batching
  if combination.batching == 'lb_bsp':
    own['batching.lb_bsp.predictor.name'] = 'ema'
  own['wire.dense.dtype'] = combination.dtype
  own['route.name'] = combination.route
  if combination.route == 'server':
    own['route.server.servers'] = cluster.servers
    own['route.server.pipelined'] = combination.pipelined
    inside = not cluster.dedicated
    own['cluster.network.servers_in_workers'] = inside
  return own


def _config(
  cluster: Described, workload: Workload, combination: Combination
) -> ConfigDict:
  """Returns a run of time alone, without files that nobody reads."""
  config = default.get_config()
  served = combination.route == 'server'
  cluster.put(config, served=served)
  config.update_from_flattened_dict(fields(cluster, combination))
  config.batching.worker_batch = workload.batch
  flows = cluster.workers * (cluster.servers if cluster.serves else 1)
  iterations = max(_LEAST, min(_MOST, _FLOWS // flows))
  config.model.name = 'none'
  config.model.none.size_bytes = workload.size_bytes
  config.model.none.num_train = cluster.workers * iterations * workload.batch
  config.epochs = config.eval_every = 1.0
  config.log_every = cluster.workers
  config.outputs.timeline = config.outputs.events = False
  config.outputs.board = False
  config.checkpoint.every_s = math.inf
  return config


def _paced(config: ConfigDict) -> Pace:
  with scratch.trained(config) as run:
    summary = run.summary
    text = (run.folder / 'metrics.jsonl').read_text()
  compute_s = summary['worker_seconds']['compute'] / summary['iterations']
  rate = _settled([json.loads(line) for line in text.splitlines()])
  return Pace(rate, summary['staleness_mean'], compute_s)


def _settled(rows: list[dict[str, Any]]) -> float:
  """Returns examples per second from a settled row to the last one.

  Rows of barriers are exact where all workers meet; where there are few of
  them, rows of the log are closer to each other.
  """
  logged = [row for row in rows if row['kind'] == 'log']
  barriers = [row for row in rows if row['kind'] == 'barrier']
  used = barriers if len(barriers) >= len(logged) // 2 else logged
  last = used[-1]
  begun = _SETTLED * last['examples']
  first = next(row for row in used if row['examples'] >= begun)
  return (last['examples'] - first['examples']) / (last['time'] - first['time'])
