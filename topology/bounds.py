"""How fast a collective can be at best, exactly, and which links hold it back.

Switches only forward.  In an allgather at x GB per second and worker, each set
S of nodes that lacks some worker must send the data of its k workers out: the
links that leave it carry at least k x.  The largest k / capacity over all S is
the bound of ForestColl (Zhao et al., arXiv 2402.06787, 2024).  It can be met if
no switch has more capacity out than in, as trees can then be split off at the
switches (Bang-Jensen, Frank and Jackson, "Preserving and increasing local
edge-connectivity in mixed graphs", 1995).  Where a switch has more, the cuts
alone promise too much, as if it could copy; its capacity out is then reduced
to what comes in, in the best way, which is a linear program over the cuts.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from topology import cluster as clusters
from topology import graphs, simplex, stopping


class Cut(NamedTuple):
  """Why an allgather cannot be faster: what `proven` recomputes.

  Attributes:
    nodes: Ids of the bottleneck, a set of nodes that does not hold all
      workers, in the order of the cluster.
    links: The links (src, dst) that leave it.
    parts: Pairs of a weight and such a set of nodes.  One cut is a proof by
      itself unless a switch has more capacity out than in.
    switch_prices: Pairs of a switch and a price of at least 0, by which links
      out of the switch become cheaper and links into it dearer; none of them
      if one cut is a proof.
  """

  nodes: tuple[str, ...]
  links: tuple[tuple[str, str], ...]
  parts: tuple[tuple[Fraction, tuple[str, ...]], ...]
  switch_prices: tuple[tuple[str, Fraction], ...]


class Optimum(NamedTuple):
  """The best allgather.

  Attributes:
    inv_x: Seconds per GB: an allgather of M GB over N workers takes
      (M / N) inv_x, as do that many reduce-scatters in the reversed cluster.
    cut: The proof that none is faster.
    links: Links with which it can be met and of which no switch has more
      capacity out than in: those of the cluster, or less.
  """

  inv_x: Fraction
  cut: Cut
  links: tuple[clusters.Link, ...]


def allgather(
  cluster: clusters.Cluster,
) -> tuple[Fraction | None, Cut | None]:
  """Returns the least time of an allgather per GB and worker, and the proof.

  See `optimum` for the algorithm and its cost.

  Returns:
    (inv_x, cut), inv_x in seconds per GB: an allgather of M GB over N workers
    takes (M / N) inv_x seconds at least, and no longer if latency is ignored.
    (None, None) for a single worker, which has nothing to send.
  """
  if len(cluster.workers) == 1:
    return None, None
  best = optimum(cluster)
  return best.inv_x, best.cut


def reduce_scatter(
  cluster: clusters.Cluster,
) -> tuple[Fraction | None, Cut | None]:
  """Returns the same for a reduce-scatter, an allgather run backwards.

  Returns:
    (inv_x, cut) as of `allgather`.  The cut is one of the reversed cluster:
    its links are to be read from dst to src.
  """
  return allgather(cluster.reversed())


def optimum(
  cluster: clusters.Cluster, stop: stopping.Stop = stopping.never
) -> Optimum:
  """Returns the best allgather of two or more workers.

  Newton's method on minimum cuts (Dinkelbach): from a rate that is too large,
  worker by worker, to the rate of the cut that forbids it, until the worker
  can receive all.  One maximum flow for each worker and each step down.  With
  more capacity out than in at a switch, cuts are collected in an exact linear
  program instead, with a variable for each link out of such switches and of
  those that they lead to: meant for up to some hundreds of links.

  Args:
    cluster: Workers, switches and links.
    stop: Asked before each maximum flow and each pivot whether to give up.

  Raises:
    Stopped: If `stop` said so.
  """
  graph = graphs.Graph.of(cluster)
  variable = _adjustable(graph)
  x, side = _newton(graph, stop)
  if not variable:
    parts = [(Fraction(1), side)]
    return Optimum(*_answer(cluster, graph, x, parts, []), cluster.links)
  x, capacity, parts, prices = _program(graph, variable, side, stop)
  links = tuple(
    clusters.Link(src, dst, capacity[i] / graph.scale)
    for i, (src, dst, _) in enumerate(cluster.links)
    if capacity[i]
  )
  return Optimum(*_answer(cluster, graph, x, parts, prices), links)


def around_workers(cluster: clusters.Cluster) -> Cut:
  """Returns the cut around a single worker that proves most.

  A quick bound, which need not be the best: O(n m) for n workers and m links.
  """
  graph = graphs.Graph.of(cluster)
  x, side = _thinnest(graph)
  return _answer(cluster, graph, x, [(Fraction(1), side)], [])[1]


def proven(cluster: clusters.Cluster, cut: Cut) -> Fraction:
  """Returns the seconds per GB that `cut` proves to be needed at least.

  The links get prices: the weights of the cuts that they leave, less the price
  of the switch that they leave, plus that of the switch that they enter.
  Along a hop from worker to worker the prices of switches cancel, so that a
  tree costs at least the weights of the cuts that hold its root, while all
  links together are worth price times capacity.  O(m) for each cut.

  Raises:
    ValueError: If the cut is no proof: a set of nodes that holds all workers or
      none, a negative weight, one that is no fraction, or a price for what is
      no switch.
  """
  workers, switches = set(cluster.workers), set(cluster.switches)
  price_of = dict(cut.switch_prices)
  numbers = [*price_of.values(), *(weight for weight, _ in cut.parts)]
  if not all(isinstance(number, Fraction | int) for number in numbers):
    raise ValueError(f'Expected fractions, got {numbers}.')
  if not set(price_of) <= switches or min(price_of.values(), default=0) < 0:
    raise ValueError(f'Expected prices of switches, got {price_of}.')
  sides = [(weight, set(nodes)) for weight, nodes in cut.parts]
  needed = Fraction(0)
  for weight, side in sides:
    if weight < 0 or workers <= side or not workers & side:
      raise ValueError(f'Expected some workers, got {weight}, {sorted(side)}.')
    needed += weight * len(workers & side)
  worth = Fraction(0)
  for src, dst, GBps in cluster.links:
    price = price_of.get(dst, 0) - price_of.get(src, 0)
    for weight, side in sides:
      price += weight if src in side and dst not in side else 0
    worth += max(price, 0) * GBps
  if not worth:
    raise ValueError('Expected a cut with links out of it, got none.')
  return needed / worth


def leaving(
  cluster: clusters.Cluster, nodes: Sequence[str]
) -> tuple[tuple[str, str], ...]:
  """Returns the links (src, dst) that leave a set of nodes, in their order."""
  inside = set(nodes)
  return tuple(
    (src, dst)
    for src, dst, _ in cluster.links
    if src in inside and dst not in inside
  )


def _adjustable(graph: graphs.Graph) -> list[int]:
  """Links whose capacity may have to be reduced, by their index.

  Out of switches with less capacity in than out, and out of all switches that
  reduced links lead to.
  """
  balance = [0] * graph.nodes
  for src, dst, capacity in graph.links:
    balance[src] -= capacity
    balance[dst] += capacity
  short = [not graph.worker[v] and balance[v] < 0 for v in range(graph.nodes)]
  frontier = [v for v in range(graph.nodes) if short[v]]
  for node in frontier:
    for src, dst, _ in graph.links:
      if src == node and not graph.worker[dst] and not short[dst]:
        short[dst] = True
        frontier.append(dst)
  return [i for i, (src, _, _) in enumerate(graph.links) if short[src]]


def _thinnest(graph: graphs.Graph) -> tuple[Fraction, list[int]]:
  """The rate at which all can enter each single worker, and its cut."""
  entering = [0] * graph.nodes
  for _, dst, capacity in graph.links:
    entering[dst] += capacity
  worker = min(reversed(graph.workers), key=entering.__getitem__)
  rate = Fraction(entering[worker], len(graph.workers) - 1)
  return rate, [v for v in range(graph.nodes) if v != worker]


def _newton(
  graph: graphs.Graph, stop: stopping.Stop
) -> tuple[Fraction, list[int]]:
  """The largest rate that all cuts allow in the graph's units, and its cut."""
  x, side = _thinnest(graph)
  capacity = [Fraction(c) for _, _, c in graph.links]
  network = _fed(graph, capacity, x)
  for worker in graph.workers:
    while (found := network.missing(worker, stop)) is not None:
      x, side = _rate(graph, found), found
      network = _fed(graph, capacity, x)
  return x, side


