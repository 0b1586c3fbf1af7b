"""Answers of a server to questions that another coordinator has asked."""

import contextlib
import functools
import pathlib
import queue
import tempfile
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest

from cluster.network import messages
from cluster.network.errors import InvalidMessage, TransportError
from cluster.network.heartbeat import Heartbeat
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.parameter_server import hosting
from cluster.parameter_server.hosting import host_server
from cluster.parameter_server.mirrors import MirrorStore
from cluster.parameter_server.server import Server
from cluster.parameter_server.versions import ShardVersions
from learning.shard_codec import ShardCodec
from learning.timing_only import TimingOnlyLearner
from outputs import checkpoints
from tests.support import coordinators
from tests.support.listeners import Listener
from wire import dense

_LIMIT_S = 20.0


class _Coordinator:
  """A coordinator's end of the control stream of a server.

  Attributes:
    address: HOST:PORT.
    reports: Messages of the server, without heartbeats.
    joined: Set once the server has joined.
  """

  def __init__(self, admission, *early):
    self._admission, self.reports = admission, queue.SimpleQueue()
    self._early = early  # Orders that are sent at once.
    self.joined = threading.Event()
    port = Port('127.0.0.1', 0, Security())
    self._listener = Listener(port, self._serve)
    self.address = self._listener.address

  def _serve(self, stream, hello):
    messages.HELLO.decode(hello)
    self._stream = stream
    self.joined.set()
    stream.send(self._admission)
    for sequence, order in enumerate(self._early):
      self.order(sequence, order)
    with contextlib.suppress(TransportError):
      while True:
        message = stream.receive(messages.FROM_SERVER)
        for _ in message.chunks:
          pass
        header = message.header
        if isinstance(header, messages.ServerHeartbeat):
          stream.send(messages.HeartbeatReply(header.sent, 0.0))
        elif not isinstance(header, messages.Activity):
          self.reports.put(header)

  def order(self, sequence, *orders):
    self._stream.send(messages.Orders(sequence, list(orders)))

  def next(self):
    return self.reports.get(timeout=_LIMIT_S)

  def end(self, message=None):
    if message:
      self._stream.send(message)
    else:
      self._stream.cancel()

  def close(self):
    self._listener.close(0.0)


class LateAnswersTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.codec = ShardCodec(
      np.zeros(16, np.float32), (), servers=2, wire=dense.make(dtype='float32')
    )
    self.directory = pathlib.Path(tempfile.mkdtemp())

  def _make(self, mirrors, report, restore):
    del restore
    return Server(
      1,
      learner=TimingOnlyLearner(*self.codec.initial_shard(1)),
      codec=self.codec,
      versions=ShardVersions(self.directory, 'server1', held={}, report=report),
      report=report,
      mirrors=mirrors,
    )

  def _coordinator(self, identity, mirror=None, *early):
    admission = messages.ServerAdmitted(identity, None, mirror)
    coordinator = _Coordinator(admission, *early)
    self.addCleanup(coordinator.close)
    return coordinator

  def _record_heartbeats(self):
    """Returns a list that will have all heartbeats of hosted servers."""
    opened = []

    def open_heartbeat(*args, **fields):
      opened.append(Heartbeat(*args, **fields))
      return opened[-1]

    patch = mock.patch.object(hosting, 'Heartbeat', open_heartbeat)
    self.enterContext(patch)
    return opened

  def _host(self, mirrors, timeout_s=5.0):
    """Hosts server 1 in a thread, at the address in `self.where`."""
    thread = threading.Thread(
      target=host_server,
      args=(
        *(1, functools.partial(self._make, mirrors), lambda: self.where),
        coordinators.make_settings(timeout_s=timeout_s),
      ),
      kwargs={'mirrors': mirrors},
      daemon=True,
    )
    thread.start()
    return thread

  def _check_answers(self, mirror):
    """Loses a coordinator while a server writes; checks what the next gets."""
    mirrors = MirrorStore(Port('127.0.0.1', 0, Security()), _LIMIT_S)
    self.addCleanup(mirrors.close)
    proceeds, write = threading.Event(), checkpoints.write
    self.addCleanup(proceeds.set)

    def slowly(*args):
      proceeds.wait(_LIMIT_S)
      write(*args)

    first = self._coordinator('first')
    self.where = first.address
    thread = self._host(mirrors)
    self.assertIsInstance(first.next(), messages.ServerAddress)
    if mirror:
      first.order(0, messages.MirrorShare(mirror.number))
      self.assertIsInstance(first.next(), messages.ShareMirrored)
    with mock.patch.object(checkpoints, 'write', slowly):
      first.order(1 if mirror else 0, messages.SaveShare(1, 0))
      second = self._coordinator('second', mirror)
      self.where = second.address
      first.end()
      self.assertIsInstance(second.next(), messages.ServerAddress)
      proceeds.set()
      second.order(0, messages.SaveShare(1, 1))
      answer = second.next()
      self.assertEqual(answer, messages.ShareSaved(1, None))
      self.assertTrue((self.directory / '1' / 'server1').exists())
      second.order(1, messages.SaveShare(2, 2))
      self.assertEqual(second.next(), messages.ShareSaved(2, None))
    second.end(messages.SessionEnd('over', 'finished', True))
    thread.join(_LIMIT_S)
    self.assertFalse(thread.is_alive())

  def test_a_successor_gets_no_answer_to_a_question_of_its_predecessor(self):
    self._check_answers(messages.MirrorSource(1, []))

  def test_a_restarted_run_gets_no_answer_to_a_question_of_before(self):
    self._check_answers(None)

  def test_orders_of_a_lost_session_are_not_given_in_the_next(self):
    mirrors = MirrorStore(Port('127.0.0.1', 0, Security()), _LIMIT_S)
    self.addCleanup(mirrors.close)
    first = self._coordinator('first')
    second = self._coordinator('second', messages.MirrorSource(1, []))
    self.where = first.address
    opened = self._record_heartbeats()
    thread = self._host(mirrors, timeout_s=1.0)
    self.assertIsInstance(first.next(), messages.ServerAddress)
    first.order(0, messages.MirrorShare(1))
    self.assertIsInstance(first.next(), messages.ShareMirrored)
    order, overtaken = Server.order, []

    def slowly(*args):
      # No answer to a heartbeat is read meanwhile, so the session ends.
      self.assertTrue(opened[0].ended.wait(_LIMIT_S))
      overtaken.append(second.joined.wait(0.3))
      order(*args)

    self.where = second.address
    with mock.patch.object(Server, 'order', slowly):
      first.order(1, messages.Hold(1))
      self.assertIsInstance(second.next(), messages.ServerAddress)
    self.assertEqual(overtaken, [False])
    second.order(0, messages.SaveShare(1, 1))
    self.assertEqual(second.next(), messages.ShareSaved(1, None))
    second.end(messages.SessionEnd('over', 'finished', True))
    thread.join(_LIMIT_S)

  def test_orders_before_the_server_is_ready_end_it(self):
    first = self._coordinator('first', None, messages.Commit(0))
    opened = self._record_heartbeats()

    def make(report, restore):
      self.assertTrue(opened[0].ended.wait(_LIMIT_S))
      return self._make(None, report, restore)

    with self.assertRaisesRegex(InvalidMessage, 'no orders before'):
      host_server(1, make, first.address, coordinators.make_settings())

  def test_a_version_that_is_being_sent_is_abandoned_at_a_restart(self):
    reports, begun, proceeds = [], threading.Event(), threading.Event()
    self.addCleanup(proceeds.set)

    def report(answer, body):
      reports.append((answer.question, sum(part.size for part in body)))
      begun.set()
      proceeds.wait(_LIMIT_S)

    held = {1: (np.zeros(10**6, np.float32), ())}
    versions = ShardVersions(
      self.directory, 'server1', held=held, report=report
    )
    versions.send(5, 1)
    self.assertTrue(begun.wait(_LIMIT_S))
    restart = threading.Thread(target=versions.restart, args=[held])
    restart.start()
    proceeds.set()
    restart.join(_LIMIT_S)
    before = len(reports)
    size = held[1][0].nbytes
    self.assertLess(sum(size_bytes for _, size_bytes in reports), size)
    versions.send(5, 1)
    deadline = time.monotonic() + _LIMIT_S
    while sum(size_bytes for _, size_bytes in reports[before:]) < size:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.001)
    after = sum(size_bytes for _, size_bytes in reports[before:])
    self.assertEqual(after, size)


if __name__ == '__main__':
  absltest.main()
