"""A cluster as a graph of integers: nodes 0 to n - 1, integer capacities."""

from collections.abc import Iterable
from typing import NamedTuple


class Graph(NamedTuple):
  """A cluster whose nodes and capacities are integers.

  Attributes:
    nodes: Number of nodes; node v is the cluster's `nodes[v]`.
    workers: The nodes that are workers, ascending.
    worker: Bool [nodes], True for workers.
    links: (src, dst, capacity) in the order of the cluster's links, without
      common denominator.
    scale: Capacities are this many times those of the cluster in GB/s.
  """

  nodes: int
  workers: tuple[int, ...]
  worker: tuple[bool, ...]
  links: tuple[tuple[int, int, int], ...]
  scale: int

  def without(self, node: int) -> list[int]:
    """Returns the nodes other than `node`, ascending."""
    return [v for v in range(self.nodes) if v != node]

  def cut(self, side: Iterable[int]) -> tuple[int, list[int], list[int]]:
    """Returns the number of workers in a set of nodes, and its outer links.

    Links are given by their indices, in two lists: out of the set, and into it.
    """
    inside = [False] * self.nodes
    for node in side:
      inside[node] = True
    leaving, entering = [], []
    for i, (src, dst, _) in enumerate(self.links):
      if inside[src] and not inside[dst]:
        leaving.append(i)
      elif inside[dst] and not inside[src]:
        entering.append(i)
    return sum(inside[w] for w in self.workers), leaving, entering
