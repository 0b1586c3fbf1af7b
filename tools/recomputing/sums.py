"""Sums of vectors as the executors of a run have made them.

Chunk by chunk over the tree that carried it, a worker's own part first, then
those of its children one after the other.  What travelled in half of float32
was rounded as it was sent up, and at the root.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cluster.allreduce.executor import program
from cluster.allreduce.executor.frames import DTYPES
from configs.checks import require
from learning.layout import FLOAT32
from tools.reading.traffic import Generation
from wire.hosted import rounded


class _Tree(NamedTuple):
  """What a tree carries of one dtype.

  Attributes:
    chosen: Which numbers.
    dtype: As what they travel.
    root: Who has the whole sum first.
    children: Whose parts each worker adds, in order.
  """

  chosen: np.ndarray
  dtype: np.dtype
  root: int
  children: Mapping[int, tuple[int, ...]]


class Sums:
  """Sums of one generation.

  Attributes:
    members: Of it.
  """

  def __init__(self, generation: Generation):
    """Takes a generation; without a forest, the order is that of workers."""
    self.members = tuple(generation.members)
    self._planned = generation.planned
    self._over = functools.cache(self._trees)

  def __call__(
    self,
    vectors: Mapping[int, np.ndarray],
    ranges: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype] | None = None,
  ) -> np.ndarray:
    """Returns the sum of vectors, float32 [n] by worker.

    Args:
      vectors: Of all members.
      ranges: In which they travelled.
      dtypes: What the numbers of each travelled as; None for float32.

    Raises:
      ValueError: If the workers are others.
    """
    got, members = tuple(sorted(vectors)), self.members
    require(got == members, 'pushes', f'those of workers {members}', got)
    if self._planned is None:
      return functools.reduce(np.add, (vectors[worker] for worker in members))
    dtypes = tuple(dtypes or [FLOAT32] * len(ranges))
    total = np.empty_like(vectors[members[0]])
    for tree in self._over(total.size, tuple(ranges), dtypes):
      total[tree.chosen] = rounded(_below(tree, tree.root, vectors), tree.dtype)
    return total

  def _trees(
    self,
    size: int,
    ranges: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype],
  ) -> list[_Tree]:
    planned, members = self._planned, self.members
    names = {node: k for node, k in planned.names.items() if k in members}
    group = program.Group(0, dict.fromkeys(members, ''), planned.forest, names)
    roles = {
      worker: program.roles(group, worker, chunk_bytes=planned.chunk_bytes)
      for worker in members
    }
    dealt = program.program(roles[members[0]], size, ranges, dtypes)
    chunks: dict[tuple[int, int], list[np.ndarray]] = {}
    for start, stop, *kind in zip(
      dealt.starts, dealt.stops, dealt.trees, dealt.dtypes, strict=True
    ):
      chunks.setdefault(tuple(kind), []).append(np.arange(start, stop))
    found = []
    for (tree, dtype), own in chunks.items():
      of_tree = {worker: roles[worker].trees[tree] for worker in members}
      root = next(w for w, role in of_tree.items() if role.parent is None)
      children = {worker: role.children for worker, role in of_tree.items()}
      found.append(_Tree(np.concatenate(own), DTYPES[dtype], root, children))
    return found


def _below(
  tree: _Tree, worker: int, vectors: Mapping[int, np.ndarray]
) -> np.ndarray:
  """Returns a worker's part of the sum with those of all that send to it."""
  part = vectors[worker][tree.chosen]
  for child in tree.children[worker]:
    sent = rounded(_below(tree, child, vectors), tree.dtype)
    with np.errstate(over='ignore', invalid='ignore'):
      np.add(part, sent, out=part)
  return part
