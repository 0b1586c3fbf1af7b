"""Predicts how long a collective takes over a forest, in chunks.

Routes choose forests by these predictions, and the virtual clock runs on them.
`all_ready_s` has a closed form; `AllreduceTiming` also takes parts that become
ready one after the other.

The trees share the links: all of them together end when the fullest link has
carried all its bytes.  That time is divided over the message, and each byte has
an equal part of it, its turn.  Workers store and forward chunks; a worker can
send a chunk only after its own numbers are ready, and workers may become ready
at different times.

Senders send the lowest chunks first.  So a chunk that another worker has sent
passes a hop at the rate of the hop's slowest link, although other chunks use
that link as well.  A worker's own numbers wait for those before them; they go
earlier while links have nothing else to carry, but by a window at most.  So a
chunk has passed a hop at

  max(known + alone, due - ahead)
  due = max(ready, due of the chunk before) + turn

where `ready` is the time at which the sender's own numbers are ready, `known`
the time at which those from other workers have arrived as well, `alone` the
seconds that the chunk takes by itself, and `ahead` those of the window.  No sum
is complete before it is due.

Running ahead thus hides the time that a chunk takes from hop to hop.  Without
running ahead, and with everything ready at once, the end is at `all_ready_s`.
"""

import collections
import copy
import functools
import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees
from topology.forests.dealing import deal
from topology.forests.trees import Forest, Hop, Tree

Latency = float | Mapping[Ends, float]


def all_ready_s(
  cluster: Cluster,
  forest: Forest,
  size_bytes: int,
  *,
  latency_s: Latency,
  chunk_bytes: int,
  message_s: float = 0.0,
  hidden_s: float = 0.0,
) -> float:
  """Returns an upper bound of a collective's time, s, if all data is ready.

  It is the time in which the fullest link carries its bytes and messages, plus
  the time of the last chunk of a tree on each hop after its first, less the
  part that running ahead hides.  The fullest link need not be on the longest
  way, so events may end earlier.  O(hops).

  Args:
    forest: A sound forest of the cluster (`verify.check`); without trees it
      takes no time.
    size_bytes: Size of the whole vector, at least 0.
    latency_s: Latency of every link, or of each link by its (src, dst).
    chunk_bytes: Largest size of a chunk; at least 1.
    message_s: Seconds for which each chunk holds the links of a hop, in
      addition to its bytes.
    hidden_s: Seconds of the last chunk's way that running ahead hides.

  Raises:
    ValueError: If an argument is out of its range, a link is without latency,
      or the forest uses a link that the cluster has not.
  """
  _check_count('size_bytes', size_bytes, least=0)
  _check_count('chunk_bytes', chunk_bytes)
  latency_of = _latencies(cluster, latency_s)
  message_s = _seconds('message_s', message_s)
  chunks = np.array([chunk_bytes])
  total_s = _totals_s(
    cluster, forest, size_bytes, latency_of, chunks, message_s, hidden_s
  )
  return float(total_s[0])