def _fed(
  graph: graphs.Graph, capacity: Sequence[Fraction], x: Fraction
) -> graphs.Rooted:
  links = [
    (src, dst, c)
    for (src, dst, _), c in zip(graph.links, capacity, strict=True)
  ]
  return graphs.rooted(graph.nodes, links, [(w, x) for w in graph.workers])


def _rate(graph: graphs.Graph, side: Sequence[int]) -> Fraction:
  workers, leaving, _ = graphs.cut_links(graph, side)
  return Fraction(sum(graph.links[i][2] for i in leaving), workers)


def _program(
  graph: graphs.Graph,
  variable: list[int],
  side: list[int],
  stop: stopping.Stop,
) -> tuple[
  Fraction,
  list[Fraction],
  list[tuple[Fraction, list[int]]],
  list[tuple[int, Fraction]],
]:
  """The best reduction of links: rate, capacities, cuts, switch prices."""
  place = {link: 1 + j for j, link in enumerate(variable)}
  objective = [1] + [0] * len(variable)
  switches = sorted({graph.links[i][0] for i in variable})
  fixed = [_switch_row(graph, place, switch) for switch in switches]
  for link, j in place.items():
    row = [0] * len(objective)
    row[j] = 1
    fixed.append((row, graph.links[link][2]))
  others = [[v for v in range(graph.nodes) if v != w] for w in graph.workers]
  cuts = [side, *(cut for cut in others if cut != side)]
  rows = [_cut_row(graph, place, cut) for cut in cuts]
  program = simplex.Program(objective, *zip(*fixed, *rows, strict=True), stop)
  while True:
    z, prices = program.solve()
    capacity = [Fraction(c) for _, _, c in graph.links]
    for link, j in place.items():
      capacity[link] = z[j]
    network = _fed(graph, capacity, z[0])
    known = len(cuts)
    for worker in graph.workers:
      cut = network.missing(worker, stop)
      if cut is not None and cut not in cuts:
        cuts.append(cut)
        program.add(*_cut_row(graph, place, cut))
    if len(cuts) == known:
      break
  of_cut = prices[len(fixed) :]
  parts = [(y, cut) for y, cut in zip(of_cut, cuts, strict=True) if y]
  paid = [(s, y) for s, y in zip(switches, prices, strict=False) if y]
  return z[0], capacity, parts, paid


