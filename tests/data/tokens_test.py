"""Tests for data.token_rows, data.text and data.tokens."""

import gzip
import io
import pathlib
import tempfile
from pydoc_data.topics import topics

import hypothesis
import jax
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from data import text, token_rows, tokens
from data.dataset import PADDING, Dataset


def _folder() -> pathlib.Path:
  return pathlib.Path(tempfile.mkdtemp())


def _sequence(*splits) -> list[int]:
  """Returns the first input and all targets that count."""
  found = [int(splits[0].inputs[0][0])]
  for split in splits:
    targets = split.targets[:]
    found += targets[targets != PADDING].tolist()
  return found


class TokenRowsTest(parameterized.TestCase):
  @hypothesis.settings(deadline=None)
  @hypothesis.given(st.integers(2, 60), st.integers(1, 9), st.data())
  def test_every_token_but_the_first_is_a_target_once(
    self, count, length, data
  ):
    sequence = np.arange(count, dtype=np.uint16)
    split = token_rows.split(sequence, length=length)
    inputs, targets = split.inputs[:], split.targets[:]
    self.assertEqual((inputs.dtype, targets.dtype), (np.int32, np.int32))
    self.assertEqual(inputs.shape, split.inputs.shape)
    self.assertEqual(targets[targets >= 0].tolist(), [*range(1, count)])
    np.testing.assert_array_equal(
      inputs[targets >= 0], targets[targets >= 0] - 1
    )
    self.assertTrue((targets[:-1] >= 0).all())
    rows = data.draw(
      st.lists(st.integers(-len(inputs), len(inputs) - 1), max_size=5)
    )
    for whole, array in ((inputs, split.inputs), (targets, split.targets)):
      np.testing.assert_array_equal(
        array[np.array(rows, int)], whole[np.array(rows, int)]
      )
      np.testing.assert_array_equal(array[1::2], whole[1::2])
      np.testing.assert_array_equal(array[-1], whole[-1])
      with self.assertRaisesRegex(IndexError, 'rows: expected'):
        array[len(whole)]

  def test_documents_are_numbered_from_separator_to_separator(self):
    dataset = Dataset(*[token_rows.split(np.arange(9), length=4)] * 2)
    inputs = np.array([[7, 1, 7, 2, 3], [1, 1, 7, 7, 2]], np.int32)
    prepared = dataset.prepare(inputs)
    self.assertIsInstance(prepared, jax.Array)
    np.testing.assert_array_equal(prepared, inputs)
    packed = dataset._replace(separator=7)
    for found in (packed.prepare(inputs), jax.jit(packed.prepare)(inputs)):
      np.testing.assert_array_equal(found[0], inputs)
      np.testing.assert_array_equal(
        found[1], [[1, 1, 2, 2, 2], [0, 0, 1, 2, 2]]
      )
    with self.assertRaisesRegex(ValueError, 'int32 tokens, got float32'):
      packed.prepare(inputs.astype(np.float32))


