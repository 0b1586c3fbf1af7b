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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from cluster.membership import checked
from cluster.network import memory
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
    self.releases: queue.SimpleQueue[
      tuple[dict[str, Any], list[np.ndarray] | None] | None
    ] = queue.SimpleQueue()
    self.ended = False


class Server:
  """A server: a share of the parameters, and a stream to each worker.

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
    keeping: Keeping,
    report: Report,
  ):
    """Creates the server, which waits for orders.

    Args:
      index: Rank of the server.
      learner: Learner of the share's codec vectors.
      codec: Of all shares.
      keeping: Checkpoints and held versions of the share.
      report: Reports to the coordinator that a push has arrived or that a
        stream has failed; called from many threads.
    """
    self.index = index
    self.learner = learner
    self.address = ''
    self._codec = codec
    self._report = report
    self._pull_bytes = codec.pull_bytes(index)
    self._keeping = keeping
    self._ports: dict[Key, _Port] = {}
    # Pushes received and not yet added; of pieces their worker stands here.
    self._payloads: dict[Key, Payload | Key] = {}
    self._ended: dict[int, int] = {}  # Last ended incarnation, by worker.
    self._piped: set[Key] = set()  # Workers that get a version in pieces.
    self._pieces = learner if isinstance(learner, Pieces) else None
    self._lock = threading.Lock()
    self._current: tuple[int, list[np.ndarray]] = -1, []  # Version, its bytes.
    self._orders: queue.SimpleQueue[
      tuple[int, Sequence[Sequence[Any]]] | None
    ] = queue.SimpleQueue()
    self._sequence = self._done = 0
    self._order: tuple[str, float] = '', 0.0  # Name and start.
    self._longest: dict[str, float] = {}  # Seconds of orders, by name.
    self._obeyed: dict[str, Callable[..., None]] = {
      'add': self._add,
      'commit': self._commit,
      'release': self._release,
      'end': self._end,
      'hold': self._hold,
      'drop': keeping.drop,
      'send': keeping.send,
      'save': self._save,
    }
    self._listener: Listener | None = None
    self._thread = threading.Thread(target=self._execute, daemon=True)
    self._thread.start()

  def open(self, host: str, security: Security) -> None:
    """Compiles all programs, and starts to listen for workers.

    Args:
      host: Address to listen on, at any free port.
      security: Credentials of all streams.
    """
    with placement.on_cpu():
      self._outgoing()
      if self._pieces:
        self._pieces.warm_up()
      else:
        for stage in range(len(self._codec.wire.pushes)):
          self._warm_up(stage)
    self._listener = Listener(host, 0, self._welcome, security)
    self.address = self._listener.address

  @property
  def doing(self) -> dict[str, Any]:
    """Progress of the orders, which every heartbeat carries to the coordinator.

    'obeyed': number of calls of `order` whose orders have all been executed;
    'order': name of the order that is being executed, or ''; 'since_s': seconds
    since its start; 'usual_s': seconds of the longest earlier order of that
    name, or None.
    """
    name, start = self._order
    return {
      'obeyed': self._done,
      'order': name,
      'since_s': time.monotonic() - start,
      'usual_s': self._longest.get(name),
    }

  def order(self, sequence: int, orders: Sequence[Sequence[Any]]) -> None:
    """Takes orders, which follow those of lower numbers.

    Args:
      sequence: Higher by one than the last.
      orders: 'add', worker, life, update, examples, scale: sums a push that has
        arrived whole, and is to be divided by its scale, or forgets it if the
        examples are 0; 'commit', update; 'release', worker, life, header: sends
        the version of this moment; 'end', worker, life: ends a stream;
        'hold', held: keeps the version of this moment under a number; 'drop',
        held: forgets it; 'send', id, held: reports it; 'save', id, step: writes
        a part of a checkpoint and reports that it is safe.
    """
    self._orders.put((sequence, orders))

  def serve(self, stream: Stream, worker: int, life: int) -> None:
    """Serves a worker until its stream ends.

    Args:
      stream: Stream from the worker.
      worker: Rank of the worker.
      life: Number of its incarnation.

    Raises:
      Refused: If the incarnation is over, or is older than another one.
      TransportError: If the stream has ended.
      WrongPush: If a message is not the push of the last release.
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
    key = {'worker': worker, 'life': life}
    try:
      pieces = self._pieces.piece_bytes() if self._pieces else []
      stream.send({'pieces': pieces})
      sender = None  # Of pieces.
      while (release := port.releases.get()) is not None:
        if sender:
          sender.join()
        header, sent = release
        if sent is None:
          stream.send(header)  # It has all pieces.
        else:
          stream.send(header, chunked(sent), self._pull_bytes)
          del sent, release
        message = stream.receive()
        self._check(message, header['iteration'], header['stage'])
        payload: Payload | Key = (worker, life)
        if self._pieces:
          owner = worker, life
          sender = self._pipe(self._pieces, stream, message, owner)
        else:
          payload = self._taken(message, header['stage'])
        with self._lock:
          if not port.ended:  # Otherwise it would never be removed.
            self._payloads[worker, life] = payload
        self._report(message.header | {'event': 'arrived'} | key, ())
    except (TransportError, WrongPush) as error:
      reason = f'{type(error).__name__}: {error}'
      if self._ports.get((worker, life)) is port:
        self._report({'event': 'failed'} | key | {'reason': reason}, ())
      raise
    finally:
      with self._lock:
        if self._ports.get((worker, life)) is port:
          del self._ports[worker, life]

  def close(self, grace_s: float) -> None:
    """Ends all streams once all orders are executed.

    Args:
      grace_s: Seconds for which workers may end the streams themselves.
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

  def _welcome(self, stream: Stream, hello: Mapping[str, Any]) -> None:
    self.serve(stream, *checked.key(hello))

  def _warm_up(self, stage: int) -> None:
    """Compiles the programs for pushes of a stage of the wire."""
    sent = memory.aligned(self._codec.push_bytes(self.index, stage))
    sent[:] = 0
    payload = jax.block_until_ready(self._payload(sent, stage))
    self.learner.warm_up(payload)

  def _check(self, message: Incoming, iteration: int, stage: int) -> None:
    if wrong := checked.wrong_in_report(message.header):
      raise WrongPush(wrong)
    got = message.header['iteration']
    if got != iteration:
      raise WrongPush(f'Expected iteration {iteration}, got {got}.')
    size = self._codec.push_bytes(self.index, stage)
    if message.size_bytes != size:
      raise WrongPush(f'Expected {size} bytes, got {message.size_bytes}.')

  def _taken(self, message: Incoming, stage: int) -> Payload:
    """Receives a whole push; returns its payload."""
    sent = memory.aligned(self._codec.push_bytes(self.index, stage))
    message.read(sent)
    with placement.on_cpu():
      return self._payload(sent, stage)

  def _payload(self, sent: np.ndarray, stage: int) -> Payload:
    """Decodes a push in place: its bytes must not change afterwards."""
    message = self._codec.push_message(sent, self.index, stage)
    return self._codec.decode(message, self.index, stage)

  def _pipe(
    self, pieces: Pieces, stream: Stream, message: Incoming, key: Key
  ) -> threading.Thread:
    """Receives a push in pieces; returns the thread that sends them back."""
    answer = stream, pieces.served(key), self._pull_bytes
    sender = threading.Thread(target=_sent, args=answer, daemon=True)
    sender.start()
    with self._lock:
      self._piped.add(key)
    if not message.header['finite']:
      pieces.void(key)
    with placement.on_cpu():
      for number, chunk in enumerate(message.chunks):
        pieces.take(key, number, chunk)
    return sender

  def _execute(self) -> None:
    try:
      with placement.on_cpu():
        while (ordered := self._orders.get()) is not None:
          self._obey(*ordered)
    except Exception as error:  # The coordinator ends the run.
      reason = f'{type(error).__name__}: {error}'
      logging.exception('Server %d has failed', self.index)
      with contextlib.suppress(TransportError):
        self._report({'event': 'unmendable', 'reason': reason}, ())

  def _obey(self, sequence: int, orders: Sequence[Sequence[Any]]) -> None:
    if sequence != self._sequence:
      raise RuntimeError(f'Expected orders {self._sequence}, got {sequence}.')
    self._sequence += 1
    # Workers that are released together form a superstep.
    for name, group in itertools.groupby(orders, lambda order: order[0]):
      alike = [arguments for _, *arguments in group]
      if name == 'release':
        # Servers begin with different workers, to share links evenly.
        alike.sort(key=lambda each: (each[0] <= self.index, each[0]))
        if self._pieces:
          self._expect(self._pieces, alike)
      for arguments in alike:
        start = time.monotonic()
        self._order = name, start
        self._obeyed[name](*arguments)
        self._order = '', 0.0
        seconds = time.monotonic() - start
        self._longest[name] = max(seconds, self._longest.get(name, 0.0))
    self._done = self._sequence

  def _add(
    self, worker: int, life: int, update: int, examples: int, scale: float
  ) -> None:
    with self._lock:
      payload = self._payloads.pop((worker, life))
    if not examples:
      return
    if isinstance(self.learner, Pieces):
      self.learner.add(update, (worker, life), examples, scale=scale)
    elif isinstance(payload, Payload):
      self.learner.add(update, payload, examples, scale=scale)

  def _commit(self, update: int) -> None:
    self.learner.commit(update)

  def _release(self, worker: int, life: int, header: dict[str, Any]) -> None:
    with self._lock:
      port = self._ports.get((worker, life))
      has_all = (worker, life) in self._piped
      self._piped.discard((worker, life))
    if port is not None:  # Its stream may just have ended.
      port.releases.put((header, None if has_all else self._outgoing()))

  def _expect(self, pieces: Pieces, releases: Sequence[Sequence[Any]]) -> None:
    """Starts a superstep of the workers that are released together."""
    expected = {
      (worker, life): (header['examples'], header['scale'])
      for worker, life, header in releases
    }
    if not pieces.expect(expected):
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
    """Returns the current version, encoded, uint8 [n] each."""
    if self._pieces:
      return self._pieces.outgoing()
    if self._current[0] != self.learner.version:
      message = self._codec.encode_pull(self.learner.params, self.learner.stats)
      self._current = self.learner.version, byte_views(message)
    return self._current[1]


def _sent(stream: Stream, pieces: Iterator[np.ndarray], size: int) -> None:
  # The thread that receives meets the error, too, and reports it.
  with contextlib.suppress(TransportError, ValueError):
    stream.send({}, pieces, size)
