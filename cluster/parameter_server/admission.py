"""Membership of a run with parameter servers: of workers and of servers.

Once all servers can be reached, they are told of each worker that is admitted,
and the worker is sent their addresses when all have answered.  So a server can
refuse every stream that is not of a worker's newest incarnation.
Until the run begins, a server that is lost may rejoin, and if servers run in
the processes of workers, a process gets both ranks or neither.  After the begin
no other process can take a server's rank.  The loss of a server ends the run,
unless there is a mirror: all servers and workers then rejoin, and the place of
a server may be in the process of any worker.
"""

import dataclasses
import functools
import math
import secrets
from collections import Counter
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Mapping,
  Sequence,
)
from typing import Literal, NamedTuple

import numpy as np
from absl import logging

from cluster.membership.admission import Reception
from cluster.membership.events import (
  MOST_WAITING,
  Event,
  WorkerEvent,
  WorkerLost,
)
from cluster.membership.members import Incarnation, Rank, RemoteServer
from cluster.membership.process import Settings
from cluster.membership.silence import Silence
from cluster.membership.worker_states import PartRequests, ResidualId
from cluster.network import memory, messages
from cluster.network.errors import InvalidMessage, expect
from cluster.network.frame_reader import Receiving
from cluster.network.heartbeat import BEATS
from cluster.network.loop_streams import LoopStream
from cluster.network.messages import (
  MAX_SOURCES,
  FromReplica,
  FromWorker,
  OrderProgress,
  RankTaken,
)
from cluster.network.streams import Closed, Corrupt, TransportError
from cluster.parameter_server import evaluation
from cluster.parameter_server.answers import Answers
from cluster.parameter_server.mirroring import Mirror, Place
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import Key, ShardedParameterStore
from cluster.parameter_server.versions import PART_BYTES, Report
from cluster.process.deadlines import Deadlines, Jobs, transfer_s
from cluster.process.exits import Unmendable
from outputs.checkpoints import Abandoned
from system import clock, threads

