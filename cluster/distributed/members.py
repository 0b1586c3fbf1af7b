"""Workers and servers of other processes, as the lead sees them."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

from cluster.distributed.pace import Seen
from cluster.transport.heart import Unmendable
from cluster.transport.streams import Stream, TransportError


@dataclasses.dataclass
class Member:
  """A worker, as the lead sees it.

  Attributes:
    lives: How many there have been.
    life: Which of them was ready last.
    stream: Of the living one; None before it is ready and once it is gone.
    seen: When it gave the last sign of life, monotonic seconds.
    arrived: Servers that have its push.
    counted: The last iteration whose push was summed; None if there was none.
    pace: How far it has come.
    compilations: After warm-up, of the lives that have pushed.
  """

  lives: int = 0
  life: int = -1
  stream: Stream | None = None
  seen: float = 0.0
  arrived: int = 0
  counted: int | None = None
  pace: Seen = dataclasses.field(default_factory=Seen)
  compilations: dict[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class Visit:
  """A life of a worker, from its first word to its last.

  Attributes:
    stream: From it.
    seen: When it gave the last sign of life, monotonic seconds.
    closed: Set once its stream has ended.
    told: Whether it knows where servers are.
    began: When it came, monotonic seconds.
    ready: Whether it has connected to them.
  """

  stream: Stream
  seen: float
  closed: threading.Event = dataclasses.field(default_factory=threading.Event)
  told: bool = False
  began: float = dataclasses.field(default_factory=time.monotonic)
  ready: bool = False


class RemoteServer:
  """A server in another process.

  Attributes:
    stream: To it.
    address: That workers connect to.
    seen: When it gave the last sign of life, monotonic seconds.
    doing: What it said last of its orders: see `Server.doing`.
  """

  def __init__(self, stream: Stream, address: str):
    """Takes the stream from it."""
    self.stream = stream
    self.address = address
    self.seen = time.monotonic()
    self.doing: Mapping[str, Any] = {'obeyed': 0, 'order': ''}

  def order(self, sequence: int, orders: list[list[Any]]) -> None:
    """Takes orders that are carried out after those of lower numbers."""
    try:
      self.stream.send({'sequence': sequence, 'orders': orders})
    except TransportError as error:
      raise Unmendable(f'The server at {self.address}: {error}') from error
