"""Which forest is the fastest for so many bytes, latency and chunks included.

The highest rate is not what counts: many trees, and deep ones, take long to
fill.  So forests of few and of shallow trees compete with those of the highest
rate, and the predicted time decides.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from topology import Cluster, Forest, Tree, pack
from topology.baselines import schemes
from topology.baselines.ways import Ways, ways_of
from topology.bounds.prices import Prices, proven
from topology.clusters.cluster import Ends
from topology.forests import dealing, timing, trees
from topology.forests.dealing import CHUNK_BYTES, ahead_s
from topology.packing import approximate

GOODPUT = 0.94  # Of a real link, beside the headers of TCP and IP.
_GAP, _EXACT = 0.02, 64  # How near the bound, beyond so many workers.
# Of the trees, from one forest that is tried to the next.
_KEPT, _KEPT_OF_MANY = 0.8, 0.5
_MOST = 32  # Trees of what is tried beside the packed forest.
# What real hosts show and the model does not, as shares of the time.  Of those
# that are predicted to be equal, with 8 hosts, forests of about three trees for
# each worker are 3 % faster than those of half as many; 50 to 90 trees were
# seen to lose 4 to 10 %.  Deep ones took up to 8 % more than predicted.
_TREES_OF_EACH, _TREE_COST = 3, 0.0001
_LEVELS, _LEVEL_COST = 2, 0.01
# What each one costs, up to some, that sends to the same worker as another.
_MEETING_COST, _MEETING = 0.005, 7
_COLUMNS = 600  # Shallow trees among which weights are chosen, at most.

Latency = float | Mapping[Ends, float]


class Predicted(NamedTuple):
  """A forest, and how long it takes.

  Attributes:
    name: Of what it is.
    forest: An allreduce.
    seconds: That it takes.
  """

  name: str
  forest: Forest
  seconds: float


def empty(cluster: Cluster) -> Forest:
  """Returns an allreduce without trees yet, with a bound that is proved.

  In every tree each worker but one sends up, and as many times something is
  sent down: 2 (N - 1) times something leaves a worker, at most as fast as all
  that workers can send.
  """
  if len(cluster.workers) == 1:
    return Forest('allreduce', (), None, None, None)
  own = cluster.rank
  proof = Prices(
    tuple(
      (src, dst, Fraction(1)) for src, dst, _ in cluster.links if src in own
    )
  )
  bound_Bps = proven(cluster, proof) * 10**9
  return Forest('allreduce', (), None, bound_Bps, proof)


def predicted(
  name: str,
  cluster: Cluster,
  forest: Forest,
  size_bytes: int,
  latency_s: Latency,
) -> Predicted:
  """Returns how long a forest takes, in chunks of up to 48 KiB.

  As `topology.forests.timing` predicts if all is ready at once.  Running ahead
  hides how long ways are only where senders do not meet: those that meet at a
  worker take its link from each other, as TCP has it and not in turns.
  """
  seconds = timing.all_ready_s(
    cluster,
    forest,
    size_bytes,
    latency_s=latency_s,
    chunk_bytes=dealing.chunk_bytes(
      size_bytes,
      [float(tree.share) for tree in forest.trees],
      most=CHUNK_BYTES,
    ),
    hidden_s=0.0 if _meeting(forest) else ahead_s(forest),
  )
  return Predicted(name, forest, seconds)


def _meeting(forest: Forest) -> int:
  """Returns how many others send, beside one, to whom most do."""
  hops = {
    (hop[-1], hop[0]) for tree in forest.trees for hop in (*tree.up, *tree.down)
  }
  senders = collections.Counter(receiver for receiver, _ in hops)
  return max(senders.values(), default=1) - 1


def fastest(found: Sequence[Predicted]) -> Predicted:
  """Returns what takes least, with what trees, levels and senders cost.

  Of equals the first.
  """

  def cost(each: Predicted) -> float:
    own = each.forest.trees
    workers = max((len(tree.up) + 1 for tree in own), default=1)
    off = abs(len(own) - _TREES_OF_EACH * workers)
    deepest = max((tree.depth for tree in own), default=0)
    levels = max(deepest - _LEVELS, 0)
    meeting = min(_meeting(each.forest), _MEETING)
    costs = _TREE_COST * off, _LEVEL_COST * levels, _MEETING_COST * meeting
    return each.seconds * (1 + sum(costs))

  return min(found, key=cost)


def candidates(cluster: Cluster) -> Iterator[tuple[str, Forest]]:
  """Yields forests of two or more workers, with their names.

  The packed one, fewer of its trees, and trees of two levels at most: to the
  root directly, or, where that is faster, through one other worker.
  """
  small = len(cluster.workers) <= _EXACT
  best = pack(cluster, gap=0.0 if small else _GAP)
  yield 'packed', best
  columns = [
    trees.Column(tree.root, tree.share, tree.up, tree.down)
    for tree in best.trees
  ]
  yield from _fewer(cluster, best, columns, 'packed')
  # Other trees than those: the packed ones may be deep.
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
  """Yields some of the trees, then fewer and fewer, weighted anew each time.

  The lightest are left out step by step: weights that are in the middle of all
  optima are spread over many trees, and move to those that are left.
  """
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
    kept = _KEPT if len(columns) <= 2 * _MOST else _KEPT_OF_MANY
    count = min(math.ceil(len(columns) * kept), len(columns) - 1)


def _shallow(cluster: Cluster) -> Iterator[trees.Column]:
  """Yields trees of at most two hops up and two down."""
  ways, workers = ways_of(cluster), cluster.workers
  capacity = cluster.capacity_Bps
  width = {
    (a, b): min(capacity[ends] for ends in itertools.pairwise(ways.hop(a, b)))
    for a, b in itertools.permutations(workers, 2)
  }
  back = {(b, a): each for (a, b), each in width.items()}
  for root in workers:
    ups = _parents(root, workers, width)
    downs = _parents(root, workers, back)
    for relay, up in ups.items():
      for other, down in downs.items():
        # All pairs of relays are many: only where there are few workers.
        if len(workers) <= 8 or relay == other:
          yield trees.Column(
            root, 1, _hops(ways, root, up), _hops(ways, root, down, down=True)
          )


def _parents(
  root: str, workers: Sequence[str], width: Mapping[Ends, Fraction]
) -> dict[str, dict[str, str]]:
  """By relay, to whom each worker sends; the root is the relay of none."""
  found = {root: {w: root for w in workers if w != root}}
  for relay in found[root]:
    through = {
      w: relay
      for w in found[root]
      if w != relay and width[w, relay] > width[w, root]
    }
    if through:
      found[relay] = found[root] | through
  return found


def _hops(
  ways: Ways, root: str, parents: Mapping[str, str], *, down: bool = False
) -> list[trees.Hop]:
  """Hops to the root, those from the leaves first; or from it, turned."""
  order = sorted(parents.items(), key=lambda each: each[1] == root)
  if down:
    return [ways.hop(parent, child) for child, parent in reversed(order)]
  return [ways.hop(child, parent) for child, parent in order]


def rings(cluster: Cluster) -> Iterator[tuple[str, Forest]]:
  """Yields the rings in the fastest orders."""
  template = empty(cluster)
  yield 'ring', schemes.best_ring(cluster, template)
  yield 'ring both ways', schemes.best_ring_both_ways(cluster, template)


def others(cluster: Cluster) -> Iterator[tuple[str, Forest]]:
  """Yields the double tree, and the hierarchy if there are groups."""
  template = empty(cluster)
  yield 'double tree', schemes.double_binary_tree(cluster, template)
  if len(ways_of(cluster).groups()) > 1:
    yield 'hierarchical', schemes.hierarchical(cluster, template)


def sharded(cluster: Cluster) -> tuple[str, Forest]:
  """Returns an equal shard of the sums in each worker."""
  return 'sharded', schemes.sharded_server(cluster, empty(cluster))
