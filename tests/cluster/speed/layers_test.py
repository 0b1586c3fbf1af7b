"""Tests for cluster.speed.layers: times at which buckets are ready."""

import itertools
import math
import random

from absl.testing import absltest, parameterized

from cluster.speed import layers
from cluster.speed.layers import Bucket, Layer

_LAYERS = [Layer(10, 0.5), Layer(30, 0.4), Layer(20, 0.9)]


class RangesTest(parameterized.TestCase):
  @parameterized.parameters(
    (0, 0, [(10, 0.5), (30, 0.4), (20, 0.9)]),
    (0, 5, [(10, 0.5), (30, 0.4), (20, 0.9), (5, 1.0)]),
    (11, 0, [(40, 0.5), (20, 0.9)]),
    (25, 5, [(40, 0.5), (25, 1.0)]),
    (math.inf, 0, [(60, 0.9)]),
    (math.inf, 5, [(65, 1.0)]),
  )
  def test_a_bucket_is_closed_once_it_is_large_enough(
    self, bucket_bytes, rest, expected
  ):
    found = layers.buckets(_LAYERS, bucket_bytes, rest)
    self.assertEqual(found, [Bucket(*each) for each in expected])

  def test_all_bytes_of_any_layers_are_in_some_bucket(self):
    rng = random.Random(1)
    for _ in range(200):
      some = [
        Layer(rng.choice((0, 4, 400)), rng.random())
        for _ in range(rng.randrange(1, 9))
      ]
      rest = rng.choice((0, 8))
      size = rng.choice((0, 5, 500, math.inf))
      found = layers.buckets(some, size, rest)
      total = sum(each.bytes for each in some)
      self.assertEqual(sum(each.bytes for each in found), total + rest)
      for each in found[:-1]:
        self.assertGreaterEqual(each.bytes, size)

  @parameterized.parameters(
    ([60], [0.9]),
    ([3, 3], [0.5, 0.9]),  # Half of 60 bytes lies in the second layer.
    ([1, 3, 2], [0.5, 0.5, 0.9]),
    ([1, 4, 1], [0.5, 0.9, 0.9]),
  )
  def test_evenly_spread_buckets_are_ready_with_the_layers_before_their_end(
    self, sizes, ready
  ):
    parts = [Bucket(*each) for each in _LAYERS]
    expected = [Bucket(*each) for each in zip(sizes, ready, strict=True)]
    self.assertEqual(layers.spread(parts, sizes), expected)


class LayersTest(parameterized.TestCase):
  def test_without_a_profile_bytes_take_the_last_two_thirds(self):
    found = layers.in_proportion([10, 30, 20])
    self.assertEqual([each.bytes for each in found], [10, 30, 20])
    expected = [1 / 3 + 2 / 3 * share for share in (1 / 6, 4 / 6, 1)]
    for each, ready in zip(found, expected, strict=True):
      self.assertAlmostEqual(each.ready, ready)

  def test_scaled_layers_keep_their_shares(self):
    found = layers.scale(_LAYERS, 6_000_000)
    self.assertEqual(
      [each.bytes for each in found], [10**6, 3 * 10**6, 2 * 10**6]
    )
    self.assertEqual([each.ready for each in found], [0.5, 0.4, 0.9])
    self.assertEqual(sum(x.bytes for x in layers.scale(_LAYERS, 1004)), 1004)

  @parameterized.product(
    size=[4, 1000, 10**6], bucket_bytes=[0, 4, 300, math.inf]
  )
  def test_equal_layers_have_all_bytes(self, size, bucket_bytes):
    found = layers.equal_sizes(size, bucket_bytes)
    self.assertEqual(sum(found), size)
    for one, other in itertools.pairwise(sorted(found)):
      self.assertLessEqual(other - one, 8)
    if 0 < bucket_bytes < size:
      self.assertLen(found, math.ceil(size / bucket_bytes))
    else:
      self.assertLen(found, 1)


if __name__ == '__main__':
  absltest.main()
