"""Forests: how a collective travels, as weighted trees of hops."""

import dataclasses
import itertools
from fractions import Fraction

from topology import allreduce, bounds

Hop = tuple[str, ...]


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
  up: tuple[Hop, ...]
  down: tuple[Hop, ...]


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
    cut: The proof of the bound: for `bounds.proven`, in the reversed cluster
      if the collective is a reduce-scatter; for `allreduce.proven` if it is an
      allreduce.  None for a single worker.
  """

  collective: str
  trees: tuple[Tree, ...]
  rate_Bps: Fraction | None
  bound_Bps: Fraction | None
  cut: bounds.Cut | allreduce.Proof | None

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
