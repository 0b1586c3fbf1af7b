"""Ways from worker to worker, and groups of workers that are close.

For schemes that consider pairs of workers rather than all links together.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees

_Found = dict[int, tuple[int, ...]]  # The nodes on the way to each.


@functools.lru_cache(maxsize=1)
def ways_of(cluster: Cluster) -> 'Ways':
  """Returns the ways of a cluster; keeps those of the last cluster."""
  return Ways(cluster)


class Ways:
  """Ways from each worker to each other, one for each pair.

  A way is chosen by these rules, in turn: through switches only; fewest links;
  widest, by the capacity of its thinnest link; first nodes in the order of the
  cluster.  Where switches do not lead, the same rules choose among the ways
  through all nodes: workers on the way forward.

  A way is extended only where it is the best to the node that it has reached,
  even if a thinner link behind that node makes another one as wide.
  """

  def __init__(self, cluster: Cluster) -> None:
    self.cluster = cluster
    self._graph = cluster.graph
    # By source, and whether workers forward.
    self._ways: dict[tuple[int, bool], _Found] = {}
    self._next: list[list[tuple[int, int]]] = [[] for _ in cluster.nodes]
    self._capacity: dict[tuple[int, int], int] = {}
    for src, dst, capacity in self._graph.links:
      self._next[src].append((dst, capacity))
      self._capacity[src, dst] = capacity

  def hop(self, src: str, dst: str) -> trees.Hop:
    """Returns the nodes from one worker to another, both included.

    A way of one or two links is found by a pass over the links of its first
    worker.  All longer ways from a worker are found at once, and kept, with one
    pass over the links, or two where switches do not lead to all workers.

    Raises:
      KeyError: If there is no way.
    """
    a, b = self.cluster.position[src], self.cluster.position[dst]
    way = self._find_short(a, b)
    if not way:
      found = self._from(a, relays=False)
      way = found[b] if b in found else self._from(a, relays=True)[b]
    return tuple(self.cluster.nodes[v] for v in way)

  def shares(self) -> dict[Ends, Fraction]:
    """Returns the capacity of each link over the number of pairs that use it.

    In GB per second, if each worker sends to each other.  A pair with several
    ways that are equally short and wide is divided between them, so that
    clusters with symmetries have shares with the same symmetries.  Links that
    no pair uses are left out.
    """
    wanted: dict[tuple[int, int], Fraction] = {}
    for source in self._graph.workers:
      for parents, targets in self._searches(source):
        _divide(parents, targets, wanted)
    place = self.cluster.position
    return {
      (src, dst): GBps / wanted[place[src], place[dst]]
      for src, dst, GBps in self.cluster.links
      if (place[src], place[dst]) in wanted
    }

  def groups(self) -> list[list[str]]:
    """Returns the workers in groups that are closer inside than between.

    The closeness of two workers is the width, both ways, of the widest way
    between them, where the width of a link is its share for one pair
    (`shares`): so a box is a group if the way out is slow, and a rack if its
    uplink is shared by too many.  For each width, the workers that are at least
    as close form a partition into groups.  Among the partitions without a group
    of one worker, the best has the largest ratio of the smallest width inside
    groups to the largest width between groups; of equal ones, the fewest
    groups.  If there is none, for example because all workers are equally
    close, they are one group.

    Groups are sorted by their first workers, workers in the order of the
    cluster.  O(nodes^3) in NumPy.
    """
    cluster, shares = self.cluster, self.shares()
    widths = sorted(set(shares.values()))
    rank = {width: i for i, width in enumerate(widths)}
    index, count = cluster.position, len(cluster.nodes)
    widest = np.full((count, count), -1)
    for (src, dst), share in shares.items():
      widest[index[src], index[dst]] = rank[share]
    for v in range(count):
      through = np.minimum(widest[:, v, None], widest[None, v, :])
      np.maximum(widest, through, out=widest)
    workers = cluster.graph.workers
    close = np.minimum(widest, widest.T)[np.ix_(workers, workers)]
    np.fill_diagonal(close, -1)
    nearest = close.max(
      axis=1
    ).min()  # Within which each worker has a neighbor.
    levels = np.unique(close)[1:].tolist()
    steps = [step for step in itertools.pairwise(levels) if step[1] <= nearest]
    if not steps:
      return [list(cluster.workers)]
    _, least = max(steps, key=lambda step: widths[step[1]] / widths[step[0]])
    np.fill_diagonal(close, least)
    found: dict[int, list[str]] = {}
    for row, worker in zip(close, cluster.workers, strict=True):
      found.setdefault(int(np.argmax(row >= least)), []).append(worker)
    return list(found.values())

  def _find_short(self, src: int, dst: int) -> tuple[int, ...]:
    """Returns the way if it has at most two links; () if it has more."""
    capacity, is_worker = self._capacity, self._graph.worker
    if src == dst:
      return (src,)
    if (src, dst) in capacity:
      return (src, dst)
    widest, best = 0, -1
    for node, first in self._next[src]:
      width = min(first, capacity.get((node, dst), 0))
      if is_worker[node] or width < widest or not width:
        continue
      if width > widest or node < best:
        widest, best = width, node
    return (src, best, dst) if widest else ()

  def _from(self, source: int, *, relays: bool) -> _Found:
    key = source, relays
    if key not in self._ways:
      self._ways[key] = self._search(source, relays)
    return self._ways[key]

  def _searches(
    self, source: int
  ) -> list[tuple[dict[int, list[int]], list[int]]]:
    """Returns the predecessors from `_search`, each with workers it serves."""
    # Once through switches only; once through all nodes, for the other workers.
    found, missing = [], [w for w in self._graph.workers if w != source]
    for relays in (False, True):
      if missing:
        parents: dict[int, list[int]] = {source: []}
        ways = self._search(source, relays, parents)
        found.append((parents, [w for w in missing if w in ways]))
        missing = [w for w in missing if w not in ways]
    return found

  def _search(
    self,
    source: int,
    relays: bool,
    parents: dict[int, list[int]] | None = None,
  ) -> _Found:
    """Returns the way to each node; `relays`: whether workers forward."""
    # `parents` takes the predecessors of each node on all best ways, nodes by
    # ascending distance.
    ways: _Found = {source: (source,)}
    width: dict[int, int | float] = {source: math.inf}
    layer = [source]
    while layer:
      following: dict[int, int | float] = {}
      for node in layer:
        reach = width[node]
        for other, capacity in self._next[node]:
          if other in width:
            continue
          through = capacity if capacity < reach else reach
          known = following.get(other, 0)
          if through > known:
            following[other], ways[other] = through, (*ways[node], other)
            if parents is not None:
              parents[other] = [node]
          elif through == known and parents is not None:
            parents[other].append(node)
      width.update(following)
      ends = self._graph.worker  # Ways end at them, unless they are relays.
      layer = [node for node in following if relays or not ends[node]]
      # So that the first way found to a node is the first in the order.
      layer.sort(key=ways.__getitem__)
    return ways


def _divide(
  parents: dict[int, list[int]],
  targets: Sequence[int],
  wanted: dict[tuple[int, int], Fraction],
) -> None:
  """Adds a unit for each target to the links of its ways."""
  units = dict.fromkeys(parents, Fraction(0))
  units.update(dict.fromkeys(targets, Fraction(1)))
  for node in reversed(parents):
    for before in parents[node] if units[node] else ():
      part = units[node] / len(parents[node])
      units[before] += part
      wanted[before, node] = wanted.get((before, node), Fraction(0)) + part
