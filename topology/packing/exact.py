"""Forests that reach their bound exactly, for small and medium clusters.

The optimum of the bound gives the capacity of each link for the trees of each
direction.  Switches are replaced by the paths through them, and spanning
out-trees are packed into the result.  Trees towards their roots are out-trees
of the reversed cluster.
"""

from collections.abc import Sequence
from fractions import Fraction

from topology.algorithms import arborescences, splitting, stopping, weighted
from topology.bounds.allgather import optimum as allgather_optimum
from topology.bounds.allreduce import optimum as allreduce_optimum
from topology.clusters.cluster import Cluster, Link
from topology.forests.trees import Forest, Hop, Tree, center_tree, reverse_hops

_GB = 10**9
_Hops = tuple[Hop, ...]
_Packed = dict[str, list[tuple[_Hops, Fraction]]]
_Pairs = dict[str, list[tuple[Sequence[Hop], _Hops, Fraction]]]


def allgather(cluster: Cluster, stop: stopping.Stop = stopping.never) -> Forest:
  """Returns the best allgather of two or more workers.

  The costs are given at `bounds.allgather.optimum`, `splitting.bypass` and
  `arborescences.pack`.  Raises `Stopped` once `stop` returns True.
  """
  best = allgather_optimum(cluster, stop)
  count = len(cluster.workers)
  packed = _pack_trees(cluster, best.links, [1 / best.inv_x] * count, stop)
  rate = count / best.inv_x
  pairs: _Pairs = {
    root: [((), hops, weight) for hops, weight in packed[root]]
    for root in packed
  }
  trees = _trees(cluster, pairs, rate)
  return Forest('allgather', trees, rate * _GB, rate * _GB, best.cut)


def allreduce(
  cluster: Cluster,
  stop: stopping.Stop = stopping.never,
  *,
  overlap: bool = True,
) -> Forest:
  """Returns the best allreduce of two or more workers.

  The costs are those of `allgather`.  Without `overlap`, all sums go up before
  results go down; the bound is still that of both at the same time.
  """
  bound = best = allreduce_optimum(cluster, stop=stop)
  if not overlap:
    best = allreduce_optimum(cluster, overlap=False, stop=stop)
  down = _pack_trees(cluster, best.down, best.root_GBps, stop)
  back = tuple(Link(b, a, c) for a, b, c in best.up)
  # As in all symmetric clusters.  In phases the root says when a hop is used.
  if overlap and set(back) == set(best.down):
    pairs = _both_ways(down)
  else:
    up = _pack_trees(cluster, back, best.root_GBps, stop)
    pairs = {
      root: [
        (reverse_hops(above), below, weight)
        for (above, below), weight in weighted.align(up[root], down[root])
      ]
      for root in down
    }
  rate, most = best.rate_GBps, bound.rate_GBps
  trees = _trees(cluster, pairs, rate)
  return Forest('allreduce', trees, rate * _GB, most * _GB, bound.prices)


def _trees(
  cluster: Cluster, pairs: _Pairs, rate_GBps: Fraction
) -> tuple[Tree, ...]:
  return tuple(
    Tree(root, weight * _GB, weight / rate_GBps, list(up), list(down))
    for root in cluster.workers
    for up, down, weight in pairs.get(root, [])
  )


def _both_ways(packed: _Packed) -> _Pairs:
  """Returns trees with their reversal, and the root in the middle."""
  # Whichever worker is the root, each hop is used once in each direction; with
  # the root in the middle of a longest path, the depth is smallest.
  weight_of: dict[tuple[str, _Hops], Fraction] = {}
  for trees in packed.values():
    for hops, weight in trees:
      root, ways = center_tree([(hop[0], hop[-1]) for hop in hops])
      down = tuple(hops[i][::-1] if back else hops[i] for i, back in ways)
      weight_of[root, down] = weight_of.get((root, down), 0) + weight
  pairs: _Pairs = {}
  for (root, hops), weight in weight_of.items():
    pairs.setdefault(root, []).append((reverse_hops(hops), hops, weight))
  return pairs


def _pack_trees(
  cluster: Cluster,
  links: Sequence[Link],
  rates: Sequence[Fraction],
  stop: stopping.Stop,
) -> _Packed:
  """Returns, per root, out-trees as hops with their GB/s, of sum `rates`."""
  position, workers = cluster.position, cluster.graph.workers
  scale = weighted.scale(*(c for _, _, c in links), *rates)
  units = [int(rate * scale) for rate in rates]
  exact = [(position[a], position[b], int(c * scale)) for a, b, c in links]
  paths = splitting.bypass(len(position), workers, exact, units, stop)
  place = {worker: i for i, worker in enumerate(workers)}
  bypassed = [
    (place[a], place[b], sum(count for _, count in paths[a, b]))
    for a, b in sorted(paths)
  ]
  trees: _Packed = {}
  for branching in arborescences.pack(len(workers), bypassed, units, stop):
    # In as many copies as it takes to have one path for each hop.
    taken = (
      splitting.take(paths, (workers[a], workers[b]), branching.units)
      for a, b in branching.hops
    )
    for copy, count in weighted.align(*taken):
      hops = tuple(tuple(cluster.nodes[v] for v in path) for path in copy)
      root = cluster.workers[branching.root]
      trees.setdefault(root, []).append((hops, count / scale))
  return trees
