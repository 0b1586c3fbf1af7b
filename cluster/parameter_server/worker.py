"""A worker with parameter servers on real hosts: it pulls, computes, pushes.

The worker joins the coordinator and has a stream to every server.  It rejoins,
as a new incarnation, if the coordinator evicts it or a stream is lost.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from batching.batching import Batching
from cluster.membership.checks import check_iteration
from cluster.membership.joining import RankHeld
from cluster.membership.process import Settings
from cluster.membership.session import exit_on_error
from cluster.membership.succession import Succession
from cluster.membership.worker_states import (
  ResidualHistory,
  ResidualId,
  WorkerState,
)
from cluster.network import memory, messages
from cluster.network.errors import (
  InvalidMessage,
  Refused,
  TransportError,
  expect,
)
from cluster.network.heartbeat import Heartbeat
from cluster.network.streams import Stream, chunked
from cluster.parameter_server.evaluation import Evaluator
from cluster.parameter_server.mirrors import MirrorStore
from cluster.parameter_server.session import (
  MirrorRequest,
  ParameterServerSession,
  Send,
)
from cluster.parameter_server.standby import MirrorStandby
from cluster.parameter_server.window import Window
from cluster.process.deadlines import ProgressCounter
from cluster.process.exits import DRAINED, Exit, Reason
from cluster.process.host import HostSpeed
from cluster.speed.speed import Speed
from learning import compilations
from learning.iteration import Iteration
from learning.learning import Pushes
from learning.shard_codec import ShardCodec, byte_views
from system import clock, threads
from wire.codec import Payload


class Worker:
  """A worker, from its first compilation to the end of the run.

  A call runs sessions until one ends with the run.  In a session, `_iterate`
  passes each push through `_pull`, `_compute`, `_encode` and `_push`; the
  last returns before all is sent.  `cluster.parameter_server.faults` overrides
  `_incoming`, `_transmit` and others to inject failures.
  """

  def __init__(
    self,
    index: int,
    *,
    pushes: Pushes,
    codec: ShardCodec,
    batching: Batching,
    residuals: ResidualHistory,
    speed: Speed | None,
    settings: Settings,
    on_hang: Callable[[str], None],
    evaluator: Evaluator | None = None,
    mirrors: MirrorStore | None = None,
    host: Callable[[int], None] = lambda server: None,
    succession: Succession[MirrorStandby] | None = None,
  ):
    """Creates the worker; connects to no process yet.

    Args:
      index: Rank of the worker.
      pushes: Computes pushes: gradients, or displacements of local steps.
      codec: Codec of pushes and pulls.
      batching: Batch sizes of the run.
      residuals: States after recent iterations.
      speed: Model of the least time of iterations; None for their real time.
      settings: Settings of this process.
      on_hang: Called from another thread if this worker hangs after its session
        has ended, with the coordinator's reason: 'left', 'lost' or 'over'.
      evaluator: Evaluates for the coordinator; None if this worker does not.
      mirrors: Parts of mirrors that this process holds; None for a run without
        mirrors.
      host: Hosts a server in this process, given its rank.
      succession: Part of this process in elections of a coordinator; None if
        the run ends with its coordinator.
    """
    self.index = index
    self._pushes = pushes
    self._codec = codec
    self._residuals = residuals
    self._batching = batching
    self._coordinator, self._settings = '', settings
    self._on_hang = on_hang
    self._evaluator = evaluator
    self._mirrors, self._host = mirrors, host
    self._succession, self._is_local = succession, False
    self._warm = False
    self._host_speed = HostSpeed(index, batching, speed)
    servers = range(len(codec.sizes))
    self._buffers = [memory.aligned(codec.pull_bytes(k)) for k in servers]
    self._windows: list[Window] = []
    # For a pull and a push of each server, the next input, a checkpoint, an
    # evaluation and a mirror.
    self._pool = _Threads(2 * len(servers) + 4)
    self._progress = ProgressCounter()
    self._iteration = -1  # Number of the last iteration, if any.
    self._pushing: list[
      threads.Future[None]
    ] = []  # Pushes, and the next input.
    self._compiled: int | None = None  # Compilations before the first pull.

  def warm_up(self) -> None:
    """Compiles all programs of iterations."""
    batching = self._batching
    payloads = self._pushes.warm_up(
      self._codec.params, batching.max_batch, changing=batching.is_adaptive
    )
    for stage in range(len(self._codec.wire.pushes)):
      state = self._codec.init(self.index)
      for payload in (*payloads, payloads[-1]):  # Also with a residual.
        sent = self._codec.encode(state, payload, stage, 1.0)
        _, state, _ = jax.block_until_ready(sent)
    for buffer in self._buffers:
      buffer[:] = 0
    jax.block_until_ready(self._decode_pull())
    if self._evaluator:
      self._evaluator.warm_up()

  def __call__(
    self, coordinator: str, *, is_local: bool = False
  ) -> bool | None:
    """Joins the coordinator, and works until the run is over.

    Args:
      coordinator: HOST:PORT of the coordinator.
      is_local: Whether the coordinator is in this process.

    Returns:
      Whether the run has finished; if not, a checkpoint resumes it.  None if
      the coordinator is lost and this process is to replace it.

    Raises:
      Exit: With LOST if the coordinator is lost for too long, with 1 if
        it refuses this worker or sends a message that cannot be true, with
        DRAINED if the worker has left the run.
    """
    self._coordinator, self._is_local = coordinator, is_local
    with (
      exit_on_error(self.index, self._settings.is_draining),
      self._host_speed,
    ):
      while (end := self._try_session()).kind not in ('over', 'drained'):
        if end.kind == 'lost' and self._may_succeed and self._succession:
          found = self._succession.find_coordinator()
          if found is None:
            return None
        logging.info('Worker %d joins again.', self.index)
    if end.kind == 'drained':
      raise Exit(DRAINED, Reason.DRAINED, 'This worker has left after SIGTERM.')
    return end.is_finished

  @property
  def _may_succeed(self) -> bool:
    """True if this process takes part in elections of a coordinator."""
    succession = self._succession
    return not self._is_local and bool(succession and succession.is_member)

  def _locate(self) -> str:
    """Returns the address of the coordinator, for an attempt to join it."""
    if self._succession and not self._is_local:
      return self._succession.locate(self._coordinator)
    return self._coordinator

  def _try_session(self) -> messages.SessionEnd:
    """Runs a session; returns how and why it has ended.

    A member of the run that cannot reach the coordinator has lost it.
    """
    try:
      return self._run_session()
    except (Refused, RankHeld, InvalidMessage):
      raise
    except TransportError as error:
      if not self._may_succeed:
        raise
      return messages.SessionEnd('lost', str(error))

  def _run_session(self) -> messages.SessionEnd:
    settings = self._settings
    if self._may_succeed:
      limit_s = min(settings.start_s, settings.timeout_s)
      settings = settings._replace(start_s=limit_s)
    progress = self._progress = ProgressCounter()
    with ParameterServerSession(
      self._locate,
      self.index,
      settings,
      progress=progress.read,
      on_hang=self._on_hang,
      save=functools.partial(self._pool.submit, self._residuals.answer),
      evaluate=functools.partial(self._pool.submit, self._evaluate),
      mirror=self._mirror,
      push_bytes=[
        self._codec.push_bytes(server, 0)
        for server in range(len(self._codec.sizes))
      ],
      on_lost=self._lose,
    ) as session:
      if self._succession:
        self._succession.listen()
        self._succession.follow()
      with session.suppress_errors():
        self._prepare(session)
        session.connect()
        self._windows = list(map(Window, session.piece_sizes))
        self._report_ready(session)
        session.report_traffic()
        while not session.heartbeat.ended.is_set():
          self._iterate(session.streams, session.heartbeat)
      self._log_end(session)
    return session.heartbeat.end

  def _lose(self) -> None:
    """Records that the session has ended; in the heartbeat's thread."""
    if self._succession:
      self._succession.lose()

  def _prepare(self, session: ParameterServerSession) -> None:
    """Prepares for the first iteration of a session."""
    if not self._warm:
      session.send(messages.Activity('compiling'))
      self.warm_up()
      self._warm = True
    session.send(messages.Activity('waiting for servers'))
    self._pushing = []
    self._compiled = None
    self._residuals.begin()

  def _report_ready(self, session: ParameterServerSession) -> None:
    """Reports that the worker has connected to all servers."""
    session.send(
      messages.WorkerReady(
        devices=self._settings.devices,
        has_accelerator=self._evaluator is not None,
        address=self._mirrors.open() if self._mirrors else None,
      )
    )

  def _log_end(self, session: ParameterServerSession) -> None:
    """Logs why the coordinator has ended a session."""
    end = session.heartbeat.end.describe()
    logging.info('Worker %d %s.', self.index, end)

  def _iterate(
    self,
    streams: Sequence[Stream],
    heartbeat: Heartbeat[messages.ToWorker],
  ) -> None:
    """Pulls a version, computes a push, and begins to send that."""
    pull = self._pull(streams)
    for done in self._pushing:
      done.result()
    self._progress.enter_compute()
    if self._compiled is None:  # A server of this process compiles, too.
      self._compiled = compilations.count()
    pulled_at = heartbeat.coordinator_time(clock.monotonic())
    self._iteration = iteration = pull.iteration
    # Gathering examples that were not announced is not part of the speed.
    self._pushes.prepare(pull.ranges)
    state = self._residuals.recall(ResidualId(*pull.residual))
    start = clock.monotonic()
    before = self._pushes.computed
    payload, loss, optimizer = self._compute(pull, state.optimizer)
    parts, loss, finite = self._encode(pull, payload, loss, state, optimizer)
    self._host_speed.delay(iteration, pull.examples, start)
    end = clock.monotonic()
    report = messages.PushReport(
      iteration=iteration,
      pulled_at=pulled_at,
      computed_at=heartbeat.coordinator_time(end),
      compute_s=end - start,
      factors=self._host_speed.factors(iteration),
      loss=loss,
      weight=self._pushes.weigh(pull.ranges),
      is_finite=finite,
      computed=self._pushes.computed - before,
      compilations=compilations.count() - self._compiled,
      has_recalled=self._residuals.has_recalled,
    )
    preparing = self._pool.submit(self._pushes.prepare, pull.upcoming)
    self._progress.begin_iteration(iteration)
    self._progress.enter_transfer()
    self._pushing = [preparing, *self._push(streams, report, parts)]

  def _pull(self, streams: Sequence[Stream]) -> messages.Pull:
    """Pulls a version into the buffers; returns the next iteration.

    Raises:
      TransportError: If a stream has ended, or a share has another size.
      InvalidMessage: If the iteration cannot be one of this run.
    """
    pulls = [
      self._pool.submit(self._receive, server, stream)
      for server, stream in enumerate(streams)
    ]
    pull: messages.Pull = [each.result() for each in pulls].pop()
    check_iteration(
      pull,
      most=self._batching.max_batch,
      stages=len(self._codec.wire.pushes),
    )
    return pull

  def _compute(
    self, pull: messages.Pull, optimizer: Any
  ) -> tuple[Payload, Any, Any]:
    """Computes the push of an iteration.

    Args:
      pull: The iteration.
      optimizer: State of the inner optimizer; () without local steps.

    Returns:
      The push, the loss of its examples, and the state afterwards.
    """
    return self._pushes.push(
      self._decode_pull(),
      Iteration(
        pull.ranges,
        worker=self.index,
        number=pull.iteration,
        scale=pull.scale,
        rate=pull.rate,
      ),
      optimizer,
    )

  def _encode(
    self,
    pull: messages.Pull,
    payload: Payload,
    loss: Any,
    state: WorkerState,
    optimizer: Any,
  ) -> tuple[list[list[np.ndarray]], float | None, bool]:
    """Encodes a push for each server, and records the worker's state.

    Args:
      pull: The iteration.
      payload: The push.
      loss: Loss of its examples.
      state: State of the worker before the iteration.
      optimizer: State of the inner optimizer afterwards.

    Returns:
      The push of each server, uint8 [n] each; the loss, None if it is not
      finite; and whether loss and push are finite.
    """
    encoded, codec, finite = self._codec.encode(
      state.codec, payload, pull.stage, pull.scale
    )
    pushes = list(map(byte_views, encoded))
    loss = None if loss is None else float(loss)
    lost = loss is not None and not math.isfinite(loss)
    finite = bool(finite) and not lost
    after = WorkerState(codec, optimizer) if finite else state
    self._residuals.record(pull.iteration, after)
    return pushes, None if lost else loss, finite

  def _push(
    self,
    streams: Sequence[Stream],
    report: messages.PushReport,
    pushes: Sequence[list[np.ndarray]],
  ) -> list[threads.Future[None]]:
    """Begins to send a push; the next pull may begin before all is sent.

    Returns:
      A future of each server's part.
    """
    sends = [
      functools.partial(self._send, server, stream, report, push)
      for server, (stream, push) in enumerate(zip(streams, pushes, strict=True))
    ]
    # Workers begin with different servers: two that send to the same one share
    # its link.
    first = (self.index + 1) % len(sends)
    return list(map(self._pool.submit, [*sends[first:], *sends[:first]]))

  def _receive(self, server: int, stream: Stream) -> messages.Pull:
    """Receives a server's share of a version into its buffer.

    Returns:
      The next iteration.

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
    report: messages.PushReport,
    push: list[np.ndarray],
  ) -> None:
    """Sends a server its part of a push.

    Args:
      server: Rank of the server.
      stream: Stream to the server.
      report: Header of the push.
      push: uint8 [n] each.

    Raises:
      Closed: If the stream has ended.
    """
    window = self._windows[server]
    chunks = window.cut(*push) if window.pieces else chunked(push)
    size_bytes = sum(part.size for part in push)
    self._transmit(server, stream, report, chunks, size_bytes)

  def _incoming(
    self, server: int, chunks: Iterable[np.ndarray]
  ) -> Iterable[np.ndarray]:
    """Yields the chunks that come from a server, and counts them."""
    del server
    return self._count_chunks(chunks)

  def _transmit(
    self,
    server: int,
    stream: Stream,
    report: messages.PushReport,
    chunks: Iterable[np.ndarray],
    size_bytes: int,
  ) -> None:
    """Sends chunks to a server, and counts them."""
    del server
    stream.send(report, self._count_chunks(chunks), size_bytes)

  def _count_chunks(self, chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields chunks, each of which counts as progress."""
    for chunk in chunks:
      yield chunk
      del chunk  # Before the next one arrives, which so takes its memory.
      self._progress.count_chunk()

  def _mirror(self, request: MirrorRequest, send: Send) -> None:
    """Handles a request about mirrors; in the thread of the heartbeat."""
    match request:
      case messages.RetainResidual():
        self._residuals.retain(request)
      case messages.FetchMirror():
        self._pool.submit(self._fetch_mirror, request, send)
      case messages.MirrorCompleted():
        self._residuals.release(request.number)
        if self._succession and not self._is_local:
          self._succession.standby.complete(request)
        if self._mirrors:
          self._mirrors.drop_before(request.number)
      case messages.HostServer():
        num_servers = len(self._codec.sizes)
        valid = request.server < num_servers
        expect(valid, 'server', f'one of {num_servers}', request.server)
        self._host(request.server)

  def _fetch_mirror(self, request: messages.FetchMirror, send: Send) -> None:
    """Fetches a part of a mirror, and reports whether this process holds it."""
    number, part, error = request.number, request.part, None
    try:
      if self._mirrors:
        self._mirrors.fetch(number, part, [request.address])
    except TransportError as failure:
      error = f'{type(failure).__name__}: {failure}'
    with contextlib.suppress(TransportError):  # The coordinator notices, too.
      send(messages.MirrorFetched(number, part, error))

  def _evaluate(self, request: messages.Evaluate, send: Send) -> None:
    """Evaluates a version for the coordinator."""
    if self._evaluator:
      self._evaluator.answer(request, send)

  def _decode_pull(self) -> Any:
    """Decodes the parameters of the version in the buffers."""
    pulls = [
      self._codec.pull_message(buffer, server)
      for server, buffer in enumerate(self._buffers)
    ]
    return self._codec.decode_pulls(pulls)[0]


