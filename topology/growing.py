"""Trees grown hop by hop, while the links that they use become dearer.

A tree that is cheapest at fixed prices crowds onto the links that are cheap at
the moment.  Here each hop raises the prices of its links at once, by what it
adds to their load, so that already one tree spreads over all of them, and a few
trees are worth as much as thousands at fixed prices.
"""

import collections
import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from topology import graphs, routing, trees

_STEEP = 20.0  # Price of a full link over that of an empty one, as exponent.
_MOST = 40.0  # The same for a single tree on a link too thin for it.
_DEAREST = 1e200  # Far from overflow.
_KEEP = 8  # The hops that were cheap for so many trees are tried again.
_AGAIN = 1 + 1e-7  # Prices that differ by less count as equal.


class Prices:
  """What links cost, by how full they are.

  A link of which the share z is used costs exp(20 z) over its capacity, where z
  is taken after one more tree of `unit_GBps`.

  Args:
    network: The links.
    unit_GBps: What a tree carries.
    full: Floats [c], the share of each link that is used to begin with.

  Attributes:
    now: Per capacity of the network, its price.
  """

  def __init__(
    self, network: routing.Network, unit_GBps: float, full: np.ndarray
  ) -> None:
    factor = exp(np.minimum(_STEEP * unit_GBps / network.capacity, _MOST))
    start = factor * exp(_STEEP * full) / network.capacity
    self.now: list[float] = start.tolist()
    self._factor: list[float] = factor.tolist()

  def of(self, uses: Iterable[int]) -> float:
    """Returns the price of a hop that uses all of these."""
    now, total = self.now, 0.0
    for use in uses:
      total += now[use]
    return total

  def raise_(self, uses: Iterable[int]) -> None:
    """Makes them dearer, for one more hop."""
    now, factor = self.now, self._factor
    for use in uses:
      now[use] = min(now[use] * factor[use], _DEAREST)

  def lower(self, uses: Iterable[int]) -> None:
    """Makes them cheaper again, for one hop less."""
    now, factor = self.now, self._factor
    for use in uses:
      now[use] /= factor[use]


def exp(x: np.ndarray) -> np.ndarray:
  """Returns about e^x, by multiplications that are alike on all machines."""
  power = 1 + x / 4096
  for _ in range(12):
    power = power * power
  return power


class Grown(NamedTuple):
  """A tree.

  Attributes:
    root: Node.
    up: Hops towards the root, the nearest to it first; none in an allgather.
    down: Hops away from the root, likewise.
  """

  root: int
  up: tuple[routing.Hop, ...]
  down: tuple[routing.Hop, ...]


class Grower:
  """Grows tree after tree, on links that become dearer.

  Args:
    network: Links.
    unit_GBps: What a tree carries.
    full: Floats [c], the share of each link that is used to begin with.
    every: After how many trees cheap hops are looked for anew.
  """

  def __init__(
    self,
    network: routing.Network,
    unit_GBps: float,
    full: np.ndarray,
    *,
    every: int = 1,
  ) -> None:
    self._network = network
    self._every = every
    self._prices = Prices(network, unit_GBps, full)
    self._turn = 0
    # What was cheap lately.
    self._recent: collections.deque = collections.deque(maxlen=_KEEP)

  def both(self) -> Grown:
    """Returns a tree up and down.

    If links are paired, it is the same tree both ways, and its root is in its
    middle.  Otherwise its root is the worker that would have to pay most to
    send up and to receive: what it alone need not do.
    """
    hops = self._candidates()
    if self._network.paired:
      return _centered(
        self._network, _spanning(self._network, hops, self._prices)
      )
    root = self._dearest(hops)
    up = _branching(root, self._network, hops, self._prices, up=True)
    down = _branching(root, self._network, hops, self._prices, up=False)
    return Grown(root, tuple(up), tuple(down))

  def down(self, root: int, *, hasty: bool = False) -> Grown:
    """Returns a tree down from a root; if hasty, from hops of the last tree."""
    hops = list(self._recent[-1]) if hasty else self._candidates()
    tree = _branching(root, self._network, hops, self._prices, up=False)
    # With those that were found on the way.
    self._recent[-1] = list(dict.fromkeys([*self._recent[-1], *tree]))
    return Grown(root, (), tuple(tree))

  def remove(self, tree: Grown) -> None:
    """Makes the links of a tree cheaper again."""
    hops = tree.down if self._network.paired else (*tree.up, *tree.down)
    for hop in hops:
      self._prices.lower(hop.uses)

  def _candidates(self) -> list[routing.Hop]:
    if self._turn % self._every == 0:
      now, turn = np.array(self._prices.now), self._turn // self._every
      # Some more for the first tree, lest a root lack a way that it cannot do
      # without.  A cheapest tree of paired links has them all.
      extra = 0 if self._recent or self._network.paired else _KEEP - 1
      for earlier in range(extra, -1, -1):
        self._recent.append(self._network.hops(now, turn - earlier))
    self._turn += 1
    return list(dict.fromkeys(itertools.chain(*self._recent)))

  def _dearest(self, hops: Sequence[routing.Hop]) -> int:
    spared = dict.fromkeys(self._network.workers, 0.0)
    for place in (0, 1):
      least: dict[int, float] = {}
      for hop in hops:
        cost = self._prices.of(hop.uses)
        least[hop[place]] = min(cost, least.get(hop[place], cost))
      for worker, cost in least.items():
        spared[worker] += cost
    return max(self._network.workers, key=spared.__getitem__)


