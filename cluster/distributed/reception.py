"""Where the lead receives workers and servers, and notices who is gone.

What is said here is control alone: gradients and parameters travel between
workers and servers.  Each stream is read by a thread of its own, which puts
what happens into one queue, as dictionaries:

  told 'here'        a server can be reached
  told 'ready'       a worker has connected to all servers: worker, life,
                     stream
  told 'arrived'     a push has arrived whole at a server: worker, life, server,
                     at (monotonic seconds), and the header of the push
  told 'failed'      a stream of a worker has ended: worker, life, reason
  told 'unmendable'  the run cannot go on: reason

Until the run begins, whoever is lost may come again, workers as a new life, and
workers are told where servers are once all of these can be reached.  From then
on a server that is lost ends the run.
"""

import contextlib
import functools
import itertools
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging

from cluster.distributed import checked
from cluster.distributed.members import Member, RemoteServer, Visit
from cluster.distributed.pace import Deadlines, Jobs, exit_hung
from cluster.distributed.roll import Roll
from cluster.distributed.served.answers import Answers
from cluster.distributed.served.orders import Orders
from cluster.distributed.served.server import Report, Server
from cluster.transport.heart import BEATS, Unmendable, within
from cluster.transport.streams import (
  Closed,
  Listener,
  Refused,
  Security,
  Stream,
  TransportError,
)


