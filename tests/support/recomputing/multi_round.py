"""Recomputes multi-round allreduces of a run in one process.

Each worker has a codec state.  A worker that joins starts with an empty
residual; after a restart of all workers the first one has the sum of all
residuals, as in checkpoints.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cluster.allreduce.sums.streaming import ChunkPacker
from learning.layout import FLOAT32, Layout
from tests.support.recomputing.sums import Sums
from wire.codec import State, Workspace
from wire.multi_round import MultiRoundAllreduce

_STAGE = 0


class ReducedPool(NamedTuple):
  """The sum of all workers' pools.

  Attributes:
    vector: Float32 [n], of the layout.
    arrived: As of `Payload`.
    finite: Whether no sum was too large for float16.
  """

  vector: np.ndarray
  arrived: Any
  finite: bool


class RecomputedAllreduce:
  """The multi-round allreduce of a run, iteration by iteration.

  Attributes:
    states: Codec state of each worker.
  """

  def __init__(
    self,
    multi_round: MultiRoundAllreduce,
    layout: Layout,
    *,
    bucket_bytes: float,
    overlap: bool,
  ):
    """Starts without any codec state.

    Args:
      multi_round: Allreduce of the run; it has one stage.
      layout: Layout of gradient, statistics and step statistics.
      bucket_bytes: Least bytes of a bucket of the streamable prefix.
      overlap: Whether the prefix is sent before the gradient is complete.
    """
    self._multi_round, self._layout = multi_round, layout
    self._bucket_bytes, self._overlap = bucket_bytes, overlap
    self.states: dict[int, State] = {}

  def leave(self, worker: int) -> None:
    """Removes a worker, whose residual is lost."""
    self.states.pop(worker, None)

  def restart(self, sums: Sums) -> None:
    """Restarts all workers; the first one gets the sum of all residuals."""
    residuals = {}
    for worker in sums.members:
      leaves, tree = jax.tree.flatten(self._state(worker).residual)
      residuals[worker] = np.concatenate([*map(np.asarray, leaves)])
    total = sums(residuals, [(0, residuals[0].size)])
    residual = jax.tree.unflatten(tree, np.split(total, len(leaves)))
    self.states = {0: self._state(0)._replace(residual=residual)}

  def __call__(
    self, sums: Sums, vectors: Mapping[int, np.ndarray], *, scale: float
  ) -> ReducedPool:
    """Returns the sum of pools.

    Args:
      sums: Sums of the membership epoch.
      vectors: Pools by worker, float32 [n].
      scale: Power of two that gradients are multiplied by.
    """
    size, rounds = self._layout.gradient_size, {}
    for worker, vector in vectors.items():
      rounds[worker] = self._multi_round.start(
        self._state(worker),
        np.array(vector[:size]),
        stage=_STAGE,
        scale=scale,
        workspace=Workspace(),
      )
    parts = {worker: np.asarray(next(own)) for worker, own in rounds.items()}
    rest = {worker: vector[size:] for worker, vector in vectors.items()}
    count = len(self._multi_round.contribution_sizes[_STAGE])
    for _ in range(count - 1):
      total = sums(parts, [(0, parts[0].size)])
      parts = {
        worker: np.asarray(own.send(total.copy()))
        for worker, own in rounds.items()
      }
    end = parts[0].size
    ranges, dtypes = self._last_ranges(end, rest[0].size, scale, count == 1)
    total = sums(
      {
        worker: np.concatenate([parts[worker], rest[worker]]) for worker in rest
      },
      ranges,
      dtypes,
    )
    for worker, own in rounds.items():
      try:
        own.send(total[:end].copy())
      except StopIteration as stop:
        reduced, self.states[worker] = stop.value
    vector = np.concatenate([np.asarray(reduced.vector), total[end:]])
    arrived = reduced.arrived
    if not isinstance(arrived, tuple):
      arrived = self._layout.unflatten(np.asarray(arrived))
    return ReducedPool(vector, arrived, is_finite(total, ranges, dtypes))

  def _state(self, worker: int) -> State:
    """Returns a worker's state; a new worker gets the replicated part."""
    if worker not in self.states:
      fresh = self._multi_round.init(worker)
      replicated = next(iter(self.states.values()), fresh).replicated
      self.states[worker] = fresh._replace(replicated=replicated)
    return self.states[worker]

  def _last_ranges(
    self, count: int, rest: int, scale: float, is_first: bool
  ) -> tuple[list[tuple[int, int]], list[np.dtype]]:
    """Returns the ranges of the last contribution, and their dtypes.

    Args:
      count: Numbers of the contribution.
      rest: Numbers of statistics and step statistics, which follow.
      scale: Power of two that gradients are multiplied by.
      is_first: Whether it is the first contribution, too.
    """
    halves, dtype = self._multi_round.half_precision[_STAGE]
    prefix = self._multi_round.streamable[_STAGE]
    if prefix and is_first and self._overlap:
      state, size = self._state(0), self._layout.gradient_size
      packer = ChunkPacker(
        prefix,
        prefix.choose(state, size).tolist(),
        vector=np.zeros(size, np.float32),
        residual=state.residual,
        scale=scale,
        bucket_bytes=self._bucket_bytes,
      )
      end = packer.ranges[-1][1], count + rest
      return [*packer.ranges, end], [*[dtype] * len(packer.ranges), FLOAT32]
    cuts = 0, halves, count, count + rest
    pairs = zip(cuts, cuts[1:], (dtype, FLOAT32, FLOAT32), strict=False)
    parts = [(start, end, kind) for start, end, kind in pairs if end > start]
    return [(a, b) for a, b, _ in parts], [kind for *_, kind in parts]


def is_finite(
  total: np.ndarray,
  ranges: Sequence[tuple[int, int]],
  dtypes: Sequence[np.dtype],
) -> bool:
  """Returns whether no sum that was sent as float16 has become infinite."""
  return all(
    bool(np.isfinite(total[start:end]).all())
    for (start, end), dtype in zip(ranges, dtypes, strict=True)
    if dtype == np.float16
  )
