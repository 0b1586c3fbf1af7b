"""Allreduce of gradients by the executors of hosts, over a forest."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cluster.allreduce.executor import membership
from cluster.allreduce.executor.executor import Executor, Reduction, Usage
from cluster.allreduce.sums.bucket_return import BucketReturn
from cluster.allreduce.sums.codec_state import CodecState, NoCodecState
from cluster.network import memory
from cluster.network.errors import InvalidMessage
from cluster.network.messages import ConnectMembers
from cluster.network.port import Port
from cluster.speed.layers import Bucket
from learning import warm_up
from learning.device_copies import DeviceCopies
from learning.gradient_buffer import BucketFiller
from learning.iteration import Iteration
from learning.layout import FLOAT32, Layout
from learning.learning import Learner, Streaming
from system import clock

_ITEM = np.dtype(np.float32).itemsize


class SumBuffers:
  """Two gradient buffers of a layout, and the ranges in which they are summed.

  Attributes:
    layout: Layout of gradient, statistics and step statistics.
    parts: Without a model: parts of the layout with the times at which they
      become ready, as shares of an iteration's computing time.
    ranges: First element of each range, and the one after its last.
    dtypes: Dtype as which each range is sent.
    vectors: Float32 [layout.size] each: the one of this iteration, and that of
      the iteration before, which the update may still read.
  """

  def __init__(self, layout: Layout, parts: Sequence[Bucket] = ()):
    """Creates buffers of zeros; numbers between leaves stay 0."""
    self.layout, self.parts = layout, parts
    self.ranges = [bucket.bounds for bucket in layout.buckets]
    self.dtypes = [bucket.dtype for bucket in layout.buckets]
    if parts:
      first = layout.buckets[0].dtype
      ends = itertools.accumulate(p.bytes // first.itemsize for p in parts[:-1])
      cuts = [0, *ends, *(bucket.end for bucket in layout.buckets)]
      self.ranges = list(itertools.pairwise(cuts))
      self.dtypes = [*[first] * len(parts), *self.dtypes[1:]]
    self.vectors = [
      memory.aligned(layout.size * _ITEM).view(np.float32) for _ in range(2)
    ]
    for vector in self.vectors:
      vector[:] = 0.0


class HostReducer:
  """A `Reducer` that uses the executor of this process and host memory.

  A gradient passes `compute`: its leaves are handed to a `CheckedFiller`, which
  copies them into one of two buffers.  Each bucket that is full is marked as
  ready (`Reduction.ready`), which lets the executor send it.  `finish` fills
  the last bucket, `total` waits for the sum, and `apply` gives it to the
  learner.  On an accelerator, each bucket goes back to the device as soon as it
  is summed, while later ones are still summed.
  """

  can_abandon = True

  def __init__(
    self,
    index: int,
    *,
    workers: int,
    gradient: Streaming,
    layout: Layout,
    port: Port,
    timeout_s: float,
    simulated_parts: Sequence[Bucket] = (),
  ):
    """Creates a reducer that does not listen yet.

    Args:
      index: Index of this worker.
      workers: Number of workers.
      gradient: Computes gradients, and hands out leaves as they are complete.
      layout: Layout of gradient, statistics and step statistics.
      port: Port of this process.
      timeout_s: Seconds after which a silent peer is lost.
      simulated_parts: Without a model: parts of the layout with the times at
        which they become ready, as shares of an iteration's computing time.
    """
    self.codec_state: CodecState | NoCodecState = NoCodecState()
    self._index = index
    self.simulates_time = bool(simulated_parts)
    self._use(SumBuffers(layout, simulated_parts))
    self._gradient = gradient
    self._returned: BucketReturn | None = None
    self._executor_arguments: dict[str, Any] = {
      'port': port,
      'timeout_s': timeout_s,
      'workers': workers,
    }
    self._executor: Executor | None = None
    # Steps of this iteration's sums that have ended, and the running sum; one
    # value, as another thread reads it.
    self._progress: tuple[int, Reduction | None] = 0, None
    self._filler: CheckedFiller | None = None
    self._stats: Any = ()

  def _use(self, buffers: SumBuffers) -> None:
    """Sets the buffers of the sums that follow."""
    self._layout, self._simulated_parts = buffers.layout, buffers.parts
    self._ranges, self._dtypes = buffers.ranges, buffers.dtypes
    self._vectors = buffers.vectors

  @property
  def steps(self) -> int:
    """Chunks sent and received in all sums of this iteration."""
    before, reduction = self._progress
    return before + (reduction.steps if reduction else 0)

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles gradient and update."""
    self._gradient.warm_up(learner.params, examples, changing=changing)
    self._warm_up_updates(learner, self._layout)

  @staticmethod
  def _warm_up_updates(
    learner: Learner, layout: Layout, arrived: Any = ()
  ) -> None:
    """Compiles updates by the numbers of a buffer that have arrived."""
    vector = np.zeros(layout.size, np.float32)
    like = layout.payload(vector)._replace(arrived=arrived)
    warm_up.apply_updates(learner, like, adds=False)

  def place(self, tree: Any) -> Any:
    """Returns a pytree with its arrays on the devices of gradients."""
    return self._gradient.place(tree)

  def open(self) -> str:
    """Starts an executor, which listens; returns its address."""
    self._executor = self._make_executor()
    return self._executor.address

  def _make_executor(self) -> Executor:
    return Executor(self._index, **self._executor_arguments)

  def close(self) -> None:
    """Ends the executor and its connections."""
    executor, self._executor = self._executor, None
    if executor:
      executor.close()

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Connects to the other members, after checking the forest of the order.

    Raises:
      InvalidMessage: If the forest is not sound, or not one of the members.
    """
    if order.members is None:
      raise InvalidMessage('members: expected a forest, got none')
    parsed = membership.parse(order.membership_epoch, order.members)
    self._running.form(parsed, limit_s)

  def count_unanswered(self) -> int:
    """Returns the unanswered pings of the executor; 0 without an executor."""
    executor = self._executor
    return executor.unanswered() if executor else 0

  def traffic(self) -> Mapping[int, Usage]:
    """Returns the bytes by worker; {} without an executor."""
    executor = self._executor
    return executor.traffic() if executor else {}

  def abandon(self, before: float = math.inf) -> None:
    """Makes the running sums of earlier epochs raise `Abandoned`."""
    if executor := self._executor:
      executor.abandon(before)

  def compute(
    self,
    learner: Learner,
    iteration: Iteration,
    *,
    stage: int,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient, and sends each bucket once it is full."""
    del stage
    if self._returned:  # Of a sum that has failed or was skipped.
      self._returned.wait()
      self._returned = None
    self._vectors.reverse()
    vector = self._vectors[0]
    reduction = self._begin_sum(
      iteration.version, vector, self._ranges, self._dtypes, is_last=True
    )
    ready: Callable[[int], None] = reduction.ready
    if self.simulates_time:
      passed = len(self._ranges) - len(self._layout.buckets)
      self._wait_as_computing(reduction, least_s)
      ready = lambda number: reduction.ready(passed + number)  # noqa: E731
    filler = self._make_filler(vector, ready)
    self._progress, self._filler = (0, reduction), filler
    self._stats, loss = self._gradient.stream(
      learner.params, iteration, filler.put
    )
    return None if loss is None else float(loss), filler.finite

  def _begin_sum(
    self,
    number: int,
    vector: np.ndarray,
    ranges: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype],
    *,
    is_last: bool,
  ) -> Reduction:
    """Begins a sum of an iteration.

    Args:
      number: Number of the sum.
      vector: Float32 [n], which becomes the sum.
      ranges: First element of each range, and the one after its last.
      dtypes: Dtype as which each range is sent.
      is_last: Whether the iteration has no sum after this one.
    """
    del is_last
    sent_as = None if {*dtypes} == {FLOAT32} else dtypes
    return self._running.begin(number, vector, ranges, sent_as)

  def _make_filler(
    self, vector: np.ndarray, ready: Callable[[int], None]
  ) -> 'CheckedFiller':
    return CheckedFiller(self._layout, vector, ready)

  def _wait_as_computing(self, reduction: Reduction, seconds: float) -> None:
    """Marks all ranges but the last as ready, each at its time."""
    start = clock.monotonic()
    for number, part in enumerate(self._simulated_parts[:-1]):
      rest_s = start + part.ready * seconds - clock.monotonic()
      if rest_s > 0:
        clock.sleep(rest_s)
      reduction.ready(number)

  def finish(self, numbers: np.ndarray) -> None:
    """Fills the rest of the layout."""
    if self._filler is None:
      raise RuntimeError('Expected a computed gradient, got none.')
    self._filler.finish(self._stats, numbers.tolist())

  def total(self) -> tuple[list[float], bool]:
    """Waits until all buckets are summed; returns as `Reducer.total`."""
    _, reduction = self._progress
    if reduction is None:
      raise RuntimeError('Expected a sum that is under way, got none.')
    try:
      if self._gradient.copies:
        self._return_buckets(reduction, self._gradient.copies)
      reduction.wait()
    finally:
      self._progress = 0, None  # The next iteration counts from 0.
    return self._layout.step_statistics(
      self._vectors[0]
    ).tolist(), reduction.finite

  def _return_buckets(self, reduction: Reduction, copies: DeviceCopies) -> None:
    """Starts the copy of each bucket to the device once it has its sums."""
    self._returned = BucketReturn(self._layout, self._vectors[0], copies)
    for bucket in range(len(self._layout.buckets)):
      reduction.wait_for_bucket(bucket)
      self._returned.start(bucket)

  def apply(
    self, learner: Learner, *, examples: int, weight: float, pushes: int
  ) -> None:
    """Applies the summed buffer to the learner."""
    returned, self._returned = self._returned, None
    if returned is None:
      payload = self._layout.payload(self._vectors[0])
    else:
      returned.wait()
      payload = returned.payload()
    learner.apply(payload, examples, weight=weight, pushes=pushes)

  def copy_sum(self) -> Any:
    """Returns copies of the summed buckets, in the dtypes they are sent in."""
    vector = self._vectors[0]
    return [
      _shrink(vector[bucket.start : bucket.end], bucket.dtype)
      for bucket in self._layout.buckets
    ]

  def apply_copy(
    self,
    learner: Learner,
    sums: Any,
    *,
    examples: int,
    weight: float,
    pushes: int,
  ) -> None:
    """Applies copied buckets to the learner."""
    vector = memory.aligned(self._layout.size * _ITEM).view(np.float32)
    for bucket, numbers in zip(self._layout.buckets, sums, strict=True):
      vector[bucket.start : bucket.end] = numbers
    payload = self._layout.payload(vector)
    learner.apply(payload, examples, weight=weight, pushes=pushes)

  def collect(self, version: int) -> None:
    """Returns at once: there are no residuals."""

  @property
  def _running(self) -> Executor:
    if self._executor is None:
      raise RuntimeError('Expected an open executor, got none.')
    return self._executor


def _shrink(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """Returns a copy in a dtype, or in float32 if that would change numbers."""
  if dtype == FLOAT32:
    return numbers.copy()
  with np.errstate(over='ignore', invalid='ignore'):
    small = numbers.astype(dtype)
    is_same = np.array_equal(small.astype(np.float32), numbers)
  return small if is_same else numbers.copy()


class CheckedFiller(BucketFiller):
  """A `BucketFiller` that checks whether all numbers are finite.

  Attributes:
    finite: Whether all numbers so far are.
  """

  def __init__(
    self,
    layout: Layout,
    vector: np.ndarray,
    ready: Callable[[int], None],
  ):
    """Starts with an empty buffer.

    Args:
      layout: Layout of the vector.
      vector: Float32 [layout.size].
      ready: Called with the index of each range that is full.
    """
    super().__init__(layout, vector, ready)
    self.finite = True

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Writes the numbers of a leaf."""
    # Rarely other than if a number is not finite.
    with np.errstate(over='ignore', invalid='ignore'):
      total = np.sum(array)
    if not np.isfinite(total) and not np.isfinite(array).all():
      self.finite = False
    super().put(leaf, array)
