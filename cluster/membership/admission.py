"""Membership of a run: the coordinator admits and evicts workers.

Each worker has a control stream to the coordinator.  Gradients and parameters
travel over other connections.  One thread per stream reads it and puts events
into one queue, as dictionaries:

  told 'ready'       a worker can begin: worker, life, stream
  told 'failed'      the session of a worker has ended: worker, life, reason
  told 'unmendable'  the run cannot continue: reason

The receptions of the two kinds of routes add events of their own (`reception`
of `served` and of `reduced`).  A worker that is lost may rejoin at any time,
before and after the run begins.

A rank is the place of one worker or one server.  Each admission of a process to
a rank has an incarnation number, in the field `life`.  At most one incarnation
of a rank is valid at a time:

  * While the admitted process sends heartbeats, another process that wants the
    rank is refused, and retries (`joining`).
  * Once the stream of the admitted process has ended, or the process is silent
    or was evicted, another process is admitted.
  * A process that reconnects to its own rank is admitted at once.

A new admission ends the incarnation before.  Later messages of that incarnation
are ignored; its process is only told to leave.
"""

import contextlib
import math
import queue
import threading
import time
import types
from collections.abc import Mapping
from typing import Any

from absl import logging

from cluster.membership import checked
from cluster.membership.members import Incarnation, Member, Rank
from cluster.membership.roster import Roster
from cluster.network.heartbeat import BEATS, within
from cluster.network.rate_limited_log import Sayings
from cluster.network.streams import (
  Listener,
  Refused,
  Security,
  Stream,
  TransportError,
)
from cluster.process.deadlines import Jobs, exit_hung
from cluster.process.exits import Unmendable
from outputs import transient

_BACK = 'It has connected again.'
_REPLACED = 'It was silent, and another process has its rank now.'
_TELL_S = 10.0  # Between two log lines on processes whose rank is held.


