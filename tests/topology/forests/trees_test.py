"""Tests for topology.forests.trees: byte ranges and the order of trees."""

import dataclasses
import functools
import itertools
from fractions import Fraction

from absl.testing import absltest, parameterized

import topology
from topology.baselines import schemes
from topology.clusters import randomized, shapes
from topology.forests import trees, verify

MESH = randomized.random_mesh(6, 5)
SIZES = (0, 1, 2, 3, 7, 29, 1000, 1048573)


@functools.cache
def _forests():
  """Yields forests of each collective: packed, grown, and of a scheme."""
  found = []
  for collective in trees.COLLECTIVES:
    best = topology.pack(MESH, collective=collective)
    few = topology.pack(MESH, collective=collective, max_trees=7)
    found += [best, few, schemes.rotated_rings(MESH, best)]
  return found


class ByteRangesTest(parameterized.TestCase):
  """Parts of the data: whole elements, each once, as much as they should."""

  @parameterized.product(element=(1, 2, 4, 12), count=SIZES)
  def test_ranges_are_whole_cover_once_and_are_near_the_shares(
    self, element, count
  ):
    for packed in _forests():
      ranges = packed.byte_ranges(count * element, element)

      self.assertLen(ranges, len(packed.trees))
      self.assertEqual((ranges[0][0], ranges[-1][1]), (0, count * element))
      for (start, end), (following, _) in itertools.pairwise(ranges):
        self.assertLessEqual(start, end)
        self.assertEqual(end, following)
      for tree, (start, end) in zip(packed.trees, ranges, strict=True):
        self.assertEqual((start % element, end % element), (0, 0))
        exact = tree.share * count
        self.assertLess(abs(Fraction(end - start, element) - exact), 1)

  def test_fewer_elements_than_trees_leave_some_empty(self):
    packed = topology.pack(MESH, max_trees=20)

    ranges = packed.byte_ranges(4 * 3, 4)

    sizes = [end - start for start, end in ranges]
    self.assertEqual(sorted(set(sizes)), [0, 4])
    self.assertEqual(sizes.count(4), 3)

  @parameterized.product(collective=trees.COLLECTIVES[1:], count=SIZES)
  def test_shards_are_equal_and_in_the_order_of_the_workers(
    self, collective, count
  ):
    packed = topology.pack(MESH, collective=collective)

    ranges = packed.byte_ranges(4 * count, 4)

    for rank, worker in enumerate(MESH.workers):
      own = [
        r
        for tree, r in zip(packed.trees, ranges, strict=True)
        if tree.root == worker
      ]
      shard = [4 * (count * at // 6) for at in (rank, rank + 1)]
      self.assertEqual([own[0][0], own[-1][1]], shard)
      for (_, end), (start, _) in itertools.pairwise(own):
        self.assertEqual(end, start)

  @parameterized.parameters(
    ((-1,), 'size_bytes: .*at least 0, got -1'),
    ((1.5,), 'size_bytes: .*integer .*got 1.5'),
    ((8, 0), 'element_bytes: .*at least 1, got 0'),
    ((8, 2.0), 'element_bytes: .*integer .*got 2.0'),
    ((10, 4), 'size_bytes: .*multiple of 4, got 10'),
  )
  def test_bytes_that_are_no_elements_are_an_error(self, sizes, message):
    packed = topology.pack(shapes.line(2, 1), collective='allgather')

    with self.assertRaisesRegex(ValueError, message):
      packed.byte_ranges(*sizes)

  def test_a_single_worker_has_no_ranges(self):
    self.assertEqual(topology.pack(shapes.line(1, 1)).byte_ranges(12, 4), [])


class OrderTest(parameterized.TestCase):
  """A forest whose trees are elsewhere would give a root bytes of others."""

  @parameterized.product(
    collective=trees.COLLECTIVES,
    change=(
      lambda given: given[::-1],
      lambda given: (*given[1:], given[0]),
      lambda given: (given[-1], *given[:-1]),
    ),
  )
  def test_trees_out_of_the_order_of_roots_are_rejected(
    self, collective, change
  ):
    packed = topology.pack(shapes.ring(5, 8), collective=collective)
    mixed = dataclasses.replace(packed, trees=change(packed.trees))

    with self.assertRaisesRegex(ValueError, 'Tree .: its root w. is out of'):
      verify.check(shapes.ring(5, 8), mixed)

  def test_trees_of_one_root_may_change_places(self):
    packed = topology.pack(MESH, collective='allgather')
    swapped = sorted(
      packed.trees, key=lambda tree: (MESH.rank[tree.root], tree.weight_Bps)
    )
    other = dataclasses.replace(packed, trees=tuple(swapped))

    verify.check(MESH, other)
    self.assertNotEqual(packed.trees, other.trees)


if __name__ == '__main__':
  absltest.main()
