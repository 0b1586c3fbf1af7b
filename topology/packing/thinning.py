"""Replaces the trees of a forest by fewer and shallower ones, at its rate.

A corner of all optimal weights has at most as many trees as links that it fills
(Dantzig, 1951); of all corners the one is taken at which depth costs least.
The candidates are the trees of the forest and shallow trees over the same hops:
grown by Prim's algorithm, cheapest at the prices that prove the bound, as all
trees of an optimum are (complementary slackness), then near to their root and
on links with room.
"""

import heapq
import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from topology.algorithms import stopping, vertex, weighted
from topology.bounds import cuts
from topology.bounds.prices import Prices
from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees

_SMALL, _FEW = 32, 256  # Workers and trees up to which trees are grown, ...
_GROWN = 32  # ... so many.
_DEEP = 1.2  # How much fuller a link may be that is a hop nearer to the root.
_RATE = 1e-4  # Largest cost of depth, as a share of the rate.
_STEEP = 14  # Doublings of that cost, from the shallowest tree on.
_WORK = 2**27  # Rows times columns squared, at most: seconds.


def thin(
  cluster: Cluster, forest: trees.Forest, stop: stopping.Stop
) -> trees.Forest:
  """Returns a forest of the same rate with fewer or shallower trees.

  Among candidates with no more and no deeper trees, it is the one with the
  smallest product of trees and depth, which may be the forest itself.  The rate
  is the same fraction.  Deterministic; takes a small part of the time of exact
  packing.

  Args:
    forest: Optimal allreduce or allgather, whose `gap` is 0.
    stop: Function that returns True to raise `Stopped`, called regularly.
  """
  found, pools = [forest], [[*forest.trees]]
  if len(cluster.workers) <= _SMALL and len(forest.trees) <= _FEW:
    pools.append([*forest.trees, *_grown(cluster, forest, stop)])
  for each in pools:
    pool = _Pool(cluster, forest, each)
    basis = pool.corner(stop)
    if basis is not None:
      found += pool.forest(basis, stop)
  most, deepest = _size(forest)
  fits = [f for f in found if _size(f)[0] <= most and _size(f)[1] <= deepest]
  return min(fits, key=lambda each: _size(each)[0] * _size(each)[1])


def _size(forest: trees.Forest) -> tuple[int, int]:
  return len(forest.trees), max(tree.depth for tree in forest.trees)


class _Pool:
  """Trees to choose from, and their load on every link."""

  def __init__(
    self,
    cluster: Cluster,
    forest: trees.Forest,
    pool: Sequence[trees.Tree],
  ) -> None:
    self._cluster, self._forest = cluster, forest
    distinct = {(t.root, *t.up, None, *t.down): t for t in pool}
    self._trees = list(distinct.values())
    links = list(cluster.capacity_Bps)
    place = {ends: i for i, ends in enumerate(links)}
    each = forest.collective == 'allgather'
    count = len(links) + each * len(cluster.workers)
    loads = np.zeros((count, len(self._trees)), np.int64)
    for k, tree in enumerate(self._trees):
      uses = [place[e] for e in _passed((*tree.up, *tree.down))]
      np.add.at(loads[:, k], uses, 1)
      if each:
        loads[len(links) + cluster.rank[tree.root], k] = 1
    rate = forest.rate_Bps or Fraction(0)
    limits = [*cluster.capacity_Bps.values()]
    limits += [rate / len(cluster.workers)] * (count - len(links))
    # The first binding one of equal rows.
    rows: dict[bytes, int] = {}
    for i in np.flatnonzero(loads.any(1)).tolist():
      key = loads[i].tobytes()
      if key not in rows or limits[i] < limits[rows[key]]:
        rows[key] = i
    kept = list(rows.values())
    self._loads, self._limits = loads[kept], [limits[i] for i in kept]
    self._rate = rate

  def corner(self, stop: stopping.Stop) -> vertex.Basis | None:
    """Returns the trees of a corner at which depth costs least, if small."""
    rows, count = self._loads.shape
    if rows * count * count > _WORK:
      return None
    unit = np.array([float(self._rate / limit) for limit in self._limits])
    depth = np.array([tree.depth for tree in self._trees])
    cost = np.ldexp(1.0, np.minimum(depth - depth.min(), _STEEP))
    gain = 1 - _RATE * cost / cost.max()
    return vertex.best(self._loads * unit[:, None], gain, stop)

  def forest(
    self, basis: vertex.Basis, stop: stopping.Stop
  ) -> list[trees.Forest]:
    """Returns the forest of a corner if it is exactly as fast; else nothing."""
    chosen, binding = basis
    scale = weighted.scale(*self._limits)
    limits = [int(self._limits[i] * scale) for i in binding]
    units = vertex.solve(self._loads[np.ix_(binding, chosen)], limits, stop)
    if units is None or min(units) < 0 or sum(units) != self._rate * scale:
      return []
    columns = [
      trees.Column(tree.root, weight, tree.up, tree.down)
      for tree, weight in zip(
        (self._trees[k] for k in chosen), units, strict=True
      )
      if weight
    ]
    forest = trees.fit_forest(self._cluster, columns, self._forest)
    return [forest] if forest.rate_Bps == self._rate else []


