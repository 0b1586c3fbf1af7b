"""The distributed runtime, as its lead runs it.

The lead is server 0.  Threads that talk to workers and servers put what happens
into one queue; the lead takes it out in one thread, tells the scheme, and
orders all servers to do what the scheme says.
"""

import contextlib
import dataclasses
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from cluster.heart import BEATS, START, Unmendable
from cluster.lead import Lead
from cluster.servers import Servers
from cluster.shard import Report, Shard
from cluster.transport import (
  Listener,
  Message,
  Security,
  Stream,
  TransportError,
)


@dataclasses.dataclass
class _Member:
  """A worker, as the lead sees it.

  Attributes:
    lives: How many there have been.
    life: Which of them was ready last.
    stream: Of the living one; None before it is ready and once it is gone.
    seen: When it gave the last sign of life, monotonic seconds.
    closed: Set once its stream has ended.
    arrived: Servers that have its push.
    compilations: After warm-up, of the lives that have pushed.
  """

  lives: int = 0
  life: int = -1
  stream: Stream | None = None
  seen: float = 0.0
  closed: threading.Event = dataclasses.field(default_factory=threading.Event)
  arrived: int = 0
  compilations: dict[int, int] = dataclasses.field(default_factory=dict)


class RemoteServer:
  """A server in another process."""

  def __init__(self, stream: Stream, address: str):
    """Takes the stream from it."""
    self.stream = stream
    self.address = address
    self.seen = time.monotonic()

  def order(self, sequence: int, orders: list[list[Any]]) -> None:
    """Takes orders that are carried out after those of lower numbers."""
    try:
      self.stream.send({'sequence': sequence, 'orders': orders})
    except TransportError as error:
      raise Unmendable(f'The server at {self.address}: {error}') from error


