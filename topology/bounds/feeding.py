"""Checks by flows whether links can bring all data to all workers."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from topology.algorithms import flow, stopping


class FeedNetwork(NamedTuple):
  """A network with a source that feeds the workers, without flow."""

  residual: (
    flow.Residual
  )  # Nodes of the graph and, as the last one, the source.
  wanted: int  # Capacity of all links out of the source.

  def missing(self, worker: int, stop: stopping.Stop) -> list[int] | None:
    """Returns nodes whose links out keep `worker` from getting all, or None.

    They are the largest source side of a minimum cut: sets around few nodes,
    and so the links that hold most workers back.  One maximum flow, unless
    `stop` says to give up.
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
  """Returns the network in which a source feeds what the workers have to send.

  All workers get all only if all that is fed can flow to each of them.  Links
  are (src, dst, capacity); amounts are pairs of a worker and what it has to
  send, in units of the links.  `stop` is asked now and then.
  """
  arcs = [*links, *((nodes, worker, amount) for worker, amount in amounts)]
  scale = math.lcm(*(capacity.denominator for _, _, capacity in arcs))
  exact = [
    (src, dst, int(c * scale)) for src, dst, c in stopping.iterate(arcs, stop)
  ]
  residual = flow.network(nodes + 1, stopping.iterate(exact, stop))
  return FeedNetwork(residual, sum(residual[nodes].values()))
