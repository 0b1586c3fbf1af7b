"""Oracle for tree packing: Edmonds' condition, checked for every node set."""

import itertools


def enterable(nodes, links, starts, workers=None):
  """Returns whether all trees from outside can enter each set with a worker.

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
