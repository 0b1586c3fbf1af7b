"""Bulk-synchronous parallel: one update per superstep, summed over all workers.

Valiant, 'A bridging model for parallel computation', 1990.  What a superstep
costs depends on the route: see `route.server`.
"""

import dataclasses
from typing import ClassVar

from sync import scheme
from sync.scheme import Push, Verdict


@dataclasses.dataclass
class Bsp:
  """State of BSP.

  Attributes:
    members: Who lives.  A superstep ends when nobody runs any more.
    update: The update that pushes of this superstep are summed into.
    pushes: How many have been.
    barriers: Supersteps end at barriers.
    together: Every release is of all, after one update.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barriers: ClassVar[bool] = True
  together: ClassVar[bool] = True
  members: scheme.Members
  update: int = 0
  pushes: int = 0

  def start(self, time: float) -> Verdict:
    """Releases every worker."""
    return Verdict(release=self.members.release_all())

  def push(self, push: Push) -> Verdict:
    """Sums the push; the last one of a superstep ends it."""
    self.members.stop(push.worker)
    self.pushes += 1
    verdict = Verdict(into=self.update)
    return verdict if self.members.running else self._barrier(verdict)

  def wake(self, time: float) -> Verdict:
    """Nothing to do."""
    return Verdict()

  def leave(self, worker: int, time: float) -> Verdict:
    """Stops expecting the worker, which may end the superstep."""
    was_running = self.members.leave(worker)
    if was_running and not self.members.running:
      return self._barrier(Verdict())
    return Verdict()

  def join(self, worker: int, time: float) -> Verdict:
    """Lets the worker wait for the next barrier: now, if nobody runs."""
    self.members.join(worker)
    return Verdict() if self.members.running else self._barrier(Verdict())

  def _barrier(self, verdict: Verdict) -> Verdict:
    commit = (self.update,) if self.pushes else ()
    self.update += 1
    self.pushes = 0
    release = self.members.release_all()
    return verdict._replace(
      commit=commit, release=release, barrier=bool(release)
    )


def make(*, num_workers: int) -> Bsp:
  """Returns BSP for `num_workers` workers."""
  return Bsp(members=scheme.members(num_workers))
