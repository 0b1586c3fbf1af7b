"""Tests for cluster.network.admission: connections without a handshake."""

import contextlib
import socket
import threading
import time
from unittest import mock

from absl.testing import absltest

from cluster.network import admission as admission
from cluster.network import sockets
from cluster.network import streams as transport
from cluster.network.rate_limited_log import RateLimitedLog
from cluster.network.streams import Closed, Security
from tests.support.relays import Relay
from tests.support.streams import (
  HOST,
  OPEN,
  PLAIN,
  WAIT_S,
  TestCase,
  echo,
  random_bytes,
)

_OURS = Security(token='a secret that both ends know')


class PendingConnectionsTest(TestCase):
  def listener(self, handle=echo, security=_OURS, wait_s=0.5):
    listener = transport.Listener(HOST, 0, handle, security, wait_s=wait_s)
    self.addCleanup(listener.close, 0.0)
    return listener

  def test_a_silent_peer_is_cut_off_and_others_stay(self):
    listener = self.listener()
    stream = self.connect(listener, None, _OURS)
    with self.assertLogs(level='WARNING') as logs:
      with self._stranger(listener) as silent:
        start = time.monotonic()
        _read_to_the_end(silent)
        self.assertBetween(time.monotonic() - start, 0.4, WAIT_S)
      with self._stranger(listener) as rude:
        rude.sendall(b'\x16' * 100)
        _read_to_the_end(rude)
    self.assertIn('refused: no handshake within 0.5 s', logs.output[0])
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)

  def test_a_peer_that_stops_during_the_handshake_keeps_no_thread(self):
    listener = self.listener()
    self.connect(listener, None, _OURS)
    stopped = threading.Event()

    def stop(stream, *_):
      stream.send({'nonce': '0' * 64})
      stream.receive(PLAIN)
      stopped.wait(10.0)
      stream.receive(PLAIN)

    def connect():
      with contextlib.suppress(transport.TransportError):
        transport.connect(listener.address, None, OPEN, 2.0)

    clients = [threading.Thread(target=connect) for _ in range(8)]
    with mock.patch.object(transport, 'send_hello', stop):
      for client in clients:
        client.start()
      server = listener._server
      _until(lambda: server._pending._calls == 8)
      _until(lambda: not server._pending._calls)
    self.assertEqual(server._pending._calls, 0)
    _until(lambda: len(server.open_streams()) == 1)
    self.assertLen(server.open_streams(), 1)
    stopped.set()
    for client in clients:
      client.join()

  def test_a_first_message_is_not_taken_in_whole(self):
    listener = self.listener(wait_s=60.0)
    whole = 2**28

    def flood(stream, *_):
      body = random_bytes(2**20)
      stream.send(0, (body for _ in range(whole >> 20)), whole)
      stream.receive(PLAIN)

    with Relay(listener.address) as relay:
      with (
        mock.patch.object(transport, 'send_hello', flood),
        self.assertLogs(level='WARNING') as logs,
        self.assertRaises(Closed),
      ):
        transport.connect(relay.address, None, OPEN, 1.0)
      self.assertLess(relay.passed, whole // 2)
    self.assertIn('refused: ', logs.output[0])

  def test_the_oldest_of_too_many_are_cut_off(self):
    with (
      mock.patch.object(admission, '_MOST', 4),
      contextlib.ExitStack() as stack,
    ):
      listener = self.listener(wait_s=60.0)
      pending, ends, seen = listener._server._pending, [], set()
      for _ in range(7):
        ends.append(stack.enter_context(self._stranger(listener)))
        # One at a time: of those that come between two looks, any may be first.
        _until(lambda: set(pending._since) - seen)
        seen.update(pending._since)
      for end in ends[:3]:
        _read_to_the_end(end)
      for end in ends[3:]:
        end.settimeout(0.05)
        with self.assertRaises(TimeoutError):
          _read_to_the_end(end)
      # A client with the token is admitted.
      self.connect(listener, None, _OURS)

  def test_pending_handshakes_are_bounded(self):
    listener = self.listener()
    listener._server._pending._calls = admission._MOST
    with (
      self.assertLogs(level='WARNING') as logs,
      self.assertRaises(Closed),
    ):
      transport.connect(listener.address, None, _OURS, 0.2)
    self.assertIn('too many handshakes are pending', logs.output[0])

  def test_the_kernel_lists_the_connections_of_a_port(self):
    listener = self.listener(wait_s=60.0)
    port = int(listener.address.rpartition(':')[2])
    with contextlib.ExitStack() as stack:
      for _ in range(3):
        stack.enter_context(self._stranger(listener))
      self.connect(listener, None, _OURS)
      _until(lambda: len(sockets.of_port(port)) == 4)
      ends = set()
      for number, name in sockets.numbers().items():
        with contextlib.suppress(OSError), sockets.opened(name) as end:
          if end.port == port and end.peer:
            ends.add(number)
      self.assertLen(ends, 4)
      self.assertEqual(sockets.of_port(port), ends)

  def test_sockets_are_only_checked_after_a_new_connection(self):
    listener = self.listener(wait_s=60.0)
    pending = listener._server._pending
    port = int(listener.address.rpartition(':')[2])
    self.connect(listener, None, _OURS)
    _until(lambda: sockets.of_port(port) <= pending._checked)
    with mock.patch.object(
      sockets, 'numbers', wraps=sockets.numbers
    ) as numbers:
      time.sleep(2 * admission._POLL_S)
      numbers.assert_not_called()
      with self._stranger(listener):
        _until(lambda: pending._since)
      numbers.assert_called()

  def test_sockets_are_checked_if_the_kernel_has_no_list(self):
    with (
      mock.patch.object(sockets, 'of_port', side_effect=OSError),
      self._stranger(self.listener()) as silent,
    ):
      _read_to_the_end(silent)

  def test_admitted_connections_have_tcp_keepalive(self):
    listener = self.listener()
    stream = self.connect(listener, None, _OURS)
    port = int(listener.address.rpartition(':')[2])

    def kept():
      found = []
      for name in sockets.numbers().values():
        with contextlib.suppress(OSError), sockets.opened(name) as end:
          if end.peer and port in (end.port, int(end.peer.split(':')[1])):
            found.append(
              [
                end._handle.getsockopt(level, option)
                for level, option in (
                  (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                  (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                  (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                )
              ]
            )
      return found

    _until(lambda: kept() == [[1, 20, 60000]] * 2)
    self.assertEqual(kept(), [[1, 20, 60000]] * 2)
    stream.close()

  def _stranger(self, listener):
    host, _, port = listener.address.rpartition(':')
    return socket.create_connection((host, int(port)), WAIT_S)


class RateLimitedLogTest(absltest.TestCase):
  def test_a_line_per_interval_counts_the_suppressed_ones(self):
    times = iter([0.0, 0.0, 0.5, 0.9, 1.1, 1.1, 1.2])
    log = RateLimitedLog(clock=lambda: next(times))
    with self.assertLogs(level='WARNING') as logs:
      for n in range(5):
        log.write(f'line {n}')
      log.close()
      log.close()
    self.assertEqual(
      [line.rpartition(':')[2] for line in logs.output],
      [
        'line 0',
        'line 3 (2 more of these since the last line)',
        '1 more of these since the last line',
      ],
    )


def _read_to_the_end(end):
  with contextlib.suppress(ConnectionResetError):
    while end.recv(4096):
      pass


def _until(happened):
  deadline = time.monotonic() + WAIT_S
  while not happened() and time.monotonic() < deadline:
    time.sleep(0.02)


if __name__ == '__main__':
  absltest.main()
