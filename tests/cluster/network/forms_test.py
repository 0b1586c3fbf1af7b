"""Tests that a stream refuses frames that no stream of ours would send.

The frames are written here byte by byte, and read from memory.
"""

import struct
from typing import NamedTuple
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from absl.testing import absltest, parameterized

from cluster.network import frames
from cluster.network.calls import Stream
from cluster.network.streams import Closed, Corrupt
from tests.support.streams import PLAIN, read

_DEEP = b'\x91' * 10**5
_SMALL_BYTES = 2**14  # Of a chunk that follows the text of its frame.
_HEADER_BYTES = 2**24
_REASON = 300


class _Read(NamedTuple):
  """A frame as Flight hands it over."""

  app_metadata: bytes | None
  data: pa.RecordBatch | None = None


class _Frames:
  """Numbers the frames of a stream, from 0 on, and is its reader."""

  def __init__(self):
    self._frames, self._number = [], 0

  def add(self, kind, text, more=b'', *, batch=None, size=None, checksum=None):
    """Adds a frame.

    Args:
      kind: One byte.
      text: Bytes.
      more: Bytes of a small chunk, behind the text.
      batch: uint8 [n], a large chunk beside it.
      size: Of the text, as the frame has it; None for its own.
      checksum: None for that of all bytes.
    """
    if checksum is None:
      whole = text + more + (b'' if batch is None else batch.tobytes())
      checksum = xxhash.xxh3_64_intdigest(whole)
    size = len(text) if size is None else size
    form = struct.pack('<cQQI', kind, self._number, checksum, size)
    data = None if batch is None else frames.batch(batch)
    self.add_raw(form + text + more, data)

  def add_raw(self, metadata, data=None):
    """Adds metadata and a batch that may be no frame."""
    self._frames.append(_Read(metadata, data))
    self.skip()

  def skip(self):
    """Leaves out a frame."""
    self._number += 1

  def stream(self):
    """Returns a stream that receives the frames, and then ends."""
    reader = mock.Mock()
    reader.read_chunk.side_effect = [*self._frames, StopIteration]
    return Stream(
      reader, mock.Mock(), 'peer', cut=mock.Mock(), finish=mock.Mock()
    )


def _packed(*header):
  return msgspec.msgpack.encode(header)


def _announce(made, size):
  made.add(b'H', _packed(0, size))


class FormTest(parameterized.TestCase):
  def _refused(self, made):
    """Returns why a message is refused; checks that the next one is not."""
    made.add(b'H', _packed('next', 0))
    stream = made.stream()
    with self.assertRaises(Corrupt) as refused:
      read(stream.receive(PLAIN, most_bytes=1000))
    message = stream.receive(PLAIN, most_bytes=1000)
    self.assertEqual((message.header, message.size_bytes), ('next', 0))
    return str(refused.exception)

  @parameterized.parameters(0, 5, 1000)
  def test_a_message_in_valid_frames_is_received(self, size):
    body = np.arange(size).astype(np.uint8)
    made = _Frames()
    made.add(b'H', _packed({'a': 1}, size), body.tobytes())
    message = made.stream().receive(PLAIN, most_bytes=1000)
    self.assertEqual(message.header, {'a': 1})
    np.testing.assert_array_equal(read(message), body)

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
  def test_headers_are_checked(self, text, why):
    made = _Frames()
    made.add(b'H', text)
    self.assertIn(why, self._refused(made))

  def test_kinds_are_checked(self):
    made = _Frames()
    made.add(b'X', _packed(0, 0))
    self.assertIn('expected a header, a chunk or an end', self._refused(made))

  def test_headers_are_bounded(self):
    made, text = _Frames(), _packed('x' * _HEADER_BYTES, 0)
    made.add(b'H', text)
    why = f'of up to {_HEADER_BYTES} bytes, got {len(text)}'
    self.assertIn(why, self._refused(made))

  def test_a_chunk_without_bytes_is_corrupt(self):
    made = _Frames()
    _announce(made, 5)
    made.add(b'C', b'')
    self.assertIn('expected bytes', self._refused(made))

  def test_a_text_longer_than_its_frame_is_corrupt(self):
    made = _Frames()
    made.add(b'H', _packed(0, 0), size=4)
    self.assertIn('of up to 3 bytes, got 4', self._refused(made))

  def test_a_large_chunk_must_not_follow_the_text(self):
    made = _Frames()
    made.add(b'H', _packed(0, 4), bytes(_SMALL_BYTES + 1))
    self.assertIn('expected a small chunk', self._refused(made))

  def test_a_chunk_must_not_travel_twice(self):
    made = _Frames()
    made.add(b'H', _packed(0, 4), b'more', batch=np.zeros(4, np.uint8))
    self.assertIn('expected bytes', self._refused(made))

  @parameterized.parameters(0, 1, 5, 20)
  def test_a_frame_that_is_too_short_is_corrupt(self, size):
    made = _Frames()
    made.add_raw(bytes(size) or None)
    self.assertIn(f'expected a frame, got {size} bytes', self._refused(made))

  @parameterized.parameters('small', 'large')
  def test_a_chunk_beyond_the_body_is_corrupt(self, kind):
    chunk = {'more': bytes(6)}
    if kind == 'large':
      chunk = {'batch': np.zeros(_SMALL_BYTES + 1, np.uint8)}
    apart, together = _Frames(), _Frames()
    _announce(apart, 5)
    apart.add(b'C', b'', **chunk)
    together.add(b'H', _packed(0, 5), **chunk)
    for made in (apart, together):
      self.assertIn('not of the size announced', self._refused(made))

  def test_a_missing_frame_is_noticed(self):
    made = _Frames()
    made.skip()
    made.add(b'H', _packed(0, 0))
    self.assertIn('expected frame 0, got 1', self._refused(made))

  @parameterized.parameters(
    (b'a\nb\x1b[2J', 'a?b?[2J'),
    (b'\xff\xfe', '��'),
    (b'x' * 10**5, 'x' * _REASON),
  )
  def test_a_reason_takes_one_line(self, reason, shown):
    made = _Frames()
    made.add(b'E', reason)
    with self.assertRaises(Closed) as closed:
      made.stream().receive(PLAIN)
    self.assertEqual(str(closed.exception), f'peer: {shown}')

  def test_a_wrong_checksum_is_corrupt(self):
    made, text = _Frames(), _packed(0, 0)
    made.add(b'H', text, checksum=xxhash.xxh3_64_intdigest(text) ^ 1)
    self.assertIn('another checksum', self._refused(made))


if __name__ == '__main__':
  absltest.main()