def _cut_row(
  graph: graphs.Graph, place: dict[int, int], side: Sequence[int]
) -> tuple[list[int], int]:
  """The row that holds the cut's data below the capacity of its links."""
  workers, leaving, _ = graphs.cut_links(graph, side)
  row, limit = [workers] + [0] * len(place), 0
  for i in leaving:
    if i in place:
      row[place[i]] = -1
    else:
      limit += graph.links[i][2]
  return row, limit


def _switch_row(
  graph: graphs.Graph, place: dict[int, int], switch: int
) -> tuple[list[int], int]:
  """The row that holds the switch's capacity out below its capacity in."""
  row, limit = [0] * (1 + len(place)), 0
  for i, (src, dst, capacity) in enumerate(graph.links):
    if src == switch:
      row[place[i]] += 1
    elif dst == switch and i in place:
      row[place[i]] -= 1
    elif dst == switch:
      limit += capacity
  return row, limit


def _answer(
  cluster: clusters.Cluster,
  graph: graphs.Graph,
  x: Fraction,
  parts: Sequence[tuple[Fraction, Sequence[int]]],
  prices: Sequence[tuple[int, Fraction]],
) -> tuple[Fraction, Cut]:
  names = cluster.nodes
  named = tuple((w, tuple(names[v] for v in side)) for w, side in parts)
  _, nodes = max(named, key=lambda part: part[0])
  links = leaving(cluster, nodes)
  switch_prices = tuple((names[v], price) for v, price in prices)
  return graph.scale / x, Cut(nodes, links, named, switch_prices)
