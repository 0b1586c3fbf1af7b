"""Forests for large clusters, with a bound that says how good they are.

Some tens to hundreds of trees, each grown hop by hop at prices that rise
(`packing.growing`), then weighted by a linear program (`packing.weights`),
whose dual prices bound an allreduce, beside others (`packing.price_search`).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from topology.algorithms import stopping
from topology.bounds import cuts, prices
from topology.clusters.cluster import Cluster
from topology.forests.trees import Column, Forest
from topology.packing import growing, price_search, weights
from topology.packing.arrays import Arrays

_FIRST = 16  # Trees of the first attempt; each later one has twice as many.
_LAST = 512  # Trees of the last attempt.
_ATTEMPTS = 16  # At an allgather, each with a tree for each root.
_NEW = 128  # How often cheap hops are looked for in each of them, at most.
_WHOLE = 2**36  # Weights are rounded to this part of their sum.
_NEAR = 1 - 1e-6  # A rate that is as good as another.
_ROUNDS = 128  # Spanning trees for the bound before the first attempt.

Report = Callable[[int, float, float], None]  # Trees, rate and bound, GB/s.


def allreduce(
  cluster: Cluster,
  *,
  gap: float,
  max_trees: int | None,
  stop: stopping.Stop,
  end: stopping.Stop = stopping.never,
  report: Report,
) -> tuple[list[Column], prices.Prices]:
  """Returns trees up and down for two or more workers, and a proof.

  Attempts end when 1 - rate / bound is at most `gap`, or when `stop` returns
  True, with at least one tree; `report` is called after each.  Raises `Stopped`
  once `end` returns True: there is no time for one.
  """
  arrays = Arrays(cluster, paired=cluster.symmetric, stop=end)
  stopping.check(end)
  bound = price_search.Bound(cluster, arrays, stop, end)
  if arrays.paired:
    bound.follow(_ROUNDS, stop)
  last = min(max_trees or _LAST, _LAST)
  search = _Search(cluster, arrays, max_trees, stop, end, one_way=False)
  count = 0
  while count < last:
    count = min(2 * count or _FIRST, last)
    grower = growing.Grower(arrays, bound.rate / count, end=end)
    search.add(_until(stop, (grower.both() for _ in range(count))))
    bound.improve(search.prices)
    report(search.count, search.rate, bound.rate)
    if search.rate >= (1 - gap) * bound.rate * _NEAR or stop():
      break
  search.thin(min(search.rate, (1 - gap) * bound.rate) * _NEAR)
  return search.columns(), bound.certificate()


def allgather(
  cluster: Cluster,
  cut: cuts.Cut,
  *,
  gap: float,
  max_trees: int | None,
  stop: stopping.Stop,
  end: stopping.Stop = stopping.never,
  report: Report,
) -> list[Column]:
  """Returns trees down for two or more workers, the same weight for each root.

  As `allreduce`, but with at least one tree for each worker; `cut` proves the
  bound at which it aims.
  """
  arrays = Arrays(cluster, paired=False, stop=end)
  workers = len(arrays.workers)
  bound = float(1 / cuts.prove_time(cluster, cut, end))
  last = min((max_trees or _ATTEMPTS * workers) // workers, _ATTEMPTS)
  search = _Search(cluster, arrays, max_trees, stop, end, one_way=True)
  for attempt in range(last):
    full = search.used() * attempt / (attempt + 1)
    unit = bound / (attempt + 1)
    grower = growing.Grower(arrays, unit, full, every=-(-workers // _NEW))
    grown = _each(grower, arrays.workers, stop, end)
    # Later attempts need not reach every root.
    search.add(_until(stop, grown) if attempt else grown)
    report(search.count, search.rate, workers * bound)
    if search.rate >= (1 - gap) * workers * bound * _NEAR or stop():
      break
  search.thin(min(search.rate, (1 - gap) * workers * bound) * _NEAR)
  return search.columns()


def heaviest(
  cluster: Cluster,
  forest: Forest,
  count: int,
  stop: stopping.Stop = stopping.never,
) -> list[Column]:
  """Returns the `count` heaviest trees of a forest, with new optimal weights.

  Of an allgather at least one for each worker.
  """
  order = sorted(forest.trees, key=lambda tree: -tree.share)
  roots = None
  if forest.collective == 'allgather':
    order = [order[k] for k in _rooted_first([tree.root for tree in order])]
    roots = np.array([cluster.rank[tree.root] for tree in order[:count]])
  chosen = order[:count]
  place = {ends: i for i, ends in enumerate(cluster.capacity_Bps)}
  table = np.zeros((len(place), len(chosen)))
  for k, tree in enumerate(chosen):
    for hop in (*tree.up, *tree.down):
      for ends in itertools.pairwise(hop):
        table[place[ends], k] += 1
  capacity = np.array([float(GBps) for _, _, GBps in cluster.links])
  weight, _ = weights.best(table, capacity, roots, stop)
  return [
    Column(tree.root, units, tree.up, tree.down)
    for tree, units in zip(chosen, _whole(weight, roots), strict=True)
    if units
  ]


def _rooted_first(roots: Sequence[object]) -> list[int]:
  """Returns places of the roots, the first of each root before all others."""
  first: dict[object, int] = {}
  for k, root in enumerate(roots):
    first.setdefault(root, k)
  return list(dict.fromkeys([*first.values(), *range(len(roots))]))


def _each(
  grower: growing.Grower,
  roots: Sequence[int],
  stop: stopping.Stop,
  end: stopping.Stop,
) -> Iterator[growing.Grown]:
  """Yields a tree for each root, hastily once `stop` returns True."""
  for i, root in enumerate(roots):
    stopping.check(end)
    yield grower.down(root, hasty=i > 0 and stop())


def _until(
  stop: stopping.Stop, trees: Iterable[growing.Grown]
) -> Iterator[growing.Grown]:
  """Yields one tree, and more until `stop` returns True."""
  for tree in trees:
    yield tree
    if stop():
      break


class _Search:
  """Trees so far, their best weights and rate, GB/s, and dual prices, [c]."""

  def __init__(
    self,
    cluster: Cluster,
    arrays: Arrays,
    max_trees: int | None,
    stop: stopping.Stop,
    end: stopping.Stop,
    *,
    one_way: bool,
  ) -> None:
    self._cluster = cluster
    self._stop, self._end = stop, end
    self._arrays = arrays
    self._most = max_trees
    self._one_way = one_way
    self._trees: list[growing.Grown] = []
    self._weight = np.zeros(0)  # Weights of all trees.
    self._kept: list[tuple[growing.Grown, float]] = []
    self.rate = 0.0
    self.prices = np.ones(len(arrays.capacity))

  @property
  def count(self) -> int:
    """Trees that have a weight."""
    return len(self._kept)

  def add(self, grown: Iterable[growing.Grown]) -> None:
    """Adds trees, and weighs all again."""
    new = list(dict.fromkeys(grown))
    if self._kept and self._stop():
      return
    self._trees = list(dict.fromkeys([*self._trees, *new]))
    self._weight, self.prices = self._weighed(self._trees)
    if self._stop() and self._weight.sum() < self.rate:
      return  # The earlier result is better than a search cut short.
    if self._most is None or np.count_nonzero(self._weight) <= self._most:
      self._keep(self._trees, self._weight)
      return
    # The heaviest of all, or the new ones alone: whichever are faster.
    pairs = list(zip(self._trees, self._weight.tolist(), strict=True))
    for trees in (self._heaviest(pairs, self._most), new[: self._most]):
      weight, _ = self._weighed(trees)
      if weight.sum() > self.rate:
        self._keep(trees, weight)

  def used(self) -> np.ndarray:
    """Returns the share of each link that all trees use, floats [c]."""
    uses = [tree.uses(self._arrays) for tree in self._trees]
    times = np.repeat(self._weight, [len(each) for each in uses])
    every = np.array([use for each in uses for use in each], int)
    count = len(self._arrays.capacity)
    return np.bincount(every, times, count) / self._arrays.capacity

  def thin(self, rate: float) -> None:
    """Drops the lightest trees as long as the others reach a rate."""
    least = len(self._arrays.workers) if self._one_way else 1
    for part in (0.5, 0.75):
      while (count := max(int(part * self.count), least)) < self.count:
        if self._stop():
          return
        trees = self._heaviest(self._kept, count)
        weight, _ = self._weighed(trees)
        if weight.sum() < rate:
          break
        self._keep(trees, weight)

  def columns(self) -> list[Column]:
    """Returns the best trees that were found, by name and with weights."""
    trees = [tree for tree, _ in self._kept]
    weight = np.array([weight for _, weight in self._kept])
    units = _whole(weight, self._roots(trees))
    columns = []
    for tree, count in zip(trees, units, strict=True):
      stopping.check(self._end)
      if count:
        columns.append(column(self._cluster, self._arrays, tree, count))
    return columns

  def _weighed(
    self, trees: list[growing.Grown]
  ) -> tuple[np.ndarray, np.ndarray]:
    capacity, roots = self._arrays.capacity, self._roots(trees)
    table = loads(self._arrays, trees, self._end)
    if not self._stop():
      return weights.best(table, capacity, roots, self._stop)
    # All trees of a root alike.
    own = np.zeros(len(trees), int) if roots is None else roots
    equal = 1 / np.bincount(own)[own]
    return equal / (table.dot(equal) / capacity).max(), self.prices

  def _roots(self, trees: list[growing.Grown]) -> np.ndarray | None:
    return np.array([tree.root for tree in trees]) if self._one_way else None

  def _keep(self, trees: list[growing.Grown], weight: np.ndarray) -> None:
    pairs = zip(trees, weight.tolist(), strict=True)
    self._kept = [pair for pair in pairs if pair[1]]
    self.rate = float(weight[weight > 0].sum())

  def _heaviest(
    self, pairs: list[tuple[growing.Grown, float]], count: int
  ) -> list[growing.Grown]:
    """Returns the heaviest trees, first one per root if all roots need one."""
    order = sorted(range(len(pairs)), key=lambda k: -pairs[k][1])
    if self._one_way:
      roots = [pairs[k][0].root for k in order]
      order = [order[k] for k in _rooted_first(roots)]
    return [pairs[k][0] for k in sorted(order[:count])]


def column(
  cluster: Cluster, arrays: Arrays, tree: growing.Grown, weight: int
) -> Column:
  """Returns a grown tree with its weight, and nodes by their ids."""
  names = cluster.nodes
  up, down = (
    [tuple(names[v] for v in arrays.path(hop)) for hop in hops]
    for hops in (reversed(tree.up), tree.down)
  )
  return Column(names[tree.root], weight, up, down)


def loads(
  arrays: Arrays,
  trees: Sequence[growing.Grown],
  stop: stopping.Stop = stopping.never,
) -> np.ndarray:
  """Returns how often each tree uses each capacity: floats [c, trees].

  Raises `Stopped` once `stop`, asked at each tree, returns True.
  """
  table = np.zeros((len(arrays.capacity), len(trees)))
  for k, tree in enumerate(trees):
    stopping.check(stop)
    table[:, k] = np.bincount(tree.uses(arrays), minlength=len(table))
  return table


def _whole(weight: np.ndarray, roots: np.ndarray | None) -> list[int]:
  """Returns the weights as integers, of the same sum for each root."""
  owners = np.zeros(len(weight), int) if roots is None else roots
  units = np.zeros(len(weight), int)
  for root in np.unique(owners):
    own = np.flatnonzero(owners == root)
    units[own] = np.floor(weight[own] / weight[own].sum() * _WHOLE)
    units[own[weight[own].argmax()]] += _WHOLE - units[own].sum()
  return units.tolist()