def receive_version(
  stream: Stream,
  buffer: np.ndarray,
  window: Window,
  count: Callable[[Iterable[np.ndarray]], Iterable[np.ndarray]] = iter,
) -> messages.Pull:
  """Receives a server's share of a version into a buffer.

  Args:
    stream: Stream from the server.
    buffer: Buffer of the share, uint8 [pull_bytes].
    window: Window of the push that the version answers.
    count: Returns the chunks that it is given, and counts them.

  Returns:
    The next iteration.

  Raises:
    TransportError: If the stream has ended.
    InvalidMessage: If the share has another size.
  """
  try:
    message = stream.receive(messages.PULL)
    header, start = message.header, 0
    in_pieces = isinstance(header, messages.PulledPieces)
    size = buffer.size
    _check_size(message.size_bytes, size)
    for chunk in count(message.chunks):
      buffer[start : start + chunk.size] = chunk
      start += chunk.size
      del chunk  # Before the next one arrives, which so takes its memory.
      if in_pieces:  # Pieces arrive before the barrier.
        window.widen()
    if in_pieces:
      message = stream.receive(messages.PULL)
    if not isinstance(message.header, messages.Released):
      raise InvalidMessage('Expected a release after all pieces, got pieces.')
    if in_pieces and message.size_bytes:  # A worker was lost: pieces were void.
      _check_size(message.size_bytes, size)
      message.read(buffer)
    return message.header.pull
  except TransportError:
    window.lose()
    raise


def _check_size(size_bytes: int, expected: int) -> None:
  """Checks the bytes that a server announces: see `receive_version`."""
  expect(size_bytes == expected, 'size', f'{expected} bytes', size_bytes)


class _Threads:
  """A pool of daemon threads.

  At exit the interpreter would wait for threads of concurrent.futures.
  """

  def __init__(self, count: int):
    """Starts the threads.

    Args:
      count: Number of threads.
    """
    self._calls: threads.SimpleQueue[Any] = threads.SimpleQueue()
    for _ in range(count):
      threads.Thread(target=self._call, daemon=True).start()

  def submit(
    self, function: Callable[..., Any], *args: Any
  ) -> threads.Future[Any]:
    """Calls a function in a thread; returns a future of its result."""
    future: threads.Future[Any] = threads.Future()
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
