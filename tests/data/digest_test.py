"""Tests of data.digest."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest

from data.dataset import Dataset, Split
from data.digest import digest


def _dataset(inputs, targets):
  split = Split(inputs, np.array(targets, np.int32))
  return Dataset(split, split)


class DigestTest(absltest.TestCase):
  def test_any_integer_counts(self):
    inputs = np.zeros((4, 2, 2, 1), np.uint8)
    before = digest(_dataset(inputs, [0, 1, 2, 3]))
    self.assertEqual(digest(_dataset(inputs.copy(), [0, 1, 2, 3])), before)
    self.assertNotEqual(digest(_dataset(inputs, [0, 1, 2, 4])), before)
    inputs[3, 1, 1, 0] = 1
    self.assertNotEqual(digest(_dataset(inputs, [0, 1, 2, 3])), before)

  def test_last_digits_of_floats_do_not_count(self):
    inputs = np.ones((2, 3), np.float32)
    before = digest(_dataset(inputs, [0, 1]))
    self.assertEqual(digest(_dataset(np.nextafter(inputs, 2), [0, 1])), before)
    self.assertNotEqual(digest(_dataset(inputs[:, :2], [0, 1])), before)

  def test_rows_of_a_mapped_file_are_sampled(self):
    path = pathlib.Path(tempfile.mkdtemp()) / 'rows'
    shape = 10_000, 8
    array = np.memmap(path, np.int32, 'w+', shape=shape)
    targets = np.zeros(len(array))
    before = digest(_dataset(array, targets))
    self.assertEqual(
      digest(_dataset(np.memmap(path, np.int32, 'r', shape=shape), targets)),
      before,
    )
    array[-1, 0] = 1
    self.assertNotEqual(digest(_dataset(array, targets)), before)


if __name__ == '__main__':
  absltest.main()
