"""Host executor: sums gradient buffers over a forest, between hosts.

A thread handles every connection, both directions and all trees; a membership
with several lanes has a thread for each, and the chunks are divided among them
(`lanes`).  The rules are in `exchange`, the connections in `connections` and
`peers`.

Memory: besides the buffer, half of it again if anything travels in half
precision; chunks that cannot be added yet, in all at most 256 MiB unless the
forest has hundreds of trees (see `Executor.bound_bytes`); and the system's
socket buffers.  Workers run ahead by the chunks that the forest carries in a
short time or, over long links, in a round trip, which is measured.

A wait always ends: a peer that does not answer is lost after `timeout_s`; a
slow one is waited for until `abandon`.  An unexpected error in a thread ends
the wait, too: the membership has failed, and the thread serves the next one.
"""

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from cluster.allreduce.executor import peers, program
from cluster.allreduce.executor.connections import (
  MembershipConnections,
  Usage,
)
from cluster.allreduce.executor.errors import (
  Abandoned,
  ExecutorFailed,
  PeerLost,
)
from cluster.allreduce.executor.lanes import (
  Lane,
  MembershipLanes,
  OnEnd,
  add_usage,
)
from cluster.allreduce.executor.membership import Membership
from cluster.allreduce.executor.peers import Hello, Peers
from cluster.allreduce.executor.program import Program, Roles
from cluster.allreduce.executor.reduction import MembershipFuture, Reduction
from cluster.network import memory, sockets
from cluster.network.connection import Connection
from cluster.network.errors import Closed, TransportError
from cluster.network.frames import MAX_EPOCH
from cluster.network.port import Port
from cluster.network.socket_loop import SocketLoop
from configs.checks import require

__all__ = ['Executor', 'Membership', 'Reduction', 'Usage']
_MAX_PROGRAMS = 64  # Programs that are cached, by layout of the buffer.
_ProgramKey = tuple[int, tuple[tuple[int, int], ...], tuple[np.dtype, ...]]


