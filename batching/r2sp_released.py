"""R2SP's tuning as its authors' code has it, which diverges.

Every 10 iterations of a worker, if its last 5 waits exceed 0.1 of an
iteration's time in the mean, its batch becomes batch + waited_s * speed: a
worker's time is taken to be linear in its batch.  Chen et al., 'Round-robin
synchronization: mitigating communication bottlenecks in parameter servers',
INFOCOM 2019; window, number of waits and threshold are in the code alone.

The rule has no fixed point.  It keeps the batch of the worker that is slowest
at the moment and of no other, counts the waiting that R2SP's turns and gaps
impose as time to spare, and adds to the current batch.  With jitter all batches
grow, exponentially and without a bound but `most`, and never shrink: equal
workers with a lognormal jitter of 0.1 compute more than ten times their batch
after 300 iterations.  It is kept for comparisons with what was published; to
train, use `r2sp`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from batching import batching
from batching.batching import Done
from sync import scheme


@dataclasses.dataclass
class R2spReleased:
  """State of R2SP's tuning as released.

  Attributes:
    worker_batch: Examples of an iteration at first.
    window: Iterations of a worker from one tuning to the next.
    recent: Waits that are averaged, the last ones of a window.
    threshold: Share of an iteration's time that waits must exceed.
    most: Int [num_workers], the most examples of each; [] for no bound.
    members: Who lives.
    sizes: Int [num_workers], examples of an iteration.
    speeds: Float [num_workers], examples per second over the last window, or
      over the first iteration before; NaN before that.
    seen: By worker, the iterations of its window.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barrier: ClassVar[bool] = False
  changes: ClassVar[bool] = True

  worker_batch: int
  window: int
  recent: int
  threshold: float
  most: list[int]
  members: scheme.Members
  sizes: list[int]
  speeds: list[float]
  seen: list[list[Done]]

  @property
  def largest(self) -> int | None:
    """The most examples that are ever assigned; None if there is no bound."""
    return max(self.most, default=None)

  def observe(self, done: Done) -> None:
    """Counts an iteration in, and tunes at the end of a window."""
    batching.check_done(self.members, done)
    batching.check_times(done)
    worker = done.worker
    seen = self.seen[worker]
    seen.append(done)
    full = len(seen) == self.window
    if full or math.isnan(self.speeds[worker]):
      computed_s = math.fsum(each.compute_s for each in seen)
      self.speeds[worker] = sum(each.examples for each in seen) / computed_s
    if full:
      self._tune(worker, seen)
      self.seen[worker] = []

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns each one's own size."""
    for worker in workers:
      batching.check_living(self.members, worker)
    return {worker: self.sizes[worker] for worker in workers}

  def report(self) -> dict[str, float]:
    """Returns the sum, the least and the largest batch."""
    living = [
      size
      for size, state in zip(self.sizes, self.members.state, strict=True)
      if state != scheme.GONE
    ]
    return batching.summed(living)

  def leave(self, worker: int) -> None:
    """Forgets the worker."""
    self.members.leave(worker)
    self.sizes[worker] = self.worker_batch
    self.speeds[worker] = math.nan
    self.seen[worker] = []

  def join(self, worker: int) -> None:
    """Lets the worker start as all did."""
    self.members.join(worker)

  def _tune(self, worker: int, seen: Sequence[Done]) -> None:
    """Lets the worker use the time that it waits, but not the slowest one."""
    waits = [done.waited_s for done in seen[-self.recent :]]
    waited_s = math.fsum(waits) / len(waits)
    busy_s = math.fsum(done.compute_s + done.transfer_s for done in seen)
    if waited_s <= self.threshold * busy_s / len(seen):
      return
    known = [(v, w) for w, v in enumerate(self.speeds) if not math.isnan(v)]
    if worker != min(known)[1]:
      size = round(self.sizes[worker] + waited_s * self.speeds[worker])
      most = self.most[worker] if self.most else size
      self.sizes[worker] = min(size, most)


def make(
  *,
  num_workers: int,
  worker_batch: int,
  window: int,
  recent: int,
  threshold: float,
  most: Sequence[int],
) -> R2spReleased:
  """Returns R2SP's tuning as released, which diverges.

  Args:
    num_workers: Number of workers.
    worker_batch: Examples of an iteration at first.
    window: Iterations of a worker from one tuning to the next.
    recent: Waits that are averaged, the last ones of a window.
    threshold: Share of an iteration's time, without waits, that waits must
      exceed in the mean, 0..1.
    most: The most examples of a worker, at least worker_batch: one number for
      all workers, or one each; () for no bound.

  Raises:
    ValueError: If an argument is out of range.
  """
  scheme.check_integer('worker_batch', worker_batch, at_least=1)
  scheme.check_integer('recent', recent, at_least=1)
  scheme.check_integer('window', window, at_least=recent)
  scheme.check_fraction('threshold', threshold)
  return R2spReleased(
    worker_batch=worker_batch,
    window=window,
    recent=recent,
    threshold=threshold,
    most=batching.caps(most, num_workers=num_workers, least=worker_batch),
    members=scheme.members(num_workers),
    sizes=[worker_batch] * num_workers,
    speeds=[math.nan] * num_workers,
    seen=[[] for _ in range(num_workers)],
  )
