"""Tests for data.folder, on small new folders."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from data import folder
from tests.support import small


class FolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(tempfile.mkdtemp())

  def _save(self, name, pixels):
    path = self.directory / 'images' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)

  def _make(self, pixels=8):
    return folder.make(
      directory=str(self.directory), folder='images', pixels=pixels
    )

  def _fill(self, test='test', images=6):
    """Writes two classes: dark and bright images."""
    rng = np.random.default_rng(0)
    for split in ('train', test):
      for name, least in (('bright', 128), ('dark', 0)):
        for i in range(images):
          pixels = rng.integers(least, least + 128, (8, 8, 3), np.uint8)
          self._save(f'{split}/{name}/{i}.png', pixels)

  def test_images_of_the_size_are_read_as_they_are(self):
    """A PNG loses nothing, and the whole square is shown."""
    self._fill()
    dataset = self._make()
    self.assertEqual(dataset.num_classes, 2)
    self.assertEqual(dataset.train.targets.tolist(), 6 * [0] + 6 * [1])
    for row, name in ((0, 'bright/0'), (11, 'dark/5')):
      path = self.directory / f'images/test/{name}.png'
      np.testing.assert_array_equal(
        dataset.test.inputs[row], np.asarray(Image.open(path))
      )

  def test_the_central_square_is_resized(self):
    self._fill(images=1)
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, 8:24] = (200, 100, 0)
    self._save('test/dark/0.png', pixels)
    shown = self._make(4).test.inputs[1]
    # The resizing filter reaches one column beyond the square.
    np.testing.assert_array_equal(shown[:, 1:3, 0], 200)
    self.assertGreater(shown[..., 0].min(), 150)

  def test_endings_may_be_large_and_grey_images_have_three_channels(self):
    self._fill(images=1)
    self._save('test/dark/1.JPG', np.full((9, 9), 77, np.uint8))
    self._save('test/dark/2.jpeg', np.full((9, 9), 77, np.uint8))
    test = self._make().test
    self.assertLen(test.inputs, 4)
    self.assertLess(np.abs(test.inputs[2:].astype(int) - 77).max(), 3)

  def test_prepared_training_images_are_standard(self):
    self._fill()
    dataset = self._make()
    prepared = np.asarray(dataset.prepare(dataset.train.inputs[:]))
    np.testing.assert_allclose(prepared.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(prepared.std(axis=(0, 1, 2)), 1, atol=1e-5)

  def test_images_for_testing_are_in_test_or_else_in_val(self):
    self._fill('val')
    self.assertLen(self._make().test.inputs, 12)
    self._fill('test', images=2)
    self.assertLen(self._make().test.inputs, 4)

  def test_a_run_learns_from_a_folder(self):
    self._fill(images=12)
    _, summary = small.execute(
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      batching__worker_batch=4,
      epochs=8.0,
      data__name='folder',
      data__dir=str(self.directory),
      data__folder__pixels=8,
      **{f'data__synthetic__{name}': n for name, n in _UNUSED.items()},
    )
    self.assertGreater(summary['final_accuracy'], 0.9)

  @parameterized.parameters(
    ('train/c.png', 'got 3 in train and 1 .*: c'),
    ('test/c.png', '2 in train and 1 .*: c'),
    (None, "'images/val' .* lacks it"),
  )
  def test_folders_that_lack_classes_are_refused(self, file, message):
    if file is None:
      self._fill('other')
    else:
      self._fill()
      split, name = pathlib.Path(file).parts
      pixels = np.zeros((4, 4, 3), np.uint8)
      self._save(f'{split}/{pathlib.Path(name).stem}/0.png', pixels)
    with self.assertRaisesRegex(ValueError, f'folder: .*{message}'):
      self._make()


_UNUSED = {  # Must have their defaults.
  'num_train': 1024,
  'num_test': 256,
  'pixels': 32,
  'channels': 3,
}


if __name__ == '__main__':
  absltest.main()
