"""Membership of a run with parameter servers: of workers and of servers.

Workers are sent the addresses of the servers once all servers can be reached.
Until the run begins, a server that is lost may rejoin.  From then on the loss
of a server ends the run, and no other process can take its rank.  If servers
run in the processes of workers, a process gets both ranks or neither.
"""

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import numpy as np

from cluster.membership.admission import Reception
from cluster.membership.events import Event, WorkerEvent, WorkerLost
from cluster.membership.members import Incarnation, Rank, RemoteServer
from cluster.membership.process import Settings
from cluster.membership.worker_states import PartRequests, ResidualId
from cluster.network import memory, messages
from cluster.network.frame_reader import Receiving
from cluster.network.loop_streams import LoopStream
from cluster.network.messages import FromReplica, FromWorker, OrderProgress
from cluster.network.streams import Closed, Corrupt, TransportError
from cluster.parameter_server import evaluation
from cluster.parameter_server.answers import Answers
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import Key, ShardedParameterStore
from cluster.parameter_server.versions import PART_BYTES, Report
from cluster.process.deadlines import Deadlines, Jobs, transfer_s
from cluster.process.exits import Unmendable

T = TypeVar('T')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerJoined(Event):
  """A parameter server that workers can connect to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushReceived(WorkerEvent):
  """A whole push that a server has received.

  Attributes:
    server: Rank of the server.
    report: The worker's report on the iteration.
  """

  server: int
  report: messages.PushReport


class ParameterServerReception(Reception):
  """The coordinator's control streams to all workers and servers."""

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
    self._addresses: dict[int, str] = {}  # Last one of each server.
    self._server_ranks = [Rank() for _ in range(num_servers)]
    self._begun = False
    self._parts = PartRequests()
    # Answers that are awaited, by incarnation and number of the evaluation.
    self._evaluations: dict[Key, dict[int, Future[Mapping[str, float]]]] = {}
    self._ended: set[Key] = set()  # Incarnations.

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
    restore = self._restore()
    self._transfer_s = transfer_s(self._restored_bytes(), 1)
    # Servers that outlive a coordinator must not mistake the next one for it.
    self._server_admission = messages.ServerAdmitted(
      secrets.token_hex(8), restore
    )
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
      holders = [rank.holder for rank in self._server_ranks[1:]]
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
        self._begun = True
        for rank in self._server_ranks:
          rank.final = True
      return servers if self._begun else []

  def save_residual(
    self, index: int, step: int, residual: ResidualId
  ) -> Future[bool]:
    """Requests a worker's part of a checkpoint: see `PartRequests`."""
    return self._parts.request(index, self.members[index], step, residual)

  def request_evaluation(
    self, number: int, address: str, excluded: set[Key]
  ) -> evaluation.PendingEvaluation | None:
    """Requests an evaluation from the first worker that has an accelerator.

    Args:
      number: Number of the evaluation, under which its version is fetched.
      address: Address from which the version is fetched.
      excluded: Workers and incarnations that are not asked.

    Returns:
      The request; None if there is no such worker.
    """
    with self._lock:
      evaluator = self._find_evaluator(excluded | self._ended)
      if evaluator is None:
        return None
      key = evaluator.index, evaluator.number
      figures: Future[Mapping[str, float]] = Future()
      self._evaluations.setdefault(key, {})[number] = figures
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
    super()._take_ready(incarnation, ready)

  def _take_message(
    self, incarnation: Incarnation, message: FromWorker | FromReplica
  ) -> None:
    key = incarnation.index, incarnation.number
    if isinstance(message, messages.ResidualSaved):
      self._parts.answer(*key, message)
    elif isinstance(message, messages.Evaluated):
      figures = self._take_future(self._evaluations, key, message.number)
      if message.figures is None:
        figures.set_exception(evaluation.EvaluationLost(str(message.error)))
      else:
        figures.set_result(message.figures)

  def _take_future(
    self, questions: dict[Key, dict[int, Future[T]]], key: Key, number: int
  ) -> Future[T]:
    """Removes and returns the future of an answer that is awaited.

    Raises:
      Corrupt: If the worker was not asked.
    """
    with self._lock:
      future = questions.get(key, {}).pop(number, None)
    if future is None:
      raise Corrupt(f'Worker {key[0]} answers what it was not asked.')
    return future

  def _on_incarnation_end(self, index: int, number: int) -> None:
    key = index, number
    self._parts.end(*key)
    with self._lock:
      self._ended.add(key)
      evaluations = self._evaluations.pop(key, {})
    for figures in evaluations.values():
      figures.set_exception(evaluation.EvaluationLost('it is lost'))

  @property
  def executed(self) -> int:
    """Smallest number of the coordinator's orders that a server has executed.

    Only valid once all servers have joined.
    """
    return min(server.progress.executed for server in self._servers())

  def give_up(self, reason: str) -> None:
    """Ends the run: the event loop will raise `Unmendable`; from any thread.

    Waits for answers of servers end with the same exception.

    Args:
      reason: Message of the exception.
    """
    super().give_up(reason)
    self._store.fail(Unmendable(reason))

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
      servers = set(range(1, self._num_servers)) - set(self._remote)
    return [f'server {k}' for k in sorted(servers)] + super()._absent()

  def _worker_ranks(self, index: int) -> dict[str, Rank]:
    ranks = super()._worker_ranks(index)
    if not self._dedicated and 0 < index < self._num_servers:
      ranks[f'server {index}'] = self._server_ranks[index]
    return ranks

  def _serve_server(
    self, stream: LoopStream, hello: messages.ServerHello
  ) -> Receiving[None]:
    index, name = hello.server, f'server {hello.server}'
    rank = self._server_ranks[index]
    ranks: dict[str, Rank] = {name: rank}
    if not self._dedicated:
      ranks[f'worker {index}'] = self.members[index]
    taken = self._take_rank(stream, index, hello.process, ranks)
    if taken is None:
      return
    incarnation, before = taken
    if before is not None:  # If it is alive, it reconnects and is refused.
      before.stream.cancel('It has a newer incarnation.')
    server, number = RemoteServer(incarnation), incarnation.number
    try:
      stream.send(self._server_admission)
      while True:
        message, size_bytes = yield from stream.receive(
          messages.FROM_SERVER, PART_BYTES
        )
        incarnation.last_heartbeat = time.monotonic()
        activity = ''
        if isinstance(message, messages.Activity):
          activity = message.text
        self._roster.record_message(name, number, activity)
        if isinstance(message, messages.ServerHeartbeat):
          server.progress = message.orders or server.progress
          stream.send(messages.HeartbeatReply(message.sent, time.monotonic()))
        elif isinstance(message, messages.ServerAddress):
          server.address = message.address
          self._add_server(index, server)
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
      if is_used and self._begun:
        self.give_up(f'Server {index} is lost: {error}')
      if isinstance(error, Corrupt):
        raise  # The listener logs it, and tells the process.

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
    if before != server.address:
      # A new process does not know the workers of its predecessor.
      reason = f'Server {index} has rejoined as another process.'
      for each in connected:
        self.evict(each.index, each.stream, reason)
    self._on_admission()
    self.events.put(ServerJoined())

  def _on_admission(self) -> None:
    """Sends workers the servers' addresses, once all can be reached."""
    with self._lock:
      servers = [server.address for server in self._servers()]
      waiting = [each for each in self._incarnations if not each.has_addresses]
      for each in waiting if servers else ():
        each.has_addresses = True
    for each in waiting if servers else ():
      each.stream.send(messages.ServerAddresses(servers))

  def _servers(self) -> list[Server | RemoteServer]:
    """Returns all servers, or none if one has not joined; under the lock."""
    if self._local is None or len(self._remote) < self._num_servers - 1:
      return []
    return [
      self._local,
      *(self._remote[k] for k in range(1, self._num_servers)),
    ]

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
      Corrupt: If the server answers a question that it was not asked.
    """
    if isinstance(report, messages.ServerFailed):
      self.give_up(f'Server {server}: {report.reason}')
    elif isinstance(report, messages.ShareSaved | messages.VersionPart):
      self._answers.take(server, report, body)
    elif self._has_existed(report.worker, report.incarnation):
      now = time.monotonic()
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

  def _has_existed(self, worker: int, incarnation: int) -> bool:
    """Returns whether the incarnation in a worker's request has existed."""
    if worker >= len(self.members):
      return False
    return incarnation < self.members[worker].admissions

  def _watch_others(self, now: float) -> None:
    with self._lock:
      servers = list(self._remote.items())
    for index, server in servers:
      silent = now - server.incarnation.last_heartbeat > self._timeout_s
      reason = 'It was silent for too long.' if silent else ''
      if reason := reason or self._find_overdue(server.progress):
        if self._begun:
          self.give_up(f'Server {index} is lost: {reason}')
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
