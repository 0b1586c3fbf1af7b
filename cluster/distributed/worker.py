"""A worker on real hosts: pulls, computes, pushes.

It joins the lead, talks to every server over a stream of its own, and joins
again, as a new life, when the lead has given it up.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from absl import logging

from batching.batching import Batching
from cluster.distributed.faults import Faults, Kind
from cluster.speed.driving import Driving
from cluster.speed.speed import Speed
from cluster.transport import memory
from cluster.transport.heart import LOST, START, Heart, within
from cluster.transport.streams import (
  Closed,
  Refused,
  Security,
  Stream,
  TransportError,
  chunked,
  connect,
)
from learning import compilations
from learning.learning import Gradient
from wire.flat import AHEAD, Flat, views


class Worker:
  """One worker, from its first compilation to the end of the run."""

  def __init__(
    self,
    index: int,
    *,
    gradient: Gradient,
    flat: Flat,
    batching: Batching,
    speed: Speed | None,
    faults: Faults,
    lead: Callable[[], str],
    fingerprint: str,
    security: Security,
    timeout_s: float,
    leaving: Callable[[], None],
  ):
    """Connects to nobody yet.

    Args:
      index: Which worker.
      gradient: Computes.
      flat: Of what travels.
      batching: How many examples iterations have.
      speed: How long iterations take at least; None for as long as they take.
      faults: What goes wrong on purpose.
      lead: Returns the address of the lead, which may have to be waited for.
      fingerprint: Of the config: the lead's must be the same.
      security: Of all streams.
      timeout_s: Silence after which the lead counts as lost.
      leaving: Called once the run is over, before the lead is told.
    """
    self.index = index
    self._gradient = gradient
    self._flat = flat
    self._codec: Any = None  # What it remembers, in this life.
    self._batching = batching
    self._speed = speed
    self._faults = faults
    self._lead = lead
    self._hello = {'worker': index, 'fingerprint': fingerprint}
    self._security = security
    self._timeout_s = timeout_s
    self._leaving = leaving
    # What never changes makes no use of what drives a host's speed.
    self._host = Driving() if batching.changes and speed is None else None
    servers = range(len(flat.sizes))
    self._buffers = [memory.aligned(flat.pull_bytes(k)) for k in servers]
    self._windows: list[_Window] = []
    # A pull and a push at a time of each server, and the next input.
    self._pool = ThreadPoolExecutor(2 * len(servers) + 1)
    self._doing: list[Future] = []
    self._compiled: int | None = None  # Programs, at the first pull.

  def warm_up(self) -> None:
    """Compiles everything that iterations need."""
    batching = self._batching
    payloads = self._gradient.warm_up(
      self._flat.params, batching.largest, changing=batching.changes
    )
    state = self._flat.init()
    for payload in (*payloads, payloads[-1]):  # Of what is remembered, too.
      _, state, _ = jax.block_until_ready(self._flat.encode(state, payload))
    for buffer in self._buffers:
      buffer[:] = 0
    jax.block_until_ready(self._pulled())

  def __call__(self) -> None:
    """Takes part in the run until it is over.

    Raises:
      SystemExit: With LOST if the lead or a server is lost, with 1 if the lead
        refuses this worker.
    """
    self.warm_up()
    try:
      with self._host or contextlib.nullcontext():
        while self._session()['end'] == 'left':
          logging.info('Worker %d joins again.', self.index)
    except Refused as error:
      sys.exit(f'Refused: {error}')
    except TransportError as error:
      logging.error('Worker %d has lost the cluster: %s', self.index, error)
      sys.exit(LOST)

  def _session(self) -> dict[str, Any]:
    """Works until the lead ends it; returns what it says."""
    with contextlib.ExitStack() as stack:
      control = self._connect(
        stack, self._lead(), self._hello, START * self._timeout_s
      )
      with within(control, START * self._timeout_s):
        welcome = control.receive().header
      if 'refused' in welcome:
        raise Refused(welcome['refused'])
      key = {'worker': self.index, 'life': welcome['life']}
      streams = [
        self._connect(stack, address, key, self._timeout_s)
        for address in welcome['servers']
      ]
      self._windows = []
      for stream in streams:
        with within(stream, self._timeout_s):
          self._windows.append(_Window(stream.receive().header['pieces']))
      self._doing = []
      self._codec = self._flat.init()
      control.send({'ready': True})

      def cut():
        for stream in streams:
          stream.cancel()

      heart = Heart(control, timeout_s=self._timeout_s, ending=cut)
      try:
        while not heart.ended.is_set():
          self._iterate(streams, heart)
      except TransportError as error:
        # The lead knows why.
        if not heart.ended.wait(self._timeout_s):
          raise
        logging.info('Worker %d: %s', self.index, error)
      verdict = heart.verdict
      logging.info('Worker %d: %s', self.index, verdict)
      if verdict['end'] == 'lost':
        raise TransportError(verdict['reason'])
      if verdict['end'] == 'over':
        self._leaving()
      return verdict

  def _connect(
    self,
    stack: contextlib.ExitStack,
    address: str,
    hello: dict[str, Any],
    wait_s: float,
  ) -> Stream:
    stream = connect(address, hello, self._security, wait_s)
    stack.callback(stream.close)
    return stream

  def _iterate(self, streams: Sequence[Stream], heart: Heart) -> None:
    pulls = [
      self._pool.submit(_pull, stream, buffer, window)
      for stream, buffer, window in zip(
        streams, self._buffers, self._windows, strict=True
      )
    ]
    header = [pull.result() for pull in pulls].pop()
    for done in self._doing:
      done.result()
    if self._compiled is None:  # A server of this process compiles, too.
      self._compiled = compilations.count()
    pulled_at = heart.lead_time(time.monotonic())
    iteration = header['iteration']
    ranges = tuple(map(tuple, header['ranges']))
    # What was not foreseen is not part of the speed.
    self._gradient.prepare(ranges)
    start = time.monotonic()
    params = self._pulled()
    before = self._gradient.computed
    payload, loss = self._gradient(
      params, ranges, worker=self.index, iteration=iteration
    )
    fault = self._faults.due(self.index, iteration)
    payload = self._faults.happen(fault, payload)
    messages, self._codec, finite = self._flat.encode(self._codec, payload)
    messages = list(map(views, messages))
    self._delay(iteration, header['examples'], start)
    end = time.monotonic()
    report = {
      'iteration': iteration,
      'pulled_at': pulled_at,
      'computed_at': heart.lead_time(end),
      'compute_s': end - start,
      'factors': self._factors(iteration),
      'loss': None if loss is None else float(loss),
      'finite': bool(finite),
      'computed': self._gradient.computed - before,
      'compilations': compilations.count() - self._compiled,
    }
    preparing = self._pool.submit(
      self._gradient.prepare, tuple(map(tuple, header['next']))
    )
    # The next pull may begin before all of it is sent.
    self._doing = [preparing] + [
      self._pool.submit(_push, stream, report, message, window, fault)
      for stream, message, window in zip(
        streams, messages, self._windows, strict=True
      )
    ]

  def _pulled(self) -> Any:
    """Returns the parameters of which the buffers hold the messages."""
    messages = [
      self._flat.pull_of(buffer, server)
      for server, buffer in enumerate(self._buffers)
    ]
    return self._flat.pulled(messages)[0]

  def _factors(self, iteration: int) -> Sequence[float]:
    """Returns the driving factors after an iteration."""
    if self._speed is not None:
      return self._speed.driving(self.index, iteration)
    return self._host.read() if self._host else ()

  def _delay(self, iteration: int, examples: int, start: float) -> None:
    if self._speed is not None:
      wanted_s = self._speed.seconds(self.index, iteration, examples)
      rest_s = start + wanted_s - time.monotonic()
      if rest_s > 0:
        time.sleep(rest_s)


class _Window:
  """Lets a push in pieces be but a little ahead of the pull that answers it.

  Attributes:
    pieces: Bytes of each; empty if pushes do not travel in pieces.
  """

  def __init__(self, pieces: Sequence[int]):
    self.pieces = pieces
    self._back = 0  # Pieces that have come back.
    self._lost = False
    self._changed = threading.Condition()

  def cut(self, vector: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the pieces of a vector, uint8, when they may be sent."""
    with self._changed:
      self._back = 0
    ends = np.cumsum(self.pieces)
    for number, piece in enumerate(np.split(vector, ends[:-1])):
      with self._changed:
        self._changed.wait_for(
          lambda n=number: n < self._back + AHEAD or self._lost
        )
        if self._lost:
          raise Closed('The stream was lost.')
      yield piece

  def came(self) -> None:
    """Notes that a piece has come back."""
    with self._changed:
      self._back += 1
      self._changed.notify_all()

  def lose(self) -> None:
    """Lets nobody wait any more: nothing will come."""
    with self._changed:
      self._lost = True
      self._changed.notify_all()


def _pull(
  stream: Stream, buffer: np.ndarray, window: _Window
) -> dict[str, Any]:
  """Returns the header of a version, which is in the buffer then."""
  try:
    message = stream.receive()
    if message.header:
      message.read(buffer)
      return message.header
    start = 0  # It comes in pieces, before the barrier.
    for piece in message.chunks:
      buffer[start : start + piece.size] = piece
      start += piece.size
      window.came()
    message = stream.receive()
    if message.size_bytes:  # They were void: somebody was lost meanwhile.
      message.read(buffer)
    return message.header
  except TransportError:
    window.lose()
    raise


def _push(
  stream: Stream,
  report: dict[str, Any],
  message: list[np.ndarray],
  window: _Window,
  fault: Kind | None,
) -> None:
  if fault == Kind.WRONG_SIZE:
    message = [part[: part.size // 2] for part in message]
  size = sum(part.size for part in message)
  chunks = chunked(message)
  if window.pieces and fault != Kind.WRONG_SIZE:
    chunks = window.cut(*message)
  stream.send(report, chunks, size, spoil=fault == Kind.CORRUPT)
