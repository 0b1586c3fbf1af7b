"""Events that the threads of the coordinator pass to its event loop."""

import collections
import dataclasses

from cluster.network.loop_streams import LoopStream
from cluster.network.messages import (
  FromReplica,
  FromWorker,
  ReplicaReady,
  WorkerReady,
)
from system import threads

# Events of one worker that wait for the event loop.  A worker sends one or two
# messages a second, and the loop waits for hundreds of seconds at most.
MOST_WAITING = 2**12


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


class EventQueue:
  """Events that wait for the event loop; for any thread.

  Each worker may have a limited number of waiting events: `is_full`.
  """

  def __init__(self) -> None:
    """Creates an empty queue."""
    self._events: threads.SimpleQueue[Event] = threads.SimpleQueue()
    self._lock = threads.Lock()
    self._waiting: collections.Counter[int] = collections.Counter()

  def put(self, event: Event) -> None:
    """Adds an event."""
    if isinstance(event, WorkerEvent):
      with self._lock:
        self._waiting[event.worker] += 1
    self._events.put(event)

  def get(self, timeout: float | None = None) -> Event:
    """Waits for the oldest event, and removes it.

    Raises:
      threads.Empty: If there is none within `timeout` seconds.
    """
    event = self._events.get(timeout=timeout)
    if isinstance(event, WorkerEvent):
      with self._lock:
        self._waiting[event.worker] -= 1
    return event

  def empty(self) -> bool:
    """Returns whether no event waits."""
    return self._events.empty()

  def qsize(self) -> int:
    """Returns how many events wait."""
    return self._events.qsize()

  def is_full(self, worker: int) -> bool:
    """Returns whether no further event of a worker should be added."""
    with self._lock:
      return self._waiting[worker] >= MOST_WAITING


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFailed(Event):
  """A failure after which the run cannot continue.

  Attributes:
    reason: Text for logs.
    cause: Exception behind it; None for none.
  """

  reason: str
  cause: BaseException | None = None