def _spanning(
  network: routing.Network, hops: Sequence[routing.Hop], prices: Prices
) -> list[routing.Hop]:
  """Returns a tree of hops that are used in both directions.

  Kruskal's algorithm with prices that rise.

  Raises:
    ValueError: If the hops do not connect all workers.
  """
  queue = [(prices.of(hop.uses), i) for i, hop in enumerate(hops)]
  heapq.heapify(queue)
  parent = list(range(network.nodes))
  tree: list[routing.Hop] = []
  while len(tree) < len(network.workers) - 1:
    if not queue:
      raise ValueError('Expected hops that connect all workers.')
    _, i = heapq.heappop(queue)
    hop = hops[i]
    if graphs.find(parent, hop.src) == graphs.find(parent, hop.dst):
      continue
    now = prices.of(hop.uses)
    if queue and now > queue[0][0] * _AGAIN:
      heapq.heappush(queue, (now, i))
      continue
    graphs.join(parent, hop.src, hop.dst)
    prices.raise_(hop.uses)
    tree.append(hop)
  return tree


def _branching(
  root: int,
  network: routing.Network,
  hops: Sequence[routing.Hop],
  prices: Prices,
  *,
  up: bool,
) -> list[routing.Hop]:
  """Returns a tree of hops away from a root, or towards it.

  Prim's algorithm with prices that rise: a heuristic, as on links that differ
  in direction the cheapest next hop need not be part of a cheapest tree.

  Args:
    root: Node.
    network: Links.
    hops: To choose from.
    prices: Raised by the hops that are chosen.
    up: Whether hops lead towards the root.

  Returns:
    Hops, the nearest to the root first.
  """
  beside: dict[int, list[int]] = {}
  for i, hop in enumerate(hops):
    beside.setdefault(hop.dst if up else hop.src, []).append(i)
  reached, tree = {root}, []
  queue = [(prices.of(hops[i].uses), i) for i in beside.get(root, ())]
  heapq.heapify(queue)
  while len(reached) < len(network.workers):
    if queue:
      _, i = heapq.heappop(queue)
      hop = hops[i]
      if (hop.src if up else hop.dst) in reached:
        continue
      now = prices.of(hop.uses)
      if queue and now > queue[0][0] * _AGAIN:
        heapq.heappush(queue, (now, i))
        continue
    else:
      hop = network.nearest(reached, prices.now, up=up)
    new = hop.src if up else hop.dst
    prices.raise_(hop.uses)
    reached.add(new)
    tree.append(hop)
    for i in beside.get(new, ()):
      if (hops[i].src if up else hops[i].dst) not in reached:
        heapq.heappush(queue, (prices.of(hops[i].uses), i))
  return tree


def _centered(network: routing.Network, hops: list[routing.Hop]) -> Grown:
  """A tree of paired links with its root in the middle of a longest path."""
  root, ways = trees.centered([(hop.src, hop.dst) for hop in hops])
  back = [network.backwards(hop) for hop in hops]
  down = [back[i] if turn else hops[i] for i, turn in ways]
  up = [hops[i] if turn else back[i] for i, turn in ways]
  return Grown(root, tuple(up), tuple(down))
