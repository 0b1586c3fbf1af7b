"""Tests for cluster.network.streams."""

import os
import queue
import signal
import socket
import threading
import time

import numpy as np
from absl import logging
from absl.testing import absltest, parameterized

from cluster.network import streams as transport
from cluster.network.streams import Closed, Security
from outputs import transient
from tests.support import certificates
from tests.support.listeners import Listener
from tests.support.streams import (
  HOST,
  OPEN,
  PLAIN,
  WAIT_S,
  TestCase,
  echo,
  random_bytes,
  read,
)

# Listens, and sends one message to each client.
_LISTENER = """
import sys, threading
from cluster.network import messages, streams as transport
from tests.support.listeners import Listener
def handle(stream, hello):
  stream.send('first')
  stream.receive(messages.NOTHING)
port = transport.Port('127.0.0.1', 0, transport.Security())
listener = Listener(port, handle)
print(listener.address, flush=True)
sys.stdin.read()
"""
# Leaves a listener, a stream and a thread that receives to the interpreter.
_LEAVER = """
import threading
from cluster.network import messages, streams as transport
from tests.support.listeners import Listener
def handle(stream, hello):
  stream.receive(messages.NOTHING)
port = transport.Port('127.0.0.1', 0, transport.Security())
listener = Listener(port, handle)
stream = transport.connect(listener.address, 0, transport.Security(), 10.0)
def receive():
  try:
    stream.receive(messages.NOTHING)
  except transport.Closed:
    pass
threading.Thread(target=receive, daemon=True).start()
"""


