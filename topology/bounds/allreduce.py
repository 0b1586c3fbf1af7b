"""Computes the exact optimal rate of an allreduce, and its proof.

Sums go up trees while results go down others, all at the same time.  Each root
has a rate, the same up and down, and each link is divided between the two
directions.  Trees down exist if every set of nodes that lacks some worker can
send out the rates of all roots inside, and no switch sends out more than it
takes in; trees up, if the same holds with all links turned round (see
`bounds.allgather`).  The largest sum of rates is therefore a linear program
over cuts, found one by one as minimum cuts.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from topology.algorithms import simplex, stopping
from topology.bounds import feeding, prices
from topology.clusters.cluster import Cluster, Link

_Row = tuple[list[int], int]  # Row of a linear program: columns, and limit.
_Side = tuple[bool, list[int]]  # A cut, of the reversed links if True.


class Optimum(NamedTuple):
  """Optimum of an allreduce.

  Attributes:
    rate_GBps: An allreduce of M GB takes M / rate_GBps seconds.
    prices: The proof that none is faster, for `prices.prove_rate`; None if the
      phases do not overlap.
    root_GBps: Per worker, the rate of the trees with their root there.
    up: Capacity of each link for the trees towards the roots.
    down: Capacity of each link for the trees away from the roots.  If all links
      are alike in both directions, it is `up` reversed.
  """

  rate_GBps: Fraction
  prices: prices.Prices | None
  root_GBps: tuple[Fraction, ...]
  up: tuple[Link, ...]
  down: tuple[Link, ...]


def optimum(
  cluster: Cluster,
  *,
  overlap: bool = True,
  stop: stopping.Stop = stopping.never,
) -> Optimum:
  """Returns the best allreduce of two or more workers.

  An exact linear program with a variable for each worker and each use of a
  link, one use if all links are alike in both directions, else two.  It begins
  with cuts around single workers; then violated minimum cuts are added: one
  maximum flow for each worker, direction and round, and `stop` is asked before
  each and each pivot.  For some hundreds of links.

  Without `overlap`, sums first go up and then results go down, with the same
  division of the time on all links.
  """
  return _Search(cluster, overlap).run(stop)


class _Search:
  """Linear program over cuts, with its initial cuts.

  Variables are the rates of the workers, the capacity of each link for trees
  down and, unless the cluster is symmetric, for trees up.  In a symmetric
  cluster trees up may be those down, reversed: the mean of any solution and its
  reversal is as good.
  """

  def __init__(self, cluster: Cluster, overlap: bool) -> None:
    self._overlap = overlap
    self._cluster = cluster
    self._graph = graph = cluster.graph
    count, m = len(graph.workers), len(graph.links)
    self._down = list(range(count, count + m))
    self._up = list(range(count + m, count + 2 * m))
    self._limited, self._directions = list(range(m)), [False, True]
    if cluster.symmetric:
      place = {(a, b): self._down[i] for i, (a, b, _) in enumerate(graph.links)}
      self._up = [place[b, a] for a, b, _ in graph.links]
      # The others are the same as their reverse.
      self._limited = [i for i, (a, b, _) in enumerate(graph.links) if a < b]
      self._directions = [False]
    self._size = count + m * len(self._directions) + (not overlap)

  def run(self, stop: stopping.Stop) -> Optimum:
    """Returns the optimum once no cut is violated."""
    graph, count = self._graph, len(self._graph.workers)
    rows = [
      self._switch_row(turned, node)
      for turned in self._directions
      for node in range(graph.nodes)
      if not graph.worker[node]
    ]
    rows += [
      self._cut_row(turned, graph.without(worker))
      for turned in self._directions
      for worker in graph.workers
    ]
    first = len(rows)
    rows += self._link_rows() if self._overlap else self._phase_rows()
    objective = [1] * count + [0] * (self._size - count)
    program = simplex.Program(objective, rows, stop)
    while True:
      z, of_row = program.solve()
      new = self._violated(z, stop)
      if not new:
        break
      for key in new:
        program.add(*self._cut_row(*key))
    # The dual prices of the rows of links: they pay for the cuts that trees of
    # either direction leave, and prove the optimum by themselves.
    return self._answer(z, of_row[first : first + len(self._limited)])

  def _row(self, entries: Iterable[tuple[int, int]], limit: int = 0) -> _Row:
    row = [0] * self._size
    for variable, entry in entries:
      row[variable] = entry
    return row, limit

  def _link_rows(self) -> list[_Row]:
    return [
      self._row([(self._down[i], 1), (self._up[i], 1)], self._graph.links[i][2])
      for i in self._limited
    ]

  def _phase_rows(self) -> list[_Row]:
    """Returns rows that give links to sums for a while, then to results."""
    # The last variable is the share of the time for sums.  It is one half if
    # all links are alike in both directions.
    last, rows = self._size - 1, []
    for i, (_, _, capacity) in enumerate(self._graph.links):
      down, up = (self._down[i], 1), (self._up[i], 1)
      rows += [
        self._row([down, (last, capacity)], capacity),
        self._row([up, (last, -capacity)]),
      ]
    return rows

  def _switch_row(self, turned: bool, switch: int) -> _Row:
    """Returns the row that keeps a switch's output within its input."""
    use = self._up if turned else self._down
    return self._row(
      (use[i], 1 if (src == switch) != turned else -1)
      for i, (src, dst, _) in enumerate(self._graph.links)
      if switch in (src, dst)
    )

  def _cut_row(self, turned: bool, side: Sequence[int]) -> _Row:
    """Returns the row that keeps the rates inside within the links out."""
    inside = set(side)
    roots = [i for i, w in enumerate(self._graph.workers) if w in inside]
    _, leaving, entering = self._graph.cut(side)
    use = self._up if turned else self._down
    out = [(use[i], -1) for i in (entering if turned else leaving)]
    return self._row([*((root, 1) for root in roots), *out])

  def _violated(
    self, z: Sequence[Fraction], stop: stopping.Stop
  ) -> list[_Side]:
    graph = self._graph
    new: list[_Side] = []
    fed = list(zip(graph.workers, z, strict=False))
    for turned in self._directions:
      links = [
        (b, a, z[self._up[i]]) if turned else (a, b, z[self._down[i]])
        for i, (a, b, _) in enumerate(graph.links)
      ]
      network = feeding.build_network(graph.nodes, links, fed)
      for worker in graph.workers:
        side = network.missing(worker, stop)
        if side is not None and (turned, side) not in new:
          new.append((turned, side))
    return new

  def _answer(
    self, z: Sequence[Fraction], of_row: Sequence[Fraction]
  ) -> Optimum:
    scale, links = self._graph.scale, self._cluster.links
    roots = tuple(rate / scale for rate in z[: len(self._graph.workers)])
    up, down = (
      tuple(
        Link(src, dst, z[j] / scale)
        for j, (src, dst, _) in zip(use, links, strict=True)
        if z[j]
      )
      for use in (self._up, self._down)
    )
    proof = None
    if self._overlap:
      price_of = dict(zip(self._limited, of_row, strict=True))
      # Price of a link, or of its reverse, which shares its variable.
      paid = {self._down[i]: price for i, price in price_of.items()}
      paid |= {self._up[i]: price for i, price in price_of.items()}
      priced = zip(links, self._down, strict=True)
      proof = prices.Prices(
        tuple((a, b, paid[j]) for (a, b, _), j in priced if paid[j])
      )
    return Optimum(sum(roots, Fraction(0)), proof, roots, up, down)
