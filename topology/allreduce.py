"""How fast an allreduce can be at best, exactly, and what proves it.

Sums go up trees while results go down others, all at the same time.  Each root
has a rate, the same up and down, and each link is divided between the two
directions.  Trees down exist if every set of nodes that lacks some worker can
send out the rates of all roots inside, and no switch sends out more than it
takes in; trees up, if the same holds with all links turned round (see
`topology.bounds`).  The largest sum of rates is therefore a linear program over
cuts, found one by one as minimum cuts.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from topology import cluster as clusters
from topology import graphs, simplex


class Stage(NamedTuple):
  """Half of a proof: cuts that the trees of one direction have to leave.

  Attributes:
    parts: Pairs of a weight and of nodes, some workers among them but not all.
    switch_prices: Pairs of a switch and a price, by which links out of the
      switch, in the direction of the trees away from the root, become cheaper
      and links into it dearer.
  """

  parts: tuple[tuple[Fraction, tuple[str, ...]], ...]
  switch_prices: tuple[tuple[str, Fraction], ...]


class Proof(NamedTuple):
  """Why an allreduce cannot be faster: what `proven` recomputes.

  Attributes:
    up: For the trees towards the roots, with all links turned round.
    down: For the trees away from the roots.
  """

  up: Stage
  down: Stage


class Optimum(NamedTuple):
  """The best allreduce.

  Attributes:
    rate_GBps: An allreduce of M GB takes M / rate_GBps seconds.
    proof: That none is faster.
    root_GBps: Per worker, the rate of the trees with their root there.
    up: What the trees towards the roots may use of each link.
    down: What the trees away from the roots may use of each link: if all links
      are alike in both directions, what those of `up` are, turned round.
  """

  rate_GBps: Fraction
  proof: Proof
  root_GBps: tuple[Fraction, ...]
  up: tuple[clusters.Link, ...]
  down: tuple[clusters.Link, ...]


def optimum(cluster: clusters.Cluster) -> Optimum:
  """Returns the best allreduce of two or more workers.

  An exact linear program with a variable for each worker and each use of a
  link, one use if all links are alike in both directions, else two.  Cuts
  around single workers to start with, then minimum cuts that are violated: one
  maximum flow for each worker, direction and round.  For some hundreds of
  links.
  """
  return _Search(cluster).run()


def proven(cluster: clusters.Cluster, proof: Proof) -> Fraction:
  """Returns a rate, in GB/s, that `proof` shows no allreduce to exceed.

  Each direction gives every link a price: the weights of the cuts that it
  leaves, corrected by the prices of switches, which cancel along a hop.  With
  the higher of the two prices, a pair of trees costs at least the weights of
  the cuts, of both directions, that hold its root, while all links together
  are worth price times capacity.  O(m) for each cut.

  Raises:
    ValueError: If it is no proof: a set of nodes that holds all workers or
      none, a negative weight, a price for what is no switch, or no cut around
      some root.
  """
  weight_of = dict.fromkeys(cluster.workers, Fraction(0))
  price: dict[tuple[str, str], Fraction] = {}
  for stage, turned in ((proof.up, True), (proof.down, False)):
    for src, dst, _ in cluster.links:
      ends = (dst, src) if turned else (src, dst)
      price[src, dst] = max(
        price.get((src, dst), Fraction(0)), _price(stage, ends)
      )
    _check(cluster, stage)
    for weight, nodes in stage.parts:
      inside = set(nodes)
      for worker in cluster.workers:
        weight_of[worker] += weight if worker in inside else 0
  least = min(weight_of.values())
  if not least:
    raise ValueError('Expected cuts around every root, got none around one.')
  return sum(price[a, b] * c for a, b, c in cluster.links) / least


def _check(cluster: clusters.Cluster, stage: Stage) -> None:
  workers, switches = set(cluster.workers), set(cluster.switches)
  for switch, price in stage.switch_prices:
    if switch not in switches or price < 0:
      raise ValueError(f'Expected prices of switches, got {switch}, {price}.')
  for weight, nodes in stage.parts:
    if weight < 0 or workers <= set(nodes) or not workers & set(nodes):
      raise ValueError(f'Expected some workers, got {weight}, {nodes}.')


def _price(stage: Stage, ends: tuple[str, str]) -> Fraction:
  src, dst = ends
  price_of = dict(stage.switch_prices)
  price = price_of.get(dst, Fraction(0)) - price_of.get(src, Fraction(0))
  for weight, nodes in stage.parts:
    if src in nodes and dst not in nodes:
      price += weight
  return price


class _Search:
  """The linear program and the cuts found so far.

  Variables are the rates of the workers, what trees down may use of each link
  and, unless the cluster is symmetric, what trees up may use of it.  In a
  symmetric cluster trees up may be those down, turned round: of any solution
  and its reversal the mean is as good.
  """

  def __init__(self, cluster: clusters.Cluster) -> None:
    self._cluster = cluster
    self._graph = graph = graphs.Graph.of(cluster)
    self._symmetric = cluster == cluster.reversed()
    count, m = len(graph.workers), len(graph.links)
    self._down = list(range(count, count + m))
    self._up = list(range(count + m, count + 2 * m))
    if self._symmetric:
      index = {(src, dst): i for i, (src, dst, _) in enumerate(graph.links)}
      self._up = [self._down[index[b, a]] for a, b, _ in graph.links]
    self._size = count + (m if self._symmetric else 2 * m)
    self._directions = (False,) if self._symmetric else (False, True)
    self._switches = [
      (turned, v)
      for turned in self._directions
      for v in range(graph.nodes)
      if not graph.worker[v]
    ]
    self._cuts = [
      (turned, [v for v in range(graph.nodes) if v != worker])
      for turned in self._directions
      for worker in graph.workers
    ]

  def run(self) -> Optimum:
    """Returns the optimum once no cut is violated."""
    objective = [0] * self._size
    objective[: len(self._graph.workers)] = [1] * len(self._graph.workers)
    rows = [self._switch_row(*key) for key in self._switches]
    rows += [self._cut_row(*key) for key in self._cuts]
    rows += self._link_rows()
    program = simplex.Program(objective, *zip(*rows, strict=True))
    # Prices come by row: of switches, of these cuts, of links, of new cuts.
    first = len(self._switches), len(self._cuts), len(rows)
    while True:
      z, prices = program.solve()
      new = self._violated(z)
      if not new:
        break
      for key in new:
        self._cuts.append(key)
        program.add(*self._cut_row(*key))
    of_switch = prices[: first[0]]
    of_cut = prices[first[0] : first[0] + first[1]] + prices[first[2] :]
    return self._answer(z, of_switch, of_cut)

  def _link_rows(self) -> list[tuple[list[int], int]]:
    rows = []
    for i, (src, dst, capacity) in enumerate(self._graph.links):
      if not self._symmetric or src < dst:  # Else the same as its reverse.
        row = [0] * self._size
        row[self._down[i]] = row[self._up[i]] = 1
        rows.append((row, capacity))
    return rows

  def _switch_row(self, turned: bool, switch: int) -> tuple[list[int], int]:
    """The row that holds the use out of a switch below that into it."""
    row = [0] * self._size
    use = self._up if turned else self._down
    for i, (src, dst, _) in enumerate(self._graph.links):
      if switch in (src, dst):
        row[use[i]] = 1 if (src == switch) != turned else -1
    return row, 0

  def _cut_row(
    self, turned: bool, side: Sequence[int]
  ) -> tuple[list[int], int]:
    """The row that holds the rates inside below the use of links out."""
    row, inside = [0] * self._size, set(side)
    for i, worker in enumerate(self._graph.workers):
      row[i] = int(worker in inside)
    _, leaving, entering = graphs.cut_links(self._graph, side)
    use = self._up if turned else self._down
    for i in entering if turned else leaving:
      row[use[i]] = -1
    return row, 0

  def _violated(self, z: Sequence[Fraction]) -> list[tuple[bool, list[int]]]:
    graph = self._graph
    new = []
    fed = list(zip(graph.workers, z, strict=False))
    for turned in self._directions:
      links = [
        (b, a, z[self._up[i]]) if turned else (a, b, z[self._down[i]])
        for i, (a, b, _) in enumerate(graph.links)
      ]
      network = graphs.rooted(graph.nodes, links, fed)
      for worker in graph.workers:
        side = network.missing(worker)
        if side is not None and (turned, side) not in new:
          new.append((turned, side))
    return new

  def _answer(
    self,
    z: Sequence[Fraction],
    of_switch: Sequence[Fraction],
    of_cut: Sequence[Fraction],
  ) -> Optimum:
    names, scale = self._cluster.nodes, self._graph.scale
    stages = []
    for turned in (True, False):
      wanted = False if self._symmetric else turned
      parts = tuple(
        (price, tuple(names[v] for v in side))
        for price, (way, side) in zip(of_cut, self._cuts, strict=True)
        if price and way == wanted
      )
      prices = tuple(
        (names[v], price)
        for price, (way, v) in zip(of_switch, self._switches, strict=True)
        if price and way == wanted
      )
      stages.append(Stage(parts, prices))
    count = len(self._graph.workers)
    roots = tuple(rate / scale for rate in z[:count])
    up, down = (
      tuple(
        clusters.Link(src, dst, z[use[i]] / scale)
        for i, (src, dst, _) in enumerate(self._cluster.links)
        if z[use[i]]
      )
      for use in (self._up, self._down)
    )
    return Optimum(sum(roots, Fraction(0)), Proof(*stages), roots, up, down)
