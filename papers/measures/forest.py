"""Exact rates of packed forests relative to those of other schemes."""

import itertools
from collections.abc import Mapping

import numpy as np
from scipy import optimize

import topology
from bench import forest as bench
from configs.checks import require
from topology.clusters import randomized
from topology.clusters.builders import build_cluster
from topology.clusters.cluster import Cluster

NETWORKS = {
  'mesh': 'full_mesh(8, 25)',
  'star': f'star({[25] * 16})',
  'tree': 'tree([4, 4], [25, 25])',
}
_RATIOS = {'quick': (1, 10, 100), 'full': (1, 3, 10, 30, 100)}
# Schemes that were added after the rules of the entry had been written.
_LATER = ('load_balanced_shards',)
_ORDERED = ('naive_ring', 'naive_ring_both_ways', 'single_server')


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns a record per network and ratio of its fastest to slowest link.

  In an asymmetric mesh each direction of a link has a capacity of its own.
  """
  records: list[Mapping[str, object]] = [
    {'network': name, 'ratio': ratio, **_rates(spec, ratio, seed + 1)}
    for name, spec in NETWORKS.items()
    for ratio in _RATIOS[scale]
  ]
  for ratio in _RATIOS[scale]:
    mesh = build_cluster(NETWORKS['mesh'])
    cluster = randomized.spread(mesh, ratio, seed + 1, symmetric=False)
    rate_Bps = float(topology.pack(cluster).rate_Bps or 0)
    over = rate_Bps / max(find_rates_of_roots(cluster))
    fields = {'network': 'asymmetric mesh', 'ratio': ratio}
    records.append({**fields, 'over_one_root': over})
  return records


def find_rates_of_roots(cluster: Cluster) -> list[float]:
  """Returns the largest allreduce rate of trees with one root, by root.

  Trees towards the root can have a rate if and only if each worker can send a
  flow of this rate to the root; the same holds for trees from the root
  (Edmonds, 'Edge-disjoint branchings', 1973).  A linear program divides the
  capacity of each link between the two.

  Args:
    cluster: Workers that are linked with each other, without switches.

  Returns:
    Bytes per second for each root, in the order of the workers.

  Raises:
    ValueError: If the cluster has switches.
  """
  switches = [node for node in cluster.nodes if node not in cluster.workers]
  require(not switches, 'cluster', 'no switches', switches)
  return [_find_rate_of_root(cluster, root) for root in cluster.workers]


def _find_rate_of_root(cluster: Cluster, root: str) -> float:
  """Returns the rate of the best trees that all have this root."""
  workers, links = cluster.workers, cluster.links
  # Variables: the rate, each link's share of trees to the root, and for each
  # worker its flow to the root and its flow from the root over each link.
  others = [worker for worker in workers if worker != root]
  count = len(links)
  size = 1 + count + 2 * len(others) * count
  capacity = np.array([float(link.GBps) for link in links])
  at_most, at_most_values, equal = [], [], []
  for place, (worker, is_up) in enumerate(itertools.product(others, (1, 0))):
    first = 1 + count + place * count
    for node in workers:
      if node == root:
        continue  # What leaves all others arrives at the root.
      row = np.zeros(size)
      for n, link in enumerate(links):
        row[first + n] = (link.src == node) - (link.dst == node)
      row[0] = (-1 if is_up else 1) * (node == worker)
      equal.append(row)
    for n in range(count):
      row = np.zeros(size)
      row[first + n] = 1
      row[1 + n] = -1 if is_up else 1
      at_most.append(row)
      at_most_values.append(0 if is_up else capacity[n])
  bounds = [(0, None), *((0, c) for c in capacity)]
  bounds += [(0, None)] * (size - len(bounds))
  found = optimize.linprog(
    -np.eye(1, size)[0],
    A_ub=np.array(at_most),
    b_ub=np.array(at_most_values),
    A_eq=np.array(equal),
    b_eq=np.zeros(len(equal)),
    bounds=bounds,
  )
  require(found.status == 0, 'linear program', 'an optimum', found.message)
  return float(found.x[0]) * 1e9


def _rates(spec: str, ratio: int, seed: int) -> Mapping[str, object]:
  """Returns the forest's rate over that of each scheme, and its properties."""
  cluster = randomized.spread(build_cluster(spec), ratio, seed)
  best = topology.pack(cluster)
  over = {
    name: ratio
    for name, ratio in bench.ratios(cluster, best).items()
    if ratio is not None and name not in _LATER
  }
  phases = topology.pack(cluster, overlap=False)
  strong = [v for k, v in over.items() if k not in (*_ORDERED, 'equal_shards')]
  return {
    **over,
    'most': max(over.values()),
    'least_of_strong': min(strong),
    'over_phases': float(best.rate_Bps or 0) / float(phases.rate_Bps or 1),
    'of_bound': 1 - float(best.gap),
  }
