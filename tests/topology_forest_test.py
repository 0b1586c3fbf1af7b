"""Tests for topology.forest."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
from fractions import Fraction

from absl.testing import absltest, parameterized

from topology import bounds, builders, cluster, forest, verify

FOLDER = os.environ.get('SYNCOPATE_TOPOLOGIES')
COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')


class GroundTruthTest(parameterized.TestCase):
  """Optima that were proved elsewhere."""

  @parameterized.parameters(*COLLECTIVES)
  def test_packing_is_exact_up_to_16_workers(self, collective):
    if FOLDER is None:
      self.skipTest('SYNCOPATE_TOPOLOGIES, a folder of JSON files, is not set.')
    text = pathlib.Path(FOLDER, 'ground_truth.json').read_text()
    for known in json.loads(text)['topologies']:
      rate_Bps = _known_rate_Bps(known, collective)
      if rate_Bps is None:
        continue
      with self.subTest(known['name']):
        graph = cluster.from_json(known)

        packed = forest.pack(graph, collective=collective)

        self.assertLessEqual(len(graph.workers), 16)
        self.assertEqual(packed.rate_Bps, rate_Bps)
        self.assertEqual(packed.gap, 0)


class PackTest(parameterized.TestCase):
  """Closed forms, and what a forest looks like."""

  def test_mesh_sends_each_part_straight_to_all(self):
    packed = forest.pack(builders.full_mesh(4, 25), collective='allgather')

    self.assertEqual(packed.rate_Bps, 100 * 10**9)
    self.assertLen(packed.trees, 4)
    first = packed.trees[0]
    self.assertEqual(first.root, 'w0')
    self.assertEqual(first.weight_Bps, Fraction(25 * 10**9))
    self.assertEqual(first.share, Fraction(1, 4))
    self.assertEqual(first.up, [])
    self.assertEqual(first.down, [('w0', 'w1'), ('w0', 'w2'), ('w0', 'w3')])

  def test_star_sends_straight_through_its_switch(self):
    packed = forest.pack(builders.star([100] * 8), collective='allgather')

    self.assertLen(packed.trees, 8)
    for tree in packed.trees:
      self.assertCountEqual(
        tree.down,
        [(tree.root, 's0', f'w{i}') for i in range(8) if f'w{i}' != tree.root],
      )

  def test_reduce_scatter_goes_up_to_its_roots(self):
    packed = forest.pack(builders.line(3, '2.5'), collective='reduce_scatter')

    tree = packed.trees[0]
    self.assertEqual(tree.root, 'w0')
    self.assertEqual(tree.up, [('w2', 'w1'), ('w1', 'w0')])
    self.assertEqual(tree.down, [])
    self.assertEqual(packed.rate_Bps, Fraction(3 * 10**9 * 5, 4))

  @parameterized.product(up=(10, 40), down=(10, 40), collective=COLLECTIVES)
  def test_switch_with_unequal_sides_is_limited_by_the_slower(
    self, up, down, collective
  ):
    graph = builders.star([up] * 6, [down] * 6)

    packed = forest.pack(graph, collective=collective)

    twice = 2 if collective == 'allreduce' else 1  # Each byte goes both ways.
    want = Fraction(min(up, down) * 6 * 10**9, 5 * twice)
    self.assertEqual(packed.rate_Bps, want)

  @parameterized.named_parameters(
    ('mesh', builders.full_mesh(5, 8), 20),
    ('ring', builders.ring(6, 10), 12),
    ('line', builders.line(6, 10), 10),
    ('star', builders.star([10] * 6), 6),
    ('unequal_star', builders.star([10, 10, 100, 100]), 10),
    ('torus', builders.torus([3, 3], 25), Fraction(225, 4)),
    ('hypercube', builders.torus([2, 2, 2], 5), Fraction(120, 7)),
    ('fat_tree', builders.fat_tree(4, 10), Fraction(16, 3)),
    ('bcube', builders.bcube(3, 2, 10), Fraction(45, 4)),
    ('one_box', builders.dgx_a100(1), Fraction(1200, 7)),
    ('two_boxes', builders.dgx_a100(2), Fraction(520, 3)),
  )
  def test_allreduce_has_the_rate_of_its_closed_form(self, graph, GBps):
    packed = forest.pack(graph)

    self.assertEqual(packed.collective, 'allreduce')
    self.assertEqual(packed.rate_Bps, GBps * 10**9)

  def test_line_is_summed_in_its_middle(self):
    packed = forest.pack(builders.line(5, 10))

    self.assertLen(packed.trees, 1)
    self.assertEqual(packed.trees[0].root, 'w2')

  def test_symmetric_allreduce_goes_up_where_it_goes_down(self):
    packed = forest.pack(builders.random_mesh(6, 1, symmetric=True))

    for tree in packed.trees:
      self.assertEqual(tree.up, [hop[::-1] for hop in tree.down[::-1]])

  @parameterized.parameters(*COLLECTIVES)
  def test_single_worker_needs_no_trees(self, collective):
    packed = forest.pack(builders.full_mesh(1, 1), collective=collective)

    self.assertEqual(packed.trees, ())
    self.assertIsNone(packed.rate_Bps)
    self.assertIsNone(packed.bound_Bps)
    self.assertEqual(packed.gap, 0)

  def test_unknown_collective_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'allgather.*broadcast'):
      forest.pack(builders.line(2, 1), collective='broadcast')

  def test_other_processes_with_other_hash_seeds_get_the_same_forest(self):
    code = (
      'from topology import builders, forest\n'
      'graph = builders.tree([2, 3], [7, 5])\n'
      'print(forest.pack(graph), forest.pack(graph, collective="allgather"))\n'
    )
    outputs = {
      subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'PYTHONHASHSEED': seed},
        cwd=pathlib.Path(__file__).parent.parent,
        capture_output=True,
        check=True,
      ).stdout
      for seed in ('1', '2', '3')
    }

    self.assertLen(outputs, 1)

  @parameterized.parameters(0, 1, 7, 1000, 12345677)
  def test_byte_ranges_are_disjoint_and_cover(self, size):
    packed = forest.pack(builders.random_mesh(6, 5), collective='allgather')

    ranges = packed.byte_ranges(size)

    self.assertLen(ranges, len(packed.trees))
    self.assertEqual((ranges[0][0], ranges[-1][1]), (0, size))
    for (start, end), (following, _) in itertools.pairwise(ranges):
      self.assertLessEqual(start, end)
      self.assertEqual(end, following)

  def test_fewer_than_no_bytes_are_an_error(self):
    packed = forest.pack(builders.line(2, 1), collective='allgather')

    with self.assertRaisesRegex(ValueError, 'size_bytes'):
      packed.byte_ranges(-1)

  def test_random_mesh_of_16_is_packed_and_checked(self):
    graph = builders.random_mesh(16, 1)

    packed = forest.pack(graph, collective='allgather')

    verify.check(graph, packed)
    inv_x, _ = bounds.allgather(graph)
    self.assertEqual(packed.rate_Bps, 16 * 10**9 / inv_x)


def _known_rate_Bps(known, collective):
  """The rate in a ground-truth file; None if there is none."""
  if collective == 'allreduce':
    rate = known['allreduce']['rate_GBps']
    return None if rate is None else Fraction(rate) * 10**9
  inv_x = known[collective]['inv_x']
  if inv_x in ('inf', None):
    return None
  workers = sum(node['worker'] for node in known['nodes'])
  return workers * 10**9 / Fraction(inv_x)


if __name__ == '__main__':
  absltest.main()
