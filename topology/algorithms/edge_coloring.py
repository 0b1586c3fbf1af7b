"""Partial permutations: pairs divided so that each end has one at a time.

The edges of a bipartite multigraph, senders to receivers, are coloured with as
many colours as one end has edges, which is always possible (König, "Über
Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre", 1916).
"""

import collections
import itertools
from collections.abc import Collection, Sequence


def colored(
  pairs: Sequence[tuple[int, int]], *, growing: bool = False
) -> list[list[int]]:
  """Returns the pairs divided into partial permutations, as few as can be.

  Pair by pair gets the first colour that is free at both its ends.  If there is
  none, two colours, each free at one of them, are exchanged along the chain of
  pairs in which they alternate (Kempe, "On the geographical problem of the four
  colours", 1879).  O(E (N + P)) for E pairs, N workers and P colours.

  Pairs are (src, dst), integers of at least 0, some of which may be equal.
  `growing` is to take a colour only when the pairs so far need it.

  Returns:
    Per colour, the indices of its pairs, ascending: as many colours as the most
    pairs with the same src, or with the same dst.

  Example:
    >>> colored([(0, 1), (1, 2), (0, 2)])
    [[0, 1], [2]]
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
