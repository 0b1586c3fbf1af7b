"""Tests for cluster.network.loop_streams, whose other ends are in threads."""

import os
import queue
import signal
import socket
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from cluster.network import frames
from cluster.network import streams as transport
from cluster.network.connection import Connection
from cluster.network.errors import Closed, Corrupt
from cluster.network.loop_streams import LoopListener, LoopStream
from cluster.network.messages import encode_header
from cluster.network.socket_loop import SocketLoop
from cluster.network.streams import Stream
from system import threads
from tests.support import certificates
from tests.support.streams import (
  HOST,
  OPEN,
  PLAIN,
  WAIT_S,
  TestCase,
  random_bytes,
  read,
  wait_until,
)


def _echo(stream, hello):
  """Sends back all messages; says what is wrong with damaged ones."""
  del hello
  while True:
    try:
      header, size_bytes = yield from stream.receive(PLAIN)
      body = np.empty(size_bytes, np.uint8)
      yield from stream.fill(body)
    except Corrupt as error:
      stream.send(str(error))
    else:
      stream.send(header, transport.chunked([body], 10**6), size_bytes)


class LoopTestCase(TestCase):
  def listener(self, handle=_echo, security=OPEN, wait_s=WAIT_S):
    port = transport.Port(HOST, 0, security, wait_s=wait_s)
    listener = LoopListener(port, handle)
    self.addCleanup(listener.close, 0.0)
    return listener


class MessagesTest(LoopTestCase):
  @parameterized.parameters(0, 1, 2**14, 10**6, 5 * 10**6 + 1)
  def test_bodies_come_back_unchanged(self, size):
    stream, body = self.connect(self.listener()), random_bytes(size)
    for number in range(3):
      sender = threading.Thread(
        target=stream.send, args=(number, transport.chunked([body]), size)
      )
      sender.start()
      message = stream.receive(PLAIN)
      self.assertEqual(message.header, number)
      np.testing.assert_array_equal(read(message), body)
      sender.join()

  def test_streams_add_no_threads(self):
    listener = self.listener()
    streams = [self.connect(listener)]
    before = threading.active_count()
    streams += [self.connect(listener) for _ in range(64)]
    for number, stream in enumerate(streams):
      stream.send(number)
    for number, stream in enumerate(streams):
      self.assertEqual(stream.receive(PLAIN).header, number)
    self.assertEqual(threading.active_count(), before)

  def test_encrypted_bodies_come_back_unchanged(self):
    security = certificates.make_security('secret')
    listener = self.listener(security=security)
    stream = self.connect(listener, None, security._replace(key=b''))
    body = random_bytes(10**6)
    for number in range(4):
      sender = threading.Thread(
        target=stream.send, args=(number, transport.chunked([body]), body.size)
      )
      sender.start()
      np.testing.assert_array_equal(read(stream.receive(PLAIN)), body)
      sender.join()

  def test_chunks_may_follow_their_message_from_another_thread(self):
    ends = queue.SimpleQueue()

    def handle(stream, hello):
      ends.put(stream)
      yield from stream.receive(PLAIN)

    stream = self.connect(self.listener(handle))
    end, body = ends.get(timeout=WAIT_S), random_bytes(10)
    end.send('parts', [body[:3]], 10)
    message = stream.receive(PLAIN)
    self.assertLen(next(message.chunks), 3)
    end.send_chunk(body[3:])
    np.testing.assert_array_equal(next(message.chunks), body[3:])

  def test_a_peer_that_does_not_read_delays_no_other(self):
    listener = self.listener()
    idle, other = self.connect(listener), self.connect(listener)
    body = random_bytes(10**7)
    stuck = threading.Thread(
      target=idle.send, args=(0, transport.chunked([body]), body.size)
    )
    stuck.start()
    for number in range(20):
      other.send(number)
      self.assertEqual(other.receive(PLAIN).header, number)
    np.testing.assert_array_equal(read(idle.receive(PLAIN)), body)
    stuck.join()

  def test_a_peer_that_never_reads_is_lost(self):
    ends, reasons = queue.SimpleQueue(), queue.SimpleQueue()

    def handle(stream, hello):
      ends.put(stream)
      try:
        yield from stream.receive(PLAIN)
      except Closed as error:
        reasons.put(str(error))
        raise

    self.connect(self.listener(handle))
    end, text = ends.get(timeout=WAIT_S), 'x' * 2000
    for _ in range(2**15):
      end.send(text)
    self.assertIn('messages wait for the peer', reasons.get(timeout=WAIT_S))

  def test_a_message_of_single_bytes_arrives(self):
    loop, near = self._raw()
    text = encode_header('hello', 3)
    sent = frames.pack_header(frames.TEXT, 0, text) + text
    sent += frames.pack_header(frames.CHUNK, 1, b'abc') + b'abc'
    for number in range(len(sent)):
      near.sendall(sent[number : number + 1])
      loop.run(lambda: None)
    stream = Stream(Connection(near, 'far'))
    self.addCleanup(stream.close)
    message = stream.receive(PLAIN)
    self.assertEqual(message.header, 'hello')
    self.assertEqual(bytes(read(message)), b'abc')

  def _raw(self):
    """Returns a loop, and a socket whose other end echoes in the loop."""
    loop = SocketLoop(
      'test',
      after_events=lambda: None,
      tick=lambda: None,
      on_error=lambda error: None,
      on_exit=lambda error: None,
    )
    self.addCleanup(loop.close)
    near, far = socket.socketpair()

    def begin():
      stream = LoopStream(loop, Connection(far, 'near'))
      stream.run(_end_quietly(stream), lambda: None)

    loop.post(begin)
    return loop, near


