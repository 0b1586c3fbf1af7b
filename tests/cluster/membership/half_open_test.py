"""Tests of peers whose packets are dropped while their connections stay open.

Each peer runs in a network namespace, whose link to this one then loses
everything.
"""

import os
import pathlib
import queue
import subprocess
import threading
import time

import numpy as np
from absl.testing import absltest

from cluster.allreduce.admission import AllreduceReception
from cluster.membership.events import WorkerLost
from cluster.membership.process import Settings
from cluster.network import messages, time_limits
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.parameter_server.server import Server
from cluster.parameter_server.versions import ShardVersions
from cluster.process.deadlines import Deadlines, Jobs
from learning.shard_codec import ShardCodec
from learning.timing_only import TimingOnlyLearner
from tests.support import commands, requires
from tests.support.streams import WAIT_S, wait_until
from wire import dense

_TIMEOUT_S = 1.0
_CONTROL = """
import sys, time
from cluster.network import messages
from cluster.network.streams import Security, connect

hello = messages.WorkerHello(0, '0' * 32, 'ours')
stream = connect(sys.argv[1], hello, Security(), 10.0)
stream.receive(messages.WORKER_ADMISSION)
stream.send(messages.ReplicaReady('127.0.0.1:65535', []))
print('connected', flush=True)
while True:
  stream.send(messages.WorkerHeartbeat(0.0, ('compute', 0, 0)))
  time.sleep(0.1)
"""
_PUSHES = """
import sys, time
from cluster.network import messages
from cluster.network.streams import Security, connect, push_service

hello = messages.WorkerConnection(0, 0, '0' * 32)
stream = connect(sys.argv[1], hello, Security(), 10.0, service=push_service(0))
stream.receive(messages.PIECE_SIZES)
print('connected', flush=True)
time.sleep(60.0)
"""


def _ip(*words):
  subprocess.run(['ip', *words], check=True)


def _count():
  """Returns the sockets and threads of this process."""
  with time_limits.limit(WAIT_S, lambda: None):  # Its thread starts once.
    sockets = [
      each
      for each in pathlib.Path('/proc/self/fd').iterdir()
      if each.is_socket()
    ]
    return len(sockets), threading.active_count()


class HalfOpenTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    requires.lab()
    # Own names and addresses: other tests may run beside this one.
    number = os.getpid() % 2**14
    self._space, self._link = f'half-{os.getpid()}', f'half{number}'
    high, low = divmod(number, 64)
    net = f'198.{18 + high // 256}.{high % 256}'
    self._host, self._peer = f'{net}.{4 * low + 1}', f'{net}.{4 * low + 2}'
    _ip('netns', 'add', self._space)
    self.addCleanup(_ip, 'netns', 'del', self._space)
    _ip(
      *f'link add {self._link} type veth peer name eth0'.split(),
      *('netns', self._space),
    )
    # Deleting one end deletes both.
    self.addCleanup(_ip, 'link', 'del', self._link)
    _ip('addr', 'add', f'{self._host}/30', 'dev', self._link)
    _ip('link', 'set', self._link, 'up')
    _ip(*f'-n {self._space} addr add {self._peer}/30 dev eth0'.split())
    _ip(*f'-n {self._space} link set eth0 up'.split())

  def _start(self, code, address):
    """Runs a peer in the namespace until the end of the test."""
    inside = ['ip', 'netns', 'exec', self._space]
    words = [*inside, *commands.python(code, address)]
    self.enterContext(commands.start(words)).until('connected')

  def _cut(self):
    """Makes both ends drop all packets: they are for another MAC address."""
    wrong = ['lladdr', '02:00:00:00:00:01', 'nud', 'permanent']
    _ip('neigh', 'replace', self._peer, *wrong, 'dev', self._link)
    _ip(
      *('-n', self._space, 'neigh', 'replace', self._host),
      *(*wrong, 'dev', 'eth0'),
    )

  def test_a_control_stream_is_evicted_in_time_and_leaves_nothing(self):
    reception = AllreduceReception(
      num_workers=1,
      settings=Settings(
        Port(self._host, 0, Security()), 'ours', _TIMEOUT_S, WAIT_S, ''
      ),
      jobs=Jobs(Deadlines(timeout_s=WAIT_S, start_s=WAIT_S, windows=True)),
    )
    address = reception.listen()
    self.addCleanup(reception.close, finished=True)
    before = _count()
    self._start(_CONTROL, address)
    reception.events.get(timeout=WAIT_S)  # It has joined.
    self._cut()
    start = time.monotonic()
    lost = reception.events.get(timeout=WAIT_S)
    self.assertIsInstance(lost, WorkerLost)
    self.assertIn('silent', lost.reason)
    # The limit of silence, between two looks, on a machine that is busy.
    self.assertLess(time.monotonic() - start, 4 * _TIMEOUT_S)
    wait_until(lambda: _count() == before)

  def test_a_push_stream_of_an_evicted_worker_leaves_nothing(self):
    codec = ShardCodec(
      np.zeros(10**6, np.float32),
      (),
      servers=1,
      wire=dense.make(dtype='float32'),
    )
    reports = queue.SimpleQueue()

    def report(event, body):
      del body
      reports.put(event)

    server = Server(
      0,
      learner=TimingOnlyLearner(*codec.initial_shard(0)),
      codec=codec,
      versions=ShardVersions(
        pathlib.Path('none'), 'server0', held={}, report=report
      ),
      report=report,
    )
    server.open(Port(self._host, 0, Security()))
    self.addCleanup(server.close, 0.0)
    server.accept(messages.AcceptWorker(0, 0, '0' * 32))
    before = _count()
    self._start(_PUSHES, server.address)
    self._cut()
    pull = messages.Pull(
      iteration=0,
      ranges=(),
      examples=8,
      scale=1.0,
      upcoming=(),
      stage=0,
      residual=(None, None, ()),
    )
    # The version fills the buffers of the system, and is never acknowledged.
    server.order(0, [messages.Release(0, 0, pull)])
    server.order(1, [messages.EndWorker(0, 0)])
    self.assertIsInstance(reports.get(timeout=WAIT_S), messages.WorkerFailed)
    wait_until(lambda: _count() == before)


if __name__ == '__main__':
  absltest.main()
