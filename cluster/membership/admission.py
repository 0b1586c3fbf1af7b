"""Membership of a run: the coordinator admits and evicts workers.

Each worker has a control stream to the coordinator.  Gradients and parameters
travel over other connections.  One thread serves all control streams, and puts
events into the queue of the event loop of the run (`events`).  A worker that is
lost may rejoin at any time, before and after the run begins.

A rank is the place of one worker or one server.  Each admission of a process to
a rank is an incarnation, which has a number.  At most one incarnation of a rank
is valid at a time:

  * While the admitted process sends heartbeats, another process that asks for
    the rank is refused, and retries (`joining`).
  * Once the stream of the admitted process has ended, or the process is silent
    or was evicted, another process is admitted.
  * A process that reconnects to its own rank is admitted at once.

A new admission ends the incarnation before.  Later messages of that incarnation
are ignored; its process is only sent the end of its session.
"""

import math
import types
from collections.abc import Mapping
from typing import Literal

import msgspec
from absl import logging

from cluster.membership.events import (
  MOST_WAITING,
  EventQueue,
  RunFailed,
  WorkerDraining,
  WorkerJoined,
  WorkerLost,
  WorkerMessage,
)
from cluster.membership.members import Incarnation, Member, Rank
from cluster.membership.process import Settings
from cluster.membership.quorum import Quorum
from cluster.membership.roster import Roster
from cluster.membership.silence import Silence
from cluster.membership.versions import describe_difference
from cluster.network import messages
from cluster.network.errors import InvalidMessage, expect
from cluster.network.frame_reader import Receiving
from cluster.network.heartbeat import BEATS
from cluster.network.loop_streams import LoopListener, LoopStream
from cluster.network.messages import (
  HELLO,
  Activity,
  FromReplica,
  FromWorker,
  HeartbeatReply,
  Message,
  RankTaken,
  Rejected,
  ReplicaReady,
  Schema,
  ServerHello,
  SessionEnd,
  WorkerAdmitted,
  WorkerHeartbeat,
  WorkerHello,
  WorkerReady,
)
from cluster.network.rate_limited_log import RateLimitedLog
from cluster.network.streams import Corrupt, Refused, TransportError
from cluster.process.deadlines import Jobs, exit_hung
from cluster.process.exits import Unmendable
from outputs import manifests, transient
from system import clock, threads

_RECONNECTED = 'It has connected again.'
_REPLACED = 'It was silent, and another process has its rank now.'
_FLUSH_S = 0.01  # Between two looks at what streams have not sent.
_LOG_INTERVAL_S = 10.0  # Between two lines on processes whose rank is taken.


