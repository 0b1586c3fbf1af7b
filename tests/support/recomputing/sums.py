"""Recomputes the sums of a run's executors, in their order.

Each chunk is summed over the tree that carried it: a worker's own part first,
then those of its children, one after the other.  Numbers of 16 bits are rounded
where they are sent up, and at the root.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from analysis.traffic import MembershipEpoch
from cluster.allreduce.executor import program
from cluster.allreduce.executor.membership import Membership
from cluster.allreduce.executor.program import DTYPES
from configs.checks import require
from learning.layout import FLOAT32
from wire.sparse import round_to


class _TreePart(NamedTuple):
  """Numbers of one dtype that a tree carries.

  Attributes:
    indices: Positions of the numbers.
    dtype: Dtype that they are sent as.
    root: Worker at the root of the tree.
    children: Workers whose parts each worker adds, in order.
  """

  indices: np.ndarray
  dtype: np.dtype
  root: int
  children: Mapping[int, tuple[int, ...]]


class Sums:
  """Sums of one membership epoch, in the order of its forest.

  Attributes:
    members: Workers of the epoch.
  """

  def __init__(self, epoch: MembershipEpoch, chunk_bytes: int | None = None):
    """Takes the record of an epoch; without a forest workers add in order.

    Args:
      epoch: The record.
      chunk_bytes: Size of chunks, if executors did not choose it.
    """
    self.members = tuple(epoch.members)
    self._planned, self._chunk_bytes = epoch.plan, chunk_bytes
    self._parts = functools.cache(self._find_parts)

  def __call__(
    self,
    vectors: Mapping[int, np.ndarray],
    ranges: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype] | None = None,
  ) -> np.ndarray:
    """Returns the sum of vectors.

    Args:
      vectors: Vectors of all members by worker, float32 [n].
      ranges: Ranges in which they were sent, start and end.
      dtypes: Dtype that each range was sent as; None for float32.

    Raises:
      ValueError: If vectors of other workers are given.
    """
    got, members = tuple(sorted(vectors)), self.members
    require(got == members, 'pushes', f'those of workers {members}', got)
    if self._planned is None:
      return functools.reduce(np.add, (vectors[worker] for worker in members))
    dtypes = tuple(dtypes or [FLOAT32] * len(ranges))
    total = np.empty_like(vectors[members[0]])
    for part in self._parts(total.size, tuple(ranges), dtypes):
      values = _sum_below(part, part.root, vectors)
      total[part.indices] = round_to(values, part.dtype)
    return total

  def _find_parts(
    self,
    size: int,
    ranges: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype],
  ) -> list[_TreePart]:
    planned, members = self._planned, self.members
    if planned is None:
      raise RuntimeError('Expected a forest, got none.')
    names = {node: k for node, k in planned.names.items() if k in members}
    group = Membership(0, dict.fromkeys(members, ''), planned.forest, names)
    roles = {
      worker: program.find_roles(group, worker, chunk_bytes=self._chunk_bytes)
      for worker in members
    }
    dealt = program.make_program(roles[members[0]], size, ranges, dtypes)
    chunks: dict[tuple[int, int], list[np.ndarray]] = {}
    for start, stop, tree, dtype in zip(
      dealt.starts, dealt.stops, dealt.trees, dealt.dtypes, strict=True
    ):
      chunks.setdefault((tree, dtype), []).append(np.arange(start, stop))
    parts = []
    for (tree, dtype), indices in chunks.items():
      tree_roles = {worker: roles[worker].trees[tree] for worker in members}
      root = next(w for w, role in tree_roles.items() if role.parent is None)
      children = {worker: role.children for worker, role in tree_roles.items()}
      parts.append(
        _TreePart(np.concatenate(indices), DTYPES[dtype], root, children)
      )
    return parts


def _sum_below(
  part: _TreePart, worker: int, vectors: Mapping[int, np.ndarray]
) -> np.ndarray:
  """Returns the sum of a worker and all workers below it in a tree."""
  total: np.ndarray = vectors[worker][part.indices]
  for child in part.children[worker]:
    sent = round_to(_sum_below(part, child, vectors), part.dtype)
    with np.errstate(over='ignore', invalid='ignore'):
      np.add(total, sent, out=total)
  return total
