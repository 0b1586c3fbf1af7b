"""Conversations among workers, held again in one process.

Each worker has what it kept; who comes back has nothing, and after a restart of
all the first has what all had kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cluster.allreduce.sums.packing import Packing
from learning.layout import FLOAT32, Layout
from tools.recomputing.sums import Sums
from wire.codec import Room, State
from wire.talks import Talks

_STAGE = 0


class Summed(NamedTuple):
  """What all have got.

  Attributes:
    vector: Float32 [n], of a layout.
    arrived: As of `Payload`.
    finite: Whether no sum was too large for float16.
  """

  vector: np.ndarray
  arrived: Any
  finite: bool


class Conversations:
  """Of the workers of a run, iteration by iteration.

  Attributes:
    states: What each worker remembers.
  """

  def __init__(
    self, talks: Talks, layout: Layout, *, bucket_bytes: float, overlap: bool
  ):
    """Nobody has kept anything.

    Args:
      talks: Of the run; of one stage.
      layout: Layout of the vectors.
      bucket_bytes: Of what travels early, if something does.
      overlap: Whether it does.
    """
    self._talks, self._layout = talks, layout
    self._range_bytes, self._overlap = bucket_bytes, overlap
    self.states: dict[int, State] = {}

  def leave(self, worker: int) -> None:
    """What it has kept is lost."""
    self.states.pop(worker, None)

  def begin_again(self, sums: Sums) -> None:
    """All are started again, and the first has what all had kept."""
    kept = {}
    for worker in sums.members:
      leaves, tree = jax.tree.flatten(self._state(worker).kept)
      kept[worker] = np.concatenate([*map(np.asarray, leaves)])
    total = sums(kept, [(0, kept[0].size)])
    parts = np.split(total, len(leaves))
    first = self._state(0)._replace(kept=jax.tree.unflatten(tree, parts))
    self.states = {0: first}

  def __call__(
    self, sums: Sums, vectors: Mapping[int, np.ndarray], *, scale: float
  ) -> Summed:
    """Returns the sum of pools.

    Args:
      sums: Of the generation.
      vectors: Float32 [n] by worker.
      scale: By which gradients are multiplied.
    """
    size, talks = self._layout.gradient_size, {}
    for worker, vector in vectors.items():
      talks[worker] = self._talks.talk(
        self._state(worker),
        np.array(vector[:size]),
        stage=_STAGE,
        scale=scale,
        room=Room(),
      )
    said = {worker: np.asarray(next(talk)) for worker, talk in talks.items()}
    rest = {worker: vector[size:] for worker, vector in vectors.items()}
    rounds = len(self._talks.said[_STAGE])
    for number in range(rounds - 1):
      del number
      heard = sums(said, [(0, said[0].size)])
      said = {
        worker: np.asarray(talk.send(heard.copy()))
        for worker, talk in talks.items()
      }
    count = said[0].size
    ranges, dtypes = self._ranges(count, rest[0].size, scale, rounds == 1)
    total = sums(
      {worker: np.concatenate([said[worker], rest[worker]]) for worker in said},
      ranges,
      dtypes,
    )
    for worker, talk in talks.items():
      try:
        talk.send(total[:count].copy())
      except StopIteration as end:
        summed, self.states[worker] = end.value
    vector = np.concatenate([np.asarray(summed.vector), total[count:]])
    arrived = summed.arrived
    if not isinstance(arrived, tuple):
      arrived = self._layout.unflatten(np.asarray(arrived))
    return Summed(vector, arrived, finite_halves(total, ranges, dtypes))

  def _state(self, worker: int) -> State:
    """Returns what a worker remembers: of all at first what is common."""
    if worker not in self.states:
      fresh = self._talks.init(worker)
      common = next(iter(self.states.values()), fresh).common
      self.states[worker] = fresh._replace(common=common)
    return self.states[worker]

  def _ranges(
    self, count: int, rest: int, scale: float, first: bool
  ) -> tuple[list[tuple[int, int]], list[np.dtype]]:
    """Returns the ranges in which the last that is said travels.

    Args:
      count: Its numbers.
      rest: Those that follow, of statistics and books.
      scale: By which gradients are multiplied.
      first: Whether it is the first, too.
    """
    halves, dtype = self._talks.halves[_STAGE]
    early = self._talks.early[_STAGE]
    if early and first and self._overlap:
      state, size = self._state(0), self._layout.gradient_size
      packing = Packing(
        early,
        early.chosen(state, size).tolist(),
        vector=np.zeros(size, np.float32),
        kept=state.kept,
        scale=scale,
        bucket_bytes=self._range_bytes,
      )
      end = packing.ranges[-1][1], count + rest
      dtypes = [dtype] * len(packing.ranges)
      return [*packing.ranges, end], [*dtypes, FLOAT32]
    cuts = 0, halves, count, count + rest
    pairs = zip(cuts, cuts[1:], (dtype, FLOAT32, FLOAT32), strict=False)
    some = [(start, end, kind) for start, end, kind in pairs if end > start]
    return [(a, b) for a, b, _ in some], [kind for *_, kind in some]


def finite_halves(
  total: np.ndarray,
  ranges: Sequence[tuple[int, int]],
  dtypes: Sequence[np.dtype],
) -> bool:
  """Returns whether no sum that travelled in float16 has become infinite."""
  return all(
    bool(np.isfinite(total[start:end]).all())
    for (start, end), dtype in zip(ranges, dtypes, strict=True)
    if dtype == np.float16
  )
