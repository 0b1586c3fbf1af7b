"""A coordinator with its servers in this process, for tests."""

import contextlib
import functools
import pathlib
import tempfile
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np

import data.stream
from batching import fixed
from cluster import coordinator
from cluster.membership import admission as reception_
from cluster.membership.process import Settings
from cluster.milestones import Intervals, Milestones
from cluster.network import messages
from cluster.network.port import Port
from cluster.network.streams import PUSHES, Listener, Security, connect
from cluster.parameter_server import worker as worker_
from cluster.parameter_server.admission import ParameterServerReception
from cluster.parameter_server.checkpoints import server_part
from cluster.parameter_server.hosting import host
from cluster.parameter_server.residuals import ResidualHistory
from cluster.parameter_server.runtime import ParameterServerRuntime
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import ShardVersions
from cluster.process import roles
from cluster.process.deadlines import Deadlines, Jobs
from learning.nothing import NoGradient, NoLearner
from learning.shard_codec import ShardCodec
from outputs.console import Console
from outputs.files import RunFiles
from outputs.recorder import Recorder
from sync import asp
from wire import dense

TIMEOUT_S = 1.0  # Of processes that tests play.
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


class Coordinator:
  """A coordinator and its servers in this process, with streams as workers.

  Attributes:
    address: Of the coordinator.
    store: Parameter store, which gives orders to the servers.
    reception: Of the coordinator.
    cluster: The runtime.
    accounting: Its accounts.
    servers: Those that are made.
  """

  def __init__(
    self,
    *,
    num_workers=1,
    num_servers=1,
    hosted=(1,),
    silent=(),
    way=None,
    start_s=START_S,
    wire=None,
    learner=NoLearner,
    directory=None,
    find_residuals=lambda: None,
    dedicated=True,
    reserved=types.MappingProxyType({}),
    exits=False,
  ):
    """Starts to wait for all.

    Args:
      num_workers: Number of workers.
      num_servers: Number of servers.
      hosted: Those that are hosted here, beside the coordinator's.
      silent: Those that send no heartbeats once the run has begun.
      way: Returns the address by which hosted servers reach the coordinator,
        given its own.
      start_s: Until all have to be there.
      wire: Of pushes and pulls of 16 numbers; None for a dense one.
      learner: Makes those of servers.
      directory: Of workers' parts of checkpoints; None for a new one.
      find_residuals: As of the runtime.
      dedicated: As of the reception.
      reserved: As of the reception.
      exits: Whether a coordinator that hangs exits, as real ones do.
    """
    self._learner = learner
    self.servers = []
    self._members = []
    self._closing = contextlib.ExitStack()
    if not exits:  # A test that waits for too long fails, and no other does.
      self._closing.enter_context(
        mock.patch.object(reception_, 'exit_hung', self._hung)
      )
    self._begun = threading.Event()
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
      files=mock.create_autospec(RunFiles, instance=True),
      console=Console(target=10**6, clock='real'),
    )
    milestones = Milestones(
      intervals=Intervals(10**6, 10**6, 10**6),
      recorder=recorder,
      store=self.store,
      evaluate=None,
    )
    self.accounting = recorder.accounting
    asked = coordinator.Coordinator(
      scheme=asp.make(num_workers=num_workers),
      batching=fixed.make(num_workers=num_workers, worker_batch=8),
      store=self.store,
      stream=data.stream.Stream(num_examples=10**6, seed=0, ahead=0),
      recorder=recorder,
      milestones=milestones,
      num_workers=num_workers,
    )
    deadlines = Deadlines(timeout_s=TIMEOUT_S, start_s=start_s, windows=False)
    self.jobs = Jobs(deadlines)
    settings = make_settings(port, start_s=start_s)
    self.reception = ParameterServerReception(
      store=self.store,
      num_workers=num_workers,
      num_servers=num_servers,
      dedicated=dedicated,
      reserved=reserved,
      settings=settings,
      restore=lambda: None,
      deadlines=deadlines,
      jobs=self.jobs,
    )
    self.cluster = ParameterServerRuntime(
      coordinator=asked,
      store=self.store,
      reception=self.reception,
      server=functools.partial(self._server, 0),
      num_servers=num_servers,
      find_residuals=find_residuals,
      settings=settings,
      deadlines=deadlines,
      local=None,
    )
    self._way = way or (lambda address: address)
    self._pool = ThreadPoolExecutor(8)
    self._warm = self._pool.submit(self.cluster.warm_up)
    for index in range(1, num_servers):
      if index in silent:
        self._pool.submit(self._silent, index)
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
    )
    self.servers.append(server)
    return server

  def host(self, index, **settings):
    """Hosts a server; returns the Future of its end."""
    address = self._way(self.address)
    return self._pool.submit(self._host, index, address, settings)

  def _host(self, index, address, settings):
    return host(
      index,
      functools.partial(self._server, index),
      address,
      make_settings(**settings),
    )

  def _silent(self, index):
    hello = messages.ServerHello(index, PROCESS, 'ours')
    stream = connect(self.address, hello, Security(), 10.0)
    self._members.append(stream)
    stream.receive(messages.SERVER_ADMISSION)

    # Somewhere that answers.
    def answer(stream, hello):
      del hello
      stream.send(messages.PieceSizes([]))
      stream.receive(messages.PUSH)

    listener = Listener(
      Port('127.0.0.1', 0, Security()), answer, service=PUSHES
    )
    self._closing.callback(listener.close, 0.0)
    stream.send(messages.ServerAddress(listener.address))
    while not self._begun.wait(TIMEOUT_S / 5):
      stream.send(messages.ServerHeartbeat(0.0))

  def work(self, index, gradient=None, **settings):
    """Runs a whole worker; returns the Future of its end."""
    worker = worker_.Worker(
      index,
      gradient=gradient or NoGradient(),
      codec=self._codec,
      batching=fixed.make(num_workers=index + 1, worker_batch=8),
      residuals=ResidualHistory(self._codec, index, self._parts),
      speed=None,
      coordinator=self._way(self.address),
      settings=make_settings(**settings),
      hung=print,
    )
    return self._pool.submit(worker)

  def _hung(self, doing, still_s):
    del doing, still_s
    for member in self._members:
      member.close()

  def member(self, index, **fields):
    """Returns the streams of a worker that a test plays."""
    member = Worker(self.address, index, **fields)
    self._members.append(member)
    return member

  def during(self, task):
    """Runs the coordinator until a function in another thread has returned."""
    done = self._pool.submit(task)
    self.until(done.done)
    return done.result()

  def begin(self, state=None):
    """Starts the run once all have joined, or resumes it from a state."""
    self._warm.result(timeout=START_S)
    self._begun.set()
    if state is None:
      self.cluster.start()
    else:
      self.cluster.restore(state)
      self.cluster.resume()

  def step_for(self, seconds):
    """Lets the coordinator work for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      self.cluster.step()

  def until(self, happened):
    """Lets the coordinator work until something has happened."""
    end = time.monotonic() + START_S
    while not happened():
      if time.monotonic() > end:
        raise AssertionError('The event did not happen in time.')
      self.cluster.step()

  def close(self):
    """Ends everything."""
    self._begun.set()
    for member in self._members:
      member.close()
    self._closing.close()
    self.cluster.close()
    self._pool.shutdown()


class Worker:
  """Streams of a worker that a test plays."""

  def __init__(self, address, index, process=PROCESS):
    hello = messages.WorkerHello(index, process, 'ours')
    self.control = connect(address, hello, Security(), 10.0)
    admission = self.control.receive(messages.WORKER_ADMISSION).header
    hello = messages.WorkerConnection(index, admission.incarnation)
    servers = self.next().addresses
    self._streams = [
      connect(each, hello, Security(), 10.0, service=PUSHES) for each in servers
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

  def push(self, servers=(0, 1), compute_s=0.0):
    report = messages.PushReport(
      iteration=self._iteration,
      pulled_at=0.0,
      computed_at=0.0,
      compute_s=compute_s,
      factors=(),
      loss=None,
      is_finite=True,
      computed=8,
      compilations=0,
      has_recalled=False,
    )
    for index in servers[: len(self._streams)]:
      body = np.zeros(self._sizes[index], np.uint8)
      self._streams[index].send(report, [body], body.size)

  def close(self):
    for stream in (self.control, *self._streams):
      stream.cancel()
      stream.close()
