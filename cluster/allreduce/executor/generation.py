"""The connections of a generation and the iteration that goes over them.

All in the thread of a loop.  What arrives for an iteration that has not begun
here is kept: its sender's window bounds it, and were it left unread, then the
sender's system would take a slow worker for one that is gone.

After a failure the connections stay, unused, until the generation is left:
others would take their end for a death of this worker.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.allreduce.executor import frames
from cluster.allreduce.executor.errors import (
  Abandoned,
  Damaged,
  ExecutorFailed,
  PeerLost,
  is_local,
)
from cluster.allreduce.executor.exchange import Buffers, Exchange
from cluster.allreduce.executor.frames import Frame, Reader, Writer
from cluster.allreduce.executor.links import Link
from cluster.allreduce.executor.loop import IN, IN_OR_ROOM, OUT, Loop
from cluster.allreduce.executor.program import Group, Roles
from cluster.network.errors import Corrupt, TransportError


class _Out:
  """A connection that this worker sends on."""

  def __init__(self, link: Link):
    self.link = link
    self.writer = Writer(link.sender())
    self.blocked = False
    self.heard = b''  # Only that the other end leaves.


class _In(NamedTuple):
  """A connection that this worker receives on."""

  link: Link
  reader: Reader


class Usage(NamedTuple):
  """Traffic over the connections with one peer.

  Attributes:
    sent_bytes: To it, with headers of frames.
    received_bytes: From it.
    busy_s: In which something was on its way to it, by the system's count.
  """

  sent_bytes: int
  received_bytes: int
  busy_s: float


class Generation:
  """A membership of the executors, as one worker takes part in it.

  Attributes:
    group: Its members.
    error: Why it has failed; None while it has not.
    iteration: The last that has begun; -1 before.
    buffers: For what cannot be added yet.
  """

  def __init__(
    self,
    loop: Loop,
    group: Group,
    roles: Roles,
    index: int,
    told: Callable[[Exception | None], None],
  ):
    """Creates a generation without connections.

    Args:
      loop: That all is done in.
      group: Its members.
      roles: What this worker is in it.
      index: Of this worker.
      told: Called when an iteration has ended, with None or why not well; and
        once all connections are there, or cannot be.
    """
    self.group = group
    self.error: Exception | None = None
    self.iteration = -1
    self._loop, self._roles, self._told = loop, roles, told
    self._index = index
    self._ins: dict[int, _In] = {}
    self._outs: dict[int, _Out] = {}
    self._formed = False
    self._gone: dict[int, Exception] = {}
    self._exchange: Exchange | None = None
    most = len(roles.adding) * roles.window
    self.buffers = Buffers(most, roles.chunk_bytes)
    self._early: dict[int, list[tuple[Frame, memoryview]]] = {}

  @property
  def missing(self) -> set[int]:
    """Workers to or from which there is no connection yet."""
    return (self._roles.senders - self._ins.keys()) | (
      self._roles.receivers - self._outs.keys()
    )

  def expects(self, worker: int) -> bool:
    """Returns whether a worker is expected to connect."""
    return worker in self._roles.senders and worker not in self._ins

  def add_in(self, worker: int, link: Link) -> None:
    """Takes a connection that a worker sends on."""
    reader = Reader(
      link.receiver(),
      functools.partial(self._place, worker),
      functools.partial(self._arrived, worker),
      drained=not link.secured,
    )
    self._ins[worker] = _In(link, reader)
    if self.error is None:
      self._loop.watch(link.sock, IN, functools.partial(self._read, worker))
    self.check_formed()

  def add_out(self, worker: int, link: Link) -> None:
    """Takes a connection that a worker receives on."""
    self._outs[worker] = _Out(link)
    if self.error is None:
      handle = functools.partial(self._hear, worker)
      self._loop.watch(link.sock, IN_OR_ROOM, handle)
    self.check_formed()

  def check_formed(self) -> None:
    """Tells, once, that all connections are there."""
    if not (self.missing or self._formed or self.error):
      self._formed = True
      self._told(None)

  def begin(self, iteration: int, exchange: Exchange) -> None:
    """Begins an iteration, with what has come for it before."""
    self.iteration = iteration
    if self.error:
      self._told(self.error)
      return
    self._exchange = exchange
    early, self._early = self._early, {}
    for worker, frames_ in early.items():
      for frame, body in frames_:
        self._guarded(worker, self._arrived, worker, frame, body)
    for worker, error in self._gone.items():
      if exchange.needs(worker):
        self.fail(error)

  def ready(self, iteration: int, index: int) -> None:
    """Takes a range of the pool."""
    if self._exchange and iteration == self.iteration:
      self._exchange.ready(index)

  def flush(self) -> None:
    """Sends what there is to send, and tells if the iteration is done."""
    exchange = self._exchange
    if exchange is None:
      return
    woken, exchange.woken = exchange.woken, set()
    for worker in woken:
      self._send(worker)
    if self._exchange and exchange.done:
      self._exchange = None
      self._told(None)

  def fail(self, error: Exception) -> None:
    """Ends the iteration, and lets the connections be."""
    if self.error is None:
      self.error = error
      self._exchange = None
      for link in self._links():
        self._loop.forget(link.sock)
      self._told(error)

  def lost(self, worker: int, error: Exception) -> None:
    """Handles a connection to a worker that failed or was lost."""

    def reraise() -> None:
      raise error

    self._guarded(worker, reraise)

  def leave(self) -> None:
    """Ends the connections; tells the others that it is no death."""
    self.fail(Abandoned(f'generation {self.group.generation} was left'))
    number, last = self.group.generation, max(self.iteration, 0)
    left = frames.packed(number, last, 0, 0, frames.LEFT, b'')
    for out in self._outs.values():
      if not out.writer.within:
        _try(out.link, left)
    for each in self._ins.values():
      _try(each.link, left)
    for link in self._links():
      link.close()

  def usage(self) -> dict[int, Usage]:
    """Returns what has gone over the connections, by worker."""
    found = {}
    for worker in self._ins.keys() | self._outs.keys():
      own, out = self._ins.get(worker), self._outs.get(worker)
      found[worker] = Usage(
        out.writer.sent_bytes if out else 0,
        own.reader.received_bytes if own else 0,
        out.link.busy_s if out else 0.0,
      )
    return found

  def _links(self) -> list[Link]:
    ins = [each.link for each in self._ins.values()]
    return [*ins, *(each.link for each in self._outs.values())]

  def _guarded(self, worker: int, function: Callable, *args: Any) -> Any:
    """Calls what uses a connection; what it raises is of its worker."""
    if self.error:
      return None
    try:
      return function(*args)
    except Abandoned as error:
      self._lose(worker, error)
    except Corrupt as error:
      self.fail(Damaged(worker, str(error)))
    except OSError as error:
      reason = error.strerror or str(error)
      if is_local(error):
        self.fail(ExecutorFailed(self._index, reason))
      else:
        self._lose(worker, PeerLost(worker, reason))
    except TransportError as error:
      self._lose(worker, PeerLost(worker, str(error)))
    return None

  def _lose(self, worker: int, error: Exception) -> None:
    """Fails the running sum if it still needs a worker that is lost."""
    for each in (self._ins.get(worker), self._outs.get(worker)):
      if each:
        self._loop.forget(each.link.sock)
    self._gone.setdefault(worker, error)
    needed = self._exchange.needs(worker) if self._exchange else False
    if needed or not self._formed:
      self.fail(error)

  def _read(self, worker: int, events: int) -> None:
    del events
    link, reader = self._ins[worker]
    more = self._guarded(worker, reader.read)
    while more and link.buffered:  # Of which the loop does not tell.
      more = self._guarded(worker, reader.read)
    if more is False:
      end = 'within a frame' if reader.within else 'between two frames'
      reason = f'the connection ended {end}'
      self._lose(worker, PeerLost(worker, reason))

  def _hear(self, worker: int, events: int) -> None:
    out = self._outs[worker]
    if events & ~OUT:
      self._guarded(worker, self._listen, worker, out)
    if events & OUT and out.blocked and not self.error:
      out.blocked = False
      self._send(worker)

  def _listen(self, worker: int, out: _Out) -> None:
    """Receives what a receiver says: that it leaves, if anything."""
    receive = out.link.receiver()
    while True:  # The loop tells of each arrival once.
      room = memoryview(bytearray(frames.HEADER_BYTES - len(out.heard)))
      try:
        count = receive([room])
      except BlockingIOError:
        return
      if not count:
        raise PeerLost(worker, 'the connection ended')
      out.heard += room[:count]
      if len(out.heard) == frames.HEADER_BYTES:
        self._check_left(worker, frames.parsed(memoryview(out.heard)))
        raise Corrupt('a receiver has sent a frame')

  def _send(self, worker: int) -> None:
    self._guarded(worker, self._write, worker, self._outs[worker])

  def _write(self, worker: int, out: _Out) -> None:
    exchange = self._exchange
    if exchange is None or out.blocked:
      return
    if out.writer.within:
      out.blocked = not out.writer.write()
      if out.blocked:
        return
      self._sent(exchange, worker)
    while item := exchange.take(worker):
      if not out.writer.write(*self._frame(exchange, *item)):
        out.blocked = True
        return
      self._sent(exchange, worker)

  def _frame(
    self, exchange: Exchange, kind: int, chunk: int, body: Any, dtype: int
  ) -> tuple[bytes, Any]:
    """Returns the header and the body of the frame of a chunk."""
    number, layout = self.group.generation, exchange.program.layout
    header = frames.packed(
      number, self.iteration, layout, chunk, kind, body, dtype
    )
    return header, body

  def _sent(self, exchange: Exchange, worker: int) -> None:
    exchange.sent(worker)

  def _place(self, worker: int, frame: Frame) -> memoryview:
    """Returns where the body of a frame is to go."""
    self._check_left(worker, frame)
    if self._exchange and frame.iteration == self.iteration:
      self._check_layout(self._exchange, frame)
      return self._exchange.place(
        worker, frame.kind, frame.chunk, frame.size, frame.dtype
      )
    self._check_early(worker, frame)
    return self.buffers.take()[: frame.size]

  def _arrived(self, worker: int, frame: Frame, body: memoryview) -> None:
    """Takes a frame, whose sum may have begun since its header came."""
    exchange = self._exchange
    if exchange and frame.iteration == self.iteration:
      self._check_layout(exchange, frame)
      exchange.check(worker, frame.kind, frame.chunk, frame.size, frame.dtype)
      exchange.arrived(worker, frame.kind, frame.chunk, body)
    else:
      self._check_early(worker, frame)
      self._early.setdefault(worker, []).append((frame, body))

  def _check_layout(self, exchange: Exchange, frame: Frame) -> None:
    if frame.layout != exchange.program.layout:
      raise Corrupt('its pool, forest or chunks are not ours')

  def _check_early(self, worker: int, frame: Frame) -> None:
    """Raises Corrupt if a frame can be of no sum that is still to begin.

    Its sum checks the rest of it.
    """
    valid = frame.iteration > self.iteration and frame.kind == frames.UP
    valid = valid and worker in self._roles.adding
    # Frames are in order: this sum's are the first.
    valid = valid and not (self._exchange and self._exchange.expects(worker))
    if not (valid and frame.size <= self._roles.chunk_bytes):
      raise Corrupt(f'a frame of iteration {frame.iteration}')
    if len(self._early.get(worker, ())) >= self._roles.window:
      raise Corrupt(f'more than {self._roles.window} chunks ahead')

  def _check_left(self, worker: int, frame: Frame) -> None:
    """Raises Abandoned at a worker's last frame."""
    number = self.group.generation
    if frame.generation != number:
      raise Corrupt(f'a frame of generation {frame.generation}')
    if frame.kind == frames.LEFT:
      raise Abandoned(f'worker {worker} has left generation {number}')


def _try(link: Link, text: bytes) -> None:
  """Sends, if there is room and somebody there."""
  with contextlib.suppress(OSError):
    link.sock.send(text)
