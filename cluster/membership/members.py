"""Records of worker and server processes, for the coordinator.

A rank is the place of one worker or server in the run.  Each admission of a
process to a rank is an incarnation, which has a number.
"""

import dataclasses
from collections.abc import Sequence

from cluster.network.loop_streams import LoopStream
from cluster.network.messages import (
  AcceptWorker,
  Order,
  OrderProgress,
  Orders,
  ServerWork,
)
from cluster.process.deadlines import ReceivedProgress
from system import clock, threads


@dataclasses.dataclass(eq=False)
class Incarnation:
  """An incarnation: one admission of a process as a worker or a server.

  Attributes:
    stream: Control stream between its process and the coordinator.
    index: Number of the worker or server.
    process: Random identity of the process.
    number: Number of admissions to the rank before this one.
    last_heartbeat: Time of the last message, monotonic seconds.
    closed: Set once the stream has ended.
    unconfirmed: Servers that have not answered yet that they accept the worker;
      None before they were told.
    has_addresses: Whether the worker was sent the addresses of the servers.
    began: Time of the admission, monotonic seconds.
    is_ready: Whether the worker has reported that it can begin.
    has_accelerator: Whether the worker has reported that it can evaluate on an
      accelerator.
    is_draining: Whether the worker has reported that it wants to leave.
    address: Address at which its process can be reached; '' if unknown.
    evicted: Reason for which its messages are ignored; '' while they count.
  """

  stream: LoopStream
  index: int
  process: str
  number: int
  last_heartbeat: float = dataclasses.field(default_factory=clock.monotonic)
  closed: threads.Event = dataclasses.field(
    default_factory=lambda: threads.Event()
  )
  unconfirmed: set[int] | None = None
  has_addresses: bool = False
  began: float = dataclasses.field(default_factory=clock.monotonic)
  is_ready: bool = False
  has_accelerator: bool = False
  is_draining: bool = False
  address: str = ''
  evicted: str = ''


@dataclasses.dataclass
class Rank:
  """A rank of the run: one process at a time holds it, as worker or server.

  Attributes:
    admissions: Number of admissions so far, the number of the next incarnation.
    holder: Incarnation that holds the rank; None before the first,
      and once the stream of the last has ended or its process was evicted.
    final: Whether no other process may take the rank from the holder, even if
      the holder is silent.
  """

  admissions: int = 0
  holder: Incarnation | None = None
  final: bool = False

  def blocks(self, process: str, now: float, timeout_s: float) -> bool:
    """Returns whether the holder keeps a process from taking the rank.

    It does if it is another process that is not silent, or if the rank is
    final.

    Args:
      process: Identity of the process that asks for the rank.
      now: Monotonic seconds.
      timeout_s: Silence after which a process counts as lost.
    """
    holder = self.holder
    return (
      holder is not None
      and holder.process != process
      and (self.final or now - holder.last_heartbeat <= timeout_s)
    )


@dataclasses.dataclass
class Member(Rank):
  """A worker, as the coordinator knows it.

  Attributes:
    incarnation: Number of the incarnation that takes part, or did so last; -1
      before the first.
    stream: Control stream of the incarnation that takes part; None if none
      does.
    last_heartbeat: Time of that incarnation's last heartbeat, monotonic
      seconds.
    arrived: Servers that have received its current push.
    counted: Last iteration whose push all servers have received, or that an
      allreduce has summed; None if there was none.
    has_lost_state: Whether its inner optimizer's state is listed as lost, and
      its next process may still have it.
    is_late: Whether it has joined after the start, and not pushed since.
    awaits_state: Whether its next push shows if it still has the state, other
      than zero, from which it continues.
    progress: Its progress, as its heartbeats carry it.
    devices: Kinds of the devices on which it computes gradients.
    compilations: Number of XLA compilations after warm-up, by incarnation.
  """

  incarnation: int = -1
  stream: LoopStream | None = None
  last_heartbeat: float = 0.0
  arrived: set[int] = dataclasses.field(default_factory=set)
  counted: int | None = None
  has_lost_state: bool = False
  is_late: bool = False
  awaits_state: bool = False
  progress: ReceivedProgress = dataclasses.field(
    default_factory=ReceivedProgress
  )
  devices: Sequence[str] = ()
  compilations: dict[int, int] = dataclasses.field(default_factory=dict)

  @property
  def host(self) -> str:
    """Address of its host, as the coordinator sees it; '' without a process."""
    return self.holder.stream.peer.rpartition(':')[0] if self.holder else ''


class RemoteServer:
  """A parameter server in another process than the coordinator's.

  Attributes:
    incarnation: Incarnation of its process.
    stream: Control stream to its process.
    address: 'address:port' that workers connect to; '' before the server
      has reported it.
    left: Updates and examples that it had applied before it returned to a
      mirror; None if it has not.
    work: Its work, which it has measured; None if it has not.
    progress: Progress of its orders, from its last heartbeat.
  """

  def __init__(self, incarnation: Incarnation):
    """Creates the record of a server that has just been admitted.

    Args:
      incarnation: Incarnation of its process.
    """
    self.incarnation, self.stream = incarnation, incarnation.stream
    self.address = ''
    self.left: tuple[int, int] | None = None
    self.work: ServerWork | None = None
    self.progress = OrderProgress()

  def accept(self, order: AcceptWorker) -> None:
    """Orders the server to accept the stream of a worker; it answers."""
    self.stream.send(order)

  def order(self, sequence: int, orders: Sequence[Order]) -> None:
    """Sends orders, which the server executes in the order of their numbers.

    Args:
      sequence: Number of these orders, higher by one than the last.
      orders: The orders.
    """
    self.stream.send(Orders(sequence, orders))
