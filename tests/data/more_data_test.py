"""Tests for cifar100, fashion_mnist and augment of data/."""

import functools
import gzip
import hashlib
import io
import pathlib
import pickle
import struct
import tarfile
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from data import augment, cifar100, fashion_mnist
from data.dataset import Dataset
from tests.support import requires, small_models

_FASHION = pathlib.Path('/usr/share/datasets/fashion-mnist')  # Debian's.


def _folder() -> pathlib.Path:
  return pathlib.Path(tempfile.mkdtemp())


class Cifar100Test(absltest.TestCase):
  def _write(self, members) -> str:
    directory = _folder()
    with tarfile.open(directory / 'tiny.tar.gz', 'w:gz') as archive:
      for name, content in members.items():
        member = tarfile.TarInfo(f'cifar-100-python/{name}')
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return str(directory)

  def _make(self, directory) -> Dataset:
    archive = pathlib.Path(directory, 'tiny.tar.gz').read_bytes()
    md5 = hashlib.md5(archive).hexdigest()
    with mock.patch.object(cifar100, 'ARCHIVE_MD5', md5):
      return cifar100.make(directory=directory, file='tiny.tar.gz')

  def test_targets_are_the_fine_classes(self):
    rng = np.random.default_rng(0)
    batches = {
      name: {
        b'data': rng.integers(0, 256, (size, 3072), np.uint8),
        b'fine_labels': rng.integers(0, 100, size).tolist(),
        b'coarse_labels': rng.integers(0, 20, size).tolist(),
      }
      for name, size in (('test', 2), ('train', 5))
    }
    members = {name: pickle.dumps(batch) for name, batch in batches.items()}

    dataset = self._make(self._write({'meta': b'not read'} | members))

    self.assertEqual(dataset.num_classes, 100)
    self.assertEqual(dataset.input_shape, (32, 32, 3))
    for name, batch in batches.items():
      split = getattr(dataset, name)
      self.assertEqual(split.targets.tolist(), batch[b'fine_labels'])
      self.assertEqual(
        (split.inputs.dtype, split.targets.dtype), (np.uint8, np.int32)
      )
      rows = np.stack([split.inputs[..., c] for c in range(3)], axis=1)
      np.testing.assert_array_equal(rows.reshape(len(rows), -1), batch[b'data'])

  def test_another_archive_is_rejected_unread(self):
    directory = self._write({'train': b'no pickle'})
    with self.assertRaises(pickle.UnpicklingError):
      self._make(directory)
    with self.assertRaisesRegex(
      ValueError, 'file: .* md5 eb9058c3a382ffc7106e4002c42a8d85, got .* of md5'
    ):
      cifar100.make(directory=directory, file='tiny.tar.gz')


class FashionMnistTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    self.images = rng.integers(0, 256, (7, 28, 28), np.uint8)
    self.labels = np.array([3, 0, 9, 9, 1, 2, 5], np.uint8)
    self.files = {
      'train-images-idx3-ubyte': _idx(self.images),
      'train-labels-idx1-ubyte': _idx(self.labels),
      't10k-images-idx3-ubyte': _idx(self.images[:2]),
      't10k-labels-idx1-ubyte': _idx(self.labels[:2]),
    }

  def _make(self, pack=lambda content: content, suffix='') -> Dataset:
    directory = _folder()
    (directory / 'tiny').mkdir()
    for name, content in self.files.items():
      (directory / 'tiny' / f'{name}{suffix}').write_bytes(pack(content))
    return fashion_mnist.make(directory=str(directory), folder='tiny')

  @parameterized.parameters(
    (lambda content: content, ''), (gzip.compress, '.gz')
  )
  def test_images_get_margins_of_zeros(self, pack, suffix):
    dataset = self._make(pack, suffix)
    inputs = dataset.train.inputs
    self.assertEqual((inputs.shape, inputs.dtype), ((7, 32, 32, 1), np.uint8))
    np.testing.assert_array_equal(inputs[:, 2:30, 2:30, 0], self.images)
    self.assertEqual(inputs.sum(dtype=int), self.images.sum(dtype=int))
    self.assertEqual(dataset.train.targets.tolist(), self.labels.tolist())
    self.assertEqual(dataset.test.targets.dtype, np.int32)
    np.testing.assert_array_equal(dataset.test.inputs, inputs[:2])

  @parameterized.named_parameters(
    ('missing', lambda f, n: f.pop(n[3]), 'lacks both'),
    ('magic', lambda f, n: f.update({n[0]: f[n[1]] * 9}), '2051 in .*got 2049'),
    ('no_header', lambda f, n: f.update({n[1]: b'\0\0\x08'}), 'header of 8.*3'),
    (
      'cut',
      lambda f, n: f.update({n[0]: f[n[0]][:-1]}),
      r'5488 bytes, got 5487',
    ),
    (
      'long',
      lambda f, n: f.update({n[1]: f[n[1]] + b'\0'}),
      '7 items .* got 8',
    ),
    ('fewer', lambda f, n: f.update({n[3]: f[n[1]]}), 'got 2 and 7 in t10k'),
    ('empty', lambda f, n: f.update(_empty(n)), 'at least one, got 0 and 0'),
    ('eleventh', lambda f, n: f.update({n[3]: _idx(_TEN)}), '0 to 9.*got 10'),
    ('size', lambda f, n: f.update({n[2]: _idx(_WIDE)}), r'got \(28, 29\)'),
  )
  def test_wrong_files_are_rejected(self, change, message):
    change(self.files, list(self.files))
    with self.assertRaisesRegex(ValueError, f'folder: .*{message}'):
      self._make()

  @parameterized.parameters(
    lambda content: content,
    lambda content: gzip.compress(content)[:-20],
    lambda content: gzip.compress(content)[:10] + b'\xff' * 50,
  )
  def test_broken_gzip_is_rejected(self, pack):
    with self.assertRaisesRegex(ValueError, 'gzipped file, got .*ubyte.gz'):
      self._make(pack, '.gz')

  @parameterized.parameters(None, tempfile.gettempdir())
  def test_message_names_the_setting(self, directory):
    with self.assertRaisesRegex(
      ValueError, "folder: expected 'no' .* config.data.dir .* SYNCOPATE_DATA"
    ):
      fashion_mnist.make(directory=directory, folder='no')

  def test_the_real_images_are_standard_when_prepared(self):
    requires.host(_FASHION.is_dir(), f'No folder {_FASHION}.')
    dataset = fashion_mnist.make(
      directory=str(_FASHION.parent), folder=_FASHION.name
    )
    counts = [np.bincount(split.targets).tolist() for split in dataset[:2]]
    self.assertEqual(counts, [[6000] * 10, [1000] * 10])
    share = np.bincount(dataset.train.inputs.ravel(), minlength=256)
    share = share / dataset.train.inputs.size
    levels = np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1)
    levels = np.asarray(dataset.prepare(levels), np.float64).ravel()
    self.assertAlmostEqual(share @ levels, 0, delta=1e-3)
    self.assertAlmostEqual(share @ levels**2, 1, delta=1e-3)


