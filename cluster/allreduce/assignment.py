"""Assignment of examples to workers, by iteration, from the coordinator."""

import time
from collections.abc import Callable, Sequence

from cluster.coordinator import Coordinator
from cluster.network.messages import Assignment


class Dealing:
  """Deals iterations, this one and perhaps the next.

  Attributes:
    newest: The highest version whose iteration is dealt in this generation.
  """

  def __init__(
    self,
    coordinator: Coordinator,
    say: Callable[[int, Assignment], None],
  ):
    """Creates a dealer that has assigned nothing yet.

    Args:
      coordinator: Knows the examples.
      say: Tells a worker.
    """
    self._coordinator, self._say = coordinator, say
    self.newest = -1
    self._at: dict[int, tuple[float, int]] = {}

  def begin(self, version: int) -> None:
    """A generation begins, in which nothing is dealt before this version."""
    self.newest = version - 1
    self._at.clear()

  def at(self, version: int) -> tuple[float, int]:
    """Returns when an iteration was dealt, monotonic seconds, and its stage.

    Once for each.
    """
    return self._at.pop(version)

  def send(self, generation: int, version: int, members: Sequence[int]) -> None:
    """Deals the iteration that follows a version.

    Args:
      generation: Of the members.
      version: The coordinator's, or the next.
      members: Who takes part.
    """
    workers = self._coordinator.workers
    ahead = version > self._coordinator.store.version
    ranges = {
      k: workers[k].ahead if ahead else workers[k].ranges for k in members
    }
    sizes = {k: sum(end - start for start, end in ranges[k]) for k in members}
    now, stage = time.monotonic(), self._coordinator.stage()
    self.newest, self._at[version] = version, (now, stage)
    for index in members:
      self._say(
        index,
        Assignment(
          epoch=generation,
          version=version,
          iteration=workers[index].iteration + ahead,
          ranges=ranges[index],
          examples=sizes[index],
          total=sum(sizes.values()),
          members=members,
          stage=stage,
          assigned_at=now,
        ),
      )
