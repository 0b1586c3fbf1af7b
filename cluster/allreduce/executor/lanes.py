"""Lanes of an executor: threads that share the chunks of its allreduces.

A lane is an event loop with connections of its own to the neighbours, and each
chunk belongs to one lane, the same on all workers.  The first lane's thread is
the executor's own, which opens connections and ends the waits of callers.  It
may wait for the threads of other lanes, which never wait for it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from cluster.allreduce.executor.connections import MembershipConnections, Usage
from cluster.allreduce.executor.errors import Abandoned
from cluster.allreduce.executor.exchange import Exchange
from cluster.allreduce.executor.membership import Membership
from cluster.allreduce.executor.program import Program, Roles
from cluster.network.connection import Connection
from cluster.network.socket_loop import SocketLoop

_Result = TypeVar('_Result')
OnEnd = Callable[[Exception | None], None]


class ConnectionsFactory(Protocol):
  """Function that creates the connections of one lane in a membership."""

  def __call__(
    self, loop: SocketLoop, membership: Membership, roles: Roles, on_end: OnEnd
  ) -> MembershipConnections:
    """Returns them: see `MembershipConnections`."""


class Lane:
  """An event loop, and its connections in the current membership.

  Attributes:
    loop: The event loop.
    connections: The connections; None without a membership.
  """

  def __init__(
    self,
    name: str,
    *,
    after_flush: Callable[[], None],
    tick: Callable[[], None],
    on_error: Callable[[Exception], None],
    on_exit: Callable[[Exception | None], None],
  ):
    """Starts the thread; other arguments as of `SocketLoop`.

    Args:
      name: Name of the thread.
      after_flush: Called after some events, once chunks were sent.
      tick: As of `SocketLoop`.
      on_error: As of `SocketLoop`.
      on_exit: As of `SocketLoop`.

    Raises:
      OSError: If the process has no descriptors or threads left.
    """
    self.connections: MembershipConnections | None = None
    self._after_flush = after_flush
    self.loop = SocketLoop(
      name,
      after_events=self._flush,
      tick=tick,
      on_error=on_error,
      on_exit=on_exit,
    )
    # Numbers beyond float16's range become infinite, which `Reduction.finite`
    # reports.
    self.loop.post(lambda: np.seterr(over='ignore', invalid='ignore'))

  def _flush(self) -> None:
    if self.connections:
      self.connections.flush()
    self._after_flush()


class MembershipLanes:
  """One worker's connections to the other members, in all lanes.

  Methods run in the first lane's thread, unless they say otherwise.

  Attributes:
    membership: The members and their forest.
    error: Reason for which the membership has failed; None while it has not.
    iteration: Last iteration that has begun; -1 before the first.
  """

  def __init__(
    self,
    lanes: Sequence[Lane],
    membership: Membership,
    roles: Roles,
    make_connections: ConnectionsFactory,
    on_end: OnEnd,
  ):
    """Creates a membership without connections.

    Args:
      lanes: The lanes that it uses.
      membership: The members and their forest.
      roles: Roles of this worker in the forest.
      make_connections: Function that creates the connections of one lane.
      on_end: Called when an iteration has ended in all lanes, and once all
        connections are open or cannot be; with None, or the reason of the
        failure.
    """
    self.membership = membership
    self.error: Exception | None = None
    self.iteration = -1
    self._lanes, self._on_end = lanes, on_end
    self._expected = {
      (worker, lane) for worker in roles.senders for lane in range(len(lanes))
    }
    self._num_running = len(
      lanes
    )  # Lanes in which the operation has not ended.
    self._connections = []
    for lane in lanes:
      connections = make_connections(
        lane.loop, membership, roles, functools.partial(self._end_lane, lane)
      )
      self._connections.append(connections)
      lane.connections = connections

  @property
  def missing(self) -> set[int]:
    """Workers to or from which some connection is not open yet."""
    missing: set[int] = set()
    for lane, connections in self._pairs():
      missing |= self._run(lane, connections.find_missing) or set()
    return missing

  def expects(self, worker: int, lane: int) -> bool:
    """Returns whether a worker is expected to connect to a lane."""
    return (worker, lane) in self._expected

  def add_inbound(self, worker: int, lane: int, connection: Connection) -> None:
    """Adds a connection that a worker sends on in a lane."""
    self._expected.discard((worker, lane))
    add = self._connections[lane].add_inbound
    if not self._post(
      self._lanes[lane], functools.partial(add, worker, connection)
    ):
      connection.close()

  def add_outbound(
    self, worker: int, lane: int, connection: Connection
  ) -> None:
    """Adds a connection that a worker receives on in a lane."""
    add = self._connections[lane].add_outbound
    if not self._post(
      self._lanes[lane], functools.partial(add, worker, connection)
    ):
      connection.close()

  def check_connected(self) -> None:
    """Ends the opening of connections in lanes that need none."""
    for lane, connections in self._pairs():
      self._post(lane, connections.check_connected)

  def handle_loss(self, worker: int, lane: int, error: Exception) -> None:
    """Handles a connection of a lane that cannot be opened."""
    handle = self._connections[lane].handle_loss
    self._post(self._lanes[lane], functools.partial(handle, worker, error))

  def make_exchanges(
    self, programs: Sequence[Program], buffer: np.ndarray, halves: np.ndarray
  ) -> list[Exchange]:
    """Returns the state of an allreduce in each lane; from any thread."""
    return [
      Exchange(program, buffer, connections.received, halves)
      for program, connections in zip(programs, self._connections, strict=True)
    ]

  def begin(self, iteration: int, exchanges: Sequence[Exchange]) -> None:
    """Begins an iteration in the first lane; it ends once it has in all."""
    self.iteration = iteration
    if self.error:
      self._on_end(self.error)
      return
    self._num_running = 1 + sum(each.num_chunks > 0 for each in exchanges[1:])
    self._connections[0].begin(iteration, exchanges[0])

  def begin_others(self, iteration: int, exchanges: Sequence[Exchange]) -> None:
    """Begins an iteration in the other lanes that have chunks of it.

    From any thread, after `begin` was posted to the first lane's thread.
    """
    for (lane, connections), exchange in self._pair(exchanges)[1:]:
      if exchange.num_chunks:
        begin = functools.partial(connections.begin, iteration, exchange)
        lane.loop.post(begin)

  def ready(
    self, iteration: int, index: int, exchanges: Sequence[Exchange]
  ) -> None:
    """Marks a bucket as ready in the lanes of its chunks; from any thread."""
    for (lane, connections), exchange in self._pair(exchanges):
      first, end = exchange.program.bucket_chunks[index]
      if first < end:
        lane.loop.post(functools.partial(connections.ready, iteration, index))

  def fail(self, error: Exception) -> None:
    """Ends the iteration in all lanes; leaves the connections open, unused."""
    if self.error is None:
      self.error = error
      for lane, connections in self._pairs():
        self._run(lane, functools.partial(connections.fail, error))
      # No lane uses the buffer from here on.
      self._on_end(error)

  def leave(self) -> None:
    """Closes the connections; notifies the others that this is no death."""
    number = self.membership.membership_epoch
    self.fail(Abandoned(f'membership epoch {number} was left'))
    for lane, connections in self._pairs():
      self._run(lane, connections.leave)
      lane.connections = None

  def usage(self) -> dict[int, Usage]:
    """Returns the traffic over the connections, by worker."""
    total: dict[int, Usage] = {}
    for lane, connections in self._pairs():
      add_usage(total, self._run(lane, connections.usage) or {})
    return total

  def _pairs(self) -> list[tuple[Lane, MembershipConnections]]:
    return [*zip(self._lanes, self._connections, strict=True)]

  def _pair(
    self, exchanges: Sequence[Exchange]
  ) -> list[tuple[tuple[Lane, MembershipConnections], Exchange]]:
    return [*zip(self._pairs(), exchanges, strict=True)]

  def _post(self, lane: Lane, function: Callable[[], object]) -> bool:
    """Schedules a call in a lane; returns whether its thread still runs."""
    if lane is not self._lanes[0]:
      return lane.loop.post(function)
    function()
    return True

  def _run(self, lane: Lane, function: Callable[[], _Result]) -> _Result | None:
    """Calls a function in a lane; None if its thread has ended."""
    if lane is not self._lanes[0]:
      return lane.loop.run(function)
    return function()

  def _end_lane(self, lane: Lane, error: Exception | None) -> None:
    """Reports the end of the operation in a lane; called in its thread."""
    if lane is self._lanes[0]:
      self._note_end(error)
    else:
      self._lanes[0].loop.post(lambda: self._note_end(error))

  def _note_end(self, error: Exception | None) -> None:
    if self.error:
      return  # It has ended in all lanes.
    if error:
      self.fail(error)
      return
    self._num_running -= 1
    if not self._num_running:
      self._on_end(None)


def add_usage(total: dict[int, Usage], more: Mapping[int, Usage]) -> None:
  """Adds traffic, by worker.

  Args:
    total: Sum so far; changes in place.
    more: Traffic to add.
  """
  for worker, usage in more.items():
    before = total.get(worker, Usage(0, 0, 0.0))
    total[worker] = Usage(
      before.sent_bytes + usage.sent_bytes,
      before.received_bytes + usage.received_bytes,
      before.busy_s + usage.busy_s,
    )
