"""Forests: how a collective travels, as weighted trees of hops."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from topology import bounds, prices
from topology import cluster as clusters

Hop = tuple[str, ...]
Ends = tuple[str, str]  # Of a link: src and dst.
_GB = 10**9


@dataclasses.dataclass(frozen=True)
class Tree:
  """A part of the data, and the way it takes.

  A hop is a tuple of node ids: the worker that sends, the switches it passes
  through, the worker that receives.  Each worker but the root sends on one hop
  of `up` and receives on one of `down`.

  Attributes:
    root: Id of the worker to which the part belongs.
    weight_Bps: Bytes per second that the tree carries, over each of its hops.
    share: Its part of all bytes, 0 to 1.
    up: Hops towards the root, a hop after those whose sums it carries; empty
      in an allgather.
    down: Hops away from the root, a hop after the one that brings what it
      carries; empty in a reduce-scatter.
  """

  root: str
  weight_Bps: Fraction
  share: Fraction
  up: list[Hop]
  down: list[Hop]


@dataclasses.dataclass(frozen=True)
class Forest:
  """Trees that together carry out a collective, all at the same time.

  Attributes:
    collective: 'allreduce', 'allgather' or 'reduce_scatter'.
    trees: By root, in the order of the cluster's workers; none for a single
      worker.
    rate_Bps: Bytes per second of all trees together: M bytes take M / rate_Bps
      seconds without latency.  None for a single worker.
    bound_Bps: A rate that no forest can exceed; None for a single worker.
    certificate: The proof of the bound: for `bounds.proven`, in the reversed
      cluster if the collective is a reduce-scatter; for `prices.proven` if it
      is an allreduce.  None for a single worker.
  """

  collective: str
  trees: tuple[Tree, ...]
  rate_Bps: Fraction | None
  bound_Bps: Fraction | None
  certificate: bounds.Cut | prices.Prices | None

  @property
  def gap(self) -> Fraction:
    """1 - rate / bound: 0 if no forest is faster."""
    if self.rate_Bps is None or self.bound_Bps is None:
      return Fraction(0)
    return 1 - self.rate_Bps / self.bound_Bps

  def byte_ranges(self, size_bytes: int) -> list[tuple[int, int]]:
    """Returns, per tree, the first byte of its part and the one after the last.

    Parts are disjoint and cover all bytes, in the order of the trees, so that
    what belongs to one root is one piece.

    Args:
      size_bytes: Bytes of the whole, at least 0.

    Raises:
      ValueError: If there are less than 0 bytes.
    """
    if size_bytes < 0:
      raise ValueError(f'size_bytes: expected at least 0, got {size_bytes}.')
    ends, total = [0], Fraction(0)
    for tree in self.trees:
      total += tree.share
      ends.append(int(total * size_bytes))
    return list(itertools.pairwise(ends))


def turned(hops: Sequence[Hop]) -> list[Hop]:
  """Returns the hops of a tree in the other direction, in an order that can be.

  What went away from the root goes towards it, or the reverse.
  """
  return [hop[::-1] for hop in reversed(hops)]


def centered(
  ends: Sequence[tuple[Any, Any]],
) -> tuple[Any, list[tuple[int, bool]]]:
  """Returns the middle of a longest path in a tree, and the way from there.

  A root in the middle makes a tree least deep.  O(n).

  Args:
    ends: The two ends of each of its edges, at least one edge.

  Returns:
    The node and, the nearest first, each edge by its place in `ends` and
    whether it is turned round to lead away from the node.
  """
  ways: dict[Any, list[tuple[Any, int, bool]]] = {}
  for i, (src, dst) in enumerate(ends):
    ways.setdefault(src, []).append((dst, i, False))
    ways.setdefault(dst, []).append((src, i, True))

  def spread(root: Any) -> dict[Any, tuple[Any, int, bool]]:
    """Per other node, nearest first, the one before it and the edge."""
    before = {root: (root, -1, False)}
    reached = [root]
    for node in reached:
      for other, i, back in ways[node]:
        if other not in before:
          before[other] = node, i, back
          reached.append(other)
    return {node: before[node] for node in reached[1:]}

  end = next(reversed(spread(ends[0][0])))
  away = spread(end)
  path = [next(reversed(away))]
  while path[-1] != end:
    path.append(away[path[-1]][0])
  middle = path[len(path) // 2]
  return middle, [(i, back) for _, i, back in spread(middle).values()]


def backwards(forest: Forest) -> Forest:
  """Returns an allgather as a reduce-scatter of the reversed cluster, or back.

  The certificate is the same: that of a reduce-scatter is one of an allgather
  in the reversed cluster.
  """
  gather = forest.collective == 'allgather'
  trees = tuple(
    dataclasses.replace(tree, up=turned(tree.down), down=turned(tree.up))
    for tree in forest.trees
  )
  collective = 'reduce_scatter' if gather else 'allgather'
  return dataclasses.replace(forest, collective=collective, trees=trees)


class Column(NamedTuple):
  """A tree that has a weight beside others, but no bytes per second yet.

  Attributes:
    root: Id of a worker.
    weight: Positive; only the ratio to those of other columns counts.
    up: Hops towards the root, as in `Tree`.
    down: Hops away from the root.
  """

  root: str
  weight: Fraction | int
  up: Sequence[Hop]
  down: Sequence[Hop]


def loads(
  weighted: Iterable[tuple[Fraction | int, Iterable[Hop]]],
) -> dict[Ends, Fraction]:
  """Returns the sum of the weights of all hops over each link.

  Args:
    weighted: Pairs of a weight and the hops that carry it.
  """
  columns = list(weighted)
  scale = math.lcm(*(weight.denominator for weight, _ in columns))
  total: dict[Ends, int] = {}
  for weight, hops in columns:
    units = int(weight * scale)
    for hop in hops:
      for ends in itertools.pairwise(hop):
        total[ends] = total.get(ends, 0) + units
  return {ends: Fraction(units, scale) for ends, units in total.items()}


def fitted(
  cluster: clusters.Cluster,
  columns: Sequence[Column],
  bound: Forest,
  *,
  overlap: bool = True,
) -> Forest:
  """Returns the columns as a forest, as fast as the links let it be.

  Weights keep their ratios; the fullest link is full.

  Args:
    cluster: The links.
    columns: At least one, over links that exist, with weights per root as
      `bound.collective` asks for.
    bound: A forest of the same cluster, for its collective and its proof.
    overlap: Whether hops up and down share the links.  If not, one phase
      follows the other, and each has all links.
  """
  place = {worker: i for i, worker in enumerate(cluster.workers)}
  ordered = sorted(columns, key=lambda column: place[column.root])
  capacity = {(src, dst): GBps * _GB for src, dst, GBps in cluster.links}

  def per_byte(*stages: str) -> Fraction:
    carried = loads(
      (c.weight, getattr(c, stage)) for c in ordered for stage in stages
    )
    times = (load / capacity[ends] for ends, load in carried.items())
    return max(times, default=Fraction(0))

  if overlap:
    time = per_byte('up', 'down')
  else:
    time = per_byte('up') + per_byte('down')
  total = sum((Fraction(c.weight) for c in ordered), Fraction(0))
  trees = tuple(
    Tree(c.root, c.weight / time, c.weight / total, list(c.up), list(c.down))
    for c in ordered
  )
  return Forest(
    bound.collective, trees, total / time, bound.bound_Bps, bound.certificate
  )
