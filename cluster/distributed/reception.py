"""Where the lead receives workers, and notices who is gone.

What is said here is control alone: gradients and parameters travel elsewhere.
Each stream is read by a thread of its own, which puts what happens into one
queue, as dictionaries:

  told 'ready'       a worker can begin: worker, life, stream
  told 'failed'      a stream of a worker has ended: worker, life, reason
  told 'unmendable'  the run cannot go on: reason

and what else the workers of a route say (`reception` of `served` and of
`reduced`).  Until the run begins, and after that too, whoever is lost may come
again, as a new life.

Each admission of a process to a rank, that of a worker or a server, has an
incarnation number: its life.  One of them at a time counts.  While the process
that was admitted last gives signs of life, another one of that rank is refused,
and tries again (`joining`).  Once the stream of the first has ended, it is
silent or was evicted, the other one is admitted, and the same process is
whenever it connects again.  The incarnation before is over then: whatever its
process still says, it is only told to leave.
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

from cluster.distributed import checked
from cluster.distributed.members import Member, Rank, Visit
from cluster.distributed.pace import Jobs, exit_hung
from cluster.distributed.roll import Roll
from cluster.transport.heart import BEATS, Unmendable, within
from cluster.transport.sayings import Sayings
from cluster.transport.streams import (
  Listener,
  Refused,
  Security,
  Stream,
  TransportError,
)
from outputs import transient

_BACK = 'It has connected again.'
_REPLACED = 'It was silent, and another process has its rank now.'
_TELL_S = 10.0  # Between two lines on processes whose rank is held.


class Reception:
  """Talks to all workers.

  Attributes:
    events: What happens.
    members: The workers.
    looked: When who takes the events has looked last, monotonic seconds; inf
      while nobody has to.
  """

  _words: checked.Words = checked.OF_WORKERS  # What workers say.
  _told: checked.Words = {}  # By the field of that name.

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
    """Listens to nobody yet.

    Args:
      num_workers: Number of workers.
      host: Address to listen on.
      port: The same; 0 for any.
      fingerprint: Of the config: that of all processes must be the same.
      security: Of all streams.
      timeout_s: Silence after which a process counts as lost.
      start_s: Until all have to be there.
      jobs: That the lead has others do.
      reserved: Identities of processes, by worker, which no other process can
        be then.
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
    self._roll = Roll()
    self._reserved = reserved
    self._refusals = Sayings(apart_s=_TELL_S)
    self._visits: set[Visit] = set()
    self._over = threading.Event()
    self._end: dict[str, Any] = {}  # What is said when it is.
    self._lock = threading.Lock()
    self._listener: Listener | None = None

  def listen(self) -> str:
    """Listens from here on; returns the address.

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
      raise Unmendable(f'The lead cannot listen: {error}') from error
    logging.info(
      'Lead at %s; beats every %.3g s, lost after %.3g s, start within %.3g s',
      self._listener.address,
      self._timeout_s / BEATS,
      self._timeout_s,
      self._start_s,
    )
    threading.Thread(target=self._watch, daemon=True).start()
    return self._listener.address

  def missing(self) -> str:
    """Returns what is known of who is not there, a line for each."""
    return self._roll.describe(self._absent(), 2 * self._timeout_s / BEATS)

  def send(self, stream: Stream, header: dict[str, Any]) -> None:
    """Sends a message, to somebody who may be gone: that will be told."""
    # Nobody may be held up by who does not read.
    with contextlib.suppress(TransportError), within(stream, self._timeout_s):
      stream.send(header)

  def evict(self, index: int, stream: Stream, reason: str) -> None:
    """Ends an incarnation of a worker, which frees the rank, and tells it so.

    Args:
      index: The worker.
      stream: To its process.
      reason: What that is told.
    """
    holder = self.members[index].holder
    if holder is not None and holder.stream is stream:
      self._end_incarnation(holder, reason)
    self.send(stream, {'end': 'left', 'reason': reason})

  def admit(self, stream: Stream, hello: Mapping[str, Any]) -> Visit | None:
    """Admits the process of a worker, unless another one holds the rank.

    Args:
      stream: From the process.
      hello: That was checked.

    Returns:
      Its session, with a new incarnation number; that of before is over.  None
      if it was refused, and told so.
    """
    index, process = hello['worker'], hello['process']
    if self._reserved.get(index, process) != process:
      stream.send({'held': f'worker {index} is in the process of the lead'})
      return None
    taken = self._take_rank(stream, index, process, self._worker_ranks(index))
    if taken is None:
      return None
    visit, before = taken
    if before is not None:
      reason = _BACK if before.process == process else _REPLACED
      self._end_incarnation(before, reason)
    return visit

  def hear(self, visit: Visit, said: dict[str, Any]) -> None:
    """Takes in what a worker's process says, if its incarnation is not over.

    Args:
      visit: Its session.
      said: That was checked.

    Raises:
      TransportError: If it cannot be answered, or answers what was not asked.
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
    elif 'told' in said:
      self._tell(event | said)

  def lose(self, visit: Visit, reason: str) -> None:
    """Ends the session of a worker's process, whose stream has ended.

    Args:
      visit: The session.
      reason: Why.
    """
    with self._lock:
      self._visits.discard(visit)
      if self.members[visit.index].holder is visit:
        self.members[visit.index].holder = None
      self._tell_lost(visit, reason)
    self._gone(visit.index, visit.life)
    visit.closed.set()

  def give_up(self, reason: str) -> None:
    """Ends the run, whatever its thread waits for; from any thread."""
    self.events.put({'told': 'unmendable', 'reason': reason})

  def close(self, *, finished: bool) -> None:
    """Tells all that the run is over, and waits until they have gone.

    Args:
      finished: Whether it will not go on from a checkpoint.
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
    """Ends what else there is, once the workers have gone."""

  def _absent(self) -> list[str]:
    """Returns the names of who is not there."""
    return [f'worker {k}' for k, m in enumerate(self.members) if not m.stream]

  def _greeted(self, stream: Stream, hello: Any) -> Mapping[str, Any]:
    """Returns what a process says first.

    Raises:
      Refused: If it is of another run; it has been told.
    """
    try:
      hello = self._checked(hello)
      if hello['fingerprint'] != self._fingerprint:
        raise Refused(
          f'config: expected the same as that of the lead, got another from '
          f'{stream.peer}.'
        )
    except Refused as error:
      stream.send({'refused': str(error)})
      raise
    return hello

  def _checked(self, hello: Any) -> dict[str, Any]:
    return checked.hello(hello, workers=len(self.members), servers=1)

  def _handle(self, stream: Stream, hello: Any) -> None:
    """Talks to a process until its stream ends; in a thread of its own."""
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
    """Returns the rank of a worker, and then others of its process, by name."""
    return {f'worker {index}': self.members[index]}

  def _take_rank(
    self,
    stream: Stream,
    index: int,
    process: str,
    ranks: Mapping[str, Rank],
  ) -> tuple[Visit, Visit | None] | None:
    """Gives a process a rank, under its next incarnation number.

    Args:
      stream: From the process.
      index: Of the worker or server.
      process: Its identity.
      ranks: By name: that one, and then others that are of the same process.

    Returns:
      The session, and that of the incarnation before, if it has not ended; None
      if another process holds one of the ranks: this one was told so.
    """
    with self._lock:
      held = self._held(process, ranks)
      if not held:
        name, rank = next(iter(ranks.items()))
        visit = Visit(stream, index, process, rank.lives)
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
      process: Identity of the one that asks.
      ranks: By name.
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

  def _end_incarnation(self, visit: Visit, reason: str) -> None:
    """Lets nothing count any more that a worker's process says.

    Args:
      visit: The session of the process.
      reason: Why.
    """
    with self._lock:
      if visit.evicted:
        return
      visit.evicted = reason
      if self.members[visit.index].holder is visit:
        self.members[visit.index].holder = None
      self._tell_lost(visit, reason)
    self._gone(visit.index, visit.life)

  def _tell_lost(self, visit: Visit, reason: str) -> None:
    self._roll.lost(f'worker {visit.index}', visit.life, reason)
    event = {'worker': visit.index, 'life': visit.life}
    self.events.put(event | {'told': 'failed', 'reason': reason})

  def _take_ready(self, visit: Visit, event: dict[str, Any]) -> None:
    """Tells that a worker can begin, unless it was evicted meanwhile."""
    with self._lock:
      visit.ready = True
      if not visit.evicted:
        self.events.put(event | {'told': 'ready', 'stream': visit.stream})

  def _came(self) -> None:
    """Somebody has come."""

  def _tell(self, event: dict[str, Any]) -> None:
    """Takes in what a worker tells, with `worker` and `life`."""
    self.events.put(event)

  def _gone(self, index: int, life: int) -> None:
    """A life of a worker has ended."""

  def _watch(self) -> None:
    """Looks for who does not go on, in a thread: others may wait for them."""
    while not self._over.wait(self._timeout_s / BEATS):
      now = time.monotonic()
      with self._lock:
        visits = list(self._visits)
      for visit in visits:
        # It has noticed by itself by then, unless nothing reaches it.
        if now - visit.seen > 2 * self._timeout_s:
          visit.stream.cancel('It was silent for too long.')
        elif not visit.ready and now - visit.began > self._start_s:
          late = f'It was not ready within {self._start_s:g} s.'
          self.evict(visit.index, visit.stream, late)
      self._watch_others(now)
      if hanging := self._jobs.overdue():
        exit_hung(*hanging)
      # It may wait for one of them.
      if now - self.looked > self._start_s and not self._jobs:
        exit_hung('events', now - self.looked)

  def _watch_others(self, now: float) -> None:
    """Looks at who is not a worker, in the same thread."""
