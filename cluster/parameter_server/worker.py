"""A worker with parameter servers on real hosts: it pulls, computes, pushes.

The worker joins the coordinator and has a stream to every server.  It rejoins,
as a new incarnation, if the coordinator evicts it or a stream is lost.
"""

import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
from absl import logging

from batching.batching import Batching
from cluster.membership.process import Settings
from cluster.membership.session import explained
from cluster.network import memory
from cluster.network.errors import Corrupt, TransportError
from cluster.network.heartbeat import Heart
from cluster.network.streams import Stream, chunked
from cluster.parameter_server.evaluation import Evaluator
from cluster.parameter_server.residuals import Remembered, Since
from cluster.parameter_server.session import ParameterServerSession
from cluster.parameter_server.window import Window
from cluster.process.deadlines import Pace
from cluster.process.host import Host
from cluster.speed.speed import Speed
from learning import compilations
from learning.learning import Gradient
from learning.shard_codec import ShardCodec, byte_views
from wire.codec import Payload


class Worker:
  """A worker, from its first compilation to the end of the run."""

  def __init__(
    self,
    index: int,
    *,
    gradient: Gradient,
    codec: ShardCodec,
    batching: Batching,
    remembered: Remembered,
    speed: Speed | None,
    coordinator: str,
    settings: Settings,
    hung: Callable[[str], None],
    evaluator: Evaluator | None = None,
  ):
    """Creates the worker; connects to no process yet.

    Args:
      index: Rank of the worker.
      gradient: Computes gradients.
      codec: Of what travels.
      batching: Batch sizes of the run.
      remembered: Codec states of recent iterations.
      speed: Model of the least time of iterations; None for their real time.
      coordinator: HOST:PORT of the coordinator.
      settings: Settings of this process.
      hung: Called from another thread if this worker hangs after its session
        has ended, with the coordinator's reason: 'left', 'lost' or 'over'.
      evaluator: Evaluates for the coordinator; None if this worker does not.
    """
    self.index = index
    self._gradient = gradient
    self._codec = codec
    self._remembered = remembered
    self._batching = batching
    self._coordinator, self._settings = coordinator, settings
    self._hung = hung
    self._evaluator = evaluator
    self._warm = False
    self._host = Host(index, batching, speed)
    servers = range(len(codec.sizes))
    self._buffers = [memory.aligned(codec.pull_bytes(k)) for k in servers]
    self._windows: list[Window] = []
    # For a pull and a push of each server, the next input, a checkpoint and an
    # evaluation.
    self._pool = _Threads(2 * len(servers) + 3)
    self._pace = Pace()
    self._iteration = -1  # Number of the last iteration, if any.
    self._pushing: list[Future[None]] = []  # Pushes, and the next input.
    self._compiled: int | None = None  # Compilations before the first pull.

  def warm_up(self) -> None:
    """Compiles all programs of iterations."""
    batching = self._batching
    payloads = self._gradient.warm_up(
      self._codec.params, batching.max_batch, changing=batching.is_adaptive
    )
    for stage in range(len(self._codec.wire.pushes)):
      state = self._codec.init(self.index)
      for payload in (*payloads, payloads[-1]):  # Also with a residual.
        sent = self._codec.encode(state, payload, stage, 1.0)
        _, state, _ = jax.block_until_ready(sent)
    for buffer in self._buffers:
      buffer[:] = 0
    jax.block_until_ready(self._pulled())
    if self._evaluator:
      self._evaluator.warm_up()

  def __call__(self) -> bool:
    """Takes part in the run until it is over.

    Returns:
      Whether the run has finished; if not, a checkpoint resumes it.

    Raises:
      SystemExit: With LOST if the coordinator is lost for too long, with 1 if
        it refuses this worker.
    """
    with explained(self.index), self._host:
      while (verdict := self._session())['end'] != 'over':
        logging.info('Worker %d joins again.', self.index)
    return verdict['finished']

  def _session(self) -> dict[str, Any]:
    """Runs a session; returns how and why it has ended."""
    pace = self._pace = Pace()
    with ParameterServerSession(
      self._coordinator,
      self.index,
      self._settings,
      with_beats=pace.told,
      hung=self._hung,
      save=functools.partial(self._pool.submit, self._remembered.answer),
      evaluate=functools.partial(self._pool.submit, self._evaluates),
    ) as life:
      with life.lived():
        self._prepare(life)
        life.meet()
        self._windows = list(map(Window, life.pieces))
        self._report_ready(life)
        while not life.heart.ended.is_set():
          self._iterate(life.streams, life.heart)
      self._note_end(life)
    return life.heart.verdict

  def _prepare(self, life: ParameterServerSession) -> None:
    """Prepares for the first iteration of a session."""
    if not self._warm:
      life.say({'doing': 'compiling'})
      self.warm_up()
      self._warm = True
    life.say({'doing': 'waiting for servers'})
    self._pushing = []
    self._remembered.begin()

  def _report_ready(self, life: ParameterServerSession) -> None:
    life.say(
      {
        'ready': True,
        'devices': list(self._settings.devices),
        'accelerator': self._evaluator is not None,
      }
    )

  def _note_end(self, life: ParameterServerSession) -> None:
    """Logs why the coordinator has ended a session."""
    logging.info('Worker %d: %s', self.index, life.heart.verdict)

  def _iterate(self, streams: Sequence[Stream], heart: Heart) -> None:
    """Pulls a version, computes a gradient, and begins to push that."""
    header = self._pull(streams)
    for done in self._pushing:
      done.result()
    self._pace.compute()
    if self._compiled is None:  # A server of this process compiles, too.
      self._compiled = compilations.count()
    pulled_at = heart.lead_time(time.monotonic())
    self._iteration = iteration = header['iteration']
    # Gathering examples that were not announced is not part of the speed.
    self._gradient.prepare(tuple(map(tuple, header['ranges'])))
    start = time.monotonic()
    before = self._gradient.computed
    payload, loss = self._compute(header)
    messages, loss, finite = self._encode(header, payload, loss)
    self._host.delay(iteration, header['examples'], start)
    end = time.monotonic()
    report = {
      'iteration': iteration,
      'pulled_at': pulled_at,
      'computed_at': heart.lead_time(end),
      'compute_s': end - start,
      'factors': self._host.factors(iteration),
      'loss': loss,
      'finite': finite,
      'computed': self._gradient.computed - before,
      'compilations': compilations.count() - self._compiled,
      'recalled': self._remembered.recalled,
    }
    preparing = self._pool.submit(
      self._gradient.prepare, tuple(map(tuple, header['next']))
    )
    self._pace.begin(iteration)
    self._pace.transfer()
    self._pushing = [preparing, *self._push(streams, report, messages)]

  def _pull(self, streams: Sequence[Stream]) -> dict[str, Any]:
    """Returns the header of the next version, whose shares are in the buffers.

    Raises:
      TransportError: If a stream has ended, or a share has another size.
    """
    pulls = [
      self._pool.submit(self._receive, server, stream)
      for server, stream in enumerate(streams)
    ]
    return [pull.result() for pull in pulls].pop()

  def _compute(self, header: dict[str, Any]) -> tuple[Payload, Any]:
    """Returns the gradient of the examples of an iteration, and their loss."""
    return self._gradient(
      self._pulled(),
      tuple(map(tuple, header['ranges'])),
      worker=self.index,
      iteration=header['iteration'],
      scale=header['scale'],
    )

  def _encode(
    self, header: dict[str, Any], payload: Payload, loss: Any
  ) -> tuple[list[list[np.ndarray]], float | None, bool]:
    """Encodes a gradient for each server, and keeps the residual.

    Returns:
      The messages, uint8 [n] each; the loss, None if it is not finite; and
      whether loss and gradient are finite.
    """
    states = self._remembered.recall(Since(*header['since']))
    messages, after, finite = self._codec.encode(
      states, payload, header['stage'], header['scale']
    )
    messages = list(map(byte_views, messages))
    loss = None if loss is None else float(loss)
    lost = loss is not None and not math.isfinite(loss)
    finite = bool(finite) and not lost
    self._remembered.note(header['iteration'], after if finite else states)
    return messages, None if lost else loss, finite

  def _push(
    self,
    streams: Sequence[Stream],
    report: dict[str, Any],
    messages: Sequence[list[np.ndarray]],
  ) -> list[Future[None]]:
    """Begins to send a push; the next pull may begin before all is sent.

    Returns:
      A future of each server's part.
    """
    pushes = [
      functools.partial(self._send, server, stream, report, message)
      for server, (stream, message) in enumerate(
        zip(streams, messages, strict=True)
      )
    ]
    # Workers begin with different servers: two that send to the same one share
    # its link.
    first = (self.index + 1) % len(pushes)
    return list(map(self._pool.submit, [*pushes[first:], *pushes[:first]]))

  def _receive(self, server: int, stream: Stream) -> dict[str, Any]:
    """Receives a server's share of a version into its buffer.

    Returns:
      The header of the version.

    Raises:
      TransportError: If the stream has ended, or the share has another size.
    """
    return receive_version(
      stream,
      self._buffers[server],
      self._windows[server],
      functools.partial(self._incoming, server),
    )

  def _send(
    self,
    server: int,
    stream: Stream,
    report: dict[str, Any],
    message: list[np.ndarray],
  ) -> None:
    """Sends a server its part of a push.

    Args:
      server: Rank of the server.
      stream: Stream to the server.
      report: Header of the push.
      message: uint8 [n] each.

    Raises:
      Closed: If the stream has ended.
    """
    window = self._windows[server]
    chunks = window.cut(*message) if window.pieces else chunked(message)
    size_bytes = sum(part.size for part in message)
    self._transmit(server, stream, report, chunks, size_bytes)

  def _incoming(
    self, server: int, chunks: Iterable[np.ndarray]
  ) -> Iterable[np.ndarray]:
    """Yields the chunks that come from a server, and counts them."""
    del server
    return self._counted(chunks)

  def _transmit(
    self,
    server: int,
    stream: Stream,
    report: dict[str, Any],
    chunks: Iterable[np.ndarray],
    size_bytes: int,
  ) -> None:
    """Sends chunks to a server, and counts them."""
    del server
    stream.send(report, self._counted(chunks), size_bytes)

  def _counted(self, chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields chunks, each of which counts as progress."""
    for chunk in chunks:
      yield chunk
      del chunk  # Before the next one arrives, which so takes its memory.
      self._pace.step()

  def _evaluates(
    self, asked: dict[str, Any], say: Callable[[dict[str, Any]], None]
  ) -> None:
    """Evaluates a version for the coordinator."""
    if self._evaluator:
      self._evaluator.answer(asked, say)

  def _pulled(self) -> Any:
    """Decodes the parameters of the version in the buffers."""
    messages = [
      self._codec.pull_message(buffer, server)
      for server, buffer in enumerate(self._buffers)
    ]
    return self._codec.decode_pulls(messages)[0]


def receive_version(
  stream: Stream,
  buffer: np.ndarray,
  window: Window,
  count: Callable[[Iterable[np.ndarray]], Iterable[np.ndarray]] = iter,
) -> dict[str, Any]:
  """Receives a server's share of a version into a buffer.

  Args:
    stream: Stream from the server.
    buffer: Buffer of the share, uint8 [pull_bytes].
    window: Window of the push that the version answers.
    count: Returns the chunks that it is given, and counts them.

  Returns:
    The header of the version.

  Raises:
    TransportError: If the stream has ended, or the share has another size.
  """
  try:
    message = stream.receive()
    header, start = message.header, 0
    for chunk in count(message.chunks):
      buffer[start : start + chunk.size] = chunk
      start += chunk.size
      del chunk  # Before the next one arrives, which so takes its memory.
      if not header:  # Pieces arrive before the barrier.
        window.came()
    if start != buffer.size:
      raise Corrupt(f'Expected {buffer.size} bytes to pull, got {start}.')
    if header:
      return header
    message = stream.receive()
    if message.size_bytes:  # A worker was lost: pieces before were void.
      message.read(buffer)
    return message.header
  except TransportError:
    window.lose()
    raise


class _Threads:
  """A pool of daemon threads.

  At exit the interpreter would wait for threads of concurrent.futures.
  """

  def __init__(self, count: int):
    """Starts the threads.

    Args:
      count: Number of threads.
    """
    self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(count):
      threading.Thread(target=self._call, daemon=True).start()

  def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Calls a function in a thread; returns a future of its result."""
    future: Future[Any] = Future()
    self._calls.put((future, function, args))
    return future

  def _call(self) -> None:
    while True:
      future, function, args = self._calls.get()
      try:
        future.set_result(function(*args))
      except BaseException as error:  # The future raises it.
        future.set_exception(error)
      del future, function, args
