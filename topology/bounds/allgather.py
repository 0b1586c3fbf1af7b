"""Computes the exact optimal rate of an allgather, and the links that limit it.

The largest k / capacity over all cuts is the bound of ForestColl (Zhao et al.,
arXiv 2402.06787, 2024): see `bounds.cuts`.  It can be met if no switch has more
capacity out than in, as trees can then be split off at the switches
(Bang-Jensen, Frank and Jackson, "Preserving and increasing local
edge-connectivity in mixed graphs", 1995).  Where a switch has more, the cuts
alone promise too much, as if it could copy; its capacity out is then reduced to
its capacity in, in the best way, which is a linear program over the cuts.

A reduce-scatter is an allgather run backwards: its bound is that of the
reversed cluster, whose cuts are to be read from dst to src.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from topology.algorithms import simplex, stopping
from topology.bounds import cuts, feeding
from topology.bounds.cuts import Cut
from topology.clusters.cluster import Cluster, Link
from topology.clusters.graph import Graph

_Links = list[tuple[int, int, Fraction]]


class Optimum(NamedTuple):
  """Optimum of an allgather.

  Attributes:
    inv_x: Seconds per GB: an allgather of M GB over N workers takes (M / N)
      inv_x, and so does a reduce-scatter in the reversed cluster.
    cut: The proof that none is faster.
    links: Links that suffice for it, with capacities of at most those of the
      cluster; no switch has more capacity out than in.
  """

  inv_x: Fraction
  cut: Cut
  links: tuple[Link, ...]


def bound(cluster: Cluster) -> tuple[Fraction | None, Cut | None]:
  """Returns the fewest seconds per GB of a worker's shard, and the proof.

  They are `inv_x` and `cut` of the optimum; (None, None) for a single worker,
  which has nothing to send.
  """
  if len(cluster.workers) == 1:
    return None, None
  best = optimum(cluster)
  return best.inv_x, best.cut


def optimum(cluster: Cluster, stop: stopping.Stop = stopping.never) -> Optimum:
  """Returns the best allgather of two or more workers.

  Newton's method on minimum cuts (Dinkelbach): from a rate that is too large,
  worker by worker, to the rate of the cut that forbids it, until the worker
  can receive all.  One maximum flow for each worker and each step down.  With
  more capacity out than in at a switch, cuts are collected in an exact linear
  program instead, with a variable for each link out of such switches and of
  those that they lead to: meant for up to some hundreds of links.

  Asks `stop` before each maximum flow and each pivot; raises `Stopped` then.
  """
  graph = cluster.graph
  variable = _adjustable(graph)
  x, side = _newton(graph, stop)
  if not variable:
    return Optimum(graph.scale / x, _cut(cluster, side), cluster.links)
  program = _Program(graph, variable, side, stop)
  rate, links = program.run(stop)
  names = cluster.nodes
  kept = tuple(
    Link(names[a], names[b], c / graph.scale) for a, b, c in links if c
  )
  return Optimum(graph.scale / rate, program.proof(cluster), kept)


def around_workers(cluster: Cluster) -> Cut:
  """Returns the cut around a single worker that proves the highest bound.

  A quick bound, which need not be the best: O(n m) for n workers and m links.
  """
  return _cut(cluster, _thinnest(cluster.graph)[1])


def _cut(cluster: Cluster, side: Sequence[int]) -> Cut:
  """Returns the proof by one cut."""
  nodes = tuple(cluster.nodes[v] for v in side)
  links = cuts.leaving(cluster, nodes)
  return Cut(nodes, links, ((Fraction(1), nodes),), ())


def _adjustable(graph: Graph) -> list[int]:
  """Returns the links whose capacity can be reduced."""
  # Out of switches with less capacity in than out, and out of all switches that
  # reduced links lead to.
  balance = [0] * graph.nodes
  for src, dst, capacity in graph.links:
    balance[src] -= capacity
    balance[dst] += capacity
  short = [
    v for v, own in enumerate(graph.worker) if not own and balance[v] < 0
  ]
  for node in short:  # Which grows.
    for src, dst, _ in graph.links:
      if src == node and not graph.worker[dst] and dst not in short:
        short.append(dst)
  return [i for i, (src, _, _) in enumerate(graph.links) if src in short]


def _thinnest(graph: Graph) -> tuple[Fraction, list[int]]:
  """Returns the smallest rate into a single worker, and its cut."""
  entering = [0] * graph.nodes
  for _, dst, capacity in graph.links:
    entering[dst] += capacity
  worker = min(reversed(graph.workers), key=entering.__getitem__)
  rate = Fraction(entering[worker], len(graph.workers) - 1)
  return rate, graph.without(worker)


def _newton(graph: Graph, stop: stopping.Stop) -> tuple[Fraction, list[int]]:
  """Returns the largest rate that all cuts allow, in graph units; its cut."""
  x, side = _thinnest(graph)
  network = _fed(graph, graph.links, x, stop)
  for worker in graph.workers:
    while (found := network.missing(worker, stop)) is not None:
      workers, leaving, _ = graph.cut(found)
      x = Fraction(sum(graph.links[i][2] for i in leaving), workers)
      side, network = found, _fed(graph, graph.links, x, stop)
  return x, side


def _fed(
  graph: Graph,
  links: Sequence[tuple[int, int, Fraction | int]],
  x: Fraction,
  stop: stopping.Stop,
) -> feeding.FeedNetwork:
  amounts = [(w, x) for w in graph.workers]
  return feeding.build_network(graph.nodes, links, amounts, stop)


class _Program:
  """Linear program of the best reduction of links, over cuts."""

  def __init__(
    self,
    graph: Graph,
    variable: list[int],
    side: list[int],
    stop: stopping.Stop,
  ) -> None:
    self._graph = graph
    self._place = {link: 1 + j for j, link in enumerate(variable)}
    self._switches = sorted({graph.links[i][0] for i in variable})
    rows = [self._switch_row(switch) for switch in self._switches]
    for link, j in self._place.items():
      row = [0] * (1 + len(variable))
      row[j] = 1
      rows.append((row, graph.links[link][2]))
    self._fixed = len(rows)
    around = [graph.without(worker) for worker in graph.workers]
    self._cuts = [side, *(cut for cut in around if cut != side)]
    rows += map(self._cut_row, self._cuts)
    objective = [1] + [0] * len(variable)
    self._solver = simplex.Program(objective, rows, stop)

  def run(self, stop: stopping.Stop) -> tuple[Fraction, _Links]:
    """Returns the rate and the links once no cut is violated."""
    graph = self._graph
    while True:
      z, self._prices = self._solver.solve()
      links = [
        (src, dst, z[self._place[i]] if i in self._place else Fraction(c))
        for i, (src, dst, c) in enumerate(graph.links)
      ]
      network = _fed(graph, links, z[0], stop)
      known = len(self._cuts)
      for worker in graph.workers:
        cut = network.missing(worker, stop)
        if cut is not None and cut not in self._cuts:
          self._cuts.append(cut)
          self._solver.add(*self._cut_row(cut))
      if len(self._cuts) == known:
        return z[0], links

  def proof(self, cluster: Cluster) -> Cut:
    """Returns the cuts and switches that have a price."""
    names = cluster.nodes
    of_cut = zip(self._prices[self._fixed :], self._cuts, strict=True)
    parts = [(y, tuple(names[v] for v in cut)) for y, cut in of_cut if y]
    paid = zip(self._switches, self._prices, strict=False)
    switches = tuple((names[switch], y) for switch, y in paid if y)
    _, nodes = max(parts, key=lambda part: part[0])
    return Cut(nodes, cuts.leaving(cluster, nodes), tuple(parts), switches)

  def _cut_row(self, side: Sequence[int]) -> tuple[list[int], int]:
    """Returns the row that keeps a cut's data within its capacity."""
    workers, leaving, _ = self._graph.cut(side)
    row, limit = [workers] + [0] * len(self._place), 0
    for i in leaving:
      if i in self._place:
        row[self._place[i]] = -1
      else:
        limit += self._graph.links[i][2]
    return row, limit

  def _switch_row(self, switch: int) -> tuple[list[int], int]:
    """Returns the row that keeps a switch's output within its input."""
    row, limit = [0] * (1 + len(self._place)), 0
    for i, (src, dst, capacity) in enumerate(self._graph.links):
      if switch in (src, dst) and i in self._place:
        row[self._place[i]] = 1 if src == switch else -1
      elif dst == switch:
        limit += capacity
    return row, limit
