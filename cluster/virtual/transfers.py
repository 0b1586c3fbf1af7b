"""Pushes and pulls under way in the virtual runtime, as flows of its network.

`Whole` moves every shard whole.  `Pipelined` moves it in pieces, and serves
the sum of a piece as soon as the last worker has pushed it: on links that carry
both directions at once, the pulls of a barrier then overlap with its pushes.
"""

import bisect
import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from cluster.pipelining import AHEAD, pieces_per_share
from cluster.virtual.network import Network
from cluster.virtual.shares import Shares
from learning.layout import split_evenly


class Sizes(NamedTuple):
  """Sizes of pushes and pulls.

  Attributes:
    push: Bytes of a push to each server, by stage of the wire.
    pull: Bytes of a pull from each server.
  """

  push: Sequence[Sequence[int]]
  pull: Sequence[int]


class Delivered(NamedTuple):
  """Arrivals of one moment.

  Attributes:
    size_bytes: Bytes of pushes and pulls.
    ended: Workers whose push or pull is now complete.
  """

  size_bytes: int
  ended: Sequence[int]


NOTHING = Delivered(0, ())


class Left(NamedTuple):
  """Effects of a worker's death on other workers.

  Attributes:
    waiting: Workers that have computed, and wait for others to compute.
    again: Workers that compute their iteration again.
  """

  waiting: Sequence[int] = ()
  again: Sequence[int] = ()


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Whole:
  """Transfers of whole shards: a worker pulls and pushes in turns.

  Attributes:
    network: Network, whose first hosts are the workers.
  """

  is_state = True  # Plain data: checkpoints hold it.

  network: Network
  _shares: Shares
  _hosts: Sequence[int]
  _sizes: Sizes
  _pending: list[set[int]]
  _flows: dict[int, tuple[int, int]]  # To (worker, bytes).

  def __init__(
    self,
    network: Network,
    *,
    num_workers: int,
    servers: Sequence[int],
    sizes: Sizes,
    shares: Shares,
  ):
    """Creates transfers without a flow.

    Args:
      network: Network, whose first hosts are the workers.
      num_workers: Number of workers.
      servers: Hosts of the servers, which may be those of workers.
      sizes: Sizes of pushes and pulls.
      shares: Shares of links of concurrent transfers.
    """
    self.network = network
    self._shares = shares
    self._hosts = servers
    self._sizes = sizes
    self._pending = [set() for _ in range(num_workers)]
    self._flows = {}

  def next_time(self) -> float:
    """Returns the earliest time at which a transfer can arrive, seconds.

    Infinite without transfers.  The time is a lower bound: `advance` to it may
    find that nothing has arrived yet.
    """
    return self.network.next_time()

  def pull(self, time: float, index: int) -> Delivered:
    """Starts the pull of a worker; returns that nothing has arrived."""
    self._start(time, index, self._sizes.pull, pulls=True)
    return NOTHING

  def push(self, time: float, index: int, stage: int) -> Sequence[int]:
    """Starts the push of a worker that has computed.

    Args:
      time: Seconds.
      index: Index of the worker.
      stage: Stage of the wire.

    Returns:
      The workers whose pushes start now.
    """
    self._start(time, index, self._sizes.push[stage], pulls=False)
    return (index,)

  def advance(self, time: float) -> Delivered:
    """Advances to a time and returns what arrives at it.

    Args:
      time: Seconds, at most `next_time`.
    """
    if not (arrived := self.network.advance(time)):
      return NOTHING
    size_bytes, ended = 0, []
    for flow in arrived:
      index, size = self._flows.pop(flow)
      size_bytes += size
      pending = self._pending[index]
      pending.remove(flow)
      if not pending:
        ended.append(index)
    return Delivered(size_bytes, ended)

  def leave(self, time: float, index: int, *, lost: bool) -> Left:
    """Cancels the transfers of a worker that died.

    Args:
      time: Seconds.
      index: Index of the worker.
      lost: Whether an iteration of it had not been pushed whole.
    """
    del lost  # No other worker has a part of its push.
    for flow in sorted(self._pending[index]):
      self.network.cancel(time, flow)
      del self._flows[flow]
    self._pending[index].clear()
    return Left()

  def state(self) -> 'Whole':
    """Returns the state for a checkpoint: this object itself."""
    return self

  def restore(self, state: 'Whole') -> None:
    """Continues from the state of a checkpoint, which it takes over."""
    vars(self).update(vars(state))

  def _start(
    self, time: float, index: int, sizes: Sequence[int], *, pulls: bool
  ) -> None:
    for host, size in zip(self._hosts, sizes, strict=True):
      ends = (host, index) if pulls else (index, host)
      weight = self._shares.draw(*ends, size)
      flow = self.network.start(time, *ends, size, weight)
      self._pending[index].add(flow)
      self._flows[flow] = index, size


