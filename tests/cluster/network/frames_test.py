"""Tests of the bytes of a stream, written here frame by frame.

This module repeats the format of frames, so that tests compare a stream with
its documentation and not with its own code.
"""

import contextlib
import itertools
import random
import struct
import threading

import msgspec
import numpy as np
import xxhash
from absl.testing import absltest, parameterized

from cluster.network.connection import Connection
from cluster.network.streams import Closed, Corrupt, Stream
from tests.support.streams import PLAIN, WAIT_S, random_bytes, read, tcp_pair

_TEXT, _CHUNK, _END = 1, 2, 3
_DEEP = b'\x91' * 10**5
_TEXT_BYTES = 2**24
_REASON = 300


class _Frames:
  """Bytes of frames, numbered from 0 on."""

  def __init__(self):
    self.data, self._number = bytearray(), 0

  def add(self, kind, payload, *, size=None, checksum=None):
    """Adds a frame.

    Args:
      kind: Number of the kind.
      payload: Bytes.
      size: Size in the header; None for that of the payload.
      checksum: Checksum in the header; None for that of the payload.
    """
    if checksum is None:
      checksum = xxhash.xxh3_64_intdigest(payload)
    size = len(payload) if size is None else size
    fields = struct.pack(
      '<HHIQQIIQ', kind, 0, size, self._number, 0, 0, 0, checksum
    )
    self.data += fields + struct.pack('<Q', xxhash.xxh3_64_intdigest(fields))
    self.data += payload
    self._number += 1

  def add_message(self, header, body=b'', chunk_bytes=None):
    """Adds the frames of a message."""
    self.add(_TEXT, _packed(header, len(body)))
    step = chunk_bytes or max(len(body), 1)
    for start in range(0, len(body), step):
      self.add(_CHUNK, body[start : start + step])

  def skip(self):
    """Leaves out a frame."""
    self._number += 1


def _packed(*header):
  return msgspec.msgpack.encode(header)


class TestCase(parameterized.TestCase):
  def stream(self, data, *, cuts=()):
    """Returns a stream that receives bytes, and then the end.

    Args:
      data: The bytes.
      cuts: Positions at which a call of the sender ends.
    """
    near, far = tcp_pair()
    self.addCleanup(near.close)
    self.addCleanup(far.close)

    def send():
      with contextlib.suppress(OSError):
        far.setsockopt(6, 1, 1)  # TCP_NODELAY.
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
          far.sendall(data[start:stop])
        far.shutdown(1)

    thread = threading.Thread(target=send)
    thread.start()
    self.addCleanup(thread.join, WAIT_S)
    self.addCleanup(near.close)
    return Stream(Connection(near, 'peer'))


