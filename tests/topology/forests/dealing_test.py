"""Tests for topology.forests.dealing."""

import dataclasses
import math
from fractions import Fraction

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
  def test_chunks_are_dealt_as_by_nginx(self, shares, dealt):
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


def _forest(shares, rate_Bps=None):
  """Returns a forest of stars with the given shares; not a sound one."""
  whole = topology.pack(shapes.star([1, 1, 1]))
  trees = tuple(
    dataclasses.replace(whole.trees[0], share=Fraction(share))
    for share in shares
  )
  return dataclasses.replace(whole, trees=trees, rate_Bps=rate_Bps)


class ChunkBytesTest(parameterized.TestCase):
  @parameterized.parameters(
    (10**9, [1, 2, 3, 4], 49152),
    (4 * 49152, [1, 2, 3, 4], 49152),
    (120_004, [1, 2, 3, 4], 30004),  # One for each tree, a multiple of 4.
    (120_001, [1, 2, 3, 4], 30004),
    (120_000, [*range(1, 33)], 16384),
    (0, [1, 3], 16384),
  )
  def test_small_messages_have_a_chunk_per_tree(self, size, shares, want):
    found = dealing.chunk_bytes(size, _forest(shares), fixed=49152)
    self.assertEqual(found, want)

  @parameterized.parameters([()], [(1,)], [(1,) * 8], [(1, 2, 1.5)])
  def test_trees_of_similar_shares_use_large_chunks(self, shares):
    found = dealing.chunk_bytes(120_000, _forest(shares), fixed=49152)
    self.assertEqual(found, 49152)

  def test_chunks_are_at_most_the_given_size(self):
    for size in (10**9, 100):
      found = dealing.chunk_bytes(size, _forest([1, 3]), fixed=256)
      self.assertEqual(found, 256)

  def test_faster_links_and_larger_messages_have_larger_chunks(self):
    rates = [None, 10**7, 125 * 10**6, 10**9, 10**10]
    for size in (10**6, 10**8):
      found = [dealing.chunk_bytes(size, _forest([1], r)) for r in rates]
      self.assertEqual(found, sorted(found))
      self.assertTrue(all(each % 4 == 0 for each in found))
    small = dealing.chunk_bytes(10**6, _forest([1], 10**9))
    self.assertLess(small, dealing.chunk_bytes(10**8, _forest([1], 10**9)))
    self.assertEqual(found[:3], 3 * [dealing.CHUNK_BYTES])
    self.assertEqual(found[-1], dealing.MOST_CHUNK_BYTES)

  def test_many_trees_have_chunks_of_which_a_window_fits_into_memory(self):
    many = _forest([1] * 500, 10**10)
    size = dealing.chunk_bytes(10**9, many)
    self.assertLess(size, dealing.MOST_CHUNK_BYTES)
    window = dealing.window(many, chunk_bytes=size)
    # Two senders share the memory of the root.
    self.assertLessEqual(2 * window * size, dealing.AHEAD_BYTES)
    self.assertLessEqual(
      window * size, dealing.ahead_bytes(many, chunk_bytes=size)
    )


class WindowTest(parameterized.TestCase):
  def test_window_is_rate_times_time_with_a_minimum_per_tree(self):
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

  def test_workers_run_ahead_for_the_deepest_tree(self):
    star, line = (
      topology.pack(cluster)
      for cluster in (shapes.star([1, 1, 1]), shapes.line(5, 1))
    )
    both = dataclasses.replace(star, trees=star.trees + line.trees)
    self.assertGreater(dealing.ahead_s(line), dealing.ahead_s(star))
    self.assertEqual(dealing.ahead_s(both), dealing.ahead_s(line))

  def test_a_window_covers_a_round_trip_up_to_the_memory(self):
    forest = _forest([1], 10**6)
    within = dealing.window(forest, chunk_bytes=1000, round_trip_s=0.001)
    self.assertEqual(within, dealing.window(forest, chunk_bytes=1000))
    longer = dealing.window(forest, chunk_bytes=1000, round_trip_s=0.5)
    self.assertBetween(longer, 500, 800)
    most = dealing.window(forest, chunk_bytes=10**6, round_trip_s=10**6)
    self.assertEqual(most, dealing.AHEAD_BYTES // 2 // 10**6)

  def test_lanes_share_the_window_and_the_memory(self):
    forest = _forest([1, 1], 10**9)
    whole = dealing.window(forest, chunk_bytes=10**4)
    half = dealing.window(forest, chunk_bytes=10**4, lanes=2)
    self.assertEqual(half, math.ceil(whole / 2))
    bound = dealing.ahead_bytes(forest, chunk_bytes=10**6, lanes=4)
    self.assertEqual(bound, dealing.ahead_bytes(forest, chunk_bytes=10**6) // 4)


class LanesTest(parameterized.TestCase):
  @parameterized.parameters(
    (None, 64, 1),  # Links of unknown rate.
    (3.9, 64, 1),
    (4.1, 64, 2),
    (4.1, 4, 2),
    (4.1, 3, 1),  # Too few cores.
    (25, 64, 4),
    (25, 6, 3),
    (25, 0, 1),
  )
  def test_lanes_follow_links_and_cores(self, gbit, cores, lanes):
    # The root of a star sends each byte to two others.
    rate_Bps = gbit and gbit * 1e9 / 8 / 2
    found = dealing.lanes(_forest([1], rate_Bps), cores=cores)
    self.assertEqual(found, lanes)


if __name__ == '__main__':
  absltest.main()
