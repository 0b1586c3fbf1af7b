"""A server on real hosts: holds a share of the parameters.

It executes what the coordinator orders, strictly in sequence, so that a pull is one
version on all servers.  Each worker has a stream of its own: the server sends
it a version once the coordinator releases the worker, and then takes in its push.
"""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Iterator, Sequence

import jax
import msgspec
import numpy as np
from absl import logging

from cluster.network import memory, messages
from cluster.network.messages import Order, OrderProgress
from cluster.network.streams import (
  Incoming,
  Listener,
  Refused,
  Security,
  Stream,
  TransportError,
  chunked,
)
from cluster.parameter_server.keeping import Keeping, Report
from cluster.parameter_server.pieces import Pieces
from cluster.parameter_server.servers import Key
from learning import placement
from learning.learning import Learner
from wire.codec import Payload
from wire.flat import Flat, views

_LAST_S = 10.0  # That the last orders may take.


class WrongPush(Exception):
  """Raised if a worker's message is not the push of its current release."""


class _Port:
  """A worker's stream, seen from the server."""

  def __init__(self, stream: Stream) -> None:
    self.stream = stream
    # The next iteration, and the parameters unless the worker has all pieces.
    self.releases: queue.SimpleQueue[
      tuple[messages.Pull, list[np.ndarray] | None] | None
    ] = queue.SimpleQueue()
    self.ended = False