class FormTest(TestCase):
  def _refused(self, frames):
    """Returns why a message is refused; checks that the next one is not."""
    frames.add_message('next')
    stream = self.stream(bytes(frames.data))
    with self.assertRaises(Corrupt) as refused:
      read(stream.receive(PLAIN, most_bytes=1000))
    message = stream.receive(PLAIN, most_bytes=1000)
    self.assertEqual((message.header, message.size_bytes), ('next', 0))
    return str(refused.exception)

  @parameterized.parameters((0, None), (5, None), (1000, 7), (10**6, 10**5))
  def test_a_message_in_valid_frames_is_received(self, size, chunk_bytes):
    body = random_bytes(size)
    frames = _Frames()
    frames.add_message({'a': 1}, body.tobytes(), chunk_bytes)
    message = self.stream(bytes(frames.data)).receive(PLAIN)
    self.assertEqual(message.header, {'a': 1})
    np.testing.assert_array_equal(read(message), body)

  def test_a_sent_message_has_the_documented_form(self):
    near, far = tcp_pair()
    body, frames = random_bytes(70_000), _Frames()
    with near, far:
      stream = Stream(Connection(near, 'peer'))
      stream.send({'a': 1}, np.split(body, [10]), body.size)
      frames.add(_TEXT, _packed({'a': 1}, body.size))
      frames.add(_CHUNK, body[:10].tobytes())
      frames.add(_CHUNK, body[10:].tobytes())
      stream.cancel()
      with contextlib.closing(far.makefile('rb')) as sent:
        self.assertEqual(sent.read(), bytes(frames.data))

  def test_frames_may_be_split_at_every_byte(self):
    body, frames = random_bytes(50).tobytes(), _Frames()
    frames.add_message('one', body, 20)
    frames.add_message('two')
    frames.add(_END, b'done')
    data = bytes(frames.data)
    for cuts in [*([n] for n in range(1, len(data))), range(1, len(data))]:
      stream = self.stream(data, cuts=cuts)
      message = stream.receive(PLAIN)
      self.assertEqual((message.header, read(message).tobytes()), ('one', body))
      self.assertEqual(stream.receive(PLAIN).header, 'two')
      with self.assertRaisesRegex(Closed, 'peer: done'):
        stream.receive(PLAIN)

  def test_frames_in_every_order_give_sent_messages_or_errors(self):
    sent = [('one', random_bytes(20).tobytes()), ('two', b'')]
    parts, frames = [], _Frames()
    for header, body in sent:
      parts.append(len(frames.data))
      frames.add(_TEXT, _packed(header, len(body)))
      for start in range(0, len(body), 10):
        parts.append(len(frames.data))
        frames.add(_CHUNK, body[start : start + 10])
    cuts = itertools.pairwise([*parts, len(frames.data)])
    pieces = [bytes(frames.data[a:b]) for a, b in cuts]
    for order in itertools.permutations(range(len(pieces))):
      stream = self.stream(b''.join(pieces[n] for n in order))
      received = []
      with self.assertRaisesRegex(Closed, 'the connection ended'):
        while True:
          with contextlib.suppress(Corrupt):
            message = stream.receive(PLAIN)
            received.append((message.header, read(message).tobytes()))
      in_order = list(order) == sorted(order)
      self.assertIn(received, [sent] if in_order else [[], sent[:1], sent[1:]])

  def test_a_stream_that_ends_anywhere_raises_closed(self):
    frames = _Frames()
    frames.add_message('one', bytes(50), 20)
    for size in range(len(frames.data)):
      stream = self.stream(bytes(frames.data[:size]))
      with self.assertRaisesRegex(Closed, 'the connection ended'):
        read(stream.receive(PLAIN))

  def test_mutated_bytes_are_never_taken_for_a_message(self):
    rng, frames = random.Random(0), _Frames()
    sent = [('one', b''), ('two', random_bytes(90).tobytes()), ('three', b'')]
    for header, body in sent:
      frames.add_message(header, body, 40)
    for _ in range(2000):
      data = bytearray(frames.data)
      for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(data))
        match rng.randrange(3):
          case 0:
            data[place] ^= 1 << rng.randrange(8)
          case 1:
            del data[place : place + rng.choice((1, 8, 32))]
          case 2:
            data[place:place] = rng.randbytes(rng.choice((1, 8, 32)))
      stream = self.stream(bytes(data))
      received = []
      while len(received) < 10:
        try:
          message = stream.receive(PLAIN)
          received.append((message.header, read(message).tobytes()))
        except Corrupt:
          continue
        except Closed:
          break
      self.assertLess(len(received), 4)
      self.assertTrue(all(message in sent for message in received), received)
      self.doCleanups()

  @parameterized.parameters(
    (b'', 'truncated'),
    (b'\xc1', 'invalid opcode'),
    (b'{', 'Expected `array`'),
    (b'\x92\xa2\xff\xfe\x00', 'invalid'),
    (_DEEP, 'Expected `array` of length 2'),
    (b'\x92' + _DEEP, 'recursion'),
    (_packed(), 'Expected `array` of length 2'),
    (_packed(0, 1, 2), 'Expected `array` of length 2'),
    (_packed(0, -1), 'Expected `int` >= 0'),
    (_packed(0, 1.5), 'Expected `int`, got `float`'),
    (_packed(0, True), 'Expected `int`, got `bool`'),
    (_packed(0, '1'), 'Expected `int`, got `str`'),
    (_packed(0, 0) + b'0', 'trailing'),
    (
      _packed(0, 1001),
      'expected a body of at most 1000 bytes, got one of 1001',
    ),
    (_packed(0, 2**53), 'Expected `int` <='),
  )
  def test_texts_are_checked(self, text, why):
    frames = _Frames()
    frames.add(_TEXT, text)
    self.assertIn(why, self._refused(frames))

  @parameterized.parameters(0, 4, 2**16 - 1)
  def test_kinds_are_checked(self, kind):
    frames = _Frames()
    frames.add(kind, _packed(0, 0))
    self.assertIn('expected a header or an end', self._refused(frames))

  def test_texts_are_bounded(self):
    frames, text = _Frames(), _packed('x' * _TEXT_BYTES, 0)
    frames.add(_TEXT, text)
    why = f'of up to {_TEXT_BYTES} bytes, or a chunk, got {len(text)}'
    self.assertIn(why, self._refused(frames))

  def test_a_chunk_without_bytes_is_corrupt(self):
    frames = _Frames()
    frames.add(_TEXT, _packed(0, 5))
    frames.add(_CHUNK, b'')
    self.assertIn('expected bytes', self._refused(frames))

  @parameterized.parameters(6, 10**5)
  def test_a_chunk_beyond_the_body_is_corrupt(self, size):
    frames = _Frames()
    frames.add(_TEXT, _packed(0, 5))
    frames.add(_CHUNK, bytes(size))
    self.assertIn('not of the size announced', self._refused(frames))

  def test_a_missing_frame_is_noticed(self):
    frames = _Frames()
    frames.skip()
    frames.add_message(0)
    self.assertIn('expected frame 0, got 1', self._refused(frames))

  def test_a_wrong_checksum_is_corrupt(self):
    frames, text = _Frames(), _packed(0, 0)
    frames.add(_TEXT, text, checksum=xxhash.xxh3_64_intdigest(text) ^ 1)
    self.assertIn('another checksum', self._refused(frames))

  def test_a_damaged_frame_header_ends_the_stream(self):
    frames = _Frames()
    frames.add_message('one')
    frames.add_message('two')
    frames.data[5] ^= 1
    stream = self.stream(bytes(frames.data))
    with self.assertRaisesRegex(Corrupt, 'header of a frame has another check'):
      stream.receive(PLAIN)
    with self.assertRaisesRegex(Closed, 'header of a frame has another check'):
      stream.receive(PLAIN)

  @parameterized.parameters(
    (b'a\nb\x1b[2J', 'a\\nb\\x1b[2J'),
    (b'\xff\xfe', '��'),
    (b'x' * 10**5, 'x' * _REASON),
  )
  def test_a_reason_takes_one_line(self, reason, shown):
    frames = _Frames()
    frames.add(_END, reason)
    with self.assertRaises(Closed) as closed:
      self.stream(bytes(frames.data)).receive(PLAIN)
    self.assertEqual(str(closed.exception), f'peer: {shown}')


if __name__ == '__main__':
  absltest.main()
