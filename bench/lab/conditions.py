"""Conditions of a lab, and their times on virtual links.

A condition is one measurement: its processes, and the fields that tell them
what to do.  `bench.lab.running` measures conditions on real links.
"""

import importlib
import json
import math
import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import ml_collections
import numpy as np

import analysis
from bench.hosts import Case
from configs import default, timing
from sweeps import scratch
from topology.clusters import cluster as topologies
from topology.clusters import pruned
from topology.clusters.cluster import Cluster, Link

USABLE = Fraction('0.957')  # Share of a nominal rate left by frame headers.
# Of a push or a pull, beside its bytes, as bench.empty measures it.
LATENCY_S = 1e-3
RUN, SUM, TORCH = 'run', 'sum', 'torch'  # Systems.
_FIRST = 8  # Iterations of the prediction that sets the length of a run.
_LEAST, _MOST = 16, 80  # Iterations of a run whose length is chosen.
_SEEDS = 5  # Of a prediction with servers.
# Of plain TCP transfers in a lab: see docs/benchmarks.md.
_SHARE_SIGMA, _BURST_BYTES = 0.6, 60e3


class Lab(NamedTuple):
  """Hosts and their links.

  Attributes:
    name: Name of the lab.
    workers: Hosts of workers, and links among them.
    servers: Number of further hosts, for servers.
    server_mbit: Rate of each of their links, both ways, Mbit/s.
  """

  name: str
  workers: Case
  servers: int = 0
  server_mbit: int = 0

  @property
  def hosts(self) -> Case:
    """All hosts, those of servers first."""
    workers, servers = self.workers, self.servers
    rates = [self.server_mbit] * servers
    return workers._replace(
      up=[*rates, *workers.up],
      down=[*rates, *workers.down],
      pairs={
        (a + servers, b + servers): r for (a, b), r in workers.pairs.items()
      },
      groups=[
        (tuple(n + servers for n in group), r) for group, r in workers.groups
      ],
    )


class Condition(NamedTuple):
  """Work of the processes of a lab, without the rates of its links.

  Attributes:
    name: Name of the condition and of its folder.
    workers: Number of workers, on the first of the lab's hosts of workers.
    servers: Number of servers; 0 for a route among the workers.
    dedicated: True if servers have hosts of their own.
    fields: Values of config fields, by dotted name.  Arguments of `sums.run` if
      `system` is SUM, and a job of `torch_rank` if it is TORCH.
    iterations: Iterations of each worker.
    system: RUN for a run of this project, SUM for its executors alone, TORCH
      for PyTorch.
    hosts_per_worker: Number of hosts of each worker, an island if several.
    config: Module in configs/ of the config that `fields` change.
  """

  name: str
  workers: int
  servers: int
  dedicated: bool
  fields: Mapping[str, Any]
  iterations: int = 0
  system: str = RUN
  hosts_per_worker: int = 1
  config: str = 'default'


class Times(NamedTuple):
  """Seconds of a run's iterations.

  Attributes:
    mean_s: Mean seconds of an iteration: see `analysis.pace`.
    median_s: Median seconds of these iterations; None without any.
    compute_s: Median seconds of computing of the slowest worker.
    late_compilations: Number of compilations after the start.
  """

  mean_s: float
  median_s: float | None = None
  compute_s: float = 0.0
  late_compilations: int = 0


def choose_iterations(lab: Lab, condition: Condition, seconds: float) -> int:
  """Returns the number of iterations of a run that takes about `seconds`.

  It is 16 to 80, by the times under the virtual clock.
  """
  first = condition._replace(iterations=_FIRST)
  predicted_s = _predict_once(lab, first).mean_s
  return max(_LEAST, min(_MOST, math.ceil(seconds / predicted_s)))


