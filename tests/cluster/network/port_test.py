"""Tests for cluster.network.port: services, strangers, and their limits."""

import contextlib
import gc
import itertools
import os
import queue
import socket
import ssl
import struct
import threading
import time
import tracemalloc
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.network import handshake, port
from cluster.network import streams as transport
from cluster.network.port import Port
from cluster.network.rate_limited_log import RateLimitedLog
from cluster.network.streams import Closed, Security
from tests.support import certificates, descriptors, requires
from tests.support.listeners import Listener
from tests.support.streams import (
  HOST,
  PLAIN,
  WAIT_S,
  TestCase,
  echo,
  random_bytes,
  read,
  wait_until,
)

_OURS = Security(token='a secret that both ends know')
_REQUEST = b'syncope4' + b'control'.ljust(32) + bytes(32)


# Offers a service, whose event loop fails after a line of standard input.
_FAILING = """
import sys
import time
from cluster.network import port, streams
from tests.support.listeners import Listener
own = port.Port('127.0.0.1', 0, streams.Security())
listener = Listener(own, lambda stream, hello: time.sleep(60.0))
print(listener.address, flush=True)
sys.stdin.readline()
def fail():
  raise RuntimeError('No clock.')
time.monotonic = fail
time.sleep(60.0)
"""


class _Case(TestCase):
  def listener(self, handle=echo, security=_OURS, wait_s=60.0, host=HOST):
    own = Port(host, 0, security, wait_s=wait_s)
    listener = Listener(own, handle)
    self.addCleanup(listener.close, 0.0)
    return listener

  def stranger(self, listener):
    sock = socket.create_connection(_parts(listener.address), WAIT_S)
    self.addCleanup(sock.close)
    return sock

  def check(self, listener, security=_OURS):
    """Checks that an authorised client is served."""
    stream = self.connect(listener, None, security)
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)
    stream.close()


