"""Which chunk of a message goes over which tree of a forest, and how early."""

import math
from collections.abc import Sequence

import numpy as np

from topology.forests.trees import Forest

_LEAST_CHUNKS, _LEAST_PER_TREE = 8, 2  # Of a window.


def window(forest: Forest, *, chunk_bytes: int, window_s: float) -> int:
  """Returns how many chunks a worker may run ahead.

  From the lowest on whose sum it has not got; so links need not wait for what
  is on its way.

  Args:
    forest: That carries them.
    chunk_bytes: Of each.
    window_s: Seconds at the rate of the forest; at least 8 chunks, and 2 for
      each of its trees.
  """
  ahead = math.ceil(float(forest.rate_Bps or 0) * window_s / chunk_bytes)
  return max(ahead, _LEAST_CHUNKS, _LEAST_PER_TREE * len(forest.trees))


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
