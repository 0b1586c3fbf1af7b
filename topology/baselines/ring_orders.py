"""Orders of the workers in which a ring is fast."""

import collections
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from topology.baselines.ways import Ways
from topology.clusters.cluster import Ends

_EXACT = 8  # Workers up to which all orders are tried.
_BY_PAIRS = 12  # Workers up to which the widest ring of pairs is found.
_KICKS = 40  # How often the best order so far is changed at random.
_SEGMENT = 3  # Workers that are put elsewhere together, at most.
_WORK = 1_000_000  # Changes of links looked at, all together: seconds.

_Order = tuple[int, ...]
_Hop = tuple[int, int]  # A worker and the next on the ring.


def best_order(ways: Ways, *, both_ways: bool) -> list[str]:
  """Returns the workers in the order that makes a ring fastest, or nearly.

  All hops of a ring carry the same bytes, so that its time is that of the link
  used by most hops for its capacity.  Up to 8 workers all orders are tried, and
  the first of the best is taken.

  Up to 12 the bottleneck travelling salesman problem over the bandwidths of
  pairs is solved (Held and Karp, 1962, in O(2^n n^2)): the best order if hops
  share no links, as in a mesh or around one switch.

  Beyond that, and where hops share links, a heuristic is used, which may miss
  the best.  It starts from the order of the cluster, from an order in which
  each worker is followed by the one with the widest way to it, and from the
  solution over pairs.  The ring is cut at a hop over its fullest link and
  elsewhere, to move a segment of up to 3 workers (or-opt) or to reverse a
  longer one (2-opt), as long as this leaves the changed links emptier, the
  fullest first.  Then two segments of the best order change places at random
  (always the same), and the search starts again.  The work is limited: with
  hundreds of workers it may end before no improving move is left.

  The order is for a ring in one direction, or both at the same time; it begins
  with the first worker of the cluster.
  """
  if len(ways.cluster.workers) < 3:
    return list(ways.cluster.workers)
  ring = _Ring(ways, both_ways)
  if ring.count <= _EXACT:
    rest = itertools.permutations(range(1, ring.count))
    best = min(((0, *others) for others in rest), key=ring.fullest)
  else:
    best = _searched(ring)
  first = best.index(0)
  return [ways.cluster.workers[i] for i in best[first:] + best[:first]]


class _Ring:
  """Loads of rings through workers 0 to `count` - 1, in hops per GB/s.

  `alone` is how full each hop alone makes its links, `least` a lower bound of
  how full the fullest link is, and `work` the remaining work, in changes of
  links to look at.
  """

  def __init__(self, ways: Ways, both_ways: bool) -> None:
    workers = ways.cluster.workers
    self._GBps = {(a, b): GBps for a, b, GBps in ways.cluster.links}
    self._both_ways = both_ways
    self._used: dict[_Hop, list[Ends]] = {}
    self.count = len(workers)
    self.alone = [[math.inf] * self.count for _ in workers]
    for a, b in itertools.permutations(range(self.count), 2):
      hops = [ways.hop(workers[a], workers[b])]
      if both_ways:
        hops.append(ways.hop(workers[b], workers[a]))
      self._used[a, b] = [e for hop in hops for e in itertools.pairwise(hop)]
      self.alone[a][b] = self._most(collections.Counter(self._used[a, b]))
    # Each worker has a hop from it and one to it, both ways two of each.
    total = dict.fromkeys(itertools.product((0, 1), workers), Fraction(0))
    for ends, GBps in self._GBps.items():
      for side, end in enumerate(ends):
        if (side, end) in total:
          total[side, end] += GBps
    rows = [*self.alone, *zip(*self.alone, strict=True)]
    self.least = max(
      *(min(row) for row in rows),
      *(float((1 + both_ways) / GBps) for GBps in total.values()),
    )
    self.work = _WORK

  def fullest(self, order: _Order) -> float:
    """Returns how full the fullest link of a ring is."""
    return self._most(self._carried(order))

  def improved(self, order: _Order) -> _Order:
    """Returns an order that no move makes better, or the last within limits."""
    carried = self._carried(order)
    moved = True
    while moved and self._most(carried) > self.least:
      moved = False
      for new, removed, added in self._moves(order, carried):
        change = collections.Counter(
          e for hop in added for e in self._used[hop]
        )
        change.subtract(e for hop in removed for e in self._used[hop])
        before = [self._fullness(e, carried[e]) for e in change]
        after = [self._fullness(e, carried[e] + n) for e, n in change.items()]
        if sorted(after, reverse=True) < sorted(before, reverse=True):
          carried.update(change)
          order, moved = new, True
          break
        self.work -= len(change)
        if self.work < 0:
          return order
    return order

  def _fullness(self, ends: Ends, hops: int) -> float:
    # Integers divide to the nearest float: what is equal is found equal.
    return hops * self._GBps[ends].denominator / self._GBps[ends].numerator

  def _most(self, carried: collections.Counter[Ends]) -> float:
    return max(self._fullness(ends, hops) for ends, hops in carried.items())

  def _carried(self, order: _Order) -> collections.Counter[Ends]:
    hops = itertools.pairwise((*order, order[0]))
    return collections.Counter(e for hop in hops for e in self._used[hop])

  def _moves(
    self, order: _Order, carried: collections.Counter[Ends]
  ) -> Iterator[tuple[_Order, list[_Hop], list[_Hop]]]:
    """Yields orders without a hop over the fullest link, and changed hops."""
    most = self._most(carried)
    full = {e for e, n in carried.items() if self._fullness(e, n) == most}
    for i in range(self.count):
      x = order[i:] + order[:i]
      if full.isdisjoint(self._used[x[-1], x[0]]):
        continue
      for j, k in _cuts(self.count):
        removed = [(x[-1], x[0]), (x[j - 1], x[j]), (x[k - 1], x[k])]
        added = [(x[j - 1], x[k]), (x[-1], x[j]), (x[k - 1], x[0])]
        yield x[:j] + x[k:] + x[j:k], removed, added
      for j in range(1, self.count):
        # Both ways, hops that are turned round use what they used before.
        inner = [] if self._both_ways else [*itertools.pairwise(x[j:])]
        removed = [(x[-1], x[0]), (x[j - 1], x[j]), *inner]
        added = [(x[j - 1], x[-1]), (x[j], x[0]), *((b, a) for a, b in inner)]
        yield x[:j] + x[: j - 1 : -1], removed, added


