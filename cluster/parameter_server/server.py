"""A parameter server on real hosts, which holds a share of the parameters.

The server executes the orders of the coordinator strictly in sequence, so that
all servers send a worker the same version.  Each worker has a stream of its
own: the server sends a version once the coordinator releases the worker, and
then receives the worker's push.
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
  PUSHES,
  Incoming,
  Listener,
  Port,
  Refused,
  Stream,
  TransportError,
  chunked,
)
from cluster.parameter_server.pieces import Pieces
from cluster.parameter_server.store import Key
from cluster.parameter_server.versions import Report, ShardVersions
from learning import placement
from learning.learning import Learner
from learning.shard_codec import ShardCodec, byte_views
from wire.codec import Payload

_LAST_S = 10.0  # Time limit of the last orders.


class WrongPush(Exception):
  """Raised if a worker's message is not the push of its current release."""


class _Port:
  """The server's end of a worker's stream.

  Attributes:
    stream: Stream to the worker.
    releases: Headers and versions to send; None ends the stream.
    ended: Whether the coordinator has ended the worker's incarnation.
  """

  def __init__(self, stream: Stream) -> None:
    self.stream = stream
    # The next iteration, and the parameters unless the worker has all pieces.
    self.releases: queue.SimpleQueue[
      tuple[messages.Pull, list[np.ndarray] | None] | None
    ] = queue.SimpleQueue()
    self.ended = False


