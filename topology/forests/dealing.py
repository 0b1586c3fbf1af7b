"""Assigns chunks of a message to trees, and bounds how far workers run on."""

import math
from collections.abc import Sequence

import numpy as np

from topology.forests.trees import Forest

# Largest payload of a message.  With its header it fits into the 64 KiB that
# a system passes to the network at once.  Chunks of 64 KiB do not, and took up
# to 1.7 times as long; 32 KiB cost up to 1.7 times as much CPU time.
CHUNK_BYTES = 48 * 1024
# Least size of a chunk: with 8 KiB times differed by less than 8 %, for up to
# 1.5 times as much CPU time.
_LEAST_BYTES = 16 * 1024
_LEAST_CHUNKS, _LEAST_PER_TREE = 5, 2  # Least chunks of a window.
# Seconds by which workers run ahead, to hide latency.  With more, senders to
# the same worker slow each other down: measured on links of 200 Mbit/s, with 4
# to 8 hosts.
_AHEAD_S, _AHEAD_S_PER_HOP = 0.0125, 0.00625


def ahead_s(forest: Forest) -> float:
  """Returns the seconds by which workers run ahead; more for deep trees."""
  deepest = max((tree.depth for tree in forest.trees), default=0)
  return _AHEAD_S + _AHEAD_S_PER_HOP * 2 * deepest  # Up, and down.


def chunk_bytes(size_bytes: int, shares: Sequence[float], *, most: int) -> int:
  """Returns the size of a message's chunks, except the last of each bucket.

  Small messages over trees of different shares have smaller chunks, one for
  each tree, so that trees get about their shares; but at least 16 KiB.  Trees
  whose shares are within a factor of two, as those of rings, use much the same
  links, so that few large chunks are best.

  Args:
    size_bytes: Bytes of the message.
    shares: Share of the bytes of each tree that carries the message.
    most: Largest size of a chunk, bytes, a multiple of 4.

  Returns:
    A multiple of 4.
  """
  if not shares or max(shares) <= 2 * min(shares):
    return most
  even = 4 * math.ceil(size_bytes / (4 * len(shares)))
  return min(max(even, _LEAST_BYTES), most)


def window(forest: Forest, *, chunk_bytes: int) -> int:
  """Returns the number of chunks by which a worker may run ahead.

  They count from the lowest chunk whose sum the worker has not received, so
  that links stay busy while sums are on their way.

  Args:
    forest: Forest that carries the chunks.
    chunk_bytes: Bytes of each chunk.

  Returns:
    Chunks that the forest carries in `ahead_s`; at least 5, and 2 per tree.
  """
  ahead = math.ceil(float(forest.rate_Bps or 0) * ahead_s(forest) / chunk_bytes)
  return max(ahead, _LEAST_CHUNKS, _LEAST_PER_TREE * len(forest.trees))


def deal(shares: Sequence[float], sizes: Sequence[int]) -> list[int]:
  """Returns the tree of each chunk, by smooth weighted round robin.

  As in nginx, the next chunk goes to the tree that is furthest behind its share
  of the bytes; ties go to the first tree.  So every part of a message keeps all
  trees busy.  Arithmetic has a fixed order, for equal results in every process.
  O(trees) per chunk.

  Args:
    shares: Share of the bytes of each tree, above 0.
    sizes: Bytes of each chunk, in the order in which they are sent.
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
