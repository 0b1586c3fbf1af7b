"""Tests of the executor, door: who is let in."""

import contextlib
import shutil
import socket
import threading
import time
import unittest
import unittest.mock

import numpy as np
from absl.testing import absltest

from cluster.allreduce.executor import executor, links, listener, loop
from cluster.allreduce.executor.errors import Abandoned, PeerLost
from cluster.network.errors import Closed, TransportError
from cluster.network.handshake import Security
from tests.support import certificates, executors, groups


class DoorTest(executors.TestCase):
  def test_who_has_another_token_is_kept_out(self):
    made = [
      self.executor(0, Security('a secret'), timeout_s=1.0),
      self.executor(1, Security('another'), timeout_s=1.0),
    ]
    addresses = {i: each.address for i, each in enumerate(made)}
    group = groups.group(*executors.star(2), addresses)
    start = time.monotonic()
    errors = executors.parallel([lambda e=e: e.form(group) for e in made])
    self.assertLess(time.monotonic() - start, 10.0)
    for error in errors:
      self.assertIsInstance(error, PeerLost)
      self.assertRegex(str(error), 'the token is not that of the listener')

  def test_the_token_is_not_sent(self):
    token = 'this is the secret'
    heard = []
    made = self.executor(0, Security(token), timeout_s=1.0)
    with socket.create_server((executors.HOST, 0)) as server:
      address = '{}:{}'.format(*server.getsockname())
      group = groups.group(*executors.star(2), {0: made.address, 1: address})

      def listen():
        with contextlib.closing(server.accept()[0]) as sock:
          heard.append(sock.recv(1000))
          sock.sendall(bytes(64))
          heard.append(sock.recv(1000))

      thread = threading.Thread(target=listen)
      thread.start()
      with self.assertRaisesRegex(PeerLost, 'token'):
        made.form(group)
      thread.join()
    self.assertLen(heard[0], 40)
    self.assertEqual(heard[1], b'')

  def test_strangers_are_refused_in_few_lines(self):
    with self.assertLogs(level='WARNING') as logs:
      made = self.executor(0, Security('secret'))
      host, port = made.address.split(':')
      for _ in range(20):
        with socket.create_connection(
          (host, int(port)), executors.WAIT_S
        ) as stranger:
          stranger.sendall(b'GET / HTTP/1.1\r\n\r\n' * 10)
          stranger.settimeout(executors.WAIT_S)
          with contextlib.suppress(ConnectionResetError):
            self.assertEqual(stranger.recv(100), b'')
      made.close()
    self.assertLess(len(logs.output), 4)
    self.assertIn('refused: it does not greet', logs.output[0])
    self.assertIn('19 more', logs.output[-1])

  def test_who_says_nothing_is_cut_off_and_does_no_harm(self):
    with (
      unittest.mock.patch.object(listener, 'WAIT_S', 0.3),
      unittest.mock.patch.object(listener, '_MOST', 3),
    ):
      made = [self.executor(index) for index in range(2)]
      host, port = made[0].address.split(':')
      silent = [
        socket.create_connection((host, int(port)), executors.WAIT_S)
        for _ in range(6)
      ]
      addresses = {i: each.address for i, each in enumerate(made)}
      self.form(made, groups.group(*executors.star(2), addresses))
      for sock in silent:
        sock.settimeout(executors.WAIT_S)
        self.assertEqual(sock.recv(1), b'')
        sock.close()

  def test_only_the_given_address_is_bound(self):
    port = int(self.executor(0).address.rpartition(':')[2])
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(('127.0.0.2', port), 1.0)
    for host in ('0.0.0.0', 'localhost', ''):
      with self.assertRaisesRegex(ValueError, 'host: expected'):
        executor.Executor(0, host=host, security=executors.OPEN, timeout_s=1.0)
    with self.assertRaisesRegex(TransportError, '192.0.2.1'):
      executor.Executor(
        0, host='192.0.2.1', security=executors.OPEN, timeout_s=1.0
      )

  def test_who_does_not_come_is_named(self):
    made = [self.executor(index, timeout_s=1.0) for index in range(3)]
    addresses = {i: each.address for i, each in enumerate(made)}
    group = groups.group(*executors.star(3), addresses)
    errors = executors.parallel([lambda e=e: e.form(group) for e in made[:2]])
    for error in errors:
      self.assertIsInstance(error, Closed)
      self.assertRegex(str(error), r'2')
    made[2].close()
    later = group._replace(generation=2)
    errors = executors.parallel([lambda e=e: e.form(later) for e in made[:2]])
    for error in errors:
      self.assertIsInstance(error, Closed)

  def test_others_may_come_as_late_as_the_limit_says(self):
    made = [self.executor(index, timeout_s=1.0) for index in range(2)]
    addresses = {i: each.address for i, each in enumerate(made)}
    group = groups.group(*executors.star(2), addresses)

    def late():
      time.sleep(2.2)  # It gets the learner first.
      made[1].form(group, executors.WAIT_S)

    errors = executors.parallel(
      [lambda: made[0].form(group, executors.WAIT_S), late]
    )
    self.assertEqual(errors, [None, None])

  def test_any_time_will_do(self):
    for timeout_s in (1e-4, 1e9):
      with socket.socket() as sock:
        links.Link(sock, 'peer', timeout_s)
        own = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        self.assertBetween(own, 1, 1e9)

  def test_300_workers_may_come_before_one_is_ready(self):
    made, failed = self.executor(0, workers=300), []
    others = loop.Loop(
      'others',
      each=lambda: None,
      tick=lambda: None,
      failed=failed.append,
      ended=lambda _: None,
    )
    self.addCleanup(others.close)
    opened = listener.Door(
      others,
      links.listening(executors.HOST),
      executors.OPEN,
      links.contexts(executors.OPEN),
      index=1,
      workers=300,
      timeout_s=executors.WAIT_S,
      came=lambda link, hello: True,
      short=failed.append,
    )
    self.addCleanup(others.ask, opened.close)
    for worker in range(1, 300):
      hello = links.Hello(1, worker, 0)
      args = made.address, executors.HOST, hello, lambda link: None
      others.call(lambda args=args: opened.connect(*args, failed.append))
    waiting = made._door._waiting
    executors.until(lambda: len(waiting) + len(failed) == 299)
    self.assertEmpty(failed)
    self.assertLen(waiting, 299)

  def test_who_is_of_another_generation_waits_or_is_refused(self):
    made, group = self.formed(2)
    later = group._replace(generation=5)
    forming = threading.Thread(target=made[0].form, args=(later,))
    forming.start()
    time.sleep(0.1)
    made[1].form(later)  # That waits for it.
    forming.join()
    other = self.executor(0)
    stale = group._replace(
      generation=3, addresses={0: other.address, 1: made[1].address}
    )
    with self.assertRaisesRegex(PeerLost, 'it does not expect us'):
      other.form(stale)

  @unittest.skipUnless(shutil.which('openssl'), 'openssl makes certificates')
  def test_tls(self):
    security = certificates.certified('secret')
    made, _ = self.formed(3, security=security)
    pools = np.ones((3, 100_000), np.float32)
    for iteration in range(2):
      results = self.sums(made, iteration, pools, [(0, 10), (10, 100_000)])
      self.assertEqual(results, [None] * 3)
    np.testing.assert_array_equal(pools, np.full_like(pools, 9.0))
    made[1].abandon()
    for each in (made[0], made[2]):
      with self.assertRaises(Abandoned):
        each.begin(2, pools[0], [(0, 100_000)]).wait(executors.WAIT_S)
    for other in (Security('secret'), certificates.certified('secret')):
      strange = self.executor(0, other, timeout_s=1.0)
      addresses = {0: strange.address, 1: made[1].address}
      with self.assertRaises(Closed):
        strange.form(groups.group(*executors.star(2), addresses))
    with self.assertRaisesRegex(ValueError, 'certificate and key'):
      self.executor(0, security._replace(key=b''))


if __name__ == '__main__':
  absltest.main()
