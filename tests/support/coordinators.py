"""Coordinator with its servers in this process, for tests."""

import contextlib
import functools
import pathlib
import tempfile
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import msgspec
import numpy as np

import data.stream
from batching import fixed
from cluster import coordinator
from cluster.membership import admission as reception_
from cluster.membership.process import Settings
from cluster.membership.worker_states import ResidualHistory
from cluster.milestones import Intervals, Milestones
from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.network.port import Port
from cluster.network.streams import Security, connect, push_service
from cluster.parameter_server import worker as worker_
from cluster.parameter_server.admission import ParameterServerReception
from cluster.parameter_server.checkpoints import server_part
from cluster.parameter_server.hosting import host_server
from cluster.parameter_server.runtime import ParameterServerRuntime
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import ShardVersions
from cluster.process import roles
from cluster.process.deadlines import Deadlines, Jobs
from learning.shard_codec import ShardCodec
from learning.timing_only import TimingOnlyGradient, TimingOnlyLearner
from outputs.console import Console
from outputs.recorder import Recorder
from sync import asp
from tests.support import unwritten
from tests.support.listeners import Listener
from wire import dense

TIMEOUT_S = 1.0  # Timeout of processes that tests simulate.
START_S = 20.0
PROCESS = '0' * 32  # Identity of this process.


def make_settings(port=0, **changes):
  """Returns the settings of a process of its own."""
  settings = Settings(
    Port('127.0.0.1', port, Security()),
    'ours',
    TIMEOUT_S,
    START_S,
    process=PROCESS,
  )
  return settings._replace(**changes)


def accept_worker(stream):
  """Answers the next order to a simulated server to accept a worker.

  Args:
    stream: Control stream of the server.

  Returns:
    The order.
  """
  while not isinstance(
    order := stream.receive(messages.TO_SERVER).header, messages.AcceptWorker
  ):
    pass
  stream.send(messages.WorkerAccepted(order.worker, order.incarnation))
  return order


