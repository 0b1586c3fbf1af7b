"""Spanning out-trees packed into a directed graph with integer capacities.

Edmonds' theorem ("Edge-disjoint branchings", 1973): trees that start with given
multiplicities at given roots fit if and only if each set of nodes can be
entered as often as trees start outside of it.  They are found tree by tree, in
the form of Gabow and Manu ("Packing algorithms for arborescences (and spanning
trees) in capacitated graphs", 1998): a link is added if what it takes leaves
room for all trees to come, with as large a multiplicity as that allows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from topology import flow


class Branching(NamedTuple):
  """A spanning out-tree.

  Attributes:
    root: Node.
    units: How many copies of the tree there are.
    hops: (src, dst) in the order in which the tree reaches the nodes.
  """

  root: int
  units: int
  hops: tuple[tuple[int, int], ...]


def pack(
  nodes: int, links: Sequence[tuple[int, int, int]], starts: Sequence[int]
) -> list[Branching]:
  """Returns trees of which `starts[v]` start at each node v.

  One maximum flow for each link that is tried: some N for each of the trees,
  of which there are about as many as links.

  Args:
    nodes: Number of nodes, N.
    links: (src, dst, capacity), integers.
    starts: Integers [N].

  Raises:
    ValueError: If so many trees do not fit.
  """
  packer = _Packer(nodes, links, starts)
  trees = []
  for root in range(nodes):
    while packer.starts[root]:
      trees.append(packer.grow(root))
  return trees


class _Packer:
  """What is left of the links, and how many trees have still to start.

  Sets of nodes are integers of which bit v stands for node v.

  Attributes:
    starts: Per node, the trees that have to start there.
  """

  def __init__(
    self,
    nodes: int,
    links: Sequence[tuple[int, int, int]],
    starts: Sequence[int],
  ) -> None:
    self.starts = list(starts)
    self._room: list[dict[int, int]] = [{} for _ in range(nodes)]
    for src, dst, capacity in links:
      self._room[src][dst] = self._room[src].get(dst, 0) + capacity
    # Sets that are entered just as often as they have to be.  They stay so: a
    # tree enters each of them once, or never if it starts inside.
    self._tight: list[int] = []

  def grow(self, root: int) -> Branching:
    """Returns a tree, and takes it out of what is left."""
    units = self.starts[root]
    self.starts[root] = 0
    reached, hops = [root], []
    while len(reached) < len(self.starts):
      src, dst, fit = self._next(reached, units)
      if not fit:
        raise ValueError('Expected links with room for all trees.')
      if fit < units:  # The rest of them start afresh.
        self._reserve(hops, fit - units)
        self.starts[root] += units - fit
        self._tight = [s for s in self._tight if _once(s, root, hops)]
        units = fit
      self._reserve([(src, dst)], units)
      reached.append(dst)
      hops.append((src, dst))
    return Branching(root, units, tuple(hops))

  def _reserve(self, hops: Sequence[tuple[int, int]], units: int) -> None:
    for src, dst in hops:
      self._room[src][dst] -= units

  def _next(self, reached: Sequence[int], units: int) -> tuple[int, int, int]:
    """The link to add, nearest the root of those that fit most units."""
    inside = sum(1 << node for node in reached)
    closed = [tight for tight in self._tight if tight & inside]
    best = (-1, -1, 0)
    for src in reached:
      for dst, room in self._room[src].items():
        wanted = min(room, units)
        if inside >> dst & 1 or wanted <= best[2]:
          continue
        if any(tight >> dst & ~(tight >> src) & 1 for tight in closed):
          continue
        fit, around = self._fit(src, dst, wanted)
        if fit == units:
          return src, dst, fit
        if fit > best[2]:
          best = (src, dst, fit)
        if not fit:
          self._tight.append(around)
          closed.append(around)
    return best

  def _fit(self, src: int, dst: int, wanted: int) -> tuple[int, int]:
    """How many units the link can give without harm to the trees to come.

    A set that holds dst but not src must still be entered as often as trees
    start outside of it; the tightest one is a minimum cut.

    Returns:
      The units and, if there are less than wanted, the set; otherwise 0.
    """
    network: flow.Residual = [dict(row) for row in self._room]
    for node, count in enumerate(self.starts):
      if count and node != src:
        network[src][node] = network[src].get(node, 0) + count
    for a, row in enumerate(network):
      for b in list(row):
        network[b].setdefault(a, 0)
    needed = sum(self.starts)
    fit = flow.augment(network, src, dst, needed + wanted) - needed
    if fit == wanted:
      return fit, 0
    outside = sum(1 << node for node in flow.reach(network, src))
    return fit, ((1 << len(network)) - 1) & ~outside


def _once(tight: int, root: int, hops: Sequence[tuple[int, int]]) -> bool:
  """Whether a tree enters the set once in all, a start inside included."""
  entries = sum(tight >> b & ~(tight >> a) & 1 for a, b in hops)
  return entries + (tight >> root & 1) == 1
