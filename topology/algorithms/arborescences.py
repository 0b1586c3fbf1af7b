"""Spanning out-trees packed into a directed graph with integer capacities.

Edmonds' theorem ("Edge-disjoint branchings", 1973): trees that start with given
multiplicities at given roots fit if and only if each set of nodes can be
entered as often as trees start outside of it.  They are found tree by tree, in
the form of Gabow and Manu ("Packing algorithms for arborescences (and spanning
trees) in capacitated graphs", 1998): a link is added to a tree if the remaining
links still have room for all trees to come, with the largest multiplicity for
which this holds.  Only a few sets of nodes ever forbid a link, and they are
learned one by one: trees grow by the sets known so far, and where a tree cannot
grow, a minimum cut shows a set that has been entered too often; the trees that
enter it are grown again.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from topology.algorithms import flow, stopping

_LESSONS = 4  # Minimum cuts at once: one costs about as much as a tree.


class Branching(NamedTuple):
  """A spanning out-tree with a number of copies."""

  root: int
  units: int
  hops: tuple[tuple[int, int], ...]  # In the order in which nodes are reached.


def pack(
  nodes: int,
  links: Sequence[tuple[int, int, int]],
  starts: Sequence[int],
  stop: stopping.Stop = stopping.never,
) -> list[Branching]:
  """Returns spanning out-trees, of which `starts[v]` start at node v.

  Each takes O(m) steps, for m links, on bit masks of all known sets.  There are
  usually fewer trees than links, and a few sets per node to learn, each at the
  cost of about one maximum flow and a few trees.

  Links are (src, dst, capacity); all numbers are integers.  `stop` is asked at
  each tree and each maximum flow.  ValueError if the trees do not fit.
  """
  packer = _Packer(nodes, links, starts)
  while (root := packer.next_root()) is not None:
    stopping.check(stop)
    packer.grow(root, stop)
  return packer.trees


class _Packer:
  """Remaining capacity of links, trees taken out, and sets that limit trees.

  Masks are integers of which bit i stands for set i.
  """

  def __init__(
    self,
    nodes: int,
    links: Sequence[tuple[int, int, int]],
    starts: Sequence[int],
  ) -> None:
    self.trees: list[Branching] = []
    self._starts = list(starts)
    self._capacity_left: list[dict[int, int]] = [{} for _ in range(nodes)]
    into = [0] * nodes
    for src, dst, capacity in links:
      self._capacity_left[src][dst] = (
        self._capacity_left[src].get(dst, 0) + capacity
      )
      into[dst] += capacity
    # Per node, the sets that hold it.  Per set, how often trees may enter it
    # again after their first time, before the trees to come lack capacity.
    self._member = [0] * nodes
    self._spare: list[int] = []
    for v in range(nodes if nodes > 1 else 0):
      self._add([v], into[v] + starts[v] - sum(starts))
      others = [w for w in range(nodes) if w != v]
      self._add(others, sum(self._capacity_left[v].values()) - starts[v])
    self._check()

  def next_root(self) -> int | None:
    """Returns the first node at which trees still have to start."""
    return next((v for v, count in enumerate(self._starts) if count), None)

  def grow(self, root: int, stop: stopping.Stop) -> None:
    """Packs a tree into the remaining capacity, or learns why none fits."""
    units = self._starts[root]
    reached = [root]
    hops: list[tuple[int, int]] = []
    while units:
      self._extend(reached, hops, units)
      tree = Branching(root, units, tuple(hops))
      if len(reached) == len(self._starts):
        self._use(tree, 1)
        self.trees.append(tree)
        return
      units = self._fit(reached, hops)
    self._learn(tree, reached, stop)

  def _extend(
    self, reached: list[int], hops: list[tuple[int, int]], units: int
  ) -> None:
    """Adds links that fit all units, the nearest to the root first."""
    member = self._member
    touched, times = self._entered(reached[0], hops)
    limit = len(member)  # A tree has fewer hops.
    left = [min(spare // units, limit) for spare in self._spare]
    for i, count in times.items():
      left[i] -= count
    digits = _digits(left)
    spent = ~_union(digits)
    inside = [False] * len(member)
    for node in reached:
      inside[node] = True
    for src in reached:  # The list grows in the loop.
      for dst, room in self._capacity_left[src].items():
        if room < units or inside[dst]:
          continue
        again = member[dst] & ~member[src] & touched
        if again & spent:
          continue
        touched |= member[dst]
        inside[dst] = True
        reached.append(dst)
        hops.append((src, dst))
        if again:
          _decrement(digits, again)
          spent = ~_union(digits)

  def _fit(
    self, reached: Sequence[int], hops: Sequence[tuple[int, int]]
  ) -> int:
    """Returns the largest number of units that fit one more link, or 0."""
    touched, times = self._entered(reached[0], hops)
    inside = set(reached)
    best = 0
    for src in reached:
      for dst, room in self._capacity_left[src].items():
        if room <= best or dst in inside:
          continue
        again = self._member[dst] & ~self._member[src] & touched
        for i in _bits(again):
          room = min(room, self._spare[i] // (times.get(i, 0) + 1))
          if room <= best:
            break
        best = max(best, room)
    return best

  def _entered(
    self, root: int, hops: Iterable[tuple[int, int]]
  ) -> tuple[int, dict[int, int]]:
    """Returns the sets that a tree touches, and counts of repeated entries."""
    member = self._member
    touched = member[root]
    digits: list[int] = []
    for src, dst in hops:
      again = member[dst] & ~member[src] & touched
      touched |= member[dst]
      _increment(digits, again)
    times: dict[int, int] = {}
    for k, digit in enumerate(digits):
      for i in _bits(digit):
        times[i] = times.get(i, 0) + (1 << k)
    return touched, times

  def _use(self, tree: Branching, sign: int) -> None:
    """Subtracts a tree from the remaining capacity, or with sign -1 adds it."""
    units = sign * tree.units
    self._starts[tree.root] -= units
    for src, dst in tree.hops:
      self._capacity_left[src][dst] -= units
    for i, count in self._entered(tree.root, tree.hops)[1].items():
      self._spare[i] -= count * units

  def _add(self, side: Iterable[int], spare: int) -> None:
    bit = 1 << len(self._spare)
    self._spare.append(spare)
    for node in side:
      self._member[node] |= bit

  def _learn(
    self, tree: Branching, reached: Sequence[int], stop: stopping.Stop
  ) -> None:
    """Adds sets that a part of a tree shows, and undoes trees against them."""
    # By the theorem, one of them holds a node that the tree could not reach.
    self._use(tree, 1)
    for side, spare in self._overfull(tree, reached, stop).items():
      self._add(side, spare)
    self._use(tree, -1)
    for k in reversed(range(len(self.trees))):
      against = [i for i, spare in enumerate(self._spare) if spare < 0]
      if not against:
        break
      stopping.check(stop)
      _, times = self._entered(self.trees[k].root, self.trees[k].hops)
      if any(i in times for i in against):
        self._use(self.trees.pop(k), -1)
    self._check()

  def _overfull(
    self, tree: Branching, reached: Sequence[int], stop: stopping.Stop
  ) -> dict[tuple[int, ...], int]:
    """Returns sets that trees enter too often, each with its spare entries."""
    # A source feeds the roots of trees to come, and through one more node the
    # nodes that the tree has reached.  A node that cannot receive all is in
    # such a set.
    count = len(self._starts)
    source, middle = count, count + 1
    links = [
      (src, dst, room)
      for src, row in enumerate(self._capacity_left)
      for dst, room in row.items()
    ]
    links += [(source, node, units) for node, units in enumerate(self._starts)]
    links.append((source, middle, tree.units))
    links += [(middle, node, tree.units) for node in reached]
    network = flow.network(count + 2, links)
    wanted = sum(self._starts) + tree.units
    found: dict[tuple[int, ...], int] = {}
    lessons = 0
    for sink in sorted(set(range(count)).difference(reached)):
      stopping.check(stop)
      residual = flow.copy(network)
      missing = wanted - flow.augment(residual, source, sink, wanted)
      if missing:
        outside = set(flow.reach(residual, source))
        inside = flow.reach_back(residual, sink)
        found[tuple(v for v in range(count) if v not in outside)] = -missing
        found[tuple(v for v in inside if v < count)] = -missing
        lessons += 1
        if lessons == _LESSONS:
          break
    if not found:
      raise ValueError('Expected links with room for all trees.')
    return found

  def _check(self) -> None:
    if min(self._spare, default=0) < 0:
      raise ValueError('Expected links with room for all trees.')


def _bits(mask: int) -> Iterator[int]:
  """Yields the positions of the ones in the mask."""
  while mask:
    bit = mask & -mask
    mask ^= bit
    yield bit.bit_length() - 1


def _digits(values: Sequence[int]) -> list[int]:
  """Returns bit planes: bit i of the k-th mask is bit k of `values[i]`."""
  column = np.array(values, np.int64)
  length = int(column.max(initial=0)).bit_length()
  bits = (
    np.packbits(column >> k & 1, bitorder='little') for k in range(length)
  )
  return [int.from_bytes(row.tobytes(), 'little') for row in bits]


def _union(digits: Iterable[int]) -> int:
  """Returns the mask of the numbers that are not 0."""
  return functools.reduce(operator.or_, digits, 0)


def _increment(digits: list[int], mask: int) -> None:
  """Adds 1 to each number in the mask."""
  for k, digit in enumerate(digits):
    digits[k], mask = digit ^ mask, digit & mask
  if mask:
    digits.append(mask)


def _decrement(digits: list[int], mask: int) -> None:
  """Subtracts 1 from each number in the mask, none of which is 0."""
  for k, digit in enumerate(digits):
    digits[k], mask = digit ^ mask, mask & ~digit