def _end_quietly(stream):
  try:
    yield from _echo(stream, None)
  except Closed:
    yield from stream.close('')


class _Connection:
  """A connection whose TLS holds decrypted bytes when it is asked."""

  peer, sock, is_encrypted = 'peer', None, True

  def __init__(self, is_locked):
    self.uses = []  # Whether a lock was held at each use of TLS.
    self._is_locked = is_locked

  @property
  def has_decrypted(self):
    self.uses.append(self._is_locked())
    return len(self.uses) < 4

  def receiver(self):
    def receive(buffers):
      self.uses.append(self._is_locked())
      return len(buffers[0])

    return receive

  def sender(self):
    return self.receiver()

  def shut_down(self, how=None):
    """Returns at once."""

  def close(self):
    """Returns at once."""


class TlsTest(absltest.TestCase):
  def test_one_thread_at_a_time_uses_the_state_of_tls(self):
    locks, make, posted = [], threading.Lock, []
    loop = mock.create_autospec(SocketLoop, instance=True)
    loop.post.side_effect = posted.append

    def make_lock():
      locks.append(make())
      return locks[-1]

    connection = _Connection(lambda: any(lock.locked() for lock in locks))
    with mock.patch.object(threads, 'Lock', make_lock):
      stream = LoopStream(loop, connection)

    def serve():
      while True:
        yield [memoryview(bytearray(8))]

    stream.run(serve(), lambda: None)
    stream.send('text')
    for function in posted:
      function()
    self.assertGreater(len(connection.uses), 5)
    self.assertTrue(all(connection.uses), connection.uses)


class DamageTest(LoopTestCase):
  def test_a_damaged_payload_costs_one_message(self):
    stream, body = self.connect(self.listener()), random_bytes(1000)
    stream.send(0, [body], body.size, spoil='last')
    self.assertIn('another checksum', stream.receive(PLAIN).header)
    stream.send(1, [body], body.size)
    message = stream.receive(PLAIN)
    self.assertEqual(message.header, 1)
    np.testing.assert_array_equal(read(message), body)

  def test_a_damaged_header_ends_the_stream(self):
    def handle(stream, hello):
      del hello
      yield from stream.receive(PLAIN)

    near, far = socket.socketpair()
    ended = threading.Event()
    seen = []
    loop = SocketLoop(
      'test',
      after_events=lambda: None,
      tick=lambda: None,
      on_error=seen.append,
      on_exit=lambda error: None,
    )
    self.addCleanup(loop.close)

    def steps(stream):
      try:
        yield from handle(stream, None)
      except Corrupt as error:
        seen.append(str(error))
      yield from stream.close(seen[-1])

    def begin():
      stream = LoopStream(loop, Connection(far, 'near'))
      stream.run(steps(stream), ended.set)

    loop.post(begin)
    near.sendall(bytes(frames.HEADER_BYTES))
    end = Stream(Connection(near, 'far'))
    with self.assertRaisesRegex(Closed, 'header of a frame has another'):
      end.receive(PLAIN)
    end.close()
    self.assertTrue(ended.wait(WAIT_S))
    self.assertLen(seen, 1)


