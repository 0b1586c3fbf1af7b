"""Partial permutations: hops divided so that each worker has one at a time.

The edges of a bipartite multigraph, senders to receivers, are coloured with as
many colours as one end has edges, which is always possible (König, "Über
Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre", 1916).
"""

import collections
import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from topology.trees import Ends

_Cost = tuple[int, int]  # A time, and how many transfers have an opposite one.


class Transfer(NamedTuple):
  """What one worker sends to another.

  Attributes:
    src: Index of the worker that sends.
    dst: Index of the worker that receives.
    links: The links that it takes, with its time on each, an integer.
  """

  src: int
  dst: int
  links: tuple[tuple[Ends, int], ...]

  @property
  def time(self) -> int:
    """That on the slowest link."""
    return max(time for _, time in self.links)


class _Permute(NamedTuple):
  """Transfers that run at the same time, by index."""

  chosen: list[int]
  at: dict[int, int]  # The transfer of each end, src or ~dst.
  load: dict[Ends, int]  # The time of all together on each link.
  cost: _Cost
  slow: list[int]  # Those over the slowest link, or over one of them.
  opposite: list[int]  # Those with an opposite one.
  span: tuple[int, int]  # The times of the quickest and of the slowest alone.


def colored(
  pairs: Sequence[tuple[int, int]], *, growing: bool = False
) -> list[list[int]]:
  """Returns the pairs divided into partial permutations, as few as can be.

  Pair by pair gets the first colour that is free at both its ends.  If there is
  none, two colours, each free at one of them, are exchanged along the chain of
  pairs in which they alternate (Kempe, "On the geographical problem of the four
  colours", 1879).  O(E (N + P)) for E pairs, N workers and P colours.

  Args:
    pairs: (src, dst), at least 0, in the order in which they are coloured; some
      may be equal.
    growing: Whether to begin with few colours, and to take another one only
      when the pairs so far need it.

  Returns:
    Per colour, the indices of its pairs, ascending: as many colours as the most
    pairs with the same src, or with the same dst.
  """
  ends = [(src, ~dst) for src, dst in pairs]
  degree = collections.Counter(itertools.chain.from_iterable(ends))
  limit = 0 if growing else max(degree.values(), default=0)
  # Per end and colour, the pair.
  at: dict[int, dict[int, int]] = {end: {} for end in degree}
  for i, (src, dst) in enumerate(ends):
    limit = max(limit, len(at[src]) + 1, len(at[dst]) + 1)
    color = _free(limit, at[src].keys() | at[dst].keys())
    if color == limit:
      color = _free(limit, at[src])
      _exchange(at, ends, dst, color, _free(limit, at[dst]))
    at[src][color] = at[dst][color] = i
  groups: list[list[int]] = [[] for _ in range(limit)]
  color_of = {i: c for end in at if end >= 0 for c, i in at[end].items()}
  for i in range(len(pairs)):
    groups[color_of[i]].append(i)
  return groups


def permutes(transfers: Sequence[Transfer]) -> list[list[int]]:
  """Returns transfers divided into few, quick partial permutations.

  Run one after the other, each takes as long as its slowest link, and so equal
  times belong together.  Two colourings take the slowest transfers first.  Each
  is improved by swapping chains in which two colours alternate, while that
  makes both together quicker, or leaves them as quick with fewer opposite
  pairs; the better one is returned.  O(P^2 N) for each pass over all permutes
  if the chains are short: a second for 64 workers, minutes for 1,024.

  Args:
    transfers: All of one step.

  Returns:
    Per permute, the indices of its transfers, ascending; none is empty.
  """
  order = sorted(range(len(transfers)), key=lambda i: -transfers[i].time)
  pairs = [transfers[i][:2] for i in order]
  found = []
  for growing in (True, False):
    groups = colored(pairs, growing=growing)
    made = [_permute(transfers, [order[i] for i in group]) for group in groups]
    _improve(transfers, made)
    found.append(made)
  best = min(found, key=lambda made: _sum(*(permute.cost for permute in made)))
  return [sorted(permute.chosen) for permute in best]


def _free(limit: int, taken: Collection[int]) -> int:
  """The first colour that is not taken; `limit` if all are."""
  return next((c for c in range(limit) if c not in taken), limit)


def _exchange(
  at: dict[int, dict[int, int]],
  ends: Sequence[tuple[int, int]],
  end: int,
  color: int,
  other: int,
) -> None:
  """Exchanges two colours along the chain from an end that lacks `other`."""
  chain = []
  while color in at[end]:
    pair = at[end].pop(color)
    chain.append((pair, other))
    end = sum(ends[pair]) - end
    del at[end][color]
    color, other = other, color
  for pair, color in chain:
    for end in ends[pair]:
      at[end][color] = pair


