"""R2SP's batch tuning: workers that would wait compute more examples instead.

The tuning assumes that a worker's time is linear in its batch, so that

  batch = initial batch + spare time * speed

makes the worker end together with the slowest one, which keeps its initial
batch.  The global batch grows, unlike with LB-BSP.  Chen et al., 'Round-robin
synchronization: mitigating communication bottlenecks in parameter servers',
INFOCOM 2019.  Its Table II, 512 + 0.62 s * 628/s -> 901 and 512 + 0.82 s *
917/s -> 1264, is rounded to the nearest integer.

The paper has no more details.  The authors' code adds to the current batch by
the last waiting times (see r2sp_released.py), which diverges.  These parts are
additions of this module:

- Spare time refers to the initial batch: waiting time, plus the time that the
  examples beyond the initial batch took.  A tuned batch thus yields the same
  batch again, and a batch that is too large shrinks.
- The smallest spare time of all workers is the waiting that turns, gaps and
  jitter impose even on the slowest worker.  It is subtracted from each spare
  time.
- All workers are measured over the same interval of the run: a window ends when
  each worker has completed some iterations, and the last few windows are
  averaged.  The first iteration of each worker after the start of a run, or
  after a join, is left out, because it waits for the turns to begin.
- Spare time is shrunk by its margin of error m: s seconds count as s - m^2 / s,
  and as zero below m.  This is the weight of the non-negative garrote (Breiman,
  'Better subset regression using the nonnegative garrote', 1995): batches of
  equal workers stay as they are, and large differences are hardly biased.  Of
  n equal workers the first and the last differ by about 2 sqrt(ln n) standard
  errors of a difference of two means (extremes of normal numbers); m is 2
  standard errors more.
- If the time of a worker differs by more than five standard errors between the
  newest window and the windows before, the latter are discarded, so that the
  tuning follows the change within one or two windows.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from batching import batching
from batching.batching import Measurement
from batching.independent import IndependentBatches
from configs import declared
from sync import scheme

_MARGIN = 2.0  # Standard errors beyond the range of equal workers.
_CHANGED = 5.0  # Standard errors from which a difference counts as a change.


class Sums(NamedTuple):
  """Sums over iterations of one worker.

  Attributes:
    iterations: Number of iterations.
    examples: Number of examples computed.
    compute_s: Seconds of computing.
    busy_s: Seconds of computing and transfers, scaled to the initial batch.
    busy_squares: Sum over iterations of the square of their `busy_s`, seconds
      squared.
    spare_s: Seconds of waiting, scaled to the initial batch; may be negative.
  """

  iterations: int = 0
  examples: int = 0
  compute_s: float = 0.0
  busy_s: float = 0.0
  busy_squares: float = 0.0
  spare_s: float = 0.0

  def plus(self, other: 'Sums') -> 'Sums':
    """Returns the sums over these iterations and those of `other`."""
    return Sums._make(map(operator.add, self, other))

  @property
  def mean_busy_s(self) -> float:
    """Mean seconds of an iteration of the initial batch, without waiting."""
    return self.busy_s / self.iterations

  @property
  def mean_spare_s(self) -> float:
    """Mean seconds of waiting in an iteration of the initial batch."""
    return self.spare_s / self.iterations

  @property
  def speed(self) -> float:
    """Examples per second of computing."""
    return self.examples / self.compute_s

  @property
  def variance(self) -> float:
    """Variance of `busy_s` between iterations, seconds squared."""
    squares = self.busy_squares - self.busy_s * self.mean_busy_s
    return max(squares, 0.0) / (self.iterations - 1)


@dataclasses.dataclass
class R2spTuning(IndependentBatches):
  """State of R2SP's batch tuning.

  The measurements of a worker that has left are ignored, and discarded if it
  rejoins: it starts again with the initial batch.  A join begins a new window,
  until whose end the others keep their batches; windows from before are
  discarded, as waiting times without the worker are not comparable.

  Attributes:
    window: Iterations that each worker completes from one tuning to the next.
    history: Number of windows that are averaged, the newest.
    completed: Int [num_workers], iterations in the current window.
    first: Bool [num_workers], True if the next iteration is left out.
    current: [num_workers], sums over the current window.
    windows: Up to `history` times [num_workers], sums over the windows that
      have ended, oldest first.  Each living worker has iterations in every one.
  """

  is_state = True  # Plain data: checkpoints hold it.

  needs_barriers: ClassVar[bool] = False
  is_adaptive: ClassVar[bool] = True

  window: int
  history: int
  completed: list[int]
  first: list[bool]
  current: list[Sums]
  windows: list[list[Sums]]

  def observe(self, measurement: Measurement) -> None:
    batching.check_measurement(self.members, measurement)
    batching.check_times(measurement)
    self._count(measurement)
    worker = measurement.worker
    self.completed[worker] += 1
    if self.completed[worker] >= self.window and self._all_completed():
      self._end_window()

  def leave(self, worker: int) -> None:
    self.members.leave(worker)
    self.sizes[worker] = self.worker_batch

  def join(self, worker: int) -> None:
    self.members.join(worker)
    self.windows = []
    self.first = [True] * len(self.first)
    self._begin_window()

  def _begin_window(self) -> None:
    self.completed = [0] * len(self.completed)
    self.current = [Sums()] * len(self.current)

  def _count(self, measurement: Measurement) -> None:
    """Adds an iteration to the sums of the current window."""
    worker = measurement.worker
    if self.first[worker]:
      self.first[worker] = False
      return
    # Seconds that the iteration would have taken with the initial batch.
    compute_s = measurement.compute_s * self.worker_batch / measurement.examples
    busy_s = compute_s + measurement.transfer_s
    iteration = Sums(
      iterations=1,
      examples=measurement.examples,
      compute_s=measurement.compute_s,
      busy_s=busy_s,
      busy_squares=busy_s * busy_s,
      spare_s=measurement.waited_s + measurement.compute_s - compute_s,
    )
    self.current[worker] = self.current[worker].plus(iteration)

  def _all_completed(self) -> bool:
    return all(self.completed[each] >= self.window for each in self.living)

  def _end_window(self) -> None:
    """Ends the current window, tunes all batches and begins a window."""
    if self.windows and self._has_changed():
      self.windows = []
    self.windows = [*self.windows, self.current][-self.history :]
    self._begin_window()
    self._tune(self._totals())

  def _has_changed(self) -> bool:
    """Returns whether a worker's time differs from that in past windows."""
    before = self._totals()
    variances = _variances(before)
    for worker, total in before.items():
      now = self.current[worker]
      difference_s = abs(now.mean_busy_s - total.mean_busy_s)
      share = 1 / now.iterations + 1 / total.iterations
      if difference_s > _CHANGED * math.sqrt(variances[worker] * share):
        return True
    return False

  def _totals(self) -> dict[int, Sums]:
    """Returns the sums of each living worker over all windows."""
    totals = dict.fromkeys(self.living, Sums())
    for window in self.windows:
      for worker, total in totals.items():
        totals[worker] = total.plus(window[worker])
    return totals

  def _tune(self, totals: dict[int, Sums]) -> None:
    """Sets the batch of each worker by its spare time."""
    errors = {  # Squares of the standard errors of means.
      worker: variance / totals[worker].iterations
      for worker, variance in _variances(totals).items()
    }
    margin = _MARGIN + 2 * math.sqrt(math.log(len(totals)))
    slowest = min(totals, key=lambda worker: totals[worker].mean_spare_s)
    for worker, total in totals.items():
      spare_s = total.mean_spare_s - totals[slowest].mean_spare_s
      if spare_s > 0:
        margin_square = margin**2 * (errors[worker] + errors[slowest])
        spare_s = max(spare_s - margin_square / spare_s, 0.0)
      size = round(self.worker_batch + spare_s * total.speed)
      most = self.most[worker] if self.most else size
      self.sizes[worker] = min(size, most)