class Reception:
  """Talks to all workers and servers.

  Attributes:
    events: What happens.
    members: The workers.
    looked: When who takes the events has looked last, monotonic seconds; inf
      while nobody has to.
  """

  def __init__(
    self,
    *,
    orders: Orders,
    num_workers: int,
    num_servers: int,
    host: str,
    port: int,
    greeting: Callable[[], Mapping[str, Any]],
    fingerprint: str,
    security: Security,
    timeout_s: float,
    start_s: float,
    deadlines: Deadlines,
    jobs: Jobs,
  ):
    """Listens to nobody yet.

    Args:
      orders: Gets the servers' answers.
      num_workers: Number of workers.
      num_servers: Number of servers.
      host: Address to listen on.
      port: The same; 0 for any.
      greeting: What servers are told when they come.
      fingerprint: Of the config: that of all processes must be the same.
      security: Of all streams.
      timeout_s: Silence after which a process counts as lost.
      start_s: Until all have to be there.
      deadlines: After which one that does not go on counts as lost.
      jobs: That the lead has others do.
    """
    self.looked = math.inf
    self._jobs = jobs
    self._deadlines = deadlines
    self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    self.members = [Member() for _ in range(num_workers)]
    self._orders = orders
    self._answers = Answers(orders)
    self._num_servers = num_servers
    self._host, self._port = host, port
    self._greeting = greeting
    self._fingerprint = fingerprint
    self._security = security
    self._timeout_s = timeout_s
    self._own: Server | None = None
    self._start_s = start_s
    self._roll = Roll()
    self._remote: dict[int, RemoteServer] = {}
    self._addresses: dict[int, str] = {}  # That servers had last.
    self._visits: set[Visit] = set()
    self._comings = itertools.count()  # Of servers.
    self._begun = False
    self._over = threading.Event()
    self._end: dict[str, Any] = {}  # What is said when it is.
    self._lock = threading.Lock()
    self._listener: Listener | None = None

  def open(self, make: Callable[[Report, Mapping[str, Any]], Server]) -> str:
    """Listens, and makes server 0, which is in this process.

    Args:
      make: Makes it, given how it reports and how servers are greeted.

    Returns:
      The address that is listened on.
    """
    greeting = self._greeting()
    # Servers that outlive a lead must not mistake the next one for it.
    self._greeted = {**greeting, 'lead': secrets.token_hex(8)}
    self._listener = Listener(
      self._host, self._port, self._handle, self._security
    )
    logging.info(
      'Lead at %s; beats every %.3g s, lost after %.3g s, start within %.3g s',
      self._listener.address,
      self._timeout_s / BEATS,
      self._timeout_s,
      self._start_s,
    )
    threading.Thread(target=self._watch, daemon=True).start()
    own = make(functools.partial(self.told, 0), greeting)
    own.open(self._host, self._security)
    with self._lock:
      self._own = own
    self._introduce()
    return self._listener.address

  def begin(self) -> list[Server | RemoteServer]:
    """Returns the servers in the order of their shares, once all are there.

    From then on none may be lost.  Until then it returns none of them.
    """
    with self._lock:
      servers = self._servers()
      if all(member.stream for member in self.members):
        self._begun = bool(servers)
      return servers if self._begun else []

  @property
  def obeyed(self) -> int:
    """How many orders all servers have obeyed, once all are there."""
    return min(server.doing['obeyed'] for server in self._servers())

  def missing(self) -> str:
    """Returns what is known of who is not there, a line for each."""
    with self._lock:
      servers = set(range(1, self._num_servers)) - set(self._remote)
    names = [f'server {k}' for k in sorted(servers)]
    names += [
      f'worker {k}' for k, m in enumerate(self.members) if m.stream is None
    ]
    return self._roll.describe(names, 2 * self._timeout_s / BEATS)

  def send(self, stream: Stream, header: dict[str, Any]) -> None:
    """Sends a message, to somebody who may be gone: that will be told."""
    # Nobody may be held up by who does not read.
    with contextlib.suppress(TransportError), within(stream, self._timeout_s):
      stream.send(header)

  def give_up(self, reason: str) -> None:
    """Ends the run, whatever its thread waits for; from any thread."""
    self.events.put({'told': 'unmendable', 'reason': reason})
    self._orders.fail(Unmendable(reason))

  def close(self, *, finished: bool) -> None:
    """Tells all that the run is over, and waits until they have gone.

    Args:
      finished: Whether it will not go on from a checkpoint.
    """
    reason = 'finished' if finished else 'stopped'
    self._end = {'end': 'over', 'reason': reason, 'finished': finished}
    self._over.set()
    with self._lock:
      visits, servers = list(self._visits), list(self._remote.values())
    for visit in visits:
      self.send(visit.stream, self._end)
    deadline = time.monotonic() + self._timeout_s
    for visit in visits:
      if not visit.closed.wait(max(deadline - time.monotonic(), 0.0)):
        logging.warning('The worker at %s has not ended.', visit.stream.peer)
    for server in servers:
      self.send(server.stream, self._end)
    self._orders.fail(Unmendable('The run is over.'))
    deadline = time.monotonic() + self._timeout_s
    if self._own:
      self._own.close(self._timeout_s)
    if self._listener:
      self._listener.close(max(deadline - time.monotonic(), 0.0))

  def _handle(self, stream: Stream, hello: Mapping[str, Any]) -> None:
    """Talks to a process until its stream ends; in a thread of its own."""
    try:
      hello = checked.hello(
        hello, workers=len(self.members), servers=self._num_servers
      )
      if hello['fingerprint'] != self._fingerprint:
        raise Refused(
          f'config: expected the same as that of the lead, got another from '
          f'{stream.peer}.'
        )
    except Refused as error:
      stream.send({'refused': str(error)})
      raise
    if 'server' in hello:
      self._serve_server(stream, hello['server'])
    else:
      self._serve_worker(stream, hello['worker'])

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
      self._introduce()
      if self._over.is_set():
        self.send(stream, self._end)
      while True:
        said = checked.of_worker(stream.receive(0).header, stream.peer)
        visit.seen = time.monotonic()
        self._roll.seen(name, life, said.get('doing', ''))
        if 'ready' in said:
          visit.ready = True
          self.events.put(event | {'told': 'ready', 'stream': stream})
        elif 'beat' in said:
          if life == member.life:
            member.seen = visit.seen
            member.pace.tell(said['pace'], visit.seen)
          stream.send({'beat': said['beat'], 'clock': time.monotonic()})
    except TransportError as error:
      self._roll.lost(name, life, str(error))
      self.events.put(event | {'told': 'failed', 'reason': str(error)})
    finally:
      with self._lock:
        self._visits.discard(visit)
      visit.closed.set()

  def _serve_server(self, stream: Stream, index: int) -> None:
    name, server = f'server {index}', RemoteServer(stream, '')
    with self._lock:
      if self._begun:
        raise Closed('The run has begun with another server.')
      life = next(self._comings)
      self._roll.came(name, life, stream.peer)
    try:
      stream.send(self._greeted)
      while True:
        message = stream.receive()
        said = checked.of_server(message.header, stream.peer)
        server.seen = time.monotonic()
        self._roll.seen(name, life, said.get('doing', ''))
        if 'beat' in said:
          server.doing = said.get('orders') or server.doing
          stream.send({'beat': said['beat'], 'clock': time.monotonic()})
        elif 'address' in said:
          server.address = said['address']
          self._take_in(index, server)
        elif 'told' in said:
          self.told(index, said, _noted(message.chunks, server))
    except TransportError as error:
      self._roll.lost(name, life, str(error))
      with self._lock:
        mine = self._remote.get(index) is server
        if mine and not self._begun:
          del self._remote[index]
      if mine and self._begun:
        self.give_up(f'Server {index} is lost: {error}')

  def _take_in(self, index: int, server: RemoteServer) -> None:
    """Counts on a server, from here on."""
    with self._lock:
      if self._begun:
        raise Closed('The run has begun with another server.')
      before = self._addresses.get(index, server.address)
      self._addresses[index] = server.address
      self._remote[index] = server
      told = [visit for visit in self._visits if visit.told]
    if before != server.address:
      # It is another process, and knows nothing of who was connected.
      reason = f'Server {index} has come back as another process.'
      for visit in told:
        self.send(visit.stream, {'end': 'left', 'reason': reason})
    self._introduce()
    self.events.put({'told': 'here'})

  def _introduce(self) -> None:
    """Tells workers where servers are, once these can be reached."""
    with self._lock:
      servers = [server.address for server in self._servers()]
      visits = [visit for visit in self._visits if not visit.told]
      for visit in visits if servers else ():
        visit.told = True
    for visit in visits if servers else ():
      self.send(visit.stream, {'servers': servers})

  def _servers(self) -> list[Server | RemoteServer]:
    """Returns all servers, or none if some are not there; under the lock."""
    if self._own is None or len(self._remote) < self._num_servers - 1:
      return []
    return [self._own, *(self._remote[k] for k in range(1, self._num_servers))]

  def told(
    self, server: int, event: dict[str, Any], body: Iterable[np.ndarray]
  ) -> None:
    """Takes in what a server reports; from any thread.

    Args:
      server: Which one.
      event: What happened, as `Report` has it.
      body: Bytes that belong to it.

    Raises:
      Corrupt: If it answers something else than it was asked.
    """
    if event['told'] == 'unmendable':
      self.give_up(f'Server {server}: {event["reason"]}')
    elif event['told'] in ('saved', 'snapshot'):
      self._answers.take(server, event, body)
    elif self._has_lived(event['worker'], event['life']):
      self.events.put(event | {'server': server, 'at': time.monotonic()})

  def _has_lived(self, worker: int, life: int) -> bool:
    """Returns whether a life was given out: servers are told by workers."""
    return worker < len(self.members) and life < self.members[worker].lives

  def _watch(self) -> None:
    """Looks for who does not go on, in a thread: others may wait for them."""
    while not self._over.wait(self._timeout_s / BEATS):
      now = time.monotonic()
      with self._lock:
        servers = list(self._remote.items())
        visits = list(self._visits)
      for visit in visits:
        # It has noticed by itself by then, unless nothing reaches it.
        if now - visit.seen > 2 * self._timeout_s:
          visit.stream.cancel('It was silent for too long.')
        elif not visit.ready and now - visit.began > self._start_s:
          late = f'It was not ready within {self._start_s:g} s.'
          self.send(visit.stream, {'end': 'left', 'reason': late})
      for index, server in servers:
        silent = now - server.seen > self._timeout_s
        reason = 'It was silent for too long.' if silent else ''
        if reason := reason or self._stuck(server.doing):
          if self._begun:
            self.give_up(f'Server {index} is lost: {reason}')
          server.stream.cancel(reason)
      if self._own and (reason := self._stuck(self._own.doing)):
        self.give_up(f'Server 0 is lost: {reason}')
      if hanging := self._jobs.overdue():
        exit_hung(*hanging)
      # It may wait for one of them.
      if now - self.looked > self._start_s and not self._jobs:
        exit_hung('events', now - self.looked)

  def _stuck(self, doing: Mapping[str, Any]) -> str:
    """Returns why a server is to be given up, '' if it is not."""
    if not doing['order']:
      return ''
    return self._deadlines.server(
      doing['order'], doing['since_s'], doing['usual_s']
    )


def _noted(
  chunks: Iterator[np.ndarray], server: RemoteServer
) -> Iterator[np.ndarray]:
  """Yields the chunks; each is a sign of life, as beats wait behind them."""
  for chunk in chunks:
    server.seen = time.monotonic()
    yield chunk
