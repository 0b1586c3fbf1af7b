"""Asynchronous parallel: every push is an update, and no worker ever waits.

With a grace window workers that push close together are merged: sync/grace.py.
"""

import dataclasses

from sync import grace, scheme
from sync.scheme import Decision, Push, Scheme


@dataclasses.dataclass
class Asp:
  """State of ASP.  A worker that joins is released at once.

  Attributes:
    members: State of each worker.
    updates: Number of updates so far, and the id of the next one.
  """

  is_state = True  # Plain data: checkpoints hold it.

  members: scheme.Members
  updates: int = 0

  def start(self, time: float) -> Decision:
    return Decision(release=self.members.release_all())

  def push(self, push: Push) -> Decision:
    self.members.stop(push.worker)
    update = self.updates
    self.updates += 1
    return Decision(
      into=update,
      commit=(update,),
      release=self.members.release((push.worker,)),
    )

  def wake(self, time: float) -> Decision:
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    self.members.leave(worker)
    return Decision()

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    return Decision(release=self.members.release((worker,)))


def make(*, num_workers: int, grace_s: float = 0.0) -> Scheme:
  """Returns ASP for `num_workers` workers.

  Args:
    grace_s: Seconds in which pushes are merged into one update; 0 for none.

  Raises:
    ValueError: If an argument is out of range.
  """
  asp = Asp(members=scheme.make_members(num_workers))
  return grace.merge(asp, grace_s=grace_s)
