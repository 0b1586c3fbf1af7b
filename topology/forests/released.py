"""How long an allreduce takes whose parts become ready one after the other.

As in `timing`, each tree has its weight in bytes per second to itself, carries
its chunks in their order, and workers store and forward them.  Beside that, a
worker can send a chunk only once its own numbers are there, and the others have
become ready elsewhere, each at its own time.  And a chunk need not take as long
as the weight of its tree says: between two of a tree there is time for those of
others, but each passes at the rate of the link.  So on each hop chunk c, of b
bytes, is through at

  max(ready + q, the one before + b / weight, start + (all up to c) / weight)

where `ready` is when it has come from all from which it has to come, q is the
time that it takes by itself, and `start` is when the first chunk of all was
ready.  With q = b / weight and everything ready at once, this is what
`timing.simulate` has a closed form for.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from topology.clusters.cluster import Cluster, Ends
from topology.forests.trees import Forest, Tree



def slot_s(cluster: Cluster, tree: Tree, chunk_bytes: int) -> float:
  """Returns the seconds for which a chunk is under way on a hop of a tree.

  By itself on the slowest link of the tree: a chunk that has come so far is one
  of the lowest, and they go first.
  """
  ends = [e for hop in (*tree.up, *tree.down) for e in itertools.pairwise(hop)]
  slowest_Bps = min(cluster.capacity_Bps[each] for each in ends)
  return float(chunk_bytes / slowest_Bps)


def dealt(shares: Sequence[float], chunks: int) -> np.ndarray:
  """Returns the tree of each chunk, by smooth weighted round robin.

  Each tree is given its share at each chunk; the one that has been given most
  gets it, and pays with what all are given together.  So after any number of
  chunks each tree has its share of them, give or take one.  Ties go to the
  first tree.

  Args:
    shares: Of the trees; positive.
    chunks: How many there are.
  """
  given = np.asarray(shares, np.float64)
  total, held = given.sum(), np.zeros(len(given))
  found = np.zeros(chunks, np.int64)
  for chunk in range(chunks):
    held += given
    found[chunk] = tree = int(np.argmax(held))
    held[tree] -= total
  return found


class _Stage(NamedTuple):
  """Hops that go on at the same time, those to one worker of a tree together.

  Attributes:
    trees: Int [hops].
    senders: Int [hops].
    receivers: Int [hops].
    latency_s: Float [hops, 1].
    first: Int [ends]: the first hop to each worker of each tree.
  """

  trees: np.ndarray
  senders: np.ndarray
  receivers: np.ndarray
  latency_s: np.ndarray
  first: np.ndarray


class Allreduce:
  """Says when an allreduce is through, given when its parts are ready.

  O(hops * chunks of a tree) for each question, in as many steps of NumPy as
  trees are deep.
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
  ) -> None:
    """Works out what does not depend on when parts are ready.

    Args:
      cluster: That of the forest.
      forest: Sound, an allreduce; without trees for a single worker.
      chunks: Bytes of each, in the order in which they are sent.
      latency_s: Of each link.
      of_tree: Int [chunks], the tree of each; as `dealt` says if None.
      slots_s: Of each tree, seconds of its largest chunk on a hop by itself; as
        `slot_s` says if None.
    """
    sizes = np.asarray(chunks, np.float64)
    weights_Bps = [float(tree.weight_Bps) for tree in forest.trees]
    if of_tree is None:
      of_tree = dealt(weights_Bps, len(sizes)) if weights_Bps else sizes[:0]
    used = [t for t in range(len(weights_Bps)) if (of_tree == t).any()]
    own = [np.flatnonzero(of_tree == t) for t in used]
    trees = [forest.trees[t] for t in used]
    most = max(map(len, own), default=0)
    # Chunks that are not there have no bytes, and are ready before all others.
    self._places = np.full((len(used), most), len(sizes))
    bytes_ = np.zeros((len(used), most))
    for row, places in enumerate(own):
      self._places[row, : len(places)] = places
      bytes_[row, : len(places)] = sizes[places]
    rates = np.array([weights_Bps[t] for t in used])[:, None]
    self._until_s = np.cumsum(bytes_ / rates, axis=1)  # [trees, chunks]
    largest = bytes_.max(axis=1, initial=0.0)
    alone = [
      slot_s(cluster, tree, 1) * size if slots_s is None else slots_s[t]
      for t, tree, size in zip(used, trees, largest, strict=True)
    ]
    per_byte = np.array(alone) / np.where(largest, largest, 1.0)
    self._slots_s = bytes_ * per_byte[:, None]
    # A worker's own numbers, which others have as well, wait for their turn.
    self._waits_s = bytes_ / rates - self._slots_s
    self._roots = np.array([cluster.rank[tree.root] for tree in trees], int)
    self._up, self._down = (
      list(_stages(cluster, trees, latency_s, down=down))
      for down in (False, True)
    )
    hops = [len(tree.up) + len(tree.down) for tree in forest.trees]
    self.carried_bytes = sum(
      int(sizes[of_tree == t].sum()) * hops[t] for t in range(len(hops))
    )

  def __call__(self, ready_s: np.ndarray) -> float:
    """Returns when all workers have all sums.

    Args:
      ready_s: Float [workers, chunks], when each worker has its own numbers.
    """
    start_s = ready_s.min()
    if not self._places.size:
      return float(ready_s.max())
    none = np.full((len(ready_s), 1), -np.inf)
    padded = np.concatenate([ready_s, none], axis=1)
    # [trees, workers, chunks]
    known_s = padded[:, self._places].transpose(1, 0, 2).copy()
    known_s += self._waits_s[:, None]
    for stage in self._up:
      come_s = self._passed(stage, known_s, start_s)
      come_s = np.maximum.reduceat(come_s, stage.first, axis=0)
      place = stage.trees[stage.first], stage.receivers[stage.first]
      known_s[place] = np.maximum(known_s[place], come_s)
    rows = np.arange(len(self._roots))
    latest_s = known_s[rows, self._roots].max()
    for stage in self._down:
      come_s = self._passed(stage, known_s, start_s)
      known_s[stage.trees, stage.receivers] = come_s
      latest_s = max(latest_s, come_s.max())
    return float(latest_s)

  def _passed(
    self, stage: _Stage, known_s: np.ndarray, start_s: float
  ) -> np.ndarray:
    """When the chunks of each hop are where it ends; [hops, chunks]."""
    until_s = self._until_s[stage.trees]
    first_s = known_s[stage.trees, stage.senders] + self._slots_s[stage.trees]
    through_s = np.maximum(first_s - until_s, start_s)
    np.maximum.accumulate(through_s, axis=1, out=through_s)
    return through_s + until_s + stage.latency_s


def _stages(
  cluster: Cluster,
  trees: Sequence[Tree],
  latency_s: Mapping[Ends, float],
  *,
  down: bool,
) -> list[_Stage]:
  """The hops of all trees, those that wait for no others first."""
  rank, rows = cluster.rank, []
  for t, tree in enumerate(trees):
    # After how many hops a worker has all that it is to pass on.
    after = [0] * len(rank)
    for hop in tree.down if down else tree.up:
      src, dst = rank[hop[0]], rank[hop[-1]]
      hop_s = sum(latency_s[ends] for ends in itertools.pairwise(hop))
      rows.append((after[src], t, dst, src, hop_s))
      after[dst] = max(after[dst], after[src] + 1)
  rows.sort()
  stages = []
  for _, group in itertools.groupby(rows, key=lambda row: row[0]):
    _, *columns = zip(*group, strict=True)
    of_tree, receivers, senders, later_s = map(np.array, columns)
    ends = of_tree * len(rank) + receivers
    first = np.flatnonzero(np.diff(ends, prepend=-1))
    later_s = later_s[:, None].astype(np.float64)
    stages.append(_Stage(of_tree, senders, receivers, later_s, first))
  return stages