class Executor:
  """The allreduce executor of one worker, for all its memberships.

  `form` and `begin` are for one thread at a time, the others for any.

  Attributes:
    address: 'host:port' that other executors connect to.
  """

  def __init__(
    self,
    index: int,
    *,
    port: Port,
    timeout_s: float,
    workers: int = 1,
    chunk_bytes: int | None = None,
  ):
    """Creates an executor that listens for connections.

    Args:
      index: Index of this worker.
      port: Port of this process, on which others connect.
      timeout_s: Seconds after which a peer that does not answer is lost.
      workers: Largest number of workers in a membership.
      chunk_bytes: Largest size of a chunk, bytes; a multiple of 4.  None to
        choose it by the forest's rate and the size of each buffer.

    Raises:
      TransportError: If the address cannot be listened on, or the process has
        no descriptors left.
      ssl.SSLError: If the certificate is invalid, or does not match the key.
      ValueError: If an argument is out of its range.
    """
    require(timeout_s > 0, 'timeout_s', 'a time above 0', timeout_s)
    valid = chunk_bytes is None or (chunk_bytes > 0 and chunk_bytes % 4 == 0)
    require(valid, 'chunk_bytes', 'a multiple of 4 above 0', chunk_bytes)
    self._index, self._timeout_s = index, timeout_s
    self._chunk_bytes = chunk_bytes
    self._roles: Roles | None = None
    # Of the lanes.
    self._programs: dict[_ProgramKey, list[Program]] = {}
    self._halves = np.empty(0, np.uint16)
    self._connections: MembershipLanes | None = None
    self._reduction: Reduction | None = None  # The last one.
    self._future: Reduction | MembershipFuture | None = None  # The running one.
    self._usage: dict[int, Usage] = {}  # Of memberships that were left.
    self._formed_epoch = -1  # Last one that `form` was called for.
    self._left_epoch = -1  # Last one that was left.
    self._least_epoch: float = -1  # Earlier ones were abandoned.
    self._is_closed = False
    self._failure: ExecutorFailed | None = None  # Since the last `form`.
    try:
      lane = Lane(
        f'executor-{index}',
        after_flush=self._advance,
        tick=self._tick,
        on_error=self._fail,
        on_exit=self._finish,
      )
    except OSError as error:
      raise TransportError(f'{port.host}: {error}') from error
    # Those of the membership with the most.
    self._lanes, self._loop = [lane], lane.loop
    self._peers = Peers(
      self._loop,
      port,
      index=index,
      workers=workers,
      timeout_s=timeout_s,
      on_client=self._admit,
    )
    try:
      self.address = self._peers.open(self._fail_connecting)
    except (TransportError, OSError):
      self._loop.close()
      raise

  @property
  def bound_bytes(self) -> int:
    """Upper bound on the memory for chunks that wait to be added, bytes.

    A chunk waits if it has arrived before the numbers to which it is added.
    The bound is that of the last membership that `form` was called for, also
    after it was left; 0 before the first.
    """
    roles = self._roles
    if roles is None:
      return 0
    return roles.lanes * len(roles.children) * roles.ahead_bytes

  def form(self, membership: Membership, limit_s: float | None = None) -> None:
    """Connects this worker with the others of a new membership.

    Returns when its neighbours have done the same.  The membership before is
    left.

    Args:
      membership: The members and their forest.
      limit_s: Seconds within which the others have to connect; None for
        `timeout_s`.

    Raises:
      PeerLost: If a member cannot be reached, or is lost.
      ExecutorFailed: If this executor cannot take part, whatever the members
        are; a later membership may be formed all the same.
      Abandoned: If the membership was abandoned, before or meanwhile.
      TransportError: If not all have connected in time; names them.
      ValueError: If the forest does not span the members, or the membership
        epoch is not a later one.
    """
    number, last = membership.membership_epoch, self._formed_epoch
    is_valid = last < number <= MAX_EPOCH
    require(is_valid, 'membership_epoch', f'one after {last}', number)
    roles = program.find_roles(
      membership, self._index, chunk_bytes=self._chunk_bytes
    )
    addresses = {}
    for worker in roles.receivers:
      try:
        addresses[worker], *_ = sockets.resolve(membership.addresses[worker])
      except OSError as error:
        raise PeerLost(worker, str(error)) from error
    try:
      while len(self._lanes) < membership.lanes:
        self._lanes.append(self._make_lane(len(self._lanes)))
    except OSError as error:
      raise ExecutorFailed(self._index, error.strerror or str(error)) from error
    future = MembershipFuture()
    start = functools.partial(
      self._connect, membership, roles, addresses, future
    )
    if self._loop.run(start) is None:
      raise self._failure or Abandoned('the executor is closed')
    self._roles, self._formed_epoch = roles, number
    self._programs = {}
    limit_s = self._timeout_s if limit_s is None else limit_s
    if not future.wait_for_end(limit_s):
      self._loop.run(functools.partial(self._expire, limit_s))
    if future.error:
      raise future.error

  def begin(
    self,
    iteration: int,
    buffer: np.ndarray,
    buckets: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype] | None = None,
  ) -> Reduction:
    """Begins the allreduce of an iteration's gradient buffers.

    Args:
      iteration: Its number, the same on all workers, above those before.
      buffer: Gradient buffer, float32 [n], contiguous; becomes the sum, in
        place.
      buckets: First element of each bucket, and the one after its last: in
        order, all of the buffer.  The same on all workers.
      dtypes: Dtype of each bucket on the network; None for float32.

    Returns:
      The future of the allreduce; no bucket is ready yet.

    Raises:
      ExecutorFailed: If the executor has ended with an error.
      Abandoned: If there is no membership.
      ValueError: If an argument is invalid, or the iteration before has not
        ended.
    """
    valid = buffer.dtype == np.float32 and buffer.ndim == 1
    valid = valid and buffer.flags.c_contiguous and buffer.flags.writeable
    expected = 'float32 [n], contiguous, writeable'
    require(valid, 'buffer', expected, (buffer.dtype.name, buffer.shape))
    if self._is_closed and self._failure:
      raise self._failure
    connections, roles = self._connections, self._roles
    if connections is None or roles is None:
      raise Abandoned('there is no membership')
    last = connections.iteration
    require(iteration > last, 'iteration', f'one after {last}', iteration)
    has_ended = self._reduction is None or self._reduction.ended
    require(has_ended, 'begin', 'the iteration before to have ended', last)
    key = buffer.size, tuple(buckets), tuple(dtypes or ())
    if key not in self._programs:
      if len(self._programs) == _MAX_PROGRAMS:
        self._programs.clear()
      whole = program.make_program(roles, buffer.size, buckets, dtypes)
      self._programs[key] = program.divide(whole)
    if dtypes and self._halves.size < buffer.size:
      self._halves = memory.aligned(2 * buffer.size).view(np.uint16)
    exchanges = connections.make_exchanges(
      self._programs[key], buffer, self._halves
    )

    def mark_ready(index: int) -> None:
      connections.ready(iteration, index, exchanges)

    reduction = Reduction(self._index, exchanges, mark_ready)
    self._reduction = reduction

    def start() -> None:
      if self._connections is connections:
        self._future = reduction
        connections.begin(iteration, exchanges)
      else:
        reduction.end(self._failure or Abandoned('the membership was left'))

    if self._loop.post(start):
      connections.begin_others(iteration, exchanges)
    else:
      reduction.end(self._failure or Abandoned('the executor is closed'))
    return reduction

  def abandon(self, before: float = math.inf) -> None:
    """Ends the running allreduce and the membership; from any thread.

    Waits of this worker raise Abandoned; so do those of others, once they are
    notified.  Returns at once; a membership that is formed later is not
    affected.

    Args:
      before: Memberships of lower epochs are abandoned, also those that are
        not formed yet; infinity for the current one.
    """
    self._loop.post(functools.partial(self._abandon, before))

  def traffic(self) -> dict[int, Usage]:
    """Returns the traffic with each peer since the executor was opened."""
    return self._loop.run(self._total_usage) or dict(self._usage)

  def unanswered(self) -> int:
    """Pings the threads; returns the pings since the last answer of one."""
    return max(lane.loop.count_unanswered() for lane in self._lanes)

  def close(self) -> None:
    """Abandons the membership, and ends the listener and the threads."""
    for lane in self._lanes:  # The first one needs the others to leave.
      lane.loop.close()

  def _make_lane(self, number: int) -> Lane:
    """Returns a further lane; its errors end the sums of all lanes."""

    def post_failure(error: Exception | None) -> None:
      if error:
        self._loop.post(lambda: self._fail(error))

    return Lane(
      f'executor-{self._index}-{number}',
      after_flush=self._advance,
      tick=lambda: None,
      on_error=post_failure,
      on_exit=post_failure,
    )

  def _make_connections(
    self, loop: SocketLoop, membership: Membership, roles: Roles, on_end: OnEnd
  ) -> MembershipConnections:
    return MembershipConnections(loop, membership, roles, self._index, on_end)

  def _advance(self) -> None:
    """Wakes the caller that waits for a bucket; in the thread of any lane."""
    future = self._future
    if isinstance(future, Reduction):
      future.advance()

  # The methods below run in the thread of the first lane.

  def _connect(
    self,
    membership: Membership,
    roles: Roles,
    addresses: dict[int, str],
    future: MembershipFuture,
  ) -> bool:
    number = membership.membership_epoch
    if self._is_closed or number < self._least_epoch:
      abandoned = Abandoned('the membership was abandoned')
      future.end((self._is_closed and self._failure) or abandoned)
      return True
    self._failure = None
    self._leave()
    self._future = future
    connections = MembershipLanes(
      self._lanes[: membership.lanes],
      membership,
      roles,
      self._make_connections,
      self._end_future,
    )
    self._connections = connections
    for worker, lane in itertools.product(addresses, range(membership.lanes)):
      if connections.error:
        break
      hello = Hello(number, self._index, worker, lane)
      host, _ = sockets.split(membership.addresses[worker])
      on_done = functools.partial(connections.add_outbound, worker, lane)
      on_error = functools.partial(connections.handle_loss, worker, lane)
      self._peers.connect(addresses[worker], host, hello, on_done, on_error)
    for connection, hello in self._peers.claim(number):
      self._admit(connection, hello)
    connections.check_connected()
    return True

  def _abandon(self, before: float) -> None:
    if before < math.inf:
      self._least_epoch = max(self._least_epoch, before)
    connections = self._connections
    if connections and connections.membership.membership_epoch < before:
      self._leave()

  def _expire(self, limit_s: float) -> None:
    connections = self._connections
    if isinstance(self._future, MembershipFuture) and connections:
      missing = sorted(connections.missing)
      connections.fail(
        Closed(f'workers {missing} have not connected within {limit_s:g} s')
      )

  def _admit(self, connection: Connection, hello: Hello) -> bool:
    """Admits or refuses a client; returns False if it has to wait."""
    connections = self._connections
    number = self._left_epoch
    if connections:
      number = connections.membership.membership_epoch
    if hello.membership_epoch > number:
      return False
    if connections is None or hello.membership_epoch < number:
      self._peers.refuse_outdated(connection, hello)
    elif not connections.expects(hello.sender, hello.lane):
      name = f'worker {hello.sender}, lane {hello.lane}'
      self._peers.refuse(connection, f'{name}, is unexpected')
    else:
      try:
        peers.admit(connection)
      except OSError as error:
        connections.handle_loss(hello.sender, hello.lane, error)
        connection.close()
      else:
        connections.add_inbound(hello.sender, hello.lane, connection)
    return True

  def _end_future(self, error: Exception | None) -> None:
    future, self._future = self._future, None
    if future:
      future.end(error)

  def _leave(self) -> None:
    connections, self._connections = self._connections, None
    self._peers.cancel_outgoing()
    if connections:
      self._left_epoch = connections.membership.membership_epoch
      self._usage = self._total_usage(connections)
      connections.leave()

  def _total_usage(
    self, connections: MembershipLanes | None = None
  ) -> dict[int, Usage]:
    connections = connections or self._connections
    total = dict(self._usage)
    if connections:
      add_usage(total, connections.usage())
    return total

  def _fail(self, error: Exception) -> None:
    """Ends all waits after an unexpected error."""
    reason = f'{type(error).__name__}: {error}'
    self._failure = failure = ExecutorFailed(self._index, reason)
    failure.__cause__ = error
    if self._connections:
      self._connections.fail(failure)
    self._end_future(failure)

  def _fail_connecting(self, error: OSError) -> None:
    """Fails a membership whose members cannot connect to this worker."""
    connections = self._connections
    if connections and connections.missing:
      reason = error.strerror or str(error)
      connections.fail(ExecutorFailed(self._index, reason))

  def _tick(self) -> None:
    self._loop.is_ticking = self._peers.tick()

  def _finish(self, error: Exception | None) -> None:
    self._is_closed = True
    if error:
      self._fail(error)
    self._leave()
    self._peers.close()