def _improve(transfers: Sequence[Transfer], permutes: list[_Permute]) -> None:
  """Swaps chains between any two permutes until that makes none better."""
  version = [0] * len(permutes)
  tried: dict[tuple[int, int], tuple[int, int]] = {}
  improved = True
  while improved:
    improved = False
    for a, b in itertools.combinations(range(len(permutes)), 2):
      if tried.get((a, b)) == (version[a], version[b]):
        continue
      while better := _swapped(transfers, permutes[a], permutes[b]):
        permutes[a], permutes[b] = better
        version[a] += 1
        version[b] += 1
        improved = True
      tried[a, b] = version[a], version[b]


def _swapped(
  transfers: Sequence[Transfer], first: _Permute, second: _Permute
) -> tuple[_Permute, _Permute] | None:
  """Two permutes that differ in one chain and are better, if there are any."""
  before = _sum(first.cost, second.cost)
  # No chain without one of these makes anything better.
  starts = first.opposite + second.opposite
  quick, slow = zip(first.span, second.span, strict=True)
  if before[0] > min(quick) + max(slow):
    starts = first.slow + second.slow + starts
  seen: set[int] = set()
  for start in starts:
    if start in seen:
      continue
    ours, theirs = _chain(transfers, first, second, start)
    seen.update(ours, theirs)
    after = _sum(
      _after(transfers, first, ours, theirs),
      _after(transfers, second, theirs, ours),
    )
    if after < before:
      return (
        _exchanged(transfers, first, ours, theirs),
        _exchanged(transfers, second, theirs, ours),
      )
  return None


def _chain(
  transfers: Sequence[Transfer], first: _Permute, second: _Permute, start: int
) -> tuple[list[int], list[int]]:
  """What of each permute must go to the other one together with `start`."""
  chain, seen = [start], {start}
  for i in chain:
    for end in (transfers[i].src, ~transfers[i].dst):
      for permute in (first, second):
        beside = permute.at.get(end, i)
        if beside not in seen:
          seen.add(beside)
          chain.append(beside)
  ours = [i for i in chain if first.at.get(transfers[i].src) == i]
  theirs = [i for i in chain if second.at.get(transfers[i].src) == i]
  return ours, theirs


def _after(
  transfers: Sequence[Transfer],
  permute: _Permute,
  leaving: Sequence[int],
  joining: Sequence[int],
) -> _Cost:
  """The cost of a permute with other transfers, from what they change."""
  load = permute.load.copy()
  for chosen, sign in ((leaving, -1), (joining, 1)):
    for i in chosen:
      for ends, time in transfers[i].links:
        load[ends] = load.get(ends, 0) + sign * time
  gone = {None, *leaving}
  joined = {transfers[i][:2] for i in joining}
  opposite = permute.cost[1]
  for i in leaving:
    back = _opposite(permute.at, transfers[i])
    if back is not None:
      opposite -= 1 if back in gone else 2
  for i in joining:
    if transfers[i][1::-1] in joined:
      opposite += 1
    elif _opposite(permute.at, transfers[i]) not in gone:
      opposite += 2
  return max(load.values()), opposite


def _exchanged(
  transfers: Sequence[Transfer],
  permute: _Permute,
  leaving: Sequence[int],
  joining: Sequence[int],
) -> _Permute:
  gone = set(leaving)
  kept = [i for i in permute.chosen if i not in gone]
  return _permute(transfers, [*kept, *joining])


def _permute(transfers: Sequence[Transfer], chosen: list[int]) -> _Permute:
  at: dict[int, int] = {}
  load: dict[Ends, int] = {}
  for i in chosen:
    at[transfers[i].src] = at[~transfers[i].dst] = i
    for ends, time in transfers[i].links:
      load[ends] = load.get(ends, 0) + time
  slowest = max(load, key=load.__getitem__)
  slow = [
    i for i in chosen if any(ends == slowest for ends, _ in transfers[i].links)
  ]
  opposite = [i for i in chosen if _opposite(at, transfers[i]) is not None]
  times = [transfers[i].time for i in chosen]
  span = min(times), max(times)
  cost = load[slowest], len(opposite)
  return _Permute(chosen, at, load, cost, slow, opposite, span)


def _opposite(at: dict[int, int], transfer: Transfer) -> int | None:
  """The transfer from its dst to its src, if the permute has it."""
  there = at.get(transfer.dst)
  return there if there == at.get(~transfer.src) else None


def _sum(*costs: _Cost) -> _Cost:
  return sum(time for time, _ in costs), sum(count for _, count in costs)
