"""Which chunk of a message goes over which tree of a forest, and how early."""

import math
from collections.abc import Sequence

import numpy as np

from topology.forests.trees import Forest

# Of what one message carries, at most.  With its header it fits into what a
# system hands to a network at once, 64 KiB.  Chunks of 64 KiB do not, and took
# up to 1.7 times as long; 32 KiB cost up to 1.7 times as much computing.
CHUNK_BYTES = 48 * 1024
_LEAST_BYTES = 8 * 1024  # Chosen, not measured.
_LEAST_CHUNKS, _LEAST_PER_TREE = 5, 2  # Of a window; of a message, the latter.
# What hides the way of a chunk.  More has senders that meet at a worker take
# the link from each other: measured on links of 200 Mbit/s, with 4 to 8 hosts.
_AHEAD_S, _AHEAD_S_PER_HOP = 0.0125, 0.00625


def ahead_s(forest: Forest) -> float:
  """Returns the seconds that workers run ahead: more if trees are deep."""
  deepest = max((tree.depth for tree in forest.trees), default=0)
  return _AHEAD_S + _AHEAD_S_PER_HOP * 2 * deepest  # Up, and down.


def chunk_bytes(size_bytes: int, trees: int, *, most: int) -> int:
  """Returns the bytes of a message's chunks, but for the last of each range.

  Small messages have smaller ones, two for each tree, so that trees get about
  their shares; but not below 8 KiB.

  Args:
    size_bytes: Of the message.
    trees: How many carry it.
    most: Bytes of a chunk, a multiple of 4.

  Returns:
    A multiple of 4.
  """
  even = 4 * math.ceil(size_bytes / (4 * _LEAST_PER_TREE * max(trees, 1)))
  return min(max(even, _LEAST_BYTES), most)


def window(forest: Forest, *, chunk_bytes: int) -> int:
  """Returns how many chunks a worker may run ahead.

  From the lowest on whose sum it has not got; so links need not wait for what
  is on its way.

  Args:
    forest: That carries them.
    chunk_bytes: Of each.

  Returns:
    What it carries in `ahead_s`; at least 5, and 2 for each of its trees.
  """
  ahead = math.ceil(float(forest.rate_Bps or 0) * ahead_s(forest) / chunk_bytes)
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
