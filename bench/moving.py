"""Runs that only move bytes: on real hosts of a lab, and on virtual ones.

Four equal workers, with servers of their own or in their processes.
"""

import contextlib
import io
import math
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import train
from bench import clusters
from configs import default

WORKERS = 4
SIZE_BYTES = 5_000_000  # Of a push, and of a pull.
_FRAMES = 1.047  # Bytes on a link, with headers, for one of ours.


def real(
  out: pathlib.Path,
  name: str,
  fields: Mapping[str, Any],
  compute_s: float,
  rate_mbit: int,
  rounds: int,
  options: Sequence[str],
  *,
  servers: int = 1,
  dedicated: bool = True,
) -> float:
  """Returns the seconds of a round on real hosts.

  Args:
    out: Folder of all runs.
    name: Of this one.
    fields: Of its config, by dotted name.
    compute_s: That every iteration computes at least.
    rate_mbit: Of all links, each way, Mbit/s.
    rounds: How many.
    options: Flags of tools.lab.
    servers: How many.
    dedicated: Whether they have hosts of their own.

  Raises:
    RuntimeError: If the run fails.
  """
  words = name.lower().replace(', ', '_')
  where = f'{servers} servers {"of their own" if dedicated else "in workers"}'
  path = clusters.run(
    out / f'{words}_{rate_mbit}mbit_{compute_s:g}s_{servers}{dedicated}',
    'configs/default.py',
    {
      **_moving(fields, compute_s, rounds),
      'cluster.speed.injected': True,
      'cluster.timeout_s': 20.0,
      'checkpoint.every_s': 'inf',
    },
    workers=WORKERS,
    servers=servers,
    dedicated=dedicated,
    link=f'{rate_mbit}mbit',
    options=options,
  )
  took_s = clusters.round_s(path, workers=WORKERS)
  print(
    f'  {name}, {rate_mbit} Mbit/s, C = {compute_s:g} s, {where}: '
    f'{took_s:.3f} s',
    flush=True,
  )
  return took_s


def virtual(
  fields: Mapping[str, Any],
  compute_s: float,
  rate_mbit: int,
  rounds: int,
  *,
  servers: int,
  dedicated: bool,
) -> float:
  """Returns the seconds of a round of the same run under the virtual clock.

  Its links have what frames and their headers leave.  Arguments are those of
  `real`.
  """
  rate_Bps = rate_mbit * 1e6 / 8 / _FRAMES
  config = default.get_config()
  config.update_from_flattened_dict(
    {
      **_moving(fields, compute_s, rounds),
      'checkpoint.every_s': math.inf,
      'cluster.workers': WORKERS,
      'route.server.servers': servers,
      'cluster.network.servers_in_workers': not dedicated,
      **{
        f'cluster.network.{host}_{way}_Bps': (rate_Bps,)
        for host in ('worker', 'server')[: 1 + dedicated]
        for way in ('up', 'down')
      },
      **{
        f'cluster.network.{host}_latency_s': (0.0,)
        for host in ('worker', 'server')[: 1 + dedicated]
      },
    }
  )
  with tempfile.TemporaryDirectory() as folder:
    with contextlib.redirect_stdout(io.StringIO()):  # Its table.
      train.build(config, workdir=f'{folder}/run')()
    return clusters.round_s(pathlib.Path(folder, 'run'), workers=WORKERS)


def _moving(
  fields: Mapping[str, Any], compute_s: float, rounds: int
) -> dict[str, Any]:
  """Returns what makes a config one that only moves bytes."""
  examples = rounds * WORKERS * default.get_config().batching.worker_batch
  return {
    **fields,
    'epochs': 1.0,
    'model.name': 'none',
    'model.none.size_bytes': SIZE_BYTES,
    'model.none.num_train': examples,
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': compute_s,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
  }
