"""Schemes that a packed forest is compared with, as forests themselves.

Each function takes a cluster and its packed forest `best`, and returns the
scheme for the same collective, as fast as the links allow, with the bound and
the proof of `best`.  An allreduce goes up and down, an allgather only down and
a reduce-scatter only up, the last two with the same weight for each root.  Hops
are those of `ways.Ways`, through workers where switches do not lead, so that
`verify.check` needs `relays=True`.  A single worker gets `best` itself.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from topology.algorithms import weighted
from topology.baselines import ring_orders
from topology.baselines.ways import Ways, ways_of
from topology.clusters.cluster import Cluster
from topology.forests import trees
from topology.packing import weights
from topology.packing.pack import pack

_EXACT = 64  # Workers up to which phases are packed exactly.
_UNITS = 2**30  # Of the sizes of shards.
_RINGS = 16  # Rotated rings, at most: each has N trees of N hops up and down.


def naive_ring(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns a ring through the workers in the order of the cluster.

  An equal shard per worker travels once around the ring to that worker, and
  once more from it.

  Args:
    best: Packed forest of the cluster, whose collective, bound and proof the
      result has; itself the result for a single worker.
  """
  return _build_rings(cluster, best, [cluster.workers])


def naive_ring_both_ways(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns `naive_ring` with half of each shard in each direction.

  Args:
    best: As of `naive_ring`.
  """
  order = cluster.workers
  return _build_rings(cluster, best, [order, order[::-1]])


def best_ring(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns a ring through the workers in the fastest order.

  The order is the best for up to 8 workers, and for up to 12 where pairs share
  no link; otherwise it comes from a heuristic: see `ring_orders.best_order`.

  Args:
    best: As of `naive_ring`.
  """
  order = ring_orders.best_order(ways_of(cluster), both_ways=False)
  return _build_rings(cluster, best, [order])


def best_ring_both_ways(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns the fastest ring with half of each shard in each direction.

  The order of the workers is the fastest for both directions at once, which can
  differ from that of `best_ring`.

  Args:
    best: As of `naive_ring`.
  """
  order = ring_orders.best_order(ways_of(cluster), both_ways=True)
  return _build_rings(cluster, best, [order, order[::-1]])


def rotated_rings(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns several rings with an equal part of each shard, like those of NCCL.

  Ring k visits the groups of `Ways.groups` one after the other: in group g
  (both counted from 0), it enters at the worker of rank k - g, goes around, and
  leaves at that of rank k - g - 1.  So the rings leave each group at different
  workers, and enter the next one at the rank at which they left: in boxes that
  are joined by rails, on the same rail.  The smallest group's size is the
  number of rings.

  In a single group all of these would be the same ring.  Instead, ring k goes
  from worker i to i + k, for each k below N that has no factor in common with
  N; k = N - 1 is the first ring backwards.

  At most 16 rings are used.  Trees share the hops of their ring: those of 1,024
  workers take 0.8 GB, and a minute, half of it for ways and groups.

  Args:
    best: As of `naive_ring`.
  """
  groups = ways_of(cluster).groups()
  count = len(cluster.workers)
  if len(groups) > 1:
    orders = [
      [w for g, group in enumerate(groups) for w in _rotate(group, k - g)]
      for k in range(min(len(group) for group in groups))
    ]
  else:
    orders = [
      [cluster.workers[i * k % count] for i in range(count)]
      for k in range(1, max(count, 2))
      if math.gcd(k, count) == 1
    ]
  return _build_rings(cluster, best, orders[:_RINGS])


def hierarchical(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns rings inside the groups of `Ways.groups`, and between them.

  BlueConnect (Cho et al., MLSys 2019) on two levels: a reduce-scatter around
  each group, an allreduce around the workers of equal rank in all groups, an
  allgather around each group.  As trees, with an equal shard for each worker:
  the shard of a worker of rank r goes up around each group to its worker of
  rank r, and from these around the groups to the root; down the other way.  In
  a smaller group, rank r is that of rank r modulo its workers.

  Args:
    best: As of `naive_ring`.

  Raises:
    ValueError: If there are several workers and all are in one group.
  """
  ways = ways_of(cluster)
  groups = ways.groups()
  if len(groups) == 1 < len(cluster.workers):
    raise ValueError('cluster: expected several groups of workers, got one.')
  columns = []
  for g, group in enumerate(groups):
    for rank, root in enumerate(group):
      inside = [_rotate(other, rank) for other in groups]
      between = _rotate([order[0] for order in inside], g)
      ups, downs = zip(
        *(_walk_ring(ways, order) for order in (between, *inside)), strict=True
      )
      up = itertools.chain(*ups[1:], ups[0])
      columns.append(trees.Column(root, 1, [*up], [*itertools.chain(*downs)]))
  return _fit_forest(cluster, best, columns)


def double_binary_tree(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns two binary trees with half of the data each.

  Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
  reduction and scan", 2009.  The first tree has the workers in-order, so that
  every second one is a leaf.  The second tree has them in reverse order or, if
  their number is odd, shifted by one, so that the inner nodes of the first tree
  are its leaves.

  In an allgather and a reduce-scatter, where each worker is the root of a
  shard, each half of a shard has one of these trees, with all workers shifted
  until its worker is the root.

  Args:
    best: As of `naive_ring`.
  """
  ways, order = ways_of(cluster), cluster.workers
  count = len(order)
  second = order[1:] + order[:1] if count % 2 else order[::-1]
  further = range(1 if best.collective == 'allreduce' else count)
  columns = [
    _build_binary_tree(ways, _rotate(first, k))
    for first in (order, second)
    for k in further
  ]
  return _fit_forest(cluster, best, columns)


def single_server(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns a parameter server at the worker where it is fastest.

  All others send it their data and get the sum.  In an allgather each worker
  sends its shard to the server, which sends it to the others; in a
  reduce-scatter the server adds up all shards and sends each to its worker.

  Args:
    best: As of `naive_ring`.
  """
  ways, workers = ways_of(cluster), cluster.workers
  # Shares sent to the server and from it, per hop.
  shards = len(workers) - 1
  inwards = shards if best.collective == 'reduce_scatter' else 1
  outwards = shards if best.collective == 'allgather' else 1

  def time(server: str) -> Fraction:
    others = [worker for worker in workers if worker != server]
    inside = [ways.hop(worker, server) for worker in others]
    outside = [ways.hop(server, worker) for worker in others]
    loads = trees.loads([(inwards, inside), (outwards, outside)])
    times = (n / cluster.capacity_Bps[e] for e, n in loads.items())
    return max(times, default=Fraction(0))

  server = min(workers, key=time)
  roots = [server] if best.collective == 'allreduce' else workers
  columns = []
  for root in roots:
    others = [worker for worker in workers if worker not in (server, root)]
    first = [(root, server)] if root != server else []
    edges = first + [(server, worker) for worker in others]
    columns.append(_build_tree(ways, root, edges))
  return _fit_forest(cluster, best, columns)


def sharded_server(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns a parameter server at each worker, for an equal shard each.

  Args:
    best: As of `naive_ring`.
  """
  ways, workers = ways_of(cluster), cluster.workers
  columns = [
    _build_tree(ways, root, [(root, w) for w in workers if w != root])
    for root in workers
  ]
  return _fit_forest(cluster, best, columns)


def load_balanced_shards(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns a parameter server at each worker, for shards of the best sizes.

  As hivemind divides an allreduce among peers of unequal bandwidth (Ryabinin et
  al., "Moshpit SGD", 2021): a linear program sizes the shards to minimise the
  load of the fullest link, to 2e-7 of the rate.  Around one switch, on which
  worker i has the rate b_i each way, an allreduce of one byte among n workers
  takes max(1 / min b_i, (2 n - 2) / sum b_i) seconds.  For an allgather and a
  reduce-scatter, whose shards are equal, the result is `sharded_server`.

  Args:
    best: As of `naive_ring`.
  """
  if best.collective != 'allreduce' or len(cluster.workers) == 1:
    return sharded_server(cluster, best)
  ways, workers = ways_of(cluster), cluster.workers
  columns = [
    _build_tree(ways, root, [(root, w) for w in workers if w != root])
    for root in workers
  ]
  place = {ends: i for i, ends in enumerate(cluster.capacity_Bps)}
  loads = np.zeros((len(place), len(columns)), np.int64)
  for number, column in enumerate(columns):
    for hop in (*column.up, *column.down):
      for ends in itertools.pairwise(hop):
        loads[place[ends], number] += 1
  capacity = np.array([float(Bps) for Bps in cluster.capacity_Bps.values()])
  sizes, _ = weights.best(loads, capacity)
  # Exact fractions of some digits: those of floats have hundreds.
  units = np.rint(sizes / sizes.max() * _UNITS).astype(np.int64)
  return _fit_forest(
    cluster,
    best,
    [
      column._replace(weight=int(unit))
      for column, unit in zip(columns, units, strict=True)
      if unit
    ],
  )


def equal_shards(cluster: Cluster, best: trees.Forest) -> trees.Forest:
  """Returns the fastest reduce-scatter and then the fastest allgather.

  The allreduce of ForestColl (Zhao et al., arXiv 2402.06787, 2024): the phases
  follow one another, with an equal shard for each worker.  For an allgather and
  a reduce-scatter, which have such shards, the result is `best`.  Beyond 64
  workers each phase is packed only to within 1 % of its bound.

  Args:
    best: As of `naive_ring`.
  """
  if best.collective != 'allreduce' or len(cluster.workers) == 1:
    return best
  gap = 0.0 if len(cluster.workers) <= _EXACT else 0.01
  scatter = pack(cluster, collective='reduce_scatter', gap=gap)
  gather = pack(cluster, collective='allgather', gap=gap)
  # Trees come by root, in the same order in both.
  columns = [
    trees.Column(up.root, share, up.up, down.down)
    for (up, down), share in weighted.align(
      *([(tree, tree.share) for tree in f.trees] for f in (scatter, gather))
    )
  ]
  return trees.fit_forest(cluster, columns, best, overlap=False)


def build_all(cluster: Cluster, best: trees.Forest) -> dict[str, trees.Forest]:
  """Returns the published schemes for the collective of `best`, by name.

  These are the functions of this module, from rings to `equal_shards`.  The
  dict is without `hierarchical` if the cluster has only one group of workers,
  without `load_balanced_shards` and `equal_shards` unless `best` is an
  allreduce; it is empty for a single worker.

  Args:
    cluster: Workers, switches and links.
    best: Packed forest of the cluster.
  """
  if len(cluster.workers) == 1:
    return {}
  left_out: list[object] = []
  if len(ways_of(cluster).groups()) == 1:
    left_out.append(hierarchical)
  if best.collective != 'allreduce':
    left_out += [load_balanced_shards, equal_shards]
  return {
    scheme.__name__: scheme(cluster, best)
    for scheme in _ALL
    if scheme not in left_out
  }


def _fit_forest(
  cluster: Cluster, best: trees.Forest, columns: Iterable[trees.Column]
) -> trees.Forest:
  """Returns the forest of the columns, with the hops of the collective."""
  if len(cluster.workers) == 1:
    return best
  if best.collective == 'allgather':
    columns = [column._replace(up=()) for column in columns]
  elif best.collective == 'reduce_scatter':
    columns = [column._replace(down=()) for column in columns]
  return trees.fit_forest(cluster, [*columns], best)


def _build_rings(
  cluster: Cluster, best: trees.Forest, orders: Iterable[Sequence[str]]
) -> trees.Forest:
  """Returns trees around each ring, one per worker, with shared hops."""
  if len(cluster.workers) == 1:
    return best
  ways, columns = ways_of(cluster), []
  for order in orders:
    last = len(order) - 1
    around = itertools.pairwise((*order, order[0]))
    hops = [ways.hop(a, b) for a, b in around] * 2
    columns += [
      trees.Column(root, 1, hops[i + 1 : i + 1 + last], hops[i : i + last])
      for i, root in enumerate(order)
    ]
  return _fit_forest(cluster, best, columns)


def _walk_ring(
  ways: Ways, order: Sequence[str]
) -> tuple[list[trees.Hop], list[trees.Hop]]:
  """Returns hops around a ring, up to its first worker and down from it."""
  up, down = (
    [ways.hop(a, b) for a, b in itertools.pairwise(passed)]
    for passed in (_rotate(order, 1), order)
  )
  return up, down


def _build_tree(
  ways: Ways, root: str, edges: Sequence[tuple[str, str]]
) -> trees.Column:
  """Returns a tree of edges from parent to child, nearest to the root first."""
  up = [ways.hop(child, parent) for parent, child in reversed(edges)]
  down = [ways.hop(parent, child) for parent, child in edges]
  return trees.Column(root, 1, up, down)


def _build_binary_tree(ways: Ways, order: Sequence[str]) -> trees.Column:
  """Returns the binary search tree of 1 to N, whose odd numbers are leaves."""
  # A number is as far from the leaves as 2 divides it: above i are i + b or i -
  # b, where b is the largest power of 2 in it.
  numbers = sorted(range(1, len(order) + 1), key=_lowest_bit, reverse=True)
  edges = []
  for i in numbers[1:]:
    above = (i ^ _lowest_bit(i)) | 2 * _lowest_bit(i)
    if above > len(order):
      above = i ^ _lowest_bit(i)
    edges.append((order[above - 1], order[i - 1]))
  return _build_tree(ways, order[numbers[0] - 1], edges)


def _lowest_bit(number: int) -> int:
  return number & -number


def _rotate(order: Sequence[str], by: int) -> list[str]:
  start = by % len(order)
  return [*order[start:], *order[:start]]


_ALL = (
  *(naive_ring, naive_ring_both_ways, best_ring, best_ring_both_ways),
  *(rotated_rings, hierarchical, double_binary_tree),
  *(single_server, sharded_server, load_balanced_shards, equal_shards),
)
