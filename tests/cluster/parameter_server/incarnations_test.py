"""Servers serve only the newest incarnation that the coordinator admitted."""

import pathlib
import queue
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from cluster.network import messages
from cluster.network.port import Port
from cluster.network.streams import (
  Closed,
  Security,
  TransportError,
  connect,
  push_service,
)
from cluster.parameter_server.admission import ShareRetained
from cluster.parameter_server.mirroring import Mirror
from cluster.parameter_server.mirrors import MirrorStore
from cluster.parameter_server.server import Server
from cluster.parameter_server.versions import ShardVersions
from learning.shard_codec import ShardCodec
from learning.timing_only import TimingOnlyLearner
from tests.support import coordinators, reports
from wire import dense

_LIMIT_S = 20.0
_ONE, _OTHER = '1' * 32, '2' * 32
_PULL = messages.Pull(
  iteration=0,
  ranges=((0, 8),),
  examples=8,
  scale=1.0,
  upcoming=(),
  stage=0,
  residual=(None, None, ()),
)


class ServerTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    codec = ShardCodec(
      np.zeros(16, np.float32), (), servers=1, wire=dense.make(dtype='float32')
    )
    self.reports = queue.SimpleQueue()
    report = lambda message, body: self.reports.put(message)  # noqa: E731
    port = Port('127.0.0.1', 0, Security())
    mirrors = MirrorStore(port, _LIMIT_S)
    self.addCleanup(mirrors.close)
    self.server = Server(
      0,
      learner=TimingOnlyLearner(*codec.initial_shard(0)),
      codec=codec,
      versions=ShardVersions(
        pathlib.Path('none'), 'server0', held={}, report=report
      ),
      report=report,
      mirrors=mirrors,
    )
    self.server.open(port)
    self.addCleanup(self.server.close, 0.0)

  def _accept(self, incarnation, process=_ONE):
    self.server.accept(messages.AcceptWorker(0, incarnation, process))

  def _connect(self, incarnation, process=_ONE):
    hello = messages.WorkerConnection(0, incarnation, process)
    address, service = self.server.address, push_service(0)
    stream = connect(address, hello, Security(), _LIMIT_S, service=service)
    self.addCleanup(stream.close)
    stream.receive(messages.PIECE_SIZES)
    return stream

  def _check_refused(self, incarnation, process=_ONE):
    with self.assertRaisesRegex(Closed, f'incarnation {incarnation} of'):
      self._connect(incarnation, process)

  def test_a_worker_that_was_not_admitted_is_refused(self):
    self._check_refused(0)
    self._accept(0)
    self._connect(0)

  @parameterized.parameters((10**6, _ONE), (2, _ONE), (3, _OTHER))
  def test_another_incarnation_or_process_changes_nothing(self, *other):
    self._accept(3)
    stream = self._connect(3)
    self._check_refused(*other)
    self.server.order(0, [messages.Release(0, 3, _PULL)])
    pull = stream.receive(messages.PULL)
    pull.read(np.empty(pull.size_bytes, np.uint8))
    stream.send(reports.PUSH, [np.zeros(64, np.uint8)], 64)
    arrived = self.reports.get(timeout=_LIMIT_S)
    self.assertEqual(arrived, messages.PushArrived(0, 3, reports.PUSH))
    self._connect(3)  # Again, as its worker had lost the connection.

  def test_a_newer_incarnation_ends_those_before(self):
    for incarnation, process in ((0, _ONE), (1, _OTHER)):
      self._accept(incarnation, process)
      self._connect(incarnation, process)
    self._accept(0)  # Late.
    self._check_refused(0)
    self._connect(1, _OTHER)

  def test_an_incarnation_that_has_ended_is_refused(self):
    self._accept(0)
    stream = self._connect(0)
    self.server.order(0, [messages.EndWorker(0, 0)])
    with self.assertRaises(Closed):
      stream.receive(messages.PULL)
    self._check_refused(0)

  def test_incarnations_count_anew_after_a_return_to_a_mirror(self):
    self._accept(5)
    self._connect(5)
    self.server.order(0, [messages.MirrorShare(1)])
    self.assertIsInstance(
      self.reports.get(timeout=_LIMIT_S), messages.ShareMirrored
    )
    self.server.restart(1)
    self._check_refused(5)
    self._accept(2, _OTHER)
    self._connect(2, _OTHER)
    self._check_refused(5)


