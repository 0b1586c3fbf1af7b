"""Which chunk of a message goes over which tree of a forest."""

import math
from collections.abc import Sequence

import numpy as np


def dealt(shares: Sequence[float], sizes: Sequence[int]) -> list[int]:
  """Returns the tree of each chunk, by smooth weighted round robin.

  That of nginx: always the tree that lags its share of the bytes the most, of
  equals the first.  So any part of a message has all trees busy.  Fixed
  arithmetic in a fixed order: the same in every process.  O(trees) for each.

  Args:
    shares: Of the bytes, per tree; positive.
    sizes: Of the chunks, in the order in which they are sent.
  """
  total = math.fsum(shares)
  due = np.asarray(shares, np.float64) / total
  lag = np.zeros(len(shares))
  trees = []
  for size in map(int, sizes):
    lag += due * size
    tree = int(lag.argmax())
    lag[tree] -= size
    trees.append(tree)
  return trees
