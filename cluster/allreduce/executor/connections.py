"""Connections of one lane in a membership, and the chunks that they carry.

All methods run in the thread of an event loop.  Chunks of an iteration that has
not begun here are stored: the sender's window bounds them, and if they were
left unread, the sender's system would take a slow worker for a dead one.

After a failure the connections stay open, unused, until the membership is left:
peers would take their end for a death of this worker.
"""

import collections
import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from cluster.allreduce.executor.endpoints import Reader, Writer
from cluster.allreduce.executor.errors import (
  Abandoned,
  Damaged,
  ExecutorFailed,
  PeerLost,
  is_local,
)
from cluster.allreduce.executor.exchange import Exchange, ReceiveBuffers
from cluster.allreduce.executor.membership import Membership
from cluster.allreduce.executor.program import Roles
from cluster.network import frames
from cluster.network.connection import Connection
from cluster.network.errors import Corrupt, TransportError
from cluster.network.frames import FrameHeader
from cluster.network.socket_loop import IN, IN_OR_ROOM, OUT, SocketLoop
from system import clock

_Result = TypeVar('_Result')


class _Outbound:
  """A connection that this worker sends on.

  Attributes:
    connection: The connection.
    writer: Its sending end.
    is_blocked: Whether it waits for room.
    received: Bytes that the receiver has sent: only that it leaves.
  """

  def __init__(self, connection: Connection):
    self.connection = connection
    self.writer = Writer(connection.sender())
    self.is_blocked = False
    self.received = b''


class _Inbound(NamedTuple):
  """A connection that this worker receives on, and its receiving end."""

  connection: Connection
  reader: Reader


class Usage(NamedTuple):
  """Traffic over the connections with one peer.

  Attributes:
    sent_bytes: Bytes sent to it, with headers of frames.
    received_bytes: Bytes received from it.
    busy_s: Seconds during which something was on its way to it, as the system
      counts them.
  """

  sent_bytes: int
  received_bytes: int
  busy_s: float


