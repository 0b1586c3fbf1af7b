"""Forests for large clusters, with a bound that says how good they are.

Some tens to hundreds of trees, each grown hop by hop at prices that rise
(`topology.growing`), then weighted by a linear program (`topology.weights`),
whose dual prices bound an allreduce, beside others (`topology.pricing`).
"""

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from topology import bounds, growing, pricing, routing, stopping, weights
from topology import cluster as clusters
from topology import prices as certificates
from topology.trees import Column

_FIRST = 16  # Trees of the first attempt; each later one has twice as many.
_LAST = 512  # Trees of the last attempt.
_ATTEMPTS = 16  # At an allgather, each with a tree for each root.
_WHOLE = 2**24  # Weights are rounded to this part of their sum.
_ROUNDS = 128  # Spanning trees for the bound before the first attempt.

Report = Callable[[int, float, float], None]  # Of trees, rate, bound in GB/s.


class Packing(NamedTuple):
  """What was found.

  Attributes:
    columns: Trees with weights.
    certificate: Of the bound, as `trees.Forest` has it.
  """

  columns: list[Column]
  certificate: bounds.Cut | certificates.Prices


def allreduce(
  cluster: clusters.Cluster,
  *,
  gap: float,
  max_trees: int | None,
  stop: stopping.Stop,
  report: Report,
) -> Packing:
  """Returns trees up and down for two or more workers.

  Args:
    cluster: Workers, switches and links.
    gap: Attempts end when 1 - rate / bound is at most this.
    max_trees: The most trees, at least 1, or None.
    stop: Says when to end with what there is, which is one tree at least.
    report: Told after each attempt.
  """
  network = routing.Network(cluster, paired=cluster == cluster.reversed())
  bound = pricing.Bound(cluster, network)
  if network.paired:
    bound.follow(_ROUNDS, stop)
    grow = growing.paired
  else:
    grow = growing.two_way
  last = min(max_trees or _LAST, _LAST)
  search = _Search(cluster, network, max_trees)
  for count in _doubled(min(_FIRST, last), last):
    search.add(grow(network, count, bound.rate, stop))
    bound.improve(search.prices)
    report(len(search.columns), search.rate, bound.rate)
    if search.rate >= (1 - gap) * bound.rate or stop():
      break
  return Packing(search.columns, bound.certificate())


def allgather(
  cluster: clusters.Cluster,
  cut: bounds.Cut,
  *,
  gap: float,
  max_trees: int | None,
  stop: stopping.Stop,
  report: Report,
) -> Packing:
  """Returns trees down for two or more workers, the same weight for each root.

  Args:
    cluster: Workers, switches and links.
    cut: The proof of a bound, which tells the rate to aim at.
    gap: As in `allreduce`.
    max_trees: The most trees, at least one for each worker, or None.
    stop: Says when to end with what there is, once each worker has a tree.
    report: As in `allreduce`.
  """
  network = routing.Network(cluster, paired=False)
  workers = len(network.workers)
  bound = float(1 / bounds.proven(cluster, cut))
  last = min((max_trees or _ATTEMPTS * workers) // workers, _ATTEMPTS)
  search = _Search(cluster, network, max_trees)
  for attempt in range(last):
    full = search.used * attempt / (attempt + 1)
    unit = bound / (attempt + 1)
    search.add(growing.one_way(network, unit, full, stop))
    report(len(search.columns), search.rate, workers * bound)
    if search.rate >= (1 - gap) * workers * bound or stop():
      break
  return Packing(search.columns, cut)


def _doubled(first: int, last: int) -> Iterator[int]:
  """Yields first, twice as much and so on, and last."""
  while first < last:
    yield first
    first *= 2
  yield last


class _Search:
  """The trees so far, and their best weights.

  Attributes:
    columns: The trees that have a weight.
    rate: GB/s of all of them.
    prices: Floats [c], the dual prices of the weights.
    used: Floats [c], the share of each link that the trees use.
  """

  def __init__(
    self,
    cluster: clusters.Cluster,
    network: routing.Network,
    max_trees: int | None,
  ) -> None:
    self._names = cluster.nodes
    self._network = network
    self._most = max_trees
    self._trees: dict[growing.Grown, None] = {}
    self.columns: list[Column] = []
    self.rate = 0.0
    self.prices = np.ones(len(network.capacity))
    self.used = np.zeros(len(network.capacity))

  def add(self, grown: Iterator[growing.Grown]) -> None:
    """Adds trees, and weighs all anew."""
    new = dict.fromkeys(grown)
    self._trees |= new
    weight = self._weigh(list(self._trees))
    if self._most is not None and np.count_nonzero(weight) > self._most:
      # The heaviest of all, or the new ones alone: whichever are faster.
      self._weigh(self._heaviest(weight))
      self._weigh(list(new)[: self._most])

  def _weigh(self, trees: list[growing.Grown]) -> np.ndarray:
    """The best weights; kept, if they are few enough, as columns."""
    network = self._network
    one_way = not trees[0].up
    roots = np.array([tree.root for tree in trees]) if one_way else None
    table = _loads(network, trees)
    weight, prices = weights.best(table, network.capacity, roots)
    rate = float(weight.sum())
    few = self._most is None or np.count_nonzero(weight) <= self._most
    if few and rate > self.rate:
      self.rate = rate
      self.columns = [
        self._column(tree, units)
        for tree, units in zip(trees, _whole(weight, roots), strict=True)
        if units
      ]
    if len(trees) == len(self._trees):
      self.prices = prices
      self.used = table @ weight / network.capacity
    return weight

  def _heaviest(self, weight: np.ndarray) -> list[growing.Grown]:
    """As many as there may be, first the heaviest of each root in turn."""
    order = np.argsort(-weight, kind='stable').tolist()
    trees = list(self._trees)
    if not trees[0].up:
      rank: dict[int, int] = collections.Counter()
      place = []
      for k in order:
        place.append((rank[trees[k].root], len(place), k))
        rank[trees[k].root] += 1
      order = [k for _, _, k in sorted(place)]
    return [trees[k] for k in sorted(order[: self._most])]

  def _column(self, tree: growing.Grown, units: int) -> Column:
    names, path = self._names, self._network.path
    up, down = (
      [tuple(names[v] for v in path(hop)) for hop in hops]
      for hops in (reversed(tree.up), tree.down)
    )
    return Column(names[tree.root], units, up, down)


def _whole(weight: np.ndarray, roots: np.ndarray | None) -> list[int]:
  """The weights as integers, of the same sum for each root."""
  owners = np.zeros(len(weight), int) if roots is None else roots
  units = np.zeros(len(weight), int)
  for root in np.unique(owners):
    own = np.flatnonzero(owners == root)
    units[own] = np.floor(weight[own] / weight[own].sum() * _WHOLE)
    units[own[weight[own].argmax()]] += _WHOLE - units[own].sum()
  return units.tolist()


def _loads(network: routing.Network, trees: list[growing.Grown]) -> np.ndarray:
  """How often each tree uses what: floats [c, trees]."""
  table = np.zeros((len(network.capacity), len(trees)))
  for k, tree in enumerate(trees):
    # On paired links what goes up is what goes down, over the other link.
    hops = tree.down if network.paired else (*tree.up, *tree.down)
    uses = list(itertools.chain.from_iterable(hop.uses for hop in hops))
    table[:, k] = np.bincount(uses, minlength=len(table))
  return table
