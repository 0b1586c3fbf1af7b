"""Stale-synchronous parallel: a worker's lead is bounded.

A worker may continue while it has finished at most `bound` iterations more than
the slowest living worker.  Bound 0 gives the displacement of BSP, an infinite
bound is ASP.  Ho et al., 'More effective distributed ML via a stale synchronous
parallel parameter server', NIPS 2013.
"""

import dataclasses
import heapq
import math

from configs import declared
from sync import grace, scheme
from sync.scheme import Decision, Push, Scheme


@dataclasses.dataclass
class Ssp:
  """State of SSP.

  A worker that joins is released at once, with as many finished iterations as
  the slowest worker.  `leave` is O(n).

  Attributes:
    bound: Largest lead of a running worker, iterations; may be infinite.
    members: State of each worker.
    clocks: Numbers of finished iterations.
    waiting: Heap of (finished iterations, worker), the workers that wait.
    updates: Number of updates so far, and the id of the next one.
  """

  is_state = True  # Plain data: checkpoints hold it.

  bound: float
  members: scheme.Members
  clocks: scheme.Clocks
  waiting: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  updates: int = 0

  def start(self, time: float) -> Decision:
    return Decision(release=self.members.release_all())

  def push(self, push: Push) -> Decision:
    self.members.stop(push.worker)
    self.clocks.tick(push.worker)
    heapq.heappush(
      self.waiting, (self.clocks.finished[push.worker], push.worker)
    )
    update = self.updates
    self.updates += 1
    return Decision(into=update, commit=(update,), release=self._release())

  def wake(self, time: float) -> Decision:
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    self.members.leave(worker)
    self.clocks.leave(worker)
    self.waiting = [entry for entry in self.waiting if entry[1] != worker]
    heapq.heapify(self.waiting)
    return Decision(release=self._release())

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    self.clocks.join(worker)
    return Decision(release=self.members.release((worker,)))

  def _release(self) -> tuple[int, ...]:
    if not self.waiting:
      return ()
    highest = self.clocks.slowest()[0] + self.bound
    return self.members.release(scheme.pop_within(self.waiting, highest))


def make(*, num_workers: int, bound: float, grace_s: float = 0.0) -> Scheme:
  """Returns SSP.

  Args:
    bound: Largest lead of a running worker: an integer >= 0, or infinity.
    grace_s: Seconds in which pushes are merged into one update; 0 for none.

  Raises:
    ValueError: If an argument is out of range.
  """
  if bound != math.inf:
    declared.check('sync.ssp', bound=bound)
  ssp = Ssp(
    bound=bound,
    members=scheme.make_members(num_workers),
    clocks=scheme.make_clocks(num_workers),
  )
  return grace.merge(ssp, grace_s=grace_s)
