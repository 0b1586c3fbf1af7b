"""Tests for data.imagenet, on small new folders."""

import io
import pathlib
import tempfile

import grain
import jax
import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from data import imagenet
from data.dataset import Dataset, Split
from learning.evaluation import TaskEvaluation
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from models import mlp, task


def _folder() -> pathlib.Path:
  return pathlib.Path(tempfile.mkdtemp())


class ImagenetTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = _folder()
    rng = np.random.default_rng(0)
    # Written in another order than that of the names.
    for split, images in (('train', 3), ('val', 2)):
      for name in ('n03', 'n01', 'n02'):
        for i in reversed(range(images)):
          pixels = rng.integers(0, 256, (8, 10, 3), np.uint8)
          image = Image.fromarray(pixels).resize((80, 64))
          self._save(image, f'{split}/{name}/{name}_{i}.JPEG')

  def _save(self, image, name, kind='JPEG') -> pathlib.Path:
    path = self.directory / 'photos' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, kind)
    return path

  def _make(self, pixels=28) -> Dataset:
    return imagenet.make(
      directory=str(self.directory), folder='photos', pixels=pixels
    )

  def test_examples_are_sorted_by_class(self):
    (self.directory / 'photos' / 'train' / 'notes.txt').write_text('No class.')
    (self.directory / 'photos' / 'val' / 'n02' / 'notes.txt').write_text('-')
    dataset = self._make()
    self.assertEqual(dataset.num_classes, 3)
    self.assertEqual(dataset.input_shape, (28, 28, 3))
    self.assertEqual(
      dataset.train.targets.tolist(), [0, 0, 0, 1, 1, 1, 2, 2, 2]
    )
    self.assertEqual(dataset.test.targets.tolist(), [0, 0, 1, 1, 2, 2])
    self.assertEqual(dataset.train.targets.dtype, np.int32)
    self.assertLen(dataset.test.inputs, 6)
    for row, name in enumerate(('n01/n01_0', 'n01/n01_1', 'n02/n02_0')):
      path = self.directory / 'photos' / 'val' / f'{name}.JPEG'
      np.testing.assert_array_equal(
        dataset.test.inputs[row], _resize_and_crop(path)
      )

  def test_neither_classes_nor_images_keep_the_order_of_the_disk(self):
    rng = np.random.default_rng(2)
    for name in map(int, rng.permutation(8)):
      for i in map(int, rng.permutation(8)):
        grey = Image.new('L', (9, 9), 32 * name + 4 * i)
        for split in ('train', 'val'):
          self._save(grey, f'{split}/a{name}/{i}.JPG')
    dataset = self._make(pixels=1)
    shown = dataset.test.inputs[dataset.test.targets < 8].ravel()
    expected = np.repeat(np.arange(0, 256, 4), 3)
    self.assertLess(np.abs(shown - expected.astype(int)).max(), 2)

  @parameterized.parameters((80, 64), (64, 96), (64, 64), (240, 192))
  def test_shows_the_centre_of_the_resized_image(self, width, height):
    pixels = np.random.default_rng(1).integers(0, 256, (9, 9, 3), np.uint8)
    image = Image.fromarray(pixels).resize((width, height))
    path = self._save(image, 'val/n01/n01_0.JPEG')
    np.testing.assert_array_equal(
      self._make().test.inputs[0], _resize_and_crop(path)
    )

  @parameterized.parameters(
    ('L', 'JPEG', 99), ('CMYK', 'JPEG', (9, 99, 200, 0)), ('P', 'PNG', 3)
  )
  def test_every_image_is_red_green_and_blue(self, mode, kind, colour):
    image = Image.new(mode, (40, 30), colour)
    self._save(image, 'val/n01/n01_0.JPEG', kind)
    shown = self._make().test.inputs[0]
    expected = np.asarray(image.convert('RGB'))[0, 0]
    self.assertEqual((shown.shape, shown.dtype), ((28, 28, 3), np.uint8))
    self.assertLess(np.abs(shown - expected.astype(int)).max(), 3)

  @parameterized.parameters(
    (np.array([7, 0, 7, 3]),),
    (np.array([-1]),),
    (np.array([], np.int64),),
    (np.array([[1, 2], [3, 4]]),),
    (np.arange(9) % 2 == 0,),
    (slice(2, 5),),
    (slice(6, 40),),
    (slice(None, None, -2),),
    (4,),
  )
  def test_rows_are_those_of_the_array(self, rows):
    inputs = self._make().train.inputs
    whole = np.stack([inputs[i] for i in range(len(inputs))])
    self.assertEqual((inputs.shape, inputs.dtype), (whole.shape, whole.dtype))
    np.testing.assert_array_equal(inputs[rows], whole[rows])

  @parameterized.parameters((9,), (-10,), (np.array([0, 9]),))
  def test_there_are_no_other_rows(self, rows):
    with self.assertRaises(IndexError):
      _ = self._make().train.inputs[rows]

  def test_is_a_source_of_grain(self):
    images = self._make().train.inputs
    self.assertIsInstance(images, grain.sources.RandomAccessDataSource)
    batch = grain.MapDataset.source(images).seed(0).shuffle().batch(4)[0]
    self.assertEqual(batch.shape, (4, 28, 28, 3))

  def test_trains_and_evaluates_as_the_array_does(self):
    dataset = self._make()
    model = mlp.make(
      input_shape=dataset.input_shape, num_classes=3, seed=0, hidden=(4,)
    )
    learned = task.classification(
      model, dataset.prepare, lambda inputs, key: inputs
    )
    lazy = dataset.test.inputs
    found = []
    for inputs in (lazy, lazy[:]):
      split = Split(inputs, dataset.test.targets)
      evaluate = TaskEvaluation(learned, split, batch=4)
      gradient = TaskGradient(
        learned,
        split,
        lambda ranges: np.array([5, 1, 2]),
        micro_batch=2,
        seed=0,
      )
      summed, loss = gradient(learned.params, Iteration((), worker=0, number=0))
      accuracy = evaluate(learned.params, learned.stats)
      found.append((accuracy, float(loss), summed))
    jax.tree.map(np.testing.assert_array_equal, *found)

  @parameterized.named_parameters(
    ('cut', lambda whole: whole[: len(whole) // 2]),
    ('text', lambda whole: b'Not found.'),
    ('nothing', lambda whole: b''),
    ('broken_png', lambda whole: _broken_png()),
  )
  def test_a_corrupt_image_is_named_when_it_is_used(self, change):
    path = self.directory / 'photos' / 'train' / 'n02' / 'n02_1.JPEG'
    path.write_bytes(change(path.read_bytes()))
    inputs = self._make().train.inputs
    self.assertEqual(inputs[:4].shape, (4, 28, 28, 3))
    with self.assertRaisesRegex(ValueError, 'folder: .*n02/n02_1.JPEG'):
      _ = inputs[3:6]

  @parameterized.named_parameters(
    ('in_val', ('val',), '3 in train and 1 .*: n04'),
    ('in_both', ('train', 'val'), 'images .*n04, got none'),
  )
  def test_empty_folders_are_rejected(self, splits, message):
    for split in splits:
      (self.directory / 'photos' / split / 'n04').mkdir()
    with self.assertRaisesRegex(ValueError, f'folder: .*{message}'):
      self._make()

  def test_a_flat_folder_is_rejected(self):
    for split in ('train', 'val'):
      (self.directory / 'flat' / split).mkdir(parents=True)
    with self.assertRaisesRegex(ValueError, 'got 0 in train .*: none'):
      imagenet.make(directory=str(self.directory), folder='flat', pixels=28)

  @parameterized.parameters(
    ({'folder': 'no'}, "folder: expected 'no/train' .* SYNCOPATE_DATA"),
    ({'directory': None}, "'photos/train' .* neither names one"),
  )
  def test_wrong_arguments_are_rejected(self, changed, message):
    arguments = {'folder': 'photos', 'pixels': 28}
    arguments |= {'directory': str(self.directory)} | changed
    with self.assertRaisesRegex(ValueError, message):
      imagenet.make(**arguments)


def _resize_and_crop(path: pathlib.Path) -> np.ndarray:
  """Resizes to a shorter side of 32, then crops the central 28 pixels."""
  with Image.open(path) as image:
    scale = 32 / min(image.size)
    size = [round(length * scale) for length in image.size]
    resized = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
  top, left = ((length - 28) // 2 for length in resized.shape[:2])
  return resized[top : top + 28, left : left + 28]


def _broken_png() -> bytes:
  file = io.BytesIO()
  Image.new('RGB', (40, 30)).save(file, 'PNG')
  whole = file.getvalue()
  return whole[:40] + b'\xff' * 4 + whole[44:]


if __name__ == '__main__':
  absltest.main()
