"""Tests for servers whose workers vanish in the middle of a message."""

import contextlib
import pathlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from absl.testing import absltest, parameterized

from cluster.network import messages
from cluster.network.port import Port
from cluster.network.streams import Closed, Security, connect, push_service
from cluster.parameter_server.server import Server
from cluster.parameter_server.versions import ShardVersions
from learning.shard_codec import ShardCodec
from learning.timing_only import TimingOnlyLearner
from tests.support import reports
from tests.support.relays import Relay
from wire import dense

_FLOATS = 2 * 10**6
_PROCESS = '0' * 32
_LIMIT_S = 20.0  # The system alone would end a connection after a minute.


class VanishingWorkerTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    codec = ShardCodec(
      np.zeros(_FLOATS, np.float32),
      (),
      servers=1,
      wire=dense.make(dtype='float32'),
    )
    self.reports = queue.SimpleQueue()

    def report(event, body):
      self.reports.put(event)

    self.server = Server(
      0,
      learner=TimingOnlyLearner(*codec.initial_shard(0)),
      codec=codec,
      versions=ShardVersions(
        pathlib.Path('none'), 'server0', held={}, report=report
      ),
      report=report,
    )
    self.server.open(Port('127.0.0.1', 0, Security()))
    self.addCleanup(self.server.close, 0.0)

  def _worker(self, address, incarnation=0):
    hello = messages.WorkerConnection(0, incarnation, _PROCESS)
    self.server.accept(messages.AcceptWorker(0, incarnation, _PROCESS))
    stream = connect(address, hello, Security(), 10.0, service=push_service(0))
    self.addCleanup(stream.close)
    stream.receive(messages.PIECE_SIZES)
    return stream

  def _release(self, sequence, incarnation=0):
    pull = messages.Pull(
      iteration=0,
      ranges=(),
      examples=8,
      scale=1.0,
      upcoming=(),
      stage=0,
      residual=(None, None, ()),
    )
    self.server.order(sequence, [messages.Release(0, incarnation, pull)])

  def test_an_interrupted_push_keeps_neither_thread_nor_memory(self):
    with Relay(self.server.address, most_bytes=10**6) as relay:
      stream = self._worker(relay.address)
      self._release(0)
      pull = stream.receive(messages.PULL)
      pull.read(np.empty(pull.size_bytes, np.uint8))
      body = np.zeros(pull.size_bytes, np.uint8)
      halves = np.split(body, 8)

      def push():
        with contextlib.suppress(Closed):
          stream.send(reports.PUSH, halves, body.size)

      pusher = threading.Thread(target=push)
      pusher.start()
      self._until(lambda: relay.passed > 10**6)  # The rest is swallowed.
      self.assertLen(self.server._ports, 1)
      self.server.order(1, [messages.EndWorker(0, 0)])
      self._is_free()
      pusher.join(_LIMIT_S)
      self.assertFalse(pusher.is_alive())
    self._goes_on(2)

  def test_a_worker_that_never_reads_keeps_no_thread(self):
    with Relay(self.server.address) as relay:
      self._worker(relay.address)
      relay._reads = False
      self._release(0)
      time.sleep(0.3)
      self.server.order(1, [messages.EndWorker(0, 0)])
      self._is_free()
    self._goes_on(2)

  def test_a_cancelled_stream_stops_writing(self):
    chunk = np.zeros(2**22, np.uint8)
    with Relay(self.server.address) as relay:
      stream, other = (
        self._worker(relay.address),
        self._worker(relay.address, 1),
      )
      relay.stall()
      with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(
          stream.send, reports.PUSH, [chunk] * 32, 32 * chunk.size
        )
        time.sleep(1.0)
        self.assertFalse(sent.done())
        stream.cancel()
        self.assertIsInstance(sent.exception(_LIMIT_S), Closed)
      other.send(reports.PUSH)  # Its connection is another one.

  def test_an_older_incarnation_is_refused(self):
    stream = self._worker(self.server.address, incarnation=1)
    with self.assertRaisesRegex(Closed, 'not the one that was admitted'):
      self._worker(self.server.address, incarnation=0)
    self._release(0, incarnation=1)
    self.assertEqual(stream.receive(messages.PULL).header.pull.iteration, 0)

  def test_a_reconnection_replaces_the_lost_connection(self):
    lost = self._worker(self.server.address, incarnation=1)
    stream = self._worker(self.server.address, incarnation=1)
    with self.assertRaises(Closed):
      lost.receive(messages.PULL)
    self._release(0, incarnation=1)
    self.assertEqual(stream.receive(messages.PULL).header.pull.iteration, 0)

  @parameterized.parameters(
    (None,),
    ([],),
    ({},),
    ({'worker': 0},),
    ({'worker': '0', 'incarnation': 0, 'process': _PROCESS},),
    ({'worker': -1, 'incarnation': 0, 'process': _PROCESS},),
    ({'worker': True, 'incarnation': 0, 'process': _PROCESS},),
    ({'worker': 0, 'incarnation': 2**60, 'process': _PROCESS},),
    ({'worker': 0, 'incarnation': 0.0, 'process': _PROCESS},),
    ({'worker': 0, 'incarnation': 0, 'process': 'another'},),
  )
  def test_other_hellos_are_refused(self, hello):
    if hello:
      hello = hello | {'type': 'WorkerConnection'}
    address = self.server.address
    stream = connect(address, hello, Security(), 10.0, service=push_service(0))
    with self.assertRaisesRegex(Closed, 'sent another hello'):
      stream.receive(messages.PULL)
    stream.close()
    self.assertEmpty(self.server._ports)

  def _is_free(self):
    listener = self.server._listener
    self._until(lambda: not listener.open_streams())
    self.assertEmpty(self.server._ports)

  def _until(self, happened):
    deadline = time.monotonic() + _LIMIT_S
    while not happened():
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.01)

  def _goes_on(self, sequence):
    """Checks that the next incarnation of the worker is served."""
    stream = self._worker(self.server.address, incarnation=1)
    self._release(sequence, incarnation=1)
    pull = stream.receive(messages.PULL)
    pull.read(np.empty(pull.size_bytes, np.uint8))
    stream.send(
      reports.PUSH, [np.zeros(pull.size_bytes, np.uint8)], pull.size_bytes
    )
    while not isinstance(
      report := self.reports.get(timeout=_LIMIT_S), messages.PushArrived
    ):
      self.assertIsInstance(report, messages.WorkerFailed)
    self.assertEqual(report.incarnation, 1)


if __name__ == '__main__':
  absltest.main()
