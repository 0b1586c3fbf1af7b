"""ElasticBSP: predict when iterations end, put the barrier where it is cheap.

A superstep has two parts.  While it monitors, every push is an update of its
own and its worker goes on.  When the last worker has made `monitor_pushes`
pushes, each worker's next `lookahead` pushes are predicted by repeating its
last interval, and ZipLine picks one of them per worker so that the first to
stop waits least for the last.  Pushes before a worker's chosen one still are
updates of their own; the chosen ones are summed into one update, the barrier.
Zhao et al., 'Elastic bulk synchronous parallel model for distributed deep
learning', ICDM 2019.

As published, a lead is bounded by nothing but the search: while the slowest
worker makes its monitoring pushes, a worker k times as fast makes k times as
many.  `bound` is ours, as of SSP: who leads by more waits.  Predictions know of
it, so that no chosen push needs a lead that the bound forbids.
"""

import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from sync import scheme, zipline
from sync.scheme import Decision, Push


@dataclasses.dataclass
class Elastic:
  """State of ElasticBSP.

  Attributes:
    lookahead: Predicted pushes per worker.
    monitor_pushes: Pushes of every worker before a search, at least 2.
    bound: Largest lead of a running worker, in iterations since the barrier,
      at which all had the same version; may be infinite.
    members: Who lives; a superstep ends when nobody runs any more.
    clocks: Iterations finished since the barrier, of who started from it.
    began: Float [num_workers], when each went on after its last push, seconds;
      meaningless before the first push of a superstep.
    interval_s: Float [num_workers], from there to the next push: between two
      pushes that the worker did not wait between.
    left: Int [num_workers], pushes to the chosen one, from the search on.
    waiting: Heap of (finished iterations, worker) that the bound holds up.
    monitored: How many workers still owe monitoring pushes; 0 once the search
      has run.
    barrier: The update that the chosen pushes are summed into, if any was.
    updates: Ids given to updates so far.
    has_barriers: Whether supersteps end at barriers.
  """

  is_state = True  # Plain data: checkpoints hold it.

  has_barriers: ClassVar[bool] = True

  lookahead: int
  monitor_pushes: int
  bound: float
  members: scheme.Members
  clocks: scheme.Clocks
  began: list[float]
  interval_s: list[float]
  left: list[int]
  waiting: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  monitored: int = 0
  barrier: int | None = None
  updates: int = 0

  def start(self, time: float) -> Decision:
    """Releases every worker."""
    return self._superstep(Decision())._replace(barrier=False)

  def push(self, push: Push) -> Decision:
    """Applies the push, or sums it into the barrier's update and stops."""
    worker = push.worker
    self.members.stop(worker)
    self.clocks.tick(worker)
    monitoring = self.monitored > 0
    if not monitoring:
      self.left[worker] -= 1
      if not self.left[worker]:
        return self._stop(push.time)
    heapq.heappush(self.waiting, (self.clocks.finished[worker], worker))
    if monitoring:
      self._observe(worker, push.time)
    update = self._new_update()
    return Decision(
      into=update, commit=(update,), release=self._release(push.time)
    )

  def wake(self, time: float) -> Decision:
    """Nothing to do."""
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    """Stops expecting the worker: that may start the search or the barrier.

    It may also have been the slowest, whom others waited for.  O(num_workers).
    """
    was_running = self.members.leave(worker)
    kept = [entry for entry in self.waiting if entry[1] != worker]
    monitored = was_running or len(kept) < len(self.waiting)
    self.waiting = kept
    heapq.heapify(self.waiting)
    self.clocks.leave(worker)
    if not self.members.running and not self.waiting:
      return self._superstep(Decision())
    owed = self.clocks.finished[worker] < self.monitor_pushes
    if self.monitored and monitored and owed:
      self._monitored_one(time)
    return Decision(release=self._release(time))

  def join(self, worker: int, time: float) -> Decision:
    """Lets the worker wait for the next barrier: now, if nobody runs."""
    self.members.join(worker)
    return Decision() if self.members.running else self._superstep(Decision())

  def _observe(self, worker: int, time: float) -> None:
    pushes = self.clocks.finished[worker]
    if pushes > 1:
      # Rows of the search must increase even if two pushes share one instant.
      shortest_s = 4 * math.ulp(time)
      self.interval_s[worker] = max(time - self.began[worker], shortest_s)
    if pushes == self.monitor_pushes:
      self._monitored_one(time)

  def _monitored_one(self, time: float) -> None:
    self.monitored -= 1
    if self.monitored:
      return
    for _, worker in self.waiting:
      self.began[worker] = time  # Unless the bound holds it up for longer.
    held = {worker for _, worker in self.waiting}
    going_on = [
      worker
      for worker, state in enumerate(self.members.state)
      if state == scheme.RUNNING or worker in held
    ]
    found = zipline.search(self._predicted(going_on))
    for worker, column in zip(going_on, found.iteration, strict=True):
      self.left[worker] = int(column) + 1

  def _predicted(self, workers: Sequence[int]) -> np.ndarray:
    """Returns when each worker's next pushes end, [n, lookahead], seconds.

    Those that could not begin before others make more than `lookahead` pushes
    are infinite: no barrier can be there.
    """
    began = np.array(self.began)[workers]
    interval_s = np.array(self.interval_s)[workers]
    if self.bound == math.inf:
      steps = np.arange(1, self.lookahead + 1)
      return began[:, None] + interval_s[:, None] * steps
    finished = np.array(self.clocks.finished)[workers]
    last = finished + self.lookahead
    ends = np.full((len(workers), self.lookahead), np.inf)
    before, since = began.copy(), finished.copy()
    all_by: dict[float, float] = {}  # When all have made so many pushes.
    for number in range(finished.min() + 1, last.max() + 1):
      own = (finished < number) & (number <= last)
      free = all_by.get(number - 1 - self.bound, -np.inf)
      held = own & (free > before)
      began[held], since[held] = free, number - 1
      after = began + interval_s * (number - since)
      # However long it was held up, and however short its interval is.
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
      self.began[worker] = time
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
    self.monitored = len(release)
    self.clocks = scheme.Clocks(
      finished=[0] * len(self.left), heap=[(0, worker) for worker in release]
    )
    return decision._replace(
      commit=commit, release=release, barrier=bool(release)
    )

  def _new_update(self) -> int:
    self.updates += 1
    return self.updates - 1


def make(
  *,
  num_workers: int,
  lookahead: int,
  monitor_pushes: int,
  bound: float = math.inf,
) -> Elastic:
  """Returns ElasticBSP.

  Args:
    num_workers: Number of workers.
    lookahead: Predicted pushes per worker (R of the paper), at least 1.
    monitor_pushes: Pushes of every worker before a search, at least 2: an
      interval without a wait takes two.
    bound: Largest lead of a running worker since the barrier: a whole number
      >= 0, or infinity.

  Raises:
    ValueError: If an argument is out of range.
  """
  scheme.check_integer('lookahead', lookahead, at_least=1)
  scheme.check_integer('monitor_pushes', monitor_pushes, at_least=2)
  if isinstance(bound, float) and bound.is_integer():
    bound = int(bound)  # Configs hold floats where infinity is allowed.
  if bound != math.inf:
    scheme.check_integer('bound', bound, at_least=0)
  members = scheme.members(num_workers)
  return Elastic(
    lookahead=lookahead,
    monitor_pushes=monitor_pushes,
    bound=bound,
    members=members,
    clocks=scheme.clocks(num_workers),
    began=[0.0] * num_workers,
    interval_s=[0.0] * num_workers,
    left=[0] * num_workers,
  )
