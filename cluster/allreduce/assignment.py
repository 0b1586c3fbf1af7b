"""Assignment of examples to the members, one iteration after the other."""

from collections.abc import Callable, Sequence

from cluster.coordinator import Coordinator
from cluster.membership.worker_states import ResidualId
from cluster.network.messages import Assignment
from system import clock


class IterationAssigner:
  """Sends members their examples: of this iteration, and perhaps of the next.

  Attributes:
    newest: Highest version whose iteration is assigned in this membership
      epoch.
    term: Term of the coordinator, which assignments carry.
  """

  def __init__(
    self,
    coordinator: Coordinator,
    send: Callable[[int, Assignment], None],
    find_state: Callable[[int], ResidualId] = lambda index: ResidualId(),
  ):
    """Creates an assigner that has assigned nothing yet.

    Args:
      coordinator: Source of each worker's examples.
      send: Sends a message to a worker.
      find_state: Returns the state of a worker after its last iteration that
        counted.
    """
    self._find_state = find_state
    self._coordinator, self._send = coordinator, send
    self.newest = -1
    self.term = 0
    self._assigned: dict[int, tuple[float, int]] = {}

  def begin(self, version: int) -> None:
    """Begins a membership epoch whose first iteration has this version."""
    self.newest = version - 1
    self._assigned.clear()

  def inherit(self, version: int, assigned_at: float, stage: int) -> None:
    """Records an iteration that another coordinator has assigned.

    Args:
      version: Version of the iteration.
      assigned_at: When it was assigned, monotonic seconds of this process.
      stage: Stage of the codec in it.
    """
    self._assigned[version] = assigned_at, stage

  def pop_assigned(self, version: int) -> tuple[float, int]:
    """Returns when an iteration was assigned, monotonic s, and its stage.

    Can be called once for each iteration.
    """
    return self._assigned.pop(version)

  def assign(
    self, membership_epoch: int, version: int, members: Sequence[int]
  ) -> None:
    """Assigns the iteration that follows a version.

    Args:
      membership_epoch: Number of the membership epoch.
      version: Version of the coordinator, or the next.
      members: Workers that take part.
    """
    workers = self._coordinator.workers
    ahead = version > self._coordinator.store.version
    ranges = {
      k: workers[k].ahead if ahead else workers[k].ranges for k in members
    }
    sizes = {k: sum(end - start for start, end in ranges[k]) for k in members}
    total = sum(sizes.values())
    now, stage = clock.monotonic(), self._coordinator.find_stage()
    self.newest, self._assigned[version] = version, (now, stage)
    for index in members:
      assignment = Assignment(
        membership_epoch=membership_epoch,
        version=version,
        iteration=workers[index].iteration + ahead,
        ranges=ranges[index],
        examples=sizes[index],
        total=total,
        members=members,
        stage=stage,
        assigned_at=now,
        term=self.term,
        # Assigned ahead, an iteration is void unless this one counts.
        state=ResidualId(workers[index].iteration)
        if ahead
        else self._find_state(index),
      )
      self._send(index, assignment)