class Reception:
  """The coordinator's control streams to all workers.

  In the thread of the streams, a worker passes `admit`, then `handle` for each
  message, and `lose` once its stream ends.  These put events into the queue.
  The event loop of the run, in its own thread, decides which incarnation takes
  part: it alone sets `stream` and `incarnation` of a member, and calls `evict`.

  A subclass states the messages of its workers (`_schema`), and may serve other
  processes (`_serve_server`, `_watch_others`, `_close_others`, `_absent`) and
  react to workers (`_on_admission`, `_take_ready`, `_take_message`,
  `_on_incarnation_end`).

  Attributes:
    events: Queue of events for the event loop.
    members: The workers, by rank.
    quorum: Workers that the run needs to start.
  """

  _schema: Schema[FromWorker | FromReplica]  # Messages of workers.
  _num_servers = 0  # Parameter servers.

  def __init__(
    self,
    *,
    num_workers: int,
    settings: Settings,
    jobs: Jobs,
    reserved: Mapping[int, str] = types.MappingProxyType({}),
  ):
    """Creates the reception; it does not listen yet.

    Args:
      num_workers: Number of workers.
      settings: Settings of the coordinator's process.
      jobs: Evaluations and checkpoints beside the event loop.
      reserved: Identities of processes, by worker: no other process can have
        the rank of such a worker.
    """
    # When the event loop was last alive, monotonic s; inf while not watched.
    self._loop_alive_at = math.inf
    self._jobs = jobs
    self.events = EventQueue()
    self.members = [Member() for _ in range(num_workers)]
    self._settings = settings
    self._timeout_s = settings.timeout_s
    self._start_s = settings.start_s
    self.quorum = Quorum(
      num_workers=num_workers,
      min_workers=settings.min_workers,
      grace_s=settings.timeout_s / BEATS,
    )
    self._roster = Roster()
    self._reserved = reserved
    self._refusals = RateLimitedLog(interval_s=_LOG_INTERVAL_S)
    self._incarnations: set[Incarnation] = set()
    self._over = threads.Event()
    self._end = SessionEnd('over', 'stopped')  # The last message to all.
    self._lock = threads.Lock()
    self._listener: LoopListener | None = None

  def listen(self) -> str:
    """Starts to listen for processes; returns the address.

    Raises:
      Unmendable: If another process has had the port for `start_s`.
      TransportError: If the address cannot be listened on at all.
    """
    try:
      self._listener = transient.retry(
        lambda: LoopListener(self._settings.port, self._handle),
        limit_s=lambda: self._start_s,
        what='Listening',
      )
    except TransportError as error:
      if not transient.is_transient(error):
        raise
      raise Unmendable(f'The coordinator cannot listen: {error}') from error
    logging.info(
      'Coordinator at %s; heartbeats every %.3g s, lost after %.3g s, start '
      'within %.3g s',
      self._listener.address,
      self._timeout_s / BEATS,
      self._timeout_s,
      self._start_s,
    )
    threads.Thread(target=self._watch, daemon=True).start()
    return self._listener.address

  def transfer_s(self) -> float:
    """Returns how much longer than `start_s` the start may take, seconds."""
    return 0.0

  def missing(self) -> str:
    """Returns a line on each process that has not joined: its last activity."""
    return self._roster.describe(self._absent(), 2 * self._timeout_s / BEATS)

  def send_to_worker(self, index: int, message: Message) -> None:
    """Sends a message to the process that takes part as a worker, if any."""
    if stream := self.members[index].stream:
      stream.send(message)

  def evict(
    self,
    index: int,
    stream: LoopStream,
    reason: str,
    kind: Literal['left', 'drained'] = 'left',
  ) -> None:
    """Evicts a worker's process: ends its incarnation, which frees the rank.

    Args:
      index: The worker.
      stream: Control stream to the process.
      reason: Reason that is sent to the process.
      kind: 'left' if the process may rejoin, 'drained' if it wants to end.
    """
    holder = self.members[index].holder
    if holder is not None and holder.stream is stream:
      self._end_incarnation(holder, reason)
    stream.send(SessionEnd(kind, reason))

  def admit(self, stream: LoopStream, hello: WorkerHello) -> Incarnation | None:
    """Admits the process of a worker, unless another one holds the rank.

    Args:
      stream: Control stream from the process.
      hello: Its first message.

    Returns:
      The new incarnation; the one before has been ended.  None if the process
      was refused; it has been sent the reason.
    """
    index, process = hello.worker, hello.process
    if self.events.is_full(index):  # It has joined and left again and again.
      stream.send(RankTaken(f'too many events of worker {index} wait'))
      return None
    if self._reserved.get(index, process) != process:
      reason = f'worker {index} is in the process of the coordinator'
      stream.send(RankTaken(reason))
      return None
    taken = self._take_rank(stream, index, process, self._worker_ranks(index))
    if taken is None:
      return None
    incarnation, before = taken
    if before is not None:
      self._end_incarnation(
        before, _RECONNECTED if before.process == process else _REPLACED
      )
    return incarnation

  def handle(
    self, incarnation: Incarnation, message: FromWorker | FromReplica
  ) -> None:
    """Handles a message of a worker's process.

    A process whose incarnation has ended is only sent the end of its session.

    Args:
      incarnation: Incarnation of the process.
      message: The message.

    Raises:
      InvalidMessage: If the message cannot be true, such as an answer to a
        request that was not sent, or if too many wait for the event loop.
    """
    index, stream = incarnation.index, incarnation.stream
    incarnation.last_heartbeat = clock.monotonic()
    activity = message.text if isinstance(message, Activity) else ''
    self._roster.record_message(f'worker {index}', incarnation.number, activity)
    if incarnation.evicted:
      stream.send(SessionEnd('left', incarnation.evicted))
    elif isinstance(message, WorkerHeartbeat):
      member = self.members[index]
      if incarnation.number == member.incarnation:
        member.last_heartbeat = incarnation.last_heartbeat
        member.progress.update(message.progress, incarnation.last_heartbeat)
      if message.is_draining and not incarnation.is_draining:
        incarnation.is_draining = True
        self.events.put(
          WorkerDraining(worker=index, incarnation=incarnation.number)
        )
      stream.send(HeartbeatReply(message.sent, clock.monotonic()))
    elif isinstance(message, Activity):
      pass  # The roster has it.
    elif self.events.is_full(index):
      raise InvalidMessage(
        f'expected at most {MOST_WAITING} messages that wait for the '
        'coordinator, got more'
      )
    elif isinstance(message, WorkerReady | ReplicaReady):
      expect(not incarnation.is_ready, 'report', 'one', 'another')
      self._take_ready(incarnation, message)
    else:
      self._take_message(incarnation, message)

  def lose(self, incarnation: Incarnation, reason: str) -> None:
    """Ends the incarnation of a worker's process whose stream has ended.

    Args:
      incarnation: The incarnation.
      reason: Reason for the end, for logs.
    """
    with self._lock:
      self._incarnations.discard(incarnation)
      if self.members[incarnation.index].holder is incarnation:
        self.members[incarnation.index].holder = None
      self._put_lost(incarnation, reason)
    self._on_incarnation_end(incarnation.index, incarnation.number)
    incarnation.closed.set()

  def note_loop(self, *, is_watched: bool) -> None:
    """Records that the event loop is alive; called by the loop.

    Args:
      is_watched: Whether the process is to exit if the loop hangs from now on.
    """
    self._loop_alive_at = clock.monotonic() if is_watched else math.inf

  def give_up(self, reason: str, cause: BaseException | None = None) -> None:
    """Ends the run: the event loop will raise `Unmendable`; from any thread.

    Args:
      reason: Message of the exception.
      cause: Cause of the exception; None for none.
    """
    self.events.put(RunFailed(reason=reason, cause=cause))

  def flush(self, limit_s: float) -> None:
    """Waits until the system has everything that was sent.

    Args:
      limit_s: Limit of the wait, seconds.
    """
    deadline = clock.monotonic() + limit_s
    with self._lock:
      streams = [each.stream for each in self._incarnations]
    while any(stream.has_unsent for stream in streams):
      if clock.monotonic() > deadline:
        logging.warning('Processes have not taken the last messages.')
        return
      clock.sleep(_FLUSH_S)

  def close(self, *, finished: bool) -> None:
    """Ends the sessions of all processes, and waits until they have left.

    Args:
      finished: Whether the run is complete; if not, it can be resumed from a
        checkpoint.
    """
    reason = 'finished' if finished else 'stopped'
    self._end = SessionEnd('over', reason, finished)
    self._over.set()
    with self._lock:
      incarnations = list(self._incarnations)
    for each in incarnations:
      each.stream.send(self._end)
    deadline = clock.monotonic() + self._timeout_s
    for each in incarnations:
      if not each.closed.wait(max(deadline - clock.monotonic(), 0.0)):
        logging.warning('The worker at %s has not ended.', each.stream.peer)
    deadline = clock.monotonic() + self._timeout_s
    self._close_others()
    self._refusals.close()
    if self._listener:
      self._listener.close(max(deadline - clock.monotonic(), 0.0))

  def _close_others(self) -> None:
    """Closes the resources of a subclass, once the workers have left."""

  def _absent(self) -> list[str]:
    """Returns the names of the processes that have not joined."""
    return [f'worker {k}' for k, m in enumerate(self.members) if not m.stream]

  def _decode_hello(
    self, stream: LoopStream, data: msgspec.Raw
  ) -> WorkerHello | ServerHello:
    """Returns the first message of a process.

    Args:
      stream: Stream from the process.
      data: The encoded message.

    Raises:
      Refused: If it is invalid, of another run, or of other versions; the
        process has been sent the reason.
    """
    try:
      try:
        hello = HELLO.decode(data)
      except ValueError as error:
        raise Refused(f'sent another hello: {error}') from error
      self._check_rank(hello)
      if hello.fingerprint != self._settings.fingerprint:
        # As they are after a message, which cuts long values.
        own = messages.printable(dict(self._settings.fields), messages.LINE)
        differs = manifests.describe_difference(own, hello.fields)
        raise Refused(
          'config: expected the same as that of the coordinator, got another '
          f'from {stream.peer}{": " if differs else ""}{differs}.'
        )
      if differs := describe_difference(
        self._settings.versions, hello.versions
      ):
        raise Refused(f'versions: {differs}, from {stream.peer}.')
    except Refused as error:
      stream.send(Rejected(str(error)))
      raise
    return hello

  def _check_rank(self, hello: WorkerHello | ServerHello) -> None:
    """Checks that a process asks for a rank of this run.

    Raises:
      Refused: If it does not.
    """
    if isinstance(hello, WorkerHello):
      got, is_known = f'worker {hello.worker}', hello.worker < len(self.members)
    else:
      got, is_known = f'server {hello.server}', hello.server < self._num_servers
    if not is_known:
      raise Refused(
        f'expected one of {len(self.members)} workers or '
        f'{self._num_servers} servers, got {got}'
      )

  def _handle(self, stream: LoopStream, hello: msgspec.Raw) -> Receiving[None]:
    """Serves the control stream of a process until it ends."""
    decoded = self._decode_hello(stream, hello)
    if isinstance(decoded, WorkerHello):
      yield from self._serve_worker(stream, decoded)
    else:
      yield from self._serve_server(stream, decoded)

  def _serve_server(
    self, stream: LoopStream, hello: ServerHello
  ) -> Receiving[None]:
    """Serves the control stream of a server."""
    raise NotImplementedError

  def _serve_worker(
    self, stream: LoopStream, hello: WorkerHello
  ) -> Receiving[None]:
    incarnation = self.admit(stream, hello)
    if incarnation is None:
      return
    reason = 'Its handler has failed.'
    try:
      succeeded = self._find_succeeded(incarnation.index)
      stream.send(WorkerAdmitted(incarnation.number, succeeded))
      with self._lock:
        self._incarnations.add(incarnation)
      self._on_admission()
      if self._over.is_set():
        stream.send(self._end)
      while True:
        message, _ = yield from stream.receive(self._schema, 0)
        self.handle(incarnation, message)
    except TransportError as error:
      reason = str(error)
      if isinstance(error, Corrupt):
        raise  # The listener logs it, and tells the process.
    finally:
      self.lose(incarnation, reason)

  def _find_succeeded(self, index: int) -> int | None:
    """Returns the term that a worker's admission names: `WorkerAdmitted`."""
    del index
    return None

  def _worker_ranks(self, index: int) -> dict[str, Rank]:
    """Returns a worker's rank, then other ranks of its process, by name."""
    return {f'worker {index}': self.members[index]}

  def _take_rank(
    self,
    stream: LoopStream,
    index: int,
    process: str,
    ranks: Mapping[str, Rank],
  ) -> tuple[Incarnation, Incarnation | None] | None:
    """Assigns a rank to a process, with the rank's next incarnation number.

    Args:
      stream: Control stream from the process.
      index: Number of the worker or server.
      process: Identity of the process.
      ranks: The rank, and then others that belong to the same process, by name.

    Returns:
      The new session, and that of the incarnation before if it has not ended.
      None if another process holds one of the ranks; this one has been sent the
      reason.
    """
    with self._lock:
      obstacle = self._find_holder(process, ranks)
      if not obstacle:
        name, rank = next(iter(ranks.items()))
        new = Incarnation(stream, index, process, rank.admissions)
        before, rank.holder = rank.holder, new
        rank.admissions += 1
        self._roster.record_admission(name, new.number, stream.peer)
        return new, before
    self._refusals.write(f'{stream.peer}: refused for now: {obstacle}')
    stream.send(RankTaken(obstacle))
    return None

  def _find_holder(self, process: str, ranks: Mapping[str, Rank]) -> str:
    """Returns which other process holds one of some ranks; '' for none.

    Args:
      process: Identity of the process that asks for the ranks.
      ranks: The ranks, by name.
    """
    now = clock.monotonic()
    for name, rank in ranks.items():
      holder = rank.holder
      if holder and rank.blocks(process, now, self._timeout_s):
        return (
          f'{name} is held by the process at {holder.stream.peer}, '
          f'incarnation {holder.number}, whose last message came '
          f'{now - holder.last_heartbeat:.1f} s ago'
        )
    return ''

  def _end_incarnation(self, incarnation: Incarnation, reason: str) -> None:
    """Ends the incarnation of a worker's process; its messages are ignored.

    Does nothing if the incarnation has been ended before.

    Args:
      incarnation: The incarnation.
      reason: Reason that the process is sent.
    """
    with self._lock:
      if incarnation.evicted:
        return
      incarnation.evicted = reason
      if self.members[incarnation.index].holder is incarnation:
        self.members[incarnation.index].holder = None
      self._put_lost(incarnation, reason)
    self._on_incarnation_end(incarnation.index, incarnation.number)

  def _put_lost(self, incarnation: Incarnation, reason: str) -> None:
    """Queues the event that an incarnation has ended; under the lock."""
    index, number = incarnation.index, incarnation.number
    self._roster.record_loss(f'worker {index}', number, reason)
    self.events.put(WorkerLost(worker=index, incarnation=number, reason=reason))

  def _take_ready(
    self, incarnation: Incarnation, ready: WorkerReady | ReplicaReady
  ) -> None:
    """Queues the event that a worker is ready, unless it has been evicted."""
    with self._lock:
      incarnation.is_ready = True
      if not incarnation.evicted:
        self.events.put(
          WorkerJoined(
            worker=incarnation.index,
            incarnation=incarnation.number,
            stream=incarnation.stream,
            ready=ready,
          )
        )

  def _on_admission(self) -> None:
    """Called once a worker has been admitted."""

  def _take_message(
    self, incarnation: Incarnation, message: FromWorker | FromReplica
  ) -> None:
    """Handles a worker's message that is not about its session.

    Args:
      incarnation: Incarnation of the worker.
      message: The message.
    """
    self.events.put(
      WorkerMessage(
        worker=incarnation.index,
        incarnation=incarnation.number,
        message=message,
      )
    )

  def _on_incarnation_end(self, index: int, number: int) -> None:
    """Called once an incarnation of a worker has ended."""

  def _watch(self) -> None:
    """Looks for hanging processes and jobs, in a thread of its own.

    The event loop cannot do this: it may wait for one of them.
    """
    silence: Silence[Incarnation] = Silence(self._timeout_s / BEATS)
    while not self._over.wait(self._timeout_s / BEATS):
      now = clock.monotonic()
      with self._lock:
        incarnations = list(self._incarnations)
      heard = {each: each.last_heartbeat for each in incarnations}
      for each, silence_s in silence.measure(now, heard).items():
        # The process ends the stream itself after 1 timeout, if it can.
        if silence_s > 2 * self._timeout_s:
          each.stream.cancel('It was silent for too long.')
        elif not each.is_ready and now - each.began > (
          limit_s := self._start_s + self.transfer_s()
        ):
          late = f'It was not ready within {limit_s:g} s.'
          self.evict(each.index, each.stream, late)
      self._watch_others(now)
      if hanging := self._jobs.overdue():
        exit_hung(*hanging)
      # The event loop may wait for one of the jobs, which may take longer.
      if now - self._loop_alive_at > self._start_s and not self._jobs:
        exit_hung('events', now - self._loop_alive_at)

  def _watch_others(self, now: float) -> None:
    """Looks for other hanging processes than workers, in the same thread."""
