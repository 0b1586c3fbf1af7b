"""A cluster as arrays, and cheap hops between its workers.

Packing in floating point changes the prices of links with every tree, so that
cheap hops are searched again each time, in a few sweeps over all links (nodes
around their nearest worker: Mehlhorn, "A faster approximation algorithm for the
Steiner problem in graphs", 1988).  All operations are elementwise and rounded
by IEEE 754, so that every machine finds the same hops.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from topology.algorithms import stopping
from topology.algorithms.components import Components
from topology.clusters.cluster import Cluster

_Way = tuple[int, ...]  # Links, in the order in which they are passed.


class Hop(NamedTuple):
  """A path of links from one worker to another, through switches only."""

  src: int
  dst: int
  links: tuple[int, ...]  # On the way, as indices into `Arrays.src`.
  uses: tuple[
    int, ...
  ]  # Indices of the capacities used, into `Arrays.capacity`.


class Cells(NamedTuple):
  """Each node's nearest workers, at some prices."""

  away: np.ndarray  # Floats [n], the price of the way from some worker to it.
  home: np.ndarray  # Floats [n], that of the way from it to some worker.
  there: list[_Way | None]  # The links of the former; None if there is no way.
  back: list[_Way | None]  # The links of the latter.
  source: np.ndarray  # Integers [n], where the former starts, or -1.
  sink: np.ndarray  # Integers [n], where the latter ends, or -1.


