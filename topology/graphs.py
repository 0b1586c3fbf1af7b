"""Clusters with nodes 0 to n - 1 and capacities that are integers."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from topology import cluster as clusters
from topology import flow, stopping


class Graph(NamedTuple):
  """A cluster in numbers.

  Attributes:
    nodes: Number of nodes; node v is the cluster's `nodes[v]`.
    workers: The nodes that are workers, ascending.
    worker: Per node, whether it is one.
    links: (src, dst, capacity) in the order of the cluster's links.
    scale: Capacities are this many times those of the cluster in GB/s.
  """

  nodes: int
  workers: tuple[int, ...]
  worker: tuple[bool, ...]
  links: tuple[tuple[int, int, int], ...]
  scale: int

  @classmethod
  def of(cls, cluster: clusters.Cluster) -> 'Graph':
    """Returns the cluster in numbers, its capacities without common factor."""
    index = {node: v for v, node in enumerate(cluster.nodes)}
    chosen = set(cluster.workers)
    scale = math.lcm(*(GBps.denominator for _, _, GBps in cluster.links))
    links = tuple(
      (index[src], index[dst], int(GBps * scale))
      for src, dst, GBps in cluster.links
    )
    return cls(
      len(cluster.nodes),
      tuple(index[worker] for worker in cluster.workers),
      tuple(node in chosen for node in cluster.nodes),
      links,
      scale,
    )


def scale(*values: Fraction) -> Fraction:
  """Returns the least factor that makes integers of all values, if not 0."""
  factor = math.lcm(*(value.denominator for value in values))
  common = math.gcd(*(int(value * factor) for value in values))
  return Fraction(factor, common)


class Rooted(NamedTuple):
  """A network with a source that feeds the workers, without flow.

  Attributes:
    residual: Nodes of the graph and, as the last one, the source.
    wanted: Capacity of all links out of the source.
  """

  residual: flow.Residual
  wanted: int

  def missing(
    self, worker: int, stop: stopping.Stop = stopping.never
  ) -> list[int] | None:
    """Returns nodes whose links out keep `worker` from getting all, or None.

    They are the largest source side of a minimum cut: sets around few nodes,
    and so the links that hold most workers back.  One maximum flow, before
    which `stop` is asked whether to give up.

    Raises:
      Stopped: If `stop` says so.
    """
    stopping.check(stop)
    residual = flow.copied(self.residual)
    source = len(residual) - 1
    if flow.augment(residual, source, worker, self.wanted) == self.wanted:
      return None
    behind = set(flow.reach_back(residual, worker))
    return [node for node in range(source) if node not in behind]


def rooted(
  nodes: int,
  links: Iterable[tuple[int, int, Fraction]],
  fed: Iterable[tuple[int, Fraction]],
) -> Rooted:
  """Returns the network in which a source feeds what the workers have to send.

  All workers get all only if all that is fed can flow to each of them.

  Args:
    nodes: Number of nodes.
    links: (src, dst, capacity).
    fed: Pairs of a worker and what it has to send, in the units of the links.
  """
  arcs = [*links, *((nodes, worker, amount) for worker, amount in fed)]
  scale = math.lcm(*(capacity.denominator for _, _, capacity in arcs))
  exact = [(src, dst, int(c * scale)) for src, dst, c in arcs]
  residual = flow.network(nodes + 1, exact)
  return Rooted(residual, sum(residual[nodes].values()))


def cut_links(
  graph: Graph, side: Sequence[int]
) -> tuple[int, list[int], list[int]]:
  """Returns the workers among nodes, by their number, and the links they have.

  Returns:
    The number of workers in `side`, and the indices of the links that leave
    it and of those that enter it.
  """
  inside = [False] * graph.nodes
  for node in side:
    inside[node] = True
  leaving, entering = [], []
  for i, (src, dst, _) in enumerate(graph.links):
    if inside[src] and not inside[dst]:
      leaving.append(i)
    elif inside[dst] and not inside[src]:
      entering.append(i)
  return sum(inside[w] for w in graph.workers), leaving, entering


def find(parent: list[int], node: int) -> int:
  """Returns the root of a node in a union-find forest, and shortens its way."""
  while parent[node] != node:
    parent[node] = parent[parent[node]]
    node = parent[node]
  return node


def join(parent: list[int], a: int, b: int) -> bool:
  """Makes one of two trees of a union-find forest; False if they are one."""
  a, b = find(parent, a), find(parent, b)
  parent[a] = b
  return a != b
