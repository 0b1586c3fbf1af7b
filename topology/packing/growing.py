"""Trees that grow hop by hop, while prices of the links they use rise.

A cheapest tree at fixed prices crowds onto the cheapest links.  Here each hop
raises the prices of its links at once, by its load, so that a single tree
already spreads over all links, and a few trees reach the rate of thousands at
fixed prices.
"""

import collections
import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from topology.algorithms import stopping
from topology.algorithms.components import Components
from topology.forests import trees
from topology.packing.arrays import Arrays, Hop

_STEEP = 20.0  # Price of a full link over that of an empty one, as exponent.
_MOST = 40.0  # The same for a single tree on a link too thin for it.
_DEAREST = 1e200  # Far from overflow.
_KEEP = 8  # The hops that were cheap for so many trees are tried again.
_HASTY = 6  # Hops from each worker, and to each, that hasty trees are grown of.
_AGAIN = 1 + 1e-7  # Prices that differ by less count as equal.


class Costs:
  """Prices of links that rise with their use: `now`, one for each capacity.

  A link of which the share z is used costs exp(20 z) over its capacity, where z
  includes one more tree of `unit_GBps`.  Initially z is `full`, floats [c].
  """

  def __init__(
    self, arrays: Arrays, unit_GBps: float, full: np.ndarray
  ) -> None:
    factor = exp(np.minimum(_STEEP * unit_GBps / arrays.capacity, _MOST))
    start = factor * exp(_STEEP * full) / arrays.capacity
    self.now: list[float] = start.tolist()
    self._factor: list[float] = factor.tolist()

  def price(self, uses: Iterable[int]) -> float:
    """Returns the sum of the prices of the capacities that a hop uses."""
    now, total = self.now, 0.0
    for use in uses:  # Since Python 3.12 the built-in sum rounds otherwise.
      total += now[use]
    return total

  def raise_(self, uses: Iterable[int]) -> None:
    """Raises the prices of the capacities that one more hop uses."""
    now, factor = self.now, self._factor
    for use in uses:
      now[use] = min(now[use] * factor[use], _DEAREST)

  def lower(self, uses: Iterable[int]) -> None:
    """Lowers the prices of the capacities that a removed hop used."""
    for use in uses:
      self.now[use] /= self._factor[use]


def exp(x: np.ndarray) -> np.ndarray:
  """Returns about e^x, by multiplications that are alike on all machines."""
  power = 1 + x / 4096
  for _ in range(12):
    power = power * power
  return power


class Grown(NamedTuple):
  """A grown tree, as hops from the root outwards."""

  root: int
  up: tuple[Hop, ...]  # Those nearest to the root first; none in an allgather.
  down: tuple[Hop, ...]  # Likewise.

  def uses(self, arrays: Arrays) -> list[int]:
    """Returns the capacities that the tree uses, repeated for each use.

    They are indices as in `Hop.uses`.
    """
    # On paired links what goes up is what goes down, over the other link.
    hops = self.down if arrays.paired else (*self.up, *self.down)
    return [use for hop in hops for use in hop.uses]