class TextTest(parameterized.TestCase):
  def _make(self, content, **changed) -> Dataset:
    directory = _folder()
    (directory / 'tiny.txt').write_bytes(content)
    arguments = {'file': 'tiny.txt', 'length': 4, 'test_share': 0.25}
    return text.make(directory=str(directory), **(arguments | changed))

  def test_rows_give_all_bytes_back(self):
    content = 'Sur le pont d’Avignon,\r\non y danse 🎶, on y danse. Zut!\n'
    dataset = self._make(content.encode())
    self.assertEqual(dataset.num_classes, 256)
    self.assertEqual(dataset.bytes_per_token, 1.0)
    self.assertEqual(dataset.input_shape, (4,))
    found = bytes(_sequence(dataset.train, dataset.test))
    self.assertEqual(found.decode(), content)

  @parameterized.parameters(
    (0.25, 10, 2), (0.01, 10, 1), (0.99, 10, 9), (0.5, 2, 1), (0.1, 100, 10)
  )
  def test_the_last_rows_are_for_testing(self, share, rows, tests):
    for more in (0, 1, 3):  # In a padded row.
      count = (rows - (more > 0)) * 4 + 1 + more
      content = bytes(k % 256 for k in range(count))
      dataset = self._make(content, test_share=share)
      self.assertLen(dataset.test.targets, tests)
      self.assertLen(dataset.train.targets, rows - tests)
      self.assertTrue((dataset.train.targets[:] >= 0).all())
      self.assertEqual(bytes(_sequence(dataset.train, dataset.test)), content)

  def test_python_brings_a_text_whose_topics_are_documents(self):
    dataset = text.make(directory=None, file='', length=128, test_share=0.1)
    found = bytes(_sequence(dataset.train, dataset.test))
    parts = found.decode().split('\0')
    self.assertEqual(parts, ['', *topics.values()])
    self.assertEqual(dataset.separator, 0)

  @parameterized.parameters(
    (b'to be', {}, 'file: .* 6 bytes, for a row of 4 .*, got 5'),
    (b'', {}, 'file: .* got 0'),
    (b'to be or not', {'file': 'no.txt'}, "file: expected 'no.txt'"),
  )
  def test_rejects(self, content, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      self._make(content, **changed)


class TokensTest(parameterized.TestCase):
  def _make(self, content, test=None, **changed) -> Dataset:
    directory = _folder()
    dtype = changed.get('dtype', 'uint16')
    for name, part in (('train.bin', content), ('val.bin', test)):
      if isinstance(part, list):
        part = np.array(part, f'<u{2 if dtype == "uint16" else 4}').tobytes()
      if part is not None:
        (directory / name).write_bytes(part)
    arguments = {
      'file': 'train.bin',
      'test_file': '' if test is None else 'val.bin',
      'test_tokens': 5,
      'dtype': dtype,
      'vocabulary': 1000,
      'separator': 999,
      'length': 4,
      'bytes_per_token': 4.2,
    }
    return tokens.make(directory=str(directory), **(arguments | changed))

  @parameterized.parameters(('uint16', 50257), ('uint32', 100_277))
  def test_the_last_tokens_are_for_testing(self, dtype, vocabulary):
    rng = np.random.default_rng(0)
    content = rng.integers(vocabulary, size=31).tolist()
    dataset = self._make(content, dtype=dtype, vocabulary=vocabulary)
    self.assertEqual(_sequence(dataset.test), content[-6:])
    self.assertEqual(_sequence(dataset.train), content[:25])
    self.assertTrue((dataset.train.targets[:] >= 0).all())
    self.assertEqual(dataset.num_classes, vocabulary)
    self.assertEqual((dataset.separator, dataset.bytes_per_token), (999, 4.2))

  def test_a_file_for_testing_is_used_from_its_start(self):
    content, test = [*range(20)], [*range(100, 120)]
    dataset = self._make(content, test, separator=-1, bytes_per_token=0.0)
    self.assertEqual(_sequence(dataset.train), content[:17])
    self.assertEqual(_sequence(dataset.test), test[:6])
    self.assertEqual((dataset.separator, dataset.bytes_per_token), (None, None))
    whole = self._make(content, test, test_tokens=10**9)
    self.assertEqual(_sequence(whole.test), test)

  def test_files_stay_on_the_disk(self):
    dataset = self._make([*range(1000)])
    for split in dataset[:2]:
      self.assertIsInstance(split.inputs.tokens, np.memmap)
      self.assertIsInstance(split.targets.tokens, np.memmap)
      self.assertNotIsInstance(split.inputs[:1], np.memmap)

  @parameterized.parameters(
    ('uint16', np.uint32, 'of 4 bytes'),
    ('uint16', np.int64, 'of 8 bytes'),
    ('uint32', np.int64, 'of 8 bytes'),
  )
  def test_wider_integers_are_found_in_any_vocabulary(self, dtype, wide, said):
    rng = np.random.default_rng(0)
    for most, wanted in ((2, 2), (65, 65), (50257, 50257), (50257, 2**16)):
      content = rng.integers(most, size=99).astype(wide).tobytes()
      message = f'^file: .* {dtype!r}.*, got /.*/train.bin, .* integers {said}'
      with self.assertRaisesRegex(ValueError, message):
        self._make(content, dtype=dtype, vocabulary=wanted, separator=-1)

  def test_no_corpus_of_the_right_type_is_taken_for_another(self):
    rng = np.random.default_rng(0)
    for vocabulary in (2, 3, 65, 256, 1000, 50257, 2**16):
      for dtype in ('uint16', 'uint32'):
        for _ in range(20):
          content = rng.integers(vocabulary, size=40).tolist()
          kinds = {'dtype': dtype, 'vocabulary': vocabulary, 'separator': -1}
          dataset = self._make(content, **kinds)
          self.assertEqual(_sequence(dataset.test), content[-6:])

  def test_headers_of_other_formats_are_no_tokens(self):
    values = np.arange(99, dtype=np.uint16)
    array, archive = io.BytesIO(), io.BytesIO()
    np.save(array, values)
    np.savez(archive, values)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(values)  # Of llm.c's data.
    files = {
      'a NumPy array': array.getvalue(),
      'a ZIP archive': archive.getvalue(),
      'gzip': gzip.compress(values.tobytes()),
      'llm.c': header.tobytes() + values.tobytes(),
      'a text': 'Sur le pont d’Avignon,\r\non y danse. Zut!\n'.encode() * 2,
    }
    for kind, content in files.items():
      for dtype in ('uint16', 'uint32'):
        whole = content + b' ' * (-len(content) % 4)
        message = f'^file: .* without a header.*/train.bin, .* {kind}'
        with self.assertRaisesRegex(ValueError, message):
          self._make(whole, dtype=dtype, vocabulary=2**16, separator=-1)
    with self.assertRaisesRegex(ValueError, '^test_file: .* a NumPy array'):
      self._make([5] * 99, array.getvalue())

  @parameterized.parameters(
    (
      b'123',
      {},
      r'^file: expected whole tokens of 2 bytes .* got 3 bytes in /',
    ),
    (
      b'123456',
      {'dtype': 'uint32'},
      r"^file: .* 4 bytes \(dtype 'uint32'\), got 6 bytes",
    ),
    (
      [5] * 30 + [1000, 1001],
      {},
      r'^file: .* below config.data.tokens.vocabulary, 1000, got 1000 at '
      'token 30 of /',
    ),
    ([5] * 9, {}, '^file: .* 10 tokens, for a row of 4 and .* 5, got 9 in'),
    ([], {}, '^file: expected at least 10 tokens, .* got 0'),
    ([5] * 99, {'file': 'no.bin'}, "^file: expected 'no.bin'"),
    ([5] * 99, {'test_file': 'no.bin'}, "^test_file: expected 'no.bin'"),
    ([5] * 99, {'test': b'123'}, '^test_file: expected whole tokens'),
    ([5] * 99, {'test': [5]}, '^test_file: .* 2 tokens, got 1 in'),
    ([5] * 99, {'test': [5, 1000]}, '^test_file: .* got 1000 at token 1'),
    ([5] * 99, {'separator': 1000}, '^separator: .* below 1000, .* got 1000'),
  )
  def test_rejects(self, content, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      self._make(content, **changed)


if __name__ == '__main__':
  absltest.main()