class Arrays:
  """The links of a cluster, as arrays.

  Attributes:
    nodes: Number of nodes, n; node v is the cluster's `nodes[v]`.
    workers: The nodes that are workers, N of them, ascending.
    paired: Whether a link and its reverse are used alike and so share one
      capacity: for an allreduce on links alike in both directions.
    src: Integers [m], the node that each link leaves.
    dst: Integers [m], the node that it enters.
    use: Integers [m], the place of its capacity.
    capacity: Floats [c] in GB/s.
  """

  def __init__(
    self,
    cluster: Cluster,
    *,
    paired: bool,
    stop: stopping.Stop = stopping.never,
  ) -> None:
    graph = cluster.graph
    self.nodes = graph.nodes
    self.workers = list(graph.workers)
    self.paired = paired
    given = stopping.iterate(graph.links, stop)
    self._ends = [(a, b) for a, b, _ in given]
    self.src = np.array([a for a, _ in self._ends])
    self.dst = np.array([b for _, b in self._ends])
    place: dict[tuple[int, int], int] = {}
    ends = stopping.iterate(self._ends, stop)
    keys = [(min(e), max(e)) if paired else e for e in ends]
    for key in stopping.iterate(keys, stop):
      place.setdefault(key, len(place))
    self.use = np.array([place[key] for key in stopping.iterate(keys, stop)])
    self.capacity = np.zeros(len(place))
    capacities = (GBps for _, _, GBps in stopping.iterate(cluster.links, stop))
    self.capacity[self.use] = [float(GBps) for GBps in capacities]
    self._uses = self.use.tolist()
    link_of = {ends: i for i, ends in enumerate(self._ends)}
    self._reverse = [link_of.get((b, a), -1) for a, b in self._ends]
    self._is_worker = np.array(graph.worker)
    into, out = self._is_worker[self.dst], self._is_worker[self.src]
    self._into_switch, self._out_of_switch = ~into, ~out
    self._inner = ~into & ~out
    self._switched = not self._is_worker.all()
    # Links that arms at switches always stand for; others only if cheap.
    self._access = np.flatnonzero(into ^ out).tolist()
    # One link of a pair is enough: its hop is used in both directions.
    self._once = np.flatnonzero((self.src < self.dst) | (not paired))
    direct = np.intersect1d(np.flatnonzero(into & out), self._once)
    links = stopping.iterate(direct.tolist(), stop)
    self._direct = [
      Hop(src, dst, (link,), (self._uses[link],))
      for link, (src, dst) in ((link, self._ends[link]) for link in links)
    ]

  def path(self, hop: Hop) -> tuple[int, ...]:
    """Returns the nodes on the way of a hop, from worker to worker."""
    return (hop.src, *(self._ends[link][1] for link in hop.links))

  def backwards(self, hop: Hop) -> Hop:
    """Returns the hop in the other direction, over paired links."""
    return Hop(hop.dst, hop.src, self._backwards(hop.links), hop.uses[::-1])

  def hops(self, prices: np.ndarray, turn: int) -> list[Hop]:
    """Returns cheap hops, usually enough to connect all workers.

    Without switches they are the links between workers.  Otherwise they are
    ways from cell to cell of `cells`: a cheapest tree of them, or the cheapest
    way out of and into each cell; and over links between switches the ways from
    each cell to each other.  At each switch, there are also ways from each arm
    to another, so that not all of them end at the nearest worker: `turn`, any
    integer, chooses which.
    """
    if not self._switched:
      return self._direct
    cells = self.cells(prices)
    if self.paired:
      _, kept = self.tree(cells, prices)
    else:
      kept = self._best(cells, prices)
    ways = [self._over(cells, link) for link in kept]
    ins, outs = self._arms(cells, dict.fromkeys([*self._access, *kept]))
    for switch, arriving in ins.items():
      leaving = outs.get(switch, [])
      # Arms are listed alike both ways: 0 would turn back where it came from.
      step = 1 + turn % max(len(leaving) - 1, 1)
      for i, way in enumerate(arriving if leaving else ()):
        ways.append((*way, *leaving[(i + step) % len(leaving)]))
    # Rounding can lead even a cheapest way through a node twice.
    hops = dict.fromkeys(map(self._hop, ways))
    return [hop for hop in hops if len(set(self.path(hop))) > len(hop.links)]

  def cells(self, prices: np.ndarray) -> Cells:
    """Returns the nearest workers of all nodes, in sweeps over all links."""
    costs = prices[self.use]
    away, via = self._nearest(costs, self._into_switch, self.src, self.dst)
    there = self._ways(via, self.src)
    if self.paired:
      home, back = away, [way and self._backwards(way) for way in there]
    else:
      home, on = self._nearest(costs, self._out_of_switch, self.dst, self.src)
      back = [way and way[::-1] for way in self._ways(on, self.dst)]
    source = self._owners(there, 0, self.src)
    sink = self._owners(back, -1, self.dst)
    return Cells(away, home, there, back, source, sink)

  def tree(self, cells: Cells, prices: np.ndarray) -> tuple[float, list[int]]:
    """Returns price and links of a minimum spanning tree of a paired network.

    By Kruskal's algorithm on ways from cell to cell; each link joins two cells.
    """
    links = self._once
    ends = self.src[links], self.dst[links]
    costs = cells.away[ends[0]] + prices[self.use[links]] + cells.away[ends[1]]
    order = np.argsort(costs, kind='stable')
    first = cells.source[ends[0]][order].tolist()
    second = cells.source[ends[1]][order].tolist()
    names, worth = links[order].tolist(), costs[order].tolist()
    components = Components(self.nodes)
    label, total, kept = components.label, 0.0, []
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
      if label[a] != label[b] and components.join(a, b):
        total += worth[i]
        kept.append(names[i])
        if len(kept) == len(self.workers) - 1:
          break
    return total, kept

  def loads(self, cells: Cells, kept: list[int]) -> np.ndarray:
    """Returns how often a tree of `tree` uses each capacity, floats [c]."""
    ends = np.concatenate([self.src[kept], self.dst[kept]])
    loads = np.bincount(self.use[kept], minlength=len(self.capacity))
    for node, times in zip(*np.unique(ends, return_counts=True), strict=True):
      for link in cells.there[node]:
        loads[self._uses[link]] += times
    return loads.astype(float)

  def around_thinnest(self) -> list[np.ndarray]:
    """Returns 1 for links into (out of) the worker of lowest rate, else 0."""
    around = []
    for ends in (self.dst, self.src):
      total = np.bincount(ends, self.capacity[self.use], self.nodes)
      thinnest = min(self.workers, key=total.__getitem__)
      around.append(self._marked(ends == thinnest))
    return around

  def layers(self) -> list[np.ndarray]:
    """Returns 1 for the links at each distance from the workers, else 0."""
    away, _ = self._nearest(
      np.ones(len(self.src)), self._into_switch, self.src, self.dst
    )
    distance = np.minimum(away[self.src], away[self.dst])
    values = np.unique(distance[np.isfinite(distance)])
    return [self._marked(distance == value) for value in values]

  def _marked(self, links: np.ndarray) -> np.ndarray:
    chosen = np.zeros(len(self.capacity))
    chosen[self.use[links]] = 1
    return chosen

  def nearest(
    self, reached: set[int], prices: Sequence[float], *, up: bool
  ) -> Hop:
    """Returns the cheapest hop from some workers to another, or `up` to them.

    Dijkstra's algorithm, O(m log n).
    """
    links: dict[int, list[int]] = {}
    for link, ends in enumerate(self._ends):
      links.setdefault(ends[up], []).append(link)
    queue: list[tuple[float, int, _Way]]
    queue = [(0.0, node, ()) for node in sorted(reached)]
    while queue:
      distance, node, way = heapq.heappop(queue)
      if self._is_worker[node] and node not in reached:
        return self._hop(way[::-1] if up else way)
      for link in links.pop(node, ()):
        cost = distance + prices[self._uses[link]]
        beside = self._ends[link][not up]
        heapq.heappush(queue, (cost, beside, (*way, link)))
    raise ValueError('Expected a way to some other worker, found none.')

  def _best(self, cells: Cells, prices: np.ndarray) -> list[int]:
    """Returns links of the cheapest hops from and to each worker."""
    source, sink = cells.source[self.src], cells.sink[self.dst]
    costs = cells.away[self.src] + prices[self.use] + cells.home[self.dst]
    links = np.flatnonzero((source >= 0) & (sink >= 0) & (source != sink))
    order = links[np.argsort(costs[links], kind='stable')]
    kept = [
      order[np.unique(owner[order], return_index=True)[1]]
      for owner in (source, sink)
    ]
    # Between switches too, from each cell to each other: the worker that is
    # cheapest to get to need not be able to send on.
    inner = order[self._inner[order]]
    pairs = source[inner] * self.nodes + sink[inner]
    kept.append(inner[np.unique(pairs, return_index=True)[1]])
    links_kept: list[int] = np.unique(np.concatenate(kept)).tolist()
    return links_kept

  def _arms(
    self, cells: Cells, links: Iterable[int]
  ) -> tuple[dict[int, list[_Way]], dict[int, list[_Way]]]:
    """Returns, per switch, ways from a worker to it and from it to a worker."""
    ins: dict[int, list[_Way]] = {}
    outs: dict[int, list[_Way]] = {}
    for link in links:
      for one in (link, self._reverse[link]) if self.paired else (link,):
        a, b = self._ends[one]
        there, back = cells.there[a], cells.back[b]
        if self._into_switch[one] and there is not None:
          ins.setdefault(b, []).append((*there, one))
        if self._out_of_switch[one] and back is not None:
          outs.setdefault(a, []).append((one, *back))
    return ins, outs

  def _over(self, cells: Cells, link: int) -> _Way:
    a, b = self._ends[link]
    return (*(cells.there[a] or ()), link, *(cells.back[b] or ()))

  def _hop(self, way: _Way) -> Hop:
    uses = tuple(self._uses[link] for link in way)
    return Hop(self._ends[way[0]][0], self._ends[way[-1]][1], way, uses)

  def _nearest(
    self,
    costs: np.ndarray,
    chosen: np.ndarray,
    tail: np.ndarray,
    head: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns distances from workers over switches, and last links of ways."""
    distance = np.where(self._is_worker, 0.0, np.inf)
    via = np.full(self.nodes, -1)
    links = np.flatnonzero(chosen)
    tails, heads, costs = tail[links], head[links], costs[links]
    while True:
      reach = distance[tails] + costs
      nearer = distance.copy()
      np.minimum.at(nearer, heads, reach)
      better = nearer < distance
      if not better.any():
        return distance, via
      hit = np.flatnonzero((reach == nearer[heads]) & better[heads])
      via[heads[hit]] = links[hit]
      distance = nearer

  def _ways(self, via: np.ndarray, tail: np.ndarray) -> list[_Way | None]:
    """Returns the links on the way of each node, from the worker on."""
    ways: list[_Way | None] = [() if own else None for own in self._is_worker]
    last, tails = via.tolist(), tail.tolist()
    for start in range(self.nodes):
      open_, node = [], start
      while ways[node] is None and last[node] >= 0:
        open_.append(node)
        node = tails[last[node]]
      way = ways[node]
      for node in reversed(open_):
        way = None if way is None else (*way, last[node])
        ways[node] = way
    return ways

  def _owners(
    self, ways: list[_Way | None], place: int, ends: np.ndarray
  ) -> np.ndarray:
    owner = np.full(self.nodes, -1)
    for node, way in enumerate(ways):
      if way is not None:
        owner[node] = ends[way[place]] if way else node
    return owner

  def _backwards(self, way: _Way) -> _Way:
    return tuple(self._reverse[link] for link in reversed(way))
