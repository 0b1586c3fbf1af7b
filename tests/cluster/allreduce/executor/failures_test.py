"""Tests of an executor that fails because of its own process."""

import errno
import os
import socket
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from cluster.allreduce.executor import (
  connections,
  exchange,
  executor,
  peers,
)
from cluster.allreduce.executor.errors import ExecutorFailed
from cluster.network import handshake, socket_loop
from cluster.network.errors import TransportError
from cluster.network.port import Port
from system import net
from tests.support import byte_peers, descriptors, executors

_SIZE, _CHUNK_BYTES = 8, 16


class _Case(executors.TestCase):
  def _membership(self, count=2, **kwargs):
    node = self.open_executor(0, chunk_bytes=_CHUNK_BYTES, **kwargs)
    return self._others(node, count)

  def _others(self, node, count=2, membership_epoch=0):
    membership = byte_peers.Membership(
      node, count, size=_SIZE, chunk_bytes=_CHUNK_BYTES
    )
    membership.membership_epoch = membership_epoch
    self.addCleanup(membership.close)
    return membership

  def _check_sound(self, membership):
    """Checks that the executor takes part in the next membership."""
    membership.form()
    numbers = np.arange(2 * _SIZE, dtype=np.float32).reshape(2, _SIZE)
    buffer = numbers[0].copy()
    reduction = membership.executor.begin(0, buffer, membership.buckets)
    reduction.ready(0)
    membership.take_part(0, numbers[1], numbers.sum(0))
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(buffer, numbers.sum(0))


class DescriptorsTest(_Case):
  def test_an_executor_that_cannot_connect_reports_it_and_recovers(self):
    membership = self._membership()
    members = membership.group._replace(membership_epoch=5)
    membership.membership_epoch = 5
    with descriptors.exhaust():
      start = time.monotonic()
      with self.assertRaisesRegex(ExecutorFailed, 'Too many open files') as got:
        membership.executor.form(members)
      self.assertLess(time.monotonic() - start, executors.WAIT_S / 2)
    self.assertEqual(got.exception.worker, 0)
    self._check_sound(membership)

  def test_connections_wait_while_none_can_be_accepted(self):
    node = self.open_executor(0)
    host, port = node.address.split(':')
    sleepers, sleep = [], time.sleep

    def noted(seconds):
      sleepers.append(threading.current_thread().name)
      sleep(seconds)

    with socket.socket() as sock:
      sock.settimeout(executors.WAIT_S)
      with (
        self.assertLogs(level='WARNING') as logs,
        mock.patch.object(time, 'sleep', noted),
        descriptors.exhaust(),
      ):
        sock.connect((host, int(port)))
        for _ in range(10):
          node.traffic()
          sleep(0.02)
      self.assertNotIn('executor-0', sleepers)
      self.assertLen(logs.output, 1)
      self.assertRegex(logs.output[0], 'no connection is accepted.*many open')
      sock.sendall(b'syncope4' + b'sums'.ljust(32) + bytes(32))
      self.assertLen(sock.recv(64), 32)

  def test_an_executor_that_cannot_accept_blames_itself(self):
    membership = self._membership(timeout_s=1.0)
    members = membership.group._replace(membership_epoch=1)
    with socket.socket() as sock:
      sock.setblocking(False)
      forming = []
      thread = threading.Thread(
        target=lambda: forming.extend(
          executors.parallel([lambda: membership.executor.form(members, 20.0)])
        )
      )
      thread.start()
      membership.peers[1].accept()
      with descriptors.exhaust():
        sock.connect_ex(byte_peers.parts(membership.executor.address))
        thread.join()
    self.assertIsInstance(forming[0], ExecutorFailed)
    self.assertRegex(str(forming[0]), 'Too many open files')

  @parameterized.parameters(0, 1, 2, 3, 4)
  def test_a_constructor_without_descriptors_leaks_none(self, left):
    before = len(os.listdir('/proc/self/fd'))
    with (
      descriptors.exhaust(left),
      self.assertRaisesRegex(TransportError, 'Too many open files'),
    ):
      executor.Executor(
        0, port=Port(executors.HOST, 0, executors.OPEN), timeout_s=1.0
      )
    self.assertEqual(len(os.listdir('/proc/self/fd')), before)


def _raise(error):
  def raising(*args, **kwargs):
    raise error

  return raising


def _raise_later(error):
  def raising(*args, **kwargs):
    raise error
    yield

  return raising


