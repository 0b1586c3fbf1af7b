"""Sums by conversations between hosts: of wires that do more than round."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cluster.allreduce.executor.errors import Abandoned, Damaged, PeerLost
from cluster.allreduce.executor.generation import Travel
from cluster.allreduce.executor.reduction import Reduction
from cluster.allreduce.sums.memory import Memory, Talking
from cluster.allreduce.sums.packing import Packing, Reached
from cluster.allreduce.sums.summing import CheckedFilling, HostSumming
from cluster.network import memory as memories
from cluster.process.faults import Fault
from data.stream import Ranges
from learning.layout import FLOAT32
from learning.learning import Learner
from learning.scaling import factor
from wire.codec import Room
from wire.talks import Talks


class TalkingSumming(HostSumming):
  """A HostSumming whose workers say several arrays, one after the other.

  Statistics and books are summed with the last of them.
  """

  memory: Memory

  def __init__(
    self,
    index: int,
    *,
    talks: Talks,
    bucket_bytes: float,
    overlap: bool,
    **of_host: Any,
  ):
    """Listens to nobody yet.

    Args:
      index: Of this worker.
      talks: The conversations.
      bucket_bytes: Of what travels early, if something does.
      overlap: Whether it does.
      **of_host: As of `HostSumming`.
    """
    super().__init__(index, **of_host)
    self._range_bytes, self._overlap = bucket_bytes, overlap
    self.memory = Memory(talks, self._layout, index)
    # Of what all have summed.
    self._total = memories.aligned(4 * self._layout.size).view(np.float32)
    self._total[:] = 0.0
    self._own = Room(sum=self._total[: self._layout.gradient_size])
    self._said: dict[int, np.ndarray] = {}
    self._vector = self._vectors[0]
    self._travel: Travel | None = None
    # Of an iteration whose values travel early: the sum, and where it will be.
    self._begun: tuple[Reduction, np.ndarray, int] | None = None
    self._talking: Talking | None = None
    self._number, self._stage, self._scale = 0, 0, 1.0
    self._finite = True

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles everything."""
    super().warm_up(learner, examples, changing=changing)
    vector = np.zeros(self._layout.gradient_size, np.float32)
    for summed in self.memory.warm_up(vector):
      learner.warm_up_buffer(self._layout, self._arrived(summed.arrived))

  def close(self) -> None:
    """Listens no more; another life begins anew."""
    super().close()
    self.memory.forget()

  def compute(
    self,
    version: int,
    learner: Learner,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    stage: int,
    fault: Fault | None,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient; of it travels early what is known to travel."""
    self._vector = self.memory.free(self._vectors)
    self._stage, self._begun = stage, None  # That of before may have failed.
    self._progress = 0, None
    self._number = version * (self.memory.talks.most + 1)
    self._travel = self._faults.travel(worker, iteration, fault)
    self._scale = factor(learner.scaling)
    ready, reach = _nobody, self._begin_early()
    if reach:
      if self.paced:
        self._pass(reach, least_s)
      bounds = [bucket.bounds for bucket in self._layout.buckets]
      reached = Reached(bounds, self._layout.gradient_size)
      ready = lambda number: reach(reached.full(number))  # noqa: E731
    filling = CheckedFilling(self._layout, self._vector, ready, fault)
    self._filling = filling
    self._stats, loss = self._gradient.stream(
      learner.params,
      ranges,
      worker=worker,
      iteration=iteration,
      sink=filling,
      scale=self._scale,
    )
    return None if loss is None else float(loss), filling.finite

  def total(self) -> tuple[list[float], bool]:
    """Converses until all of the pool is summed."""
    try:
      return self._converse()
    finally:
      self._progress = 0, None  # The next iteration counts from 0.

  def _converse(self) -> tuple[list[float], bool]:
    gradient, rest = np.split(self._vector, [self._layout.gradient_size])
    talking = self.memory.talk(
      gradient, stage=self._stage, scale=self._scale, room=self._own
    )
    said: Any = talking.begin()
    number = self._number
    if self._begun:
      said = talking.hear(self._heard_early(talking, said, rest))
    while said is not None:
      last, parts = talking.last, [np.asarray(said)]
      try:
        if last:
          count, _ = self.memory.talks.halves[self._stage]
          parts = [*np.split(parts[0], [count]), rest]
        heard = self._sum(number, parts, self._travel if last else None)
      except (Abandoned, Damaged, PeerLost):
        if last:
          talking.unheard(np.zeros(said.size, np.float32))
        raise
      if last:
        rest[:] = heard[said.size :]
      said, number = talking.hear(heard[: said.size]), number + 1
    self._talking = talking
    summed, self._total[gradient.size :] = talking.summed.vector, rest
    if not np.may_share_memory(summed, self._total):
      self._total[: gradient.size] = summed
    return self._layout.step_statistics(self._total).tolist(), self._finite

  def apply(self, learner: Learner, *, examples: int, pushes: int) -> None:
    """Applies the pool, or the part of it that has arrived, to the learner."""
    talking = self._talking
    learner.apply_buffer(
      self._layout,
      self._total,
      examples=examples,
      pushes=pushes,
      arrived=self._arrived(talking.summed.arrived),
    )
    talking.end(learner.version)

  def collect(self, version: int) -> None:
    """Sums what all keep."""
    number = version * (self.memory.talks.most + 1) - 1
    try:
      self.memory.total = self._sum(number, [self.memory.kept()], None).copy()
    finally:
      self._progress = 0, None

  def _begin_early(self) -> Callable[[int], None] | None:
    """Begins the sum whose values travel early, if there are such.

    Returns what is told how much of the gradient is there.
    """
    memory, stage = self.memory, self._stage
    early = memory.talks.early[stage]
    if early is None or not self._overlap:
      return None
    size = self._layout.gradient_size
    packing = Packing(
      early,
      early.chosen(memory.state, size).tolist(),
      vector=self._vector[:size],
      kept=memory.state.kept,
      scale=self._scale,
      bucket_bytes=self._range_bytes,
    )
    end = memory.talks.said[stage][0] + self._layout.size - size
    vector = self._room(end)
    ranges = [*packing.ranges, (packing.ranges[-1][1], end)]
    _, dtype = memory.talks.halves[stage]
    dtypes = [*(dtype for _ in packing.ranges), FLOAT32]
    reduction = self._sums(self._number, vector, ranges, dtypes, self._travel)
    self._begun = reduction, vector, len(ranges) - 1
    packing.begin(vector, reduction.ready)
    return packing.reach

  def _pass(self, reach: Callable[[int], None], seconds: float) -> None:
    """Notes parts of the gradient as computed, each at its time."""
    start, there = time.monotonic(), 0
    for part in self._pace[:-1]:
      rest_s = start + part.ready * seconds - time.monotonic()
      if rest_s > 0:
        time.sleep(rest_s)
      there += part.bytes // 4
      reach(there)

  def _heard_early(
    self, talking: Talking, said: Any, rest: np.ndarray
  ) -> np.ndarray:
    """Adds what does not travel early, and waits for the sum; ends it."""
    (reduction, vector, last), self._begun = self._begun, None
    early = self.memory.talks.early[self._stage]
    packed = early.count(self._layout.gradient_size) * early.chunk
    vector[packed : said.size] = np.asarray(said)[packed:]
    vector[said.size :] = rest
    try:
      reduction.ready(last)
      reduction.wait()
    except (Abandoned, Damaged, PeerLost):
      talking.unheard(np.zeros(said.size, np.float32))
      raise
    finally:
      self._note_end(reduction)
    self._finite = reduction.finite
    rest[:] = vector[said.size :]
    return vector[: said.size]

  def _room(self, size: int) -> np.ndarray:
    """Returns float32 [size], the same for the same size."""
    if size not in self._said:
      self._said[size] = memories.aligned(4 * size).view(np.float32)
    return self._said[size]

  def _sum(
    self, number: int, parts: Sequence[np.ndarray], travel: Travel | None
  ) -> np.ndarray:
    """Returns the sums of arrays of all workers, end to end.

    They are written over by the next of the same size.

    Args:
      number: Of the sum.
      parts: The arrays; of more than one the first travels in halves, if the
        stage has them.
      travel: What goes wrong with them on purpose.
    """
    _, dtype = self.memory.talks.halves[self._stage]
    dtypes = [dtype if len(parts) > 1 else FLOAT32, FLOAT32, FLOAT32]
    there = [pair for pair in zip(parts, dtypes, strict=False) if pair[0].size]
    parts, dtypes = map(list, zip(*there, strict=True))
    ends = np.cumsum([part.size for part in parts]).tolist()
    vector = self._room(ends[-1])
    np.concatenate(parts, out=vector)
    ranges = [*zip([0, *ends[:-1]], ends, strict=True)]
    reduction = self._sums(number, vector, ranges, dtypes, travel)
    try:
      for each in range(len(ranges)):
        reduction.ready(each)
      reduction.wait()
    finally:
      self._note_end(reduction)
    self._finite = reduction.finite
    return vector

  def _sums(
    self,
    number: int,
    vector: np.ndarray,
    ranges: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype],
    travel: Travel | None,
  ) -> Reduction:
    """Begins a sum; arguments are those of `Executor.begin`."""
    given = None if {*dtypes} == {FLOAT32} else dtypes
    reduction = self._running.begin(number, vector, ranges, travel, given)
    self._progress = self.steps, reduction
    return reduction

  def _note_end(self, reduction: Reduction) -> None:
    """Keeps the steps of a sum that has ended."""
    before, _ = self._progress
    self._progress = before + reduction.steps, None

  def _arrived(self, arrived: Any) -> Any:
    """Returns which numbers an update has, as views, or () for all."""
    if isinstance(arrived, tuple):
      return ()
    return self._layout.unflatten(np.asarray(arrived))


def _nobody(number: int) -> None:
  """Tells nobody that a range is full."""
