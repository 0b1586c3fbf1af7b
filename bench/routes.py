"""Whole runs by route, on real hosts of a lab and under the virtual clock.

  python -m bench.routes [--cases=equal4,slow4,groups6] [--sizes=5,25]
    [--routes=forest,ring,auto,native,server] [--ways=alone,beside] [--all]
    [--iterations=12] [--mbit=200] [--out=DIR] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Each run is a real one of
tools.launch that moves real bytes of no model; routes and the virtual clock are
told the links in one file, of what frames and their headers leave of nominal
rates.  Seconds of an iteration are medians, but for the first two.

alone: every iteration computes 10 ms, so that communication counts alone.
beside: it computes as long as the optimum communicates, and what is ready
travels meanwhile.  The optimum is the time of the bytes at the rate of the
packed forest on nominal links; exposed is what an iteration takes beside
computing.  Virtual hosts of servers know of no pairs of hosts, so that what
they would take there is not said.

The first size is of all routes alone and of some beside computing, further
sizes of the forest alone, which takes about 4 minutes; --all is of all.

ddp: steps of torch's DDP over gloo beside the first size's (--peers names an
interpreter that has torch, see bench.peers), computing a sleep as well.
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

from bench import clusters, shaped
from bench.peers import running as peers
from cluster.speed import layers
from configs import default
from sweeps import scratch
from topology.clusters import cluster as topologies
from topology.clusters.cluster import Cluster, Link
from topology.packing.pack import pack

_CASES = ('equal4', 'slow4', 'groups6')
_ROUTES = ('forest', 'ring', 'auto', 'native', 'server')
_TOLD = ('forest', 'ring', 'auto')  # Of the links.
_WAYS = ('alone', 'beside')
_ALONE_S = 0.01
LEFT = Fraction('0.957')  # Of a nominal rate, beside frames and their headers.
_SKIPPED = 2  # Iterations.
_FEWEST, _LIMIT_S = 5, 8.0  # Iterations of a run, and about how long they take.


class Run(NamedTuple):
  """Route, case and size of a run.

  Attributes:
    case: The hosts.
    size_bytes: Bytes of the summed vector.
    way: One of `_WAYS`.
    route: Value of config.route.name.
    mbit: Base rate of the links, Mbit/s.
  """

  case: str
  size_bytes: int
  way: str
  route: str
  mbit: int = shaped.BASE_MBIT

  @property
  def hosts(self) -> shaped.Case:
    """The hosts, with their links."""
    return shaped.scaled_cases(self.mbit)[self.case]


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
  parser.add_argument('--mbit', type=int, default=shaped.BASE_MBIT)
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--peers', **peers.FLAG)
  given = parser.parse_args(argv)
  lists = [
    each.split(',')
    for each in (given.cases, given.sizes, given.ways, given.routes)
  ]
  cases, sizes, ways, routes = lists
  known = {*shaped.cases()}, {*_WAYS}, {*_ROUTES}
  if any({*a} - b for a, b in zip((cases, ways, routes), known, strict=True)):
    parser.error(f'expected cases, ways and routes of {[*map(sorted, known)]}')
  out = pathlib.Path(given.out or tempfile.mkdtemp())
  peers.require_torch(parser, given.peers)
  print(f'runs are in {out}', flush=True)
  for case, size, way in itertools.product(cases, sizes, ways):
    chosen = [
      each
      for each in routes
      if given.all or _by_default(each, way, first=size == sizes[0])
    ]
    size_bytes = round(float(size) * 1e6)
    runs = [Run(case, size_bytes, way, each, given.mbit) for each in chosen]
    if runs:
      beside = given.peers if given.all or size == sizes[0] else None
      print_case(runs, out, given.iterations, beside)


def print_case(
  runs: Sequence[Run], out: pathlib.Path, iterations: int, python: str | None
) -> None:
  """Prints what runs take that differ in their routes alone.

  Args:
    runs: One or more.
    out: Folder of all runs.
    iterations: Largest number of iterations; fewer if they are long.
    python: An interpreter that has torch, for its DDP beside them.
  """
  case, size_bytes, way, *_ = runs[0]
  hosts = runs[0].hosts
  optimum_s = size_bytes / float(pack(hosts.cluster).rate_Bps or 1)
  compute_s = _ALONE_S if way == 'alone' else optimum_s
  head = ('route', 'real s', 'virtual s', 'real/virtual', 'exposed/optimum')
  rows, taken_s = [head], {}
  for run in runs:
    virtual_s = virtual(run, compute_s)
    about_s = virtual_s or 4 * optimum_s
    count = max(_FEWEST, min(iterations, math.ceil(_LIMIT_S / about_s)))
    real_s = taken_s[run.route] = real(out, run, compute_s, count)
    cells = [f'{real_s:.4f}', '-', '-', '']
    if virtual_s:
      cells[1:3] = [f'{virtual_s:.4f}', f'{real_s / virtual_s:.3f}']
    cells[3] = f'{(real_s - compute_s) / optimum_s:.3f}'
    rows.append((run.route, *cells))
  if python:
    parts = layers.even(size_bytes, default.get_config().route.bucket_bytes)
    model = peers.slept(layers.in_proportion(parts), compute_s)
    (step,) = peers.run(python, hosts, [peers.step_of(model, steps=_FEWEST)])
    exposed = f'{(step.step_s - compute_s) / optimum_s:.3f}'
    rows.append(('ddp', f'{step.step_s:.4f}', '-', '-', exposed))
  best = min(taken_s, key=taken_s.__getitem__)
  if 'auto' in taken_s and len(taken_s) > 1:
    ratio = taken_s['auto'] / taken_s[best]
    chosen = f'\n\nauto takes {ratio:.3f} of the best, {best}'
  else:
    chosen = ''
  print(
    f'\n{case}, {size_bytes / 1e6:g} MB, computing {compute_s:.3f} s, optimum '
    f'{optimum_s:.3f} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}{chosen}',
    flush=True,
  )


def real(
  out: pathlib.Path, run: Run, compute_s: float, iterations: int
) -> float:
  """Returns the seconds of an iteration on hosts of a lab.

  Args:
    out: Folder of all runs.
    run: Route, case and size.
    compute_s: Seconds of computing in an iteration.
    iterations: Number of iterations.

  Raises:
    RuntimeError: If the run fails.
  """
  hosts = run.hosts
  count = len(hosts.up)
  name = f'{run.case}_{run.size_bytes}_{run.way}_{run.route}'
  out.mkdir(parents=True, exist_ok=True)
  links, lab = out / f'{run.case}.json', out / f'{run.case}_lab.json'
  write_links(links, hosts.cluster)
  lab.write_text(json.dumps(hosts.links))
  fields = {
    **_moving(run, compute_s, iterations, count),
    'cluster.speed.injected': True,
    'cluster.timeout_s': 60.0,
  }
  if run.route in _TOLD:
    fields[f'route.{run.route}.cluster'] = str(links)
  path = in_lab(out / name, fields, hosts, lab, workers=count)
  return iteration_s(path)


def in_lab(
  path: pathlib.Path,
  fields: dict[str, Any],
  hosts: shaped.Case,
  lab: pathlib.Path,
  *,
  workers: int,
) -> pathlib.Path:
  """Runs workers that sum among themselves, one to a host; returns its folder.

  Args:
    path: Folder of the run.
    fields: Fields of its config.
    hosts: Hosts of the lab.
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
    link=f'{max(hosts.up)}mbit',
    options=[f'--links={lab}'],
  )