class ReceptionTest(absltest.TestCase):
  """A real coordinator; a test has the streams of server 1 and of a worker."""

  def setUp(self):
    super().setUp()
    self.run_ = coordinators.Coordinator(num_servers=2, hosted=())
    self.addCleanup(self.run_.close)

  def _stream(self, hello, schema):
    stream = connect(self.run_.address, hello, Security(), _LIMIT_S)
    self.addCleanup(stream.close)
    self.addCleanup(stream.cancel)
    stream.receive(schema)
    return stream

  def _server(self, address='127.0.0.1:1', index=1):
    hello = messages.ServerHello(index, _ONE, 'ours')
    stream = self._stream(hello, messages.SERVER_ADMISSION)
    stream.send(messages.ServerAddress(address))
    return stream

  def _worker(self, process=_OTHER):
    hello = messages.WorkerHello(0, process, 'ours')
    return self._stream(hello, messages.WORKER_ADMISSION)

  def _next(self, worker):
    """Returns the next message to a worker, which has sent a heartbeat."""
    worker.send(messages.WorkerHeartbeat(0.0, ('transfer', -1, 0)))
    return worker.receive(messages.TO_WORKER).header

  def _answer(self, server, incarnation=0):
    """Lets a server accept a worker that it has been told of."""
    order = coordinators.accept_worker(server)
    self.assertEqual(order, messages.AcceptWorker(0, incarnation, _OTHER))

  def _check_addresses(self, worker):
    while isinstance(
      message := worker.receive(messages.TO_WORKER).header,
      messages.HeartbeatReply,
    ):
      pass
    self.assertIsInstance(message, messages.ServerAddresses)

  def test_a_worker_learns_addresses_once_all_servers_accept_it(self):
    worker = self._worker()
    self.assertIsInstance(self._next(worker), messages.HeartbeatReply)
    server = self._server()
    order = server.receive(messages.TO_SERVER).header
    self.assertEqual(order, messages.AcceptWorker(0, 0, _OTHER))
    self.assertIsInstance(self._next(worker), messages.HeartbeatReply)
    server.send(messages.WorkerAccepted(0, 0))
    self._check_addresses(worker)
    again = self._worker()
    self.assertIsInstance(self._next(again), messages.HeartbeatReply)
    self._answer(server, 1)
    self._check_addresses(again)

  def test_a_server_that_joins_again_is_told_of_all_workers(self):
    worker = self._worker()
    server = self._server()
    self._answer(server)
    self._check_addresses(worker)
    server.cancel()
    server = self._server()
    self._answer(server)
    self.assertIsInstance(self._next(worker), messages.HeartbeatReply)

  def test_a_worker_waits_for_a_server_that_is_lost_before_it_answers(self):
    worker = self._worker()
    server = self._server()
    self.assertIsInstance(
      server.receive(messages.TO_SERVER).header, messages.AcceptWorker
    )
    server.cancel()
    server = self._server('127.0.0.1:2')
    self.assertIsInstance(self._next(worker), messages.HeartbeatReply)
    self._answer(server)
    self._check_addresses(worker)

  def test_a_server_that_was_lost_after_its_answer_answers_again(self):
    self.run_ = coordinators.Coordinator(num_servers=3, hosted=())
    self.addCleanup(self.run_.close)
    worker, server = self._worker(), self._server()
    other = self._server('127.0.0.1:2', index=2)
    self._answer(server)
    server.cancel()
    server = self._server('127.0.0.1:3')
    self._answer(other)
    other.send(messages.ServerHeartbeat(0.0))
    while not isinstance(
      other.receive(messages.TO_SERVER).header, messages.HeartbeatReply
    ):
      pass  # Its answer has been handled before.
    self.assertIsInstance(self._next(worker), messages.HeartbeatReply)
    self._answer(server)
    self._check_addresses(worker)

  def test_an_answer_about_a_worker_that_never_was_ends_the_server(self):
    server = self._server()
    server.send(messages.WorkerAccepted(0, 0))
    with self.assertRaisesRegex(TransportError, 'worker: expected one that'):
      server.receive(messages.TO_SERVER)

  def test_a_worker_that_joins_while_servers_return_to_a_mirror_is_known(self):
    mirrors = MirrorStore(Port('127.0.0.1', 0, Security()), _LIMIT_S)
    self.addCleanup(mirrors.close)
    self.run_ = coordinators.Coordinator(mirrors=mirrors)
    self.addCleanup(self.run_.close)
    self.run_.member(0)
    self.run_.begin()
    (server,) = self.run_.servers
    server.order(1, [messages.MirrorShare(1)])
    retained = self.run_.reception.events
    while not isinstance(retained.get(timeout=_LIMIT_S), ShareRetained):
      pass
    restart, workers = server.restart, []

    def join_meanwhile(mirror):
      workers.append(self._worker(coordinators.PROCESS))
      self._check_addresses(workers[0])
      return restart(mirror)

    with mock.patch.object(server, 'restart', join_meanwhile):
      self.run_.reception.restart(Mirror(1, {}, frozenset()), 'x')
    hello = messages.WorkerConnection(0, 1, coordinators.PROCESS)
    stream = connect(
      *(server.address, hello, Security(), _LIMIT_S), service=push_service(0)
    )
    self.addCleanup(stream.close)
    self.assertEqual(
      stream.receive(messages.PIECE_SIZES).header, messages.PieceSizes([])
    )


if __name__ == '__main__':
  absltest.main()