_HOSTS = 4  # Workers that may be asked to host a server within `start_s`.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerJoined(Event):
  """A parameter server that workers can connect to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerLost(Event):
  """A parameter server of a run that has begun is lost.

  Attributes:
    server: Rank of the server.
    restarts: Number of times that servers had been made to rejoin.
    reason: Text for logs.
  """

  server: int
  restarts: int
  reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareRetained(Event):
  """A server has retained its part of a mirror.

  Attributes:
    server: Rank of the server.
    number: Number of the mirror.
    address: Address of the process that has the part.
    size_bytes: Bytes of its arrays.
  """

  server: int
  number: int
  address: str
  size_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushReceived(WorkerEvent):
  """A whole push that a server has received.

  Attributes:
    server: Rank of the server.
    report: The worker's report on the iteration.
  """

  server: int
  report: messages.PushReport


class _Evaluation(NamedTuple):
  """An evaluation that a worker was asked for.

  Attributes:
    names: Names of its figures.
    figures: Future of the figures.
  """

  names: frozenset[str]
  figures: threads.Future[Mapping[str, float]]


class ParameterServerReception(Reception):
  """The coordinator's control streams to all workers and servers.

  Attributes:
    failures: Number of processes that could not continue from the mirror, by
      server.
  """

  _schema = messages.FROM_WORKER

  def __init__(
    self,
    *,
    store: ShardedParameterStore,
    num_servers: int,
    dedicated: bool,
    restore: Callable[[], tuple[int, int] | None],
    deadlines: Deadlines,
    num_workers: int,
    settings: Settings,
    jobs: Jobs,
    reserved: Mapping[int, str],
    restored_bytes: Callable[[], int] = lambda: 0,
    has_first: bool = True,
  ):
    """Creates the reception; it does not listen yet.

    Args:
      store: Receives the servers' answers.
      num_servers: Number of servers.
      dedicated: Whether servers have processes of their own.
      restore: Returns the number of the checkpoint to resume from, and of the
        servers in it; None to start from scratch.
      deadlines: Progress deadlines, after which a server counts as lost.
      num_workers: Number of workers.
      settings: Settings of the coordinator's process.
      jobs: Evaluations and checkpoints beside the event loop.
      reserved: As of `Reception`.
      restored_bytes: Returns the size of that checkpoint; called by `open`.
      has_first: Whether server 0 is always in this process.
    """
    super().__init__(
      num_workers=num_workers,
      settings=settings,
      jobs=jobs,
      reserved=reserved,
    )
    self._store = store
    self._answers = Answers(store)
    self._num_servers = num_servers
    self._dedicated = dedicated
    self._restore, self._restored_bytes = restore, restored_bytes
    self._transfer_s = 0.0  # To read the whole checkpoint.
    self._deadlines = deadlines
    self._local: Server | None = None
    self._remote: dict[int, RemoteServer] = {}
    self._silence: Silence[Incarnation] = Silence(self._timeout_s / BEATS)
    self._addresses: dict[int, str] = {}  # Last one of each server.
    self._server_ranks = [Rank() for _ in range(num_servers)]
    self._begun = False
    self._has_first = has_first
    self._is_coupled = not dedicated  # A process gets both ranks or neither.
    self._mirror: Mirror | None = None  # That servers continue from.
    # Last process of each worker, and its address.
    self._reached: dict[int, tuple[str, str]] = {}
    self._restarts = 0
    self._can_restart = False  # Whether there is a complete mirror.
    # Process that asks for a server's rank which another holds, and when.
    self._wanted: dict[int, tuple[str, float]] = {}
    self._asked: dict[int, tuple[Incarnation, float]] = {}  # To host a server.
    self._hosts: dict[int, str] = {}  # Last process asked to host a server.
    self.failures: Counter[int] = Counter()
    self._parts = PartRequests()
    # Names of the figures of answers that are awaited, and their futures, by
    # incarnation and number of the evaluation.
    self._evaluations: dict[Key, dict[int, _Evaluation]] = {}
    self._ended: dict[int, int] = {}  # Last incarnation, by worker.
    self._restored: tuple[int, int] | None = None  # See `restore`.
    # Servers that outlive a coordinator must not mistake the next one for it.
    self._identity = secrets.token_hex(8)

  def open(
    self, make: Callable[[Report, tuple[int, int] | None], Server]
  ) -> str:
    """Starts to listen, and creates server 0 in this process.

    Args:
      make: Creates the server, given the function for its reports and the
        checkpoint to resume from.

    Returns:
      The address of the listener.
    """
    restore = self._restored = self._restore()
    self._transfer_s = transfer_s(self._restored_bytes(), 1)
    address = self.listen()
    server = make(functools.partial(self.take_report, 0), restore)
    server.open(self._settings.port)
    with self._lock:
      self._local = server
    self._on_admission()
    return address

  def transfer_s(self) -> float:
    """Returns how much longer than `start_s` the start may take, seconds.

    As long as no server is missing, as all may still read their shards of a
    checkpoint.  They share a disk, so the bytes of all shards count.
    """
    with self._lock:
      holders = [rank.holder for rank in self._server_ranks[self._first :]]
    return 0.0 if None in holders else self._transfer_s

  def begin(self) -> list[Server | RemoteServer]:
    """Begins the run, if all servers have joined, and enough workers.

    From then on the loss of a server ends the run, and further calls return
    the same servers.

    Returns:
      The servers, in the order of their shares; none if the run cannot begin
      yet.
    """
    with self._lock:
      servers = self._servers()
      ready = [k for k, member in enumerate(self.members) if member.stream]
      if not self._begun and servers and self.quorum.is_reached(ready):
        self._begin()
      return servers if self._begun else []

  def _begin(self) -> None:
    """Begins or continues with the servers that have joined; under the lock."""
    self._begun, self._is_coupled = True, False
    self._asked.clear()
    for rank in self._server_ranks:
      rank.final = True

  def take_over(self, mirror: Mirror, admissions: Sequence[int]) -> None:
    """Continues from a mirror in place of another coordinator.

    Args:
      mirror: The mirror.
      admissions: Number of admissions of each worker.
    """
    with self._lock:
      self._mirror, self._restarts, self._can_restart = mirror, 1, True
      self._is_coupled = False
      for member, count in zip(self.members, admissions, strict=True):
        member.admissions = count

  def restart(
    self, mirror: Mirror, reason: str, leaving: Collection[str] = ()
  ) -> list[int]:
    """Makes all servers rejoin, to continue from a mirror.

    Workers that have rejoined already, with the addresses of the servers as
    they were, are evicted.

    Args:
      mirror: The mirror.
      reason: Text for the servers' logs.
      leaving: Processes that leave the run: their servers do not rejoin.

    Returns:
      Servers that do not rejoin, and those that were in other processes than
      their own, which are not there.

    Raises:
      LookupError: If server 0 is here and cannot continue from it.
    """
    with self._lock:
      self._mirror, self._begun = mirror, False
      self._restarts += 1
      self.failures.clear()
      remote, self._remote = self._remote, {}
      self._asked.clear()
      now = clock.monotonic()
      absent = [
        server
        for server, process in self._hosts.items()
        if (holder := self._server_ranks[server].holder) is not None
        and holder.process == process
        and now - self._wanted.get(server, ('', 0.0))[1] > self._timeout_s
      ]
      for rank in self._server_ranks:
        rank.holder, rank.final = None, False
      taking_part = [member.stream for member in self.members]
      early = [
        each
        for each in self._incarnations
        if each.has_addresses and each.stream not in taking_part
      ]
    for each in early:
      self.evict(each.index, each.stream, reason)
    for index, server in remote.items():
      is_leaving = server.incarnation.process in leaving
      kind: Literal['drained', 'left'] = 'drained' if is_leaving else 'left'
      server.stream.send(messages.SessionEnd(kind, reason))
      if is_leaving:
        absent.append(index)
    if self._local:
      self._local.restart(mirror.number)
      with self._lock:
        self._introduce_all(self._local)
    return absent

  def allow_restarts(self) -> None:
    """Lets the run survive the loss of a server: there is a mirror."""
    self._can_restart = True

  def evict_server(self, server: int, reason: str) -> None:
    """Ends the session of a server, which counts as lost; from any thread."""
    with self._lock:
      remote = self._remote.get(server)
    self._lose_server(server, f'Server {server} is lost: {reason}')
    if remote is not None:
      remote.stream.cancel(reason)

  def _lose_server(self, server: int, reason: str) -> None:
    """Reports the loss of a server of a run that has begun; in any thread."""
    if not self._can_restart:
      self.give_up(reason)
      return
    self._store.fail(Abandoned(reason))
    self.events.put(
      ServerLost(server=server, restarts=self._restarts, reason=reason)
    )

  def try_continue(self) -> list[Server | RemoteServer]:
    """Continues the run if all servers have rejoined.

    Returns:
      The servers, in the order of their shares; none if one is missing.
    """
    with self._lock:
      servers = self._servers()
      if servers:
        self._begin()
      return servers

  @property
  def has_servers(self) -> bool:
    """True if all servers can be reached."""
    with self._lock:
      return bool(self._servers())

  @property
  def restarts(self) -> int:
    """Number of times that servers were made to rejoin."""
    return self._restarts

  @property
  def missing_servers(self) -> list[int]:
    """Ranks of the servers that no process has joined as."""
    with self._lock:
      ranks = self._server_ranks
      first = self._first
      return [k for k in range(first, len(ranks)) if ranks[k].holder is None]

  def find_left(self) -> tuple[int, int] | None:
    """Returns the most updates, with their examples, that a server has left.

    A server leaves those that it had applied as it returns to a mirror.

    Returns:
      The numbers of updates and examples; None if no server has left any.
    """
    with self._lock:
      left = [each.left for each in self._remote.values() if each.left]
    return max(left, default=None)

  def find_host(self, server: int) -> None:
    """Asks a worker to host a server, unless one was asked and may do so.

    Args:
      server: Rank of the server, which no process has joined as.
    """
    now = clock.monotonic()
    sources = self._mirror.sources[server] if self._mirror else ()
    with self._lock:
      asked, at = self._asked.get(server, (None, now))
      is_asked = asked in self._incarnations
      if asked and is_asked and now - at < self._start_s / _HOSTS:
        return
      hosts = [
        each
        for each in self._incarnations
        if not each.evicted and not each.is_draining and each is not asked
      ]
      counts = Counter(each.process for each, _ in self._asked.values())
      addresses = dict(self._reached.values())
      hosts.sort(
        key=lambda each: (
          addresses.get(each.process) not in sources,
          counts[each.process],
          each.index,
        )
      )
      if not hosts:
        return
      self._asked[server] = hosts[0], now
      self._hosts[server] = hosts[0].process
    logging.info('Worker %d hosts server %d.', hosts[0].index, server)
    hosts[0].stream.send(messages.HostServer(server))

  def _record_failure(self, server: int, process: str) -> None:
    """Records that a process could not serve; another one is asked at once."""
    with self._lock:
      self.failures[server] += 1
      asked, _ = self._asked.get(server, (None, 0.0))
      if asked and asked.process == process:
        self._asked[server] = asked, -math.inf

  def find_displaced(self) -> list[int]:
    """Returns servers whose own processes are there and ask for their ranks."""
    now = clock.monotonic()
    with self._lock:
      return [
        server
        for server, (process, at) in self._wanted.items()
        if now - at <= self._timeout_s
        and (holder := self._server_ranks[server].holder) is not None
        and holder.process != process
      ]

  def server_places(self) -> list[Place]:
    """Returns the processes of all servers; [] if one is missing."""
    with self._lock:
      return [
        Place(self._settings.process, server.address)
        if isinstance(server, Server)
        else Place(server.incarnation.process, server.address)
        for server in self._servers()
      ]

  def worker_places(self) -> dict[int, Place]:
    """Returns the processes of workers that can hold parts of mirrors."""
    places = {}
    for index, member in enumerate(self.members):
      holder = member.holder
      if member.stream and holder and holder.address and not holder.is_draining:
        places[index] = Place(holder.process, holder.address)
    return places

  @property
  def own_place(self) -> Place:
    """Process of the coordinator."""
    settings = self._settings
    return Place(settings.process, settings.port.address)

  @property
  def _first(self) -> int:
    """Lowest rank of a server that may be in another process."""
    return 1 if self._has_first else 0

  def save_residual(
    self, index: int, step: int, residual: ResidualId
  ) -> threads.Future[bool]:
    """Requests a worker's part of a checkpoint: see `PartRequests`."""
    return self._parts.request(index, self.members[index], step, residual)

  def request_evaluation(
    self,
    number: int,
    address: str,
    excluded: set[Key],
    names: Collection[str],
  ) -> evaluation.PendingEvaluation | None:
    """Requests an evaluation from the first worker that has an accelerator.

    Args:
      number: Number of the evaluation, under which its version is fetched.
      address: Address from which the version is fetched.
      excluded: Workers and incarnations that are not asked.
      names: Names of the figures that it has to give.

    Returns:
      The request; None if there is no such worker.
    """
    with self._lock:
      evaluator = self._find_evaluator(excluded)
      if evaluator is None:
        return None
      key = evaluator.index, evaluator.number
      figures: threads.Future[Mapping[str, float]] = threads.Future()
      asked = _Evaluation(frozenset(names), figures)
      self._evaluations.setdefault(key, {})[number] = asked
    evaluator.stream.send(messages.Evaluate(number, address))
    return evaluation.PendingEvaluation(*key, figures)

  def _find_evaluator(self, excluded: set[Key]) -> Incarnation | None:
    """Returns the first worker with an accelerator; under the lock."""
    for member in self.members:
      holder = member.holder
      if (
        holder is not None
        and holder.is_ready
        and holder.has_accelerator
        and (holder.index, holder.number) not in excluded
        and holder.number > self._ended.get(holder.index, -1)
      ):
        return holder
    return None

  def _take_ready(
    self,
    incarnation: Incarnation,
    ready: messages.WorkerReady | messages.ReplicaReady,
  ) -> None:
    if isinstance(ready, messages.WorkerReady):
      incarnation.has_accelerator = ready.has_accelerator
      incarnation.address = ready.address or ''
      with self._lock:
        self._reached[incarnation.index] = (
          incarnation.process,
          incarnation.address,
        )
    super()._take_ready(incarnation, ready)

  def _take_message(
    self, incarnation: Incarnation, message: FromWorker | FromReplica
  ) -> None:
    key = incarnation.index, incarnation.number
    if isinstance(message, messages.ResidualSaved):
      self._parts.answer(*key, message)
    elif isinstance(message, messages.Evaluated):
      self._take_figures(key, message)
    else:
      super()._take_message(incarnation, message)

  def _take_figures(self, key: Key, message: messages.Evaluated) -> None:
    """Passes the results of an evaluation to the thread that waits for them.

    Those of an incarnation that has ended are ignored.

    Raises:
      InvalidMessage: If the worker was not asked for these.
    """
    with self._lock:
      if key[1] <= self._ended.get(key[0], -1):
        return
      asked = self._evaluations.get(key, {}).get(message.number)
      if asked is None:
        raise InvalidMessage(f'Worker {key[0]} answers what it was not asked.')
      figures = message.figures
      if figures is not None:
        given = {*figures}
        expect(given == asked.names, 'figures', f'{[*asked.names]}', given)
      self._evaluations[key].pop(message.number)
    if figures is None:
      asked.figures.set_exception(evaluation.EvaluationLost(str(message.error)))
    else:
      asked.figures.set_result(figures)

  def _on_incarnation_end(self, index: int, number: int) -> None:
    key = index, number
    self._parts.end(*key)
    with self._lock:
      self._ended[index] = max(number, self._ended.get(index, -1))
      evaluations = self._evaluations.pop(key, {})
    for asked in evaluations.values():
      asked.figures.set_exception(evaluation.EvaluationLost('it is lost'))

  @property
  def executed(self) -> int:
    """Smallest number of the coordinator's orders that a server has executed.

    Only valid once all servers have joined.
    """
    with self._lock:
      servers = self._servers()
    return min(server.progress.executed for server in servers)

  def give_up(self, reason: str, cause: BaseException | None = None) -> None:
    """Ends the run: the event loop will raise `Unmendable`; from any thread.

    Waits for answers of servers end with the same exception.

    Args:
      reason: Message of the exception.
      cause: Cause of the exception; None for none.
    """
    super().give_up(reason, cause)
    error = Unmendable(reason)
    error.__cause__ = cause
    self._store.fail(error)

  def _close_others(self) -> None:
    with self._lock:
      servers = list(self._remote.values())
    for server in servers:
      server.stream.send(self._end)
    self._store.fail(Unmendable('The run is over.'))
    if self._local:
      self._local.close(self._timeout_s)

  def _absent(self) -> list[str]:
    with self._lock:
      servers = {*range(self._first, self._num_servers)} - {*self._remote}
    return [f'server {k}' for k in sorted(servers)] + super()._absent()

  def _worker_ranks(self, index: int) -> dict[str, Rank]:
    ranks = super()._worker_ranks(index)
    if self._is_coupled and self._first <= index < self._num_servers:
      ranks[f'server {index}'] = self._server_ranks[index]
    return ranks

  def _serve_server(
    self, stream: LoopStream, hello: messages.ServerHello
  ) -> Receiving[None]:
    index, name = hello.server, f'server {hello.server}'
    rank = self._server_ranks[index]
    ranks: dict[str, Rank] = {name: rank}
    if index < self._first:
      stream.send(RankTaken('server 0 is in the process of the coordinator'))
      return
    if self._is_coupled:
      ranks[f'worker {index}'] = self.members[index]
    taken = self._take_rank(stream, index, hello.process, ranks)
    if taken is None:
      with self._lock:
        self._wanted[index] = hello.process, clock.monotonic()
      return
    with self._lock:
      self._wanted.pop(index, None)
    incarnation, before = taken
    if before is not None:  # If it is alive, it reconnects and is refused.
      before.stream.cancel('It has a newer incarnation.')
    server, number = RemoteServer(incarnation), incarnation.number
    try:
      stream.send(self._admit_server(index))
      while True:
        message, size_bytes = yield from stream.receive(
          messages.FROM_SERVER, PART_BYTES
        )
        incarnation.last_heartbeat = clock.monotonic()
        activity = ''
        if isinstance(message, messages.Activity):
          activity = message.text
        self._roster.record_message(name, number, activity)
        if isinstance(message, messages.ServerHeartbeat):
          server.progress = message.orders or server.progress
          stream.send(messages.HeartbeatReply(message.sent, clock.monotonic()))
        elif isinstance(message, messages.ServerAddress):
          server.address, server.left = message.address, message.left
          server.work = message.work
          self._add_server(index, server)
        elif isinstance(message, messages.WorkerAccepted):
          self._confirm(index, message)
        elif not isinstance(message, messages.Activity):
          body = memory.aligned(size_bytes)
          yield from stream.fill(body)
          self.take_report(index, message, [body])
    except TransportError as error:
      self._roster.record_loss(name, number, str(error))
      with self._lock:
        if rank.holder is incarnation:
          rank.holder = None
        is_used = self._remote.get(index) is server
        if is_used and not self._begun:
          del self._remote[index]
      if not server.address and self._restarts:
        self._record_failure(index, incarnation.process)
      if is_used and (self._begun or self._restarts):
        self._lose_server(index, f'Server {index} is lost: {error}')
      if isinstance(error, Corrupt):
        raise  # The listener logs it, and tells the process.

  def _admit_server(self, index: int) -> messages.ServerAdmitted:
    """Returns the admission of a server."""
    source = None
    if mirror := self._mirror:
      sources = mirror.sources[index][:MAX_SOURCES]
      source = messages.MirrorSource(mirror.number, sources)
    restored = None if source else self._restored
    return messages.ServerAdmitted(self._identity, restored, source)

  def _add_server(self, index: int, server: RemoteServer) -> None:
    """Records a server that can be reached, for the run to use.

    Workers that have connected to its predecessor are evicted: they rejoin.

    Args:
      index: The server.
      server: Its new process.

    Raises:
      Closed: If the run has begun, or another process has the rank by now.
    """
    with self._lock:
      if (
        self._begun
        or self._server_ranks[index].holder is not server.incarnation
      ):
        raise Closed('The run continues with another server.')
      before = self._addresses.get(index, server.address)
      self._addresses[index] = server.address
      self._remote[index] = server
      connected = [each for each in self._incarnations if each.has_addresses]
      self._introduce_all(server, index)
    if before != server.address:
      reason = f'Server {index} has rejoined as another process.'
      for each in connected:
        self.evict(each.index, each.stream, reason)
    self._on_admission()
    self.events.put(ServerJoined())

  def _introduce_all(
    self, server: Server | RemoteServer, index: int | None = None
  ) -> None:
    """Tells a server that joins again of all workers; under the lock.

    Args:
      server: The server, which may have been told of some before.
      index: Its rank; None for the server in this process, which does not
        answer.
    """
    for each in self._incarnations:
      if each.unconfirmed is not None and not each.evicted:
        if index is not None:
          each.unconfirmed.add(index)
        server.accept(_introduce(each))

  def _on_admission(self) -> None:
    """Tells the servers of new workers, once all can be reached."""
    with self._lock:
      servers = self._servers()
      for each in self._incarnations if servers else ():
        if each.unconfirmed is None:
          each.unconfirmed = {*self._remote}
          for server in servers:
            server.accept(_introduce(each))
    self._send_addresses()

  def _confirm(self, server: int, answer: messages.WorkerAccepted) -> None:
    """Records that a server accepts the stream of a worker.

    Raises:
      InvalidMessage: If there was no such worker.
    """
    worker, incarnation = answer.worker, answer.incarnation
    is_known = self._has_existed(worker, incarnation)
    expect(is_known, 'worker', 'one that was admitted', (worker, incarnation))
    with self._lock:
      for each in self._incarnations:
        is_meant = (each.index, each.number) == (worker, incarnation)
        if is_meant and each.unconfirmed is not None:
          each.unconfirmed.discard(server)
    self._send_addresses()

  def _send_addresses(self) -> None:
    """Sends the servers' addresses to workers whom all servers accept."""
    with self._lock:
      addresses = [server.address for server in self._servers()]
      accepted = [
        each
        for each in self._incarnations
        if addresses and each.unconfirmed == set() and not each.has_addresses
      ]
      for each in accepted:
        each.has_addresses = True
        each.stream.send(messages.ServerAddresses(addresses))

  def _servers(self) -> list[Server | RemoteServer]:
    """Returns all servers, or none if one has not joined; under the lock."""
    local = [self._local] if self._local else []
    if len(local) < self._first:
      return []
    if len(self._remote) < self._num_servers - self._first:
      return []
    remote = range(self._first, self._num_servers)
    return [*local, *(self._remote[k] for k in remote)]

  def take_report(
    self,
    server: int,
    report: messages.ServerReport,
    body: Iterable[np.ndarray],
  ) -> None:
    """Handles a report of a server; from any thread.

    Args:
      server: Rank of the server.
      report: The report.
      body: Bytes that belong to the report.

    Raises:
      InvalidMessage: If the server answers a question that it was not asked.
    """
    if isinstance(report, messages.ServerFailed):
      self._lose_server(server, f'Server {server}: {report.reason}')
    elif isinstance(report, messages.ShareSaved | messages.VersionPart):
      self._answers.take(server, report, body)
    elif isinstance(report, messages.ShareMirrored):
      self.events.put(
        ShareRetained(
          server=server,
          number=report.number,
          address=report.address,
          size_bytes=report.size_bytes,
        )
      )
    elif self._has_existed(report.worker, report.incarnation):
      if self.events.is_full(report.worker):
        self._evict_noisy(report.worker)
        return
      now = clock.monotonic()
      if isinstance(report, messages.PushArrived):
        self.events.put(
          PushReceived(
            at=now,
            worker=report.worker,
            incarnation=report.incarnation,
            server=server,
            report=report.report,
          )
        )
      else:
        self.events.put(
          WorkerLost(
            at=now,
            worker=report.worker,
            incarnation=report.incarnation,
            reason=report.reason,
          )
        )

  def _evict_noisy(self, worker: int) -> None:
    """Evicts a worker of which too many events wait; servers only report it."""
    holder = self.members[worker].holder
    if holder is not None:
      reason = f'More than {MOST_WAITING} reports on it wait.'
      self.evict(worker, holder.stream, reason)

  def _has_existed(self, worker: int, incarnation: int) -> bool:
    """Returns whether the incarnation in a worker's request has existed."""
    if worker >= len(self.members):
      return False
    return incarnation < self.members[worker].admissions

  def _watch_others(self, now: float) -> None:
    with self._lock:
      servers = list(self._remote.items())
    heard = {
      each.incarnation: each.incarnation.last_heartbeat for _, each in servers
    }
    silences_s = self._silence.measure(now, heard)
    for index, server in servers:
      silent = silences_s[server.incarnation] > self._timeout_s
      reason = 'It was silent for too long.' if silent else ''
      if reason := reason or self._find_overdue(server.progress):
        if self._begun:
          self._lose_server(index, f'Server {index} is lost: {reason}')
        server.stream.cancel(reason)
    if self._local and (reason := self._find_overdue(self._local.progress)):
      self.give_up(f'Server 0 is lost: {reason}')

  def _find_overdue(self, progress: OrderProgress) -> str:
    """Returns why a server has missed its deadline; '' if it has not."""
    if not progress.order:
      return ''
    return self._deadlines.explain_server(
      progress.order, progress.since_s, progress.usual_s
    )


def _introduce(incarnation: Incarnation) -> messages.AcceptWorker:
  """Returns the order to servers to accept the stream of a worker."""
  return messages.AcceptWorker(
    incarnation.index, incarnation.number, incarnation.process
  )
