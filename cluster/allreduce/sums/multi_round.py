"""Multi-round allreduce of gradients by the executors of hosts."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cluster.allreduce.executor.errors import Abandoned, Damaged, PeerLost
from cluster.allreduce.executor.reduction import Reduction
from cluster.allreduce.sums.codec_state import CodecState, WorkerRounds
from cluster.allreduce.sums.host import HostReducer
from cluster.allreduce.sums.streaming import ChunkPacker, FilledPrefix
from cluster.network import memory
from learning.iteration import Iteration
from learning.layout import FLOAT32
from learning.learning import Learner
from system import clock
from wire.codec import StreamablePrefix, Workspace
from wire.multi_round import MultiRoundAllreduce

_ITEM = FLOAT32.itemsize


class _StreamedSum(NamedTuple):
  """A sum that began before the gradient was complete.

  Attributes:
    prefix: The part of the contribution that is sent early.
    reduction: The sum.
    vector: Float32 array of the contribution, and of the sum.
    last: Index of the last range, which is sent after the gradient.
  """

  prefix: StreamablePrefix
  reduction: Reduction
  vector: np.ndarray
  last: int


class MultiRoundReducer(HostReducer):
  """A HostReducer that sums several contributions, one after the other.

  Statistics and step statistics are summed with the last one.
  """

  codec_state: CodecState

  def __init__(
    self,
    index: int,
    *,
    multi_round: MultiRoundAllreduce,
    bucket_bytes: float,
    overlap: bool,
    **host_arguments: Any,
  ):
    """Creates a reducer that does not listen yet.

    Args:
      index: Index of this worker.
      multi_round: The allreduce.
      bucket_bytes: Least bytes of a bucket of the streamable prefix.
      overlap: Whether the prefix is sent before the gradient is complete.
      **host_arguments: As of `HostReducer`.
    """
    super().__init__(index, **host_arguments)
    self._multi_round = multi_round
    self._bucket_bytes, self._overlap = bucket_bytes, overlap
    self.codec_state = CodecState(multi_round, self._layout, index)
    self._total = memory.aligned(_ITEM * self._layout.size).view(np.float32)
    self._total[:] = 0.0
    self._workspace = Workspace(sum=self._total[: self._layout.gradient_size])
    self._contributions: dict[int, np.ndarray] = {}  # By size, used again.
    self._vector = self._vectors[0]
    self._streamed: _StreamedSum | None = None
    self._ended: WorkerRounds | None = None
    self._number, self._stage, self._scale = 0, 0, 1.0
    self._finite = True

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles gradient, allreduce and update."""
    super().warm_up(learner, examples, changing=changing)
    vector = np.zeros(self._layout.gradient_size, np.float32)
    for reduced in self.codec_state.warm_up(vector):
      arrived = self._leaves(reduced.arrived)
      self._warm_up_updates(learner, self._layout, arrived)

  def close(self) -> None:
    """Ends the executor, and resets the codec state for the next session."""
    super().close()
    self.codec_state.reset()

  def compute(
    self,
    learner: Learner,
    iteration: Iteration,
    *,
    stage: int,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient, whose streamable prefix is sent at once."""
    self._vector = self.codec_state.free_vector(self._vectors)
    self._stage, self._streamed = stage, None  # The one before may have failed.
    self._progress = 0, None
    self._number = iteration.version * (self._multi_round.most_rounds + 1)
    self._scale = iteration.scale
    packer = self._start_streaming()
    on_full: Callable[[int], None] = _ignore
    if packer:
      if self.simulates_time:
        self._advance_as_computing(packer, least_s)
      on_full = self._advance_when_full(packer)
    filler = self._make_filler(self._vector, on_full)
    self._filler = filler
    self._stats, loss = self._gradient.stream(
      learner.params, iteration, filler.put
    )
    return None if loss is None else float(loss), filler.finite

  def total(self) -> tuple[list[float], bool]:
    """Runs all rounds of the allreduce; returns as `Reducer.total`."""
    try:
      return self._run_rounds()
    finally:
      self._progress = 0, None  # The next iteration counts from 0.

  def _run_rounds(self) -> tuple[list[float], bool]:
    gradient, rest = np.split(self._vector, [self._layout.gradient_size])
    rounds = self.codec_state.start(
      gradient,
      stage=self._stage,
      scale=self._scale,
      workspace=self._workspace,
    )
    contribution: Any = rounds.first_contribution()
    number = self._number
    if self._streamed:
      total = self._finish_streamed(self._streamed, rounds, contribution, rest)
      contribution = rounds.next_contribution(total)
    while contribution is not None:
      is_last, parts = rounds.is_last, [np.asarray(contribution)]
      size = parts[0].size
      try:
        if is_last:
          count, _ = self._multi_round.half_precision[self._stage]
          parts = [*np.split(parts[0], [count]), rest]
        total = self._sum(number, parts, is_last=is_last)
      except (Abandoned, Damaged, PeerLost):
        if is_last:
          rounds.give_up_last_sum(size)
        raise
      if is_last:
        rest[:] = total[size:]
      contribution, number = rounds.next_contribution(total[:size]), number + 1
    self._ended = rounds
    reduced, self._total[gradient.size :] = rounds.reduced.vector, rest
    if not np.may_share_memory(reduced, self._total):
      self._total[: gradient.size] = reduced
    return self._layout.step_statistics(self._total).tolist(), self._finite

  def apply(
    self, learner: Learner, *, examples: int, weight: float, pushes: int
  ) -> None:
    """Applies the sum, or the part of it that has arrived, to the learner."""
    ended = self._finished_rounds
    payload = self._layout.payload(self._total)._replace(
      arrived=self._leaves(ended.reduced.arrived)
    )
    learner.apply(payload, examples, weight=weight, pushes=pushes)
    ended.finish(learner.version)

  def copy_sum(self) -> Any:
    """Returns the numbers of the sum that have arrived, and which they are."""
    arrived = self._finished_rounds.reduced.arrived
    if isinstance(arrived, tuple):
      return {'numbers': self._total.copy(), 'arrived': ()}
    mask = np.ones(self._total.size, bool)
    mask[: self._layout.gradient_size] = np.asarray(arrived)
    return {'numbers': self._total[mask], 'arrived': np.packbits(mask)}

  def apply_copy(
    self,
    learner: Learner,
    sums: Any,
    *,
    examples: int,
    weight: float,
    pushes: int,
  ) -> None:
    """Applies a copied sum, or the part that had arrived, to the learner."""
    total, arrived = sums['numbers'], sums['arrived']
    if not isinstance(arrived, tuple):
      size, numbers = self._layout.size, total
      mask = np.unpackbits(arrived, count=size).astype(bool)
      total = memory.aligned(_ITEM * size).view(np.float32)
      total[:] = 0.0
      total[mask] = numbers
      arrived = mask[: self._layout.gradient_size]
    payload = self._layout.payload(total)._replace(
      arrived=self._leaves(arrived)
    )
    learner.apply(payload, examples, weight=weight, pushes=pushes)

  @property
  def _finished_rounds(self) -> WorkerRounds:
    if self._ended is None:
      raise RuntimeError('Expected an allreduce that has ended, got none.')
    return self._ended

  def collect(self, version: int) -> None:
    """Sums all workers' residuals into `codec_state.residual_sum`."""
    number = version * (self._multi_round.most_rounds + 1) - 1
    residual = self.codec_state.flat_residual()
    try:
      total = self._sum(number, [residual], is_last=False)
      self.codec_state.residual_sum = total.copy()
    finally:
      self._progress = 0, None

  def _start_streaming(self) -> ChunkPacker | None:
    """Begins the sum of the streamable prefix; returns the bucket filler."""
    prefix = self._multi_round.streamable[self._stage]
    if prefix is None or not self._overlap:
      return None
    state, size = self.codec_state.state, self._layout.gradient_size
    packer = ChunkPacker(
      prefix,
      prefix.choose(state, size).tolist(),
      vector=self._vector[:size],
      residual=state.residual,
      scale=self._scale,
      bucket_bytes=self._bucket_bytes,
    )
    first_size = self._multi_round.contribution_sizes[self._stage][0]
    end = first_size + self._layout.size - size
    vector = self._array(end)
    ranges = [*packer.ranges, (packer.ranges[-1][1], end)]
    _, dtype = self._multi_round.half_precision[self._stage]
    dtypes = [*(dtype for _ in packer.ranges), FLOAT32]
    reduction = self._begin_sum(
      self._number, vector, ranges, dtypes, is_last=True
    )
    self._streamed = _StreamedSum(prefix, reduction, vector, len(ranges) - 1)
    packer.begin(vector, reduction.ready)
    return packer

  def _advance_when_full(self, packer: ChunkPacker) -> Callable[[int], None]:
    """Returns a function to call with each bucket that is full."""
    bounds = [bucket.bounds for bucket in self._layout.buckets]
    filled = FilledPrefix(bounds, self._layout.gradient_size)
    return lambda bucket: packer.advance(filled.mark_full(bucket))

  def _advance_as_computing(self, packer: ChunkPacker, seconds: float) -> None:
    """Advances through the gradient's parts, each at its time."""
    start, count = clock.monotonic(), 0
    for part in self._simulated_parts[:-1]:
      rest_s = start + part.ready * seconds - clock.monotonic()
      if rest_s > 0:
        clock.sleep(rest_s)
      count += part.bytes // _ITEM
      packer.advance(count)

  def _finish_streamed(
    self,
    streamed: _StreamedSum,
    rounds: WorkerRounds,
    contribution: Any,
    rest: np.ndarray,
  ) -> np.ndarray:
    """Sends the numbers after the prefix; waits for the sum and returns it."""
    self._streamed = None
    prefix, reduction, vector, last = streamed
    own, start = np.asarray(contribution), prefix.chunk
    start *= prefix.count(self._layout.gradient_size)
    vector[start : own.size] = own[start:]
    vector[own.size :] = rest
    try:
      reduction.ready(last)
      reduction.wait()
    except (Abandoned, Damaged, PeerLost):
      rounds.give_up_last_sum(own.size)
      raise
    finally:
      self._count_steps(reduction)
    self._finite = reduction.finite
    rest[:] = vector[own.size :]
    return vector[: own.size]

  def _array(self, size: int) -> np.ndarray:
    """Returns float32 [size], the same array for the same size."""
    if size not in self._contributions:
      self._contributions[size] = memory.aligned(_ITEM * size).view(np.float32)
    return self._contributions[size]

  def _sum(
    self, number: int, parts: Sequence[np.ndarray], *, is_last: bool
  ) -> np.ndarray:
    """Returns the sums of arrays of all workers, one after the other.

    The next sum of the same size overwrites them.

    Args:
      number: Number of the sum.
      parts: The arrays; of more than one the first is sent in 16 bits, if the
        stage has half precision.
      is_last: Whether the iteration has no sum after this one.
    """
    _, half = self._multi_round.half_precision[self._stage]
    dtypes = [half if len(parts) > 1 else FLOAT32, FLOAT32, FLOAT32]
    pairs = [p for p in zip(parts, dtypes, strict=False) if p[0].size]
    ends = np.cumsum([part.size for part, _ in pairs]).tolist()
    vector = self._array(ends[-1])
    np.concatenate([part for part, _ in pairs], out=vector)
    ranges = [*zip([0, *ends[:-1]], ends, strict=True)]
    reduction = self._begin_sum(
      number, vector, ranges, [dtype for _, dtype in pairs], is_last=is_last
    )
    try:
      for index in range(len(ranges)):
        reduction.ready(index)
      reduction.wait()
    finally:
      self._count_steps(reduction)
    self._finite = reduction.finite
    return vector

  def _begin_sum(self, number: int, *args: Any, is_last: bool) -> Reduction:
    """Begins a sum: see `HostReducer`."""
    reduction = super()._begin_sum(number, *args, is_last=is_last)
    self._progress = self.steps, reduction
    return reduction

  def _count_steps(self, reduction: Reduction) -> None:
    """Adds the steps of a sum that has ended."""
    before, _ = self._progress
    self._progress = before + reduction.steps, None

  def _leaves(self, arrived: Any) -> Any:
    """Returns which numbers have arrived, as views like leaves; () for all."""
    if isinstance(arrived, tuple):
      return ()
    return self._layout.unflatten(np.asarray(arrived))


def _ignore(bucket: int) -> None:
  """Ignores a full bucket: nothing is sent before the gradient is complete."""
