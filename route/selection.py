"""Candidate forests for a message, and the choice of the fastest by prediction.

The rate alone does not decide: many trees, and deep trees, take long to fill.
So forests of few and of shallow trees compete with those of the highest rate,
and the predicted time with latency and chunks decides.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from topology import Cluster, Forest, Tree, pack
from topology.baselines import schemes
from topology.baselines.ways import Ways, ways_of
from topology.bounds.prices import Prices, prove_rate
from topology.clusters.cluster import Ends
from topology.forests import dealing, timing, trees
from topology.forests.dealing import ahead_s
from topology.packing import approximate

GOODPUT = 0.94  # Share of a real link without headers of TCP and IP.
# Gap to the bound at which packing ends, beyond so many workers.
_GAP, _EXACT = 0.02, 64
# Share of the trees that the next smaller candidate keeps.
_SHARE, _SHARE_OF_MANY = 0.8, 0.5
_MOST = 32  # Trees of a candidate other than the packed forest, at most.
# Effects on real hosts that the model lacks, as shares of the time.  Among
# forests with equal predictions, on 8 hosts, those of about three trees per
# worker are 3 % faster than those of half as many; 50 to 90 trees lose 4 to
# 10 %.  Deep trees take up to 8 % longer than predicted.
_TREES_OF_EACH, _TREE_COST = 3, 0.0001
_LEVELS, _LEVEL_COST = 2, 0.01
# Cost of each further sender to the same worker, up to so many.
_MEETING_COST, _MEETING = 0.005, 7
_COLUMNS = 600  # Shallow trees among which weights are chosen, at most.

Latency = float | Mapping[Ends, float]


class Candidate(NamedTuple):
  """A forest and its predicted time.

  Attributes:
    name: Description of the forest, for logs.
    forest: Forest of an allreduce.
    seconds: Predicted time of the allreduce.
  """

  name: str
  forest: Forest
  seconds: float


def make_empty(cluster: Cluster) -> Forest:
  """Returns an allreduce forest without trees, with a bound and its proof.

  In every tree each worker but one sends up, and there are as many sends down:
  2 (N - 1) sends of workers, whose rate is at most the sum of their links.
  """
  if len(cluster.workers) == 1:
    return Forest('allreduce', (), None, None, None)
  own = cluster.rank
  proof = Prices(
    tuple(
      (src, dst, Fraction(1)) for src, dst, _ in cluster.links if src in own
    )
  )
  bound_Bps = prove_rate(cluster, proof) * 10**9
  return Forest('allreduce', (), None, bound_Bps, proof)


def predict_time(
  name: str,
  cluster: Cluster,
  forest: Forest,
  size_bytes: int,
  latency_s: Latency,
) -> Candidate:
  """Returns a candidate with its predicted time.

  `topology.forests.timing` predicts the time if all data is ready at once.
  Running ahead hides latency only where senders do not meet: senders to the
  same worker share its link as TCP does, not in turns.

  Args:
    name: Description of the forest, for logs.
    size_bytes: Size of the message.
    latency_s: Latency of every link, or of each by its ends.
  """
  seconds = timing.all_ready_s(
    cluster,
    forest,
    size_bytes,
    latency_s=latency_s,
    chunk_bytes=dealing.chunk_bytes(size_bytes, forest),
    hidden_s=0.0 if _count_rivals(forest) else ahead_s(forest),
  )
  return Candidate(name, forest, seconds)


def _count_rivals(forest: Forest) -> int:
  """Returns the largest number of senders to one worker, less one."""
  hops = {
    (hop[-1], hop[0]) for tree in forest.trees for hop in (*tree.up, *tree.down)
  }
  senders = collections.Counter(receiver for receiver, _ in hops)
  return max(senders.values(), default=1) - 1


def choose_fastest(candidates: Sequence[Candidate]) -> Candidate:
  """Returns the candidate of the shortest time, corrected by measured effects.

  The corrections count trees, levels and senders.  Ties: the first candidate.

  Args:
    candidates: At least one.
  """

  def cost(each: Candidate) -> float:
    own = each.forest.trees
    workers = max((len(tree.up) + 1 for tree in own), default=1)
    excess = abs(len(own) - _TREES_OF_EACH * workers)
    deepest = max((tree.depth for tree in own), default=0)
    levels = max(deepest - _LEVELS, 0)
    rivals = min(_count_rivals(each.forest), _MEETING)
    costs = _TREE_COST * excess, _LEVEL_COST * levels, _MEETING_COST * rivals
    return each.seconds * (1 + sum(costs))

  return min(candidates, key=cost)


@functools.lru_cache(maxsize=4)  # Messages of several sizes share them.
def build_packed(cluster: Cluster) -> Sequence[tuple[str, Forest]]:
  """Returns packed forests of two or more workers, with their names.

  They are the packed forest, fewer of its trees, and trees of at most two
  levels: to the root directly, or, where that is faster, through one relay.
  """
  return tuple(_build_packed(cluster))


def _build_packed(cluster: Cluster) -> Iterator[tuple[str, Forest]]:
  small = len(cluster.workers) <= _EXACT
  best = pack(cluster, gap=0.0 if small else _GAP)
  yield 'packed', best
  columns = [
    trees.Column(tree.root, tree.share, tree.up, tree.down)
    for tree in best.trees
  ]
  yield from _fewer(cluster, best, columns, 'packed')
  # The trees of the packed forest may be deep; these are others.
  few = pack(cluster, gap=_GAP, max_trees=len(cluster.workers))
  yield f'packed as {len(few.trees)} trees', few
  columns = list(itertools.islice(_shallow(cluster), _COLUMNS + 1))
  if len(columns) <= _COLUMNS:
    yield from _fewer(cluster, best, columns, 'two levels')


def _fewer(
  cluster: Cluster,
  best: Forest,
  columns: Sequence[trees.Column],
  name: str,
) -> Iterator[tuple[str, Forest]]:
  """Yields forests of fewer and fewer of the trees, with new weights each."""
  # The lightest trees are left out step by step, as optimal weights are spread
  # over many trees and move to the remaining ones.
  count = len(columns)
  while count:
    some = tuple(
      Tree(c.root, Fraction(1), Fraction(c.weight), [*c.up], [*c.down])
      for c in columns
    )
    whole = dataclasses.replace(best, trees=some)
    columns = approximate.heaviest(cluster, whole, count)
    if len(columns) <= _MOST:
      forest = trees.fit_forest(cluster, columns, best)
      yield f'{name}, {len(columns)} trees', forest
    share = _SHARE if len(columns) <= 2 * _MOST else _SHARE_OF_MANY
    count = min(math.ceil(len(columns) * share), len(columns) - 1)


def _shallow(cluster: Cluster) -> Iterator[trees.Column]:
  """Yields trees of at most two hops up and two down."""
  ways, workers = ways_of(cluster), cluster.workers
  width = _widths(cluster)
  for root in workers:
    ups = _parents(root, workers, width)
    downs = _parents(root, workers, width.T)
    for relay, up in ups.items():
      for other, down in downs.items():
        # All pairs of relays are many: only where there are few workers.
        if len(workers) <= 8 or relay == other:
          yield trees.Column(
            root, 1, _hops(ways, root, up), _hops(ways, root, down, down=True)
          )


def _widths(cluster: Cluster) -> np.ndarray:
  """Returns ranks of the slowest links of hops, int [N, N], from and to."""
  # Hops of equal rates have equal ranks: comparing ranks is exact, and much
  # faster than comparing fractions.
  ways, workers = ways_of(cluster), cluster.workers
  rates = sorted(set(cluster.capacity_Bps.values()))
  ranks = {rate: rank for rank, rate in enumerate(rates)}
  rank = {ends: ranks[rate] for ends, rate in cluster.capacity_Bps.items()}
  width = np.zeros((len(workers), len(workers)), int)
  for (i, a), (j, b) in itertools.permutations(enumerate(workers), 2):
    width[i, j] = min(rank[e] for e in itertools.pairwise(ways.hop(a, b)))
  return width


def _parents(
  root: str, workers: Sequence[str], width: np.ndarray
) -> dict[str, dict[str, str]]:
  """Returns, by relay, the parent of each worker; the root means no relay."""
  found = {root: {w: root for w in workers if w != root}}
  place = workers.index(root)
  is_wider = width > width[:, [place]]  # By worker and relay.
  is_wider[place] = False
  np.fill_diagonal(is_wider, False)
  for column in np.flatnonzero(is_wider.any(axis=0)).tolist():
    relay = workers[column]
    behind = np.flatnonzero(is_wider[:, column]).tolist()
    through = {workers[w]: relay for w in behind}
    found[relay] = found[root] | through
  return found


def _hops(
  ways: Ways, root: str, parents: Mapping[str, str], *, down: bool = False
) -> list[trees.Hop]:
  """Returns hops up to the root, or down from it, in executable order."""
  order = sorted(parents.items(), key=lambda each: each[1] == root)
  if down:
    return [ways.hop(parent, child) for child, parent in reversed(order)]
  return [ways.hop(child, parent) for child, parent in order]


def build_rings(cluster: Cluster) -> Iterator[tuple[str, Forest]]:
  """Yields the fastest rings, in one direction and both, with their names."""
  template = make_empty(cluster)
  yield 'ring', schemes.best_ring(cluster, template)
  yield 'ring both ways', schemes.best_ring_both_ways(cluster, template)


def build_trees(cluster: Cluster) -> Iterator[tuple[str, Forest]]:
  """Yields the double tree and any hierarchy, with their names."""
  template = make_empty(cluster)
  yield 'double tree', schemes.double_binary_tree(cluster, template)
  if len(ways_of(cluster).groups()) > 1:
    yield 'hierarchical', schemes.hierarchical(cluster, template)


def build_shards(cluster: Cluster) -> tuple[str, Forest]:
  """Returns a name, and a forest with a tree for each worker, of equal shares.

  In its tree the worker is the root of an equal shard: all others send theirs
  directly to it, and get the sum.
  """
  return 'sharded', schemes.sharded_server(cluster, make_empty(cluster))