def _passed(hops: Iterable[trees.Hop]) -> Iterable[Ends]:
  return (ends for hop in hops for ends in itertools.pairwise(hop))


def _grown(
  cluster: Cluster, forest: trees.Forest, stop: stopping.Stop
) -> list[trees.Tree]:
  """Returns shallow trees over the hops of a forest, as cheap as its own."""
  grower, workers, grown = _Grower(cluster, forest), cluster.workers, []
  for k in range(_GROWN):
    stopping.check(stop)
    tree = grower.tree(workers[k * len(workers) // _GROWN])
    if tree is not None:
      grown.append(tree)
  return grown


class _Grower:
  """Hops of a forest, their prices, and the loads of links so far."""

  def __init__(self, cluster: Cluster, forest: trees.Forest) -> None:
    self._count = len(cluster.workers)
    self._both = forest.collective == 'allreduce'
    self._paired = self._both and cluster.symmetric
    unit = (forest.rate_Bps or Fraction(0)) / _GROWN
    self._full = dict.fromkeys(cluster.capacity_Bps, 0.0)
    # Share of each link that a tree uses.
    self._share = {e: float(unit / c) for e, c in cluster.capacity_Bps.items()}
    hops = dict.fromkeys(
      hop for tree in forest.trees for hop in (*tree.up, *tree.down)
    )
    price_of = _link_prices(cluster, forest)
    self._uses: dict[trees.Hop, list[Ends]] = {}
    self._from: dict[tuple[str, bool], list[trees.Hop]] = {}
    price: dict[trees.Hop, Fraction] = {}
    for hop in hops:
      both = (hop, hop[::-1]) if self._paired else (hop,)
      self._uses[hop] = list(_passed(both))
      passed = (price_of.get(ends, Fraction(0)) for ends in self._uses[hop])
      price[hop] = sum(passed, Fraction(0))
      self._from.setdefault((hop[0], False), []).append(hop)
      self._from.setdefault((hop[-1], True), []).append(hop)
    place = {value: i for i, value in enumerate(sorted(set(price.values())))}
    self._price = {hop: place[value] for hop, value in price.items()}

  def tree(self, root: str) -> trees.Tree | None:
    """Returns a tree, or None if the hops do not lead everywhere."""
    down = self._branches(root, up=False)
    up: list[trees.Hop] | None = []
    if down is not None and self._paired:
      root, ways = trees.center_tree([(hop[0], hop[-1]) for hop in down])
      down = [down[i][::-1] if back else down[i] for i, back in ways]
      up = trees.reverse_hops(down)
    elif self._both:
      up = self._branches(root, up=True)
    if down is None or up is None:
      return None
    up = up if self._paired else up[::-1]
    return trees.Tree(root, Fraction(0), Fraction(0), up, down)

  def _branches(self, root: str, *, up: bool) -> list[trees.Hop] | None:
    """Returns hops away from the root, or up to it, the nearest to it first."""
    depth, node = {root: 0}, root
    tree: list[trees.Hop] = []
    queue: list[tuple[int, float, trees.Hop]] = []
    near, far = (-1, 0) if up else (0, -1)
    while len(depth) < self._count:
      for hop in self._from.get((node, up), ()):
        if hop[far] not in depth:
          cost = self._cost(hop, depth[node])
          heapq.heappush(queue, (self._price[hop], cost, hop))
      while True:
        if not queue:
          return None
        price, cost, hop = heapq.heappop(queue)
        if hop[far] in depth:
          continue
        cost = self._cost(hop, depth[hop[near]])
        if not queue or (price, cost) <= queue[0][:2]:
          break
        heapq.heappush(queue, (price, cost, hop))
      node = hop[far]
      depth[node] = depth[hop[near]] + 1
      for ends in self._uses[hop]:
        self._full[ends] += self._share[ends]
      tree.append(hop)
    return tree

  def _cost(self, hop: trees.Hop, depth: int) -> float:
    fullest = max(self._full[e] + self._share[e] for e in self._uses[hop])
    for _ in range(depth):
      fullest *= _DEEP
    return fullest


def _link_prices(
  cluster: Cluster, forest: trees.Forest
) -> dict[Ends, Fraction]:
  proof = forest.certificate
  if isinstance(proof, Prices):
    return {(src, dst): price for src, dst, price in proof.links}
  return cuts.link_prices(cluster, proof) if proof else {}