def best_chunk_bytes(
  cluster: Cluster,
  forest: Forest,
  size_bytes: int,
  *,
  latency_s: Latency,
  message_s: float,
  max_chunks: int = 1024,
) -> tuple[int, float]:
  """Returns the chunk size with the smallest `all_ready_s`, and those seconds.

  Compares the sizes that divide the largest part of a tree into 1 to
  `max_chunks` chunks; the time has several local minima, because chunks are
  whole.  The largest of equally fast sizes wins.

  Args:
    forest: A sound forest of the cluster (`verify.check`); without trees it
      takes no time.
    size_bytes: Size of the whole vector, at least 1.
    latency_s: Latency of every link, or of each link by its (src, dst).
    message_s: Seconds for which each chunk holds the links of a hop, in
      addition to its bytes.
    max_chunks: Largest number of chunks of the largest part; at least 1.

  Raises:
    ValueError: As `all_ready_s`.
  """
  _check_count('size_bytes', size_bytes)
  _check_count('max_chunks', max_chunks)
  latency_of = _latencies(cluster, latency_s)
  message_s = _seconds('message_s', message_s)
  parts = [tree.share * size_bytes for tree in forest.trees]
  largest = math.ceil(max(parts, default=1))
  counts = range(1, min(max_chunks, largest) + 1)
  sizes = np.array([-(-largest // count) for count in counts])
  total_s = _totals_s(
    cluster, forest, size_bytes, latency_of, sizes, message_s, 0.0
  )
  best = int(np.argmin(total_s))
  return int(sizes[best]), float(total_s[best])


def chunk_counts(
  forest: Forest, size_bytes: int, chunk_bytes: int
) -> list[int]:
  """Returns the number of chunks of each tree's share of a message.

  Args:
    size_bytes: Size of the whole message.
    chunk_bytes: Largest size of a chunk.
  """
  return [
    math.ceil(tree.share * size_bytes / chunk_bytes) for tree in forest.trees
  ]


def _totals_s(
  cluster: Cluster,
  forest: Forest,
  size_bytes: int,
  latency_of: Mapping[Ends, float],
  chunk_bytes: np.ndarray,
  message_s: float,
  hidden_s: float,
) -> np.ndarray:
  """Returns `all_ready_s` for each of several chunk sizes, float [sizes]."""
  fill_s: np.ndarray = np.zeros(len(chunk_bytes))
  byte_s = _link_byte_s(cluster)
  for tree in forest.trees:
    size = np.minimum(chunk_bytes, float(tree.share * size_bytes))
    # Arrays of one number take several times as long as floats.
    sizes = float(size[0]) if len(size) == 1 else size
    tree_s = _fill_s(tree, sizes, byte_s, latency_of, message_s)
    fill_s = np.maximum(fill_s, tree_s)
  weighted = ((tree.share, (*tree.up, *tree.down)) for tree in forest.trees)
  load = trees.loads(weighted)
  fill_s = np.maximum(fill_s - hidden_s, 0.0)
  if not message_s:
    full_s: np.ndarray = size_bytes * _fullest_s(cluster, load) + fill_s
    return full_s
  messages = _messages(forest, size_bytes, chunk_bytes, [*load])
  shares = (each / cluster.capacity_Bps[ends] for ends, each in load.items())
  bytes_s = size_bytes * np.array([float(share) for share in shares])
  links_s = bytes_s[:, None] + message_s * messages
  total_s: np.ndarray = links_s.max(axis=0, initial=0.0) + fill_s
  return total_s


def _fill_s(
  tree: Tree,
  size: np.ndarray | float,
  byte_s: Mapping[Ends, float],
  latency_of: Mapping[Ends, float],
  message_s: float,
) -> np.ndarray | float:
  """Returns the seconds of the last chunk on each hop after its first."""
  # `size` is the bytes of a chunk, one number or floats [sizes]; `message_s`
  # the seconds of a chunk on a hop in addition to its bytes.
  none = 0.0 * size
  above, below = {tree.root: none}, {tree.root: none}
  first = [none]
  for hop in reversed(tree.up):
    alone_s = size * _per_byte_s(byte_s, hop) + message_s
    first.append(above[hop[-1]] + _hop_latency_s(hop, latency_of))
    above[hop[0]] = first[-1] + alone_s
  for hop in tree.down:
    alone_s = size * _per_byte_s(byte_s, hop) + message_s
    is_first = hop[0] == tree.root and not tree.up
    sent_s = below[hop[0]] + (none if is_first else alone_s)
    below[hop[-1]] = sent_s + _hop_latency_s(hop, latency_of)
  last_s = functools.reduce(np.maximum, below.values())
  return functools.reduce(np.maximum, first) + last_s


def _messages(
  forest: Forest, size_bytes: int, chunk_bytes: np.ndarray, links: list[Ends]
) -> np.ndarray:
  """Returns the messages that cross each link, int [links, sizes]."""
  place = {ends: number for number, ends in enumerate(links)}
  hops = np.zeros((len(links), len(forest.trees)), np.int64)
  for number, tree in enumerate(forest.trees):
    for hop in (*tree.up, *tree.down):
      for ends in itertools.pairwise(hop):
        hops[place[ends], number] += 1
  sizes = chunk_bytes.tolist()
  counts = [chunk_counts(forest, size_bytes, size) for size in sizes]
  return hops @ np.array(counts, np.int64).T


class _Stage(NamedTuple):
  """Hops that proceed at the same time, sorted by tree and receiver.

  Attributes:
    trees: Int [hops].
    senders: Int [hops].
    receivers: Int [hops].
    per_byte_s: Float [hops, 1], of a chunk by itself.
    latency_s: Float [hops, 1].
    first: Int [ends]: the first hop to each worker of each tree.
  """

  trees: np.ndarray
  senders: np.ndarray
  receivers: np.ndarray
  per_byte_s: np.ndarray
  latency_s: np.ndarray
  first: np.ndarray


class AllreduceTiming:
  """End of an allreduce, as a function of the times of its chunks.

  A call takes O(hops * chunks of a tree), in as many NumPy steps as trees are
  deep.

  Args:
    forest: A sound allreduce of the cluster; without trees for a single worker.
    chunks: Bytes of each chunk, in the order in which they are sent.
    latency_s: Latency of each link.
    of_tree: Int [chunks], the tree of each; None for the result of `deal`.
    ahead_bytes: Largest number of bytes by which workers run ahead.
    begin_s: Float [chunks], seconds for which each chunk holds the links before
      its bytes are sent; None for zeros.

  Attributes:
    carried: Bytes that one worker sends to another, by their ids.
  """

  def __init__(
    self,
    cluster: Cluster,
    forest: Forest,
    chunks: Sequence[int],
    *,
    latency_s: Mapping[Ends, float],
    of_tree: np.ndarray | None = None,
    ahead_bytes: int = 0,
    begin_s: np.ndarray | None = None,
  ) -> None:
    self._cluster, self._ahead_bytes = cluster, ahead_bytes
    self._shares = [float(tree.share) for tree in forest.trees]
    hops = sorted({h for tree in forest.trees for h in (*tree.up, *tree.down)})
    self._hops = hops
    place = {hop: number for number, hop in enumerate(hops)}
    numbers = [[place[h] for h in (*t.up, *t.down)] for t in forest.trees]
    counts = [np.bincount(each, minlength=len(hops)) for each in numbers]
    self._counts = np.array(counts, np.int64).reshape(len(counts), len(hops))
    link_s = _link_byte_s(cluster)
    byte_s = np.array([_per_byte_s(link_s, hop) for hop in hops])
    later_s = np.array([_hop_latency_s(hop, latency_s) for hop in hops])
    roots = [cluster.rank[tree.root] for tree in forest.trees]
    self._roots = np.array(roots, int)
    self._up, self._down = (
      _stages(cluster, forest.trees, place, byte_s, later_s, down=down)
      for down in (False, True)
    )
    self._set_chunks(chunks, of_tree, begin_s)

  def with_chunks(
    self, chunks: Sequence[int], *, begin_s: np.ndarray | None = None
  ) -> 'AllreduceTiming':
    """Returns the timing of other chunks over the same forest.

    Takes far less time than building one from the forest.

    Args:
      chunks: As of the class.
      begin_s: As of the class.
    """
    other = copy.copy(self)
    other._set_chunks(chunks, None, begin_s)
    return other

  def _set_chunks(
    self,
    chunks: Sequence[int],
    of_tree: np.ndarray | None,
    begin_s: np.ndarray | None,
  ) -> None:
    sizes, shares = np.asarray(chunks, np.int64), self._shares
    if of_tree is None:
      of_tree = np.array(deal(shares, chunks) if shares else [], int)
    own = [np.flatnonzero(of_tree == t) for t in range(len(shares))]
    most = max(map(len, own), default=0)
    # Padding: chunks without bytes that are ready before all others.
    self._places = np.full((len(own), most), len(sizes))
    self._bytes = np.zeros((len(own), most))
    for row, places in enumerate(own):
      self._places[row, : len(places)] = places
      self._bytes[row, : len(places)] = sizes[places]
    total = np.array([sizes[places].sum() for places in own], np.int64)
    load, between = (collections.Counter[Ends]() for _ in range(2))
    for hop, size in zip(self._hops, total @ self._counts, strict=True):
      if size:
        between[hop[0], hop[-1]] += int(size)
        for ends in itertools.pairwise(hop):
          load[ends] += int(size)
    self.carried = dict(between)
    byte_s = _fullest_s(self._cluster, load) / max(sizes.sum(), 1)
    self._turns_s, self._ahead_s = sizes * byte_s, self._ahead_bytes * byte_s
    if begin_s is not None:
      self._turns_s = self._turns_s + begin_s

  def __call__(self, ready_s: np.ndarray) -> float:
    """Returns the time in seconds at which every worker has all sums.

    Args:
      ready_s: Float [workers, chunks], the time at which a worker's own numbers
        are ready.
    """
    if not self._places.size:
      return float(ready_s.max())
    until_s = np.cumsum(self._turns_s)
    later_s = ready_s + self._turns_s - until_s
    due_s = until_s + np.maximum.accumulate(later_s, axis=1)
    early_s = self._by_tree(due_s - self._ahead_s)
    known_s = self._by_tree(ready_s)
    for stage in self._up:
      come_s = self._through_s(stage, known_s, early_s)
      come_s = np.maximum.reduceat(come_s, stage.first, axis=0)
      place = stage.trees[stage.first], stage.receivers[stage.first]
      known_s[place] = np.maximum(known_s[place], come_s)
    roots = np.arange(len(self._roots)), self._roots
    latest_s = max(due_s.max(), known_s[roots].max())
    for stage in self._down:
      come_s = self._through_s(stage, known_s, early_s)
      known_s[stage.trees, stage.receivers] = come_s
      latest_s = max(latest_s, come_s.max())
    return float(latest_s)

  def _by_tree(self, times_s: np.ndarray) -> np.ndarray:
    """Copies [workers, chunks] to [trees, workers, chunks of a tree]."""
    none = np.full((len(times_s), 1), -np.inf)
    padded = np.concatenate([times_s, none], axis=1)
    return padded[:, self._places].transpose(1, 0, 2).copy()

  def _through_s(
    self, stage: _Stage, known_s: np.ndarray, early_s: np.ndarray
  ) -> np.ndarray:
    """Returns the arrival of each chunk at the end of a hop, [hops, chunks]."""
    place = stage.trees, stage.senders
    alone_s = self._bytes[stage.trees] * stage.per_byte_s
    through_s = np.maximum(known_s[place] + alone_s, early_s[place])
    arrival_s: np.ndarray = through_s + stage.latency_s
    return arrival_s


def _stages(
  cluster: Cluster,
  chosen: Sequence[Tree],
  place: Mapping[Hop, int],
  byte_s: np.ndarray,
  later_s: np.ndarray,
  *,
  down: bool,
) -> list[_Stage]:
  """Returns the hops of all trees in stages; a stage waits for those before."""
  # `place` is the index of each hop in `byte_s`, float [hops], the seconds of a
  # byte by itself, and in `later_s`, its latency.
  rank, rows = cluster.rank, []
  for t, tree in enumerate(chosen):
    # The number of hops after which a worker has all that it passes on.
    after = [0] * len(rank)
    for hop in tree.down if down else tree.up:
      src, dst = rank[hop[0]], rank[hop[-1]]
      rows.append((after[src], t, dst, src, place[hop]))
      after[dst] = max(after[dst], after[src] + 1)
  table = np.array(rows, int).reshape(len(rows), 5)
  table = table[np.lexsort(table.T[::-1])]
  cuts = np.flatnonzero(np.diff(table[:, 0])) + 1
  stages = []
  for group in np.split(table, cuts) if rows else ():
    _, of_tree, receivers, senders, hops = group.T
    ends = of_tree * len(rank) + receivers
    first = np.flatnonzero(np.diff(ends, prepend=-1))
    seconds = byte_s[hops][:, None], later_s[hops][:, None]
    stages.append(_Stage(of_tree, senders, receivers, *seconds, first))
  return stages


def _fullest_s(cluster: Cluster, load: Mapping[Ends, Fraction | int]) -> float:
  """Returns the seconds in which the fullest link carries its load."""
  times = (each / cluster.capacity_Bps[ends] for ends, each in load.items())
  return float(max(times, default=0))


def _link_byte_s(cluster: Cluster) -> dict[Ends, float]:
  """Returns the seconds of a byte on each link."""
  return {ends: 1 / float(Bps) for ends, Bps in cluster.capacity_Bps.items()}


def _per_byte_s(byte_s: Mapping[Ends, float], hop: Hop) -> float:
  """Returns the seconds of a byte by itself on the slowest link of a hop."""
  try:
    return max([byte_s[ends] for ends in itertools.pairwise(hop)])
  except KeyError as error:
    raise ValueError(
      f'forest: expected hops over links of the cluster, got {hop}.'
    ) from error


def _hop_latency_s(hop: Hop, latency_s: Mapping[Ends, float]) -> float:
  return sum([latency_s[ends] for ends in itertools.pairwise(hop)])


def _latencies(cluster: Cluster, latency_s: Latency) -> dict[Ends, float]:
  links = cluster.capacity_Bps
  if not isinstance(latency_s, Mapping):
    return dict.fromkeys(links, _seconds('latency_s', latency_s))
  return {e: _seconds(f'latency_s of {e}', latency_s.get(e)) for e in links}


def _check_count(name: str, count: object, least: int = 1) -> None:
  if not isinstance(count, numbers.Integral) or count < least:
    raise ValueError(
      f'{name}: expected an integer of at least {least}, got {count!r}.'
    )


def _seconds(name: str, value: object) -> float:
  if isinstance(value, numbers.Real) and 0 <= float(value) < math.inf:
    return float(value)
  raise ValueError(
    f'{name}: expected finite seconds of at least 0, got {value!r}.'
  )
