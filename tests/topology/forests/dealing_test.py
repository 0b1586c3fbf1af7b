"""Tests for topology.forests.dealing."""

import dataclasses
import math

import numpy as np
from absl.testing import absltest, parameterized

import topology
from topology.clusters import shapes
from topology.forests import dealing


class DealtTest(parameterized.TestCase):
  @parameterized.parameters(
    ([5, 1, 1], 'aabacaa'),  # As nginx deals requests.
    ([1, 1], 'abab'),
  )
  def test_shares_are_dealt_as_by_nginx(self, shares, dealt):
    found = dealing.deal(shares, [1] * len(dealt))
    self.assertEqual(''.join('abc'[tree] for tree in found), dealt)

  def test_every_part_has_the_shares(self):
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(7))
    sizes = rng.integers(1, 100, 2000)
    trees = np.array(dealing.deal(shares, sizes))
    for start, stop in ((0, 2000), (300, 1300), (1500, 1600)):
      part = slice(start, stop)
      got = np.bincount(trees[part], sizes[part], minlength=7)
      due = shares * sizes[part].sum()
      self.assertLess(np.abs(got - due).max(), 7 * 100)

  def test_equal_chunks_give_everyone_its_share_at_any_time(self):
    shares = [1 / 2, 1 / 3, 1 / 6]

    dealt = np.array(dealing.deal(shares, [10] * 600))

    for tree, share in enumerate(shares):
      counts = np.cumsum(dealt == tree)
      wanted = share * np.arange(1, 601)
      self.assertLess(np.abs(counts - wanted).max(), 1)


class ChunkBytesTest(parameterized.TestCase):
  @parameterized.parameters(
    (10**9, [1, 2, 3, 4], 49152),
    (4 * 49152, [1, 2, 3, 4], 49152),
    (120_004, [1, 2, 3, 4], 30004),  # One for each tree, a multiple of 4.
    (120_001, [1, 2, 3, 4], 30004),
    (120_000, [*range(1, 33)], 16384),
    (0, [1, 3], 16384),
  )
  def test_small_messages_have_one_for_each_tree(self, size, shares, want):
    self.assertEqual(dealing.chunk_bytes(size, shares, most=49152), want)

  @parameterized.parameters([()], [(1,)], [(1,) * 8], [(1, 2, 1.5)])
  def test_but_not_if_the_trees_have_much_the_same_shares(self, shares):
    self.assertEqual(dealing.chunk_bytes(120_000, shares, most=49152), 49152)

  def test_there_are_no_larger_ones_than_it_is_told(self):
    self.assertEqual(dealing.chunk_bytes(10**9, [1, 3], most=256), 256)
    self.assertEqual(dealing.chunk_bytes(100, [1, 3], most=256), 256)


class WindowTest(parameterized.TestCase):
  def test_it_is_the_rate_times_the_time_and_some_for_each_tree(self):
    forest = topology.pack(shapes.star([1, 1, 1]))
    self.assertEqual({tree.depth for tree in forest.trees}, {1})
    self.assertAlmostEqual(dealing.ahead_s(forest), 0.025)
    want = math.ceil(float(forest.rate_Bps) * 0.025 / 100_000)
    self.assertEqual(dealing.window(forest, chunk_bytes=100_000), want)
    one = dataclasses.replace(forest, trees=forest.trees[:1])
    self.assertEqual(dealing.window(one, chunk_bytes=10**9), 5)
    many = dataclasses.replace(forest, trees=forest.trees * 5)
    found = dealing.window(many, chunk_bytes=10**9)
    self.assertEqual(found, 2 * len(many.trees))


if __name__ == '__main__':
  absltest.main()