class UnexpectedTest(_Case):
  """Errors in the thread that its code does not expect."""

  @parameterized.parameters(
    (exchange.Exchange, 'arrived'),
    (exchange.Exchange, 'check'),
    (exchange.Exchange, 'take'),
    (exchange.Exchange, 'sent'),
    (exchange.Exchange, 'ready'),
    (exchange.Exchange, '_add'),
    (connections.MembershipConnections, 'begin'),
    (connections.MembershipConnections, 'flush'),
    (connections.Reader, 'read'),
    (connections.Writer, 'write'),
  )
  def test_an_allreduce_that_fails_reports_the_reason(self, place, name):
    membership = self._membership()
    membership.form()
    numbers = np.ones(_SIZE, np.float32)
    with (
      self.assertLogs(level='ERROR'),
      mock.patch.object(place, name, _raise(RuntimeError('no such thing'))),
    ):
      reduction = membership.executor.begin(0, numbers, membership.buckets)
      reduction.ready(0)
      chunk = membership.chunks(root=0)[0]
      up = membership.fields(0, chunk, byte_peers.UP, numbers)
      membership.peers[1].send(up.pack())
      with self.assertRaisesRegex(
        ExecutorFailed, 'RuntimeError: no such thing'
      ):
        reduction.wait(executors.WAIT_S)
    with self.assertRaises(ExecutorFailed):  # Until the next membership.
      membership.executor.begin(1, numbers, membership.buckets).wait(1.0)
    self._check_sound(membership)

  @parameterized.parameters(
    (connections.MembershipConnections, 'add_inbound'),
    (connections.MembershipConnections, 'add_outbound'),
    (connections.MembershipConnections, 'check_connected'),
    (peers.Peers, 'connect'),
    (peers.Peers, 'claim'),
    (peers.Peers, '_decide'),
    (handshake, 'initiate'),
    (executor, 'Hello'),
  )
  def test_a_membership_that_fails_reports_the_reason(self, place, name):
    membership = self._membership()
    error = RuntimeError('no such thing')
    raising = _raise_later if place is handshake else _raise
    with (
      self.assertLogs(level='ERROR'),
      mock.patch.object(place, name, raising(error)),
    ):
      members = membership.group._replace(membership_epoch=1)
      meet = threading.Thread(
        target=executors.parallel,
        args=[[lambda: membership.peers[1].meet(membership.executor, 1)]],
      )
      meet.start()
      with self.assertRaisesRegex(
        ExecutorFailed, 'RuntimeError: no such thing'
      ):
        membership.executor.form(members)
      membership.close()
      meet.join()
      membership.close()  # Connections that were opened meanwhile.
    self._check_sound(self._others(membership.executor, membership_epoch=1))

  def test_an_executor_that_cannot_watch_a_connection_reports_it(self):
    membership = self._membership()
    members = membership.group._replace(membership_epoch=1)
    membership.membership_epoch = 1
    error = OSError(errno.ENOSPC, 'No space left on device')
    with (
      mock.patch.object(socket_loop.SocketLoop, 'watch', _raise(error)),
      self.assertRaisesRegex(ExecutorFailed, 'No space left on device'),
    ):
      membership.executor.form(members)
    self._check_sound(self._others(membership.executor, membership_epoch=1))

  def test_the_end_of_the_thread_ends_running_and_later_calls(self):
    membership = self._membership()
    node = membership.executor
    membership.form()
    numbers = np.ones(_SIZE, np.float32)
    with (
      self.assertLogs(level='ERROR'),
      mock.patch.object(net.Wake, 'clear', _raise(OSError('gone'))),
    ):
      reduction = node.begin(0, numbers, membership.buckets)
      with self.assertRaisesRegex(ExecutorFailed, 'OSError: gone'):
        reduction.wait(executors.WAIT_S)
    members = membership.group._replace(membership_epoch=9)
    for _ in range(2):
      with self.assertRaisesRegex(ExecutorFailed, 'OSError: gone'):
        node.form(members)
      with self.assertRaisesRegex(ExecutorFailed, 'OSError: gone'):
        node.begin(1, numbers, membership.buckets)
    counts = [node.unanswered() for _ in range(3)]
    self.assertEqual(np.diff(counts).tolist(), [1, 1])  # Heartbeats detect it.
    node.abandon()
    node.traffic()

  def test_an_error_between_memberships_does_not_end_the_thread(self):
    node = self.open_executor(0)
    with self.assertLogs(level='ERROR'):
      node._loop.run(_raise(KeyError('nobody waits')))
    executors.wait_until(lambda: node.unanswered() <= 1)


if __name__ == '__main__':
  absltest.main()
