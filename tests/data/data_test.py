"""Tests for data.digits, data.cifar10, data.synthetic and data.dataset."""

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
from PIL import Image
from sklearn import datasets

from data import cifar10, digits, synthetic
from data.dataset import Dataset, Split
from tests.support import requires

_HEAD = 600  # Bytes in which JPEG files of one size and quality agree.


class DatasetTest(parameterized.TestCase):
  def _dataset(self, inputs):
    split = Split(inputs, np.zeros(len(inputs), np.int32))
    return Dataset(split, split, 1, mean=(0.25, 0.5), std=(2.0, 0.5))

  @parameterized.parameters((np.uint8, 255), (np.float32, 1))
  def test_prepare_standardises_each_channel(self, dtype, white):
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (3, 4, 5, 2)).astype(dtype)
    dataset = self._dataset(inputs)
    expected = (inputs.astype(np.float64) / white - [0.25, 0.5]) / [2.0, 0.5]

    with (
      jax.numpy_rank_promotion('raise'),
      jax.numpy_dtype_promotion('strict'),
    ):
      prepared = [dataset.prepare(inputs), jax.jit(dataset.prepare)(inputs)]

    for array in prepared:
      self.assertIsInstance(array, jax.Array)
      self.assertEqual(array.dtype, np.float32)
      np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)

  def test_input_shape_is_that_of_one_example(self):
    dataset = self._dataset(np.zeros((3, 4, 5, 2), np.uint8))
    self.assertEqual(dataset.input_shape, (4, 5, 2))

  def test_prepare_rejects_other_types(self):
    inputs = np.zeros((3, 4, 5, 2), np.int32)
    with self.assertRaisesRegex(ValueError, 'uint8 or float32, got int32'):
      self._dataset(inputs).prepare(inputs)


class DigitsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.dataset = digits.make(directory=None, fold=0, validation=False)
    self.original = datasets.load_digits()

  def test_splits_hold_each_digit_once(self):
    train, test = self.dataset.train, self.dataset.test
    self.assertEqual(train.inputs.shape, (1437, 32, 32, 1))
    self.assertEqual(test.inputs.shape, (360, 32, 32, 1))
    self.assertEqual(train.inputs.dtype, np.float32)
    self.assertEqual(train.targets.dtype, np.int32)

    both = np.concatenate([train.inputs, test.inputs])
    targets = np.concatenate([train.targets, test.targets])
    # A digit's mean tells it from all others of its class but a few.
    found = sorted(zip(targets, both.mean(axis=(1, 2, 3)), strict=True))
    images = _enlarge(self.original.images / 16)
    means = images.mean(axis=(1, 2))
    expected = sorted(zip(self.original.target, means, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5)

  def test_classes_are_as_frequent_in_both_splits(self):
    sizes = np.bincount(self.original.target)
    tested = np.bincount(self.dataset.test.targets)
    self.assertLess(np.abs(tested - sizes / 5).max(), 1)

  def test_each_digit_is_tested_in_one_of_five_folds(self):
    tested, sizes = [], []
    for fold in range(5):
      made = digits.make(directory=None, fold=fold, validation=False)
      self.assertLen(made.train.targets, 1797 - len(made.test.targets))
      tested += zip(
        made.test.targets, made.test.inputs.mean(axis=(1, 2, 3)), strict=True
      )
      sizes.append(np.bincount(made.test.targets))
    self.assertLess(np.ptp(sizes, axis=0).max(), 2)  # Counts of each class.
    means = _enlarge(self.original.images / 16).mean(axis=(1, 2))
    expected = sorted(zip(self.original.target, means, strict=True))
    np.testing.assert_allclose(sorted(tested), expected, rtol=1e-5)

  def test_a_fold_is_in_neither_split_of_its_validation(self):
    for fold in range(5):
      made = digits.make(directory=None, fold=fold, validation=True)
      rest = [
        digits.make(directory=None, fold=other % 5, validation=False).test
        for other in range(fold + 2, fold + 5)
      ]
      tested = digits.make(
        directory=None, fold=(fold + 1) % 5, validation=False
      ).test
      np.testing.assert_array_equal(made.test.inputs, tested.inputs)
      np.testing.assert_array_equal(made.test.targets, tested.targets)
      sums = np.concatenate([each.inputs.sum(axis=(1, 2, 3)) for each in rest])
      np.testing.assert_array_equal(
        np.sort(made.train.inputs.sum(axis=(1, 2, 3))), np.sort(sums)
      )
      self.assertEqual(made.mean, (float(made.train.inputs.mean()),))

  def test_digits_are_enlarged_bilinearly(self):
    targets = self.original.target
    first = np.flatnonzero(targets == 0)[0]
    expected = _enlarge(self.original.images[first : first + 1] / 16)
    np.testing.assert_allclose(
      self.dataset.test.inputs[:1, ..., 0], expected, atol=1e-6
    )

  def test_prepared_training_digits_are_standard(self):
    prepared = self.dataset.prepare(self.dataset.train.inputs)
    self.assertAlmostEqual(float(prepared.mean()), 0, places=4)
    self.assertAlmostEqual(float(prepared.std()), 1, places=4)


def _enlarge(images: np.ndarray) -> np.ndarray:
  shape = (len(images), 32, 32)
  return np.asarray(jax.image.resize(images, shape, method='bilinear'))


class SyntheticTest(parameterized.TestCase):
  def _make(self, **changed):
    arguments = {
      'num_train': 200,
      'num_test': 100,
      'pixels': 9,
      'channels': 2,
      'num_classes': 5,
    }
    return synthetic.make(directory=None, **(arguments | changed))

  def test_shapes_and_types(self):
    dataset = self._make()
    self.assertEqual(dataset.train.inputs.shape, (200, 9, 9, 2))
    self.assertEqual(dataset.test.inputs.shape, (100, 9, 9, 2))
    self.assertEqual(dataset.train.inputs.dtype, np.float32)
    self.assertEqual(dataset.train.targets.dtype, np.int32)
    self.assertEqual(dataset.num_classes, 5)

  def test_classes_are_balanced(self):
    np.testing.assert_array_equal(
      np.bincount(self._make().train.targets), [40] * 5
    )

  def test_same_arguments_give_the_same_examples(self):
    one, two = self._make(), self._make()
    np.testing.assert_array_equal(one.test.inputs, two.test.inputs)
    self.assertFalse(
      np.array_equal(one.test.inputs, one.train.inputs[: len(one.test.inputs)])
    )

  @parameterized.parameters(4, 9, 32)
  def test_the_nearest_class_mean_is_right(self, pixels):
    train, test = self._make(pixels=pixels)[:2]
    means = np.stack(
      [train.inputs[train.targets == k].mean(0) for k in range(5)]
    )
    gaps = test.inputs[:, np.newaxis] - means
    nearest = np.square(gaps).sum(axis=(2, 3, 4)).argmin(axis=1)
    self.assertGreater((nearest == test.targets).mean(), 0.95)

  def test_prepared_examples_are_nearly_standard(self):
    dataset = self._make(num_train=1000, num_classes=200, pixels=8)
    prepared = dataset.prepare(dataset.train.inputs)
    np.testing.assert_allclose(prepared.mean(axis=(0, 1, 2)), 0, atol=0.05)
    np.testing.assert_allclose(prepared.std(axis=(0, 1, 2)), 1, atol=0.05)


class _Python2Pickler(pickle._Pickler):
  """Pickler of the format of Python 2 and NumPy 1, as in the official files."""

  def _save_bytes(self, value):
    self.write(pickle.BINSTRING + struct.pack('<i', len(value)) + value)
    self.memoize(value)

  def _save_bool(self, value):
    self.save_long(int(value))

  dispatch = pickle._Pickler.dispatch | {bytes: _save_bytes, bool: _save_bool}


def _pickle(value) -> bytes:
  file = io.BytesIO()
  _Python2Pickler(file, protocol=2).dump(value)
  return file.getvalue().replace(b'cnumpy._core', b'cnumpy.core')


class _Boom:
  """Fails when it is unpickled."""

  def __reduce__(self):
    return (exec, ('raise RuntimeError("unpickled")',))


class ArchiveTest(absltest.TestCase):
  def _write(self, batches) -> str:
    """Writes an archive in the order of `batches`; returns its folder."""
    directory = tempfile.mkdtemp()
    path = pathlib.Path(directory, 'cifar-10-python.tar.gz')
    with tarfile.open(path, 'w:gz') as archive:
      for name, content in batches.items():
        member = tarfile.TarInfo(f'cifar-10-batches-py/{name}')
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return directory

  def _make(self, directory) -> Dataset:
    archive = pathlib.Path(directory, 'cifar-10-python.tar.gz').read_bytes()
    md5 = hashlib.md5(archive).hexdigest()
    with mock.patch.object(cifar10, 'ARCHIVE_MD5', md5):
      return cifar10.make(directory=directory)

  def test_images_and_classes_come_in_the_order_of_the_batches(self):
    rng = np.random.default_rng(0)
    names = [f'data_batch_{i}' for i in (4, 3, 5, 1, 2)] + ['test_batch']
    data = {name: rng.integers(0, 256, (3, 3072), np.uint8) for name in names}
    labels = {name: rng.integers(0, 10, 3).tolist() for name in names}
    other = {'batches.meta': b'not read', 'readme.html': b'not read'}
    batches = {
      name: _pickle({b'data': data[name], b'labels': labels[name]})
      for name in names
    }

    dataset = self._make(self._write(other | batches))

    self.assertEqual(dataset.train.inputs.shape, (15, 32, 32, 3))
    self.assertEqual(dataset.train.inputs.dtype, np.uint8)
    self.assertEqual(dataset.test.targets.dtype, np.int32)
    self.assertEqual(dataset.num_classes, 10)
    self.assertEqual(dataset.test.targets.tolist(), labels['test_batch'])
    for i in range(5):
      name = f'data_batch_{i + 1}'
      targets = dataset.train.targets[3 * i : 3 * i + 3]
      self.assertEqual(targets.tolist(), labels[name])
      # A row holds the red plane, the green and the blue, each line by line.
      self.assertEqual(
        dataset.train.inputs[3 * i + 1, 20, 7].tolist(),
        [data[name][1, c * 1024 + 20 * 32 + 7] for c in range(3)],
      )

  def test_nothing_is_unpickled_when_the_md5_is_another(self):
    directory = self._write({'test_batch': pickle.dumps(_Boom())})
    with self.assertRaisesRegex(RuntimeError, 'unpickled'):
      self._make(directory)
    with self.assertRaisesRegex(ValueError, 'file: .* md5 c58f30108f718f92'):
      cifar10.make(directory=directory)

  def test_the_md5_is_the_official_one(self):
    self.assertEqual(cifar10.ARCHIVE_MD5, 'c58f30108f718f92721af3b95e74349a')


class NpzTest(parameterized.TestCase):
  def _arrays(self, *, pixels=32) -> tuple[dict, dict]:
    """Returns the arrays of a file and the images that they encode."""
    rng = np.random.default_rng(0)
    arrays, images = {}, {}
    for split, size in (('train', 11), ('test', 3)):
      colours = rng.integers(0, 256, (size, 1, 1, 3), np.uint8)
      encoded = [
        self._jpeg(np.tile(colour, (pixels, pixels, 1))) for colour in colours
      ]
      head = encoded[0][:_HEAD]
      self.assertEqual({jpeg[:_HEAD] for jpeg in encoded}, {head})
      bodies = [jpeg[_HEAD:] for jpeg in encoded]
      arrays[f'{split}_head'] = np.frombuffer(head, np.uint8)
      arrays[f'{split}_buf'] = np.frombuffer(b''.join(bodies), np.uint8)
      arrays[f'{split}_len'] = np.array([len(b) for b in bodies], np.uint16)
      arrays[f'{split}_y'] = (np.arange(size) % 10).astype(np.uint8)
      images[split] = np.stack([np.asarray(_open(jpeg)) for jpeg in encoded])
    return arrays, images

  def _jpeg(self, image) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, 'JPEG')
    return file.getvalue()

  def _make(self, arrays) -> Dataset:
    directory = tempfile.mkdtemp()
    np.savez(pathlib.Path(directory, 'tiny.npz'), **arrays)
    with mock.patch.object(cifar10, '_CHUNK', 4):
      return cifar10.make(directory=directory, file='tiny.npz')

  def test_images_are_decoded_in_order(self):
    arrays, images = self._arrays()
    dataset = self._make(arrays)
    for split in ('train', 'test'):
      made = getattr(dataset, split)
      self.assertEqual(made.inputs.dtype, np.uint8)
      np.testing.assert_array_equal(made.inputs, images[split])
      np.testing.assert_array_equal(made.targets, arrays[f'{split}_y'])
      self.assertEqual(made.targets.dtype, np.int32)

  @parameterized.named_parameters(
    ('missing', lambda a: a.pop('test_len'), r"none for \['test_len'\]"),
    ('short', lambda a: a.update(test_len=a['test_len'][1:]), 'got 2 for 3'),
    ('cut', lambda a: a.update(test_buf=a['test_buf'][1:]), 'adding up to'),
    ('eleventh', lambda a: a.update(test_y=a['test_y'] + 8), 'got 8 to 10'),
    ('broken', lambda a: a.update(test_head=a['test_head'][9:]), 'JPEG'),
    ('zeros', lambda a: a.update(test_buf=a['test_buf'] * 0), 'JPEG'),
  )
  def test_wrong_arrays_are_rejected(self, change, message):
    arrays, _ = self._arrays()
    change(arrays)
    with self.assertRaisesRegex(ValueError, f'file: .*{message}'):
      self._make(arrays)

  def test_images_of_another_size_are_rejected(self):
    arrays, _ = self._arrays(pixels=16)
    with self.assertRaisesRegex(ValueError, r'file: .* got \(16, 16, 3\)'):
      self._make(arrays)

  def test_the_real_images_are_all_there(self):
    real = requires.data('cifar10_jpeg.npz')
    dataset = cifar10.make(directory=str(real.parent), file=real.name)
    counts = [np.bincount(split.targets).tolist() for split in dataset[:2]]
    self.assertEqual(counts, [[5000] * 10, [1000] * 10])
    self.assertEqual(dataset.input_shape, (32, 32, 3))
    levels = np.arange(256) / 255
    for channel, (mean, std) in enumerate(
      [(0.4913, 0.2452), (0.4821, 0.2428), (0.4465, 0.2606)]
    ):
      pixels = dataset.train.inputs[..., channel].ravel()
      share = np.bincount(pixels, minlength=256) / len(pixels)
      self.assertAlmostEqual(share @ levels, mean, delta=1e-4)
      self.assertAlmostEqual(share @ (levels - mean) ** 2, std**2, delta=1e-4)


class MissingFileTest(parameterized.TestCase):
  @parameterized.parameters(None, '', tempfile.gettempdir())
  def test_message_names_the_setting(self, directory):
    with self.assertRaisesRegex(
      ValueError, "file: expected 'no.npz' .* config.data.dir .* SYNCOPATE_DATA"
    ):
      cifar10.make(directory=directory, file='no.npz')

  def test_unknown_suffix_is_rejected(self):
    with self.assertRaisesRegex(ValueError, r"\.npz, got 'cifar.zip'"):
      cifar10.make(directory=None, file='cifar.zip')


def _open(jpeg: bytes) -> Image.Image:
  return Image.open(io.BytesIO(jpeg))


if __name__ == '__main__':
  absltest.main()