class ServicesTest(_Case):
  def test_services_share_a_port(self):
    own = Port(HOST, 0, _OURS)
    answers = {}
    for name in ('control', 'pushes'):
      listener = Listener(
        own, lambda stream, _, name=name: stream.send(name), service=name
      )
      self.addCleanup(listener.close, 0.0)
      answers[listener.address] = name
    self.assertLen(answers, 1)
    for name in ('control', 'pushes'):
      stream = transport.connect(own.address, None, _OURS, WAIT_S, service=name)
      self.assertEqual(stream.receive(PLAIN).header, name)
      stream.close()

  def test_a_port_is_open_while_a_service_is_offered(self):
    own, took = Port(HOST, 0, _OURS), queue.SimpleQueue()
    with self.assertRaisesRegex(RuntimeError, 'not open'):
      _ = own.address
    own.offer('one', took.put)
    own.offer('two', took.put)
    with self.assertRaisesRegex(ValueError, 'not offered yet, got .one.'):
      own.offer('one', took.put)
    address = own.address
    own.withdraw('one')
    handshake.open_connection(address, _OURS, 'two', timeout_s=WAIT_S).close()
    took.get(timeout=WAIT_S).close()
    with self.assertRaisesRegex(Closed, 'has no service one'):
      handshake.open_connection(address, _OURS, 'one', timeout_s=WAIT_S)
    own.withdraw('two')
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(_parts(address), 1.0)

  def test_a_given_port_is_used_and_can_be_used_again(self):
    with socket.create_server((HOST, 0)) as probe:
      number = probe.getsockname()[1]
    own = Port(HOST, number, _OURS)
    for _ in range(2):
      with Listener(own, echo) as listener:
        self.assertEqual(listener.address, f'{HOST}:{number}')
        self.check(listener)

  @parameterized.parameters(False, True)
  def test_streams_use_ipv6(self, encrypted):
    requires.host(socket.has_dualstack_ipv6(), 'There is no IPv6.')
    security = _OURS
    if encrypted:
      security = certificates.make_security(_OURS.token, 'IP:::1')
    listener = self.listener(security=security, host='::1')
    self.assertRegex(listener.address, r'^\[::1\]:\d+$')
    self.check(listener, security)
    number = listener.address.rpartition(':')[2]
    with self.assertRaises(OSError):
      socket.create_connection((HOST, int(number)), 1.0)

  def test_both_ends_of_an_encrypted_stream_send_at_once(self):
    security = certificates.make_security(_OURS.token)
    bodies = [random_bytes(10**6 + n) for n in range(4)]

    def send(stream):
      for body in bodies:
        stream.send(0, transport.chunked([body], 10**5), body.size)

    def receive(stream):
      return all((read(stream.receive(PLAIN)) == body).all() for body in bodies)

    def handle(stream, hello):
      sender = threading.Thread(target=send, args=[stream])
      sender.start()
      equal = receive(stream)
      sender.join()
      stream.send(equal)
      stream.receive(PLAIN)

    stream = self.connect(self.listener(handle, security), None, security)
    sender = threading.Thread(target=send, args=[stream])
    sender.start()
    self.assertTrue(receive(stream))
    sender.join()
    self.assertTrue(stream.receive(PLAIN).header)

  def test_a_port_that_fails_ends_the_process(self):
    process = self.process(_FAILING)
    address = process.receive()
    stream = transport.connect(address, None, Security(), WAIT_S)
    self.addCleanup(stream.close)
    process.send('fail')
    socket.create_connection(_parts(address), WAIT_S).close()
    with self.assertRaises(Closed):
      stream.receive(PLAIN)
    self.assertEqual(process.wait(WAIT_S), os.EX_TEMPFAIL)
    self.assertRegex(process.text, f'The port {address} has failed.*No clock')

  def test_connections_have_tcp_keepalive_and_no_delay(self):
    accepted = queue.SimpleQueue()
    own = Port(HOST, 0, _OURS)
    own.offer('control', accepted.put)
    near = handshake.open_connection(
      own.address, _OURS, 'control', timeout_s=WAIT_S
    )
    far = accepted.get(timeout=WAIT_S)
    for end in (near, far):
      options = [
        end.sock.getsockopt(level, option)
        for level, option in (
          (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
          (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
          (socket.IPPROTO_TCP, socket.TCP_NODELAY),
        )
      ]
      self.assertEqual(options, [1, 20, 1])
      end.close()
    own.withdraw('control')


class StrangersTest(_Case):
  def test_a_silent_peer_is_cut_off_and_others_stay(self):
    listener = self.listener(wait_s=0.5)
    stream = self.connect(listener, None, _OURS)
    with self.assertLogs(level='WARNING') as logs:
      silent, start = self.stranger(listener), time.monotonic()
      _read_to_the_end(silent)
      self.assertBetween(time.monotonic() - start, 0.4, WAIT_S)
      wait_until(lambda: logs.output)
    self.assertIn('refused: no handshake within 0.5 s', logs.output[0])
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)

  def test_a_slow_peer_is_cut_off(self):
    listener, start = self.listener(wait_s=0.5), time.monotonic()
    with self.assertLogs(level='WARNING'), contextlib.suppress(OSError):
      slow = self.stranger(listener)
      for byte in b'syncope4' * 100:
        slow.sendall(bytes([byte]))
        time.sleep(0.02)
      _read_to_the_end(slow)
    self.assertLess(time.monotonic() - start, 8.0)

  def test_an_authenticated_peer_without_a_hello_is_cut_off(self):
    listener = self.listener(wait_s=0.5)
    connection = handshake.open_connection(
      listener.address, _OURS, 'control', timeout_s=WAIT_S
    )
    connection.sock.setblocking(True)
    with self.assertLogs(level='WARNING') as logs:
      _read_to_the_end(connection.sock)
      wait_until(lambda: logs.output)
    self.assertIn('refused: no hello within 0.5 s', logs.output[0])
    connection.close()
    wait_until(lambda: not listener.open_streams())

  def test_random_ones_of_too_many_are_dropped(self):
    dropped = set()
    for _ in range(4):
      with mock.patch.object(port, '_MAX_PENDING_OF_HOST', 4):
        listener = self.listener()
        ends = [self.stranger(listener) for _ in range(7)]
        wait_until(lambda ends=ends: sum(map(_has_ended, ends)) == 3)
        dropped |= {n for n, end in enumerate(ends) if _has_ended(end)}
        self.check(listener)
    self.assertNotEqual(dropped, {0, 1, 2})  # Not always the oldest.

  def test_a_flooding_address_does_not_drop_those_of_others(self):
    with mock.patch.object(port, '_MAX_PENDING', 8):
      listener = self.listener()
      other = socket.create_connection(
        _parts(listener.address), source_address=('127.0.0.2', 0)
      )
      with other:
        ends = [self.stranger(listener) for _ in range(30)]
        wait_until(lambda: sum(map(_has_ended, ends)) == 23)
        self.assertFalse(_has_ended(other))

  def test_an_authenticated_peer_with_a_slow_hello_is_cut_off(self):
    listener, start = self.listener(wait_s=0.5), time.monotonic()
    connection = handshake.open_connection(
      listener.address, _OURS, 'control', timeout_s=WAIT_S
    )
    connection.sock.setblocking(True)
    with self.assertLogs(level='WARNING'), contextlib.suppress(OSError):
      for _ in range(100):
        connection.sock.sendall(b'\1')
        time.sleep(0.05)
    self.assertLess(time.monotonic() - start, 4.0)
    connection.close()
    wait_until(lambda: not listener.open_streams())

  @parameterized.parameters(False, True)
  def test_resets_at_every_byte_leave_nothing(self, encrypted):
    security, first = _OURS, _REQUEST
    if encrypted:
      security = certificates.make_security(_OURS.token)
      first = _first_tls_bytes()
    listener = self.listener(security=security)
    self.check(listener, security)
    num_threads = threading.active_count()
    num_files = len(os.listdir('/proc/self/fd'))
    linger = struct.pack('ii', 1, 0)
    for size in range(0, len(first) + 1, 8 if encrypted else 1):
      with socket.create_connection(_parts(listener.address)) as sock:
        sock.sendall(first[:size])
        if size == len(first):
          sock.recv(32)  # The listener's answer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wait_until(lambda: len(os.listdir('/proc/self/fd')) <= num_files)
    self.assertLessEqual(threading.active_count(), num_threads)
    self.check(listener, security)

  def test_512_strangers_take_at_most_2_mib(self):
    listener = self.listener()
    self.check(listener)
    socks = [socket.socket() for _ in range(512)]
    first = _REQUEST
    tracemalloc.start()
    self.addCleanup(tracemalloc.stop)
    before, _ = tracemalloc.get_traced_memory()
    for number, sock in enumerate(socks):
      self.addCleanup(sock.close)
      sock.bind((f'127.0.1.{number // 200 + 1}', 0))
      sock.connect(_parts(listener.address))
      sock.sendall(first)
    for sock in socks:
      sock.settimeout(WAIT_S)
      sock.recv(32)
      sock.sendall(bytes(31))  # Of 32 bytes of a proof.
    time.sleep(0.5)
    self.assertFalse(any(map(_has_ended, socks)))
    held = tracemalloc.get_traced_memory()[0] - before
    self.assertLess(held, 2**21)

  def test_32_strangers_with_tls_take_at_most_2_mib(self):
    security = certificates.make_security(_OURS.token)
    listener, first = self.listener(security=security), _first_tls_bytes()
    self.check(listener, security)
    before = _rss_bytes()
    for _ in range(port._MAX_TLS):
      sock = self.stranger(listener)
      sock.sendall(first)
      self.assertNotEmpty(sock.recv(100))  # The listener has begun.
    self.assertLess(_rss_bytes() - before, 2**21)

  @parameterized.parameters((False, 1), (False, 40), (True, 1))
  def test_2000_silent_connections_delay_nobody(self, encrypted, num_hosts):
    security = _OURS
    if encrypted:
      security = certificates.make_security(_OURS.token)
    listener = self.listener(security=security)
    address, over = _parts(listener.address), threading.Event()
    self.check(listener, security)
    num_files = len(os.listdir('/proc/self/fd'))
    num_threads = threading.active_count()
    opened = []
    self.addCleanup(lambda: [sock.close() for sock in opened])
    self.addCleanup(over.set)

    def flood():
      for number in itertools.count():
        if over.is_set():
          return
        source = f'127.0.1.{number % num_hosts + 1}', 0
        sock = socket.create_connection(address, WAIT_S, source)
        if len(opened) % 2 and encrypted:  # The beginning of a TLS handshake.
          sock.send(b'\x16\x03\x01\x02\x00\x01')
        opened.append(sock)
        if len(opened) > 2500:
          opened.pop(0).close()

    with self.assertLogs(level='WARNING') as logs:
      thread = threading.Thread(target=flood)
      thread.start()
      wait_until(lambda: len(opened) >= 2000)
      took_s = []
      for _ in range(5):
        start = time.monotonic()
        self.check(listener, security)
        took_s.append(time.monotonic() - start)
      over.set()
      thread.join()
    self.assertLess(sorted(took_s)[2], 1.0, took_s)
    self.assertLess(len(logs.output), 30)
    for sock in opened:
      sock.close()
    wait_until(lambda: len(os.listdir('/proc/self/fd')) <= num_files + 1)
    wait_until(lambda: threading.active_count() <= num_threads)

  def test_a_first_message_of_512_mib_costs_no_memory(self):
    listener, block = self.listener(), bytes(2**20)
    self.check(listener)
    before, most = _rss_bytes(), 0
    for _ in range(6):
      sock = self.stranger(listener)
      with contextlib.suppress(ConnectionError):
        for _ in range(512):
          sock.sendall(block)
          most = max(most, _rss_bytes())
    self.assertLess(most - before, 2**22)

  def test_few_strangers_use_tls_at_once(self):
    security = certificates.make_security(_OURS.token)
    listener = self.listener(security=security)
    context = ssl.create_default_context(cadata=security.certificate.decode())
    ends = []
    for _ in range(port._MAX_TLS + 8):
      end = context.wrap_socket(self.stranger(listener), server_hostname=HOST)
      self.addCleanup(end.close)
      end.setblocking(False)
      ends.append(end)
    wait_until(lambda: sum(map(_has_ended_tls, ends)) == 8)
    self.check(listener, security)

  def test_handshakes_of_tls_of_a_flooding_address_drop_no_others(self):
    security = certificates.make_security(_OURS.token)
    listener, first = self.listener(security=security), _first_tls_bytes()
    other = socket.create_connection(
      _parts(listener.address), source_address=('127.0.0.2', 0)
    )
    with other:
      other.sendall(first)
      other.settimeout(WAIT_S)
      self.assertNotEmpty(other.recv(2**16))
      for _ in range(8 * port._MAX_TLS):
        sock = self.stranger(listener)
        sock.sendall(first)
        sock.recv(2**16)
      other.setblocking(False)
      with self.assertRaises(BlockingIOError):  # Still open.
        while other.recv(2**16):
          pass

  @parameterized.parameters(
    _REQUEST,
    b'\x16\x03\x01\xff\xff' + bytes(10),
    b'\x16\x03\x01\x00\x20' + bytes(40),
  )
  def test_a_stranger_without_tls_is_refused_at_once(self, data):
    security = certificates.make_security(_OURS.token)
    listener = self.listener(security=security)
    with self.assertLogs(level='WARNING') as logs:
      sock = self.stranger(listener)
      sock.sendall(data)
      _read_to_the_end(sock)
      wait_until(lambda: logs.output)
    self.assertRegex(logs.output[0], 'refused: .*TLS|refused: .*SSL')
    self.check(listener, security)

  def test_nothing_is_left_of_closed_ports(self):
    # The thread of time limits stays; so may threads of other tests.
    with Listener(Port(HOST, 0, _OURS), echo) as listener:
      self.connect(listener, None, _OURS).close()
    gc.collect()
    num_threads = threading.active_count()
    num_files = len(os.listdir('/proc/self/fd'))
    for _ in range(5):
      with Listener(Port(HOST, 0, _OURS), echo) as listener:
        stream = self.connect(listener, None, _OURS)
        self.stranger(listener).close()
        stream.close()
    wait_until(lambda: threading.active_count() <= num_threads)
    wait_until(lambda: len(os.listdir('/proc/self/fd')) <= num_files)

  def test_a_port_that_cannot_start_a_thread_leaves_nothing_open(self):
    num_files = len(os.listdir('/proc/self/fd'))
    with mock.patch.object(threading.Thread, 'start') as start:
      start.side_effect = RuntimeError("can't start new thread")
      with self.assertRaisesRegex(transport.TransportError, 'new thread'):
        Port(HOST, 0, _OURS).offer('control', lambda _: None)
    self.assertLen(os.listdir('/proc/self/fd'), num_files)

  def test_an_attempt_behind_the_end_of_a_port_fails(self):
    own, errors = Port(HOST, 0, _OURS), queue.SimpleQueue()
    own.offer('control', lambda _: None)
    address, acceptor = own.address, own._acceptor
    attempt = port.Attempt(
      address,
      HOST,
      b'control'.ljust(32),
      b'',
      time.monotonic() + WAIT_S,
      None,
      errors.put,
    )
    own.withdraw('control')
    acceptor._open(attempt)
    self.assertIsInstance(errors.get(timeout=WAIT_S), Closed)

  def test_a_port_without_threads_closes_connections_and_recovers(self):
    listener = self.listener()
    with mock.patch.object(threading.Thread, 'start') as start:
      start.side_effect = RuntimeError("can't start new thread")
      with self.assertLogs(level='ERROR') as logs:
        end = handshake.open_connection(
          listener.address, _OURS, 'control', timeout_s=WAIT_S
        )
        end.sock.settimeout(WAIT_S)
        self.assertEqual(end.sock.recv(1), b'')
        end.close()
        wait_until(lambda: logs.output)  # It closes before it logs.
    self.assertEmpty(listener.open_streams())
    self.check(listener)

  def test_a_port_without_descriptors_recovers(self):
    listener = self.listener()
    with self.assertLogs(level='WARNING') as logs, socket.socket() as sock:
      with descriptors.exhaust():
        sock.connect(_parts(listener.address))
        wait_until(lambda: logs.output)
      self.assertIn('no connection is accepted', logs.output[0])
      sock.settimeout(WAIT_S)
      sock.sendall(b'GET / HTTP/1.1' + bytes(100))
      with contextlib.suppress(ConnectionResetError):
        self.assertEqual(sock.recv(1), b'')
    self.check(listener)


class BrokenPeersTest(_Case):
  """Authorised peers that stop or break in the middle of a message."""

  def setUp(self):
    super().setUp()
    self.errors = queue.SimpleQueue()

  def handle(self, stream, hello):
    try:
      while True:
        read(stream.receive(PLAIN))
    except Closed as error:
      self.errors.put(str(error))

  def half_message(self, encrypted=False):
    """Returns the socket of a stream that has sent half of a message."""
    security = _OURS
    if encrypted:
      security = certificates.make_security(_OURS.token)
    listener = self.listener(self.handle, security)
    stream = self.connect(listener, None, security)
    sent = threading.Event()

    def produce():
      yield random_bytes(1000)
      sent.set()
      threading.Event().wait(0.5)
      raise RuntimeError('It stops.')

    def send():
      with contextlib.suppress(RuntimeError, Closed):
        stream.send(0, produce(), 2000)

    threading.Thread(target=send, daemon=True).start()
    sent.wait(WAIT_S)
    return listener, stream, stream._connection.sock

  @parameterized.parameters(False, True)
  def test_a_reset_ends_the_stream(self, encrypted):
    _, _, sock = self.half_message(encrypted)
    linger = b'\1\0\0\0\0\0\0\0'
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    sock.close()
    # OpenSSL may report a reset as the end.
    why = 'reset|connection ended' if encrypted else 'reset'
    self.assertRegex(self.errors.get(timeout=WAIT_S), why)

  @parameterized.parameters(False, True)
  def test_a_half_open_connection_ends_the_stream(self, encrypted):
    _, _, sock = self.half_message(encrypted)
    socket.socket.shutdown(sock, socket.SHUT_WR)
    why = 'EOF|connection ended' if encrypted else 'connection ended'
    self.assertRegex(self.errors.get(timeout=WAIT_S), why)

  @parameterized.parameters(False, True)
  def test_a_peer_that_stops_is_cancelled_by_the_other_end(self, encrypted):
    listener, stream, _ = self.half_message(encrypted)
    (end,) = listener.open_streams()
    end.cancel('too slow')
    self.assertIn('too slow', self.errors.get(timeout=WAIT_S))
    with self.assertRaises(Closed):
      stream.receive(PLAIN)


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


def _parts(address):
  host, _, number = address.rpartition(':')
  return host, int(number)


def _first_tls_bytes():
  """Returns what a client of TLS sends first."""
  context = ssl.create_default_context()
  incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
  with contextlib.suppress(ssl.SSLWantReadError):
    context.wrap_bio(incoming, outgoing, server_hostname=HOST).do_handshake()
  return outgoing.read()


def _has_ended(sock):
  """Returns whether the other end has closed a connection."""
  try:
    raw = socket.socket(fileno=os.dup(sock.fileno()))
    with raw:
      raw.setblocking(False)
      return not raw.recv(1, socket.MSG_PEEK)
  except BlockingIOError:
    return False
  except ConnectionError:
    return True


def _has_ended_tls(sock):
  try:
    return not sock.recv(1)
  except ssl.SSLWantReadError:
    return False
  except OSError:
    return True


def _read_to_the_end(sock):
  with contextlib.suppress(ConnectionResetError):
    while sock.recv(4096):
      pass


def _rss_bytes():
  with open('/proc/self/statm') as file:
    return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


if __name__ == '__main__':
  absltest.main()
