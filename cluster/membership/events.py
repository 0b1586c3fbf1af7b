"""Events that the threads of the coordinator pass to its event loop."""

import dataclasses

from cluster.network.loop_streams import LoopStream
from cluster.network.messages import (
  FromReplica,
  FromWorker,
  ReplicaReady,
  WorkerReady,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """Base of all events.

  Attributes:
    at: Time of the event, monotonic seconds; None for the time at which the
      event loop takes it.
  """

  at: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerEvent(Event):
  """Base of events of one incarnation of a worker.

  Attributes:
    worker: Rank of the worker.
    incarnation: Number of the incarnation.
  """

  worker: int
  incarnation: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerJoined(WorkerEvent):
  """A worker that can begin.

  Attributes:
    stream: Control stream to its process.
    ready: Its report.
  """

  stream: LoopStream
  ready: WorkerReady | ReplicaReady


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerLost(WorkerEvent):
  """The end of a worker's incarnation.

  Attributes:
    reason: Text for logs.
  """

  reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerDraining(WorkerEvent):
  """The wish of a worker to leave, as its process has got SIGTERM."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerMessage(WorkerEvent):
  """Another message of a worker.

  Attributes:
    message: The message.
  """

  message: FromWorker | FromReplica


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFailed(Event):
  """A failure after which the run cannot continue.

  Attributes:
    reason: Text for logs.
    cause: Exception behind it; None for none.
  """

  reason: str
  cause: BaseException | None = None
