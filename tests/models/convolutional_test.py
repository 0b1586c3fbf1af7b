"""Tests for models.resnet, alexnet and inception_v3."""

import functools

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from tests.support import references, small_models


class ResNetTest(parameterized.TestCase):
  @parameterized.parameters(
    (20, 'batch', 269_722), (20, 'group', 269_722), (32, 'group', 464_154)
  )
  def test_cifar_network_has_the_known_number_of_parameters(
    self, depth, kind, size
  ):
    """0.27, 0.46 and 1.7 million in table 6 of the paper."""
    self._assert_size(depth, kind, size)

  @pytest.mark.soak  # A second of tracing.
  def test_the_deepest_network_has_the_published_size(self):
    self._assert_size(110, 'group', 1_727_962)

  def _assert_size(self, depth, kind, size):
    model = nnx.eval_shape(
      lambda: small_models.make_resnet(depth=depth, width=1, norm=kind)
    )
    self.assertEqual(small_models.size(model), size)

  @parameterized.parameters((224, 1000, 25_557_032), (32, 10, 23_520_842))
  def test_bottleneck_network_has_the_known_number_of_parameters(
    self, pixels, num_classes, size
  ):
    """At 224 pixels that of torchvision; at 32 the stem and head differ."""
    model = nnx.eval_shape(
      lambda: small_models.make_resnet50(
        width=1,
        input_shape=(pixels, pixels, 3),
        num_classes=num_classes,
      )
    )
    self.assertEqual(small_models.size(model), size)
    self.assertEqual(small_models.size(model, nnx.BatchStat), 2 * 26_560)
    self.assertEqual(
      small_models.logits_shape(model, 5, pixels, pixels, 3), (5, num_classes)
    )

  @parameterized.parameters(
    (20, 0.3, 'none'), (20, 1e-3, 'group'), (32, 0.3, 'group')
  )
  def test_width_multiplies_all_channels(self, depth, width, kind):
    model = nnx.eval_shape(
      lambda: small_models.make_resnet(depth=depth, width=width, norm=kind)
    )
    extra = {'group': 2, 'none': 1}[kind]  # Scale and bias, or bias.
    expected, features = 0, 3
    for stage in (16, 32, 64):
      out = max(1, round(stage * width))
      layers = (depth - 2) // 3 + (stage == 16)
      expected += 9 * features * out + 9 * (layers - 1) * out * out
      expected += extra * layers * out
      features = out
    self.assertEqual(small_models.size(model), expected + (features + 1) * 10)

  @parameterized.parameters('group', 'batch', 'none')
  def test_logits_match_the_layers_of_the_paper(self, kind):
    model = small_models.perturb(
      small_models.make_by_numpy(small_models.make_resnet, norm=kind)
    )
    images = small_models.MODELS['resnet'][1][:2]

    x = references.relu(references.conv(model.stem, images))
    for number, block in enumerate(model.blocks):
      strides = 2 if number in (3, 6) else 1
      first, second = block.convs
      inner = references.relu(references.conv(first, x, strides))
      branch = references.conv(second, inner)
      new = branch.shape[-1] - x.shape[-1]
      x = np.pad(x[:, ::strides, ::strides], ((0, 0),) * 3 + ((0, new),))
      x = references.relu(branch + x)
    expected = references.dense(model.logits, x.mean((1, 2)))

    logits = small_models.evaluate(model, images)
    self.assertEqual((logits.shape, logits.dtype), ((2, 10), np.float32))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)

  def test_logits_match_bottleneck_layers(self):
    model = small_models.perturb(nnx.merge(*small_models.parts_of('resnet50')))
    images = small_models.MODELS['resnet50'][1][:2]

    x = references.relu(references.conv(model.stem, images))
    for number, block in enumerate(model.blocks):
      strides = 2 if number in (3, 7, 13) else 1
      reduce, middle, expand = block.convs
      inner = references.relu(references.conv(reduce, x))
      inner = references.relu(references.conv(middle, inner, strides))
      if number in (0, 3, 7, 13):
        x = references.conv(block.shortcut, x, strides)
      x = references.relu(references.conv(expand, inner) + x)
    expected = references.dense(model.logits, x.mean((1, 2)))

    logits = small_models.evaluate(model, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)

  def test_without_normalisation_many_blocks_keep_the_scale(self):
    model = small_models.make_by_numpy(
      small_models.make_resnet, depth=110, norm='none'
    )
    logits = small_models.evaluate(model, small_models.MODELS['resnet'][1])
    self.assertBetween(np.sqrt(np.mean(logits**2)), 0.03, 30)

  @parameterized.parameters(
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    (
      {'input_shape': (224, 224, 3)},
      r'input_shape: expected 32 x 32 pixels, got \(224, 224, 3\)',
    ),
    (
      {'input_shape': (64, 64, 3), 'depth': 50},
      r'input_shape: expected 32 x 32 or 224 x 224 pixels, got \(64, 64, 3\)',
    ),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      small_models.make_resnet(**changed)


class AlexNetTest(parameterized.TestCase):
  @parameterized.parameters((224, 1000, 61_100_840), (32, 10, 145_578))
  def test_full_size_has_the_known_number_of_parameters(
    self, pixels, num_classes, size
  ):
    """The counts are those of torchvision and of Caffe's cifar10_quick."""
    model = nnx.eval_shape(
      lambda: small_models.make_alexnet(
        width=1, input_shape=(pixels, pixels, 3), num_classes=num_classes
      )
    )
    self.assertEqual(small_models.size(model), size)

  @parameterized.parameters(224, 32)
  def test_logits_match_the_layers(self, pixels):
    model = small_models.perturb(
      small_models.make_by_numpy(
        small_models.make_alexnet, input_shape=(pixels, pixels, 3)
      )
    )
    images = small_models.images((2, pixels, pixels, 3))

    pools = {
      224: (np.max, np.max, None, None, np.max),
      32: (np.max, np.mean, np.mean),
    }
    x = images
    for conv, pool in zip(model.convs, pools[pixels], strict=True):
      large = conv.conv.kernel.shape[0] == 11
      args = {'strides': 4, 'padding': 2} if large else {}
      x = references.relu(references.conv(conv, x, **args))
      x = x if pool is None else references.pool(pool, x)
    x = x.reshape(2, -1)
    for dense in model.hidden:
      x = references.relu(references.dense(dense, x))
    expected = references.dense(model.logits, x)

    logits = small_models.evaluate(model, images)
    self.assertEqual((logits.shape, logits.dtype), ((2, 10), np.float32))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)

  @parameterized.parameters(
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    ({'input_shape': (64, 64, 3)}, r'input_shape: .* got \(64, 64, 3\)'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      small_models.make_alexnet(**changed)


@functools.cache
def _wide_inception(kind):
  return nnx.eval_shape(
    lambda: small_models.make_inception(width=1, num_classes=1000, norm=kind)
  )


class InceptionV3Test(parameterized.TestCase):
  def test_full_size_has_the_known_number_of_parameters(self):
    """The count is that of torchvision without its auxiliary classifier."""
    self._assert_size('batch', 2 * 17_216)

  @pytest.mark.soak  # Seconds of tracing.
  def test_groups_have_as_many(self):
    self._assert_size('group', 0)

  def _assert_size(self, kind, rest):
    model = _wide_inception(kind)
    auxiliary = (768 + 2) * 128 + (5 * 5 * 128 + 2) * 768 + (768 + 1) * 1000
    self.assertEqual(small_models.size(model), 27_161_264 - auxiliary)
    self.assertEqual(small_models.size(model), 23_834_568)
    self.assertEqual(small_models.size(model, nnx.BatchStat), rest)

  @parameterized.parameters((299, 299, 8, 8), (75, 128, 1, 2))
  def test_images_shrink_as_published(self, height, width, rows, columns):
    model = _wide_inception('batch')
    mixed = jax.ShapeDtypeStruct((5, height, width, 3), np.float32)
    shapes = []
    for layer in model.layers.layers:
      mixed = nnx.eval_shape(
        lambda layer, x: layer(x, train=False), layer, mixed
      )
      shapes.append(mixed.shape[1:])

    self.assertEqual(shapes[-1], (rows, columns, 2048))
    if height == 299:  # Table 1 of the paper, from its second pooling on.
      self.assertEqual(
        [shapes[i] for i in (6, 9, 10, 14, 15)],
        [
          *((35, 35, 192), (35, 35, 288), (17, 17, 768), (17, 17, 768)),
          (8, 8, 1280),
        ],
      )

  @parameterized.parameters(
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    (
      {'input_shape': (299, 74, 3)},
      r'input_shape: expected at least 75 x 75 pixels, got \(299, 74, 3\)',
    ),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      small_models.make_inception(**changed)


if __name__ == '__main__':
  absltest.main()
