"""Tests for cluster.transport.messages: frames that nobody of us would send."""

import json
import queue
from unittest import mock

import numpy as np
import pyarrow as pa
import xxhash
from absl.testing import absltest, parameterized

from cluster.transport import frames, messages
from cluster.transport.streams import Closed, Corrupt
from tests.support.streams import WAIT_S, TestCase, read

_DEEP = '[' * 10**5


class FormTest(TestCase):
  def _seen(self, send):
    """Returns what a listener makes of what `send` does with a stream."""
    seen = queue.SimpleQueue()

    def handle(stream, hello):
      for _ in range(2):
        try:
          message = stream.receive(most_bytes=1000)
          seen.put((message.header, read(message).tolist()))
        except Corrupt as error:
          seen.put(str(error))

    stream = self.connect(self.listener(handle))
    send(stream)
    stream.send('next')
    first = seen.get(timeout=WAIT_S)
    self.assertEqual(seen.get(timeout=WAIT_S), ('next', []))
    return first

  @parameterized.parameters(
    (b'', 'expected JSON'),
    (b'{', 'expected JSON'),
    (b'\xff\xfe', 'expected JSON'),
    (_DEEP.encode(), 'expected JSON'),
    (b'[NaN, 0]', 'NaN, which is not JSON'),
    (b'[-Infinity, 0]', 'which is not JSON'),
    (b'[1' + b'0' * 5000 + b', 0]', 'expected JSON'),
    (b'null', 'expected a header and the size'),
    (b'[]', 'expected a header and the size'),
    (b'[0, 1, 2]', 'expected a header and the size'),
    (b'[0, -1]', 'expected a header and the size'),
    (b'[0, 1.5]', 'expected a header and the size'),
    (b'[0, true]', 'expected a header and the size'),
    (b'[0, "1"]', 'expected a header and the size'),
    (b'"ab"', 'expected a header and the size'),
    (b'{"0": 0, "1": 0}', 'expected a header and the size'),
    (b'[0, 1001]', 'expected a body of at most 1000 bytes, got one of 1001'),
    (b'[0, 99999999999999999999]', 'expected a body of at most 1000'),
  )
  def test_headers_are_checked(self, text, why):
    seen = self._seen(lambda stream: stream._write(b'H', text))
    self.assertIn(why, seen)

  def test_kinds_are_checked(self):
    seen = self._seen(lambda stream: stream._write(b'X', b'[0, 0]'))
    self.assertIn('expected a header, a chunk or an end', seen)

  def test_headers_are_bounded(self):
    with mock.patch.object(messages, '_HEADER_BYTES', 400):
      seen = self._seen(lambda stream: stream.send('x' * 400))
    self.assertIn('of up to 400 bytes, got 406', seen)

  def test_a_chunk_without_bytes_is_corrupt(self):
    def send(stream):
      frame = frames.FORM.pack(b'C', stream._sent, 0, 0)
      stream._sent += 1
      stream._writer.write_metadata(pa.py_buffer(frame))

    def announced(stream):
      stream._write(b'H', json.dumps([0, 5]).encode())
      send(stream)

    self.assertIn('expected bytes', self._seen(announced))

  def test_a_text_longer_than_its_frame_is_corrupt(self):
    def send(stream):
      frame = frames.FORM.pack(b'H', stream._sent, 0, 7)
      stream._sent += 1
      stream._writer.write_metadata(pa.py_buffer(frame + b'[0, 0]'))

    self.assertIn('of up to 6 bytes, got 7', self._seen(send))

  def test_a_large_chunk_is_none_of_a_text(self):
    def send(stream):
      frame = frames.FORM.pack(b'H', stream._sent, 0, 6)
      stream._sent += 1
      data = b'[0, 4]' + bytes(frames.SMALL_BYTES + 1)
      stream._writer.write_metadata(pa.py_buffer(frame + data))

    self.assertIn('expected a small chunk', self._seen(send))

  def test_bytes_of_a_chunk_have_one_place(self):
    def send(stream):
      data = b'[0, 4]more'
      checksum = xxhash.xxh3_64_intdigest(data)
      frame = frames.FORM.pack(b'H', stream._sent, checksum, 6)
      stream._sent += 1
      batch = frames.batch(np.zeros(4, np.uint8))
      stream._writer.write_with_metadata(batch, pa.py_buffer(frame + data))

    self.assertIn('expected bytes', self._seen(send))

  @parameterized.parameters(1, 5, 20)
  def test_a_frame_may_be_too_short(self, size):
    def send(stream):
      stream._sent += 1
      stream._writer.write_metadata(pa.py_buffer(bytes(size)))

    self.assertIn('expected a frame', self._seen(send))

  def test_a_chunk_beyond_the_body_is_corrupt(self):
    def apart(stream):
      stream._write(b'H', json.dumps([0, 5]).encode())
      stream._write(b'C', b'', np.zeros(6, np.uint8))

    def together(stream):
      stream._write(b'H', json.dumps([0, 5]).encode(), np.zeros(6, np.uint8))

    for send in (apart, together):
      self.assertIn('not of the size announced', self._seen(send))

  @parameterized.parameters(
    (b'a\nb\x1b[2J', 'a?b?[2J'),
    (b'\xff\xfe', '��'),
    (b'x' * 10**5, 'x' * messages._REASON),
  )
  def test_a_reason_takes_one_line(self, reason, shown):
    seen = queue.SimpleQueue()

    def handle(stream, hello):
      try:
        stream.receive()
      except Closed as error:
        seen.put(str(error).partition(': ')[2])

    stream = self.connect(self.listener(handle))
    stream._write(b'E', reason)
    self.assertEqual(seen.get(timeout=WAIT_S), shown)

  def test_checksums_are_of_the_bytes(self):
    data = b'[0, 0]'
    checksum = xxhash.xxh3_64_intdigest(data) ^ 1
    frame = frames.FORM.pack(b'H', 2, checksum, len(data))

    def send(stream):
      stream._sent += 1
      stream._writer.write_metadata(pa.py_buffer(frame + data))

    self.assertIn('another checksum', self._seen(send))


if __name__ == '__main__':
  absltest.main()
