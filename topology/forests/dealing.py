"""Sizes of chunks, their trees, and bounds on how far workers run ahead.

A message over a forest is cut into chunks.  Larger chunks cost less processor
time per byte; smaller ones fill the trees sooner and divide better.
"""

import collections
import math
from collections.abc import Sequence

import numpy as np

from topology.forests import compact
from topology.forests.trees import Forest

# Least size that a link's rate asks for.  With its header such a chunk fits
# into the 64 KiB that a system passes to the network at once.  At 200 Mbit/s
# chunks of 64 KiB took up to 1.7 times as long; 32 KiB cost up to 1.7 times as
# much processor time.
CHUNK_BYTES = 48 * 1024
# Largest size.  At 10 Gbit/s, 100 MB and 4 hosts 4 MiB took as long.
MOST_CHUNK_BYTES = 1 << 20
# Largest rate at which chunks have the least size whatever the message.  It is
# that of links of 1 Gbit/s, as which links of unknown rate count.
_SLOW_BPS = 125e6
# Longest time that a chunk may hold a link which others share, seconds.
_HOLD_S = 2e-3
# Seconds that a chunk costs the processors of its sender and its receiver,
# besides its bytes: kernel, Python and locks.
_CHUNK_S = 70e-6
# Least size of a chunk over trees of unlike shares: with 8 KiB times differed
# by less than 8 %, for up to 1.5 times as much processor time.
_LEAST_BYTES = 16 * 1024
_LEAST_CHUNKS, _LEAST_PER_TREE = 5, 2  # Least chunks of a window.
# Seconds by which workers run ahead, to hide latency.  With more, senders to
# the same worker slow each other down: measured on links of 200 Mbit/s, with 4
# to 8 hosts.
_AHEAD_S, _AHEAD_S_PER_HOP = 0.0125, 0.00625
# Part of a round trip that is added.  The shortest one has no queues: with 1
# and delays of 25 ms per hop a ring of 4 took 1.15 to 1.2 times as long, on a
# busy machine.
_TRIP_SHARE = 1.5
# Largest memory of a host for chunks that it cannot add yet, unless the least
# window of many trees needs more.  Covers 10 Gbit/s for .2 s.
AHEAD_BYTES = 256 << 20


# Bytes per second of a host's links, in one direction, for each of which there
# is a lane; cores that a lane needs; largest number of lanes.
_LANE_BPS, _LANE_CORES, _MOST_LANES = 500e6, 2, 4
_UNITS = 2**40  # Of shares: sums of integers are exact, and fast.


