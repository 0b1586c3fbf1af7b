"""How long an allreduce takes whose parts become ready one after the other.

Trees take as much of the links as they have to carry: all together are through
when the fullest link is, after `whole` seconds of which each byte has an equal
part, its turn.  Workers store and forward chunks.  A worker can send a chunk
only once its own numbers are there, and the others have become ready elsewhere,
each at its own time.

Who sends sends the lowest chunks first.  So what has come from another worker
passes a hop at the rate of its slowest link, though others use that as well.
What many have at the same time, their own numbers, waits for those before it;
it goes earlier while links have nothing else to carry, but not by more than a
window.  So on each hop a chunk is through at

  max(known + alone, due - ahead)
  due = max(ready, due of the chunk before) + turn

where `ready` is when the sender's own numbers are there, `known` when those
from others have come as well, `alone` the time that the chunk takes by itself,
and `ahead` that of the window.  Its sum is nowhere before it is due.

So what a chunk takes from hop to hop is hidden as far as workers run ahead.  If
they do not, and everything is ready at once, it takes what `all_ready_s` says.
"""

import collections
import copy
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees
from topology.forests.dealing import dealt
from topology.forests.trees import Forest, Hop, Tree


def all_ready_s(
  cluster: Cluster,
  forest: Forest,
  size_bytes: int,
  *,
  latency_s: Mapping[Ends, float],
  chunk_bytes: int,
  hidden_s: float = 0.0,
) -> float:
  """Returns how long an allreduce takes at most, with everything ready at once.

  As long as all bytes, and the last chunk of a tree on each hop after its
  first: what nobody has hidden by running ahead.  O(hops).

  Args:
    cluster: That of the forest.
    forest: Sound, an allreduce; without trees for a single worker.
    size_bytes: Of the whole.
    latency_s: Of each link.
    chunk_bytes: Of a chunk, at most.
    hidden_s: Of what the last chunk takes, hidden by running ahead.
  """
  fills = []
  for tree in forest.trees:
    size = min(chunk_bytes, float(tree.share * size_bytes))
    above, below = {tree.root: 0.0}, {tree.root: 0.0}
    first = []
    for hop in reversed(tree.up):
      later_s = _later_s(hop, latency_s)
      first.append(above[hop[-1]] + later_s)
      above[hop[0]] = first[-1] + size * _per_byte_s(cluster, hop)
    for hop in tree.down:
      alone_s = size * _per_byte_s(cluster, hop)
      below[hop[-1]] = below[hop[0]] + alone_s + _later_s(hop, latency_s)
    fills.append(max(first) + max(below.values()))
  load = trees.loads(
    (tree.share, (*tree.up, *tree.down)) for tree in forest.trees
  )
  fill_s = max(max(fills, default=0.0) - hidden_s, 0.0)
  return size_bytes * _whole_s(cluster, load) + fill_s


