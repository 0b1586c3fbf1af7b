"""Simulation of the examples per second of a combination on a cluster."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import analysis
import train
from configs import default, sections
from configs import timing as timing_fields
from outputs import console
from sweeps import scratch
from tuning.clusters import ClusterDescription
from tuning.combinations import BSP, Combination

_FLOWS = 5_000  # Transfers of a simulation, to bound its time.
_LEAST, _MOST = 8, 40  # Iterations of each worker.
_FRAGMENTS = (2, 4, 8)
_SETTLED = 0.4  # Share of a run's pushes that is left out at its start.


class Pace(NamedTuple):
  """Pace of a simulated run after its start phase.

  Attributes:
    examples_per_s: Examples per second of all workers.
    staleness: Mean staleness, updates.
    compute_s: Seconds of computing in an iteration, mean over workers.
  """

  examples_per_s: float
  staleness: float
  compute_s: float


class Workload(NamedTuple):
  """Model size and batch of a training.

  Attributes:
    size_bytes: Bytes of the parameters in float32.
    batch: Examples of a host's iteration, or of one of its local steps.
    local_steps: Value of config.batching.local_steps.
  """

  size_bytes: int
  batch: int
  local_steps: int = 1


def possible(
  cluster: ClusterDescription,
  workload: Workload,
  combinations: Iterable[Combination],
) -> list[Combination]:
  """Returns the combinations for which a cluster has links.

  With local steps they are those of BSP with equal batches, the only ones with
  fragments, with and without fragments.
  """
  found = [
    each
    for each in combinations
    if cluster.has_server_links or each.route != 'server'
  ]
  if workload.local_steps == 1:
    return found
  counts = [n for n in _FRAGMENTS if workload.local_steps % n == 0]
  return [
    each._replace(local_steps=workload.local_steps, fragments=count)
    for each in found
    if (each.sync, each.batching) == ('bsp', 'fixed')
    for count in ([1] if each.route == 'server' else [1, *counts])
  ]


def with_islands(
  islands: ClusterDescription | None, combinations: list[Combination]
) -> list[Combination]:
  """Returns the combinations of BSP over routes of hosts, with islands.

  Args:
    islands: Cluster of islands; None for none.
    combinations: Combinations with a host as each worker.
  """
  if islands is None:
    return []
  return [
    each._replace(hosts=islands.hosts_per_worker)
    for each in combinations
    if (each.sync, each.batching, each.fragments) == ('bsp', 'fixed', 1)
    and each.route != 'server'
  ]


def check(
  cluster: ClusterDescription,
  workload: Workload,
  combinations: list[Combination],
) -> None:
  """Checks a cluster for routes with servers and for those without.

  Raises:
    ValueError: If a value is out of its range; names the field.
  """
  for uses_servers in (True, False):
    same = [c for c in combinations if (c.route == 'server') == uses_servers]
    plain = sorted(same, key=lambda c: (c.sync != 'bsp', c.route != 'ring'))
    if plain:
      with console.hidden():
        train.check(_config(cluster, workload, plain[0]))


def simulate_pace(
  cluster: ClusterDescription, workload: Workload, combination: Combination
) -> Pace:
  """Returns the pace of a combination on a cluster."""
  return _simulate(_config(cluster, workload, combination))


def simulate_config(
  cluster: ClusterDescription, workload: Workload, config: ConfigDict
) -> Pace:
  """Returns the pace of a config's scheme, batching, wire and route.

  Of the config only sync, batching, wire, route, seed and data.ahead count.

  Args:
    cluster: Cluster that replaces the config's.
    workload: Bytes and examples of the model.
    config: Config of a virtual run.
  """
  timing = default.get_config()
  micro_batch = timing.batching.micro_batch
  for section in ('sync', 'batching', 'wire', 'route'):
    timing[section] = config[section]
  timing = timing.copy_and_resolve_references()  # Leaves `config` unchanged.
  timing.batching.micro_batch = micro_batch
  timing.seed, timing.data.ahead = config.seed, config.data.ahead
  cluster.apply(timing, uses_servers=config.route.name == 'server')
  return _simulate(_set_timing(timing, cluster, workload))


def simulate_unlimited(cluster: ClusterDescription, workload: Workload) -> Pace:
  """Returns the pace of BSP over links of infinite rate."""
  plain = BSP._replace(local_steps=workload.local_steps)
  config = _config(cluster, workload, plain)
  network = config.cluster.network
  network.servers_in_workers = False
  config.route.server.servers = 1
  for host in ('worker', 'server'):
    network[f'{host}_up_Bps'] = network[f'{host}_down_Bps'] = (math.inf,)
    network[f'{host}_latency_s'] = (0.0,)
  return _simulate(config)


def flags(cluster: ClusterDescription, combination: Combination) -> list[str]:
  """Returns the flags of main.py for a combination."""
  values = fields(cluster, combination)
  if combination.hosts > 1:
    values['cluster.workers'] = cluster.workers // combination.hosts
    values['cluster.hosts_per_worker'] = combination.hosts
  return [f'--config.{field}={value}' for field, value in values.items()]


def fields(
  cluster: ClusterDescription, combination: Combination
) -> dict[str, Any]:
  """Returns the fields of a config, by dotted name, for a combination."""
  values: dict[str, Any] = {'sync.name': combination.sync}
  values['batching.name'] = combination.batching
  if combination.batching == 'lb_bsp':
    values['batching.lb_bsp.predictor.name'] = 'ema'
  values['wire.dense.dtype'] = combination.dtype
  values['route.name'] = combination.route
  if combination.local_steps > 1:
    values['batching.local_steps'] = combination.local_steps
  if combination.fragments > 1:
    values['route.fragments'] = combination.fragments
    steps = combination.local_steps // combination.fragments
    values['route.overlap_steps'] = steps
  if combination.route == 'server':
    values['route.server.servers'] = cluster.servers
    values['route.server.pipelined'] = combination.pipelined
    inside = not cluster.has_dedicated_servers
    values['cluster.network.servers_in_workers'] = inside
  return values


def _config(
  cluster: ClusterDescription, workload: Workload, combination: Combination
) -> ConfigDict:
  """Returns the config of a timing-only run with the fewest outputs."""
  config = default.get_config()
  uses_servers = combination.route == 'server'
  cluster.apply(config, uses_servers=uses_servers)
  config.update_from_flattened_dict(fields(cluster, combination))
  if cluster.hosts_per_worker > 1:  # XLA sums gradients as a whole.
    config.route.overlap = False
  return _set_timing(config, cluster, workload)


def _set_timing(
  config: ConfigDict, cluster: ClusterDescription, workload: Workload
) -> ConfigDict:
  """Returns a config after setting the workload, length and outputs."""
  batch = workload.batch * cluster.hosts_per_worker
  flows = cluster.workers * (cluster.servers if cluster.has_server_links else 1)
  iterations = max(_LEAST, min(_MOST, _FLOWS // flows))
  config.update_from_flattened_dict(
    {
      **timing_fields.fields(
        workers=cluster.workers,
        iterations=iterations * sections.iteration_steps(config),
        size_bytes=workload.size_bytes,
        batch=batch,
      ),
      **timing_fields.FEW_OUTPUTS,
      'outputs.events': True,
      'batching.local_steps': config.batching.local_steps,
    }
  )
  return config


def _simulate(config: ConfigDict) -> Pace:
  with scratch.execute(config) as run:
    summary = run.summary
    pace = analysis.pace(analysis.read(run.folder), skipped=_SETTLED)
  compute_s = summary['worker_seconds']['compute'] / summary['iterations']
  return Pace(pace.examples_per_s, summary['staleness_mean'], compute_s)
