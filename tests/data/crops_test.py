"""Tests for crops of random size, with Pillow as oracle."""

import functools

import jax
import numpy as np
import scipy.stats
from absl.testing import absltest, parameterized
from PIL import Image

from data import augment
from tests.support import small_models

_SIZE = (24, 32)


def _images(batch):
  return np.random.default_rng(0).normal(size=(batch, *_SIZE, 3)).astype('f4')


def _by_pillow(image, box):
  """Returns a box, (top, left, height, width), resized by Pillow."""
  top, left, height, width = map(float, box)
  channels = [
    Image.fromarray(channel).resize(
      _SIZE[::-1],
      Image.Resampling.BILINEAR,
      box=(left, top, left + width, top + height),
    )
    for channel in np.moveaxis(image, -1, 0)
  ]
  return np.stack(channels, axis=-1)


_drawn = small_models.jit(
  jax.vmap(functools.partial(augment._box, _SIZE, 0.08))
)


@functools.cache
def _boxes():
  return np.asarray(_drawn(jax.random.split(jax.random.key(3), 4000)))


class CropTest(parameterized.TestCase):
  def test_a_part_is_resized_as_pillow_does(self):
    boxes = np.array(
      [(0, 0, *_SIZE), (3.25, 5.5, 7, 9.5), (0, 11, 24, 20), (23, 31, 1, 1)],
      np.float32,
    )
    images = _images(len(boxes))
    found = small_models.jit(jax.vmap(augment.resized))(images, boxes)
    np.testing.assert_allclose(found[0], images[0], atol=1e-5)
    for got, image, box in zip(found, images, boxes, strict=True):
      np.testing.assert_allclose(got, _by_pillow(image, box), atol=1e-4)

  def test_images_are_those_of_the_boxes_or_mirrored(self):
    images, key = _images(32), jax.random.key(7)
    change = functools.partial(augment.flip_and_resize, area=0.08, flip=True)
    found = np.asarray(small_models.jit(change)(images, key))
    boxes = _drawn(jax.random.split(jax.random.split(key)[1], 32))
    mirrored = 0
    for got, image, box in zip(found, images, boxes, strict=True):
      want = _by_pillow(image, box)
      same = np.abs(got - want).max() < 1e-3
      mirrored += not same
      if not same:
        np.testing.assert_allclose(got[:, ::-1], want, atol=1e-3)
    # 16 of 32, within four deviations.
    self.assertBetween(mirrored, 5, 27)

  def test_boxes_lie_in_the_image(self):
    top, left, height, width = _boxes().T
    for low, length, size in ((top, height, 24), (left, width, 32)):
      self.assertGreaterEqual(low.min(), 0)
      self.assertLessEqual((low + length).max(), size * (1 + 1e-6))
      # Small ones lie anywhere.
      place = (low / (size - length))[length < size / 2]
      self.assertGreater(scipy.stats.kstest(place, 'uniform').pvalue, 1e-3)

  def test_areas_and_ratios_are_uniform_where_all_shapes_fit(self):
    # Up to this share no shape of these ratios is too high or too wide.
    _, _, height, width = _boxes().T
    areas, ratios = height * width / (24 * 32), width / height
    self.assertBetween(areas.min(), 0.0799, 0.09)
    self.assertLess(areas.max(), 1.0001)
    small = areas < 0.5
    spread = scipy.stats.uniform(0.08, 0.5 - 0.08)
    test = scipy.stats.kstest(areas[small], spread.cdf)
    self.assertGreater(test.pvalue, 1e-3)
    bound = np.log(4 / 3)
    spread = scipy.stats.uniform(-bound, 2 * bound)
    test = scipy.stats.kstest(np.log(ratios[small]), spread.cdf)
    self.assertGreater(test.pvalue, 1e-3)

  def test_shapes_are_drawn_again_until_one_fits(self):
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.08, 1, (4000, 10)) * 24 * 32
    ratios = np.exp(rng.uniform(-np.log(4 / 3), np.log(4 / 3), (4000, 10)))
    heights, widths = np.sqrt(shares / ratios), np.sqrt(shares * ratios)
    areas = []
    for high, wide in zip(heights, widths, strict=True):
      fit = (high <= 24) & (wide <= 32)
      first = int(fit.argmax())
      areas.append(high[first] * wide[first] if fit.any() else 24 * 32)
    found = _boxes()[:, 2] * _boxes()[:, 3]
    self.assertGreater(scipy.stats.ks_2samp(found, areas).pvalue, 1e-3)

  @parameterized.parameters(
    ({'crop_area': 0.5, 'crop_padding': 2}, 'crop_padding: expected 0 beside'),
    ({'crop_area': 0.5, 'input_shape': (7,)}, r'no crop_area .* \(7,\)'),
  )
  def test_contradicting_settings_are_refused(self, changed, message):
    arguments = {
      'crop_padding': 0,
      'crop_area': 1.0,
      'flip': False,
      'input_shape': (4, 4, 3),
    }
    with self.assertRaisesRegex(ValueError, message):
      augment.make(**arguments | changed)


if __name__ == '__main__':
  absltest.main()