class Coordinator:
  """Coordinator and servers in this process, with streams as workers.

  Attributes:
    address: HOST:PORT of the coordinator.
    store: Parameter store, which controls the servers.
    jobs: Deadlines of the coordinator's jobs.
    reception: Reception of the coordinator.
    cluster: Runtime of the coordinator.
    accounting: Accounting of examples.
    servers: Servers created so far.
  """

  def __init__(
    self,
    *,
    num_workers=1,
    num_servers=1,
    hosted=(1,),
    silent=(),
    route_to=None,
    start_s=START_S,
    timeout_s=TIMEOUT_S,
    wire=None,
    learner=TimingOnlyLearner,
    directory=None,
    find_residuals=lambda: None,
    dedicated=True,
    reserved=types.MappingProxyType({}),
    exits=False,
    restored_bytes=0,
    batching=None,
    num_factors=0,
    mirrors=None,
  ):
    """Starts to wait for all workers and servers.

    Args:
      num_workers: Number of workers.
      num_servers: Number of servers.
      hosted: Indices of the servers that run here, beside the coordinator's.
      silent: Indices of servers that send no heartbeats after the start.
      route_to: Maps the address of the coordinator to the one that workers and
        servers connect to; None for the same.
      start_s: Seconds until all members must have joined.
      timeout_s: Silence after which the coordinator or a hosted server counts
        another process as lost, seconds.
      wire: Wire of pushes and pulls of 16 numbers; None for a dense one.
      learner: Creates the learner of a server.
      directory: Folder of workers' parts of checkpoints; None for a new one.
      find_residuals: Argument of the runtime.
      dedicated: Argument of the reception.
      reserved: Argument of the reception.
      exits: True if a coordinator that hangs exits, as real ones do.
      restored_bytes: Size of the checkpoint that servers read.
      batching: Batching of the run; None for a fixed one.
      num_factors: Argument of the runtime.
      mirrors: Parts of mirrors that servers here hold; None without mirrors.
    """
    self._learner, self._mirrors = learner, mirrors
    self.servers = []
    self._members = []
    self._closing = contextlib.ExitStack()
    if not exits:  # A hang fails its test, not the whole process.
      self._closing.enter_context(
        mock.patch.object(reception_, 'exit_hung', self._hung)
      )
    self._has_started = threading.Event()
    self._parts = directory or pathlib.Path(tempfile.mkdtemp())
    (port,) = roles.free_ports(1)
    self.address = f'127.0.0.1:{port}'
    self._codec = ShardCodec(
      np.zeros(16, np.float32),
      (),
      servers=num_servers,
      wire=wire or dense.make(dtype='float32'),
    )
    self.store = ShardedParameterStore(
      codec=self._codec, schedule=None, num_workers=num_workers
    )
    recorder = Recorder(
      epoch=10**6,
      files=unwritten.files(),
      console=Console(target=10**6, clock='real'),
    )
    milestones = Milestones(
      intervals=Intervals(10**6, 10**6, 10**6),
      recorder=recorder,
      store=self.store,
      evaluate=None,
    )
    self.accounting = recorder.accounting
    driver = coordinator.Coordinator(
      scheme=asp.make(num_workers=num_workers),
      batching=batching or fixed.make(num_workers=num_workers, worker_batch=8),
      store=self.store,
      stream=data.stream.Stream(num_examples=10**6, seed=0, ahead=0),
      recorder=recorder,
      milestones=milestones,
      num_workers=num_workers,
    )
    deadlines = Deadlines(timeout_s=timeout_s, start_s=start_s, windows=False)
    self.jobs = Jobs(deadlines)
    self._timeout_s = timeout_s
    settings = make_settings(port, start_s=start_s, timeout_s=timeout_s)
    self.reception = ParameterServerReception(
      store=self.store,
      num_workers=num_workers,
      num_servers=num_servers,
      dedicated=dedicated,
      reserved=reserved,
      settings=settings,
      restore=lambda: None,
      restored_bytes=lambda: restored_bytes,
      deadlines=deadlines,
      jobs=self.jobs,
    )
    self.cluster = ParameterServerRuntime(
      coordinator=driver,
      store=self.store,
      reception=self.reception,
      make_server=functools.partial(self._server, 0),
      num_servers=num_servers,
      num_factors=num_factors,
      find_residuals=find_residuals,
      settings=settings,
      deadlines=deadlines,
      make_local_worker=None,
    )
    self._route_to = route_to or (lambda address: address)
    self._threads = ThreadPoolExecutor(8)
    self._warm = self._threads.submit(self.cluster.warm_up)
    for index in range(1, num_servers):
      if index in silent:
        self._threads.submit(self._silent, index)
      elif index in hosted:
        self.host(index)

  def _server(self, index, report, restore):
    del restore
    server = Server(
      index,
      learner=self._learner(*self._codec.initial_shard(index)),
      codec=self._codec,
      versions=ShardVersions(
        self._parts, server_part(index), held={}, report=report
      ),
      report=report,
      mirrors=self._mirrors,
    )
    self.servers.append(server)
    return server

  def host(self, index, **settings):
    """Runs a server in a thread; returns its Future."""
    address = self._route_to(self.address)
    return self._threads.submit(self._host, index, address, settings)

  def _host(self, index, address, settings):
    return host_server(
      index,
      functools.partial(self._server, index),
      address,
      make_settings(timeout_s=self._timeout_s, **settings),
    )

  def _silent(self, index):
    hello = messages.ServerHello(index, PROCESS, 'ours')
    stream = connect(self.address, hello, Security(), 10.0)
    self._members.append(stream)
    stream.receive(messages.SERVER_ADMISSION)

    # A server that answers but sends no heartbeats.
    def answer(stream, hello):
      del hello
      stream.send(messages.PieceSizes([]))
      stream.receive(messages.PUSH)

    listener = Listener(
      Port('127.0.0.1', 0, Security()), answer, service=push_service(1)
    )
    self._closing.callback(listener.close, 0.0)
    stream.send(messages.ServerAddress(listener.address))
    self._threads.submit(self._accept, stream)
    while not self._has_started.wait(TIMEOUT_S / 5):
      stream.send(messages.ServerHeartbeat(0.0))

  def _accept(self, stream):
    with contextlib.suppress(TransportError):
      while True:
        accept_worker(stream)

  def work(self, index, pushes=None, **settings):
    """Runs a real worker in a thread; returns its Future."""
    pushes = pushes or TimingOnlyGradient()
    worker = worker_.Worker(
      index,
      pushes=pushes,
      codec=self._codec,
      batching=fixed.make(num_workers=index + 1, worker_batch=8),
      residuals=ResidualHistory(
        self._codec,
        index,
        self._parts,
        init_optimizer=lambda: pushes.init(self._codec.params),
      ),
      speed=None,
      settings=make_settings(timeout_s=self._timeout_s, **settings),
      on_hang=print,
    )
    return self._threads.submit(worker, self._route_to(self.address))

  def _hung(self, activity, duration_s):
    del activity, duration_s
    for member in self._members:
      member.close()

  def member(self, index, **fields):
    """Returns the streams of a worker that a test simulates."""
    member = Worker(self.address, index, **fields)
    self._members.append(member)
    return member

  def during(self, task):
    """Runs the coordinator until a function in another thread has returned."""
    done = self._threads.submit(task)
    self.until(done.done)
    return done.result()

  def begin(self, state=None):
    """Starts the run once all have joined, or resumes it from a state."""
    self._warm.result(timeout=START_S)
    self._has_started.set()
    if state is None:
      self.cluster.start()
    else:
      self.cluster.restore(state)
      self.cluster.resume()

  def step_for(self, seconds):
    """Runs steps of the coordinator for a number of seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      self.cluster.step()

  def until(self, condition):
    """Runs steps of the coordinator until a condition holds."""
    end = time.monotonic() + START_S
    while not condition():
      if time.monotonic() > end:
        raise AssertionError('The event did not happen in time.')
      self.cluster.step()

  def close(self):
    """Closes all streams, servers and the coordinator."""
    self._has_started.set()
    for member in self._members:
      member.close()
    self._closing.close()
    self.cluster.close()
    self._threads.shutdown()


class Worker:
  """Streams of a worker that a test simulates."""

  def __init__(self, address, index, process=PROCESS):
    hello = messages.WorkerHello(index, process, 'ours')
    self.control = connect(address, hello, Security(), 10.0)
    admission = self.control.receive(messages.WORKER_ADMISSION).header
    hello = messages.WorkerConnection(index, admission.incarnation, process)
    servers = self.next().addresses
    self._streams = [
      connect(each, hello, Security(), 10.0, service=push_service(server))
      for server, each in enumerate(servers)
    ]
    for stream in self._streams:
      stream.receive(messages.PIECE_SIZES)
    self.control.send(messages.WorkerReady())

  def next(self):
    """Returns the next message of the coordinator."""
    return self.control.receive(messages.TO_WORKER).header

  def pull(self):
    self._sizes = []
    for stream in self._streams:
      message = stream.receive(messages.PULL)
      message.read(np.empty(message.size_bytes, np.uint8))
      self._sizes.append(message.size_bytes)
      self._iteration = message.header.pull.iteration

  def beat(self, progress):
    self.control.send(messages.WorkerHeartbeat(0.0, tuple(progress)))

  def push(self, servers=(0, 1), **fields):
    report = messages.PushReport(
      iteration=self._iteration,
      pulled_at=0.0,
      computed_at=0.0,
      compute_s=1e-3,
      factors=(),
      loss=None,
      weight=8.0,
      is_finite=True,
      computed=8,
      compilations=0,
      has_recalled=False,
    )
    report = msgspec.structs.replace(report, **fields)
    for index in servers[: len(self._streams)]:
      body = np.zeros(self._sizes[index], np.uint8)
      self._streams[index].send(report, [body], body.size)

  def close(self):
    for stream in (self.control, *self._streams):
      stream.cancel()
      stream.close()