class Server:
  """A server: a share of the parameters, and a stream to each worker.

  A gradient passes `serve`, in the thread of its worker's stream: a push is
  received and decoded, and `report` notifies the coordinator
  (`ParameterServerReception.take_report`; from another process by way of
  `hosting`).  The coordinator answers by `order`, and the orders are executed
  in the server's own thread: `Add`, then `Commit`, then `Release`, which lets
  `serve` send the next version.

  Attributes:
    index: Rank of the server.
    learner: Learner of the share.
    address: 'host:port' to which workers connect; '' before `open`.
  """

  def __init__(
    self,
    index: int,
    *,
    learner: Learner | Pieces,
    codec: ShardCodec,
    versions: ShardVersions,
    report: Report,
  ):
    """Creates the server, which waits for orders.

    Args:
      index: Rank of the server.
      learner: Learner of the share's codec vectors.
      codec: Of all shares.
      versions: Checkpoints and held versions of the share.
      report: Reports to the coordinator that a push has arrived or that a
        stream has failed; called from many threads.
    """
    self.index = index
    self.learner = learner
    self.address = ''
    self._codec = codec
    self._report = report
    self._pull_bytes = codec.pull_bytes(index)
    self._versions = versions
    self._ports: dict[Key, _Port] = {}
    # Pushes received and not yet added; of pieces their worker stands here.
    self._payloads: dict[Key, Payload | Key] = {}
    self._ended: dict[int, int] = {}  # Last ended incarnation, by worker.
    self._piped: set[Key] = set()  # Workers that get a version in pieces.
    self._pieces = learner if isinstance(learner, Pieces) else None
    self._lock = threading.Lock()
    self._current: tuple[int, list[np.ndarray]] = -1, []  # Version, its bytes.
    self._orders: queue.SimpleQueue[tuple[int, Sequence[Order]] | None] = (
      queue.SimpleQueue()
    )
    self._sequence = self._done = 0
    self._order: tuple[str, float] = '', 0.0  # Name and start.
    self._longest: dict[str, float] = {}  # Seconds of orders, by name.
    self._listener: Listener | None = None
    self._thread = threading.Thread(target=self._execute, daemon=True)
    self._thread.start()

  def open(self, port: Port) -> None:
    """Compiles all programs, and starts to listen for workers.

    Args:
      port: Port of this process.
    """
    with placement.on_cpu():
      self._outgoing()
      if self._pieces:
        self._pieces.warm_up()
      else:
        for stage in range(len(self._codec.wire.pushes)):
          self._warm_up(stage)
    self._listener = Listener(port, self._handle, service=PUSHES)
    self.address = self._listener.address

  @property
  def progress(self) -> OrderProgress:
    """Progress of the orders, which heartbeats carry to the coordinator."""
    name, start = self._order
    return OrderProgress(
      executed=self._done,
      order=name,
      since_s=time.monotonic() - start,
      usual_s=self._longest.get(name),
    )

  def order(self, sequence: int, orders: Sequence[Order]) -> None:
    """Queues orders, which are executed after those of lower numbers.

    Args:
      sequence: Number of these orders, higher by one than the last.
      orders: The orders.
    """
    self._orders.put((sequence, orders))

  def serve(self, stream: Stream, worker: int, incarnation: int) -> None:
    """Serves a worker until its stream ends.

    Args:
      stream: Stream from the worker.
      worker: Rank of the worker.
      incarnation: Number of its incarnation.

    Raises:
      Refused: If the incarnation is over, or is older than another one.
      TransportError: If the stream has ended.
      WrongPush: If a message is not the push of the last release.
    """
    port, key = _Port(stream), (worker, incarnation)
    with self._lock:
      if incarnation <= self._ended.get(worker, -1):
        raise Refused(f'incarnation {incarnation} of worker {worker} is over')
      if any(w == worker and i > incarnation for w, i in self._ports):
        raise Refused(f'worker {worker} has a newer incarnation')
      before = self._ports.get(key)
      self._ports[key] = port
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
        payload: Payload | Key = key
        if self._pieces:
          sender = self._pipe(self._pieces, stream, message, key)
        else:
          payload = self._receive_push(message, pull.stage)
        with self._lock:
          if not port.ended:  # Otherwise it would never be removed.
            self._payloads[key] = payload
        self._report(messages.PushArrived(*key, message.header), ())
    except (TransportError, WrongPush) as error:
      reason = f'{type(error).__name__}: {error}'
      if self._ports.get(key) is port:
        self._report(messages.WorkerFailed(*key, reason), ())
      raise
    finally:
      with self._lock:
        if self._ports.get(key) is port:
          del self._ports[key]

  def close(self, grace_s: float) -> None:
    """Ends all streams once all orders are executed.

    Args:
      grace_s: Seconds for which workers may end the streams themselves.
    """
    self._orders.put(None)
    self._thread.join(grace_s + _LAST_S)
    if self._thread.is_alive():
      logging.warning('Server %d has not executed its last orders.', self.index)
    with self._lock:
      ports = list(self._ports.values())
    for port in ports:
      port.releases.put(None)
    if self._listener:
      self._listener.close(grace_s)

  def _handle(self, stream: Stream, hello: msgspec.Raw) -> None:
    try:
      worker = messages.WORKER_CONNECTION.decode(hello)
    except ValueError as error:
      raise Refused(f'sent another hello: {error}') from error
    self.serve(stream, worker.worker, worker.incarnation)

  def _warm_up(self, stage: int) -> None:
    """Compiles the programs for pushes of a stage of the wire."""
    sent = memory.aligned(self._codec.push_bytes(self.index, stage))
    sent[:] = 0
    payload = jax.block_until_ready(self._payload(sent, stage))
    self.learner.warm_up(payload)

  def _check(
    self, message: Incoming[messages.PushReport], iteration: int, stage: int
  ) -> None:
    got = message.header.iteration
    if got != iteration:
      raise WrongPush(f'Expected iteration {iteration}, got {got}.')
    size = self._codec.push_bytes(self.index, stage)
    if message.size_bytes != size:
      raise WrongPush(f'Expected {size} bytes, got {message.size_bytes}.')

  def _receive_push(
    self, message: Incoming[messages.PushReport], stage: int
  ) -> Payload:
    """Receives a whole push; returns its payload."""
    sent = memory.aligned(self._codec.push_bytes(self.index, stage))
    message.read(sent)
    with placement.on_cpu():
      return self._payload(sent, stage)

  def _payload(self, sent: np.ndarray, stage: int) -> Payload:
    """Decodes a push in place: its bytes must not change afterwards."""
    message = self._codec.push_message(sent, self.index, stage)
    payload: Payload = self._codec.decode(message, self.index, stage)
    return payload

  def _pipe(
    self,
    pieces: Pieces,
    stream: Stream,
    message: Incoming[messages.PushReport],
    key: Key,
  ) -> threading.Thread:
    """Receives a push in pieces; returns the thread that sends them back."""
    answer = stream, pieces.stream_next(key), self._pull_bytes
    sender = threading.Thread(target=_send_pieces, args=answer, daemon=True)
    sender.start()
    with self._lock:
      self._piped.add(key)
    if not message.header.is_finite:
      pieces.void(key)
    with placement.on_cpu():
      for number, chunk in enumerate(message.chunks):
        pieces.take(key, number, chunk)
    return sender

  def _execute(self) -> None:
    try:
      with placement.on_cpu():
        while (ordered := self._orders.get()) is not None:
          self._execute_all(*ordered)
    except Exception as error:  # The coordinator ends the run.
      reason = f'{type(error).__name__}: {error}'
      logging.exception('Server %d has failed', self.index)
      with contextlib.suppress(TransportError):
        self._report(messages.ServerFailed(reason), ())

  def _execute_all(self, sequence: int, orders: Sequence[Order]) -> None:
    if sequence != self._sequence:
      raise RuntimeError(f'Expected orders {self._sequence}, got {sequence}.')
    self._sequence += 1
    # Workers that are released together form a superstep.
    for kind, group in itertools.groupby(orders, type):
      alike, name = list(group), kind.__name__
      releases = [each for each in alike if isinstance(each, messages.Release)]
      if releases:
        # Servers begin with different workers, to share links evenly.
        releases.sort(key=lambda each: (each.worker <= self.index, each.worker))
        alike = [*releases]
        if self._pieces:
          self._expect(self._pieces, releases)
      for order in alike:
        start = time.monotonic()
        self._order = name, start
        self._execute_one(order)
        self._order = '', 0.0
        seconds = time.monotonic() - start
        self._longest[name] = max(seconds, self._longest.get(name, 0.0))
    self._done = self._sequence

  def _execute_one(self, order: Order) -> None:
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
        self._versions.drop(order.version)
      case messages.SendVersion():
        self._versions.send(order.question, order.version)
      case messages.SaveShare():
        self._save(order.question, order.step)

  def _add(self, order: messages.Add) -> None:
    with self._lock:
      payload = self._payloads.pop((order.worker, order.incarnation))
    if not order.examples:
      return
    if isinstance(self.learner, Pieces):
      self.learner.add(order.update, (order.worker, order.incarnation))
    elif isinstance(payload, Payload):
      self.learner.add(order.update, payload, order.examples, scale=order.scale)

  def _release(self, order: messages.Release) -> None:
    key = order.worker, order.incarnation
    with self._lock:
      port = self._ports.get(key)
      has_all = key in self._piped
      self._piped.discard(key)
    if port is not None:  # Its stream may just have ended.
      port.releases.put((order.pull, None if has_all else self._outgoing()))

  def _expect(
    self, pieces: Pieces, releases: Sequence[messages.Release]
  ) -> None:
    """Starts a superstep of the workers that are released together."""
    expected = {
      (each.worker, each.incarnation): (each.pull.examples, each.pull.scale)
      for each in releases
    }
    if not pieces.expect(expected):
      with self._lock:
        self._piped.clear()  # All of it is sent again.

  def _end(self, worker: int, incarnation: int) -> None:
    key = worker, incarnation
    with self._lock:
      port = self._ports.get(key)
      self._payloads.pop(key, None)
      self._piped.discard(key)
      self._ended[worker] = max(incarnation, self._ended.get(worker, -1))
      if port is not None:
        port.ended = True
        port.releases.put(None)
    if self._pieces:
      self._pieces.leave(key)
    if port is not None:
      # Its host may be out of reach, or a message may be on its way.
      port.stream.cancel('The coordinator has evicted it.')

  def _hold(self, held: int) -> None:
    self._versions.hold(held, self.learner.params, self.learner.stats)

  def _save(self, number: int, step: int) -> None:
    self._versions.save(number, step, self.learner.state())

  def _outgoing(self) -> list[np.ndarray]:
    """Returns the current version, encoded, uint8 [n] each."""
    if self._pieces:
      return self._pieces.outgoing()
    if self._current[0] != self.learner.version:
      message = self._codec.encode_pull(self.learner.params, self.learner.stats)
      self._current = self.learner.version, byte_views(message)
    return self._current[1]


def _send_pieces(
  stream: Stream, pieces: Iterator[np.ndarray], size: int
) -> None:
  # The thread that receives meets the error, too, and reports it.
  with contextlib.suppress(TransportError, ValueError):
    stream.send(messages.PulledPieces(), pieces, size)
