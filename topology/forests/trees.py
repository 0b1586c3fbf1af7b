"""Forests: weighted trees of hops that carry out a collective."""

import dataclasses
import functools
import itertools
import math
import numbers
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from topology.algorithms import stopping
from topology.bounds.cuts import Cut
from topology.bounds.prices import Prices
from topology.clusters.cluster import Cluster, Ends

COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')
Certificate = Cut | Prices
Hop = tuple[str, ...]
_Node = TypeVar('_Node', bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Tree:
  """A tree of hops, for a part of the data.

  A hop is a tuple of node ids: the worker that sends, the switches it passes
  through, the worker that receives.  Each worker but the root sends on one hop
  of `up` and receives on one of `down`.

  Attributes:
    root: Id of the worker to which the part belongs.
    weight_Bps: Bytes per second that the tree carries, over each of its hops.
    share: Share of all bytes that the tree carries, 0 to 1.
    up: Hops towards the root, each after the hops whose sums it carries; empty
      in an allgather.
    down: Hops away from the root, each after the hop that brings its data;
      empty in a reduce-scatter.
  """

  root: str
  weight_Bps: Fraction
  share: Fraction
  up: list[Hop]
  down: list[Hop]

  def depths(self) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the depth of each worker, in hops up and in hops down."""
    found = {self.root: 0}, {self.root: 0}
    for depth, hops in zip(
      found, (reverse_hops(self.up), self.down), strict=True
    ):
      for hop in hops:
        depth[hop[-1]] = depth[hop[0]] + 1
    return found

  @property
  def depth(self) -> int:
    """Largest number of successive hops, up to the root or down."""
    return max(max(depth.values()) for depth in self.depths())


@dataclasses.dataclass(frozen=True)
class Forest:
  """Trees that carry out a collective together, all at the same time.

  Attributes:
    collective: 'allreduce', 'allgather' or 'reduce_scatter'.
    trees: By root, in the order of the cluster's workers; none for a single
      worker.
    rate_Bps: Bytes per second of all trees together: M bytes take M / rate_Bps
      seconds without latency.  None for a single worker.
    bound_Bps: A rate that no forest can exceed; None for a single worker.
    certificate: Proof of the bound: for `cuts.prove_time`, in the reversed
      cluster if the collective is a reduce-scatter; for `prices.prove_rate` if
      it is an allreduce.  None for a single worker.
  """

  collective: str
  trees: tuple[Tree, ...]
  rate_Bps: Fraction | None
  bound_Bps: Fraction | None
  certificate: Certificate | None

  @property
  def gap(self) -> Fraction:
    """Relative gap 1 - rate / bound; 0 if no forest is faster."""
    if self.rate_Bps is None or self.bound_Bps is None:
      return Fraction(0)
    return 1 - self.rate_Bps / self.bound_Bps

  def byte_ranges(
    self, size_bytes: int, element_bytes: int = 1
  ) -> list[tuple[int, int]]:
    """Returns the range of bytes of each tree, as (first, last + 1).

    Ranges consist of whole elements, are disjoint and cover all bytes, in the
    order of the trees, so that data of one root is contiguous.  Each differs
    from its share by less than an element; some ranges are empty if there are
    fewer elements than trees.

    Raises:
      ValueError: If `element_bytes` is not positive, or does not divide
        `size_bytes`.
    """
    for name, value, least in (
      ('element_bytes', element_bytes, 1),
      ('size_bytes', size_bytes, 0),
    ):
      if not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(
          f'{name}: expected an integer of at least {least}, got {value!r}.'
        )
    elements, rest = divmod(size_bytes, element_bytes)
    if rest:
      raise ValueError(
        f'size_bytes: expected a multiple of {element_bytes}, got {size_bytes}.'
      )
    ends, total = [0], Fraction(0)
    for tree in self.trees:
      total += tree.share
      ends.append(int(total * elements) * element_bytes)
    return list(itertools.pairwise(ends))

  @functools.cached_property
  def loads_Bps(self) -> dict[Ends, Fraction]:
    """Bytes per second that each link (src, dst) in use carries."""
    return loads((t.weight_Bps, (*t.up, *t.down)) for t in self.trees)


def reverse_hops(hops: Sequence[Hop]) -> list[Hop]:
  """Returns the hops of a tree in the opposite direction and order."""
  return [hop[::-1] for hop in reversed(hops)]


def center_tree(
  ends: Sequence[tuple[_Node, _Node]],
) -> tuple[_Node, list[tuple[int, bool]]]:
  """Returns the middle of a longest path in a tree, and the edges from there.

  With its root in the middle, the depth of a tree is smallest.  O(n).

  Args:
    ends: The two ends of each edge, at least one edge.

  Returns:
    The node and, the nearest first, each edge by its place in `ends` and
    whether it is reversed to lead away from the node.
  """
  ways: dict[_Node, list[tuple[_Node, int, bool]]] = {}
  for i, (src, dst) in enumerate(ends):
    ways.setdefault(src, []).append((dst, i, False))
    ways.setdefault(dst, []).append((src, i, True))

  def spread(root: _Node) -> dict[_Node, tuple[_Node, int, bool]]:
    """Returns, per other node, nearest first, its predecessor and the edge."""
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


def reverse_forest(
  forest: Forest, stop: stopping.Stop = stopping.never
) -> Forest:
  """Returns an allgather as a reduce-scatter of the reversed cluster, or back.

  The certificate stays, as it is always that of an allgather.  `stop` is called
  at each tree.
  """
  gather = forest.collective == 'allgather'
  trees = []
  for tree in forest.trees:
    stopping.check(stop)
    up, down = reverse_hops(tree.down), reverse_hops(tree.up)
    trees.append(dataclasses.replace(tree, up=up, down=down))
  collective = 'reduce_scatter' if gather else 'allgather'
  return dataclasses.replace(forest, collective=collective, trees=(*trees,))


class Column(NamedTuple):
  """A tree with a relative weight above 0, before it is fitted to links.

  Attributes:
    root: Id of the worker at the root.
    weight: Weight relative to those of the other columns.
    up: Hops towards the root, each after the hops whose sums it carries.
    down: Hops from the root, each after the hop that brings its data.
  """

  root: str
  weight: Fraction | int
  up: Sequence[Hop]
  down: Sequence[Hop]


def loads(
  weighted: Iterable[tuple[Fraction | int, Iterable[Hop]]],
  stop: stopping.Stop = stopping.never,
) -> dict[Ends, Fraction]:
  """Returns the sum of the weights of all hops over each link.

  Args:
    weighted: Weight of some hops, and the hops; a hop counts as often as it
      occurs.
    stop: Function that returns True to raise `Stopped`, called regularly.
  """
  columns = []
  for column in weighted:
    stopping.check(stop)
    columns.append(column)
  scale = math.lcm(*(weight.denominator for weight, _ in columns))
  # Many trees have the same hops.
  of_hop: dict[Hop, int] = {}
  for weight, hops in columns:
    stopping.check(stop)
    units = int(weight * scale)
    for hop in hops:
      of_hop[hop] = of_hop.get(hop, 0) + units
  total: dict[Ends, int] = {}
  for hop, units in of_hop.items():
    for ends in itertools.pairwise(hop):
      total[ends] = total.get(ends, 0) + units
  return {ends: Fraction(units, scale) for ends, units in total.items()}


def fit_forest(
  cluster: Cluster,
  columns: Sequence[Column],
  bound: Forest,
  *,
  overlap: bool = True,
  stop: stopping.Stop = stopping.never,
) -> Forest:
  """Returns the columns as a forest, at the rate that the links allow.

  Weights keep their ratios; the fullest link is full.

  Args:
    columns: One or more, over links that exist, with weights per root as
      `bound.collective` asks for.
    bound: Forest of the same cluster, whose collective and proof are used.
    overlap: Whether hops up and down share the links.  If not, one phase
      follows the other, and each has all links.
    stop: Function that returns True to raise `Stopped`, called at each column.
  """
  ordered = sorted(columns, key=lambda column: cluster.rank[column.root])

  def per_byte(*stages: str) -> Fraction:
    carried = loads(
      ((c.weight, getattr(c, stage)) for c in ordered for stage in stages), stop
    )
    times = (load / cluster.capacity_Bps[e] for e, load in carried.items())
    return max(times, default=Fraction(0))

  phases = [('up', 'down')] if overlap else [('up',), ('down',)]
  time = sum((per_byte(*stages) for stages in phases), Fraction(0))
  total = sum((Fraction(c.weight) for c in ordered), Fraction(0))
  trees = tuple(
    Tree(c.root, c.weight / time, c.weight / total, list(c.up), list(c.down))
    for c in ordered
  )
  return dataclasses.replace(bound, trees=trees, rate_Bps=total / time)
