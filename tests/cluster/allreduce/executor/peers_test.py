"""Tests for the peers that an executor connects to and admits."""

import contextlib
import socket
import threading
import time

import numpy as np
from absl.testing import absltest

from cluster.allreduce.executor import peers
from cluster.allreduce.executor.errors import Abandoned, PeerLost
from cluster.network.connection import Connection
from cluster.network.errors import Closed, TransportError
from cluster.network.handshake import Security
from cluster.network.port import Port
from cluster.network.socket_loop import SocketLoop
from tests.support import certificates, executors, groups, streams


class ListenerTest(executors.TestCase):
  def test_a_peer_with_another_token_is_refused(self):
    nodes = [
      self.open_executor(0, Security('a secret'), timeout_s=1.0),
      self.open_executor(1, Security('another'), timeout_s=1.0),
    ]
    addresses = {i: each.address for i, each in enumerate(nodes)}
    membership = groups.make_membership(*executors.star(2), addresses)
    start = time.monotonic()
    errors = executors.parallel([lambda e=e: e.form(membership) for e in nodes])
    self.assertLess(time.monotonic() - start, 10.0)
    for error in errors:
      self.assertIsInstance(error, PeerLost)
      self.assertRegex(str(error), 'the token is not that of the listener')

  def test_the_token_is_not_sent(self):
    token = 'this is the secret'
    received = []
    node = self.open_executor(0, Security(token), timeout_s=1.0)
    with socket.create_server((executors.HOST, 0)) as server:
      address = '{}:{}'.format(*server.getsockname())
      membership = groups.make_membership(
        *executors.star(2), {0: node.address, 1: address}
      )

      def listen():
        with contextlib.closing(server.accept()[0]) as sock:
          received.append(sock.recv(1000))
          sock.sendall(bytes(64))
          received.append(sock.recv(1000))

      thread = threading.Thread(target=listen)
      thread.start()
      with self.assertRaisesRegex(PeerLost, 'token'):
        node.form(membership)
      thread.join()
    self.assertEqual([*map(len, received)], [72, 32])
    self.assertNotIn(token.encode(), b''.join(received))

  def test_refusals_of_strangers_are_logged_at_a_limited_rate(self):
    with self.assertLogs(level='WARNING') as logs:
      node = self.open_executor(0, Security('secret'))
      host, port = node.address.split(':')
      for _ in range(20):
        with socket.create_connection(
          (host, int(port)), executors.WAIT_S
        ) as stranger:
          stranger.sendall(b'GET / HTTP/1.1\r\n\r\n' * 10)
          stranger.settimeout(executors.WAIT_S)
          with contextlib.suppress(ConnectionResetError):
            self.assertEqual(stranger.recv(100), b'')
      node.close()
    self.assertLess(len(logs.output), 4)
    self.assertIn('refused: no handshake', logs.output[0])
    self.assertIn('19 more', logs.output[-1])

  def test_an_address_of_no_interface_is_reported(self):
    with self.assertRaisesRegex(TransportError, '192.0.2.1'):
      self.open_executor(0, host='192.0.2.1')

  def test_members_that_do_not_connect_are_named(self):
    nodes = [self.open_executor(index, timeout_s=1.0) for index in range(3)]
    addresses = {i: each.address for i, each in enumerate(nodes)}
    membership = groups.make_membership(*executors.star(3), addresses)
    errors = executors.parallel(
      [lambda e=e: e.form(membership) for e in nodes[:2]]
    )
    for error in errors:
      self.assertIsInstance(error, Closed)
      self.assertRegex(str(error), r'2')
    nodes[2].close()
    later = membership._replace(membership_epoch=2)
    errors = executors.parallel([lambda e=e: e.form(later) for e in nodes[:2]])
    for error in errors:
      self.assertIsInstance(error, Closed)

  def test_members_may_connect_within_the_limit(self):
    nodes = [self.open_executor(index, timeout_s=1.0) for index in range(2)]
    addresses = {i: each.address for i, each in enumerate(nodes)}
    membership = groups.make_membership(*executors.star(2), addresses)

    def late():
      time.sleep(2.2)  # It fetches the state first.
      nodes[1].form(membership, executors.WAIT_S)

    errors = executors.parallel(
      [lambda: nodes[0].form(membership, executors.WAIT_S), late]
    )
    self.assertEqual(errors, [None, None])

  def test_a_client_that_comes_behind_the_end_of_the_thread_is_closed(self):
    node = self.open_executor(0)
    node.close()
    near, far = streams.tcp_pair()
    with far:
      node._peers._receive_hello(Connection(near, 'peer'))
      self.assertEqual(near.fileno(), -1)

  def test_very_small_and_large_timeouts_are_accepted(self):
    for timeout_s in (1e-4, 1e9):
      with socket.socket() as sock:
        Connection(sock, 'peer').limit_silence(timeout_s)
        own = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        self.assertBetween(own, 1, 1e9)

  def test_300_workers_may_connect_before_one_is_ready(self):
    node, failed = self.open_executor(0, workers=300), []
    others = SocketLoop(
      'others',
      after_events=lambda: None,
      tick=lambda: None,
      on_error=failed.append,
      on_exit=lambda _: None,
    )
    self.addCleanup(others.close)
    opened = peers.Peers(
      others,
      Port(executors.HOST, 0, executors.OPEN),
      index=1,
      workers=300,
      timeout_s=executors.WAIT_S,
      on_client=lambda connection, hello: True,
    )
    opened.open(failed.append)
    self.addCleanup(others.run, opened.close)
    for worker in range(1, 300):
      hello = peers.Hello(1, worker, 0, 0)
      args = node.address, executors.HOST, hello, lambda connection: None
      others.post(lambda args=args: opened.connect(*args, failed.append))
    waiting = node._peers
    executors.wait_until(lambda: waiting.num_waiting + len(failed) == 299)
    self.assertEmpty(failed)
    self.assertEqual(waiting.num_waiting, 299)

  def test_a_peer_of_another_epoch_waits_or_is_refused(self):
    nodes, membership = self.connect_executors(2)
    later = membership._replace(membership_epoch=5)
    forming = threading.Thread(target=nodes[0].form, args=(later,))
    forming.start()
    time.sleep(0.1)
    nodes[1].form(later)  # That waits for it.
    forming.join()
    other = self.open_executor(0)
    stale = membership._replace(
      membership_epoch=3, addresses={0: other.address, 1: nodes[1].address}
    )
    with self.assertRaisesRegex(PeerLost, 'it does not expect us'):
      other.form(stale)

  def test_tls(self):
    security = certificates.make_security('secret')
    nodes, _ = self.connect_executors(3, security=security)
    buffers = np.ones((3, 100_000), np.float32)
    for iteration in range(2):
      results = self.allreduce(
        nodes, iteration, buffers, [(0, 10), (10, 100_000)]
      )
      self.assertEqual(results, [None] * 3)
    np.testing.assert_array_equal(buffers, np.full_like(buffers, 9.0))
    nodes[1].abandon()
    for each in (nodes[0], nodes[2]):
      with self.assertRaises(Abandoned):
        each.begin(2, buffers[0], [(0, 100_000)]).wait(executors.WAIT_S)
    for other in (Security('secret'), certificates.make_security('secret')):
      strange = self.open_executor(0, other, timeout_s=1.0)
      addresses = {0: strange.address, 1: nodes[1].address}
      with self.assertRaises(Closed):
        strange.form(groups.make_membership(*executors.star(2), addresses))
    with self.assertRaisesRegex(ValueError, 'certificate and key'):
      self.open_executor(0, security._replace(key=b''))


if __name__ == '__main__':
  absltest.main()
