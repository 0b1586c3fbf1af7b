"""The coordinator's (coordinator's) record of worker and server processes.

A rank is the place of one worker or server in the run.  Each admission of a
process to a rank starts a session with a new incarnation number.
"""

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.network.streams import Stream, TransportError
from cluster.process.deadlines import Seen
from cluster.process.exits import Unmendable


@dataclasses.dataclass(eq=False)
class Incarnation:
  """A session: one admission of a process as a worker or a server.

  Attributes:
    stream: Control stream between its process and the coordinator.
    index: Number of the worker or server.
    process: Random identity of the process.
    life: Incarnation number: how many admissions to the rank came before.
    seen: Time of the last message, monotonic seconds.
    closed: Set once the stream has ended.
    told: Whether the worker was sent the addresses of the servers.
    began: Time of the admission, monotonic seconds.
    ready: Whether the worker has reported that it can begin.
    accelerator: Whether the worker has reported that it computes on one.
    evicted: Reason for which its messages are ignored; '' while they count.
  """

  stream: Stream
  index: int
  process: str
  life: int
  seen: float = dataclasses.field(default_factory=time.monotonic)
  closed: threading.Event = dataclasses.field(default_factory=threading.Event)
  told: bool = False
  began: float = dataclasses.field(default_factory=time.monotonic)
  ready: bool = False
  accelerator: bool = False
  evicted: str = ''


@dataclasses.dataclass
class Rank:
  """The place of one worker or server, which one process holds at a time.

  Attributes:
    lives: Number of admissions so far, which is the next incarnation number.
    holder: Session of the process that holds the rank; None before the first,
      and once the stream of the last has ended or its process was evicted.
    final: Whether no other process may take the rank from the holder, even if
      the holder is silent.
  """

  lives: int = 0
  holder: Incarnation | None = None
  final: bool = False

  def blocks(self, process: str, now: float, timeout_s: float) -> bool:
    """Returns whether the holder keeps a process from taking the rank.

    It does if it is another process that is not silent, or if the rank is
    final.

    Args:
      process: Identity of the process that wants the rank.
      now: Monotonic seconds.
      timeout_s: Silence after which a process counts as lost.
    """
    holder = self.holder
    return (
      holder is not None
      and holder.process != process
      and (self.final or now - holder.seen <= timeout_s)
    )


@dataclasses.dataclass
class Member(Rank):
  """A worker, as the coordinator knows it.

  Attributes:
    life: Number of the incarnation that takes part, or did so last; -1 before
      the first.
    stream: Control stream of the incarnation that takes part; None if none
      does.
    seen: Time of that incarnation's last heartbeat, monotonic seconds.
    arrived: Number of servers that have received its current push.
    counted: Last iteration whose push all servers have received; None if
      there was none.
    pace: Its progress.
    devices: Kinds of the devices on which it computes gradients.
    compilations: Number of XLA compilations after warm-up, by incarnation.
  """

  life: int = -1
  stream: Stream | None = None
  seen: float = 0.0
  arrived: int = 0
  counted: int | None = None
  pace: Seen = dataclasses.field(default_factory=Seen)
  devices: Sequence[str] = ()
  compilations: dict[int, int] = dataclasses.field(default_factory=dict)


class RemoteServer:
  """A parameter server in another process than the coordinator's.

  Attributes:
    visit: Session of its process.
    stream: Control stream to its process.
    address: 'IPv4 address:port' that workers connect to; '' before the server
      has reported it.
    doing: Progress of its orders, from its last heartbeat: see `Server.doing`.
  """

  def __init__(self, visit: Incarnation):
    """Creates the record of a server that has just been admitted.

    Args:
      visit: Session of its process.
    """
    self.visit, self.stream = visit, visit.stream
    self.address = ''
    self.doing: Mapping[str, Any] = {'obeyed': 0, 'order': ''}

  def order(self, sequence: int, orders: list[list[Any]]) -> None:
    """Sends orders, which the server executes in the order of their numbers.

    Args:
      sequence: Number of these orders, higher by one than the last.
      orders: The orders: see `Server.order`.

    Raises:
      Unmendable: If the server cannot be reached.
    """
    try:
      self.stream.send({'sequence': sequence, 'orders': orders})
    except TransportError as error:
      raise Unmendable(f'The server at {self.address}: {error}') from error
