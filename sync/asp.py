"""Asynchronous parallel: every push is an update, and nobody ever waits."""

import dataclasses

from sync import scheme
from sync.scheme import Push, Verdict


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

  def start(self, time: float) -> Verdict:
    """Releases every worker."""
    return Verdict(release=self.members.release_all())

  def push(self, push: Push) -> Verdict:
    """Applies the push and lets its worker go on."""
    self.members.stop(push.worker)
    update = self.updates
    self.updates += 1
    return Verdict(
      into=update,
      commit=(update,),
      release=self.members.release((push.worker,)),
    )

  def wake(self, time: float) -> Verdict:
    """Nothing to do."""
    return Verdict()

  def leave(self, worker: int, time: float) -> Verdict:
    """Forgets the worker; nobody waited for it."""
    self.members.leave(worker)
    return Verdict()

  def join(self, worker: int, time: float) -> Verdict:
    """Lets the worker start at once."""
    self.members.join(worker)
    return Verdict(release=self.members.release((worker,)))


def make(*, num_workers: int) -> Asp:
  """Returns ASP for `num_workers` workers."""
  return Asp(members=scheme.members(num_workers))
