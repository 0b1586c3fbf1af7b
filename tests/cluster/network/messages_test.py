"""Tests for cluster.network.streams: messages with bodies."""

import queue
import threading

import numpy as np
from absl.testing import absltest, parameterized

from cluster.network import streams as transport
from cluster.network.streams import Closed, Corrupt
from tests.support.streams import PLAIN, WAIT_S, TestCase, random_bytes, read


class MessageTest(TestCase):
  @parameterized.parameters(
    (0, 1),
    (1, 1),
    (1000, 1000),
    (1000, 999),
    (10**6, 10**4),
    (2**24, 2**24),
    # Around the largest chunk that travels within a frame.
    (2**14, 2**14),
    (2**14 + 1, 2**14 + 1),
    (2**15 + 1, 2**14 + 1),
  )
  def test_a_message_arrives_as_it_was_sent(self, size, chunk_bytes):
    stream = self.connect(self.listener())
    body = random_bytes(size)
    header = {'name': 'naïve', 'list': [1, 2.5, None], 'deep': {'a': True}}
    for _ in range(2):
      chunks = transport.chunked([body], chunk_bytes)
      sender = threading.Thread(
        target=stream.send, args=(header, chunks, body.size)
      )
      sender.start()
      message = stream.receive(PLAIN)
      got = [chunk.copy() for chunk in message.chunks]
      sender.join()
      self.assertEqual(message.header, header)
      self.assertEqual(message.size_bytes, size)
      self.assertLen(got, -(-size // chunk_bytes))
      np.testing.assert_array_equal(np.concatenate([body[:0], *got]), body)

  def test_the_handler_gets_the_hello_and_the_peer(self):
    seen = queue.SimpleQueue()
    listener = self.listener(
      lambda stream, hello: seen.put((stream, PLAIN.decode(hello)))
    )
    stream = self.connect(listener, {'worker': 3})
    server_end, hello = seen.get(timeout=WAIT_S)
    self.assertEqual(hello, {'worker': 3})
    self.assertEqual(stream.peer, listener.address)
    self.assertRegex(server_end.peer, r'^127\.0\.0\.1:\d+$')

  def test_a_chunk_arrives_before_the_next_is_produced(self):
    stream = self.connect(self.listener())
    arrived = queue.SimpleQueue()

    def produce():
      yield random_bytes(10, seed=0)
      for seed in range(1, 4):
        np.testing.assert_array_equal(
          arrived.get(timeout=WAIT_S), random_bytes(10, seed - 1)
        )
        yield random_bytes(10, seed)

    def receive():
      for chunk in stream.receive(PLAIN).chunks:
        arrived.put(chunk)

    receiver = threading.Thread(target=receive)
    receiver.start()
    stream.send(0, produce(), 40)
    receiver.join()
    np.testing.assert_array_equal(
      arrived.get(timeout=WAIT_S), random_bytes(10, 3)
    )

  def test_both_ends_send_at_once(self):
    sizes = [10**6 + n for n in range(5)]

    def send(stream, seed):
      for size in sizes:
        body = random_bytes(size, seed)
        stream.send(size, transport.chunked([body], 10**5), size)

    def receive(stream, seed):
      for size in sizes:
        np.testing.assert_array_equal(
          read(stream.receive(PLAIN)), random_bytes(size, seed)
        )

    def handle(stream, hello):
      sender = threading.Thread(target=send, args=(stream, 1))
      sender.start()
      receive(stream, 2)
      sender.join()
      stream.send('received')
      stream.receive(PLAIN)

    stream = self.connect(self.listener(handle))
    sender = threading.Thread(target=send, args=(stream, 2))
    sender.start()
    receive(stream, 1)
    sender.join()
    self.assertEqual(stream.receive(PLAIN).header, 'received')

  def test_threads_may_send_at_once(self):
    stream = self.connect(self.listener())
    threads = [
      threading.Thread(
        target=stream.send,
        args=(n, transport.chunked([np.full(1000, n, np.uint8)], 100), 1000),
      )
      for n in range(8)
    ]
    for thread in threads:
      thread.start()
    seen = []
    for _ in threads:
      message = stream.receive(PLAIN)
      seen.append(message.header)
      np.testing.assert_array_equal(read(message), message.header)
    for thread in threads:
      thread.join()
    self.assertCountEqual(seen, range(8))

  @parameterized.parameters(10**6, 10**4)
  def test_an_array_may_change_once_it_was_sent(self, size):
    stream = self.connect(self.listener(lambda s, _: _collect(s)))
    body = np.zeros(size, np.uint8)
    for n in range(20):
      body[:] = n
      stream.send(n, transport.chunked([body], size // 10), body.size)
      body[:] = 255
    self.assertEqual(stream.receive(PLAIN).header, [[n] for n in range(20)])

  def test_64_streams_block_at_once(self):
    everyone = threading.Barrier(64)

    def handle(stream, hello):
      stream.receive(PLAIN)
      everyone.wait(WAIT_S)
      stream.send(PLAIN.decode(hello))
      stream.receive(PLAIN)

    listener = self.listener(handle)
    streams = [self.connect(listener, n) for n in range(64)]
    for stream in streams:
      stream.send('go')
    got = [stream.receive(PLAIN).header for stream in streams]
    self.assertEqual(got, [*range(64)])

  def test_the_rest_of_a_body_is_skipped(self):
    stream = self.connect(self.listener(lambda s, _: _twice(s)))
    next(stream.receive(PLAIN).chunks)
    message = stream.receive(PLAIN)
    self.assertEqual(message.header, 1)
    np.testing.assert_array_equal(read(message), random_bytes(100))

  @parameterized.parameters(0, 10**3, 10**6)
  def test_a_flipped_bit_is_noticed_and_the_next_message_is_good(self, size):
    body = random_bytes(size)

    def handle(stream, hello):
      for spoil in ('first', None):
        chunks = transport.chunked([body], 10**5)
        stream.send('header', chunks, size, spoil=spoil)
      stream.receive(PLAIN)

    stream = self.connect(self.listener(handle))
    with self.assertRaisesRegex(Corrupt, 'checksum'):
      read(stream.receive(PLAIN))
    np.testing.assert_array_equal(body, random_bytes(size))
    np.testing.assert_array_equal(read(stream.receive(PLAIN)), body)

  @parameterized.parameters(
    ([3, 3], 7, 'expected 7 bytes, got 6'),
    ([3, 3], 5, 'expected 5 bytes, got 6'),
    ([0], 1, 'uint8'),
  )
  def test_wrong_sizes_are_refused_and_end_the_stream(self, sizes, total, why):
    stream = self.connect(self.listener())
    with self.assertRaisesRegex(ValueError, why):
      stream.send(0, [random_bytes(size) for size in sizes], total)
    with self.assertRaisesRegex(Closed, why):
      stream.send(0)

  def test_a_body_that_fails_ends_the_stream_at_both_ends(self):
    seen = queue.SimpleQueue()

    def handle(stream, hello):
      try:
        read(stream.receive(PLAIN))
      except Closed as error:
        seen.put(str(error))

    def produce():
      yield random_bytes(10)
      raise RuntimeError('no gradient')

    stream = self.connect(self.listener(handle))
    with self.assertRaisesRegex(RuntimeError, 'no gradient'):
      stream.send(0, produce(), 20)
    self.assertIn('RuntimeError: no gradient', seen.get(timeout=WAIT_S))

  @parameterized.parameters((3, np.uint8), (1, np.float32))
  def test_an_array_to_read_into_must_fit(self, size, dtype):
    stream = self.connect(self.listener())
    stream.send(0, [random_bytes(4)], 4)
    with self.assertRaisesRegex(ValueError, r'into: expected uint8 \[4\]'):
      stream.receive(PLAIN).read(np.zeros(size, dtype))


def _collect(stream):
  """Sends the values that each of 20 bodies consists of."""
  bodies = [read(stream.receive(PLAIN)) for _ in range(20)]
  stream.send([np.unique(body).tolist() for body in bodies])
  stream.receive(PLAIN)


def _twice(stream):
  for n in range(2):
    stream.send(n, transport.chunked([random_bytes(100)], 10), 100)
  stream.receive(PLAIN)


if __name__ == '__main__':
  absltest.main()
