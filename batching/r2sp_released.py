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
from batching.batching import Measurement
from batching.independent import IndependentBatches
from configs import checks, declared
from sync import scheme


@dataclasses.dataclass
class R2spReleased(IndependentBatches):
  """State of R2SP's batch tuning as released.

  A worker that leaves and rejoins starts with the initial batch, without
  measurements.

  Attributes:
    window: Iterations of a worker from one tuning to the next.
    recent: Number of waiting times that are averaged, the last of a window.
    threshold: Share of an iteration's time that the mean waiting time must
      exceed, 0..1.
    speeds: Float [num_workers], examples per second over the last window, or
      over the first iteration before the first window ends; NaN before that.
    measurements: Iterations of the current window, by worker.
  """

  is_state = True  # Plain data: checkpoints hold it.

  needs_barriers: ClassVar[bool] = False
  is_adaptive: ClassVar[bool] = True

  window: int
  recent: int
  threshold: float
  speeds: list[float]
  measurements: list[list[Measurement]]

  def observe(self, measurement: Measurement) -> None:
    batching.check_measurement(self.members, measurement)
    batching.check_times(measurement)
    worker = measurement.worker
    window = self.measurements[worker]
    window.append(measurement)
    is_full = len(window) == self.window
    if is_full or math.isnan(self.speeds[worker]):
      compute_s = math.fsum(each.compute_s for each in window)
      self.speeds[worker] = sum(each.examples for each in window) / compute_s
    if is_full:
      self._tune(worker, window)
      self.measurements[worker] = []

  def leave(self, worker: int) -> None:
    self.members.leave(worker)
    self.sizes[worker] = self.worker_batch
    self.speeds[worker] = math.nan
    self.measurements[worker] = []

  def join(self, worker: int) -> None:
    self.members.join(worker)

  def _tune(self, worker: int, window: Sequence[Measurement]) -> None:
    """Adds the examples that the worker could compute while it waits."""
    # The batch stays if the mean waiting time is below the threshold, or if the
    # worker is the slowest one.
    waits = [each.waited_s for each in window[-self.recent :]]
    waited_s = math.fsum(waits) / len(waits)
    busy_s = math.fsum(each.compute_s + each.transfer_s for each in window)
    if waited_s <= self.threshold * busy_s / len(window):
      return
    known = [(v, w) for w, v in enumerate(self.speeds) if not math.isnan(v)]
    if worker != min(known)[1]:
      size = round(self.sizes[worker] + waited_s * self.speeds[worker])
      most = self.most[worker] if self.most else size
      self.sizes[worker] = min(size, most)


@declared.check_arguments('batching.r2sp_released')
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
  declared.check('batching', worker_batch=worker_batch)
  expected = f'at least recent, {recent}'
  checks.require(window >= recent, 'window', expected, window)
  bounds = batching.expand_bounds(
    most, num_workers=num_workers, least=worker_batch
  )
  return R2spReleased(
    worker_batch=worker_batch,
    window=window,
    recent=recent,
    threshold=threshold,
    most=bounds,
    members=scheme.make_members(num_workers),
    sizes=[worker_batch] * num_workers,
    speeds=[math.nan] * num_workers,
    measurements=[[] for _ in range(num_workers)],
  )