class Server:
  """Holds the parameters' share of one server and talks to the workers.

  Attributes:
    index: Which server.
    learner: Of the share.
    address: 'host:port' that workers connect to; '' before `open`.
  """

  def __init__(
    self,
    index: int,
    *,
    learner: Learner | Pieces,
    flat: Flat,
    keeping: Keeping,
    report: Report,
  ):
    """Starts to wait for orders.

    Args:
      index: Which server.
      learner: Of the share's flat vectors.
      flat: Of all shares.
      keeping: Keeps what the coordinator wants to keep of this share.
      report: Tells the coordinator that a push has arrived or that a stream failed;
        called from many threads.
    """
    self.index = index
    self.learner = learner
    self.address = ''
    self._flat = flat
    self._report = report
    self._pull_bytes = flat.pull_bytes(index)
    self._keeping = keeping
    self._ports: dict[Key, _Port] = {}
    # Arrived, not yet added; pieces know whose they are.
    self._payloads: dict[Key, Payload | Key] = {}
    self._ended: dict[int, int] = {}  # The newest life that is over, by worker.
    self._piped: set[Key] = set()  # Who gets the next version in pieces.
    self._pieces = learner if isinstance(learner, Pieces) else None
    self._lock = threading.Lock()
    self._current: tuple[int, list[np.ndarray]] = -1, []  # Version, its bytes.
    self._orders: queue.SimpleQueue[tuple[int, Sequence[Order]] | None] = (
      queue.SimpleQueue()
    )
    self._sequence = self._done = 0
    self._order: tuple[str, float] = '', 0.0  # And since when.
    self._longest: dict[str, float] = {}  # Seconds of orders, by name.
    self._listener: Listener | None = None
    self._thread = threading.Thread(target=self._execute, daemon=True)
    self._thread.start()

  def open(self, host: str, security: Security) -> None:
    """Compiles everything that orders need, and lets workers connect.

    Args:
      host: Address to listen on, at any free port.
      security: Of the streams.
    """
    with placement.on_cpu():
      self._outgoing()
      if self._pieces:
        self._pieces.warm_up()
      else:
        for stage in range(len(self._flat.wire.pushes)):
          self._warm_up(stage)
    self._listener = Listener(host, 0, self._welcome, security)
    self.address = self._listener.address

  @property
  def progress(self) -> OrderProgress:
    """Progress of the orders, which every heartbeat carries to the coordinator."""
    name, start = self._order
    return OrderProgress(
      executed=self._done,
      order=name,
      since_s=time.monotonic() - start,
      usual_s=self._longest.get(name),
    )

  def order(self, sequence: int, orders: Sequence[Order]) -> None:
    """Takes orders, which are executed after those of lower numbers.

    Args:
      sequence: Number of these orders, higher by one than the last.
      orders: The orders.
    """
    self._orders.put((sequence, orders))

  def serve(self, stream: Stream, worker: int, life: int) -> None:
    """Talks to a worker until its stream ends.

    Args:
      stream: From the worker.
      worker: Who it is.
      life: How often it was there before: its incarnation number.
    """
    port = _Port(stream)
    with self._lock:
      if life <= self._ended.get(worker, -1):
        raise Refused(f'incarnation {life} of worker {worker} is over')
      if any(w == worker and other > life for w, other in self._ports):
        raise Refused(f'worker {worker} is here already')
      before = self._ports.get((worker, life))
      self._ports[worker, life] = port
    if before is not None:  # Its worker had lost the connection.
      before.releases.put(None)
      before.stream.cancel('its worker has connected again')
    try:
      pieces = self._pieces.piece_bytes() if self._pieces else []
      stream.send(messages.PieceSizes(pieces))
      sender = None  # Of pieces.
      while (release := port.releases.get()) is not None:
        if sender:
          sender.join()
        pull, sent = release
        if sent is None:
          stream.send(messages.Released(pull))  # It has all pieces.
        else:
          stream.send(messages.Released(pull), chunked(sent), self._pull_bytes)
          del sent, release
        message = stream.receive(messages.PUSH)
        self._check(message, pull.iteration, pull.stage)
        payload: Payload | Key = (worker, life)
        if self._pieces:
          sender = self._pipe(stream, message, payload)
        else:
          payload = self._taken(message, pull.stage)
        with self._lock:
          if not port.ended:  # Else nobody would take it out again.
            self._payloads[worker, life] = payload
        self._report(messages.PushArrived(worker, life, message.header), ())
    except (TransportError, WrongPush) as error:
      reason = f'{type(error).__name__}: {error}'
      if self._ports.get((worker, life)) is port:
        self._report(messages.WorkerFailed(worker, life, reason), ())
      raise
    finally:
      with self._lock:
        if self._ports.get((worker, life)) is port:
          del self._ports[worker, life]

  def close(self, grace_s: float) -> None:
    """Ends all streams once what was ordered is done.

    Args:
      grace_s: Seconds that workers are given to end them by themselves.
    """
    self._orders.put(None)
    self._thread.join(grace_s + _LAST_S)
    if self._thread.is_alive():
      logging.warning('Server %d has not obeyed its last orders.', self.index)
    with self._lock:
      ports = list(self._ports.values())
    for port in ports:
      port.releases.put(None)
    if self._listener:
      self._listener.close(grace_s)

  def _welcome(self, stream: Stream, hello: msgspec.Raw) -> None:
    try:
      worker = messages.WORKER_CONNECTION.decode(hello)
    except ValueError as error:
      raise Refused(f'sent another hello: {error}') from error
    self.serve(stream, worker.worker, worker.incarnation)

  def _warm_up(self, stage: int) -> None:
    """Compiles what pushes of a stage of the wire need."""
    sent = memory.aligned(self._flat.push_bytes(self.index, stage))
    sent[:] = 0
    payload = jax.block_until_ready(self._payload(sent, stage))
    self.learner.warm_up(payload)

  def _check(
    self, message: Incoming[messages.PushReport], iteration: int, stage: int
  ) -> None:
    got = message.header.iteration
    if got != iteration:
      raise WrongPush(f'Expected iteration {iteration}, got {got}.')
    size = self._flat.push_bytes(self.index, stage)
    if message.size_bytes != size:
      raise WrongPush(f'Expected {size} bytes, got {message.size_bytes}.')

  def _taken(
    self, message: Incoming[messages.PushReport], stage: int
  ) -> Payload:
    """Returns the payload of a push once it has arrived whole."""
    sent = memory.aligned(self._flat.push_bytes(self.index, stage))
    message.read(sent)
    with placement.on_cpu():
      return self._payload(sent, stage)

  def _payload(self, sent: np.ndarray, stage: int) -> Payload:
    """Returns what bytes stand for, in their place: they must not change."""
    message = self._flat.push_of(sent, self.index, stage)
    return self._flat.taken(message, self.index, stage)

  def _pipe(
    self, stream: Stream, message: Incoming[messages.PushReport], key: Key
  ) -> threading.Thread:
    """Takes a push in pieces; returns the thread that sends them back."""
    pieces = self._pieces.served(key)
    sender = threading.Thread(
      target=_sent, args=(stream, pieces, self._pull_bytes), daemon=True
    )
    sender.start()
    with self._lock:
      self._piped.add(key)
    if not message.header.is_finite:
      self._pieces.void(key)
    with placement.on_cpu():
      for number, chunk in enumerate(message.chunks):
        self._pieces.take(key, number, chunk)
    return sender

  def _execute(self) -> None:
    try:
      with placement.on_cpu():
        while (ordered := self._orders.get()) is not None:
          self._obey(*ordered)
    except Exception as error:  # The coordinator has to know, whatever it is.
      reason = f'{type(error).__name__}: {error}'
      logging.exception('Server %d has failed', self.index)
      with contextlib.suppress(TransportError):
        self._report(messages.ServerFailed(reason), ())

  def _obey(self, sequence: int, orders: Sequence[Order]) -> None:
    if sequence != self._sequence:
      raise RuntimeError(f'Expected orders {self._sequence}, got {sequence}.')
    self._sequence += 1
    # Whoever is released at once makes a superstep.
    for kind, group in itertools.groupby(orders, type):
      alike, name = list(group), kind.__name__
      releases = [each for each in alike if isinstance(each, messages.Release)]
      if releases:
        # Servers begin with different workers.
        releases.sort(key=lambda each: (each.worker <= self.index, each.worker))
        alike = [*releases]
        if self._pieces:
          self._expect(releases)
      for order in alike:
        start = time.monotonic()
        self._order = name, start
        self._obey_one(order)
        self._order = '', 0.0
        seconds = time.monotonic() - start
        self._longest[name] = max(seconds, self._longest.get(name, 0.0))
    self._done = self._sequence

  def _obey_one(self, order: Order) -> None:
    match order:
      case messages.Add():
        self._add(order)
      case messages.Commit():
        self.learner.commit(order.update)
      case messages.Release():
        self._release(order)
      case messages.EndWorker():
        self._end(order.worker, order.incarnation)
      case messages.Hold():
        self._hold(order.version)
      case messages.Drop():
        self._keeping.drop(order.version)
      case messages.SendVersion():
        self._keeping.send(order.question, order.version)
      case messages.SaveShare():
        self._save(order.question, order.step)

  def _add(self, order: messages.Add) -> None:
    with self._lock:
      payload = self._payloads.pop((order.worker, order.incarnation))
    if order.examples:
      self.learner.add(order.update, payload, order.examples, scale=order.scale)

  def _release(self, order: messages.Release) -> None:
    key = order.worker, order.incarnation
    with self._lock:
      port = self._ports.get(key)
      has_all = key in self._piped
      self._piped.discard(key)
    if port is not None:  # Its stream may just have ended.
      port.releases.put((order.pull, None if has_all else self._outgoing()))

  def _expect(self, releases: Sequence[messages.Release]) -> None:
    """Prepares for the pushes of all workers that are released at once."""
    expected = {
      (each.worker, each.incarnation): (each.pull.examples, each.pull.scale)
      for each in releases
    }
    if not self._pieces.expect(expected):
      with self._lock:
        self._piped.clear()  # All of it is sent again.

  def _end(self, worker: int, life: int) -> None:
    with self._lock:
      port = self._ports.get((worker, life))
      self._payloads.pop((worker, life), None)
      self._piped.discard((worker, life))
      self._ended[worker] = max(life, self._ended.get(worker, -1))
      if port is not None:
        port.ended = True
        port.releases.put(None)
    if self._pieces:
      self._pieces.leave((worker, life))
    if port is not None:
      # Its host may be out of reach, and it in the middle of a message.
      port.stream.cancel('The coordinator has given it up.')

  def _hold(self, held: int) -> None:
    self._keeping.hold(held, self.learner.params, self.learner.stats)

  def _save(self, number: int, step: int) -> None:
    self._keeping.save(number, step, self.learner.state())

  def _outgoing(self) -> list[np.ndarray]:
    """Returns this version as it travels, uint8 [n] each."""
    if self._pieces:
      return self._pieces.outgoing()
    if self._current[0] != self.learner.version:
      message = self._flat.sent(self.learner.params, self.learner.stats)
      self._current = self.learner.version, views(message)
    return self._current[1]


def _sent(stream: Stream, pieces: Iterator[np.ndarray], size: int) -> None:
  # Who receives from the stream meets the error, too, and tells of it.
  with contextlib.suppress(TransportError, ValueError):
    stream.send(messages.PulledPieces(), pieces, size)
