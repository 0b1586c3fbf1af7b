"""R2SP's batch tuning as in the authors' released code, which diverges.

Every 10 iterations of a worker, if the mean of its last 5 waiting times exceeds
0.1 of an iteration's time, its batch becomes batch + waited_s * speed.  The
rule assumes that a worker's time is linear in its batch.  Chen et al.,
'Round-robin synchronization: mitigating communication bottlenecks in parameter
servers', INFOCOM 2019.  The window, the number of waiting times and the
threshold are in the code but not in the paper.

The rule has no fixed point.  It leaves only the batch of the currently slowest
worker unchanged, counts the waiting that R2SP's turns and gaps impose as spare
time, and adds to the current batch.  With jitter all batches grow
exponentially, up to `most` if there is one, and never shrink: equal workers
with a lognormal jitter of 0.1 compute more than ten times their initial batch
after 300 iterations.  This module serves comparisons with published results; to
train, use `r2sp`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from batching import batching
from batching.batching import Done
from batching.independent import IndependentBatches
from sync import scheme


@dataclasses.dataclass
class R2spReleased(IndependentBatches):
  """State of R2SP's batch tuning as released.

  Attributes:
    window: Iterations of a worker from one tuning to the next.
    recent: Number of waiting times that are averaged, the last of a window.
    threshold: Share of an iteration's time that the mean waiting time must
      exceed, 0..1.
    speeds: Float [num_workers], examples per second over the last window, or
      over the first iteration before the first window ends; NaN before that.
    seen: Iterations of the current window, by worker.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barrier: ClassVar[bool] = False
  changes: ClassVar[bool] = True

  window: int
  recent: int
  threshold: float
  speeds: list[float]
  seen: list[list[Done]]

  def observe(self, done: Done) -> None:
    """Records an iteration, and tunes the batch when a window ends."""
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

  def leave(self, worker: int) -> None:
    """Removes the worker, and resets its batch and measurements."""
    self.members.leave(worker)
    self.sizes[worker] = self.worker_batch
    self.speeds[worker] = math.nan
    self.seen[worker] = []

  def join(self, worker: int) -> None:
    """Adds the worker, which starts with the initial batch."""
    self.members.join(worker)

  def _tune(self, worker: int, seen: Sequence[Done]) -> None:
    """Enlarges the worker's batch by what it could compute while it waits.

    The batch stays if the mean waiting time is below the threshold, or if the
    worker is the slowest one.
    """
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
  """Returns R2SP's batch tuning as released, which diverges.

  Args:
    num_workers: Number of workers.
    worker_batch: Initial batch of each worker, examples.
    window: Iterations of a worker from one tuning to the next.
    recent: Number of waiting times that are averaged, the last of a window.
    threshold: Share of an iteration's time, without waiting, that the mean
      waiting time must exceed, 0..1.
    most: Upper bound of the batches, at least worker_batch: one number for all
      workers, or one each; () for no bound.

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
    members=scheme.make_members(num_workers),
    sizes=[worker_batch] * num_workers,
    speeds=[math.nan] * num_workers,
    seen=[[] for _ in range(num_workers)],
  )
