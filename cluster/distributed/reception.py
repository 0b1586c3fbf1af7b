"""Where the lead receives workers and servers, and notices who is gone.

What is said here is control alone: gradients and parameters travel between
workers and servers.  Each stream is read by a thread of its own, which puts
what happens into one queue, as dictionaries:

  told 'ready'       a worker has connected to all servers: worker, life,
                     stream, closed
  told 'arrived'     a push has arrived whole at a server: worker, life, server,
                     at (monotonic seconds), and the header of the push
  told 'failed'      a stream of a worker has ended: worker, life, reason
  told 'unmendable'  the run cannot go on: reason
"""

import contextlib
import dataclasses
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from cluster.distributed import checked
from cluster.distributed.served.orders import Orders
from cluster.distributed.served.server import Report, Server
from cluster.transport import memory
from cluster.transport.heart import BEATS, START, Unmendable, within
from cluster.transport.streams import (
  Listener,
  Refused,
  Security,
  Stream,
  TransportError,
)


@dataclasses.dataclass
class Member:
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


class Reception:
  """Talks to all workers and servers.

  Attributes:
    events: What happens.
    members: The workers.
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
    """
    self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    self.members = [Member() for _ in range(num_workers)]
    self._orders = orders
    self._num_servers = num_servers
    self._host, self._port = host, port
    self._greeting = greeting
    self._fingerprint = fingerprint
    self._security = security
    self._timeout_s = timeout_s
    self._own: Server | None = None
    self._remote: dict[int, RemoteServer] = {}
    self._complete = threading.Event()  # All servers are there.
    self._over = threading.Event()
    self._lock = threading.Lock()
    self._listener: Listener | None = None

  def open(self, make: Callable[[Report, Mapping[str, Any]], Server]) -> str:
    """Makes server 0, which is in this process, and listens.

    Args:
      make: Makes it, given how it reports and how servers are greeted.

    Returns:
      The address to connect to.
    """
    self._own = make(functools.partial(self.told, 0), self._greeting())
    self._own.open(self._host, self._security)
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
    threading.Thread(target=self._watch, daemon=True).start()
    return self._listener.address

  def all_servers(self) -> list[Server | RemoteServer]:
    """Returns the servers in the order of their shares, once all are there."""
    return [self._own, *(self._remote[k] for k in range(1, self._num_servers))]

  def missing(self) -> str:
    """Returns who is not there, '' if all are."""
    workers = [k for k, m in enumerate(self.members) if m.stream is None]
    servers = sorted(set(range(1, self._num_servers)) - set(self._remote))
    if not workers and self._complete.is_set():
      return ''
    return f'workers {workers} and servers {servers}'

  def send(self, stream: Stream, header: dict[str, Any]) -> None:
    """Sends a message, to somebody who may be gone: that will be told."""
    # Nobody may be held up by who does not read.
    with contextlib.suppress(TransportError), within(stream, self._timeout_s):
      stream.send(header)

  def give_up(self, reason: str) -> None:
    """Ends the run, whatever its thread waits for; from any thread."""
    self.events.put({'told': 'unmendable', 'reason': reason})
    self._orders.fail(Unmendable(reason))

  def close(self, reason: str) -> None:
    """Tells all that the run is over, and waits until they have gone."""
    self._over.set()
    over = {'end': 'over', 'reason': reason}
    self._dismiss(self.members[1:], over)
    self._dismiss(self.members[:1], over)  # With JAX's coordinator, all go.
    for server in self._remote.values():
      self.send(server.stream, over)
    self._orders.fail(Unmendable('The run is over.'))
    deadline = time.monotonic() + self._timeout_s
    if self._own:
      self._own.close(self._timeout_s)
    if self._listener:
      self._listener.close(max(deadline - time.monotonic(), 0.0))

  def _dismiss(self, members: Sequence[Member], over: dict[str, Any]) -> None:
    living = [member for member in members if member.stream is not None]
    for member in living:
      self.send(member.stream, over)
    deadline = time.monotonic() + self._timeout_s
    for member in living:
      if not member.closed.wait(max(deadline - time.monotonic(), 0.0)):
        logging.warning('The worker at %s has not ended.', member.stream.peer)

  def _handle(self, stream: Stream, hello: Mapping[str, Any]) -> None:
    """Talks to a process until its stream ends; in a thread of its own."""
    hello = checked.hello(
      hello, workers=len(self.members), servers=self._num_servers
    )
    if hello['fingerprint'] != self._fingerprint:
      reason = (
        f'config: expected the same as that of the lead, got another from '
        f'{stream.peer}.'
      )
      stream.send({'refused': reason})
      raise Refused(reason)
    if 'server' in hello:
      self._serve_server(stream, hello['server'])
    else:
      self._serve_worker(stream, hello['worker'])

  def _serve_worker(self, stream: Stream, index: int) -> None:
    if not self._complete.wait(START * self._timeout_s):
      raise Unmendable('Not all servers are there.')
    member = self.members[index]
    with self._lock:
      life = member.lives
      member.lives += 1
    servers = [server.address for server in self.all_servers()]
    event = {'worker': index, 'life': life}
    closed = threading.Event()
    try:
      stream.send({'life': life, 'servers': servers})
      stream.receive()  # It has connected to all servers.
      ready = {'told': 'ready', 'stream': stream, 'closed': closed}
      self.events.put(event | ready)
      while True:
        beat = checked.words(stream.receive(0).header, stream.peer)
        if life == member.life:
          member.seen = time.monotonic()
        stream.send(beat | {'clock': time.monotonic()})
    except TransportError as error:
      self.events.put(event | {'told': 'failed', 'reason': str(error)})
    finally:
      closed.set()

  def _serve_server(self, stream: Stream, index: int) -> None:
    stream.send(self._greeting())
    server = RemoteServer(stream, stream.receive().header['address'])
    with self._lock:
      self._remote[index] = server
      if len(self._remote) == self._num_servers - 1:
        self._complete.set()
    try:
      while True:
        message = stream.receive()
        checked.words(message.header, stream.peer)
        server.seen = time.monotonic()
        if 'beat' in message.header:
          stream.send(message.header | {'clock': time.monotonic()})
        else:
          self.told(index, message.header, _noted(message.chunks, server))
    except TransportError as error:
      self.give_up(f'Server {index} is lost: {error}')

  def told(
    self, server: int, event: dict[str, Any], body: Iterable[np.ndarray]
  ) -> None:
    """Takes in what a server reports; from any thread.

    Args:
      server: Which one.
      event: What happened, as `Report` has it.
      body: Bytes that belong to it.
    """
    if event['told'] == 'unmendable':
      self.give_up(f'Server {server}: {event["reason"]}')
    elif 'id' in event:
      answer = _floats(event.get('size_bytes', 0), body)
      if 'error' in event:
        answer = Unmendable(f'Server {server}: {event["error"]}')
      self._orders.answer(server, event['id'], answer)
    else:
      self.events.put(event | {'server': server, 'at': time.monotonic()})

  def _watch(self) -> None:
    """Looks for silent servers, in a thread: others may wait for these."""
    while not self._over.wait(self._timeout_s / BEATS):
      for index, server in list(self._remote.items()):
        if time.monotonic() - server.seen > self._timeout_s:
          self.give_up(f'Server {index} was silent for too long.')
          server.stream.cancel()
          return


def _noted(
  chunks: Iterator[np.ndarray], server: RemoteServer
) -> Iterator[np.ndarray]:
  """Yields the chunks; each is a sign of life, as beats wait behind them."""
  for chunk in chunks:
    server.seen = time.monotonic()
    yield chunk


def _floats(size_bytes: int, body: Iterable[np.ndarray]) -> np.ndarray:
  """Returns the vector of a snapshot, float32 [n]; empty if there is none."""
  vector, start = memory.aligned(size_bytes), 0
  for chunk in body:
    vector[start : start + chunk.size] = chunk
    start += chunk.size
    del chunk  # Before the next one arrives, which so takes its warm memory.
  return vector.view(np.float32)
