"""Membership of an allreduce run, and the events of its coordinator.

Beside the events of `cluster.membership.events`, the worker in the process of
the coordinator reports its iterations, without a message.
"""

import dataclasses
from collections.abc import Sequence

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
  """The coordinator's control streams to all replicas."""

  _schema = messages.FROM_REPLICA
