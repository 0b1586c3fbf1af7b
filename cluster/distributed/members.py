"""Workers and servers of other processes, as the lead sees them."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

from cluster.distributed.pace import Seen
from cluster.transport.heart import Unmendable
from cluster.transport.streams import Stream, TransportError


@dataclasses.dataclass(eq=False)
class Visit:
  """A session of a worker or server that was admitted.

  Attributes:
    stream: From its process.
    index: Of the worker or server.
    process: Identity of the process.
    life: Its incarnation number: that of the admission, ascending from 0.
    seen: When it gave the last sign of life, monotonic seconds.
    closed: Set once its stream has ended.
    told: Whether it knows where servers are.
    began: When it came, monotonic seconds.
    ready: Whether it has connected to them.
    evicted: Why nothing that it says counts any more; '' while it does.
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
  evicted: str = ''


@dataclasses.dataclass
class Rank:
  """The admissions of a worker or server, of which the newest counts.

  Attributes:
    lives: How many there have been: the next incarnation number.
    holder: The newest; None once its stream has ended, or it was evicted.
    final: Whether the run cannot go on with another process in its place.
  """

  lives: int = 0
  holder: Visit | None = None
  final: bool = False

  def blocks(self, process: str, now: float, timeout_s: float) -> bool:
    """Returns whether another process holds the rank, and cannot lose it now.

    It can if it is silent, as long as it is not final.

    Args:
      process: Identity of the one that asks.
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
  """A worker, as the lead sees it.

  Attributes:
    life: Which incarnation was ready last.
    stream: Of the living one; None before it is ready and once it is gone.
    seen: When it gave the last sign of life, monotonic seconds.
    arrived: Servers that have its push.
    counted: The last iteration whose push was summed; None if there was none.
    pace: How far it has come.
    compilations: After warm-up, of the lives that have pushed.
  """

  life: int = -1
  stream: Stream | None = None
  seen: float = 0.0
  arrived: int = 0
  counted: int | None = None
  pace: Seen = dataclasses.field(default_factory=Seen)
  compilations: dict[int, int] = dataclasses.field(default_factory=dict)


class RemoteServer:
  """A server in another process.

  Attributes:
    visit: Its session.
    stream: To it.
    address: That workers connect to; '' before it has told.
    doing: What it said last of its orders: see `Server.doing`.
  """

  def __init__(self, visit: Visit):
    """Takes the session of its process."""
    self.visit, self.stream = visit, visit.stream
    self.address = ''
    self.doing: Mapping[str, Any] = {'obeyed': 0, 'order': ''}

  def order(self, sequence: int, orders: list[list[Any]]) -> None:
    """Takes orders that are carried out after those of lower numbers."""
    try:
      self.stream.send({'sequence': sequence, 'orders': orders})
    except TransportError as error:
      raise Unmendable(f'The server at {self.address}: {error}') from error
