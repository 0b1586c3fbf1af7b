"""Measures iterations of local steps in a lab, beside torchft's DiLoCo and DDP.

  python -m bench.local_steps [--steps=1,8,32] [--rates=50,200] [--routes=
    server,ring] [--fragments=1] [--megabytes=5] [--step_s=0.02]
    [--iterations=10] [--out=DIR] [--peers=PYTHON]
  python -m bench.local_steps --islands [--steps=8] [--rates=50]

Needs root, for network namespaces (tools.lab).  Four equal hosts train without
a model: an iteration of H local steps takes H times --step_s of injected
computing, and then a displacement of --megabytes is summed, by a server in each
worker or by a ring.  Seconds of an iteration are medians without the first two.

over virtual: time of an iteration over that under the virtual clock, whose
links have the rates that frame headers leave.  over bound: over H times
--step_s and the time in which each host sends 2 (n - 1) / n of the bytes at the
nominal rate, which frame headers alone exceed by 4.5 %.

With F fragments (--fragments) an iteration is F shorter ones, of H / F steps
each, during all of which a fragment of 1 / F of the bytes is summed.  The bound
is then the longer of both times.  exposed: time of an iteration without its
steps, over the time of the bytes at the nominal rate.

islands: three islands of two hosts train the language model of
configs/lm_diloco.py with two rows per local step, over a ring of --rates
between islands and 1 Gbit/s inside.  Computing is slept as above; what XLA
computes and sends inside happens meanwhile, and the sleep is longer by the
transfers that the virtual clock has inside.  alone: computing phase of the same
run without sleep.

diloco: rounds of torchft's DiLoCo over gloo with the same bytes and H, each
host a replica group; ddp: steps of torch's DDP that accumulate H gradients,
with its own overlap in the last one.  Both need --peers (bench.peers).  Ratios
to them are ours over theirs.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

from bench import clusters, hosts, routes
from bench.peers import running as peers
from cluster.speed import layers
from configs import default, lm_diloco, sections
from sweeps import scratch
from topology.clusters import pruned

_CASE, _HOSTS = 'equal4', 4
_ISLANDS, _PER_ISLAND, _INSIDE_MBIT = 3, 2, 1000
_ISLAND_CONFIG = 'configs/lm_diloco.py'
_TEXT_LENGTH, _TEXT_ROWS = 16, 26_228  # Short rows, for little computing.
_SHORT_S = 1e-3  # Stands for no sleep.
_ROUTES = ('server', 'ring')


def main(argv: list[str] | None = None) -> None:
  """Prints a table per rate."""
  parser = argparse.ArgumentParser(
    prog='bench.local_steps', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--steps', default='1,8,32', help='H')
  parser.add_argument('--rates', default='50,200', help='Mbit/s')
  parser.add_argument('--routes', default=','.join(_ROUTES))
  parser.add_argument('--fragments', default='1', help='F, of the ring')
  parser.add_argument('--megabytes', type=float, default=5.0)
  parser.add_argument('--step_s', type=float, default=0.02)
  parser.add_argument('--iterations', type=int, default=10)
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--islands', action='store_true')
  parser.add_argument('--peers', **peers.FLAG)
  flags = parser.parse_args(argv)
  chosen = flags.routes.split(',')
  if {*chosen} - {*_ROUTES}:
    parser.error(f'expected routes of {[*_ROUTES]}, got {chosen}')
  peers.require_torch(parser, flags.peers)
  out = pathlib.Path(flags.out or tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  steps = [*map(int, flags.steps.split(','))]
  for mbit in map(int, flags.rates.split(',')):
    if flags.islands:
      print_islands(out, mbit, steps, flags)
    else:
      print_rate(out, mbit, steps, chosen, flags)


def print_rate(
  out: pathlib.Path,
  mbit: int,
  local_steps: Sequence[int],
  chosen: Sequence[str],
  flags: argparse.Namespace,
) -> None:
  """Prints the times of iterations on links of one rate.

  Args:
    out: Folder of all runs.
    mbit: Rate of all links, Mbit/s.
    local_steps: Numbers of local steps (H).
    chosen: Names of the routes.
    flags: Parsed flags of the command line.
  """
  size_bytes = round(flags.megabytes * 1e6) // 4 * 4
  others = _measure_peers(mbit, size_bytes, local_steps, flags)
  head = ('H', 'route', 'F', 's', 'exposed', 'virtual s', 'over virtual')
  head = (*head, 'bound s', 'over bound')
  rows = [(*head, 'diloco s', 'over', 'ddp s', 'over')]
  for count in local_steps:
    for route, parts in itertools.product(
      chosen, map(int, flags.fragments.split(','))
    ):
      if parts > 1 and route == 'server':
        continue
      setting: dict[str, Any] = {
        'local_steps': count,
        'step_s': flags.step_s,
        'size_bytes': size_bytes,
        'workers': _HOSTS,
        'mbit': mbit,
      }
      limit_s = bound_s(**setting, overlaps=parts > 1)
      transfer_s = bound_s(**setting | {'step_s': 0.0})
      run = routes.Run(_CASE, size_bytes, 'alone', route, mbit, count, parts)
      compute_s = count * flags.step_s
      virtual_s = parts * (routes.simulate(run, compute_s / parts) or 0.0)
      took_s = parts * routes.measure(
        out, run, compute_s / parts, parts * flags.iterations
      )
      exposed = (took_s - compute_s) / transfer_s
      cells = [f'{count}', route, f'{parts}', f'{took_s:.4f}', f'{exposed:.3f}']
      for reference_s in (virtual_s, limit_s, *others.get(count, ())):
        cells += [f'{reference_s:.4f}', f'{took_s / reference_s:.3f}']
      cells += ['-'] * (len(rows[0]) - len(cells))
      rows.append(tuple(cells))
  print(
    f'\n{_HOSTS} hosts, {mbit} Mbit/s, {size_bytes / 1e6:g} MB, a local step '
    f'of {flags.step_s:g} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )


def print_islands(
  out: pathlib.Path,
  mbit: int,
  local_steps: Sequence[int],
  flags: argparse.Namespace,
) -> None:
  """Prints the times of iterations of islands.

  Args:
    out: Folder of all runs.
    mbit: Rate of the links between islands, Mbit/s.
    local_steps: Numbers of local steps (H).
    flags: Parsed flags of the command line.
  """
  rows = [('H', 'sharding', 's', 'virtual s', 'over virtual', 'alone s')]
  for count, sharding in itertools.product(
    local_steps, sections.ISLAND_SHARDINGS
  ):
    compute_s = count * flags.step_s
    fields = _island_fields(count, sharding, compute_s, flags.iterations)
    virtual_s = simulate_islands(out, mbit, fields)
    took_s, _ = measure_islands(out / f'{count}_{sharding}', mbit, fields)
    idle = fields | {'cluster.speed.fixed_s': _SHORT_S}
    _, alone_s = measure_islands(out / f'{count}_{sharding}_alone', mbit, idle)
    numbers = took_s, virtual_s, took_s / virtual_s, alone_s
    rows.append((f'{count}', sharding, *(f'{each:.4f}' for each in numbers)))
  print(
    f'\n{_ISLANDS} islands of {_PER_ISLAND} hosts, {mbit} Mbit/s between '
    f'them, {_INSIDE_MBIT} Mbit/s inside, a local step of {flags.step_s:g} s, '
    f'load {os.getloadavg()[0]:.1f}\n\n{clusters.table(*rows)}',
    flush=True,
  )


def measure_islands(
  path: pathlib.Path, mbit: int, fields: dict[str, Any]
) -> tuple[float, float]:
  """Returns medians of a run in a lab: its iteration, and its computing phase.

  Args:
    path: Folder of the run.
    mbit: Rate of the links between islands, Mbit/s.
    fields: Fields of its config.
  """
  case = _island_case(mbit)
  lab = path.with_suffix('.json')
  lab.parent.mkdir(parents=True, exist_ok=True)
  lab.write_text(json.dumps(case.links))
  clusters.run(
    path,
    _ISLAND_CONFIG,
    fields | {'cluster.speed.injected': True, 'cluster.timeout_s': 60.0},
    workers=_ISLANDS,
    hosts_per_worker=_PER_ISLAND,
    servers=0,
    dedicated=False,
    link=f'{_INSIDE_MBIT}mbit',
    options=[f'--links={lab}'],
  )
  lines = (path / 'events.jsonl').read_text().splitlines()
  phases = [
    row['compute_s'] for row in map(json.loads, lines) if row['event'] == 'push'
  ]
  return routes.iteration_s(path), statistics.median(phases)


def simulate_islands(
  out: pathlib.Path, mbit: int, fields: dict[str, Any]
) -> float:
  """Returns the seconds of an iteration of islands under the virtual clock."""
  nominal = _island_case(mbit).cluster
  names = enumerate(nominal.workers)
  followers = [name for place, name in names if place % _PER_ISLAND]
  path = out / f'islands_{mbit}.json'
  routes.write_links(path, pruned.remove(nominal, workers=followers))
  config = lm_diloco.get_config()
  config.cluster.workers = _ISLANDS
  config.cluster.hosts_per_worker = _PER_ISLAND
  network = default.get_config().cluster.network
  config.cluster.network = network  # Without the links of that config.
  config.update_from_flattened_dict(fields)
  config.cluster.links = config.route.ring.cluster = str(path)
  with scratch.execute(config) as simulated:
    return routes.iteration_s(simulated.folder)


def _island_case(mbit: int) -> hosts.Case:
  """Returns the hosts of the islands."""
  count = _ISLANDS * _PER_ISLAND
  groups = [
    (tuple(range(first, first + _PER_ISLAND)), mbit)
    for first in range(0, count, _PER_ISLAND)
  ]
  rates = [_INSIDE_MBIT] * count
  return hosts.Case(rates, rates, {}, groups)


def _island_fields(
  local_steps: int, sharding: str, compute_s: float, iterations: int
) -> dict[str, Any]:
  """Returns the fields of a run of islands beside those of its config."""
  examples = _ISLANDS * local_steps * _PER_ISLAND
  return {
    'epochs': iterations * examples / _TEXT_ROWS,
    'eval_every': 100.0,
    'log_every': 1000,
    'route.name': 'ring',
    'data.text.length': _TEXT_LENGTH,
    'batching.local_steps': local_steps,
    'batching.worker_batch': _PER_ISLAND,
    'cluster.island_sharding': sharding,
    'cluster.network.island_Bps': (
      _INSIDE_MBIT * 1e6 / 8 * float(routes.USABLE),
    ),
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': compute_s,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_s': math.inf,
  }


def bound_s(
  *,
  local_steps: int,
  step_s: float,
  size_bytes: int,
  workers: int,
  mbit: int,
  overlaps: bool = False,
) -> float:
  """Returns the seconds of computing and of an optimal sum.

  In an optimal sum on equal links each host sends 2 (n - 1) / n of the bytes.

  Args:
    local_steps: Local steps of an iteration (H).
    step_s: Seconds of a local step.
    size_bytes: Bytes of the displacement.
    workers: Number of hosts (n).
    mbit: Nominal rate of each host in each direction, Mbit/s.
    overlaps: Whether both go on at the same time; else one after the other.
  """
  sent_bytes = 2 * (workers - 1) / workers * size_bytes
  times_s = local_steps * step_s, 8e-6 * sent_bytes / mbit
  return max(times_s) if overlaps else sum(times_s)


def _measure_peers(
  mbit: int,
  size_bytes: int,
  local_steps: Sequence[int],
  flags: argparse.Namespace,
) -> dict[int, tuple[float, float]]:
  """Returns the seconds of a round of DiLoCo and a step of DDP, by H."""
  if not flags.peers:
    return {}
  bucket_bytes = default.get_config().route.bucket_bytes
  parts = layers.in_proportion(layers.equal_sizes(size_bytes, bucket_bytes))
  rounds, jobs = flags.iterations - 2, []
  for count in local_steps:
    jobs.append(
      peers.diloco_job(
        parts, step_s=flags.step_s, local_steps=count, rounds=rounds
      )
    )
    # Gradients of the last of `count` steps are ready late.
    late = [
      each._replace(ready=(count - 1 + each.ready) / count) for each in parts
    ]
    model = peers.sleeping_model(late, count * flags.step_s)
    jobs.append(peers.step_job(model, steps=rounds))
  lab_hosts = hosts.scaled_cases(mbit)[_CASE]
  took = [each.step_s for each in peers.run(flags.peers, lab_hosts, jobs)]
  pairs = zip(took[::2], took[1::2], strict=True)
  return dict(zip(local_steps, pairs, strict=True))


if __name__ == '__main__':
  main()