class MembershipConnections:
  """One worker's connections to the other members, in one lane.

  Attributes:
    membership: The members and their forest.
    error: Reason for which the membership has failed; None while it has not.
    iteration: Last iteration that has begun; -1 before the first.
    received: Memory for chunks that cannot be added yet.
  """

  def __init__(
    self,
    loop: SocketLoop,
    membership: Membership,
    roles: Roles,
    index: int,
    on_end: Callable[[Exception | None], None],
  ):
    """Creates a membership without connections.

    Args:
      loop: Event loop in whose thread all methods are called.
      membership: The members and their forest.
      roles: Roles of this worker in the forest.
      index: Index of this worker.
      on_end: Called when an iteration has ended, and once all connections are
        open or cannot be; with None, or the reason of the failure.
    """
    self.membership = membership
    self.error: Exception | None = None
    self.iteration = -1
    self._loop, self._roles, self._on_end = loop, roles, on_end
    self._index = index
    self._inbound: dict[int, _Inbound] = {}
    self._outbound: dict[int, _Outbound] = {}
    self._is_connected = False
    self._lost: dict[int, Exception] = {}
    self._exchange: Exchange | None = None
    self.received = ReceiveBuffers(len(roles.children) * roles.ahead_bytes)
    # By tree: chunk whose round trip is measured, and when it was sent.
    self._trips: dict[int, tuple[int, float]] = {}
    self._round_trips_s: dict[int, float] = {}  # Shortest one of each tree.
    # Chunks of the next iteration, by sender.
    self._next_chunks: dict[int, list[tuple[FrameHeader, memoryview]]] = {}
    self._next_bytes: collections.Counter[int] = collections.Counter()

  def find_missing(self) -> set[int]:
    """Returns workers to or from which there is no connection yet."""
    senders = self._roles.senders - self._inbound.keys()
    return {*senders, *(self._roles.receivers - self._outbound.keys())}

  def add_inbound(self, worker: int, connection: Connection) -> None:
    """Adds a connection that a worker sends on."""
    reader = Reader(
      connection.receiver(),
      functools.partial(self._allocate, worker),
      functools.partial(self._deliver, worker),
      is_drained=not connection.is_encrypted,
    )
    self._inbound[worker] = _Inbound(connection, reader)
    if self.error is None:
      handler = functools.partial(self._read, worker)
      self._loop.watch(connection.sock, IN, handler)
    self.check_connected()

  def add_outbound(self, worker: int, connection: Connection) -> None:
    """Adds a connection that a worker receives on."""
    self._outbound[worker] = _Outbound(connection)
    if self.error is None:
      handler = functools.partial(self._handle_outbound, worker)
      self._loop.watch(connection.sock, IN_OR_ROOM, handler)
    self.check_connected()

  def check_connected(self) -> None:
    """Calls `on_end`, once, when all connections are open."""
    if not (self.find_missing() or self._is_connected or self.error):
      self._is_connected = True
      self._on_end(None)

  def begin(self, iteration: int, exchange: Exchange) -> None:
    """Begins an iteration, with chunks that have arrived for it before."""
    self.iteration = iteration
    if self.error:
      self._on_end(self.error)
      return
    self._exchange = exchange
    self._trips.clear()
    self._adapt_window(exchange)
    stored, self._next_chunks = self._next_chunks, {}
    self._next_bytes.clear()
    for worker, chunks in stored.items():
      for frame, body in chunks:
        self._guard(
          worker, functools.partial(self._deliver, worker, frame, body)
        )
    for worker, error in self._lost.items():
      if exchange.needs(worker):
        self.fail(error)

  def ready(self, iteration: int, index: int) -> None:
    """Marks a bucket of an iteration's buffer as ready."""
    if self._exchange and iteration == self.iteration:
      self._exchange.ready(index)

  def flush(self) -> None:
    """Sends queued chunks, and calls `on_end` if the iteration is done."""
    exchange = self._exchange
    if exchange is None:
      return
    receivers, exchange.pending_receivers = exchange.pending_receivers, set()
    for worker in receivers:
      self._send(worker)
    if self._exchange and exchange.done:
      self._exchange = None
      self._on_end(None)

  def fail(self, error: Exception) -> None:
    """Ends the iteration; leaves the connections open, unused."""
    if self.error is None:
      self.error = error
      self._exchange = None
      for connection in self.connections():
        self._loop.forget(connection.sock)
      self._on_end(error)

  def handle_loss(self, worker: int, error: Exception) -> None:
    """Handles a connection to a worker that cannot be opened."""

    def reraise() -> None:
      raise error

    self._guard(worker, reraise)

  def leave(self) -> None:
    """Closes the connections; notifies the others that this is no death."""
    number, last = self.membership.membership_epoch, max(self.iteration, 0)
    self.fail(Abandoned(f'membership epoch {number} was left'))
    departure = frames.pack_header(
      frames.LEFT, 0, b'', iteration=last, epoch=number
    )
    for out in self._outbound.values():
      if not out.writer.is_within_frame:
        _try_send(out.connection, departure)
    for each in self._inbound.values():
      _try_send(each.connection, departure)
    for connection in self.connections():
      connection.close()

  def usage(self) -> dict[int, Usage]:
    """Returns the traffic over the connections, by worker."""
    usage = {}
    for worker in self._inbound.keys() | self._outbound.keys():
      inbound = self._inbound.get(worker)
      outbound = self._outbound.get(worker)
      usage[worker] = Usage(
        outbound.writer.sent_bytes if outbound else 0,
        inbound.reader.received_bytes if inbound else 0,
        outbound.connection.busy_s if outbound else 0.0,
      )
    return usage

  def connections(self) -> list[Connection]:
    """Returns all connections, inbound ones first."""
    inbound = [each.connection for each in self._inbound.values()]
    return [*inbound, *(each.connection for each in self._outbound.values())]

  def _guard(
    self, worker: int, function: Callable[[], _Result]
  ) -> _Result | None:
    """Calls a function that uses a connection; blames its worker for errors."""
    if self.error:
      return None
    try:
      return function()
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
    """Fails the running allreduce if it still needs a worker that is lost."""
    for each in (self._inbound.get(worker), self._outbound.get(worker)):
      if each:
        self._loop.forget(each.connection.sock)
    error = self._lost.setdefault(worker, self._departure(worker) or error)
    is_needed = self._exchange.needs(worker) if self._exchange else False
    if is_needed or not self._is_connected:
      self.fail(error)

  def _departure(self, worker: int) -> Abandoned | None:
    """Returns the reason of a receiver that has left, if it is unread.

    Its connection may be known to have ended before its last frame is read.
    """
    out = self._outbound.get(worker)
    if out and len(out.received) < frames.HEADER_BYTES:
      try:
        self._receive_end(worker, out)
      except Abandoned as departure:
        return departure
      except (OSError, TransportError):
        pass  # The caller has an error already.
    return None

  def _read(self, worker: int, events: int) -> None:
    del events
    connection, reader = self._inbound[worker]
    is_open = self._guard(worker, reader.read)
    while is_open and connection.has_decrypted:  # Without an event.
      is_open = self._guard(worker, reader.read)
    if is_open is False:
      within = reader.is_within_frame
      end = 'within a frame' if within else 'between two frames'
      reason = f'the connection ended {end}'
      self._lose(worker, PeerLost(worker, reason))

  def _handle_outbound(self, worker: int, events: int) -> None:
    out = self._outbound[worker]
    if events & ~OUT:
      self._guard(worker, functools.partial(self._receive_end, worker, out))
    if events & OUT and out.is_blocked and not self.error:
      out.is_blocked = False
      self._send(worker)

  def _receive_end(self, worker: int, out: _Outbound) -> None:
    """Receives the only frame that a receiver may send: that it leaves."""
    receive = out.connection.receiver()
    while True:  # Events are edge-triggered.
      missing = frames.HEADER_BYTES - len(out.received)
      buffer = memoryview(bytearray(missing))
      try:
        count = receive([buffer])
      except BlockingIOError:
        return
      if not count:
        raise PeerLost(worker, 'the connection ended')
      out.received += buffer[:count]
      if len(out.received) == frames.HEADER_BYTES:
        header = frames.parse_header(memoryview(out.received))
        self._check_member(worker, header)
        raise Corrupt('a receiver has sent a frame')

  def _send(self, worker: int) -> None:
    out = self._outbound[worker]
    self._guard(worker, functools.partial(self._write, worker, out))

  def _write(self, worker: int, out: _Outbound) -> None:
    exchange = self._exchange
    if exchange is None or out.is_blocked:
      return
    if out.writer.is_within_frame:
      out.is_blocked = not out.writer.write()
      if out.is_blocked:
        return
      self._sent(exchange, worker)
    while item := exchange.take(worker):
      if item.kind == frames.UP:
        tree = exchange.program.trees[item.chunk]
        self._trips.setdefault(tree, (item.chunk, clock.monotonic()))
      if not out.writer.write(*self._pack(exchange, *item)):
        out.is_blocked = True
        return
      self._sent(exchange, worker)

  def _pack(
    self, exchange: Exchange, kind: int, chunk: int, body: Any, dtype: int
  ) -> tuple[bytes, Any]:
    """Returns the header and the body of the frame of a chunk."""
    epoch = self.membership.membership_epoch
    layout = exchange.program.layout
    header = frames.pack_header(
      kind, chunk, body, dtype, self.iteration, epoch, layout
    )
    return header, body

  def _sent(self, exchange: Exchange, worker: int) -> None:
    exchange.sent(worker)

  def _allocate(self, worker: int, frame: FrameHeader) -> memoryview:
    """Returns the memory for the body of a frame."""
    self._check_member(worker, frame)
    if self._exchange and frame.iteration == self.iteration:
      self._check_layout(self._exchange, frame)
      return self._exchange.allocate(
        worker, frame.kind, frame.number, frame.size, frame.dtype
      )
    self._check_next(worker, frame)
    return self.received.take(frame.size)

  def _deliver(self, worker: int, frame: FrameHeader, body: memoryview) -> None:
    """Takes a chunk, whose iteration may have begun since its header came."""
    exchange = self._exchange
    if exchange and frame.iteration == self.iteration:
      self._check_layout(exchange, frame)
      exchange.check(worker, frame.kind, frame.number, frame.size, frame.dtype)
      exchange.arrived(worker, frame.kind, frame.number, body)
      self._measure_trip(exchange, frame)
    else:
      self._check_next(worker, frame)
      self._next_chunks.setdefault(worker, []).append((frame, body))
      self._next_bytes[worker] += frame.size

  def _measure_trip(self, exchange: Exchange, frame: FrameHeader) -> None:
    """Adapts the window if a sum ends the round trip that is measured.

    Its time includes waiting for workers that still compute.  The shortest one
    of a tree does not: in each iteration, several trips follow each other once
    all workers send.
    """
    if frame.kind != frames.DOWN:
      return
    tree = exchange.program.trees[frame.number]
    chunk, sent_s = self._trips.get(tree, (None, 0.0))
    if frame.number == chunk:
      del self._trips[tree]
      trip_s = clock.monotonic() - sent_s
      if trip_s < self._round_trips_s.get(tree, math.inf):
        self._round_trips_s[tree] = trip_s
        self._adapt_window(exchange)

  def _adapt_window(self, exchange: Exchange) -> None:
    """Sets the window by the tree that takes longest.

    Trips of a worker's trees differ, as roots may be near or far away.  Chunks
    have one order, so that all trees wait for the longest.
    """
    if self._round_trips_s:
      exchange.adapt_window(max(self._round_trips_s.values()))

  def _check_layout(self, exchange: Exchange, frame: FrameHeader) -> None:
    if frame.layout != exchange.program.layout:
      raise Corrupt('its buffer, forest or chunks are not ours')

  def _check_next(self, worker: int, frame: FrameHeader) -> None:
    """Raises Corrupt if a frame cannot belong to an iteration to come.

    The iteration checks the rest of the frame once it begins.
    """
    valid = frame.iteration > self.iteration and frame.kind == frames.UP
    valid = valid and worker in self._roles.children
    # Frames are in order: those of the running iteration come first.
    valid = valid and not (self._exchange and self._exchange.expects(worker))
    if not (valid and frame.size <= self._roles.most_bytes):
      raise Corrupt(f'a frame of iteration {frame.iteration}')
    if self._next_bytes[worker] + frame.size > self._roles.ahead_bytes:
      raise Corrupt(f'more than {self._roles.ahead_bytes} bytes ahead')

  def _check_member(self, worker: int, frame: FrameHeader) -> None:
    """Raises Abandoned at a worker's last frame."""
    number = self.membership.membership_epoch
    if frame.epoch != number:
      raise Corrupt(f'a frame of membership epoch {frame.epoch}')
    if frame.kind == frames.LEFT:
      raise Abandoned(f'worker {worker} has left membership epoch {number}')


def _try_send(connection: Connection, text: bytes) -> None:
  """Sends bytes if there is room and the peer is connected."""
  with contextlib.suppress(OSError):
    connection.sock.send(text)
