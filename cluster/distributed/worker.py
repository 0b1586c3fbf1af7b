"""A worker on real hosts: pulls, computes, pushes.

It joins the lead, talks to every server over a stream of its own, and joins
again, as a new life, when the lead has given it up or a stream is lost.
"""

import contextlib
import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
from absl import logging

from batching.batching import Batching
from cluster.distributed.exchange import Through, Window, pull, push
from cluster.distributed.faults import Fault, Faults, Kind, Phase, spoilt
from cluster.distributed.joining import dropped, join
from cluster.distributed.pace import Pace
from cluster.distributed.threads import Threads
from cluster.speed.driving import Driving
from cluster.speed.speed import Speed
from cluster.transport import memory
from cluster.transport.heart import BEATS, LOST, Heart, within
from cluster.transport.streams import (
  Closed,
  Refused,
  Security,
  Stream,
  TransportError,
  connect,
)
from learning import compilations
from learning.learning import Gradient
from wire.flat import Flat, views


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
    lead: str,
    fingerprint: str,
    security: Security,
    timeout_s: float,
    start_s: float,
    hung: Callable[[str], None],
  ):
    """Connects to nobody yet.

    Args:
      index: Which worker.
      gradient: Computes.
      flat: Of what travels.
      batching: How many examples iterations have.
      speed: How long iterations take at least; None for as long as they take.
      faults: What goes wrong on purpose.
      lead: HOST:PORT of the lead.
      fingerprint: Of the config: the lead's must be the same.
      security: Of all streams.
      timeout_s: Silence after which the lead counts as lost.
      start_s: How long to try to join it.
      hung: Called with what the lead has said, from another thread, if this
        worker does not heed it: 'left', 'lost' or 'over'.
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
    self._start_s = start_s
    self._hung = hung
    self._warm = False
    # What never changes makes no use of what drives a host's speed.
    self._host = Driving() if batching.changes and speed is None else None
    servers = range(len(flat.sizes))
    self._buffers = [memory.aligned(flat.pull_bytes(k)) for k in servers]
    self._windows: list[Window] = []
    # A pull and a push at a time of each server, and the next input.
    self._pool = Threads(2 * len(servers) + 1)
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
    state = self._flat.init()
    for payload in (*payloads, payloads[-1]):  # Of what is remembered, too.
      _, state, _ = jax.block_until_ready(self._flat.encode(state, payload))
    for buffer in self._buffers:
      buffer[:] = 0
    jax.block_until_ready(self._pulled())

  def __call__(self) -> bool:
    """Takes part in the run until it is over.

    Returns:
      Whether it has finished; else it goes on from a checkpoint one day.

    Raises:
      SystemExit: With LOST if the lead is lost for too long, with 1 if it
        refuses this worker.
    """
    try:
      with self._host or contextlib.nullcontext():
        while (verdict := self._session())['end'] != 'over':
          logging.info('Worker %d joins again.', self.index)
        return verdict['finished']
    except Refused as error:
      sys.exit(f'Refused: {error}')
    except TransportError as error:
      logging.error('Worker %d has lost the cluster: %s', self.index, error)
      sys.exit(LOST)

  def _session(self) -> dict[str, Any]:
    """Works until the lead ends it, or is lost; returns what it has said."""
    with contextlib.ExitStack() as stack:
      control, welcome = join(
        self._lead,
        self._hello,
        security=self._security,
        timeout_s=self._timeout_s,
        start_s=self._start_s,
      )
      stack.callback(dropped, control)
      told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
      streams: list[Stream] = []

      heeded = threading.Event()
      stack.callback(heeded.set)

      def cut():
        told.put({})
        for stream in list(streams):
          stream.cancel()
        if not heeded.wait(self._timeout_s):
          self._hung(heart.verdict['end'])

      self._pace = Pace()
      heart = Heart(
        control,
        timeout_s=self._timeout_s,
        ending=cut,
        told=told.put,
        with_beats=self._pace.told,
      )
      key = {'worker': self.index, 'life': welcome['life']}
      try:
        self._prepare(control)
        servers = told.get().get('servers', ())
        for address in servers:
          self._meet(address, key, heart, stack, streams)
          met = f'connected to {len(streams)} of {len(servers)} servers'
          control.send({'doing': met})
        life = welcome['life']
        self._faults.happen(self._faults.due(self.index, life, Phase.START))
        if not heart.ended.is_set():
          control.send({'ready': True})
        while not heart.ended.is_set():
          self._iterate(streams, heart)
      except Refused:
        raise
      except TransportError as error:
        # The lead knows why, and tells.
        heart.ended.wait(self._timeout_s / BEATS)
        logging.info('Worker %d: %s', self.index, error)
      logging.info('Worker %d: %s', self.index, heart.verdict)
      if heart.verdict['end'] == 'over':
        self._faults.happen(self._faults.due(self.index, -1, Phase.END))
      return heart.verdict

  def _prepare(self, control: Stream) -> None:
    """Gets ready for a new life."""
    if not self._warm:
      control.send({'doing': 'compiling'})
      self.warm_up()
      self._warm = True
    control.send({'doing': 'waiting for servers'})
    self._windows = []
    self._doing = []
    self._codec = self._flat.init()

  def _meet(
    self,
    address: str,
    key: dict[str, Any],
    heart: Heart,
    stack: contextlib.ExitStack,
    streams: list[Stream],
  ) -> None:
    """Connects to a server, as soon as it can be reached.

    Raises:
      Closed: If the lead has ended this life meanwhile.
    """
    while not heart.ended.is_set():
      try:
        stream = connect(address, key, self._security, self._timeout_s)
      except Refused:
        raise
      except TransportError as error:
        logging.info('Still waiting for a server: %s', error)
        continue
      stack.callback(dropped, stream)
      with within(stream, self._timeout_s):
        self._windows.append(Window(stream.receive().header['pieces']))
      streams.append(stream)
      return
    raise Closed('The lead has ended this life.')

  def _iterate(self, streams: Sequence[Stream], heart: Heart) -> None:
    late = self._faults.due(self.index, self._iteration + 1, Phase.PULL)
    pulls = [
      self._pool.submit(pull, *each)
      for each in zip(
        streams,
        self._buffers,
        self._windows,
        self._ways(late, None),
        strict=True,
      )
    ]
    header = [one.result() for one in pulls].pop()
    for done in self._doing:
      done.result()
    self._pace.compute()
    if self._compiled is None:  # A server of this process compiles, too.
      self._compiled = compilations.count()
    pulled_at = heart.lead_time(time.monotonic())
    self._iteration = iteration = header['iteration']
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
    self._faults.happen(fault)
    payload = spoilt(fault, payload)
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
    self._pace.begin(iteration)
    self._pace.transfer()
    moments = [
      self._faults.due(self.index, iteration, phase)
      for phase in (Phase.FIRST, Phase.LAST)
    ]
    kind = fault.kind if fault else None
    send = functools.partial(
      push, corrupt=kind == Kind.CORRUPT, short=kind == Kind.WRONG_SIZE
    )
    # The next pull may begin before all of it is sent.
    self._doing = [preparing] + [
      self._pool.submit(send, stream, report, *each)
      for stream, *each in zip(
        streams, messages, self._windows, self._ways(*moments), strict=True
      )
    ]

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
