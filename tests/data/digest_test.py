"""Tests of data.digest."""

import pathlib
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest

from data import token_rows
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

  def test_tokens_in_memory_all_count_and_mapped_ones_by_some_rows(self):
    def digest_of(tokens):
      split = token_rows.split(tokens, length=16)
      return digest(Dataset(split, split))

    path = pathlib.Path(tempfile.mkdtemp()) / 'tokens.bin'
    tokens = np.arange(16 * 10_000 + 1).astype(np.uint16)
    tokens.tofile(path)
    changed = tokens.copy()
    changed[16 * 5001 + 3] += 1
    self.assertNotEqual(digest_of(changed), digest_of(tokens))

    before = digest_of(np.memmap(path, np.uint16, 'r'))
    self.assertEqual(digest_of(np.memmap(path, np.uint16, 'r')), before)
    read = []
    rows_of = token_rows.TokenRows.__getitem__

    def count(self, rows):
      found = rows_of(self, rows)
      read.append(found.size)
      return found

    with mock.patch.object(token_rows.TokenRows, '__getitem__', count):
      digest_of(np.memmap(path, np.uint16, 'r'))
    self.assertEqual(read, [64 * 16] * 4)
    for place in (0, -1):
      changed = np.memmap(path, np.uint16, 'r+')
      changed[place] ^= 1
      self.assertNotEqual(digest_of(np.memmap(path, np.uint16, 'r')), before)
      changed[place] ^= 1
    short = np.memmap(path, np.uint16, 'r')[:-1]
    self.assertNotEqual(digest_of(short), before)


if __name__ == '__main__':
  absltest.main()
