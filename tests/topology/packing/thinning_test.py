"""Optimal forests have few and shallow trees, and the same rate."""

import itertools
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

import topology
from topology.algorithms import stopping
from topology.clusters import machines, randomized, shapes
from topology.clusters.builders import build_cluster
from topology.forests import verify
from topology.packing import exact, pack, thinning


def _size(forest):
  return len(forest.trees), max(tree.depth for tree in forest.trees)


class ThinnedTest(parameterized.TestCase):
  @parameterized.product(
    spec=(
      'full_mesh(4, 25)',
      'ring(6, 8)',
      'tree([3, 3], [10, 4])',
      'star([21, 26, 27, 28, 24], [26, 22, 25, 23, 21])',
      'random_mesh(7, 1)',
      'random_mesh(7, 1, symmetric=True)',
      'random_switched(7, 3, 1)',
      'pcie()',
      'dgx_a100(2)',
    ),
    collective=('allreduce', 'allgather'),
  )
  def test_thinned_forest_is_as_fast_with_no_more_and_no_deeper_trees(
    self, spec, collective
  ):
    graph = build_cluster(spec)
    whole = getattr(exact, collective)(graph)

    few = thinning.thin(graph, whole, stopping.never)

    verify.check(graph, few)
    self.assertEqual(few.rate_Bps, whole.rate_Bps)
    self.assertEqual(few.gap, 0)
    for before, after in zip(_size(whole), _size(few), strict=True):
      self.assertLessEqual(after, before)
    again = thinning.thin(graph, whole, stopping.never)
    self.assertEqual(few, again)

  @parameterized.parameters(
    ('star([21, 26, 27, 28, 24], [26, 22, 25, 23, 21])', 'allreduce', 8, 2),
    ('star([21, 26, 27, 28, 24], [26, 22, 25, 23, 21])', 'allgather', 6, 3),
    ('random_switched(7, 3, 1)', 'allgather', 7, 3),
    ('pcie()', 'allgather', 17, 4),
    # Shallow trees that cost a share of the rate would be chosen here.
    ('random_mesh(5, 9)', 'allreduce', 9, 2),
  )
  def test_forests_that_can_be_thinner_are(
    self, spec, collective, most, deepest
  ):
    graph = build_cluster(spec)
    whole = getattr(exact, collective)(graph)
    few = thinning.thin(graph, whole, stopping.never)
    trees, depth = _size(few)
    self.assertLess(trees * depth, np.prod(_size(whole)))
    self.assertLessEqual(trees, most)
    self.assertLessEqual(depth, deepest)

  @parameterized.parameters(*range(8))
  def test_unequal_star_of_8_needs_8_shallow_trees(self, seed):
    # As many as links whose use is given; each direction alike.
    rng = random.Random(seed)
    graph = shapes.star([rng.randint(20, 40) for _ in range(8)])

    packed = topology.pack(graph)

    trees, depth = _size(packed)
    self.assertLessEqual(trees, 8)
    self.assertLessEqual(depth, 4)
    capacity = [link.GBps for link in graph.links if link.dst == 's0']
    want = min(min(capacity), Fraction(sum(capacity), 14))
    self.assertEqual(packed.rate_Bps, want * 10**9)

  @parameterized.parameters(
    ('dgx_a100(2)', 'allreduce', 30, 5),
    ('dgx_a100(2)', 'reduce_scatter', 64, 7),
    ('mi250(2)', 'allreduce', 76, 11),
    ('pcie()', 'allgather', 20, 5),
  )
  def test_boxes_need_far_less_than_their_first_forest(
    self, spec, collective, trees, depth
  ):
    packed = topology.pack(build_cluster(spec), collective=collective)

    self.assertEqual(packed.gap, 0)
    self.assertLessEqual(_size(packed)[0], trees)
    self.assertLessEqual(_size(packed)[1], depth)

  def test_a_forest_of_one_tree_stays(self):
    graph = shapes.line(5, 3)
    whole = exact.allreduce(graph)

    self.assertIs(thinning.thin(graph, whole, stopping.never), whole)

  def test_search_stops_on_request(self):
    graph = randomized.random_mesh(6, 1)
    whole = exact.allreduce(graph)
    asked = itertools.count()
    thinning.thin(graph, whole, lambda: next(asked) < 0)
    for last in range(0, next(asked), 29):
      asked = itertools.count()
      with self.assertRaises(stopping.Stopped):
        thinning.thin(graph, whole, lambda n=asked, k=last: next(n) == k)

  def test_exact_forest_stays_if_thinning_is_stopped(self):
    graph = machines.dgx_a100(2)

    told = []
    late = absltest.mock.patch.object(
      pack._Times,
      'is_exact_over',
      lambda _: any('fewer' in text for text in told),
    )
    with late:
      packed = topology.pack(graph, time_limit_s=60, progress=told.append)

    self.assertEqual(packed, exact.allreduce(graph))


if __name__ == '__main__':
  absltest.main()
