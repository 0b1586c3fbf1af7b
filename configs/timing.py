"""Fields of timing-only runs, which compute and send, but learn nothing.

No experiment.  Each function returns fields by dotted name: for flags of a real
run, or for `config`, whose runs are virtual unless a field says otherwise.
"""

import math
from collections.abc import Mapping
from typing import Any

import ml_collections

from configs import default

# For runs of which only summary.json counts.
FEW_OUTPUTS: Mapping[str, Any] = {
  'outputs.timeline': False,
  'outputs.events': False,
  'outputs.board': False,
  'log_every': 10**9,
}


def config(*parts: Mapping[str, Any]) -> ml_collections.ConfigDict:
  """Returns the defaults, changed by fields with dotted names, in order."""
  result = default.get_config()
  for part in parts:
    result.update_from_flattened_dict(part)
  return result


def fields(
  *,
  workers: int,
  iterations: int,
  size_bytes: int,
  batch: int | None = None,
  local_steps: int = 1,
  compute_s: float | None = None,
) -> dict[str, Any]:
  """Returns the fields of a run of one epoch without checkpoints.

  Args:
    workers: Number of workers.
    iterations: Iterations of each worker, in the mean.
    size_bytes: Bytes of the float32 parameters, and of a dense push.
    batch: Examples of a worker in a local step; None for the default.
    local_steps: Local steps of an iteration.
    compute_s: Seconds of computing in an iteration, the same for all workers
      and batches; None for the default, which is unequal and has jitter.
  """
  if batch is None:
    batch = int(default.get_config().batching.worker_batch)
  found: dict[str, Any] = {
    'model.name': 'none',
    'model.none.size_bytes': size_bytes,
    'model.none.num_train': workers * iterations * batch * local_steps,
    'epochs': 1.0,
    'eval_every': 1.0,
    'checkpoint.every_s': math.inf,
    'cluster.workers': workers,
    'batching.worker_batch': batch,
    'batching.local_steps': local_steps,
  }
  if compute_s is not None:
    found |= {
      'cluster.speed.name': 'constant',
      'cluster.speed.fixed_s': compute_s,
      'cluster.speed.per_example_s': 0.0,
      'cluster.speed.slowdown': (1.0,),
    }
  return found


def links(worker_Bps: float, server_Bps: float | None = None) -> dict[str, Any]:
  """Returns the fields of equal links.

  Args:
    worker_Bps: Rate of each worker in each direction, bytes per second.
    server_Bps: Rate of each server in each direction, bytes per second; None
      for routes among workers.
  """
  rates = {'worker': worker_Bps, 'server': server_Bps}
  return {
    f'cluster.network.{host}_{way}_Bps': (rate,)
    for host, rate in rates.items()
    for way in ('up', 'down')
    if rate is not None
  }