class Reception:
  """The coordinator's control streams to all workers.

  Attributes:
    events: Queue of events for the event loop.
    members: The workers, by rank.
    looked: Time at which the event loop was last alive, monotonic seconds; inf
      while it need not be.
  """

  _words: checked.Words = checked.OF_WORKERS  # Valid messages of workers.
  _told: checked.Words = {}  # Those with a field 'event', by its value.

  def __init__(
    self,
    *,
    num_workers: int,
    host: str,
    port: int,
    fingerprint: str,
    security: Security,
    timeout_s: float,
    start_s: float,
    jobs: Jobs,
    reserved: Mapping[int, str] = types.MappingProxyType({}),
  ):
    """Creates the reception; it does not listen yet.

    Args:
      num_workers: Number of workers.
      host: Address to listen on.
      port: Port to listen on; 0 for any.
      fingerprint: Hash of the config, which must be that of all processes.
      security: Credentials of all streams.
      timeout_s: Silence after which a process counts as lost.
      start_s: Seconds within which all processes have to join.
      jobs: Evaluations and checkpoints beside the event loop.
      reserved: Identities of processes, by worker: no other process can have
        the rank of such a worker.
    """
    self.looked = math.inf
    self._jobs = jobs
    self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    self.members = [Member() for _ in range(num_workers)]
    self._host, self._port = host, port
    self._fingerprint = fingerprint
    self._security = security
    self._timeout_s = timeout_s
    self._start_s = start_s
    self._roll = Roster()
    self._reserved = reserved
    self._refusals = Sayings(apart_s=_TELL_S)
    self._visits: set[Incarnation] = set()
    self._over = threading.Event()
    self._end: dict[str, Any] = {}  # The last message to all.
    self._lock = threading.Lock()
    self._listener: Listener | None = None

  def listen(self) -> str:
    """Starts to listen; returns the address.

    Raises:
      Unmendable: If another process has had the port for `start_s`.
      TransportError: If the address cannot be listened on at all.
    """
    try:
      self._listener = transient.retry(
        lambda: Listener(self._host, self._port, self._handle, self._security),
        limit_s=lambda: self._start_s,
        what='Listening',
      )
    except TransportError as error:
      if not transient.is_transient(error):
        raise
      raise Unmendable(f'The coordinator cannot listen: {error}') from error
    logging.info(
      'Coordinator at %s; beats every %.3g s, lost after %.3g s, start within %.3g s',
      self._listener.address,
      self._timeout_s / BEATS,
      self._timeout_s,
      self._start_s,
    )
    threading.Thread(target=self._watch, daemon=True).start()
    return self._listener.address

  def missing(self) -> str:
    """Returns a line on each process that has not joined: its last activity."""
    return self._roll.describe(self._absent(), 2 * self._timeout_s / BEATS)

  def send(self, stream: Stream, header: dict[str, Any]) -> None:
    """Sends a message; ignores errors, which the stream's reader reports."""
    # A process that does not read must not block the caller.
    with contextlib.suppress(TransportError), within(stream, self._timeout_s):
      stream.send(header)

  def evict(self, index: int, stream: Stream, reason: str) -> None:
    """Evicts a worker's process: ends its incarnation, which frees the rank.

    Args:
      index: The worker.
      stream: Control stream to the process.
      reason: Reason that is sent to the process.
    """
    holder = self.members[index].holder
    if holder is not None and holder.stream is stream:
      self._end_incarnation(holder, reason)
    self.send(stream, {'end': 'left', 'reason': reason})

  def admit(
    self, stream: Stream, hello: Mapping[str, Any]
  ) -> Incarnation | None:
    """Admits the process of a worker, unless another one holds the rank.

    Args:
      stream: Control stream from the process.
      hello: Its handshake, validated.

    Returns:
      The session, with a new incarnation number; the incarnation before has
      been ended.  None if the process was refused; it has been told the reason.
    """
    index, process = hello['worker'], hello['process']
    if self._reserved.get(index, process) != process:
      stream.send(
        {'held': f'worker {index} is in the process of the coordinator'}
      )
      return None
    taken = self._take_rank(stream, index, process, self._worker_ranks(index))
    if taken is None:
      return None
    visit, before = taken
    if before is not None:
      reason = _BACK if before.process == process else _REPLACED
      self._end_incarnation(before, reason)
    return visit

  def hear(self, visit: Incarnation, said: dict[str, Any]) -> None:
    """Handles a message of a worker's process.

    A process whose incarnation has ended is only told to leave.

    Args:
      visit: Session of the process.
      said: The message, validated.

    Raises:
      TransportError: If the process cannot be answered, or if the message
        answers a question that was not asked.
    """
    index, life, stream = visit.index, visit.life, visit.stream
    visit.seen = time.monotonic()
    self._roll.seen(f'worker {index}', life, said.get('doing', ''))
    event = {'worker': index, 'life': life}
    if visit.evicted:
      self.send(stream, {'end': 'left', 'reason': visit.evicted})
    elif 'ready' in said:
      self._take_ready(visit, event | said)
    elif 'beat' in said:
      member = self.members[index]
      if life == member.life:
        member.seen = visit.seen
        member.pace.tell(said['pace'], visit.seen)
      stream.send({'beat': said['beat'], 'clock': time.monotonic()})
    elif 'event' in said:
      self._tell(event | said)

  def lose(self, visit: Incarnation, reason: str) -> None:
    """Ends the session of a worker's process whose stream has ended.

    Args:
      visit: The session.
      reason: Reason for the end, for logs.
    """
    with self._lock:
      self._visits.discard(visit)
      if self.members[visit.index].holder is visit:
        self.members[visit.index].holder = None
      self._tell_lost(visit, reason)
    self._gone(visit.index, visit.life)
    visit.closed.set()

  def give_up(self, reason: str) -> None:
    """Makes the event loop end the run with `Unmendable`; from any thread.

    Args:
      reason: Message of the exception.
    """
    self.events.put({'event': 'unmendable', 'reason': reason})

  def close(self, *, finished: bool) -> None:
    """Tells all processes that the run is over, and waits until they leave.

    Args:
      finished: Whether the run is complete; if not, it can be resumed from a
        checkpoint.
    """
    reason = 'finished' if finished else 'stopped'
    self._end = {'end': 'over', 'reason': reason, 'finished': finished}
    self._over.set()
    with self._lock:
      visits = list(self._visits)
    for visit in visits:
      self.send(visit.stream, self._end)
    deadline = time.monotonic() + self._timeout_s
    for visit in visits:
      if not visit.closed.wait(max(deadline - time.monotonic(), 0.0)):
        logging.warning('The worker at %s has not ended.', visit.stream.peer)
    deadline = time.monotonic() + self._timeout_s
    self._close_others()
    self._refusals.close()
    if self._listener:
      self._listener.close(max(deadline - time.monotonic(), 0.0))

  def _close_others(self) -> None:
    """Closes the resources of a subclass, once the workers have left."""

  def _absent(self) -> list[str]:
    """Returns the names of the processes that have not joined."""
    return [f'worker {k}' for k, m in enumerate(self.members) if not m.stream]

  def _greeted(self, stream: Stream, hello: Any) -> Mapping[str, Any]:
    """Returns the validated handshake of a process.

    Raises:
      Refused: If it is invalid or of another run; the process has been told.
    """
    try:
      hello = self._checked(hello)
      if hello['fingerprint'] != self._fingerprint:
        raise Refused(
          f'config: expected the same as that of the coordinator, got another from '
          f'{stream.peer}.'
        )
    except Refused as error:
      stream.send({'refused': str(error)})
      raise
    return hello

  def _checked(self, hello: Any) -> dict[str, Any]:
    return checked.hello(hello, workers=len(self.members), servers=1)

  def _handle(self, stream: Stream, hello: Any) -> None:
    """Serves the control stream of a process until it ends; in its thread."""
    self._serve_worker(stream, self._greeted(stream, hello))

  def _serve_worker(self, stream: Stream, hello: Mapping[str, Any]) -> None:
    visit = self.admit(stream, hello)
    if visit is None:
      return
    reason = 'Its handler has failed.'
    try:
      stream.send({'life': visit.life})
      with self._lock:
        self._visits.add(visit)
      self._came()
      if self._over.is_set():
        self.send(stream, self._end)
      while True:
        header = stream.receive(0).header
        said = checked.words(header, stream.peer, self._words, self._told)
        self.hear(visit, said)
    except TransportError as error:
      reason = str(error)
    finally:
      self.lose(visit, reason)

  def _worker_ranks(self, index: int) -> dict[str, Rank]:
    """Returns a worker's rank, then other ranks of its process, by name."""
    return {f'worker {index}': self.members[index]}

  def _take_rank(
    self,
    stream: Stream,
    index: int,
    process: str,
    ranks: Mapping[str, Rank],
  ) -> tuple[Incarnation, Incarnation | None] | None:
    """Gives a process a rank, with the rank's next incarnation number.

    Args:
      stream: Control stream from the process.
      index: Number of the worker or server.
      process: Identity of the process.
      ranks: The rank, and then others that belong to the same process, by name.

    Returns:
      The new session, and that of the incarnation before if it has not ended.
      None if another process holds one of the ranks; this one has been told.
    """
    with self._lock:
      held = self._held(process, ranks)
      if not held:
        name, rank = next(iter(ranks.items()))
        visit = Incarnation(stream, index, process, rank.lives)
        before, rank.holder = rank.holder, visit
        rank.lives += 1
        self._roll.came(name, visit.life, stream.peer)
        return visit, before
    self._refusals.say(f'{stream.peer}: refused for now: {held}')
    stream.send({'held': held})
    return None

  def _held(self, process: str, ranks: Mapping[str, Rank]) -> str:
    """Returns which other process holds one of some ranks; '' if none does.

    Args:
      process: Identity of the process that wants the ranks.
      ranks: The ranks, by name.
    """
    now = time.monotonic()
    for name, rank in ranks.items():
      holder = rank.holder
      if holder and rank.blocks(process, now, self._timeout_s):
        return (
          f'{name} is held by the process at {holder.stream.peer}, '
          f'incarnation {holder.life}, which was heard of '
          f'{now - holder.seen:.1f} s ago'
        )
    return ''

  def _end_incarnation(self, visit: Incarnation, reason: str) -> None:
    """Ends the incarnation of a worker's process; its messages are ignored.

    Does nothing if the incarnation has been ended before.

    Args:
      visit: Session of the process.
      reason: Reason that the process is told.
    """
    with self._lock:
      if visit.evicted:
        return
      visit.evicted = reason
      if self.members[visit.index].holder is visit:
        self.members[visit.index].holder = None
      self._tell_lost(visit, reason)
    self._gone(visit.index, visit.life)

  def _tell_lost(self, visit: Incarnation, reason: str) -> None:
    """Puts the end of a worker's session into the queue; under the lock."""
    self._roll.lost(f'worker {visit.index}', visit.life, reason)
    event = {'worker': visit.index, 'life': visit.life}
    self.events.put(event | {'event': 'failed', 'reason': reason})

  def _take_ready(self, visit: Incarnation, event: dict[str, Any]) -> None:
    """Puts the event into the queue, unless the worker has been evicted."""
    with self._lock:
      visit.ready = True
      if not visit.evicted:
        self.events.put(event | {'event': 'ready', 'stream': visit.stream})

  def _came(self) -> None:
    """Called once a worker has been admitted."""

  def _tell(self, event: dict[str, Any]) -> None:
    """Handles a worker's message with a field 'event'.

    Args:
      event: The message, with the fields `worker` and `life` added.
    """
    self.events.put(event)

  def _gone(self, index: int, life: int) -> None:
    """Called once an incarnation of a worker has ended."""

  def _watch(self) -> None:
    """Looks for hanging processes and jobs, in a thread of its own.

    The event loop cannot do this: it may wait for one of them.
    """
    while not self._over.wait(self._timeout_s / BEATS):
      now = time.monotonic()
      with self._lock:
        visits = list(self._visits)
      for visit in visits:
        # The process ends the stream itself after 1 timeout, if it can.
        if now - visit.seen > 2 * self._timeout_s:
          visit.stream.cancel('It was silent for too long.')
        elif not visit.ready and now - visit.began > self._start_s:
          late = f'It was not ready within {self._start_s:g} s.'
          self.evict(visit.index, visit.stream, late)
      self._watch_others(now)
      if hanging := self._jobs.overdue():
        exit_hung(*hanging)
      # The event loop may wait for one of the jobs, which have more time.
      if now - self.looked > self._start_s and not self._jobs:
        exit_hung('events', now - self.looked)

  def _watch_others(self, now: float) -> None:
    """Looks for hanging processes that are no workers, in the same thread."""
