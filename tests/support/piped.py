"""Pipelined run in one process, whose workers die when a test chooses.

The coordinator and servers are the real ones; streams connect sockets of this
process.  The oracle is one learner of all parameters, to which the counted
pushes are applied.
"""

import contextlib
import math
import queue
import socket
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import optax

import data.stream
from batching import fixed
from cluster.coordinator import Coordinator
from cluster.membership.events import RunFailed, WorkerJoined, WorkerLost
from cluster.membership.members import Member
from cluster.membership.process import Settings
from cluster.milestones import Intervals, Milestones
from cluster.network import messages
from cluster.network.connection import Connection
from cluster.network.errors import Closed
from cluster.network.loop_streams import LoopStream
from cluster.network.port import Port
from cluster.network.socket_loop import SocketLoop
from cluster.network.streams import Security, Stream
from cluster.parameter_server import worker
from cluster.parameter_server.admission import PushReceived
from cluster.parameter_server.pieces import Pieces
from cluster.parameter_server.runtime import ParameterServerRuntime
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.window import Window
from cluster.pipelining import AHEAD, MAX_PIECES
from cluster.process.deadlines import Deadlines
from learning.learner import TaskLearner
from learning.scaling import Scaling
from learning.shard_codec import ShardCodec
from outputs.console import Console
from outputs.recorder import Recorder
from sync import bsp
from tests.support import unwritten
from wire import dense
from wire.codec import Payload

BATCH = 2
_EXAMPLES = 64  # Different examples.
_WAIT_S = 20.0
_BEAT_S = 1.0
_WIRE = dense.make(dtype='float32')
_NEVER = 10**9
_PROCESS = '0' * 32
# Compiled once for all tests.
_LEARNER = TaskLearner(
  params=np.zeros(2, np.float32),
  stats=(),
  tx=optax.sgd(1.0, momentum=0.9),
  schedule=lambda examples, updates: 0.1 / (1 + examples),
  reduction='sum',
  num_workers=3,
  worker_batch=BATCH,
)


class _Death:
  """Death of a worker in its second superstep, after a number of pieces."""

  def __init__(self, after, unseen, rejoins, before_death, cut):
    self.after, self.unseen, self.cut = after, unseen, cut
    self.rejoins, self.before_death = rejoins, before_death
    self.ready = threading.Event()

  def counts(self, servers):
    sizes = [len(server.learner.sizes) for server in servers]
    return self.after == sizes and not self.unseen


