"""Tests for cluster.allreduce.executor.endpoints, over pipes in memory."""

import itertools

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from cluster.allreduce.executor import endpoints
from cluster.network import frames
from cluster.network.errors import Corrupt

_BODIES = st.lists(st.binary(max_size=100), max_size=8)


class _Pipe:
  """A pipe that transfers given numbers of bytes at a time, in turn."""

  def __init__(self, sizes):
    self.content = bytearray()
    self._sends, self._receives = (itertools.cycle(sizes) for _ in range(2))

  def send(self, buffers):
    most = next(self._sends)
    if not most:
      raise BlockingIOError
    part = b''.join(buffers)[:most]
    self.content += part
    return len(part)

  def receive(self, buffers):
    most = next(self._receives)
    if not most or not self.content:
      raise BlockingIOError
    count = 0
    for buffer in buffers:
      part = self.content[: min(len(buffer), most - count)]
      buffer[: len(part)] = part
      del self.content[: len(part)]
      count += len(part)
    return count


def _reader(receive, is_drained=False):
  delivered = []
  reader = endpoints.Reader(
    receive,
    lambda frame: memoryview(bytearray(frame.size)),
    lambda frame, body: delivered.append((frame, bytes(body))),
    is_drained=is_drained,
  )
  return reader, delivered


class EndpointsTest(parameterized.TestCase):
  @hypothesis.settings(deadline=None)
  @hypothesis.given(
    bodies=_BODIES,
    sizes=st.lists(st.integers(0, 200), min_size=1).filter(any),
    is_drained=st.booleans(),
  )
  def test_frames_arrive_as_they_were_sent(self, bodies, sizes, is_drained):
    pipe = _Pipe([0, *sizes])
    writer = endpoints.Writer(pipe.send)
    reader, delivered = _reader(pipe.receive, is_drained)
    for number, body in enumerate(bodies):
      header = frames.pack_header(frames.UP, number, body, number % 3, 3, 7, 5)
      whole = writer.write(header, body)
      while not whole:
        self.assertTrue(writer.is_within_frame)
        self.assertTrue(reader.read())
        whole = writer.write()
    while pipe.content:
      self.assertTrue(reader.read())
    self.assertFalse(reader.is_within_frame)
    self.assertEqual([body for _, body in delivered], bodies)
    for number, (frame, body) in enumerate(delivered):
      expected = (frames.UP, number % 3, len(body), number, 3, 7, 5)
      self.assertEqual(frame[:-1], expected)
    self.assertEqual(writer.sent_bytes, sum(48 + len(b) for b in bodies))
    self.assertEqual(reader.received_bytes, writer.sent_bytes)

  @hypothesis.settings(deadline=None)
  @hypothesis.given(bit=st.integers(0, 8 * (48 + 30) - 1))
  def test_every_flipped_bit_is_detected(self, bit):
    body = bytes(range(30))
    pipe = _Pipe([1000])
    pipe.content += frames.pack_header(frames.DOWN, 4, body, 1, 2, 3)
    pipe.content += body
    pipe.content[bit // 8] ^= 1 << bit % 8
    reader, delivered = _reader(pipe.receive)
    with self.assertRaisesRegex(Corrupt, 'another checksum'):
      reader.read()
    self.assertEmpty(delivered)

  def test_one_connection_does_not_starve_the_others(self):
    pipe = _Pipe([10**6])
    for number in range(40):
      pipe.content += frames.pack_header(frames.UP, number, b'body')
      pipe.content += b'body'
    reader, delivered = _reader(pipe.receive)
    self.assertTrue(reader.read())
    self.assertBetween(len(delivered), 1, 20)

  def test_the_end_of_a_connection_is_reported(self):
    reader, _ = _reader(lambda buffers: 0)
    self.assertFalse(reader.read())
    self.assertFalse(reader.is_within_frame)


if __name__ == '__main__':
  absltest.main()
