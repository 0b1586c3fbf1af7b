"""A worker on real hosts: pulls, computes, pushes.

It joins the coordinator, talks to every server over a stream of its own, and joins
again, as a new life, when the coordinator has given it up or a stream is lost.
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
from cluster.membership.session import exit_on_error
from cluster.network import memory, messages
from cluster.network.calls import Spoil
from cluster.network.errors import Corrupt, TransportError
from cluster.network.heartbeat import Heartbeat
from cluster.network.streams import Stream, chunked
from cluster.parameter_server.evaluation import Evaluator
from cluster.parameter_server.residuals import Remembered, Since
from cluster.parameter_server.session import ParameterServerSession, Send
from cluster.parameter_server.window import Window
from cluster.process.deadlines import Pace
from cluster.process.faults import Fault, Faults, Kind, Phase, corrupted, spoilt
from cluster.process.host import Host
from cluster.speed.speed import Speed
from learning import compilations
from learning.learning import Gradient
from wire.flat import Flat, views

# What chunks go through on their way.
Through = Callable[[Iterable[np.ndarray]], Iterable[np.ndarray]]


class Worker:
  """One worker, from its first compilation to the end of the run."""

  def __init__(
    self,
    index: int,
    *,
    gradient: Gradient,
    flat: Flat,
    batching: Batching,
    remembered: Remembered,
    speed: Speed | None,
    faults: Faults,
    coordinator: str,
    settings: Settings,
    hung: Callable[[str], None],
    evaluator: Evaluator | None = None,
  ):
    """Connects to nobody yet.

    Args:
      index: Which worker.
      gradient: Computes.
      flat: Of what travels.
      batching: How many examples iterations have.
      remembered: By its codecs.
      speed: How long iterations take at least; None for as long as they take.
      faults: What goes wrong on purpose.
      coordinator: HOST:PORT of the coordinator.
      settings: What all processes agree on.
      hung: Called with what the coordinator has said, from another thread, if this
        worker does not heed it: 'left', 'lost' or 'over'.
      evaluator: Evaluates for the coordinator; None if this worker does not.
    """
    self.index = index
    self._gradient = gradient
    self._flat = flat
    self._remembered = remembered
    self._batching = batching
    self._faults = faults
    self._coordinator, self._settings = coordinator, settings
    self._hung = hung
    self._evaluator = evaluator
    self._warm = False
    self._host = Host(index, batching, speed)
    servers = range(len(flat.sizes))
    self._buffers = [memory.aligned(flat.pull_bytes(k)) for k in servers]
    self._windows: list[Window] = []
    # A pull and a push at a time of each server; the next input; a checkpoint;
    # an evaluation.
    self._pool = _Threads(2 * len(servers) + 3)
    self._pace = Pace()
    self._iteration = -1  # The last one, if it is known.
    self._doing: list[Future] = []
    self._compiled: int | None = None  # Programs, at the first pull.

  def warm_up(self) -> None:
    """Compiles everything that iterations need."""
    batching = self._batching
    payloads = self._gradient.warm_up(
      self._flat.params, batching.largest, changing=batching.changes
    )
    for stage in range(len(self._flat.wire.pushes)):
      state = self._flat.init(self.index)
      for payload in (*payloads, payloads[-1]):  # Of what is remembered, too.
        sent = self._flat.encode(state, payload, stage, 1.0)
        _, state, _ = jax.block_until_ready(sent)
    for buffer in self._buffers:
      buffer[:] = 0
    jax.block_until_ready(self._pulled())
    if self._evaluator:
      self._evaluator.warm_up()

  def __call__(self) -> bool:
    """Takes part in the run until it is over.

    Returns:
      Whether it has finished; else it goes on from a checkpoint one day.

    Raises:
      SystemExit: With LOST if the coordinator is lost for too long, with 1 if it
        refuses this worker.
    """
    with exit_on_error(self.index), self._host:
      while (end := self._session()).kind != 'over':
        logging.info('Worker %d joins again.', self.index)
    return end.is_finished

  def _session(self) -> messages.SessionEnd:
    """Works until the coordinator ends it, or is lost; returns what it has said."""
    pace = self._pace = Pace()
    with (
      ParameterServerSession(
        self._coordinator,
        self.index,
        self._settings,
        progress=pace.told,
        hung=self._hung,
        save=functools.partial(self._pool.submit, self._remembered.answer),
        evaluate=functools.partial(self._pool.submit, self._evaluates),
      ) as life,
      life.suppress_errors(self._faults),
    ):
      self._prepare(life)
      life.meet()
      self._windows = list(map(Window, life.pieces))
      start = self._faults.due(self.index, life.incarnation, Phase.START)
      self._faults.happen(start)
      self._report_ready(life)
      while not life.heartbeat.ended.is_set():
        self._iterate(life.streams, life.heartbeat)
    return life.heartbeat.end

  def _prepare(self, life: ParameterServerSession) -> None:
    """Gets ready for a new life."""
    if not self._warm:
      life.send(messages.Activity('compiling'))
      self.warm_up()
      self._warm = True
    life.send(messages.Activity('waiting for servers'))
    self._doing = []
    self._remembered.begin()

  def _report_ready(self, life: ParameterServerSession) -> None:
    life.send(
      messages.WorkerReady(
        devices=self._settings.devices,
        has_accelerator=self._evaluator is not None,
      )
    )

  def _iterate(
    self,
    streams: Sequence[Stream],
    heartbeat: Heartbeat[messages.ToWorker],
  ) -> None:
    late = self._faults.due(self.index, self._iteration + 1, Phase.PULL)
    pulls = [
      self._pool.submit(_pull, *each)
      for each in zip(
        streams,
        self._buffers,
        self._windows,
        self._ways(late, None),
        strict=True,
      )
    ]
    pull = [one.result() for one in pulls].pop()
    for done in self._doing:
      done.result()
    self._pace.compute()
    if self._compiled is None:  # A server of this process compiles, too.
      self._compiled = compilations.count()
    pulled_at = heartbeat.coordinator_time(time.monotonic())
    self._iteration = iteration = pull.iteration
    ranges = pull.ranges
    # What was not foreseen is not part of the speed.
    self._gradient.prepare(ranges)
    start = time.monotonic()
    params = self._pulled()
    before = self._gradient.computed
    payload, loss = self._gradient(
      params,
      ranges,
      worker=self.index,
      iteration=iteration,
      scale=pull.scale,
    )
    fault = self._faults.due(self.index, iteration)
    self._faults.happen(fault)
    payload = spoilt(fault, payload)
    states = self._remembered.recall(Since(*pull.residual))
    pushes, after, finite = self._flat.encode(
      states, payload, pull.stage, pull.scale
    )
    parts = list(map(views, pushes))
    loss = None if loss is None else float(loss)
    lost = loss is not None and not math.isfinite(loss)
    finite = bool(finite) and not lost
    self._remembered.note(iteration, after if finite else states)
    self._host.delay(iteration, pull.examples, start)
    end = time.monotonic()
    report = messages.PushReport(
      iteration=iteration,
      pulled_at=pulled_at,
      computed_at=heartbeat.coordinator_time(end),
      compute_s=end - start,
      factors=self._host.factors(iteration),
      loss=None if lost else loss,  # Messages hold finite numbers only.
      is_finite=finite,
      computed=self._gradient.computed - before,
      compilations=compilations.count() - self._compiled,
      has_recalled=self._remembered.recalled,
    )
    preparing = self._pool.submit(self._gradient.prepare, pull.upcoming)
    self._pace.begin(iteration)
    self._pace.transfer()
    moments = [
      self._faults.due(self.index, iteration, phase)
      for phase in (Phase.FIRST, Phase.LAST)
    ]
    send = functools.partial(
      _push,
      corrupt=corrupted(fault, *moments),
      short=fault is not None and fault.kind == Kind.WRONG_SIZE,
    )
    sends = [
      functools.partial(send, stream, report, *each)
      for stream, *each in zip(
        streams, parts, self._windows, self._ways(*moments), strict=True
      )
    ]
    # The next pull may begin before all of it is sent.  Workers begin with
    # different servers: who sends to the same one has but a part of its link.
    first = (self.index + 1) % len(sends)
    turned = [*sends[first:], *sends[:first]]
    self._doing = [preparing, *map(self._pool.submit, turned)]

  def _evaluates(self, request: messages.Evaluate, send: Send) -> None:
    """Evaluates a version; the coordinator asks those that say they can."""
    if self._evaluator:
      self._evaluator.answer(request, send)

  def _ways(self, *moments: Fault | None) -> list[Through]:
    """Returns what chunks from or to each server go through.

    Args:
      *moments: What happens after the first and before the last of server 0.
    """
    nothing = len(moments) * [None]
    return [
      functools.partial(self._stepping, moments=nothing if server else moments)
      for server in range(len(self._buffers))
    ]

  def _stepping(
    self, chunks: Iterable[np.ndarray], moments: Sequence[Fault | None]
  ) -> Iterator[np.ndarray]:
    """Yields chunks as they come or go; lets faults happen."""
    for chunk in self._faults.during(chunks, *moments):
      yield chunk
      del chunk  # Before the next one arrives, which so takes its memory.
      self._pace.step()

  def _pulled(self) -> Any:
    """Returns the parameters of which the buffers hold the messages."""
    pulls = [
      self._flat.pull_of(buffer, server)
      for server, buffer in enumerate(self._buffers)
    ]
    return self._flat.pulled(pulls)[0]


def _pull(
  stream: Stream, buffer: np.ndarray, window: Window, through: Through = iter
) -> messages.Pull:
  """Returns the header of a version, which is in the buffer then.

  Args:
    stream: From the server.
    buffer: uint8 [pull_bytes].
    window: Of the push whose answer it is.
    through: What chunks go through.

  Raises:
    TransportError: If the stream has ended, or what came is something else.
  """
  try:
    message = stream.receive(messages.PULL)
    header, start = message.header, 0
    in_pieces = isinstance(header, messages.PulledPieces)
    for chunk in through(message.chunks):
      buffer[start : start + chunk.size] = chunk
      start += chunk.size
      del chunk  # Before the next one arrives, which so takes its memory.
      if in_pieces:  # They come before the barrier.
        window.came()
    if start != buffer.size:
      raise Corrupt(f'Expected {buffer.size} bytes to pull, got {start}.')
    if isinstance(header, messages.Released):
      return header.pull
    message = stream.receive(messages.PULL)
    if isinstance(message.header, messages.PulledPieces):
      raise Corrupt('Expected a release after all pieces, got pieces.')
    if message.size_bytes:  # They were void: somebody was lost meanwhile.
      message.read(buffer)
    return message.header.pull
  except TransportError:
    window.lose()
    raise


def _push(
  stream: Stream,
  report: messages.PushReport,
  message: list[np.ndarray],
  window: Window,
  through: Through = iter,
  *,
  corrupt: Spoil | None = None,
  short: bool = False,
) -> None:
  """Sends a push.

  Args:
    stream: To the server.
    report: What goes with it.
    message: uint8 [n] each.
    window: For its pieces.
    through: What chunks go through.
    corrupt: In which chunk a bit flips on its way, if any.
    short: Whether to send but half of it.

  Raises:
    Closed: If the stream has ended.
  """
  if short:
    message = [part[: part.size // 2] for part in message]
  size = sum(part.size for part in message)
  chunks = chunked(message)
  if window.pieces and not short:
    chunks = window.cut(*message)
  stream.send(report, through(chunks), size, spoil=corrupt)


class _Threads:
  """Calls functions in daemon threads, a few at a time.

  An executor of concurrent.futures would be waited for at the end.
  """

  def __init__(self, count: int):
    """Starts them.

    Args:
      count: How many functions can be called at a time.
    """
    self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(count):
      threading.Thread(target=self._call, daemon=True).start()

  def submit(self, function: Callable[..., Any], *args: Any) -> Future:
    """Returns what will hold what the call returns or raises."""
    future: Future = Future()
    self._calls.put((future, function, args))
    return future

  def _call(self) -> None:
    while True:
      future, function, args = self._calls.get()
      try:
        future.set_result(function(*args))
      except BaseException as error:  # For who asks the future.
        future.set_exception(error)
      del future, function, args