def virtual(run: Run, compute_s: float) -> float | None:
  """Returns the seconds of an iteration under the virtual clock.

  None if there are links that it knows nothing of; arguments are those of
  `real`.
  """
  hosts = run.hosts
  count = len(hosts.up)
  fields = _moving(run, compute_s, _FEWEST, count)
  fields['cluster.workers'] = count
  with tempfile.TemporaryDirectory() as folder:
    if run.route == 'server':
      if hosts.pairs:
        return None
      fields |= {
        'route.server.servers': count,
        'cluster.network.servers_in_workers': True,
        **{
          f'cluster.network.worker_{way}_Bps': tuple(
            mbit * 1e6 / 8 * float(LEFT) for mbit in getattr(hosts, way)
          )
          for way in ('up', 'down')
        },
      }
    else:
      links = pathlib.Path(folder, 'links.json')
      write_links(links, hosts.cluster)
      fields['cluster.links'] = str(links)
      if run.route in _TOLD:
        fields[f'route.{run.route}.cluster'] = str(links)
    config = default.get_config()
    config.update_from_flattened_dict(fields)
    with scratch.trained(config) as simulated:
      return iteration_s(simulated.folder)


def _by_default(route: str, way: str, *, first: bool) -> bool:
  """Returns whether a route is run without --all."""
  if way == 'beside':
    return first and route in ('forest', 'ring')
  return first or route == 'forest'


def _moving(
  run: Run, compute_s: float, iterations: int, workers: int
) -> dict[str, Any]:
  """Returns what makes a config one that only moves bytes."""
  examples = iterations * workers * default.get_config().batching.worker_batch
  return {
    'epochs': 1.0,
    'eval_every': 1,
    'log_every': 1000,
    'route.name': run.route,
    'model.name': 'none',
    'model.none.size_bytes': run.size_bytes,
    'model.none.num_train': examples,
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': compute_s,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_s': math.inf,
  }


def write_links(path: pathlib.Path, nominal: Cluster) -> None:
  """Writes links with what frames leave of them."""
  links = [Link(src, dst, GBps * LEFT) for src, dst, GBps in nominal.links]
  left = Cluster(nominal.nodes, nominal.workers, tuple(links))
  path.write_text(json.dumps(topologies.to_json(left)))


def iteration_s(path: pathlib.Path) -> float:
  """Returns the median of a run's iterations, but for the first ones."""
  rows = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
  times = [row['time'] for row in rows if row['kind'] == 'barrier']
  took_s = [b - a for a, b in itertools.pairwise(times)]
  return statistics.median(took_s[_SKIPPED - 1 :])


if __name__ == '__main__':
  main()