class Cluster:
  """Real coordinator and servers, with workers that a test can kill."""

  def __init__(
    self,
    *,
    workers,
    servers,
    size=3 * MAX_PIECES + 5,
    pauses_s=types.MappingProxyType({}),
    overflows=(),
  ):
    """Creates the cluster; no worker has joined yet.

    Args:
      workers: Number of workers.
      servers: Number of servers.
      size: Number of parameters.
      pauses_s: Seconds that a worker waits before each piece, by worker.
      overflows: Worker and iteration of each push that is not finite; gradients
        are scaled if there are some.
    """
    rng = np.random.default_rng(7)
    self._gradients = rng.integers(-8, 8, (_EXAMPLES, size)).astype(np.float32)
    self._params = rng.normal(size=size).astype(np.float32)
    self._codec = ShardCodec(self._params, (), servers=servers, wire=_WIRE)
    self._ends = np.cumsum([size for size, _ in self._codec.sizes])[:-1]
    self.store = ShardedParameterStore(
      codec=self._codec,
      schedule=None,
      num_workers=workers,
      scaling=Scaling(4.0, 0, _NEVER) if overflows else None,
    )
    self.pushes_of = {}  # Examples of each counted push, by update.
    self.skipped = []  # Examples of each push that was not finite.
    self._pauses_s, self._overflows = pauses_s, overflows
    self.saved = None
    self._must_save = threading.Event()
    self._pulled = []  # Versions, and the vectors pulled.
    self._deaths = {}
    self._sent = np.zeros((workers, servers), int)
    self._threads = ThreadPoolExecutor(8 * workers * servers)
    self._errors = []
    self._is_closed = False
    recorder = Recorder(
      epoch=_NEVER,
      files=unwritten.files(),
      console=Console(target=_NEVER, clock='real'),
    )
    milestones = Milestones(
      intervals=Intervals(_NEVER, _NEVER, _NEVER),
      recorder=recorder,
      store=self.store,
      evaluate=None,
    )
    self.accounting = recorder.accounting
    self.coordinator = Coordinator(
      scheme=bsp.make(num_workers=workers),
      batching=fixed.make(num_workers=workers, worker_batch=BATCH),
      store=self.store,
      stream=data.stream.Stream(num_examples=_EXAMPLES, seed=0, ahead=0),
      recorder=recorder,
      milestones=milestones,
      num_workers=workers,
    )
    push = self.coordinator.push

    def count_push(index, *args, **kwargs):
      pushes = self.pushes_of.setdefault(self.store.version, [])
      if not kwargs['finite']:
        pushes = self.skipped
      pushes.append(self.coordinator.workers[index].ranges)
      push(index, *args, **kwargs)

    self.coordinator.push = count_push
    self._reception = mock.Mock()
    self._reception.members = [Member() for _ in range(workers)]
    self._reception.executed = _NEVER
    self._reception.events = self._events = queue.SimpleQueue()
    self.runtime = ParameterServerRuntime(
      coordinator=self.coordinator,
      store=self.store,
      reception=self._reception,
      make_server=None,
      num_servers=servers,
      num_factors=0,
      find_residuals=lambda: None,
      settings=Settings(
        Port('127.0.0.1', 0, Security()), '', _BEAT_S, _NEVER, ''
      ),
      deadlines=Deadlines(timeout_s=_NEVER, start_s=_NEVER, windows=True),
      make_local_worker=None,
    )
    self.servers = [
      Server(
        index,
        learner=self.pieces(index),
        codec=self._codec,
        versions=_ShardVersions(self, index),
        report=lambda event, body, k=index: self._report(k, event),
      )
      for index in range(servers)
    ]
    self.store.attach(self.servers)
    self._streams, self._windows = [], []
    self._loop = SocketLoop(
      'servers',
      after_events=lambda: None,
      tick=lambda: None,
      on_error=self._errors.append,
      on_exit=lambda _: [end.abandon() for end in self._ends_of_servers],
    )
    self._ends_of_servers = []

  def pieces(self, index):
    params, _ = self._codec.initial_shard(index)
    return Pieces(_LEARNER.twin, params, wire=_WIRE, count=MAX_PIECES)

  def die(
    self,
    index,
    *,
    after,
    unseen=(),
    rejoins=False,
    before_death=None,
    cut=None,
  ):
    """Schedules the death of a worker.

    Args:
      index: Index of the worker.
      after: Pieces that it sends before, for each server.
      unseen: Servers whose report of the push does not arrive.
      rejoins: True if the worker rejoins.
      before_death: Function that is called just before; None for none.
      cut: Servers whose streams are cut while the worker lives; None if the
        worker dies.
    """
    self._deaths[index] = _Death(after, unseen, rejoins, before_death, cut)

  def until_version(self, version):
    if not self._streams:
      for index in range(len(self._reception.members)):
        self._join(index, 0)
      self.until(lambda: all(m.stream for m in self._reception.members))
      self.runtime.start()
    self.until(lambda: self.store.version >= version)

  def until(self, condition):
    end = time.monotonic() + _WAIT_S
    while not condition():
      if self._errors:
        raise self._errors[0]
      if time.monotonic() > end:
        raise AssertionError('The event did not happen in time.')
      for member in self._reception.members:
        member.last_heartbeat = math.inf
      self.runtime.step()
      if self._must_save.is_set():
        self._must_save.clear()
        self._save()

  def whole(self, version):
    """Returns a learner of all parameters after the counted pushes."""
    whole = _LEARNER.twin(self._params, ())
    for update in range(version):
      pushes = self.pushes_of[update]
      payload = Payload(self.total(pushes), ())
      whole.add(update, payload, BATCH * len(pushes))
      whole.commit(update)
    return whole

  def total(self, pushes):
    return sum(self._gradient(ranges) for ranges in pushes)

  def share(self, vector, index):
    return np.split(np.asarray(vector), self._ends)[index]

  def check(self, test, *, lost):
    """Checks accounting, parameters and all pulled versions."""
    store = self.store
    self.until(
      lambda: all(s.progress.executed == store.sequence for s in self.servers)
    )
    version = store.version
    whole = self.whole(version)
    for index, server in enumerate(self.servers):
      assert_close(server.learner.params, self.share(whole.params, index))
      test.assertEqual(server.learner.examples, self.store.examples)
    test.assertEqual(whole.examples, self.store.examples)
    test.assertLen(self.accounting.lost, lost)
    applied = [
      p for each in self.pushes_of.values() for r in each for p in _all(r)
    ]
    outstanding = [
      p
      for start, stop in self.coordinator.outstanding
      for p in range(start, stop)
    ]
    skipped = [p for ranges in self.skipped for p in _all(ranges)]
    issued = range(self.coordinator.issued)
    test.assertCountEqual(applied + skipped + outstanding, issued)
    versions = {v: self.whole(v).params for v, _ in self._pulled}
    test.assertGreater(len(versions), 2)
    for pulled, vector in self._pulled:
      assert_close(vector, versions[pulled])

  def save(self):
    """Makes the coordinator save a checkpoint, from a thread of a worker."""
    self._must_save.set()
    _wait(lambda: self.saved and all(self.saved[1]))

  def _save(self):
    self.saved = self.store.version, [None] * len(self.servers)
    self.pushes_at_save = {
      update: list(pushes)
      for update, pushes in self.pushes_of.items()
      if update >= self.store.version
    }
    self.store.save(0)

  def close(self):
    self._is_closed = True
    for stream in self._streams:
      stream.cancel()
      stream.close()
    for window in self._windows:
      window.lose()
    for server in self.servers:
      server.close(0.0)
    for death in self._deaths.values():
      death.ready.set()
    self._threads.shutdown()
    self._loop.close()

  def _report(self, server, event):
    now = time.monotonic()
    match event:
      case messages.PushArrived():
        death = self._deaths.get(event.worker)
        dies = death and (event.incarnation, event.report.iteration) == (0, 1)
        if not (dies and server in death.unseen):
          self._events.put(
            PushReceived(
              at=now,
              worker=event.worker,
              incarnation=event.incarnation,
              server=server,
              report=event.report,
            )
          )
      case messages.WorkerFailed():
        self._events.put(
          WorkerLost(
            at=now,
            worker=event.worker,
            incarnation=event.incarnation,
            reason=event.reason,
          )
        )
      case messages.ServerFailed():
        self._events.put(RunFailed(reason=event.reason))

  def _join(self, index, incarnation):
    streams = []
    for server in self.servers:
      here, there = socket.socketpair()
      self._serve(server, there, index, incarnation)
      streams.append(Stream(Connection(here, 'server')))
    self._streams += streams
    windows = [
      Window(stream.receive(messages.PIECE_SIZES).header.sizes)
      for stream in streams
    ]
    self._windows += windows
    self._threads.submit(self._work, index, incarnation, streams, windows)
    self._events.put(
      WorkerJoined(
        worker=index,
        incarnation=incarnation,
        stream=object(),
        ready=messages.WorkerReady(),
      )
    )

  def _serve(self, server, sock, index, incarnation):
    """Serves a worker in the loop, until its stream ends."""

    hello = messages.WorkerConnection(index, incarnation, _PROCESS)
    server.accept(messages.AcceptWorker(index, incarnation, _PROCESS))

    def run(stream):
      with contextlib.suppress(Closed):
        yield from server.serve(stream, hello)
      yield from stream.close('')

    def begin():
      stream = LoopStream(self._loop, Connection(sock, f'worker {index}'))
      self._ends_of_servers.append(stream)
      stream.run(run(stream), lambda: None)

    self._loop.post(begin)

  def _work(self, index, incarnation, streams, windows):
    try:
      for iteration in range(_NEVER):
        self._iterate(index, incarnation, iteration, streams, windows)
    except Closed:
      pass
    except Exception as error:
      self._errors.append(error)

  def _iterate(self, index, incarnation, iteration, streams, windows):
    buffers = [
      np.zeros(self._codec.pull_bytes(k), np.uint8) for k in range(len(streams))
    ]
    pulls = [
      self._threads.submit(worker.receive_version, *each)
      for each in zip(streams, buffers, windows, strict=True)
    ]
    header = [pull.result() for pull in pulls].pop()
    vector = np.concatenate(buffers).view(np.float32)
    self._pulled.append((self.coordinator.workers[index].version, vector))
    is_finite = (index, header.iteration) not in self._overflows
    gradient = self._gradient(header.ranges) * np.float32(header.scale)
    if not is_finite:
      gradient[-1] = np.inf
    report = messages.PushReport(
      iteration=header.iteration,
      pulled_at=0.0,
      computed_at=0.0,
      compute_s=0.001,
      factors=[],
      loss=None,
      weight=BATCH,
      is_finite=is_finite,
      computed=BATCH,
      compilations=0,
      has_recalled=False,
    )
    death = self._deaths.get(index)
    if incarnation or iteration != 1:
      death = None
    self._sent[index] = 0
    for server, part in enumerate(np.split(gradient, self._ends)):
      pieces = self._cut(index, server, windows[server], part, death)
      self._threads.submit(
        _quietly,
        streams[server].send,
        report,
        pieces,
        part.nbytes,
      )
    if death:
      for each in zip(streams, buffers, windows, strict=True):
        self._threads.submit(_quietly, worker.receive_version, *each)
      self._die(index, death, streams)
      raise Closed('here: the worker has died')

  def _cut(self, index, server, window, part, death):
    pieces = window.cut(part.view(np.uint8))
    for number, piece in enumerate(pieces):
      time.sleep(self._pauses_s.get(index, 0.0))
      if death and number == death.after[server]:
        death.ready.wait()
        raise Closed('here: the worker has died')
      yield piece
      self._sent[index, server] += 1

  def _die(self, index, death, streams):
    """Cuts the streams once other workers cannot continue without this one."""
    fewest = [
      min(each)
      for each in zip(*(d.after for d in self._deaths.values()), strict=True)
    ]
    reachable = []
    for server, few in enumerate(fewest):
      pieces = len(self.servers[server].learner.sizes)
      most = min(pieces, few + AHEAD) if few < pieces else pieces
      reachable.append(
        [
          min(most, self._deaths[w].after[server])
          if w in self._deaths
          else most
          for w in range(len(self._sent))
        ]
      )
    _wait(
      lambda: (self._sent >= np.transpose(reachable)).all() or self._is_closed
    )
    whole = [
      index
      for index in range(len(self._sent))
      if index not in self._deaths or self._deaths[index].counts(self.servers)
    ]
    if all(
      few > MAX_PIECES - AHEAD for few in fewest
    ):  # The whole push arrives.
      _wait(
        lambda: len(self.pushes_of.get(1, ())) >= len(whole) or self._is_closed
      )
    if death.before_death:
      death.before_death()
    for server, stream in enumerate(streams):
      if death.cut is None or server in death.cut:
        stream.cancel()
    death.ready.set()
    if death.cut is None:  # The stream to the coordinator ends, too.
      self._events.put(WorkerLost(worker=index, incarnation=0, reason='died'))
    if death.rejoins:
      _wait(lambda: self._reception.members[index].stream is None)
      self._join(index, 1)

  def _gradient(self, ranges):
    positions = [position % _EXAMPLES for position in _all(ranges)]
    return self._gradients[positions].sum(axis=0)


class _ShardVersions:
  """Collector of the states that a server would write."""

  hold = drop = send = None  # No test reads versions.

  def __init__(self, cluster, index):
    self._cluster, self._index = cluster, index

  def save(self, number, step, state):
    del number, step
    self._cluster.saved[1][self._index] = state

  def abandon(self):
    """Does nothing, as no test asks for versions."""


def _all(ranges):
  return [p for start, stop in ranges for p in range(start, stop)]


def _quietly(function, *args):
  with contextlib.suppress(Closed):
    function(*args)


def _wait(condition):
  end = time.monotonic() + _WAIT_S
  while not condition():
    if time.monotonic() > end:
      raise AssertionError('The event did not happen in time.')
    time.sleep(0.001)


def assert_close(one, other):
  # XLA may round multiply-and-add once or twice.
  np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
