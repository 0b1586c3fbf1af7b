"""Control streams of an allreduce run, and events of the coordinator's replica.

The replica in the coordinator's process reports each iteration by an event,
without a message.  Other events: see `cluster.membership.events` and
`cluster.probing.events`.
"""

import dataclasses
from collections.abc import Collection, Sequence

from cluster.membership.admission import Reception
from cluster.membership.events import Event
from cluster.network import messages


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

  def _find_succeeded(self, index: int) -> int | None:
    if self.succeeded and index in self.succeeded[1]:
      return self.succeeded[0]
    return None