class EndTest(TestCase):
  def test_an_error_of_the_handler_is_raised_at_the_client(self):
    def handle(stream, hello):
      stream.receive(PLAIN)
      raise RuntimeError('out of memory')

    stream = self.connect(self.listener(handle))
    with self.assertLogs(level='ERROR') as logs:
      stream.send(0)
      for _ in range(2):
        with self.assertRaisesRegex(Closed, 'RuntimeError: out of memory'):
          stream.receive(PLAIN)
    self.assertIn('out of memory', logs.output[0])

  def test_an_error_behind_a_relay_is_raised_at_the_client(self):
    def end(stream, hello):
      raise RuntimeError('out of memory')

    further = self.listener(end)

    def relay(stream, hello):
      self.connect(further).receive(PLAIN)

    with (
      # The far end may fail before the near one is connected.
      self.assertLogs(level='ERROR'),
      self.assertRaisesRegex(Closed, 'out of memory'),
    ):
      self.connect(self.listener(relay)).receive(PLAIN)

  def test_the_reason_of_a_closing_client_is_raised_at_the_listener(self):
    seen = queue.SimpleQueue()

    def handle(stream, hello):
      try:
        while True:
          seen.put(stream.receive(PLAIN).header)
      except Closed as error:
        seen.put(str(error))

    stream = self.connect(self.listener(handle))
    stream.send(1)
    stream.close('all epochs done')
    stream.close()
    self.assertEqual(seen.get(timeout=WAIT_S), 1)
    self.assertRegex(seen.get(timeout=WAIT_S), ': all epochs done$')
    for call in (lambda: stream.receive(PLAIN), lambda: stream.send(0)):
      with self.assertRaises(Closed):
        call()

  @parameterized.parameters((None, 0), ('', 0), ('all epochs done', 1))
  def test_a_client_that_ends_without_a_reason_is_not_logged(self, why, lines):
    listener = self.listener()
    with self.assertLogs(level='INFO') as logs:
      logging.info('So that there is a line.')
      stream = self.connect(listener)
      stream.cancel() if why is None else stream.close(why)
      listener.close(WAIT_S)
    self.assertLen(logs.output, 1 + lines)

  def test_the_reason_arrives_although_a_body_is_not_complete(self):
    begun, continued = threading.Event(), threading.Event()
    seen = queue.SimpleQueue()

    def body():
      yield random_bytes(1000)
      begun.set()
      continued.wait(WAIT_S)
      yield random_bytes(1000)

    def handle(stream, hello):
      try:
        for _ in stream.receive(PLAIN).chunks:
          pass
      except Closed as error:
        seen.put(str(error))

    stream = self.connect(self.listener(handle))

    def send():
      with self.assertRaises(Closed):
        stream.send(0, body(), 2000)

    sender = threading.Thread(target=send)
    sender.start()
    self.assertTrue(begun.wait(WAIT_S))
    stream.close('all epochs done')
    self.assertRegex(seen.get(timeout=WAIT_S), ': all epochs done$')
    continued.set()
    sender.join()

  @parameterized.parameters('close', 'cancel')
  def test_a_thread_that_receives_is_released(self, method):
    stream = self.connect(self.listener())
    seen = queue.SimpleQueue()

    def receive():
      with self.assertRaises(Closed) as caught:
        stream.receive(PLAIN)
      seen.put(caught.exception)

    receiver = threading.Thread(target=receive)
    receiver.start()
    time.sleep(0.1)
    getattr(stream, method)()
    receiver.join(WAIT_S)
    self.assertIsInstance(seen.get_nowait(), Closed)

  def test_the_server_cancels_one_stream_of_a_silent_client(self):
    ends = queue.SimpleQueue()

    def handle(stream, hello):
      ends.put(stream)
      echo(stream, hello)

    listener = self.listener(handle)
    one = self.connect(listener)
    end = ends.get(timeout=WAIT_S)
    other = self.connect(listener)
    for unrelated in socket.socketpair():
      self.enterContext(unrelated)
    end.cancel('no heartbeat')
    with self.assertRaises(Closed):
      one.receive(PLAIN)
    other.send(2)
    self.assertEqual(other.receive(PLAIN).header, 2)

  def test_a_killed_client_is_noticed(self):
    for sends in (False, True):
      seen = queue.SimpleQueue()

      def handle(stream, hello, sends=sends, seen=seen):
        try:
          while sends:
            stream.send(0, [random_bytes(10**6)], 10**6)
          stream.receive(PLAIN)
        except Closed:
          seen.put(time.monotonic())

      process = self.peer(self.listener(handle))
      start = time.monotonic()
      process.kill()
      # The system alone would notice after a minute.
      self.assertLess(seen.get(timeout=WAIT_S) - start, WAIT_S)

  def test_a_killed_listener_is_noticed(self):
    process = self.process(_LISTENER)
    address = process.receive()
    stream = transport.connect(address, 0, OPEN, WAIT_S)
    self.assertEqual(stream.receive(PLAIN).header, 'first')
    timer = threading.Timer(0.2, os.kill, [process.process_id, signal.SIGKILL])
    timer.start()
    start = time.monotonic()
    with self.assertRaises(Closed):
      stream.receive(PLAIN)
    self.assertLess(time.monotonic() - start, WAIT_S)
    with self.assertRaises(Closed):
      while True:
        stream.send(0)
    stream.close()

  @parameterized.parameters(False, True)
  def test_a_stopped_client_does_not_delay_the_end(self, sends):
    ended = threading.Event()

    def handle(stream, hello):
      try:
        while sends:
          stream.send(0, [random_bytes(10**6)], 10**6)
        stream.receive(PLAIN)
      finally:
        ended.set()

    listener = self.listener(handle)
    process = self.peer(listener)
    os.kill(process.process_id, signal.SIGSTOP)
    time.sleep(0.2)
    start = time.monotonic()
    listener.close(0.5)
    self.assertLess(time.monotonic() - start, WAIT_S)
    self.assertTrue(ended.is_set())

  def test_a_client_closes_although_the_listener_is_stopped(self):
    process = self.process(_LISTENER)
    address = process.receive()
    stream = transport.connect(address, 0, OPEN, WAIT_S)
    os.kill(process.process_id, signal.SIGSTOP)
    start = time.monotonic()
    stream.close()
    self.assertLess(time.monotonic() - start, WAIT_S)

  def test_the_interpreter_exits_with_open_streams(self):
    process = self.process(_LEAVER)
    self.assertEqual(process.wait(WAIT_S), 0)


