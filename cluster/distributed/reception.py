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
"""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from cluster.distributed import checked
from cluster.distributed.members import Member, Visit
from cluster.distributed.pace import Jobs, exit_hung
from cluster.distributed.roll import Roll
from cluster.transport.heart import BEATS, Unmendable, within
from cluster.transport.streams import (
  Listener,
  Refused,
  Security,
  Stream,
  TransportError,
)
from outputs import transient


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
    self._serve_worker(stream, self._greeted(stream, hello)['worker'])

  def _serve_worker(self, stream: Stream, index: int) -> None:
    member, name = self.members[index], f'worker {index}'
    visit = Visit(stream, time.monotonic())
    with self._lock:
      life = member.lives
      member.lives += 1
      self._roll.came(name, life, stream.peer)
    event = {'worker': index, 'life': life}
    try:
      stream.send({'life': life})
      with self._lock:
        self._visits.add(visit)
      self._came()
      if self._over.is_set():
        self.send(stream, self._end)
      while True:
        header = stream.receive(0).header
        said = checked.words(header, stream.peer, self._words, self._told)
        visit.seen = time.monotonic()
        self._roll.seen(name, life, said.get('doing', ''))
        if 'ready' in said:
          visit.ready = True
          self.events.put(event | said | {'told': 'ready', 'stream': stream})
        elif 'beat' in said:
          if life == member.life:
            member.seen = visit.seen
            member.pace.tell(said['pace'], visit.seen)
          stream.send({'beat': said['beat'], 'clock': time.monotonic()})
        elif 'told' in said:
          self._tell(event | said)
    except TransportError as error:
      self._roll.lost(name, life, str(error))
      self.events.put(event | {'told': 'failed', 'reason': str(error)})
    finally:
      with self._lock:
        self._visits.discard(visit)
      self._gone(index, life)
      visit.closed.set()

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
          self.send(visit.stream, {'end': 'left', 'reason': late})
      self._watch_others(now)
      if hanging := self._jobs.overdue():
        exit_hung(*hanging)
      # It may wait for one of them.
      if now - self.looked > self._start_s and not self._jobs:
        exit_hung('events', now - self.looked)

  def _watch_others(self, now: float) -> None:
    """Looks at who is not a worker, in the same thread."""