@dataclasses.dataclass
class _Member:
  """A worker of the superstep.

  Attributes:
    sent: Number of pieces of its push that have left it, by server.
    pushed: Number of those that have arrived.
    answered: Number of pieces of its push that a pull has answered, by server.
    served: Number of pieces of the following pull that have left the server.
    pulled: Number of those that have arrived.
    pulling: Whether it was released and its pull is not yet complete.
    flows: Flows that have not drained, by whether they are pulls, and server.
  """

  is_state = True  # Plain data: checkpoints hold it.

  sent: list[int]
  pushed: list[int]
  answered: list[int]
  served: list[int]
  pulled: list[int]
  pulling: bool = True
  flows: dict[tuple[bool, int], int] = dataclasses.field(default_factory=dict)


class _Flow(NamedTuple):
  worker: int
  server: int
  pulls: bool
  pieces: int
  size_bytes: int


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Pipelined:
  """Transfers in pieces, for schemes that release all workers at barriers.

  Between a worker and a server one piece at a time leaves its sender each way;
  the next one follows at once, while it travels.  A push is at most AHEAD
  pieces ahead of the pull that answers it, as that of a real worker.  A piece
  is served to the workers of a superstep when all of them have pushed it,
  before the scheme has released them.  A worker that was not among them,
  because it starts or rejoins, pulls whole shards.

  With N equal workers that compute for C seconds, one server of B bytes/s each
  way, a shard of S bytes and l seconds of latency, a superstep costs
  C + N (S + c) / B + 2 l, where c is the largest of its pieces, as long as
  AHEAD pieces of all workers keep the link busy for the 2 l and the time of a
  piece.

  The push of a worker that dies in the middle of it does not count, although
  pieces of it may be in sums that were served: these sums are void, and served
  again without it.  Pieces that arrive before the release count as delivered at
  the release, which makes a pull of them.

  Attributes:
    network: Network, whose first hosts are the workers.
  """

  is_state = True  # Plain data: checkpoints hold it.

  network: Network
  _shares: Shares
  _hosts: Sequence[int]
  _count: int  # Pieces of a share.
  _pushes: list[list[int]]
  _pulls: list[list[int]]
  _missing: list[list[int]]  # By server and piece: pushes without it.
  _members: dict[int, _Member]
  _flows: dict[int, _Flow]
  # Pieces that have left and not arrived: (time of arrival, flow), ordered.
  _landing: list[tuple[float, int]]

  def __init__(
    self,
    network: Network,
    *,
    num_workers: int,
    servers: Sequence[int],
    sizes: Sizes,
    shares: Shares,
  ):
    """Creates transfers without a flow; arguments are those of Whole."""
    del num_workers
    self.network = network
    self._shares = shares
    self._hosts = servers
    self._count = pieces_per_share(len(servers), sum(sizes.push[0]))
    self._pushes, self._pulls = (
      [split_evenly(size, self._count) for size in shares]
      for shares in (sizes.push[0], sizes.pull)  # There is but one stage.
    )
    self._missing = [[0] * self._count for _ in self._pushes]
    self._members, self._flows, self._landing = {}, {}, []

  def next_time(self) -> float:
    """Returns the earliest time at which a piece can arrive, seconds.

    Infinite without transfers.  The time is a lower bound: `advance` to it may
    find that nothing has arrived yet.
    """
    landing = self._landing[0][0] if self._landing else math.inf
    return min(self.network.next_time(), landing)

  def pull(self, time: float, index: int) -> Delivered:
    """Starts the pull of a worker; returns what has arrived of it already."""
    for missing in self._missing:
      missing[:] = [count + 1 for count in missing]
    if index not in self._members:
      none = self._none
      self._members[index] = _Member(none(), none(), none(), none(), none())
      for server in range(len(self._missing)):
        self._start(time, index, server, pulls=True, pieces=self._count)
      return NOTHING
    member = self._members[index]
    member.pushed = self._none()
    member.pulling = min(member.pulled) < self._count
    size_bytes = sum(
      sum(sizes[:count])
      for sizes, count in zip(self._pulls, member.pulled, strict=True)
    )
    return Delivered(size_bytes, [] if member.pulling else [index])

  def push(self, time: float, index: int, stage: int) -> Sequence[int]:
    """Starts the push of a worker that has its pull; see Whole."""
    del stage
    member = self._members[index]
    member.sent, member.answered = self._none(), self._none()
    member.served, member.pulled = self._none(), self._none()
    for server in range(len(self._missing)):
      self._send(time, index, server)
    return (index,)

  def advance(self, time: float) -> Delivered:
    """Advances to `time`, at most the next one; returns the arrivals."""
    for number in self.network.advance(time):
      self._handle_drain(time, number)
    size_bytes, ended = 0, []
    while self._landing and self._landing[0][0] <= time:
      flow = self._flows.pop(self._landing.pop(0)[1])
      member = self._members[flow.worker]
      if member.pulling or not flow.pulls:
        size_bytes += flow.size_bytes
      arrived = self._handle_pull if flow.pulls else self._handle_push
      if arrived(time, flow, member):
        ended.append(flow.worker)
    return Delivered(size_bytes, ended)

  def leave(self, time: float, index: int, *, lost: bool) -> Left:
    """Continues without a worker that died; arguments are those of Whole."""
    member = self._members.get(index)
    if member is None:
      return Left()
    self._cancel(time, index)
    del self._members[index]
    void = lost and not all(missing[0] for missing in self._missing)
    for missing, count in zip(self._missing, member.pushed, strict=True):
      missing[count:] = [each - 1 for each in missing[count:]]
    for key, other in self._members.items() if void else ():
      self._cancel(time, key, pulls_only=True)
      other.served, other.pulled = self._none(), self._none()
      # Pulls begin again, and do not hold pushes back.
      other.answered = [self._count] * len(self._missing)
    for server in range(len(self._missing)):
      self._serve_all(time, server)
      for key in self._members if void else ():
        self._send(time, key, server)
    return Left()

  def state(self) -> 'Pipelined':
    """Returns the state for a checkpoint: this object itself."""
    return self

  def restore(self, state: 'Pipelined') -> None:
    """Continues from the state of a checkpoint, which it takes over."""
    vars(self).update(vars(state))

  def _handle_drain(self, time: float, number: int) -> None:
    """Schedules the arrival of a piece, and starts the next one."""
    flow = self._flows[number]
    ends = self._ends(flow.worker, flow.server, pulls=flow.pulls)
    bisect.insort(self._landing, (time + self.network.latency_s(*ends), number))
    member = self._members[flow.worker]
    del member.flows[flow.pulls, flow.server]
    if flow.pulls:
      member.served[flow.server] += flow.pieces
      self._serve(time, flow.worker, flow.server)
    else:
      member.sent[flow.server] += 1
      self._send(time, flow.worker, flow.server)

  def _handle_push(self, time: float, flow: _Flow, member: _Member) -> bool:
    """Handles a piece of a push; returns whether the push is complete."""
    server, piece = flow.server, member.pushed[flow.server]
    member.pushed[server] += 1
    self._missing[server][piece] -= 1
    if not self._missing[server][piece]:
      self._serve_all(time, server)
    return min(member.pushed) == self._count

  def _handle_pull(self, time: float, flow: _Flow, member: _Member) -> bool:
    """Handles a piece of a pull; returns whether the pull is complete."""
    server = flow.server
    member.pulled[server] += flow.pieces
    if not member.pulling:
      answered = max(member.answered[server], member.pulled[server])
      member.answered[server] = answered
      self._send(time, flow.worker, server)
    ended = member.pulling and min(member.pulled) == self._count
    member.pulling = member.pulling and not ended
    return ended

  def _send(self, time: float, index: int, server: int) -> None:
    """Starts the next piece of a push, if it may leave."""
    member = self._members[index]
    most = min(self._count, member.answered[server] + AHEAD)
    if member.sent[server] < most and (False, server) not in member.flows:
      self._start(time, index, server, pulls=False)

  def _serve_all(self, time: float, server: int) -> None:
    for index in self._members:
      self._serve(time, index, server)

  def _serve(self, time: float, index: int, server: int) -> None:
    """Starts the next piece of a pull, if it can be served."""
    member = self._members[index]
    piece = member.served[server]
    if piece == self._count or (True, server) in member.flows:
      return
    # After the release, pushes of the next superstep are missing.
    if member.pulling or not self._missing[server][piece]:
      self._start(time, index, server, pulls=True)

  def _start(
    self, time: float, index: int, server: int, *, pulls: bool, pieces: int = 1
  ) -> None:
    member = self._members[index]
    first = (member.served if pulls else member.sent)[server]
    sizes = (self._pulls if pulls else self._pushes)[server]
    size = sum(sizes[first : first + pieces])
    ends = self._ends(index, server, pulls=pulls)
    weight = self._shares.draw(*ends, size)
    number = self.network.start(time, *ends, size, weight, lands=False)
    member.flows[pulls, server] = number
    self._flows[number] = _Flow(index, server, pulls, pieces, size)

  def _ends(self, index: int, server: int, *, pulls: bool) -> tuple[int, int]:
    host = self._hosts[server]
    return (host, index) if pulls else (index, host)

  def _cancel(
    self, time: float, index: int, *, pulls_only: bool = False
  ) -> None:
    flows = self._members[index].flows
    for (pulls, server), number in list(flows.items()):
      if pulls or not pulls_only:
        self.network.cancel(time, number)
        del self._flows[number], flows[pulls, server]
    for landing in list(self._landing):
      flow = self._flows[landing[1]]
      if flow.worker == index and (flow.pulls or not pulls_only):
        self._landing.remove(landing)
        del self._flows[landing[1]]

  def _none(self) -> list[int]:
    return [0] * len(self._missing)