def predict(
  lab: Lab, condition: Condition, *, latency_s: float = LATENCY_S
) -> Times:
  """Returns the times of a run under the virtual clock.

  With servers these are means over several seeds, as shares of links are
  random: the times of DSSP differ by 10 % and more from seed to seed.

  Args:
    latency_s: Seconds that a push or a pull takes beside its bytes.
  """
  seeds = range(_SEEDS if condition.servers else 1)
  times = [_predict_once(lab, condition, each, latency_s) for each in seeds]
  medians = [each.median_s for each in times if each.median_s is not None]
  return Times(
    statistics.fmean(each.mean_s for each in times),
    statistics.fmean(medians) if medians else None,
  )


def read_times(path: pathlib.Path) -> Times:
  """Returns the times of a run from its folder.

  Args:
    path: Folder of the run.
  """
  run = analysis.read(path)
  pace = analysis.pace(run)
  is_push = run.events['event'] == 'push'
  pushes = run.events.select(is_push & (run.events['time'] > pace.start))
  ends, superstep = np.unique(pushes['time'], return_inverse=True)
  slowest = np.zeros(len(ends))
  np.maximum.at(slowest, superstep, pushes['compute_s'])
  return Times(
    pace.mean_s.value,
    pace.median_s,
    float(np.median(slowest)),
    (run.summary or {}).get('late_compilations', 0),
  )


def base_config(condition: Condition) -> ml_collections.ConfigDict:
  """Returns the config that the fields of a condition change; without links."""
  config = importlib.import_module(f'configs.{condition.config}').get_config()
  config.cluster.network = default.get_config().cluster.network
  return config


def virtual_fields(
  lab: Lab,
  condition: Condition,
  folder: pathlib.Path,
  *,
  latency_s: float = LATENCY_S,
) -> dict[str, Any]:
  """Returns the config fields of a run under the virtual clock.

  Args:
    folder: Folder for a file of links.
    latency_s: Seconds that a push or a pull takes beside its bytes.

  Raises:
    ValueError: If pairs of hosts have rates, which the virtual network of
      servers does not have.
  """
  fields = {
    **_timing_fields(condition),
    'cluster.network.worker_latency_s': (0.0,),
  }
  if not condition.servers:
    links = _write_links(folder, lab, condition)
    return fields | _route_fields(condition, links) | {'cluster.links': links}
  case = _first_hosts(lab.workers, condition.workers)
  if case.pairs:
    raise ValueError(
      f'{condition.name}: expected no rates of pairs of hosts with virtual '
      f'servers, got those of {lab.name}.'
    )
  # A transfer to a server in a worker has the latencies of two workers.
  each_s = latency_s if condition.dedicated else latency_s / 2
  fields['cluster.network.worker_latency_s'] = (each_s,)
  per_mbit = 1e6 / 8 * float(USABLE)
  for way in ('up', 'down'):
    rates = tuple(mbit * per_mbit for mbit in getattr(case, way))
    fields[f'cluster.network.worker_{way}_Bps'] = rates
    if condition.dedicated:
      rate = lab.server_mbit * per_mbit
      fields[f'cluster.network.server_{way}_Bps'] = (rate,)
  if condition.dedicated:
    fields['cluster.network.server_latency_s'] = (0.0,)
  fields['cluster.network.servers_in_workers'] = not condition.dedicated
  fields['cluster.network.share_sigma'] = _SHARE_SIGMA
  fields['cluster.network.burst_bytes'] = _BURST_BYTES
  fields['route.server.servers'] = condition.servers
  return fields


def real_fields(
  lab: Lab, condition: Condition, folder: pathlib.Path
) -> dict[str, Any]:
  """Returns the config fields of a run on real links.

  Args:
    folder: Folder for a file of links.
  """
  fields = {
    **_timing_fields(condition),
    'cluster.runtime': 'distributed',
    'cluster.interface': 'eth0',
    'cluster.timeout_s': 60.0,
  }
  if 'cluster.speed.fixed_s' in condition.fields:
    fields['cluster.speed.injected'] = True
  if condition.servers:
    return fields | {
      'route.server.mirror_s': 0.0,
      'route.server.servers': condition.servers,
      'route.server.dedicated': condition.dedicated,
    }
  return fields | _route_fields(condition, _write_links(folder, lab, condition))


