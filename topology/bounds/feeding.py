"""Checks by maximum flows that links can bring all data to all workers."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from topology.algorithms import flow, stopping


class FeedNetwork(NamedTuple):
  """A network with a source that feeds the workers, before any flow.

  Attributes:
    residual: Residual capacities; the source is the last node.
    wanted: Capacity of all links out of the source.
  """

  residual: flow.Residual
  wanted: int

  def missing(self, worker: int, stop: stopping.Stop) -> list[int] | None:
    """Returns a cut that keeps `worker` from receiving all; None without one.

    The cut is the largest source side of a minimum cut, so that it surrounds
    few nodes and limits many workers.  Costs one maximum flow; raises `Stopped`
    if `stop` returns True.
    """
    stopping.check(stop)
    residual = flow.copy(self.residual)
    source = len(residual) - 1
    if flow.augment(residual, source, worker, self.wanted) == self.wanted:
      return None
    behind = set(flow.reach_back(residual, worker))
    return [node for node in range(source) if node not in behind]


def build_network(
  nodes: int,
  links: Iterable[tuple[int, int, Fraction | int]],
  amounts: Iterable[tuple[int, Fraction | int]],
  stop: stopping.Stop = stopping.never,
) -> FeedNetwork:
  """Returns a flow network in which a source feeds each worker its own data.

  The source is an additional node with an arc to each worker.  Every worker can
  receive all data if and only if all that the source feeds can flow to each of
  them (maximum flow and minimum cut).  Capacities are scaled to integers.

  Args:
    nodes: Number of nodes.
    links: (src, dst, capacity) of each link.
    amounts: Pairs of a worker and the amount of its data, in the units of the
      links.
    stop: Function that returns True to raise `Stopped`, called regularly.

  Raises:
    Stopped: If `stop` has returned True.
  """
  arcs = [*links, *((nodes, worker, amount) for worker, amount in amounts)]
  scale = math.lcm(*(capacity.denominator for _, _, capacity in arcs))
  exact = [
    (src, dst, int(c * scale)) for src, dst, c in stopping.iterate(arcs, stop)
  ]
  residual = flow.network(nodes + 1, stopping.iterate(exact, stop))
  return FeedNetwork(residual, sum(residual[nodes].values()))
