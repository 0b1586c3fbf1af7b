"""Measures whole runs by route, in a lab and under the virtual clock.

  python -m bench.routes [--cases=equal4,slow4,groups6] [--sizes=5,25]
    [--routes=forest,ring,auto,native,server,pipelined] [--ways=alone,beside]
    [--all] [--iterations=12] [--mbit=200] [--out=DIR] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Each run is a real one of
tools.launch that moves real bytes without a model.  Routes and the virtual
clock read the links from one file, with the rates that frames and their headers
leave of nominal ones.  Seconds of an iteration are medians without the first
two iterations.

alone: every iteration computes for 10 ms, so that communication dominates.
beside: it computes as long as the optimum communicates, and buckets travel as
soon as they are ready.  The optimum is the time of the bytes at the rate of the
packed forest on nominal links; exposed is the time of an iteration minus its
computation.  The virtual network of servers has no rates of pairs of hosts;
cases with such rates have no virtual time for the routes with servers, `server`
and `pipelined`, which is `server` with pushes and pulls in pieces.

The first size is measured with all routes alone and with some beside
computation, further sizes with the forest alone, in about 4 minutes; --all
measures all combinations.

ddp: steps of torch's DDP over gloo with the first size (--peers names an
interpreter that has torch, see bench.peers); a sleep stands for computation.
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
from fractions import Fraction
from typing import Any, NamedTuple

from bench import clusters, hosts
from bench.peers import running as peers
from cluster.speed import layers
from configs import default
from sweeps import scratch
from topology.clusters import cluster as topologies
from topology.clusters.cluster import Cluster, Link
from topology.packing.pack import pack

_CASES = ('equal4', 'slow4', 'groups6')
_ROUTES = ('forest', 'ring', 'auto', 'native', 'server', 'pipelined')
_WITH_SERVERS = ('server', 'pipelined')  # In each worker.
_WITH_LINKS = ('forest', 'ring', 'auto')  # Routes that read a file of links.
_WAYS = ('alone', 'beside')
_ALONE_S = 0.01
USABLE = Fraction('0.957')  # Share of a nominal rate left by frame headers.
_SKIPPED = 2  # First iterations, which are not measured.
_FEWEST, _LIMIT_S = 5, 8.0  # Iterations of a run, and their rough duration.


class Run(NamedTuple):
  """Route, case and size of a run.

  Attributes:
    case: Name of the hosts.
    size_bytes: Bytes of the summed vector.
    way: One of `_WAYS`.
    route: Value of config.route.name; 'pipelined' for that of `server` with
      config.route.server.pipelined.
    mbit: Base rate of the links, Mbit/s.
    local_steps: Local steps (H).
    fragments: Fragments that are summed in turn (F); each iteration then has
      H / F steps, during which the sum of one runs.
  """

  case: str
  size_bytes: int
  way: str
  route: str
  mbit: int = hosts.BASE_MBIT
  local_steps: int = 1
  fragments: int = 1

  @property
  def lab_hosts(self) -> hosts.Case:
    """The hosts, with their links."""
    return hosts.scaled_cases(self.mbit)[self.case]


def main(argv: list[str] | None = None) -> None:
  """Prints a table per case, size and way."""
  parser = argparse.ArgumentParser(
    prog='bench.routes', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--cases', default=','.join(_CASES))
  parser.add_argument('--routes', default=','.join(_ROUTES))
  parser.add_argument('--ways', default=','.join(_WAYS))
  parser.add_argument('--sizes', default='5,25', help='MB')
  parser.add_argument('--all', action='store_true', help='of all combinations')
  parser.add_argument('--iterations', type=int, default=12, help='at most')
  parser.add_argument('--mbit', type=int, default=hosts.BASE_MBIT)
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--peers', **peers.FLAG)
  flags = parser.parse_args(argv)
  lists = [
    each.split(',')
    for each in (flags.cases, flags.sizes, flags.ways, flags.routes)
  ]
  cases, sizes, ways, routes = lists
  allowed = {*hosts.cases()}, {*_WAYS}, {*_ROUTES}
  if any({*a} - b for a, b in zip((cases, ways, routes), allowed, strict=True)):
    parser.error(
      f'expected cases, ways and routes of {[*map(sorted, allowed)]}'
    )
  out = pathlib.Path(flags.out or tempfile.mkdtemp())
  peers.require_torch(parser, flags.peers)
  print(f'runs are in {out}', flush=True)
  for case, size, way in itertools.product(cases, sizes, ways):
    chosen = [
      each
      for each in routes
      if flags.all or _by_default(each, way, first=size == sizes[0])
    ]
    size_bytes = round(float(size) * 1e6)
    runs = [Run(case, size_bytes, way, each, flags.mbit) for each in chosen]
    if runs:
      beside = flags.peers if flags.all or size == sizes[0] else None
      print_case(runs, out, flags.iterations, beside)


def print_case(
  runs: Sequence[Run], out: pathlib.Path, iterations: int, python: str | None
) -> None:
  """Prints the times of runs that differ only in their routes.

  Args:
    runs: One or more runs.
    out: Folder of all runs.
    iterations: Largest number of iterations; fewer if they are long.
    python: Path of an interpreter that has torch, for a row of its DDP; None
      to omit the row.
  """
  case, size_bytes, way, *_ = runs[0]
  lab_hosts = runs[0].lab_hosts
  optimum_s = size_bytes / float(pack(lab_hosts.cluster).rate_Bps or 1)
  compute_s = _ALONE_S if way == 'alone' else optimum_s
  head = ('route', 'real s', 'virtual s', 'real/virtual', 'exposed/optimum')
  rows, iteration_of = [head], {}
  for run in runs:
    virtual_s = simulate(run, compute_s)
    about_s = virtual_s or 4 * optimum_s
    count = max(_FEWEST, min(iterations, math.ceil(_LIMIT_S / about_s)))
    real_s = iteration_of[run.route] = measure(out, run, compute_s, count)
    cells = [f'{real_s:.4f}', '-', '-', '']
    if virtual_s:
      cells[1:3] = [f'{virtual_s:.4f}', f'{real_s / virtual_s:.3f}']
    cells[3] = f'{(real_s - compute_s) / optimum_s:.3f}'
    rows.append((run.route, *cells))
  if python:
    parts = layers.equal_sizes(
      size_bytes, default.get_config().route.bucket_bytes
    )
    model = peers.sleeping_model(layers.in_proportion(parts), compute_s)
    (step,) = peers.run(
      python, lab_hosts, [peers.step_job(model, steps=_FEWEST)]
    )
    exposed = f'{(step.step_s - compute_s) / optimum_s:.3f}'
    rows.append(('ddp', f'{step.step_s:.4f}', '-', '-', exposed))
  best = min(iteration_of, key=iteration_of.__getitem__)
  if 'auto' in iteration_of and len(iteration_of) > 1:
    ratio = iteration_of['auto'] / iteration_of[best]
    chosen = f'\n\nauto takes {ratio:.3f} of the best, {best}'
  else:
    chosen = ''
  print(
    f'\n{case}, {size_bytes / 1e6:g} MB, computing {compute_s:.3f} s, optimum '
    f'{optimum_s:.3f} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}{chosen}',
    flush=True,
  )


def measure(
  out: pathlib.Path, run: Run, compute_s: float, iterations: int
) -> float:
  """Returns the seconds of an iteration of a real run in a lab.

  Args:
    out: Folder of all runs.
    run: Route, case and size.
    compute_s: Seconds of computation in an iteration.
    iterations: Number of iterations.

  Raises:
    RuntimeError: If the run fails.
  """
  lab_hosts = run.lab_hosts
  count = len(lab_hosts.up)
  name = f'{run.case}_{run.size_bytes}_{run.way}_{run.route}'
  name += f'_{run.mbit}_{run.local_steps}_{run.fragments}'
  out.mkdir(parents=True, exist_ok=True)
  links, lab = out / f'{run.case}.json', out / f'{run.case}_lab.json'
  write_links(links, lab_hosts.cluster)
  lab.write_text(json.dumps(lab_hosts.links))
  fields = {
    **_timing_fields(run, compute_s, iterations, count),
    'cluster.speed.injected': True,
    'cluster.timeout_s': 60.0,
  }
  if run.route in _WITH_SERVERS:
    fields['route.server.mirror_s'] = 0.0
  if run.route in _WITH_LINKS:
    fields[f'route.{run.route}.cluster'] = str(links)
  path = run_in_lab(out / name, fields, lab_hosts, lab, workers=count)
  return iteration_s(path)


def run_in_lab(
  path: pathlib.Path,
  fields: dict[str, Any],
  lab_hosts: hosts.Case,
  lab: pathlib.Path,
  *,
  workers: int,
) -> pathlib.Path:
  """Executes an allreduce run, one worker per host; returns its folder.

  Args:
    path: Folder of the run.
    fields: Fields of its config.
    lab_hosts: Hosts of the lab.
    lab: File of their links.
    workers: Number of workers.
  """
  return clusters.run(
    path,
    'configs/default.py',
    fields,
    workers=workers,
    servers=0,
    dedicated=False,
    link=f'{max(lab_hosts.up)}mbit',
    options=[f'--links={lab}'],
  )


def simulate(run: Run, compute_s: float) -> float | None:
  """Returns the seconds of an iteration under the virtual clock.

  Args:
    run: Route, case and size.
    compute_s: Seconds of computation in an iteration.

  Returns:
    The seconds; None for servers on hosts whose pairs have rates, which the
    virtual network of servers does not have.
  """
  lab_hosts = run.lab_hosts
  count = len(lab_hosts.up)
  fields = _timing_fields(run, compute_s, _FEWEST, count)
  fields['cluster.workers'] = count
  with tempfile.TemporaryDirectory() as folder:
    if run.route in _WITH_SERVERS:
      if lab_hosts.pairs:
        return None
      fields |= {
        'route.server.servers': count,
        'cluster.network.servers_in_workers': True,
        **{
          f'cluster.network.worker_{way}_Bps': tuple(
            mbit * 1e6 / 8 * float(USABLE) for mbit in getattr(lab_hosts, way)
          )
          for way in ('up', 'down')
        },
      }
    else:
      links = pathlib.Path(folder, 'links.json')
      write_links(links, lab_hosts.cluster)
      fields['cluster.links'] = str(links)
      if run.route in _WITH_LINKS:
        fields[f'route.{run.route}.cluster'] = str(links)
    config = default.get_config()
    config.update_from_flattened_dict(fields)
    with scratch.execute(config) as simulated:
      return iteration_s(simulated.folder)


def _by_default(route: str, way: str, *, first: bool) -> bool:
  """Returns whether a route is run without --all."""
  if way == 'beside':
    return first and route in ('forest', 'ring')
  return first or route == 'forest'


def _timing_fields(
  run: Run, compute_s: float, iterations: int, workers: int
) -> dict[str, Any]:
  """Returns the fields of a run that moves bytes but trains no model."""
  steps = run.local_steps // run.fragments
  batch = default.get_config().batching.worker_batch * steps
  return {
    'epochs': 1.0,
    'eval_every': 1,
    'log_every': 1000,
    'route.name': 'server' if run.route in _WITH_SERVERS else run.route,
    'route.server.pipelined': run.route == 'pipelined',
    'model.name': 'none',
    'model.none.size_bytes': run.size_bytes,
    'model.none.num_train': iterations * workers * batch,
    'batching.local_steps': run.local_steps,
    'route.fragments': run.fragments,
    'route.overlap_steps': steps if run.fragments > 1 else 0,
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': compute_s,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_s': math.inf,
  }


def write_links(path: pathlib.Path, nominal: Cluster) -> None:
  """Writes a file of links with the rates that frame headers leave.

  Args:
    path: New file.
    nominal: Cluster with nominal rates.
  """
  links = [Link(src, dst, GBps * USABLE) for src, dst, GBps in nominal.links]
  usable = Cluster(nominal.nodes, nominal.workers, tuple(links))
  path.write_text(json.dumps(topologies.to_json(usable)))


def iteration_s(path: pathlib.Path) -> float:
  """Returns the median seconds of a run's iterations after the first ones."""
  rows = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
  times = [row['time'] for row in rows if row['kind'] == 'barrier']
  took_s = [b - a for a, b in itertools.pairwise(times)]
  return statistics.median(took_s[_SKIPPED - 1 :])


if __name__ == '__main__':
  main()
