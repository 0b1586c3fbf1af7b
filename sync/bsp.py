"""Bulk-synchronous parallel: one update per superstep, summed over all workers.

Valiant, 'A bridging model for parallel computation', 1990.  The time of a
superstep depends on the route: see `route.server`.
"""

import dataclasses
from typing import ClassVar

from sync import scheme
from sync.scheme import Decision, Push


@dataclasses.dataclass
class Bsp:
  """State of BSP.

  The last push of a superstep applies its update and releases all workers; so
  does a leave after which no worker is running.  A worker that joins waits for
  the barrier, unless none is running.

  Attributes:
    members: State of each worker.  A superstep ends when none is running.
    update: Id of the update that pushes of this superstep are summed into.
    pushes: Number of pushes in this superstep.
  """

  is_state = True  # Plain data: checkpoints hold it.

  has_barriers: ClassVar[bool] = True
  is_synchronous: ClassVar[bool] = True
  members: scheme.Members
  update: int = 0
  pushes: int = 0

  def start(self, time: float) -> Decision:
    return Decision(release=self.members.release_all())

  def push(self, push: Push) -> Decision:
    self.members.stop(push.worker)
    self.pushes += 1
    decision = Decision(into=self.update)
    return decision if self.members.running else self._barrier(decision)

  def wake(self, time: float) -> Decision:
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    was_running = self.members.leave(worker)
    if was_running and not self.members.running:
      return self._barrier(Decision())
    return Decision()

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    return Decision() if self.members.running else self._barrier(Decision())

  def _barrier(self, decision: Decision) -> Decision:
    commit = (self.update,) if self.pushes else ()
    self.update += 1
    self.pushes = 0
    release = self.members.release_all()
    return decision._replace(
      commit=commit, release=release, barrier=bool(release)
    )


def make(*, num_workers: int) -> Bsp:
  """Returns BSP for `num_workers` workers."""
  return Bsp(members=scheme.make_members(num_workers))
