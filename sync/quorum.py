"""Quorum: a round ends with a minimum of contributions and a grace window.

All pushes of a round are summed into one update.  Once `minimum` workers have
pushed, workers that are nearly as fast still have a grace window, whose length
is `grace` times the duration of the round so far: it adapts to the length of
iterations.  The update is applied at the end of the window, or as soon as no
worker is running.  Workers that have pushed then continue; the others are late
and go on with their iteration.

A late push counts once: it is summed into the update of the round in which it
arrives, as stale as it is, or it is dropped (`late`); its worker then continues
with the next round.  An update is the mean of its pushes, weighted by their
numbers of examples.

With `minimum` equal to the number of workers it is BSP, and with 1 and no grace
it is ASP, but that workers that join wait for the end of the round.  Minimum
quorum, grace window and weights by tokens are those of Decoupled DiLoCo (arXiv
2604.21428); the rule for the length of the window is this project's.
"""

import dataclasses

from configs import checks, declared
from sync import scheme
from sync.scheme import Decision, Push


@dataclasses.dataclass
class Quorum:
  """State of the quorum scheme.

  If no worker is running, the next event ends the round at once, also a leave
  or a join.

  Attributes:
    minimum: Number of pushes of a round before it can end, at least 1.
    grace: Length of the grace window as a share of the round before it.
    late: Fate of a late push: 'count' or 'drop'.
    members: State of each worker.
    rounds: Int [num_workers], round in which each worker was last released.
    round: Number of the current round.
    start_s: Start of the round: time of its first release, seconds.
    pushes: Number of pushes in the update of this round.
    update: Id of the update of this round.
    ends_at: End of the grace window, seconds; None before there is a quorum.
  """

  is_state = True  # Plain data: checkpoints hold it.

  minimum: int
  grace: float
  late: str
  members: scheme.Members
  rounds: list[int]
  round: int = 0
  start_s: float = 0.0
  pushes: int = 0
  update: int = 0
  ends_at: float | None = None

  def start(self, time: float) -> Decision:
    self.start_s = time
    return Decision(release=self._release_all())

  def push(self, push: Push) -> Decision:
    self.members.stop(push.worker)
    if self.late == 'drop' and self.rounds[push.worker] < self.round:
      return self._advance(Decision(), push.time)
    self.pushes += 1
    if self.pushes == self.minimum:
      self.ends_at = push.time + self.grace * (push.time - self.start_s)
    return self._advance(Decision(into=self.update), push.time)

  def wake(self, time: float) -> Decision:
    return self._advance(Decision(), time)

  def leave(self, worker: int, time: float) -> Decision:
    self.members.leave(worker)
    return self._advance(Decision(), time)

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    return self._advance(Decision(), time)

  def _advance(self, decision: Decision, time: float) -> Decision:
    """Ends the round if it can end, else asks for a wake at its end."""
    is_over = self.ends_at is not None and time >= self.ends_at
    if self.members.running and not is_over:
      return decision._replace(wake_at=self.ends_at)
    commit = (self.update,) if self.pushes else ()
    self.update += len(commit)
    self.pushes = 0
    self.ends_at = None
    self.round += 1
    self.start_s = time
    return decision._replace(commit=commit, release=self._release_all())

  def _release_all(self) -> tuple[int, ...]:
    """Releases all waiting workers into the current round.  O(num_workers)."""
    released = self.members.release_all()
    for worker in released:
      self.rounds[worker] = self.round
    return released


@declared.check_arguments('sync.quorum')
def make(*, num_workers: int, minimum: int, grace: float, late: str) -> Quorum:
  """Returns the quorum scheme.

  Args:
    minimum: Pushes of a round before it can end, 1 to `num_workers`.
    grace: Length of the grace window as a share of the time from the round's
      start to its quorum; a number of at least 0.
    late: 'count' to sum a late push into the update of the round in which it
      arrives; 'drop' to give its examples back and list it as dropped.

  Raises:
    ValueError: If an argument is out of range.
  """
  members = scheme.make_members(num_workers)
  expected = f'at most {num_workers}, the number of workers'
  checks.require(minimum <= num_workers, 'minimum', expected, minimum)
  return Quorum(
    minimum=minimum,
    grace=grace,
    late=late,
    members=members,
    rounds=[0] * num_workers,
  )
