"""A parameter server on real hosts, which holds a share of the parameters.

The server executes the orders of the coordinator strictly in sequence, so that
all servers send a worker the same version.  Each worker has a stream of its
own: the server sends a version once the coordinator releases the worker, and
then receives the worker's push.  One event loop serves the streams of all.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import msgspec
import numpy as np
from absl import logging

from cluster.network import memory, messages
from cluster.network.errors import expect
from cluster.network.frame_reader import Receiving
from cluster.network.loop_streams import LoopListener, LoopStream
from cluster.network.messages import Order, OrderProgress
from cluster.network.streams import (
  Port,
  Refused,
  TransportError,
  chunked,
  push_service,
)
from cluster.parameter_server import work
from cluster.parameter_server.mirrors import MirrorStore, share_part
from cluster.parameter_server.pieces import Pieces
from cluster.parameter_server.store import Key
from cluster.parameter_server.versions import Report, ShardVersions
from learning import placement, warm_up
from learning.learning import Learner
from learning.shard_codec import ShardCodec, byte_views
from system import clock, threads
from wire.codec import Payload

_LAST_S = 10.0  # Time limit of the last orders.
_POLL_S = 0.1


class WrongPush(Exception):
  """Raised if a worker's message is not the push of its current release."""


class _Port:
  """The server's end of a worker's stream.

  Attributes:
    stream: Stream to the worker.
    pull: Iteration whose push the worker is to send; None before a release.
    num_pieces: Pieces of the next version that the worker has been sent.
    ended: Whether the coordinator has ended the worker's incarnation.
  """

  def __init__(self, stream: LoopStream) -> None:
    self.stream = stream
    self.pull: messages.Pull | None = None
    self.num_pieces = 0
    self.ended = False


