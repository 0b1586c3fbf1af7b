"""Forests for large clusters, with a bound that says how good they are.

Some tens to hundreds of trees, each grown hop by hop at prices that rise
(`topology.growing`), then weighted by a linear program (`topology.weights`),
whose dual prices bound an allreduce, beside others (`topology.pricing`).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from topology import bounds, growing, pricing, routing, stopping, weights
from topology import cluster as clusters
from topology import prices as certificates
from topology.trees import Column, Forest

_FIRST = 16  # Trees of the first attempt; each later one has twice as many.
_LAST = 512  # Trees of the last attempt.
_ATTEMPTS = 16  # At an allgather, each with a tree for each root.
_NEW = 128  # How often cheap hops are looked for in each of them, at most.
_WHOLE = 2**36  # Weights are rounded to this part of their sum.
_NEAR = 1 - 1e-6  # A rate that is as good as another.
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
  nothing = np.zeros(len(network.capacity))
  last = min(max_trees or _LAST, _LAST)
  search = _Search(cluster, network, max_trees, one_way=False)
  for count in _doubled(min(_FIRST, last), last):
    grower = growing.Grower(network, bound.rate / count, nothing)
    search.add(_until(stop, (grower.both() for _ in range(count))))
    bound.improve(search.prices)
    report(search.count, search.rate, bound.rate)
    if search.rate >= (1 - gap) * bound.rate * _NEAR or stop():
      break
  search.thin(min(search.rate, (1 - gap) * bound.rate) * _NEAR)
  return Packing(search.columns(), bound.certificate())


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
  search = _Search(cluster, network, max_trees, one_way=True)
  for attempt in range(last):
    full = search.used * attempt / (attempt + 1)
    unit = bound / (attempt + 1)
    grower = growing.Grower(network, unit, full, every=-(-workers // _NEW))
    search.add(
      grower.down(root, hasty=i > 0 and stop())
      for i, root in enumerate(network.workers)
    )
    report(search.count, search.rate, workers * bound)
    if search.rate >= (1 - gap) * workers * bound * _NEAR or stop():
      break
  search.thin(min(search.rate, (1 - gap) * workers * bound) * _NEAR)
  return Packing(search.columns(), cut)


def heaviest(
  cluster: clusters.Cluster, forest: Forest, count: int
) -> list[Column]:
  """Returns the heaviest trees of a forest, weighted for themselves.

  Args:
    cluster: Workers, switches and links.
    forest: Of the cluster, an allreduce or an allgather.
    count: How many trees; of an allgather at least one for each worker, which
      each worker then has.
  """
  one_way = forest.collective == 'allgather'
  order = sorted(forest.trees, key=lambda tree: -tree.share)
  if one_way:
    first = {tree.root: tree for tree in reversed(order)}
    order = [
      *first.values(),
      *(tree for tree in order if tree is not first[tree.root]),
    ]
  chosen = order[:count]
  place = {(src, dst): i for i, (src, dst, _) in enumerate(cluster.links)}
  table = np.zeros((len(place), len(chosen)))
  for k, tree in enumerate(chosen):
    for hop in (*tree.up, *tree.down):
      for ends in itertools.pairwise(hop):
        table[place[ends], k] += 1
  capacity = np.array([float(GBps) for _, _, GBps in cluster.links])
  workers = {worker: i for i, worker in enumerate(cluster.workers)}
  roots = np.array([workers[tree.root] for tree in chosen]) if one_way else None
  weight, _ = weights.best(table, capacity, roots)
  return [
    Column(tree.root, units, tree.up, tree.down)
    for tree, units in zip(chosen, _whole(weight, roots), strict=True)
    if units
  ]


def _until(
  stop: stopping.Stop, trees: Iterable[growing.Grown]
) -> Iterator[growing.Grown]:
  """Yields one tree, and more until it is to stop."""
  for tree in trees:
    yield tree
    if stop():
      break


def _doubled(first: int, last: int) -> Iterator[int]:
  """Yields first, twice as much and so on, and last."""
  while first < last:
    yield first
    first *= 2
  yield last


class _Search:
  """The trees so far, and their best weights.

  Attributes:
    count: Trees that have a weight.
    rate: GB/s of all of them.
    prices: Floats [c], the dual prices of the weights.
    used: Floats [c], the share of each link that the trees use.
  """

  def __init__(
    self,
    cluster: clusters.Cluster,
    network: routing.Network,
    max_trees: int | None,
    *,
    one_way: bool,
  ) -> None:
    self._cluster = cluster
    self._network = network
    self._most = max_trees
    self._one_way = one_way
    self._trees: list[growing.Grown] = []
    self._kept: list[growing.Grown] = []
    self._weight = np.zeros(0)
    self.count = 0
    self.rate = 0.0
    self.prices = np.ones(len(network.capacity))
    self.used = np.zeros(len(network.capacity))

  def add(self, grown: Iterable[growing.Grown]) -> None:
    """Adds trees, and weighs all anew."""
    new = list(dict.fromkeys(grown))
    self._trees = list(dict.fromkeys([*self._trees, *new]))
    weight, self.prices = self._weighed(self._trees)
    self.used = loads(self._network, self._trees) @ weight
    self.used /= self._network.capacity
    if self._most is None or np.count_nonzero(weight) <= self._most:
      self._keep(self._trees, weight)
      return
    # The heaviest of all, or the new ones alone: whichever are faster.
    for trees in (
      self._heaviest(self._trees, weight, self._most),
      new[: self._most],
    ):
      weight, _ = self._weighed(trees)
      if weight.sum() > self.rate:
        self._keep(trees, weight)

  def thin(self, rate: float) -> None:
    """Drops the lightest trees as long as the others reach a rate."""
    least = len(self._network.workers) if self._one_way else 1
    for part in (0.5, 0.75):
      while True:
        count = max(int(part * len(self._kept)), least)
        trees = self._heaviest(self._kept, self._weight, count)
        if len(trees) == len(self._kept):
          break
        weight, _ = self._weighed(trees)
        if weight.sum() < rate:
          break
        self._keep(trees, weight)

  def columns(self) -> list[Column]:
    """Returns the best trees that were found, by name and with weights."""
    roots = self._roots(self._kept)
    units = _whole(self._weight, roots)
    return [
      column(self._cluster, self._network, tree, count)
      for tree, count in zip(self._kept, units, strict=True)
      if count
    ]

  def _weighed(
    self, trees: list[growing.Grown]
  ) -> tuple[np.ndarray, np.ndarray]:
    table = loads(self._network, trees)
    return weights.best(table, self._network.capacity, self._roots(trees))

  def _roots(self, trees: list[growing.Grown]) -> np.ndarray | None:
    if self._one_way:
      return np.array([tree.root for tree in trees])
    return None

  def _keep(self, trees: list[growing.Grown], weight: np.ndarray) -> None:
    used = np.flatnonzero(weight)
    self._kept = [trees[k] for k in used]
    self._weight = weight[used]
    self.rate = float(weight.sum())
    self.count = len(used)

  def _heaviest(
    self, trees: list[growing.Grown], weight: np.ndarray, count: int
  ) -> list[growing.Grown]:
    """So many trees, but one for each root first if all roots need some."""
    order = np.argsort(-weight, kind='stable').tolist()
    if self._one_way:
      first = dict(reversed([(trees[k].root, k) for k in order]))
      order = list(dict.fromkeys([*first.values(), *order]))
    return [trees[k] for k in sorted(order[:count])]


def column(
  cluster: clusters.Cluster,
  network: routing.Network,
  tree: growing.Grown,
  weight: int,
) -> Column:
  """Returns a tree by the names of its nodes."""
  names = cluster.nodes
  up, down = (
    [tuple(names[v] for v in network.path(hop)) for hop in hops]
    for hops in (reversed(tree.up), tree.down)
  )
  return Column(names[tree.root], weight, up, down)


def loads(
  network: routing.Network, trees: Sequence[growing.Grown]
) -> np.ndarray:
  """Returns how often each tree uses what: floats [c, trees]."""
  table = np.zeros((len(network.capacity), len(trees)))
  for k, tree in enumerate(trees):
    # On paired links what goes up is what goes down, over the other link.
    hops = tree.down if network.paired else (*tree.up, *tree.down)
    uses = list(itertools.chain.from_iterable(hop.uses for hop in hops))
    table[:, k] = np.bincount(uses, minlength=len(table))
  return table


def _whole(weight: np.ndarray, roots: np.ndarray | None) -> list[int]:
  """The weights as integers, of the same sum for each root."""
  owners = np.zeros(len(weight), int) if roots is None else roots
  units = np.zeros(len(weight), int)
  for root in np.unique(owners):
    own = np.flatnonzero(owners == root)
    units[own] = np.floor(weight[own] / weight[own].sum() * _WHOLE)
    units[own[weight[own].argmax()]] += _WHOLE - units[own].sum()
  return units.tolist()