def _cuts(count: int) -> Iterator[tuple[int, int]]:
  """Yields the cuts of a sequence into three parts, at least one short."""
  for j, k in itertools.combinations(range(1, count), 2):
    if min(j, k - j, count - k) <= _SEGMENT:
      yield j, k


def _searched(ring: _Ring) -> _Order:
  rng = random.Random(0)
  starts = [tuple(range(ring.count)), _greedy(ring.alone)]
  if ring.count <= _BY_PAIRS:
    starts.insert(0, _widest(ring.alone))
  best = min((ring.improved(start) for start in starts), key=ring.fullest)
  for _ in range(_KICKS):
    if ring.work < 0 or ring.fullest(best) <= ring.least:
      break
    i, j, k = sorted(rng.sample(range(1, ring.count), 3))
    kicked = best[:i] + best[j:k] + best[i:j] + best[k:]
    best = min(ring.improved(kicked), best, key=ring.fullest)
  return best


def _widest(alone: Sequence[Sequence[float]]) -> _Order:
  """Returns the ring whose fullest hop alone, [n][n], is the emptiest."""
  full = np.array(alone)
  count = len(full)
  # How full the fullest hop is of the best way from worker 0 through a set of
  # the others to one of it; sets are bits.
  fullest = np.full((1 << (count - 1), count - 1), np.inf)
  before = np.zeros(fullest.shape, int)
  for j in range(count - 1):
    fullest[1 << j, j] = full[0, j + 1]
  for passed in range(1, len(fullest)):
    reached = np.maximum(fullest[passed][:, None], full[1:, 1:])
    nearest = reached.argmin(0)
    for j in range(count - 1):
      following = passed | 1 << j
      least = reached[nearest[j], j]
      if following != passed and least < fullest[following, j]:
        fullest[following, j], before[following, j] = least, nearest[j]
  passed = len(fullest) - 1
  last = int(np.maximum(fullest[passed], full[1:, 0]).argmin())
  order = [last + 1]
  while len(order) < count - 1:
    previous = int(before[passed, last])
    passed ^= 1 << last
    last = previous
    order.append(last + 1)
  return 0, *order[::-1]


def _greedy(alone: Sequence[Sequence[float]]) -> _Order:
  order, left = [0], list(range(1, len(alone)))
  while left:
    order.append(min(left, key=alone[order[-1]].__getitem__))
    left.remove(order[-1])
  return tuple(order)