def usable_links(nominal: Cluster) -> dict[str, Any]:
  """Returns a cluster as JSON, with the part of its nominal rates for payload.

  The rest goes to frames and their headers.
  """
  links = [Link(src, dst, GBps * USABLE) for src, dst, GBps in nominal.links]
  usable = Cluster(nominal.nodes, nominal.workers, tuple(links))
  return topologies.to_json(usable)


def _predict_once(
  lab: Lab, condition: Condition, seed: int = 0, latency_s: float = LATENCY_S
) -> Times:
  with tempfile.TemporaryDirectory() as folder:
    fields = virtual_fields(
      lab, condition, pathlib.Path(folder), latency_s=latency_s
    )
    config = base_config(condition)
    config.update_from_flattened_dict(fields | {'seed': seed})
    with scratch.execute(config) as run:
      return read_times(run.folder)


def _first_hosts(case: Case, count: int) -> Case:
  """Returns the first `count` hosts of a case."""
  return Case(
    case.up[:count],
    case.down[:count],
    {ends: mbit for ends, mbit in case.pairs.items() if max(ends) < count},
    case.groups,
  )


def _timing_fields(condition: Condition) -> dict[str, Any]:
  """Returns the fields of a run, by default without a model."""
  steps = condition.fields.get('batching.local_steps', 1)
  batch = condition.fields.get('batching.worker_batch')
  fields = timing.fields(
    workers=condition.workers,
    iterations=condition.iterations,
    size_bytes=condition.fields.get('model.none.size_bytes', 0),
    batch=batch,
    local_steps=steps // condition.fields.get('route.fragments', 1),
  )
  if condition.fields.get('model.name', 'none') != 'none':
    examples = fields.pop('model.none.num_train')
    del fields['model.none.size_bytes']
    if condition.config == 'default':
      fields['data.synthetic.num_train'] = examples
  return {
    **fields,
    'cluster.hosts_per_worker': condition.hosts_per_worker,
    'log_every': 10_000,
    'outputs.timeline': False,
    'outputs.board': False,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    **condition.fields,
  }


def _route_fields(condition: Condition, links: str) -> dict[str, Any]:
  """Returns the field that gives the route its file of links, if it has one."""
  route = condition.fields['route.name']
  has_links = 'cluster' in default.get_config().route[route]
  return {f'route.{route}.cluster': links} if has_links else {}


def _write_links(folder: pathlib.Path, lab: Lab, condition: Condition) -> str:
  """Writes the links among leaders of workers; returns the file's path."""
  count = condition.workers * condition.hosts_per_worker
  nominal = _first_hosts(lab.workers, count).cluster
  if each := condition.hosts_per_worker - 1:
    names = enumerate(nominal.workers)
    followers = [name for place, name in names if place % (each + 1)]
    nominal = pruned.remove(nominal, workers=followers)
  path = folder / f'{condition.name}_links.json'
  path.write_text(json.dumps(usable_links(nominal)))
  return str(path)


def group_by_processes(
  conditions: Sequence[Condition],
) -> list[list[Condition]]:
  """Returns groups of conditions that can have the same processes, in order.

  JAX connects processes with each other only before it computes, so that a
  condition on which XLA sums has processes of its own.
  """
  groups: dict[str, list[Condition]] = {}
  for condition in conditions:
    key = TORCH if condition.system == TORCH else ''
    if uses_xla(condition):
      key = condition.name
    groups.setdefault(key, []).append(condition)
  return [*groups.values()]


def uses_xla(condition: Condition) -> bool:
  """Returns whether XLA sums between the processes of a condition."""
  name = {RUN: 'route.name', SUM: 'scheme'}.get(condition.system, '')
  return (
    condition.fields.get(name) in ('native', 'psum')
    or condition.hosts_per_worker > 1
  )
