"""Exact rates of packed forests relative to those of other schemes."""

from collections.abc import Mapping

import topology
from bench import forest as bench
from claims.measures import answering
from topology.clusters import randomized
from topology.clusters.builders import build_cluster

NETWORKS = {
  'mesh': 'full_mesh(8, 25)',
  'star': f'star({[25] * 16})',
  'tree': 'tree([4, 4], [25, 25])',
}
_RATIOS = {'quick': (1, 10, 100), 'full': (1, 3, 10, 30, 100)}
_ORDERED = ('naive_ring', 'naive_ring_both_ways', 'single_server')


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns a record per network and ratio of its fastest to slowest link."""
  return [
    {'network': name, 'ratio': ratio, **_rates(spec, ratio, seed + 1)}
    for name, spec in NETWORKS.items()
    for ratio in _RATIOS[scale]
  ]


def _rates(spec: str, ratio: int, seed: int) -> Mapping[str, object]:
  """Returns the forest's rate over that of each scheme, and its properties."""
  cluster = randomized.spread(build_cluster(spec), ratio, seed)
  best = topology.pack(cluster)
  over = {k: v for k, v in bench.ratios(cluster, best).items() if v is not None}
  phases = topology.pack(cluster, overlap=False)
  strong = [v for k, v in over.items() if k not in (*_ORDERED, 'equal_shards')]
  return {
    **over,
    'most': max(over.values()),
    'least_of_strong': min(strong),
    'over_phases': float(best.rate_Bps or 0) / float(phases.rate_Bps or 1),
    'of_bound': 1 - float(best.gap),
    'roots': len({tree.root for tree in best.trees}),
  }


if __name__ == '__main__':
  answering.print_records(measure)
