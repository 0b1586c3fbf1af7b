"""ElasticBSP: barriers at predicted times, chosen so that workers wait least.

A superstep has two parts.  During monitoring, every push is an update of its
own and its worker continues.  When the last worker has made `monitor_pushes`
pushes, each worker's next `lookahead` pushes are predicted by repeating its
last interval, and ZipLine chooses one of them per worker so that the first
worker to stop waits least for the last.  Pushes before a worker's chosen push
are still updates of their own; the chosen pushes are summed into one update, at
the barrier.  Zhao et al., 'Elastic bulk synchronous parallel model for
distributed deep learning', ICDM 2019.

As published, only the search bounds a lead: while the slowest worker makes its
monitoring pushes, a worker k times as fast makes k times as many.  The option
`bound` is this project's: as with SSP, a worker whose lead exceeds it waits.
Predictions take it into account, so that no chosen push needs a larger lead.
"""

import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from configs import declared
from sync import scheme, zipline
from sync.scheme import Decision, Push


@dataclasses.dataclass
class Elastic:
  """State of ElasticBSP.

  A worker that joins waits for the next barrier, unless none is running.  A
  leave may start the search, end the superstep, or release workers that waited
  because of the bound: O(num_workers).

  Attributes:
    lookahead: Number of predicted pushes per worker.
    monitor_pushes: Pushes of every worker before a search, at least 2.
    bound: Largest lead of a running worker, in iterations since the barrier, at
      which all had the same version; may be infinite.
    members: State of each worker.  A superstep ends when none is running.
    clocks: Numbers of iterations finished since the barrier, of the workers
      that started from it.
    resumed_at: Float [num_workers], time at which each worker continued after
      its last push, seconds; undefined before its first push of a superstep.
    interval_s: Float [num_workers], seconds from there to the next push.
    remaining: Int [num_workers], pushes up to the chosen one, after a search.
    waiting: Heap of (finished iterations, worker), the workers that wait
      because of the bound.
    unmonitored: Number of workers with monitoring pushes still to make; 0 after
      the search.
    barrier: Id of the update that the chosen pushes are summed into; None
      before the first of them.
    updates: Number of ids given to updates so far.
  """

  is_state = True  # Plain data: checkpoints hold it.

  has_barriers: ClassVar[bool] = True

  lookahead: int
  monitor_pushes: int
  bound: float
  members: scheme.Members
  clocks: scheme.Clocks
  resumed_at: list[float]
  interval_s: list[float]
  remaining: list[int]
  waiting: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  unmonitored: int = 0
  barrier: int | None = None
  updates: int = 0

  def start(self, time: float) -> Decision:
    return self._superstep(Decision())._replace(barrier=False)

  def push(self, push: Push) -> Decision:
    """Applies the push as an update of its own, unless it is a chosen one.

    The chosen pushes are summed into one update, which the last of them
    applies.
    """
    worker = push.worker
    self.members.stop(worker)
    self.clocks.tick(worker)
    monitoring = self.unmonitored > 0
    if not monitoring:
      self.remaining[worker] -= 1
      if not self.remaining[worker]:
        return self._stop(push.time)
    heapq.heappush(self.waiting, (self.clocks.finished[worker], worker))
    if monitoring:
      self._observe(worker, push.time)
    update = self._new_update()
    return Decision(
      into=update, commit=(update,), release=self._release(push.time)
    )

  def wake(self, time: float) -> Decision:
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    was_running = self.members.leave(worker)
    others = [entry for entry in self.waiting if entry[1] != worker]
    took_part = was_running or len(others) < len(self.waiting)
    self.waiting = others
    heapq.heapify(self.waiting)
    self.clocks.leave(worker)
    if not self.members.running and not self.waiting:
      return self._superstep(Decision())
    is_unfinished = self.clocks.finished[worker] < self.monitor_pushes
    if self.unmonitored and took_part and is_unfinished:
      self._finish_monitoring(time)
    return Decision(release=self._release(time))

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    return Decision() if self.members.running else self._superstep(Decision())

  def _observe(self, worker: int, time: float) -> None:
    pushes = self.clocks.finished[worker]
    if pushes > 1:
      # Rows of the search must increase even if two pushes share one instant.
      shortest_s = 4 * math.ulp(time)
      self.interval_s[worker] = max(time - self.resumed_at[worker], shortest_s)
    if pushes == self.monitor_pushes:
      self._finish_monitoring(time)

  def _finish_monitoring(self, time: float) -> None:
    """Counts a worker as monitored; after the last one, chooses the barrier."""
    self.unmonitored -= 1
    if self.unmonitored:
      return
    for _, worker in self.waiting:
      self.resumed_at[worker] = time  # The earliest time the bound allows.
    waiting = {worker for _, worker in self.waiting}
    continuing = [
      worker
      for worker, state in enumerate(self.members.state)
      if state == scheme.RUNNING or worker in waiting
    ]
    barrier = zipline.search(self._predict_ends(continuing))
    for worker, column in zip(continuing, barrier.iteration, strict=True):
      self.remaining[worker] = int(column) + 1

  def _predict_ends(self, workers: Sequence[int]) -> np.ndarray:
    """Returns the times of each worker's next pushes, s, [n, lookahead]."""
    # A time is infinite if the bound would delay the push until other workers
    # have made more than `lookahead` pushes: no barrier can be there.
    resumed_at = np.array(self.resumed_at)[workers]
    interval_s = np.array(self.interval_s)[workers]
    if self.bound == math.inf:
      steps = np.arange(1, self.lookahead + 1)
      return resumed_at[:, None] + interval_s[:, None] * steps
    finished = np.array(self.clocks.finished)[workers]
    last = finished + self.lookahead
    ends = np.full((len(workers), self.lookahead), np.inf)
    before, since = resumed_at.copy(), finished.copy()
    # Time at which all workers have made this number of pushes.
    all_by: dict[float, float] = {}
    for number in range(finished.min() + 1, last.max() + 1):
      own = (finished < number) & (number <= last)
      free = all_by.get(number - 1 - self.bound, -np.inf)
      delayed = own & (free > before)
      resumed_at[delayed], since[delayed] = free, number - 1
      after = resumed_at + interval_s * (number - since)
      # Times increase, however long the wait and short the interval are.
      after = np.maximum(after, np.nextafter(before, np.inf))
      before = np.where(own, after, before)
      ends[own, number - 1 - finished[own]] = before[own]
      reached = np.where(own, before, np.where(number > last, np.inf, -np.inf))
      all_by[number] = float(reached.max())
    return ends

  def _release(self, time: float) -> tuple[int, ...]:
    if not self.waiting:
      return ()
    highest = self.clocks.slowest()[0] + self.bound
    released = scheme.pop_within(self.waiting, highest)
    for worker in released:
      self.resumed_at[worker] = time
    return self.members.release(released)

  def _stop(self, time: float) -> Decision:
    if self.barrier is None:
      self.barrier = self._new_update()
    decision = Decision(into=self.barrier, release=self._release(time))
    return decision if self.members.running else self._superstep(decision)

  def _superstep(self, decision: Decision) -> Decision:
    """Ends a superstep and starts the next: O(num_workers)."""
    commit = () if self.barrier is None else (self.barrier,)
    release = self.members.release_all()
    self.barrier = None
    self.unmonitored = len(release)
    self.clocks = scheme.Clocks(
      finished=[0] * len(self.remaining),
      heap=[(0, worker) for worker in release],
    )
    return decision._replace(
      commit=commit, release=release, barrier=bool(release)
    )

  def _new_update(self) -> int:
    self.updates += 1
    return self.updates - 1


@declared.check_arguments('sync.elastic')
def make(
  *,
  num_workers: int,
  lookahead: int,
  monitor_pushes: int,
  bound: float = math.inf,
) -> Elastic:
  """Returns ElasticBSP.

  Args:
    lookahead: Predicted pushes per worker (R of the paper), at least 1.
    monitor_pushes: Pushes of every worker before a search, at least 2: an
      interval without a wait takes two.
    bound: Largest lead of a running worker since the barrier: a whole number
      >= 0, or infinity.

  Raises:
    ValueError: If an argument is out of range.
  """
  if isinstance(bound, float) and bound.is_integer():
    bound = int(bound)  # Configs hold floats where infinity is allowed.
  members = scheme.make_members(num_workers)
  return Elastic(
    lookahead=lookahead,
    monitor_pushes=monitor_pushes,
    bound=bound,
    members=members,
    clocks=scheme.make_clocks(num_workers),
    resumed_at=[0.0] * num_workers,
    interval_s=[0.0] * num_workers,
    remaining=[0] * num_workers,
  )