_TEN = np.array([1, 10], np.uint8)


_WIDE = np.zeros((2, 28, 29), np.uint8)


def _idx(array: np.ndarray) -> bytes:
  header = struct.pack('>HBB', 0, 8, array.ndim)
  return header + struct.pack(f'>{array.ndim}I', *array.shape) + array.tobytes()


def _empty(names) -> dict[str, bytes]:
  shapes = ((0, 28, 28), (0,))
  return {
    name: _idx(np.zeros(shape, np.uint8))
    for name, shape in zip(names[2:], shapes, strict=True)
  }


class AugmentTest(parameterized.TestCase):
  def _images(self, dtype=np.uint8, batch=64) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(1, 256, (batch, 8, 10, 3)).astype(dtype)

  @parameterized.parameters(
    *((np.uint8, padding, True) for padding in (0, 1, 4, 12)),
    *((np.float32, 4, False), (np.int32, 4, True)),
  )
  def test_each_image_is_one_of_all_crops(self, dtype, padding, flip):
    images = self._images(dtype, batch=16)
    with (
      jax.numpy_rank_promotion('raise'),
      jax.numpy_dtype_promotion('strict'),
    ):
      found = _augment(images, 3, padding=padding, flip=flip)
    self.assertEqual((found.shape, found.dtype), (images.shape, images.dtype))
    for choice in _choices(images, np.asarray(found), padding, flip):
      self.assertIsNotNone(choice)

  def test_all_choices_are_equally_likely(self):
    images = self._images(batch=2000)
    found = _augment(images, 0, padding=2)
    choices = np.array(_choices(images, np.asarray(found), 2, True))
    counts = np.zeros((2, 5, 5))
    np.add.at(counts, tuple(choices.T), 1)
    # Pearson's statistic of 49 degrees of freedom: 86 has probability 0.1 %.
    self.assertLess(np.square(counts - 40).sum() / 40, 86)

  def test_the_key_decides(self):
    images = self._images()
    change = small_models.jit(augment.flip_and_crop)
    one, again = (change(images, jax.random.key(5)) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(
      one, augment.flip_and_crop(images, jax.random.key(5))
    )
    other = change(images, jax.random.key(6))
    same = (np.asarray(one) == np.asarray(other)).all(axis=(1, 2, 3))
    self.assertLess(same.mean(), 0.1)
    self.assertEqual(change._cache_size(), 1)

  def test_nothing_to_do_changes_nothing(self):
    images = self._images()
    found = augment.flip_and_crop(
      images, jax.random.key(0), padding=0, flip=False
    )
    self.assertIsInstance(found, jax.Array)
    np.testing.assert_array_equal(found, images)

  @parameterized.parameters(
    (np.zeros((8, 8, 3)), 4, r'inputs: .* got \(8, 8, 3\)'),
    (np.zeros((1, 8, 8, 3)), -1, 'padding: .* got -1'),
  )
  def test_rejects(self, inputs, padding, message):
    with self.assertRaisesRegex(ValueError, message):
      augment.flip_and_crop(inputs, jax.random.key(0), padding=padding)


def _augment(images, seed, **changed) -> jax.Array:
  change = functools.partial(augment.flip_and_crop, **changed)
  return small_models.jit(change)(images, jax.random.key(seed))


def _choices(images, found, padding, flip) -> list[tuple | None]:
  """Returns which (flip, top, left) each image shows, by trying them all."""
  _, height, width, _ = images.shape
  margin = (padding, padding)
  choices = [None] * len(images)
  for mirrored in (False, True)[: 1 + flip]:
    original = images[:, :, ::-1] if mirrored else images
    padded = np.pad(original, ((0, 0), margin, margin, (0, 0)))
    for top, left in np.ndindex(2 * padding + 1, 2 * padding + 1):
      crops = padded[:, top : top + height, left : left + width]
      for i in np.flatnonzero((crops == found).all(axis=(1, 2, 3))):
        choices[i] = (int(mirrored), top, left)
  return choices


if __name__ == '__main__':
  absltest.main()
