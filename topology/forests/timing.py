"""How long a collective takes as a forest, in chunks and with latency.

The model: each tree carries its bytes in chunks, one after the other.  A worker
sends a chunk towards the root when the chunk has arrived from all from which it
receives it there; the root returns it as soon as it has added it up, and the
others pass it on when it has arrived.  On every hop a tree has its weight in
bytes per second to itself: the links can carry all trees at once, none is
faster where they are not full, and a worker sends on all its hops at the same
time.  A chunk holds a hop for its bytes and a cost per message; it arrives
later by the latency of all links of the hop, which hold nothing.  Workers store
and forward chunks, nodes within a hop cut through.

So trees do not wait for each other, and a chunk takes as long on one hop of its
tree as on any other.  This has a closed form, as in flow shops whose machines
are alike.  The last chunk arrives at the end of the longest path through pairs
of hop and chunk, each step of which goes on to the next hop or the next chunk.
A path meets each chunk once, and for each hop after the first a chunk once
more, at worst the largest: all chunks, and the largest once per further hop.
"""

import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees

Latency = float | Mapping[Ends, float]


class Timing(NamedTuple):
  """How long a collective takes.

  Attributes:
    total_s: Seconds until every worker has all that it is to have.
    done_s: Per worker, seconds until it has: the sum or the data of all, or in
      a reduce-scatter the sum of its own part.
    link_bytes: Per link (src, dst) of the cluster, the bytes that cross it.
  """

  total_s: float
  done_s: dict[str, float]
  link_bytes: dict[Ends, int]


def simulate(
  cluster: Cluster,
  forest: trees.Forest,
  size_bytes: int,
  *,
  latency_s: Latency,
  chunks: int | Sequence[int],
  message_s: float = 0.0,
) -> Timing:
  """Returns the time that the forest takes, pipeline fill included.

  Exact for the model above, in O(hops), whatever the number of chunks.

  Args:
    cluster: That of the forest.
    forest: Sound, as `verify.check` has it; without trees it takes no time.
    size_bytes: Bytes of the whole, at least 0, divided as by `byte_ranges`.
    latency_s: Seconds of every link, or of each link by its (src, dst).  For
      hosts that add their latency at both ends, a link between a worker and a
      switch has that of the worker, one between two workers the sum.
    chunks: Chunks of every tree, or of each, at least 1; they differ by at most
      a byte.  Those without bytes, in trees of fewer bytes, are not sent.
    message_s: Seconds that each chunk holds a hop besides its bytes.

  Raises:
    ValueError: If an argument is out of its range, a link is without latency,
      or the forest uses a link that the cluster has not.
  """
  parts = _parts(cluster, forest, size_bytes, latency_s, message_s)
  if not isinstance(chunks, Sequence):
    _check_count('chunks', chunks)
    chunks = [chunks] * len(parts)
  if len(chunks) != len(parts):
    raise ValueError(
      f'chunks: expected {len(parts)} counts, got {len(chunks)}.'
    )
  for count in chunks:
    _check_count('chunks', count)
  return _timing(cluster, forest, parts, chunks)


def best_chunks(
  cluster: Cluster,
  forest: trees.Forest,
  size_bytes: int,
  *,
  latency_s: Latency,
  message_s: float,
  most: int = 1024,
) -> tuple[tuple[int, ...], Timing]:
  """Returns the chunks of each tree that take the least time, and the timing.

  As trees are independent, each has its own best number; all up to `most` are
  compared, since rounding to bytes leaves several local optima.  Of equals the
  smallest is taken.  If messages cost nothing, more chunks never take longer.

  Arguments are those of `simulate`, but `most`, of at least 1.
  """
  parts = _parts(cluster, forest, size_bytes, latency_s, message_s)
  _check_count('most', most)
  counts = tuple(part.best_count(most) for part in parts)
  return counts, _timing(cluster, forest, parts, counts)


class _Ways(NamedTuple):
  """Between the root of a tree and each worker; all zero if there are none."""

  hops: np.ndarray  # Int [workers].
  latency_s: np.ndarray  # Float [workers], of all links.

  def slowest_s(self, slot_s: np.ndarray) -> np.ndarray:
    """Seconds of the slowest way, if each hop takes one of the slots."""
    most_s = np.zeros(self.hops.max() + 1)
    np.maximum.at(most_s, self.hops, self.latency_s)
    slowest_s = np.zeros_like(slot_s)
    for hops in np.unique(self.hops):
      slowest_s = np.maximum(slowest_s, most_s[hops] + hops * slot_s)
    return slowest_s


