"""Assigns the chunks of a message to trees, and limits how early they go."""

import math
from collections.abc import Sequence

import numpy as np

from topology.forests.trees import Forest

# Of what one message carries, at most.  With its header it fits into what a
# system hands to a network at once, 64 KiB.  Chunks of 64 KiB do not, and took
# up to 1.7 times as long; 32 KiB cost up to 1.7 times as much computing.
CHUNK_BYTES = 48 * 1024
# The least size of a chunk: 8 KiB took as long, some 8 % more or less,
# and up to 1.5 times as much computing.
_LEAST_BYTES = 16 * 1024
_LEAST_CHUNKS, _LEAST_PER_TREE = 5, 2  # Of a window.
# What hides the way of a chunk.  More has senders that meet at a worker take
# the link from each other: measured on links of 200 Mbit/s, with 4 to 8 hosts.
_AHEAD_S, _AHEAD_S_PER_HOP = 0.0125, 0.00625


def ahead_s(forest: Forest) -> float:
  """Returns the seconds that workers run ahead: more if trees are deep."""
  deepest = max((tree.depth for tree in forest.trees), default=0)
  return _AHEAD_S + _AHEAD_S_PER_HOP * 2 * deepest  # Up, and down.


def chunk_bytes(size_bytes: int, shares: Sequence[float], *, most: int) -> int:
  """Returns the bytes of a message's chunks, but for the last of each range.

  Small messages over trees of different shares have smaller ones, one for each
  tree, so that trees get about their shares; but not below 16 KiB.  Trees whose
  shares are within a factor of two, as those of rings, use much the same links,
  and few large chunks over any of them cost less computing.

  Args:
    size_bytes: Of the message.
    shares: Of the bytes, per tree that carries it.
    most: Bytes of a chunk, a multiple of 4.

  Returns:
    A multiple of 4.
  """
  if not shares or max(shares) <= 2 * min(shares):
    return most
  even = 4 * math.ceil(size_bytes / (4 * len(shares)))
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


def deal(shares: Sequence[float], sizes: Sequence[int]) -> list[int]:
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