def _variances(totals: dict[int, Sums]) -> dict[int, float]:
  """Returns the variance of each worker's time, seconds squared."""
  # The mean squared coefficient of variation of all workers gives its lower
  # bound: the variance of few iterations of one worker may be small by chance.
  square = sum(t.variance / t.mean_busy_s**2 for t in totals.values())
  return {
    worker: max(t.variance, square / len(totals) * t.mean_busy_s**2)
    for worker, t in totals.items()
  }


@declared.check_arguments('batching.r2sp')
def make(
  *,
  num_workers: int,
  worker_batch: int,
  window: int,
  history: int,
  most: Sequence[int],
) -> R2spTuning:
  """Returns R2SP's batch tuning.

  Args:
    worker_batch: Initial batch of each worker, examples.
    window: Iterations that each worker completes from one tuning to the next,
      at least 3: one may be left out, and a variance takes two.
    history: Number of windows that are averaged, the newest.
    most: Upper bound of the batches, at least worker_batch: one number for all
      workers, or one each; () for no bound.

  Raises:
    ValueError: If an argument is out of range.
  """
  declared.check('batching', worker_batch=worker_batch)
  bounds = batching.expand_bounds(
    most, num_workers=num_workers, least=worker_batch
  )
  return R2spTuning(
    worker_batch=worker_batch,
    window=window,
    history=history,
    most=bounds,
    members=scheme.make_members(num_workers),
    sizes=[worker_batch] * num_workers,
    completed=[0] * num_workers,
    first=[True] * num_workers,
    current=[Sums()] * num_workers,
    windows=[],
  )