class _Part(NamedTuple):
  """What a tree carries, and its ways."""

  size_bytes: int
  send_s: float  # Of all its bytes on one hop.
  message_s: float  # Of each chunk besides its bytes.
  up: _Ways  # To the root.
  down: _Ways  # From it.
  waits: np.ndarray  # Bool [workers]: has not all that it is to have.

  def slot_s(self, chunks: np.ndarray) -> np.ndarray:
    """Seconds that the largest of so many chunks holds a hop."""
    largest = -(-self.size_bytes // chunks)
    return largest * (self.send_s / self.size_bytes) + self.message_s

  def summed_s(self, chunks: np.ndarray) -> np.ndarray:
    """Seconds until the root has added up the last chunk.

    Without hops up it is a slot less than all chunks hold a hop down.
    """
    slot_s = self.slot_s(chunks)
    held_s = self.send_s + chunks * self.message_s
    return held_s - slot_s + self.up.slowest_s(slot_s)

  def best_count(self, most: int) -> int:
    """Returns the chunks, at most as many as bytes, that take least."""
    if not self.size_bytes:
      return 1
    counts = np.arange(1, min(most, self.size_bytes) + 1)
    down_s = self.down.slowest_s(self.slot_s(counts))
    return int(counts[np.argmin(self.summed_s(counts) + down_s)])

  def done_s(self, chunks: int) -> np.ndarray:
    """Float [workers]: seconds until each has its part."""
    if not self.size_bytes:
      return np.zeros(len(self.waits))
    count = np.array([min(chunks, self.size_bytes)])
    way_s = self.down.latency_s + self.down.hops * self.slot_s(count)
    return np.where(self.waits, self.summed_s(count) + way_s, 0.0)


def _parts(
  cluster: Cluster,
  forest: trees.Forest,
  size_bytes: int,
  latency_s: Latency,
  message_s: float,
) -> list[_Part]:
  if not isinstance(size_bytes, int) or size_bytes < 0:
    raise ValueError(
      f'size_bytes: expected an integer of at least 0, got {size_bytes!r}.'
    )
  message_s = _seconds('message_s', message_s)
  latency_of = _latencies(cluster, latency_s)
  parts = []
  for tree, (start, end) in zip(
    forest.trees, forest.byte_ranges(size_bytes), strict=True
  ):
    up = [(hop[-1], hop[0], _sum(hop, latency_of)) for hop in tree.up[::-1]]
    down = [(hop[0], hop[-1], _sum(hop, latency_of)) for hop in tree.down]
    ways = _ways(down, cluster.rank)
    waits = ways.hops > 0
    waits[cluster.rank[tree.root]] = bool(tree.up)
    send_s = float((end - start) / tree.weight_Bps)
    above = _ways(up, cluster.rank)
    parts.append(_Part(end - start, send_s, message_s, above, ways, waits))
  return parts


def _latencies(cluster: Cluster, latency_s: Latency) -> dict[Ends, float]:
  links = cluster.capacity_Bps
  if not isinstance(latency_s, Mapping):
    return dict.fromkeys(links, _seconds('latency_s', latency_s))
  return {e: _seconds(f'latency_s of {e}', latency_s.get(e)) for e in links}


def _sum(hop: trees.Hop, latency_of: dict[Ends, float]) -> float:
  try:
    return sum(latency_of[ends] for ends in itertools.pairwise(hop))
  except KeyError as error:
    raise ValueError(
      f'forest: expected hops over links of the cluster, got {hop}.'
    ) from error


def _ways(hops: list[tuple[str, str, float]], rank: dict[str, int]) -> _Ways:
  """The ways of hops (nearer to the root, farther, latency), nearest first."""
  count, latency_s = [0] * len(rank), [0.0] * len(rank)
  for near, far, hop_s in hops:
    count[rank[far]] = count[rank[near]] + 1
    latency_s[rank[far]] = latency_s[rank[near]] + hop_s
  return _Ways(np.array(count), np.array(latency_s))


def _timing(
  cluster: Cluster,
  forest: trees.Forest,
  parts: Sequence[_Part],
  chunks: Sequence[int],
) -> Timing:
  done_s = np.zeros(len(cluster.workers))
  for part, count in zip(parts, chunks, strict=True):
    done_s = np.maximum(done_s, part.done_s(count))
  load = trees.loads(
    (part.size_bytes, (*tree.up, *tree.down))
    for part, tree in zip(parts, forest.trees, strict=True)
  )
  return Timing(
    float(done_s.max()),
    dict(zip(cluster.workers, done_s.tolist(), strict=True)),
    {ends: int(load.get(ends, 0)) for ends in cluster.capacity_Bps},
  )


def _check_count(name: str, count: int) -> None:
  if not isinstance(count, int) or count < 1:
    raise ValueError(
      f'{name}: expected an integer of at least 1, got {count!r}.'
    )


def _seconds(name: str, value: object) -> float:
  if isinstance(value, numbers.Real) and 0 <= float(value) < math.inf:
    return float(value)
  raise ValueError(
    f'{name}: expected finite seconds of at least 0, got {value!r}.'
  )
