"""Control streams of an allreduce run, and events of the coordinator's replica.

The replica in the coordinator's process reports each iteration by an event,
without a message.  Other events: see `cluster.membership.events` and
`cluster.probing.events`.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from cluster.membership.admission import Reception
from cluster.membership.events import Event
from cluster.membership.members import Incarnation
from cluster.membership.worker_states import PartRequests, ResidualId
from cluster.network import messages
from system import threads


@dataclasses.dataclass(frozen=True, kw_only=True)
class IterationCompleted(Event):
  """An iteration that the coordinator's replica has applied.

  Attributes:
    version: Version before the iteration.
    statistics: Its step statistics, summed over the members.
  """

  version: int
  statistics: Sequence[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualsCollected(Event):
  """The residuals of all replicas have been summed, for a checkpoint.

  Attributes:
    version: Version of the replicas.
  """

  version: int


class AllreduceReception(Reception):
  """The coordinator's control streams to all replicas.

  Attributes:
    succeeded: Term that the coordinator succeeds, and members of its last
      epoch; None once it has begun an epoch.
  """

  _schema = messages.FROM_REPLICA
  succeeded: tuple[int, Collection[int]] | None = None

  def __init__(self, **arguments: Any):
    """Creates a reception that does not listen yet: see `Reception`."""
    super().__init__(**arguments)
    self._parts = PartRequests()

  def save_state(
    self, index: int, step: int, state: ResidualId
  ) -> threads.Future[bool]:
    """Requests a worker's part of a checkpoint: see `PartRequests`."""
    return self._parts.request(index, self.members[index], step, state)

  def _take_message(
    self,
    incarnation: Incarnation,
    message: messages.FromWorker | messages.FromReplica,
  ) -> None:
    if isinstance(message, messages.ResidualSaved):
      self._parts.answer(incarnation.index, incarnation.number, message)
    else:
      super()._take_message(incarnation, message)

  def _on_incarnation_end(self, index: int, number: int) -> None:
    super()._on_incarnation_end(index, number)
    self._parts.end(index, number)

  def _find_succeeded(self, index: int) -> int | None:
    if self.succeeded and index in self.succeeded[1]:
      return self.succeeded[0]
    return None
