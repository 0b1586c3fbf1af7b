"""Edmonds' condition for trees to fit, checked set by set."""

import itertools


def enterable(nodes, links, starts, workers=None):
  """Whether each set with a worker can be entered by all trees from outside.

  The first nodes are workers, of which each has its trees.
  """
  workers = nodes if workers is None else workers
  for size in range(1, nodes + 1):
    for side in itertools.combinations(range(nodes), size):
      inside = set(side)
      if min(side) >= workers:
        continue
      entering = sum(c for a, b, c in links if a not in inside and b in inside)
      outside = sum(c for v, c in enumerate(starts) if v not in inside)
      if entering < outside:
        return False
  return True
