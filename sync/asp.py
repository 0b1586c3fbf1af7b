"""Asynchronous parallel: every push is an update, and nobody ever waits."""

import dataclasses

from sync import scheme
from sync.scheme import Decision, Push


@dataclasses.dataclass
class Asp:
  """State of ASP.

  Attributes:
    members: Who lives.
    updates: Updates so far; the next one's id.
  """

  is_state = True  # Plain data: checkpoints hold it.

  members: scheme.Members
  updates: int = 0

  def start(self, time: float) -> Decision:
    """Releases every worker."""
    return Decision(release=self.members.release_all())

  def push(self, push: Push) -> Decision:
    """Applies the push and lets its worker go on."""
    self.members.stop(push.worker)
    update = self.updates
    self.updates += 1
    return Decision(
      into=update,
      commit=(update,),
      release=self.members.release((push.worker,)),
    )

  def wake(self, time: float) -> Decision:
    """Nothing to do."""
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    """Forgets the worker; nobody waited for it."""
    self.members.leave(worker)
    return Decision()

  def join(self, worker: int, time: float) -> Decision:
    """Lets the worker start at once."""
    self.members.join(worker)
    return Decision(release=self.members.release((worker,)))


def make(*, num_workers: int) -> Asp:
  """Returns ASP for `num_workers` workers."""
  return Asp(members=scheme.members(num_workers))