class EndTest(LoopTestCase):
  def test_an_error_of_the_handler_is_raised_at_the_client(self):
    def handle(stream, hello):
      yield from stream.receive(PLAIN)
      raise RuntimeError('out of memory')

    listener = self.listener(handle)
    stream = self.connect(listener)
    with self.assertLogs(level='ERROR') as logs:
      stream.send(0)
      with self.assertRaisesRegex(Closed, 'RuntimeError: out of memory'):
        stream.receive(PLAIN)
    self.assertIn('out of memory', logs.output[0])
    stream.close()
    wait_until(lambda: not listener.open_streams())

  def test_the_reason_of_a_closing_client_is_raised_in_the_coroutine(self):
    seen = queue.SimpleQueue()

    def handle(stream, hello):
      try:
        yield from stream.receive(PLAIN)
      except Closed as error:
        seen.put(str(error))

    self.connect(self.listener(handle)).close('all epochs done')
    self.assertRegex(seen.get(timeout=WAIT_S), ': all epochs done$')

  def test_a_stream_is_cancelled_from_any_thread(self):
    seen, ends = queue.SimpleQueue(), queue.SimpleQueue()

    def handle(stream, hello):
      ends.put(stream)
      try:
        yield from stream.receive(PLAIN)
      except Closed as error:
        seen.put(str(error))

    stream = self.connect(self.listener(handle))
    ends.get(timeout=WAIT_S).cancel('no heartbeat')
    self.assertRegex(seen.get(timeout=WAIT_S), 'no heartbeat$')
    with self.assertRaises(Closed):
      stream.receive(PLAIN)

  def test_the_end_follows_all_that_was_sent(self):
    body = random_bytes(10**7)

    def handle(stream, hello):
      stream.send(0, transport.chunked([body]), body.size)
      return
      yield

    stream = self.connect(self.listener(handle))
    time.sleep(0.1)  # Most does not fit into the system's buffers.
    np.testing.assert_array_equal(read(stream.receive(PLAIN)), body)
    with self.assertRaisesRegex(Closed, 'closed'):
      stream.receive(PLAIN)

  def test_a_client_without_hello_is_ended_in_time(self):
    listener = self.listener(wait_s=0.5)
    connection = transport.open_connection(
      listener.address, OPEN, transport.CONTROL, timeout_s=WAIT_S
    )
    start = time.monotonic()
    silent = Stream(connection)
    with self.assertRaises(Closed):
      silent.receive(PLAIN)
    silent.close()
    self.assertBetween(time.monotonic() - start, 0.3, WAIT_S)

  @parameterized.parameters(False, True)
  def test_a_stopped_client_does_not_delay_the_end(self, sends):
    def handle(stream, hello):
      if sends:
        stream.send(0, [random_bytes(10**7)], 10**7)
      yield from stream.receive(PLAIN)

    listener = self.listener(handle)
    process = self.peer(listener)
    os.kill(process.process_id, signal.SIGSTOP)
    start = time.monotonic()
    listener.close(0.2)
    self.assertLess(time.monotonic() - start, WAIT_S)
    self.assertEmpty(listener.open_streams())

  def test_a_killed_client_is_noticed(self):
    ended = threading.Event()

    def handle(stream, hello):
      try:
        yield from stream.receive(PLAIN)
      except Closed:
        ended.set()

    process = self.peer(self.listener(handle))
    process.kill()
    self.assertTrue(ended.wait(WAIT_S))


if __name__ == '__main__':
  absltest.main()
