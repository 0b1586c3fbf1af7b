"""R2SP's tuning: a worker with time to spare computes more examples instead.

A worker's time is taken to be linear in its batch, so that

  batch = initial batch + time to spare * speed

lets it end with the slowest one, which keeps its initial batch.  The cluster's
batch grows, unlike with LB-BSP.  Chen et al., 'Round-robin synchronization:
mitigating communication bottlenecks in parameter servers', INFOCOM 2019.  Its
Table II, 512 + 0.62 s * 628/s -> 901 and 512 + 0.82 s * 917/s -> 1264, is
rounded to the nearest integer.

The paper says no more, and adding to the current batch by the last waits, as
the authors' code does (see r2sp_released.py), diverges.  These parts are ours:

- Time to spare is that of the initial batch: waiting, plus the time that the
  examples beyond it took.  A batch that has grown so gives the same result
  again, and one that is too large shrinks.
- The least time to spare of all workers is what turns, gaps and jitter make
  even the slowest one wait.  It is nobody's to spare, and is subtracted.
- All workers are measured over the same stretch of the run: a window ends when
  each has completed some iterations, and the last few windows are averaged.
  The first iteration of a run, and the first after a worker has joined, is left
  out: its waiting is that for turns to begin.
- Time to spare counts as far as it stands out from the jitter: s seconds count
  as s - m^2 / s, and as nothing below a margin m.  This is the weight of the
  non-negative garrote (Breiman, 'Better subset regression using the nonnegative
  garrote', 1995): batches of equal workers stay as they are, and large
  differences are hardly biased.  Of n equal workers the first and the last
  differ by about 2 sqrt(ln n) standard errors (of a difference of two means, by
  the extremes of normal numbers); m is 2 more.
- A worker whose time has changed by more than five standard errors from one
  window to those before makes all of those before void, so that tuning follows
  within a window or two.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from batching import batching
from batching.batching import Done
from sync import scheme

_MARGIN = 2.0  # Standard errors beyond those that equal workers differ by.
_CHANGED = 5.0  # Standard errors that tell a change of a worker from jitter.


class Sums(NamedTuple):
  """Sums over iterations of one worker.

  Attributes:
    iterations: How many there are.
    examples: Computed in them.
    compute_s: Seconds of computing.
    busy_s: Seconds of computing and transfers if all had the initial batch.
    busy_squares: Sum of the squares of that, seconds squared.
    spare_s: Seconds of waiting if all had the initial batch; may be negative.
  """

  iterations: int = 0
  examples: int = 0
  compute_s: float = 0.0
  busy_s: float = 0.0
  busy_squares: float = 0.0
  spare_s: float = 0.0

  def plus(self, other: 'Sums') -> 'Sums':
    """Returns the sums over the iterations of both."""
    return Sums._make(map(operator.add, self, other))

  @property
  def mean_busy_s(self) -> float:
    """Seconds of an iteration of the initial batch, without waiting."""
    return self.busy_s / self.iterations

  @property
  def mean_spare_s(self) -> float:
    """Seconds of waiting in an iteration of the initial batch."""
    return self.spare_s / self.iterations

  @property
  def speed(self) -> float:
    """Examples per second of computing."""
    return self.examples / self.compute_s

  @property
  def variance(self) -> float:
    """Variance of `busy_s` from one iteration to the next, seconds squared."""
    squares = self.busy_squares - self.busy_s * self.mean_busy_s
    return max(squares, 0.0) / (self.iterations - 1)


@dataclasses.dataclass
class R2spTuning:
  """State of R2SP's tuning.

  Attributes:
    worker_batch: Examples of an iteration at first.
    window: Iterations that each worker completes from one tuning to the next.
    history: Windows that are averaged, the last ones.
    most: Int [num_workers], the most examples of each; [] for no bound.
    members: Who lives.
    sizes: Int [num_workers], examples of an iteration.
    completed: Int [num_workers], iterations in the window that has not ended.
    first: Bool [num_workers], whether the next iteration is left out.
    current: [num_workers], sums of the window that has not ended.
    windows: Up to `history` times [num_workers], sums of windows that have,
      oldest first.  Each living worker has iterations in all of them.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barrier: ClassVar[bool] = False
  changes: ClassVar[bool] = True

  worker_batch: int
  window: int
  history: int
  most: list[int]
  members: scheme.Members
  sizes: list[int]
  completed: list[int]
  first: list[bool]
  current: list[Sums]
  windows: list[list[Sums]]

  @property
  def largest(self) -> int | None:
    """The most examples that are ever assigned; None if there is no bound."""
    return max(self.most, default=None)

  def observe(self, done: Done) -> None:
    """Counts an iteration in, and tunes at the end of a window."""
    batching.check_done(self.members, done)
    batching.check_times(done)
    self._count(done)
    self.completed[done.worker] += 1
    if self.completed[done.worker] >= self.window and self._all_completed():
      self._end_window()

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the size of each worker."""
    for worker in workers:
      batching.check_living(self.members, worker)
    return {worker: self.sizes[worker] for worker in workers}

  def report(self) -> dict[str, float]:
    """Returns the sum, the least and the largest batch."""
    return batching.summed(self.sizes[worker] for worker in self._living())

  def leave(self, worker: int) -> None:
    """Forgets the worker; the others are tuned without it from now on."""
    self.members.leave(worker)
    self.sizes[worker] = self.worker_batch
    self.completed[worker] = 0
    for window in (*self.windows, self.current):
      window[worker] = Sums()

  def join(self, worker: int) -> None:
    """Starts the worker with the initial batch, and measures all anew.

    The others keep their batches until a window has ended in which all took
    part: what they waited for before cannot be compared.
    """
    self.members.join(worker)
    self.windows = []
    self.first = [True] * len(self.first)
    self._begin_window()

  def _begin_window(self) -> None:
    self.completed = [0] * len(self.completed)
    self.current = [Sums()] * len(self.current)

  def _count(self, done: Done) -> None:
    """Adds an iteration to the sums of the window."""
    worker = done.worker
    if self.first[worker]:
      self.first[worker] = False
      return
    # What the iteration would have been with the initial batch.
    compute_s = done.compute_s * self.worker_batch / done.examples
    busy_s = compute_s + done.transfer_s
    iteration = Sums(
      iterations=1,
      examples=done.examples,
      compute_s=done.compute_s,
      busy_s=busy_s,
      busy_squares=busy_s * busy_s,
      spare_s=done.waited_s + done.compute_s - compute_s,
    )
    self.current[worker] = self.current[worker].plus(iteration)

  def _living(self) -> list[int]:
    states = enumerate(self.members.state)
    return [worker for worker, state in states if state != scheme.GONE]

  def _all_completed(self) -> bool:
    return all(self.completed[each] >= self.window for each in self._living())

  def _end_window(self) -> None:
    """Tunes all batches, and begins a window."""
    if self.windows and self._has_changed():
      self.windows = []
    self.windows = [*self.windows, self.current][-self.history :]
    self._begin_window()
    self._tune(self._totals())

  def _has_changed(self) -> bool:
    """Returns whether a worker's time differs from that of the windows."""
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
    totals = dict.fromkeys(self._living(), Sums())
    for window in self.windows:
      for worker, total in totals.items():
        totals[worker] = total.plus(window[worker])
    return totals

  def _tune(self, totals: dict[int, Sums]) -> None:
    """Sets all batches by what the workers have to spare."""
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
  """Returns the variance of each worker's time, seconds squared.

  It is at least what the mean squared coefficient of variation of all workers
  gives: that of few iterations of one worker may be small by chance.
  """
  square = sum(t.variance / t.mean_busy_s**2 for t in totals.values())
  return {
    worker: max(t.variance, square / len(totals) * t.mean_busy_s**2)
    for worker, t in totals.items()
  }


def make(
  *,
  num_workers: int,
  worker_batch: int,
  window: int,
  history: int,
  most: Sequence[int],
) -> R2spTuning:
  """Returns R2SP's tuning.

  Args:
    num_workers: Number of workers.
    worker_batch: Examples of an iteration at first.
    window: Iterations that each worker completes from one tuning to the next,
      at least 3: variances take two, beside one that is left out.
    history: Windows that are averaged, the last ones.
    most: The most examples of a worker, at least worker_batch: one number for
      all workers, or one each; () for no bound.

  Raises:
    ValueError: If an argument is out of range.
  """
  scheme.check_integer('worker_batch', worker_batch, at_least=1)
  scheme.check_integer('window', window, at_least=3)
  scheme.check_integer('history', history, at_least=1)
  return R2spTuning(
    worker_batch=worker_batch,
    window=window,
    history=history,
    most=batching.caps(most, num_workers=num_workers, least=worker_batch),
    members=scheme.members(num_workers),
    sizes=[worker_batch] * num_workers,
    completed=[0] * num_workers,
    first=[True] * num_workers,
    current=[Sums()] * num_workers,
    windows=[],
  )
