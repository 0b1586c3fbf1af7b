"""R2SP: workers continue one after another, in a fixed order, evenly spaced.

A worker that has pushed waits for its turn and for the end of the gap since the
last grant: relaxation * T / N for N living workers and an iteration time T.  So
transfers do not collide, and pushes overlap with pulls.  T is an exponential
average over all workers' iterations from grant to push, without waiting.  Chen
et al., 'Round-robin synchronization: mitigating communication bottlenecks in
parameter servers', INFOCOM 2019, where T comes from worker 0 alone.
"""

import dataclasses

from configs import declared
from sync import scheme
from sync.scheme import Decision, Push


@dataclasses.dataclass
class R2sp:
  """State of R2SP.

  All workers are released at the start; turns begin with the first push.  A
  worker that joins is appended to the order and waits for its turn.

  Attributes:
    relaxation: Gap as a share of T / N (r of the paper).
    smoothing: Weight of the newest iteration time in T.
    members: State of each worker.
    order: Living workers in the order of their turns.
    turn: Index into `order` of the worker whose turn it is.
    granted_at: Float [num_workers], time of each worker's last grant, seconds.
    iteration_s: Average iteration time T, seconds; None before the first push.
    last_grant: Time of the last grant, seconds; None before the first.
    updates: Number of updates so far, and the id of the next one.
  """

  is_state = True  # Plain data: checkpoints hold it.

  relaxation: float
  smoothing: float
  members: scheme.Members
  order: list[int]
  granted_at: list[float]
  turn: int = 0
  iteration_s: float | None = None
  last_grant: float | None = None
  updates: int = 0

  def start(self, time: float) -> Decision:
    self.granted_at = [time] * len(self.granted_at)
    return Decision(release=self.members.release_all())

  def push(self, push: Push) -> Decision:
    self.members.stop(push.worker)
    newest_s = push.time - self.granted_at[push.worker]
    if self.iteration_s is None:
      self.iteration_s = newest_s
    self.iteration_s += self.smoothing * (newest_s - self.iteration_s)
    update = self.updates
    self.updates += 1
    return self._grant(Decision(into=update, commit=(update,)), push.time)

  def wake(self, time: float) -> Decision:
    return self._grant(Decision(), time)

  def leave(self, worker: int, time: float) -> Decision:
    self.members.leave(worker)
    place = self.order.index(worker)
    del self.order[place]
    self.turn -= place < self.turn
    self.turn %= max(len(self.order), 1)
    return self._grant(Decision(), time)

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    self.order.append(worker)
    return self._grant(Decision(), time)

  def _grant(self, decision: Decision, time: float) -> Decision:
    released: list[int] = []
    while self._next_waits() and time >= self._next_grant(time):
      worker = self.order[self.turn]
      released += self.members.release((worker,))
      self.granted_at[worker] = self.last_grant = time
      self.turn = (self.turn + 1) % len(self.order)
    return decision._replace(
      release=tuple(sorted(released)),
      wake_at=self._next_grant(time) if self._next_waits() else None,
    )

  def _next_waits(self) -> bool:
    if not self.order:
      return False
    return self.members.state[self.order[self.turn]] == scheme.WAITING

  def _next_grant(self, time: float) -> float:
    """Returns the earliest time of the next grant, by the current T and N."""
    if self.last_grant is None or self.iteration_s is None:
      return time
    gap_s = self.relaxation * self.iteration_s / len(self.order)
    return self.last_grant + gap_s


@declared.check_arguments('sync.r2sp')
def make(*, num_workers: int, relaxation: float, smoothing: float) -> R2sp:
  """Returns R2SP.

  Args:
    relaxation: Gap as a share of T / N, 0..1.
    smoothing: Weight of the newest iteration time in T, above 0, at most 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  return R2sp(
    relaxation=relaxation,
    smoothing=smoothing,
    members=scheme.make_members(num_workers),
    order=list(range(num_workers)),
    granted_at=[0.0] * num_workers,
  )