class DistributedCluster:
  """Real workers and servers.

  Attributes:
    time: Seconds since the start, of this process and those before it.
    lead: Asks the scheme.
  """

  def __init__(
    self,
    *,
    lead: Lead,
    shard: Callable[[Report, Mapping[str, Any]], Shard],
    num_servers: int,
    host: str,
    port: int,
    announce: Callable[[str], None],
    fingerprint: str,
    security: Security,
    timeout_s: float,
    local: Callable[[], None] | None,
    greeting: Callable[[], Mapping[str, Any]],
  ):
    """Listens to nobody yet.

    Args:
      lead: Asks the scheme; its server is a `Servers`.
      shard: Makes server 0, given how it reports and how servers are greeted.
      num_servers: Number of servers.
      host: Address to listen on.
      port: The same; 0 for any.
      announce: Called with the address that workers and servers connect to.
      fingerprint: Of the config: that of all processes must be the same.
      security: Of all streams.
      timeout_s: Silence after which a process counts as lost.
      local: The worker of this process, called in a thread; None if it has
        none.
      greeting: What servers are told when they come.
    """
    self.time = 0.0
    self.lead = lead
    self._servers: Servers = lead.server
    self._shard = shard
    self._num_servers = num_servers
    self._host, self._port = host, port
    self._announce = announce
    self._fingerprint = fingerprint
    self._security = security
    self._timeout_s = timeout_s
    self._local = local
    self._greeting = greeting
    self._members = [_Member() for _ in lead.workers]
    self._remote: dict[int, RemoteServer] = {}
    self._complete = threading.Event()  # All servers are there.
    self._over = threading.Event()
    self._lock = threading.Lock()
    self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    self._wake: float | None = None
    self._running = False
    self._began: float | None = None
    self._before: dict[str, Any] = {}  # The lead's state to go on from.
    self._computed = self._real = 0
    self._alone_since = math.inf
    self._listener: Listener | None = None
    lead.attach(release=self._release, wake_at=self._wake_at)

  def warm_up(self) -> None:
    """Waits until all servers and workers have compiled and connected.

    Raises:
      Unmendable: If one does not.
    """
    own = self._shard(self._reporter(0), self._greeting())
    own.warm_up()
    self._own = own
    self._listener = Listener(
      self._host, self._port, self._handle, self._security
    )
    logging.info(
      'Lead at %s; beats every %.3g s, lost after %.3g s, start within %.3g s',
      self._listener.address,
      self._timeout_s / BEATS,
      self._timeout_s,
      START * self._timeout_s,
    )
    if self._num_servers == 1:
      self._complete.set()
    self._announce(self._listener.address)
    threading.Thread(target=self._watch, daemon=True).start()
    if self._local:
      threading.Thread(target=self._run_local, daemon=True).start()
    deadline = time.monotonic() + START * self._timeout_s
    while not self._is_ready():
      self._take(deadline - time.monotonic())
      if time.monotonic() > deadline:
        raise Unmendable(f'{self._missing()} did not connect in time.')
    remote = [self._remote[index] for index in range(1, self._num_servers)]
    self._servers.attach([own, *remote])

  def start(self) -> None:
    """Releases the first iterations."""
    self._began = time.monotonic() - self.time
    self._running = True
    self.lead.start(self.time)
    self._servers.flush()

  def resume(self) -> None:
    """Goes on from a checkpoint as from a barrier, with today's workers."""
    self.lead.rejoin(self._before, self.time)
    for update in self._servers.pending:
      self._servers.commit(update)
      self.lead.journal.committed(update)
    self.start()

  def step(self) -> None:
    """Waits for the next event, at most for a beat, and does what follows.

    Raises:
      Unmendable: If a server is lost, or if no worker has been there for long.
      FloatingPointError: If a loss or a gradient is not finite.
    """
    now = self._now()
    wait_s = self._timeout_s / BEATS
    if self._wake is not None:
      wait_s = min(wait_s, self._wake - now)
    self._take(max(wait_s, 0.0))
    if self._wake is not None and self._now() >= self._wake:
      self._wake = None
      self.time = max(self.time, self._now())
      self.lead.wake(self.time)
    self._look_around()
    self._servers.flush()

  def state(self) -> dict[str, Any]:
    """Returns what the lead has to keep; the servers save the rest."""
    return {
      'time': self.time,
      'lead': self.lead.state(),
      'servers': self._servers.state(),
      'counts': (self._computed, self._real),
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken, with other workers perhaps."""
    self.time = state['time']
    self._before = state['lead']
    self._servers.restore(state['servers'])
    self._computed, self._real = state['counts']

  def close(self) -> None:
    """Ends the run for all workers and servers, however it went."""
    self._over.set()
    self.lead.close(self.time)
    self._running = False
    finished = self.lead.journal.finished
    over = {'end': 'over', 'reason': 'finished' if finished else 'stopped'}
    self._dismiss(range(1, len(self._members)), over)
    self._dismiss((0,), over)  # When JAX's coordinator goes, all go.
    for server in self._remote.values():
      self._send(server.stream, over)
    self._servers.fail(Unmendable('The run is over.'))
    if self._listener:
      self._own.close()
      self._listener.close(self._timeout_s)

  def summary(self) -> dict[str, Any]:
    """Returns what summary.json says of this runtime alone."""
    share = 1 - self._real / self._computed if self._computed else None
    return {
      'virtual_s': None,
      'padding_share': share,
      'lives': [member.lives for member in self._members],
      'late_compilations': sum(
        sum(member.compilations.values()) for member in self._members
      ),
    }

  def _handle(self, stream: Stream, hello: Mapping[str, Any]) -> None:
    """Talks to a process until its stream ends; in a thread of its own."""
    if 'life' in hello:
      self._own.serve(stream, hello['worker'], hello['life'])
      return
    if hello['fingerprint'] != self._fingerprint:
      reason = (
        f'config: expected the same as that of the lead, got another from '
        f'{stream.peer}.'
      )
      stream.send({'refused': reason})
      raise ValueError(reason)
    if 'server' in hello:
      self._serve_server(stream, hello['server'])
    else:
      self._serve_worker(stream, hello['worker'])

  def _serve_worker(self, stream: Stream, index: int) -> None:
    if not self._complete.wait(START * self._timeout_s):
      raise Unmendable('Not all servers are there.')
    member = self._members[index]
    with self._lock:
      life = member.lives
      member.lives += 1
    remote = [self._remote[k].address for k in range(1, self._num_servers)]
    servers = [self._listener.address, *remote]
    event = {'worker': index, 'life': life}
    closed = threading.Event()
    try:
      stream.send({'life': life, 'servers': servers})
      stream.receive()  # It has connected to all servers.
      ready = {'told': 'ready', 'stream': stream, 'closed': closed}
      self._events.put(event | ready)
      while True:
        beat = stream.receive().header
        if life == member.life:
          member.seen = time.monotonic()
        stream.send(beat | {'clock': self._clock()})
    except TransportError as error:
      self._events.put(event | {'told': 'failed', 'reason': str(error)})
    finally:
      closed.set()

  def _serve_server(self, stream: Stream, index: int) -> None:
    stream.send(self._greeting())
    server = RemoteServer(stream, stream.receive().header['address'])
    with self._lock:
      self._remote[index] = server
      if len(self._remote) == self._num_servers - 1:
        self._complete.set()
    report = self._reporter(index)
    try:
      while True:
        message = stream.receive()
        server.seen = time.monotonic()
        if 'beat' in message.header:
          stream.send(message.header | {'clock': self._clock()})
        else:
          chunks = _noted(message.chunks, server)
          report(message.header, message._replace(chunks=chunks))
    except TransportError as error:
      self._give_up(f'Server {index} is lost: {error}')

  def _reporter(self, server: int) -> Callable[[dict[str, Any], Any], None]:
    def report(event: dict[str, Any], body: Any) -> None:
      if event['told'] == 'unmendable':
        self._give_up(f'Server {server}: {event["reason"]}')
      elif 'id' in event:
        answer = _floats(body)
        if 'error' in event:
          answer = Unmendable(f'Server {server}: {event["error"]}')
        self._servers.answer(server, event['id'], answer)
      else:
        self._events.put(event | {'server': server, 'at': time.monotonic()})

    return report

  def _run_local(self) -> None:
    try:
      self._local()
    except BaseException as error:  # The thread has nobody else to tell.
      self._give_up(f'The worker of the lead failed: {error!r}')
      raise

  def _watch(self) -> None:
    """Looks for silent servers, in a thread: others may wait for these."""
    while not self._over.wait(self._timeout_s / BEATS):
      for index, server in list(self._remote.items()):
        if time.monotonic() - server.seen > self._timeout_s:
          self._give_up(f'Server {index} was silent for too long.')
          server.stream.cancel()
          return

  def _give_up(self, reason: str) -> None:
    """Ends the run, whatever its thread waits for."""
    self._events.put({'told': 'unmendable', 'reason': reason})
    self._servers.fail(Unmendable(reason))

  def _take(self, wait_s: float) -> None:
    """Deals with the next event, if one comes in time."""
    try:
      event = self._events.get(timeout=max(wait_s, 0.0))
    except queue.Empty:
      self.time = max(self.time, self._now())
      return
    at = event.get('at', time.monotonic())
    if self._began is not None:
      self.time = max(self.time, at - self._began)
    getattr(self, f'_on_{event["told"]}')(event)

  def _on_ready(self, event: dict[str, Any]) -> None:
    index, member = event['worker'], self._members[event['worker']]
    if event['life'] < member.life:
      reason = 'It has come back as another process.'
      self._send(event['stream'], {'end': 'left', 'reason': reason})
      return
    if member.stream is not None:
      self._lose(index, 'It has come back as another process.')
    member.life = event['life']
    member.stream, member.seen = event['stream'], time.monotonic()
    member.closed = event['closed']
    member.arrived = 0
    if self._running:
      logging.info('Worker %d is back.', index)
      self.lead.join(index, self.time)

  def _on_arrived(self, event: dict[str, Any]) -> None:
    index, member = event['worker'], self._members[event['worker']]
    if event['life'] != member.life or member.stream is None:
      return
    member.arrived += 1
    if member.arrived < self._num_servers:
      return
    member.arrived = 0
    iteration = self.lead.workers[index].iteration
    loss = event['loss']
    if not event['finite'] or (loss is not None and not math.isfinite(loss)):
      raise FloatingPointError(
        f'The loss ({loss}) or the gradient of worker {index}, iteration '
        f'{iteration}, is not finite.'
      )
    member.compilations[event['life']] = event['compilations']
    self._computed += event['computed']
    self._real += self.lead.workers[index].examples
    self.lead.journal.ledger.bytes += 2 * self._servers.size_bytes
    since = self.lead.workers[index].since
    for phase, at in (('compute', 'pulled_at'), ('push', 'computed_at')):
      # Clocks are compared to within a round trip.
      since = min(max(since, event[at] - self._began), self.time)
      self.lead.enter(index, phase, since)
    self.lead.push(
      index,
      self.time,
      compute_s=event['compute_s'],
      payload=(index, event['life']),
      loss=loss,
    )

  def _on_failed(self, event: dict[str, Any]) -> None:
    index, member = event['worker'], self._members[event['worker']]
    if event['life'] == member.life and member.stream is not None:
      self._lose(index, event['reason'])

  def _on_unmendable(self, event: dict[str, Any]) -> None:
    raise Unmendable(event['reason'])

  def _lose(self, index: int, reason: str) -> None:
    """A worker is gone, or as good as gone."""
    member = self._members[index]
    logging.warning('Worker %d is lost: %s', index, reason)
    stream, member.stream = member.stream, None
    self._send(stream, {'end': 'left', 'reason': reason})
    if self._running:
      self._servers.end((index, member.life))
      self.lead.leave(index, self.time, reason)

  def _look_around(self) -> None:
    """Gives up who has been silent for too long."""
    now = time.monotonic()
    for index, member in enumerate(self._members):
      if member.stream is not None and now - member.seen > self._timeout_s:
        self._lose(index, f'It was silent for {now - member.seen:.1f} s.')
    if any(member.stream for member in self._members):
      self._alone_since = math.inf
      return
    self._alone_since = min(self._alone_since, now)
    if now - self._alone_since > START * self._timeout_s:
      raise Unmendable('No worker has come back.')

  def _release(self, index: int) -> None:
    worker, life = self.lead.workers[index], self._members[index].life
    self._servers.release(
      (index, life),
      {
        'iteration': worker.iteration,
        'ranges': worker.ranges,
        'examples': worker.examples,
        'next': self.lead.upcoming(index),
      },
    )

  def _wake_at(self, time: float | None) -> None:
    self._wake = time

  def _dismiss(self, indices: Sequence[int], over: dict[str, Any]) -> None:
    for index in indices:
      if self._members[index].stream is not None:
        self._send(self._members[index].stream, over)
    deadline = time.monotonic() + self._timeout_s
    for index in indices:
      if self._members[index].stream is not None:
        wait_s = max(deadline - time.monotonic(), 0.0)
        if not self._members[index].closed.wait(wait_s):
          logging.warning('Worker %d has not ended.', index)

  def _send(self, stream: Stream, header: dict[str, Any]) -> None:
    with contextlib.suppress(TransportError):  # That will be told.
      stream.send(header)

  def _is_ready(self) -> bool:
    streams = [member.stream for member in self._members]
    return self._complete.is_set() and None not in streams

  def _missing(self) -> str:
    workers = [
      index for index, m in enumerate(self._members) if m.stream is None
    ]
    servers = sorted(set(range(1, self._num_servers)) - set(self._remote))
    return f'Workers {workers} and servers {servers}'

  def _now(self) -> float:
    return 0.0 if self._began is None else time.monotonic() - self._began

  def _clock(self) -> float:
    return time.monotonic()


def _noted(
  chunks: Iterator[np.ndarray], server: RemoteServer
) -> Iterator[np.ndarray]:
  """Yields the chunks; each is a sign of life, as beats wait behind them."""
  for chunk in chunks:
    server.seen = time.monotonic()
    yield chunk


def _floats(body: Any) -> Any:
  """Returns the vector of a snapshot, from here or from elsewhere."""
  if not isinstance(body, Message):
    return body
  vector = np.empty(body.size_bytes, np.uint8)
  body.read(vector)
  return vector.view(np.float32)