def lanes(forest: Forest, *, cores: int) -> int:
  """Returns the number of lanes that divide the chunks of an allreduce, 1 to 4.

  One for each 4 Gbit/s that the busiest host sends, but at most one for each
  two cores, as lanes compete with the computing for them.

  Args:
    forest: Forest over which the chunks are summed; without a rate there is one
      lane.
    cores: Smallest number of cores that a process can use.
  """
  carried = compact.sum_over_hops(
    forest, (int(tree.share * _UNITS) for tree in forest.trees)
  )
  sent: dict[str, int] = collections.defaultdict(int)
  for hop, units in carried.items():
    sent[hop[0]] += units
  most = max(sent.values(), default=0) / _UNITS
  sent_Bps = float(forest.rate_Bps or 0) * most
  wanted = math.ceil(sent_Bps / _LANE_BPS)
  return max(min(wanted, cores // _LANE_CORES, _MOST_LANES), 1)


def ahead_s(forest: Forest) -> float:
  """Returns the seconds by which workers run ahead; more for deep trees."""
  return _AHEAD_S + _AHEAD_S_PER_HOP * 2 * _depth(forest)  # Up, and down.


def chunk_bytes(
  size_bytes: int, forest: Forest, *, fixed: int | None = None
) -> int:
  """Returns the size of a message's chunks, except the last of each bucket.

  A message of S bytes in chunks of c bytes over trees of depth d takes about S
  / c chunks' processor time and 2 d c / rate to fill the trees.  The sum is
  smallest at the square root of S rate _CHUNK_S / 2 d.  That size is taken, but
  at most what the rate carries in 2 ms, and between 48 KiB and 1 MiB.  Forests
  of at most 1 Gbit/s, or without a rate, have chunks of 48 KiB.

  Small messages over trees of different shares have smaller chunks, one for
  each tree, so that trees get about their shares; but at least 16 KiB.  Trees
  whose shares are within a factor of two, as those of rings, use much the same
  links, so that few large chunks are best.

  Args:
    size_bytes: Size of the message.
    forest: Forest over which the message is summed.
    fixed: Size to use in place of that of the rate, bytes, a multiple of 4.

  Returns:
    A multiple of 4; of 16 KiB if the rate decides.
  """
  most = _rate_bytes(size_bytes, forest) if fixed is None else fixed
  shares = [tree.share for tree in forest.trees]
  if not shares or max(shares) <= 2 * min(shares):
    return most
  even = 4 * math.ceil(size_bytes / (4 * len(shares)))
  return min(max(even, _LEAST_BYTES), most)


def most_chunk_bytes(forest: Forest) -> int:
  """Returns the largest size of chunks of any message over a forest, bytes."""
  most = min(MOST_CHUNK_BYTES, _ahead_bytes(forest) // _least_window(forest))
  return max(_LEAST_BYTES * (most // _LEAST_BYTES), CHUNK_BYTES)


def window(
  forest: Forest,
  *,
  chunk_bytes: int,
  round_trip_s: float = 0.0,
  lanes: int = 1,
) -> int:
  """Returns the number of chunks by which a worker may run ahead in a lane.

  They count from the lowest chunk whose sum the worker has not received, so
  that links stay busy while sums are on their way.

  Args:
    forest: Forest over which the chunks are summed; its rate decides.
    chunk_bytes: Size of a chunk.
    round_trip_s: Shortest measured time from a chunk's sending to the arrival
      of its sum, seconds; 0 if it is not measured.
    lanes: Number of lanes that divide the chunks.

  Returns:
    The chunks that a lane carries in A = `ahead_s(forest)` seconds plus 1.5
    times the part of `round_trip_s` beyond A / 2.  At most those for which the
    lane's part of `AHEAD_BYTES` has room, for each sender to the same host; but
    at least the lane's part of 5 chunks, and of 2 per tree.
  """
  least_s = ahead_s(forest)
  seconds = least_s + _TRIP_SHARE * max(round_trip_s - least_s / 2, 0.0)
  rate_Bps = float(forest.rate_Bps or 0) / lanes
  ahead = math.ceil(rate_Bps * seconds / chunk_bytes)
  most = _ahead_bytes(forest, lanes) // chunk_bytes
  return max(min(ahead, most), _least_window(forest, lanes))


def ahead_bytes(forest: Forest, *, chunk_bytes: int, lanes: int = 1) -> int:
  """Returns the largest memory for one sender's chunks that must wait.

  They wait until they can be added.  A host's memory for all that send it
  partial sums is at most `AHEAD_BYTES` in all lanes together, unless the
  smallest window needs more.

  Args:
    forest: Forest over which the chunks are summed.
    chunk_bytes: Size of a chunk.
    lanes: Number of lanes that divide the chunks; the memory is that of one.
  """
  least = _least_window(forest, lanes) * chunk_bytes
  return max(_ahead_bytes(forest, lanes), least)


def _rate_bytes(size_bytes: int, forest: Forest) -> int:
  """Returns the size of chunks for the rate of a forest, bytes."""
  rate_Bps = float(forest.rate_Bps or 0)
  if rate_Bps <= _SLOW_BPS:
    return CHUNK_BYTES
  square_s = _CHUNK_S * size_bytes / max(2 * _depth(forest), 1)
  best = min(math.isqrt(int(rate_Bps * square_s)), int(rate_Bps * _HOLD_S))
  whole = _LEAST_BYTES * (best // _LEAST_BYTES)
  return min(max(whole, CHUNK_BYTES), most_chunk_bytes(forest))


def _ahead_bytes(forest: Forest, lanes: int = 1) -> int:
  """Returns a lane's part of `AHEAD_BYTES`, for each sender of the busiest."""
  children: dict[str, set[str]] = {}
  for tree in forest.trees:
    for hop in tree.up:
      children.setdefault(hop[-1], set()).add(hop[0])
  most = max(map(len, children.values()), default=1)
  return AHEAD_BYTES // (most * lanes)


def _least_window(forest: Forest, lanes: int = 1) -> int:
  least = max(_LEAST_CHUNKS, _LEAST_PER_TREE * len(forest.trees))
  return max(least // lanes, 1)


def _depth(forest: Forest) -> int:
  return max((tree.depth for tree in forest.trees), default=0)


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