class _Stage(NamedTuple):
  """Hops that go on at the same time, those to one worker of a tree together.

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


class Allreduce:
  """Says when an allreduce is through, given when its parts are ready.

  O(hops * chunks of a tree) for each question, in as many steps of NumPy as
  trees are deep.

  Attributes:
    carried: Bytes that go from a worker to another, by their ids.
  """

  def __init__(
    self,
    cluster: Cluster,
    forest: Forest,
    chunks: Sequence[int],
    *,
    latency_s: Mapping[Ends, float],
    of_tree: np.ndarray | None = None,
    slots_s: Sequence[float] | None = None,
    ahead_bytes: int = 0,
    begin_s: np.ndarray | None = None,
  ) -> None:
    """Works out what does not depend on when parts are ready.

    Args:
      cluster: That of the forest.
      forest: Sound, an allreduce; without trees for a single worker.
      chunks: Bytes of each, in the order in which they are sent.
      latency_s: Of each link.
      of_tree: Int [chunks], the tree of each; as `dealt` says if None.
      slots_s: Of each tree, seconds of its largest chunk on a hop by itself;
        as the slowest link of each hop has it if None.
      ahead_bytes: By which workers run ahead, at most.
      begin_s: Float [chunks], seconds for which each holds the links up before
        its bytes go; none if None.
    """
    self._cluster, self._ahead_bytes = cluster, ahead_bytes
    self._shares = [float(tree.share) for tree in forest.trees]
    hops = sorted({h for tree in forest.trees for h in (*tree.up, *tree.down)})
    self._hops = hops
    place = {hop: number for number, hop in enumerate(hops)}
    numbers = [[place[h] for h in (*t.up, *t.down)] for t in forest.trees]
    counts = [np.bincount(each, minlength=len(hops)) for each in numbers]
    self._counts = np.array(counts, np.int64).reshape(len(counts), len(hops))
    byte_s = np.array([_per_byte_s(cluster, hop) for hop in hops])
    later_s = np.array([_later_s(hop, latency_s) for hop in hops])
    roots = [cluster.rank[tree.root] for tree in forest.trees]
    self._roots = np.array(roots, int)
    self._up, self._down = (
      _stages(cluster, forest.trees, place, byte_s, later_s, down=down)
      for down in (False, True)
    )
    self._take(chunks, of_tree, slots_s, begin_s)

  def of(
    self, chunks: Sequence[int], *, begin_s: np.ndarray | None = None
  ) -> 'Allreduce':
    """Returns that of other chunks over the same forest, in far less time."""
    other = copy.copy(self)
    other._take(chunks, None, None, begin_s)
    return other

  def _take(
    self,
    chunks: Sequence[int],
    of_tree: np.ndarray | None,
    slots_s: Sequence[float] | None,
    begin_s: np.ndarray | None,
  ) -> None:
    sizes, shares = np.asarray(chunks, np.int64), self._shares
    if of_tree is None:
      of_tree = np.array(dealt(shares, chunks) if shares else [], int)
    own = [np.flatnonzero(of_tree == t) for t in range(len(shares))]
    most = max(map(len, own), default=0)
    # Chunks that are not there have no bytes, and are ready before all others.
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
    byte_s = _whole_s(self._cluster, load) / max(sizes.sum(), 1)
    self._turns_s, self._ahead_s = sizes * byte_s, self._ahead_bytes * byte_s
    if begin_s is not None:
      self._turns_s = self._turns_s + begin_s
    self._slots_s = None
    if slots_s is not None:
      largest = self._bytes.max(axis=1, initial=0.0)
      used = largest > 0
      self._slots_s = np.zeros((len(own), 1))
      self._slots_s[used, 0] = np.asarray(slots_s)[used] / largest[used]

  def __call__(self, ready_s: np.ndarray) -> float:
    """Returns when all workers have all sums.

    Args:
      ready_s: Float [workers, chunks], when each worker has its own numbers.
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
    """Of [workers, chunks], a copy as [trees, workers, chunks of a tree]."""
    none = np.full((len(times_s), 1), -np.inf)
    padded = np.concatenate([times_s, none], axis=1)
    return padded[:, self._places].transpose(1, 0, 2).copy()

  def _through_s(
    self, stage: _Stage, known_s: np.ndarray, early_s: np.ndarray
  ) -> np.ndarray:
    """When the chunks of each hop are where it ends; [hops, chunks]."""
    place = stage.trees, stage.senders
    byte_s = stage.per_byte_s
    if self._slots_s is not None:
      byte_s = self._slots_s[stage.trees]
    alone_s = self._bytes[stage.trees] * byte_s
    through_s = np.maximum(known_s[place] + alone_s, early_s[place])
    return through_s + stage.latency_s


def _stages(
  cluster: Cluster,
  chosen: Sequence[Tree],
  place: Mapping[Hop, int],
  byte_s: np.ndarray,
  later_s: np.ndarray,
  *,
  down: bool,
) -> list[_Stage]:
  """The hops of all trees, those that wait for no others first.

  Args:
    cluster: The links.
    chosen: The trees.
    place: Of each hop, in what follows.
    byte_s: Of each hop, seconds of a byte by itself.
    later_s: Of each hop, its latency.
    down: Whether it is the way down.
  """
  rank, rows = cluster.rank, []
  for t, tree in enumerate(chosen):
    # After how many hops a worker has all that it is to pass on.
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


def _whole_s(cluster: Cluster, load: Mapping[Ends, Fraction | int]) -> float:
  """Seconds of the fullest link."""
  times = (each / cluster.capacity_Bps[ends] for ends, each in load.items())
  return float(max(times, default=0))


def _per_byte_s(cluster: Cluster, hop: Hop) -> float:
  """Seconds of a byte by itself, on the slowest link of a hop."""
  ends = itertools.pairwise(hop)
  return 1 / float(min(cluster.capacity_Bps[each] for each in ends))


def _later_s(hop: Hop, latency_s: Mapping[Ends, float]) -> float:
  return sum(latency_s[ends] for ends in itertools.pairwise(hop))