class Server:
  """A server: a share of the parameters, and a stream to each worker.

  It has two threads, whatever the number of workers.  An event loop receives
  the pushes of all workers (`serve`).  The other thread decodes them, notifies
  the coordinator by `report` (`ParameterServerReception.take_report`; from
  another process by way of `hosting`), and executes the orders by which the
  coordinator answers: `Add`, then `Commit`, then `Release`, which sends the
  next version.

  Attributes:
    index: Rank of the server.
    learner: Learner of the share.
    address: 'host:port' to which workers connect; '' before `open`.
    work: Its work; None before `open`, without a model, and if it serves
      pieces of sums.
  """

  def __init__(
    self,
    index: int,
    *,
    learner: Learner | Pieces,
    codec: ShardCodec,
    versions: ShardVersions,
    report: Report,
    mirrors: MirrorStore | None = None,
  ):
    """Creates the server, which waits for orders.

    Args:
      index: Rank of the server.
      learner: Learner of the share's codec vectors.
      codec: Of all shares.
      versions: Checkpoints and held versions of the share.
      report: Reports to the coordinator that a push has arrived or that a
        stream has failed; called from two threads.
      mirrors: Parts of mirrors that this process holds; None for a run without
        mirrors.
    """
    self.index = index
    self.learner = learner
    self.address = ''
    self.work: messages.ServerWork | None = None
    self._codec = codec
    self._report = report
    self._pull_bytes = codec.pull_bytes(index)
    self._piece_bytes = (
      learner.piece_bytes() if isinstance(learner, Pieces) else []
    )
    self._versions = versions
    self._mirror_store = mirrors
    self._pieces = learner if isinstance(learner, Pieces) else None
    self._lock = threads.Lock()  # Of streams and of incarnations.
    self._ports: dict[Key, _Port] = {}
    # Newest incarnation that the coordinator has admitted, by worker.
    self._accepted: dict[int, messages.AcceptWorker] = {}
    self._ended: dict[int, int] = {}  # Last ended incarnation, by worker.
    # In the server's own thread: pushes received and not yet added; of pieces
    # their worker stands here.
    self._payloads: dict[Key, Payload | Key] = {}
    # Streams of workers that get the next version in pieces.
    self._piped: dict[Key, _Port] = {}
    self._current: tuple[int, list[np.ndarray]] = -1, []  # Version, its bytes.
    self._work: threads.SimpleQueue[Callable[[], object] | None] = (
      threads.SimpleQueue()
    )
    self._sequence = self._done = 0
    self._order: tuple[str, float] = '', 0.0  # Name and start.
    self._longest: dict[str, float] = {}  # Seconds of orders, by name.
    self._listener: LoopListener | None = None
    self._thread = threads.Thread(
      target=self._run, name=f'server-{index}', daemon=True
    )
    self._thread.start()

  def open(self, port: Port) -> None:
    """Compiles all programs, measures them, and listens for workers.

    Args:
      port: Port of this process.
    """
    with placement.on_cpu():
      self._outgoing()
      if isinstance(self.learner, Pieces):
        self.learner.warm_up()
      else:
        stages = range(len(self._codec.wire.pushes))
        for stage in stages:
          payload = self._payload(self._zeros(stage), stage)
          warm_up.apply_updates(self.learner, payload, adds=True)
        self.work = work.measure(
          self.learner, stages, self._zeros, self._payload
        )
    self._listener = LoopListener(
      port, self._handle, service=push_service(self.index)
    )
    self.address = self._listener.address

  @property
  def progress(self) -> OrderProgress:
    """Progress of the orders, which heartbeats carry to the coordinator."""
    name, start = self._order
    return OrderProgress(
      executed=self._done,
      order=name,
      since_s=clock.monotonic() - start,
      usual_s=self._longest.get(name),
    )

  def restart(self, mirror: int) -> tuple[int, int]:
    """Continues from a mirror, with orders from number 0 on and no worker.

    Args:
      mirror: Number of the mirror, of which this process has the part.

    Returns:
      The numbers of updates and of examples that it had applied before.

    Raises:
      LookupError: If it does not have it.
    """
    state = self._mirrors.get(mirror, share_part(self.index))
    with self._lock:
      ports, self._ports = [*self._ports.values()], {}
      # Another coordinator may count its incarnations from lower numbers.
      self._accepted, self._ended = {}, {}
      for port in ports:
        port.ended = True
    for port in ports:
      port.stream.cancel('The servers continue from a mirror.')
    left: threads.Future[tuple[int, int]] = threads.Future()
    self._submit(self._restart, state, left)
    while not left.done():
      threads.wait([left], _POLL_S)
      if not self._thread.is_alive():
        raise LookupError(f'Server {self.index} has failed.')
    return left.result()

  def _restart(self, state: Any, left: threads.Future[tuple[int, int]]) -> None:
    """Replaces the state of the share; in the server's own thread."""
    before = self.learner.version, self.learner.examples
    state = dict(jax.tree.map(_place, state))
    self._versions.restart(state.pop('held'))
    self.learner.restore(state)
    self._payloads.clear()
    self._piped.clear()
    self._current = -1, []
    self._sequence = self._done = 0
    left.set_result(before)

  def accept(self, order: messages.AcceptWorker) -> None:
    """Accepts the stream of a worker's incarnation, and no older one."""
    with self._lock:
      before = self._accepted.get(order.worker)
      if before is None or before.incarnation < order.incarnation:
        self._accepted[order.worker] = order

  def order(self, sequence: int, orders: Sequence[Order]) -> None:
    """Queues orders, which are executed after those of lower numbers.

    Args:
      sequence: Number of these orders, higher by one than the last.
      orders: The orders.
    """
    self._work.put(functools.partial(self._execute_all, sequence, orders))

  def serve(
    self, stream: LoopStream, hello: messages.WorkerConnection
  ) -> Receiving[None]:
    """Receives the pushes of a worker until its stream ends.

    Args:
      stream: Stream from the worker.
      hello: Its first message.

    Raises:
      Refused: If the incarnation is over, or the coordinator has not admitted
        it, or has admitted a newer one.
      TransportError: If the stream has ended.
      WrongPush: If a message is not the push of the last release.
    """
    worker, incarnation = key = hello.worker, hello.incarnation
    port, name = _Port(stream), f'incarnation {incarnation} of worker {worker}'
    with self._lock:
      if incarnation <= self._ended.get(worker, -1):
        raise Refused(f'{name} is over')
      if self._accepted.get(worker) != messages.AcceptWorker(
        *key, hello.process
      ):
        raise Refused(f'{name} is not the one that was admitted')
      before = self._ports.get(key)
      self._ports[key] = port
    if before is not None:  # Its worker had lost the connection.
      before.stream.cancel('its worker has connected again')
    try:
      stream.send(messages.PieceSizes(self._piece_bytes))
      while True:
        report, size_bytes = yield from stream.receive(messages.PUSH)
        stage = self._check(port, report, size_bytes)
        if self._piece_bytes:
          yield from self._receive_pieces(port, key, report)
        else:
          sent = memory.aligned(size_bytes)
          yield from stream.fill(sent)
          self._submit(self._take_push, port, key, report, sent, stage)
    except (TransportError, WrongPush) as error:
      reason = f'{type(error).__name__}: {error}'
      if self._ports.get(key) is port:
        self._submit(self._notify, messages.WorkerFailed(*key, reason))
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
    self._work.put(None)
    self._thread.join(grace_s + _LAST_S)
    if self._thread.is_alive():
      logging.warning('Server %d has not executed its last orders.', self.index)
    self._versions.abandon()
    with self._lock:
      ports = list(self._ports.values())
    for port in ports:
      port.stream.end('the server has closed')
    if self._listener:
      self._listener.close(grace_s)

  def _handle(self, stream: LoopStream, hello: msgspec.Raw) -> Receiving[None]:
    try:
      connection = messages.WORKER_CONNECTION.decode(hello)
    except ValueError as error:
      raise Refused(f'sent another hello: {error}') from error
    yield from self.serve(stream, connection)

  def _zeros(self, stage: int) -> np.ndarray:
    """Returns a push of a stage of the wire whose bytes are all 0."""
    sent = memory.aligned(self._codec.push_bytes(self.index, stage))
    sent[:] = 0
    return sent

  def _check(
    self, port: _Port, report: messages.PushReport, size_bytes: int
  ) -> int:
    """Checks a push before its body is received; returns its wire's stage."""
    with self._lock:
      pull, port.pull = port.pull, None
    if pull is None:
      raise WrongPush(f'Expected no push, got iteration {report.iteration}.')
    if report.iteration != pull.iteration:
      raise WrongPush(
        f'Expected iteration {pull.iteration}, got {report.iteration}.'
      )
    if report.weight > pull.examples:
      raise WrongPush(
        f'weight: expected at most {pull.examples}, got {report.weight}.'
      )
    size = self._codec.push_bytes(self.index, pull.stage)
    if size_bytes != size:
      raise WrongPush(f'Expected {size} bytes, got {size_bytes}.')
    return pull.stage

  def _receive_pieces(
    self, port: _Port, key: Key, report: messages.PushReport
  ) -> Receiving[None]:
    """Receives a push in pieces, each of which may complete a sum."""
    left = sum(self._piece_bytes)
    for number, size in enumerate(self._piece_bytes):
      chunk = yield from port.stream.receive_chunk(left)
      if chunk.size != size:
        raise WrongPush(
          f'Expected {size} bytes in piece {number}, got {chunk.size}.'
        )
      left -= size
      self._submit(self._take_piece, port, key, report, number, chunk)

  def _submit(self, function: Callable[..., object], *args: Any) -> None:
    """Schedules a call in the server's own thread."""
    self._work.put(functools.partial(function, *args))

  def _notify(self, report: messages.ServerReport) -> None:
    """Sends a report to the coordinator, unless that is lost."""
    with contextlib.suppress(TransportError):
      self._report(report, ())

  def _take_push(
    self,
    port: _Port,
    key: Key,
    report: messages.PushReport,
    sent: np.ndarray,
    stage: int,
  ) -> None:
    """Decodes and reports a push that has arrived."""
    if not self._has_ended(port, key):  # Else it would never be removed.
      self._payloads[key] = self._payload(sent, stage)
      self._notify(messages.PushArrived(*key, report))

  def _has_ended(self, port: _Port, key: Key) -> bool:
    """Returns whether the coordinator has ended an incarnation of a worker.

    Its stream may have ended before, and is then unknown to the order.
    """
    worker, incarnation = key
    with self._lock:
      return port.ended or incarnation <= self._ended.get(worker, -1)

  def _payload(self, sent: np.ndarray, stage: int) -> Payload:
    """Decodes a push in place: its bytes must not change afterwards."""
    message = self._codec.push_message(sent, self.index, stage)
    payload: Payload = self._codec.decode(message, self.index, stage)
    return payload

  def _take_piece(
    self,
    port: _Port,
    key: Key,
    report: messages.PushReport,
    number: int,
    chunk: np.ndarray,
  ) -> None:
    """Adds a worker's part of a piece, and sends pieces that are complete."""
    pieces = self._pieces
    if pieces is None or self._has_ended(port, key):
      return
    if number == 0:
      port.num_pieces = 0
      self._piped[key] = port
      pieces.weigh(key, report.weight)
      if not report.is_finite:
        pieces.void(key)
    if number == len(self._piece_bytes) - 1:
      # The coordinator decides while the last pieces travel back.
      self._payloads[key] = key
      self._notify(messages.PushArrived(*key, report))
    if pieces.take(key, number, chunk):
      self._send_pieces(pieces)

  def _send_pieces(self, pieces: Pieces) -> None:
    """Sends the pieces of the next version that follow those sent so far."""
    for port in self._piped.values():
      for chunk in pieces.complete_from(port.num_pieces):
        if port.num_pieces:
          port.stream.send_chunk(chunk)
        else:
          size_bytes = self._pull_bytes
          port.stream.send(messages.PulledPieces(), [chunk], size_bytes)
        port.num_pieces += 1

  def _run(self) -> None:
    try:
      with placement.on_cpu():
        while (function := self._work.get()) is not None:
          function()
    except Exception as error:  # The coordinator ends the run.
      reason = f'{type(error).__name__}: {error}'
      logging.exception('Server %d has failed', self.index)
      self._notify(messages.ServerFailed(reason))

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
        start = clock.monotonic()
        self._order = name, start
        self._execute_one(order)
        self._order = '', 0.0
        seconds = clock.monotonic() - start
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
        self._versions.free(order.version)
      case messages.SendVersion():
        self._versions.send(order.question, order.version)
      case messages.SaveShare():
        self._save(order.question, order.step)
      case messages.MirrorShare():
        self._mirror(order.number)
      case messages.DropMirrors():
        self._mirrors.drop_before(order.before)

  def _add(self, order: messages.Add) -> None:
    most, got = order.examples, order.weight
    expect(got <= most, 'weight', f'at most {most}', got)
    key = order.worker, order.incarnation
    payload = self._payloads.pop(key, None)
    expect(payload is not None, 'worker', 'one whose push is here', key)
    if not order.examples:
      return
    if isinstance(self.learner, Pieces):
      self.learner.add(order.update, (order.worker, order.incarnation))
    elif isinstance(payload, Payload):
      self.learner.add(
        order.update,
        payload,
        order.examples,
        weight=order.weight,
        scale=order.scale,
      )

  def _release(self, order: messages.Release) -> None:
    key = order.worker, order.incarnation
    piped = self._piped.pop(key, None)
    with self._lock:
      port = self._ports.get(key)
      if port is None:
        return  # Its stream may just have ended.
      port.pull = order.pull
    if piped is port:
      port.stream.send(messages.Released(order.pull))  # It has all pieces.
    else:
      chunks = chunked(self._outgoing())
      port.stream.send(messages.Released(order.pull), chunks, self._pull_bytes)

  def _expect(
    self, pieces: Pieces, releases: Sequence[messages.Release]
  ) -> None:
    """Starts a superstep of the workers that are released together."""
    expected = {
      (each.worker, each.incarnation): (each.pull.examples, each.pull.scale)
      for each in releases
    }
    if not pieces.expect(expected):
      self._piped.clear()  # All of it is sent again.

  def _end(self, worker: int, incarnation: int) -> None:
    key = worker, incarnation
    self._payloads.pop(key, None)
    self._piped.pop(key, None)
    with self._lock:
      port = self._ports.get(key)
      self._ended[worker] = max(incarnation, self._ended.get(worker, -1))
      if port is not None:
        port.ended = True
    if self._pieces:
      self._pieces.leave(key)
      self._send_pieces(self._pieces)
    if port is not None:
      # Its host may be out of reach, or a message may be on its way.
      port.stream.cancel('The coordinator has evicted it.')

  def _hold(self, held: int) -> None:
    self._versions.hold(held, self.learner.params, self.learner.stats)

  def _save(self, number: int, step: int) -> None:
    self._versions.save(number, step, self.learner.state())

  @property
  def _mirrors(self) -> MirrorStore:
    """The parts of mirrors that this process holds.

    Raises:
      RuntimeError: If the run has no mirrors.
    """
    if self._mirror_store is None:
      raise RuntimeError('Expected a run with mirrors.')
    return self._mirror_store

  def _mirror(self, number: int) -> None:
    state = self.learner.state() | {'held': self._versions.held}
    address = self._mirrors.put(number, share_part(self.index), state)
    leaves = jax.tree.leaves(state)
    size_bytes = sum(getattr(leaf, 'nbytes', 0) for leaf in leaves)
    self._notify(messages.ShareMirrored(number, address, size_bytes))

  def _outgoing(self) -> list[np.ndarray]:
    """Returns the current version, encoded, uint8 [n] each."""
    if self._pieces:
      return self._pieces.outgoing()
    if self._current[0] != self.learner.version:
      message = self._codec.encode_pull(self.learner.params, self.learner.stats)
      self._current = self.learner.version, byte_views(message)
    return self._current[1]


def _place(leaf: Any) -> Any:
  """Returns a copy of an array on JAX's device; other leaves as they are."""
  return jax.device_put(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf
