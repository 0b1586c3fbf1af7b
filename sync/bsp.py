"""Bulk-synchronous parallel: one update per superstep, summed over all workers.

Valiant, 'A bridging model for parallel computation', 1990.  As published, no
byte of a pull is sent before the barrier: with N workers, S bytes and one
server of B bytes/s, a superstep costs C + 2NS/B.  Pipelined, servers sum and
serve each chunk as soon as all workers have pushed it, which costs about
C + NS/B.  The decisions are the same, and so are the parameters: it is the
runtime that overlaps pushes and pulls.
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
    pipelined: Whether the runtime serves chunks before the barrier.
    barriers: Whether supersteps end at barriers.
  """

  barriers: ClassVar[bool] = True
  members: scheme.Members
  update: int = 0
  pushes: int = 0
  pipelined: bool = False

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


def make(*, num_workers: int, pipelined: bool = False) -> Bsp:
  """Returns BSP for `num_workers` workers, as published or pipelined."""
  return Bsp(members=scheme.members(num_workers), pipelined=pipelined)