class ConnectTest(TestCase):
  def test_connect_waits_for_the_listener(self):
    with socket.create_server((HOST, 0)) as probe:
      port = probe.getsockname()[1]
    listeners = queue.SimpleQueue()

    def listen():
      own = transport.Port(HOST, port, OPEN)
      listeners.put(Listener(own, echo))

    timer = threading.Timer(0.5, listen)
    timer.start()
    stream = transport.connect(f'{HOST}:{port}', None, OPEN, WAIT_S)
    stream.send('here')
    self.assertEqual(stream.receive(PLAIN).header, 'here')
    stream.close()
    listeners.get(timeout=WAIT_S).close(0.0)

  def test_connect_gives_up(self):
    with socket.create_server((HOST, 0)) as probe:
      address = f'{HOST}:{probe.getsockname()[1]}'
    start = time.monotonic()
    with self.assertRaisesRegex(Closed, 'within 0.5 s'):
      transport.connect(address, None, OPEN, 0.5)
    self.assertBetween(time.monotonic() - start, 0.3, WAIT_S)

  def test_connect_gives_up_on_a_listener_that_does_not_answer(self):
    with socket.create_server((HOST, 0)) as silent:
      address = f'{HOST}:{silent.getsockname()[1]}'
      start = time.monotonic()
      with self.assertRaisesRegex(Closed, 'within 0.5 s'):
        transport.connect(address, None, OPEN, 0.5)
      self.assertBetween(time.monotonic() - start, 0.3, WAIT_S)

  def test_only_the_given_address_is_bound(self):
    port = int(self.listener().address.rpartition(':')[2])
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(('127.0.0.2', port), 1.0)

  def test_a_port_in_use_is_refused(self):
    port = int(self.listener().address.rpartition(':')[2])
    with self.assertRaisesRegex(
      transport.TransportError, f'{port}: .*Address already in use'
    ) as refused:
      Listener(transport.Port(HOST, port, OPEN), echo)
    self.assertTrue(transient.is_transient(refused.exception))

  def test_streams_are_encrypted_and_authenticate_the_listener(self):
    security = certificates.make_security('secret')
    listener = self.listener(security=security)
    stream = self.connect(listener, None, security._replace(key=b''))
    body = random_bytes(10**6)
    sender = threading.Thread(target=stream.send, args=(0, [body], body.size))
    sender.start()
    np.testing.assert_array_equal(read(stream.receive(PLAIN)), body)
    sender.join()
    stream.close()
    others = Security(token='secret'), certificates.make_security('secret')
    for other in (*others, security._replace(tls_name='other.example')):
      with self.assertRaisesRegex(Closed, 'within 0.5 s'):
        transport.connect(listener.address, None, other, 0.5)

  def test_a_certificate_may_name_something_that_is_no_address(self):
    security = certificates.make_security('secret', 'DNS:coordinator.example')
    listener = self.listener(security=security)
    with self.assertRaisesRegex(Closed, 'within 0.5 s'):
      transport.connect(listener.address, None, security, 0.5)
    named = security._replace(key=b'', tls_name='coordinator.example')
    stream = self.connect(listener, None, named)
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)

  def test_a_host_may_be_given_by_name(self):
    security = Security(token='a secret')
    address = self.listener(security=security).address
    address = address.replace(HOST, 'localhost')
    stream = transport.connect(address, None, security, WAIT_S)
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)
    stream.close()
    with self.assertRaisesRegex(Closed, 'within 0.2 s'):
      transport.connect('no.such.host.invalid:1', None, security, 0.2)

  @parameterized.parameters('0.0.0.0', '', 'localhost', '::')
  def test_a_host_that_is_not_the_address_of_one_interface_is_refused(
    self, host
  ):
    with self.assertRaisesRegex(ValueError, 'host: expected'):
      transport.Port(host, 0, OPEN)

  def test_a_certificate_without_its_key_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'certificate and key'):
      Listener(transport.Port(HOST, 0, Security(certificate=b'PEM')), echo)


class InterfaceAddressTest(absltest.TestCase):
  def test_the_loopback_interface_has_its_address(self):
    self.assertEqual(transport.interface_address('lo'), '127.0.0.1')


if __name__ == '__main__':
  absltest.main()
