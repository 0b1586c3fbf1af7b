"""Tests for outputs.board."""

import pathlib
import resource
import struct
import tempfile
import threading

from absl.testing import absltest
from tensorboardX.proto import event_pb2

from outputs.board import Board


def read_points(folder):
  """Returns the points in the folder's file: name, step and value."""
  (path,) = folder.glob('events.out.tfevents.*')
  data, points, start = path.read_bytes(), [], 0
  while start < len(data):
    (size,) = struct.unpack('<Q', data[start : start + 8])
    event = event_pb2.Event.FromString(data[start + 12 : start + 12 + size])
    start += size + 16
    points += [
      (value.tag, event.step, value.simple_value)
      for value in event.summary.value
    ]
  return points


class BoardTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def test_points_are_in_the_file_after_a_flush(self):
    before = threading.active_count()
    board = Board(self.folder)
    board.plot('loss', 0.5, 100)
    board.plot('accuracy', 0.25, 200)
    board.flush()
    expected = [('loss', 100, 0.5), ('accuracy', 200, 0.25)]
    self.assertEqual(read_points(self.folder), expected)
    self.assertEqual(threading.active_count(), before)
    board.plot('loss', 0.125, 300)
    board.close()
    self.assertEqual(
      read_points(self.folder), [*expected, ('loss', 300, 0.125)]
    )

  def test_a_file_that_cannot_grow_is_an_error(self):
    board = Board(self.folder)
    self.addCleanup(board.close)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
    board.flush()
    (path,) = self.folder.iterdir()
    most = path.stat().st_size + 10**4
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    with self.assertRaises(OSError):
      for step in range(10**4):
        board.plot('loss', 0.5, step)
      board.flush()


if __name__ == '__main__':
  absltest.main()