class Grower:
  """Grows tree after tree, on links that become dearer.

  A tree carries `unit_GBps`; initially the shares `full` of the links are used,
  floats [c], or nothing.  After each `every` trees cheap hops are searched for
  again.  `both` raises `Stopped` once `end` returns True: no time is left.
  """

  def __init__(
    self,
    arrays: Arrays,
    unit_GBps: float,
    full: np.ndarray | None = None,
    *,
    every: int = 1,
    end: stopping.Stop = stopping.never,
  ) -> None:
    full = np.zeros(len(arrays.capacity)) if full is None else full
    self._arrays = arrays
    self._every, self._end = every, end
    self._costs = Costs(arrays, unit_GBps, full)
    self._turn = 0
    # Hops that were cheap lately.
    self._recent: collections.deque[list[Hop]]
    self._recent = collections.deque(maxlen=_KEEP)
    self._few: list[Hop] = []

  def both(self) -> Grown:
    """Returns a tree up and down.

    If links are paired, it is the same tree both ways, and its root is in its
    middle.  Otherwise its root is the worker for which sending up and receiving
    would cost most: the root need not do either.
    """
    hops = self._candidates()
    if self._arrays.paired:
      return _center(self._arrays, self._spanning(hops))
    stopping.check(self._end)
    root = self._dearest(hops)
    stopping.check(self._end)
    up = self._branching(root, hops, up=True)
    stopping.check(self._end)
    down = self._branching(root, hops, up=False)
    return Grown(root, tuple(up), tuple(down))

  def down(self, root: int, *, hasty: bool = False) -> Grown:
    """Returns a tree from a root down to all workers.

    Args:
      root: Index of the root.
      hasty: Whether to choose from the few hops that were cheap for the last
        tree, which is faster.
    """
    if hasty:
      self._few = self._few or self._cheapest(self._recent[-1])
      tree = self._branching(root, self._few, up=False)
      self._few = list(dict.fromkeys([*self._few, *tree]))
      return Grown(root, (), tuple(tree))
    tree = self._branching(root, self._candidates(), up=False)
    # With those that were found on the way.
    self._recent[-1] = list(dict.fromkeys([*self._recent[-1], *tree]))
    return Grown(root, (), tuple(tree))

  def remove(self, tree: Grown) -> None:
    """Lowers the prices of a tree's links as if it had not been grown."""
    self._costs.lower(tree.uses(self._arrays))

  def _candidates(self) -> list[Hop]:
    if self._turn % self._every == 0:
      now, turn = np.array(self._costs.now), self._turn // self._every
      # Some more for the first tree, lest a root lack a way that it cannot do
      # without.  A cheapest tree of paired links has them all.
      extra = 0 if self._recent or self._arrays.paired else _KEEP - 1
      for earlier in range(extra, -1, -1):
        self._recent.append(self._arrays.hops(now, turn - earlier))
    self._turn += 1
    # Without switches all of them are one list.
    lists = {id(hops): hops for hops in self._recent}.values()
    return list(dict.fromkeys(itertools.chain(*lists)))

  def _cheapest(self, hops: Sequence[Hop]) -> list[Hop]:
    """Returns the cheapest hops from each worker and to each worker."""
    count: collections.Counter[tuple[str, int]] = collections.Counter()
    few = []
    for hop in sorted(hops, key=lambda hop: self._costs.price(hop.uses)):
      ends = ('src', hop.src), ('dst', hop.dst)
      if min(count[end] for end in ends) < _HASTY:
        few.append(hop)
        count.update(ends)
    return few

  def _dearest(self, hops: Sequence[Hop]) -> int:
    least: dict[tuple[str, int], float] = {}
    for hop in hops:
      cost = self._costs.price(hop.uses)
      for side in (('src', hop.src), ('dst', hop.dst)):
        least[side] = min(cost, least.get(side, cost))
    return max(
      self._arrays.workers,
      key=lambda w: least.get(('src', w), 0.0) + least.get(('dst', w), 0.0),
    )

  def _spanning(self, hops: Sequence[Hop]) -> list[Hop]:
    """Returns a tree for both directions, by Kruskal's algorithm."""
    queue = [(self._costs.price(hop.uses), i) for i, hop in enumerate(hops)]
    heapq.heapify(queue)
    components = Components(self._arrays.nodes)
    label = components.label
    tree: list[Hop] = []
    while len(tree) < len(self._arrays.workers) - 1:
      if not queue:
        raise ValueError('Expected hops that connect all workers.')
      _, i = heapq.heappop(queue)
      hop = hops[i]
      if label[hop.src] == label[hop.dst] or self._put_back(queue, hop, i):
        continue
      components.join(hop.src, hop.dst)
      self._costs.raise_(hop.uses)
      tree.append(hop)
    return tree

  def _branching(
    self, root: int, hops: Sequence[Hop], *, up: bool
  ) -> list[Hop]:
    """Returns a tree of hops from a root or up to it, nearest hops first."""
    # Prim's algorithm with rising prices.  On links that differ by direction it
    # is a heuristic: the cheapest next hop need not be part of a cheapest tree.
    beside: dict[int, list[int]] = {}
    for i, hop in enumerate(hops):
      beside.setdefault(hop.dst if up else hop.src, []).append(i)
    reached, node = {root}, root
    tree: list[Hop] = []
    queue: list[tuple[float, int]] = []
    costs = self._costs
    while len(tree) + 1 < len(self._arrays.workers):
      for i in beside.pop(node, ()):
        hop = hops[i]
        if (hop.src if up else hop.dst) not in reached:
          heapq.heappush(queue, (costs.price(hop.uses), i))
      if queue:
        _, i = heapq.heappop(queue)
        hop = hops[i]
        far = hop.src if up else hop.dst
        if far in reached or self._put_back(queue, hop, i):
          continue
      else:
        hop = self._arrays.nearest(reached, costs.now, up=up)
      node = hop.src if up else hop.dst
      costs.raise_(hop.uses)
      reached.add(node)
      tree.append(hop)
    return tree

  def _put_back(
    self, queue: list[tuple[float, int]], hop: Hop, place: int
  ) -> bool:
    """Returns whether a hop is dearer than the next one; then requeues it."""
    now = self._costs.price(hop.uses)
    dearer = bool(queue) and now > queue[0][0] * _AGAIN
    if dearer:
      heapq.heappush(queue, (now, place))
    return dearer


def _center(arrays: Arrays, hops: list[Hop]) -> Grown:
  """Returns a tree of paired links, with the root in its middle."""
  root, ways = trees.center_tree([(hop.src, hop.dst) for hop in hops])
  back = [arrays.backwards(hop) for hop in hops]
  down = [back[i] if turn else hops[i] for i, turn in ways]
  up = [hops[i] if turn else back[i] for i, turn in ways]
  return Grown(root, tuple(up), tuple(down))
