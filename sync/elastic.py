"""ElasticBSP: predict when iterations end, put the barrier where it is cheap.

A superstep has two parts.  While it monitors, every push is an update of its
own and its worker goes on.  When the last worker has made `monitor_pushes`
pushes, each worker's next `lookahead` pushes are predicted by repeating its
last interval, and ZipLine picks one of them per worker so that the first to
stop waits least for the last.  Pushes before a worker's chosen one still are
updates of their own; the chosen ones are summed into one update, the barrier.
Zhao et al., 'Elastic bulk synchronous parallel model for distributed deep
learning', ICDM 2019.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from sync import scheme, zipline
from sync.scheme import Push, Verdict


@dataclasses.dataclass
class Elastic:
  """State of ElasticBSP.

  Attributes:
    lookahead: Predicted pushes per worker.
    monitor_pushes: Pushes of every worker before a search, at least 2.
    members: Who lives; a superstep ends when nobody runs any more.
    pushes: Int [num_workers], since the barrier.
    last_push: Float [num_workers], seconds.
    interval_s: Float [num_workers], between the last two pushes of a worker
      that it did not wait between.
    monitored: How many running workers still owe monitoring pushes; 0 once the
      search has run.
    left: Int [num_workers], pushes to the chosen one, from the search on.
    barrier: The update that the chosen pushes are summed into, if any was.
    updates: Ids given to updates so far.
    barriers: Whether supersteps end at barriers.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barriers: ClassVar[bool] = True

  lookahead: int
  monitor_pushes: int
  members: scheme.Members
  pushes: list[int]
  last_push: list[float]
  interval_s: list[float]
  left: list[int]
  monitored: int = 0
  barrier: int | None = None
  updates: int = 0

  def start(self, time: float) -> Verdict:
    """Releases every worker."""
    return self._superstep(Verdict())._replace(barrier=False)

  def push(self, push: Push) -> Verdict:
    """Applies the push, or sums it into the barrier's update and stops."""
    worker = push.worker
    self.members.stop(worker)
    if self.monitored:
      self._observe(worker, push.time)
    else:
      self.left[worker] -= 1
      if not self.left[worker]:
        return self._stop()
    update = self._new_update()
    return Verdict(
      into=update,
      commit=(update,),
      release=self.members.release((worker,)),
    )

  def wake(self, time: float) -> Verdict:
    """Nothing to do."""
    return Verdict()

  def leave(self, worker: int, time: float) -> Verdict:
    """Stops expecting the worker: that may start the search or the barrier."""
    was_running = self.members.leave(worker)
    if not was_running:
      return Verdict()
    if not self.members.running:
      return self._superstep(Verdict())
    if self.monitored and self.pushes[worker] < self.monitor_pushes:
      self._monitored_one()
    return Verdict()

  def join(self, worker: int, time: float) -> Verdict:
    """Lets the worker wait for the next barrier: now, if nobody runs."""
    self.members.join(worker)
    return Verdict() if self.members.running else self._superstep(Verdict())

  def _observe(self, worker: int, time: float) -> None:
    self.pushes[worker] += 1
    if self.pushes[worker] > 1:
      # Rows of the search must increase even if two pushes share one instant.
      shortest_s = 4 * float(np.spacing(time))
      self.interval_s[worker] = max(time - self.last_push[worker], shortest_s)
    self.last_push[worker] = time
    if self.pushes[worker] == self.monitor_pushes:
      self._monitored_one(pushing=worker)

  def _monitored_one(self, pushing: int | None = None) -> None:
    self.monitored -= 1
    if self.monitored:
      return
    going_on = [
      worker
      for worker, state in enumerate(self.members.state)
      if state == scheme.RUNNING or worker == pushing
    ]
    last_push = np.array(self.last_push)[going_on]
    interval_s = np.array(self.interval_s)[going_on]
    steps = np.arange(1, self.lookahead + 1)
    found = zipline.search(last_push[:, None] + interval_s[:, None] * steps)
    for worker, column in zip(going_on, found.iteration, strict=True):
      self.left[worker] = int(column) + 1

  def _stop(self) -> Verdict:
    if self.barrier is None:
      self.barrier = self._new_update()
    verdict = Verdict(into=self.barrier)
    return verdict if self.members.running else self._superstep(verdict)

  def _superstep(self, verdict: Verdict) -> Verdict:
    """Ends a superstep and starts the next: O(num_workers)."""
    commit = () if self.barrier is None else (self.barrier,)
    release = self.members.release_all()
    self.barrier = None
    self.monitored = len(release)
    self.pushes = [0] * len(self.pushes)
    return verdict._replace(
      commit=commit, release=release, barrier=bool(release)
    )

  def _new_update(self) -> int:
    self.updates += 1
    return self.updates - 1


def make(*, num_workers: int, lookahead: int, monitor_pushes: int) -> Elastic:
  """Returns ElasticBSP.

  Args:
    num_workers: Number of workers.
    lookahead: Predicted pushes per worker (R of the paper), at least 1.
    monitor_pushes: Pushes of every worker before a search, at least 2: an
      interval without a wait takes two.

  Raises:
    ValueError: If an argument is out of range.
  """
  scheme.check_integer('lookahead', lookahead, at_least=1)
  scheme.check_integer('monitor_pushes', monitor_pushes, at_least=2)
  members = scheme.members(num_workers)
  return Elastic(
    lookahead=lookahead,
    monitor_pushes=monitor_pushes,
    members=members,
    pushes=[0] * num_workers,
    last_push=[0.0] * num_workers,
    interval_s=[0.0] * num_workers,
    left=[0] * num_workers,
  )
