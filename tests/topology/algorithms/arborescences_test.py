"""Tests for what packs a forest: flows, switches bypassed, trees, stops."""

import itertools
import random

from absl.testing import absltest, parameterized

from tests.support import edmonds
from topology.algorithms import (
  arborescences,
)


class ArborescencesTest(parameterized.TestCase):
  """Trees of small graphs against Edmonds' condition on all sets."""

  @parameterized.parameters(*range(20))
  def test_trees_are_packed_if_all_sets_can_be_entered(self, seed):
    nodes, links, starts = _random_packing(seed)

    if edmonds.enterable(nodes, links, starts):
      trees = arborescences.pack(nodes, links, starts)
      self._check(nodes, links, starts, trees)
    else:
      with self.assertRaisesRegex(ValueError, 'room for all trees'):
        arborescences.pack(nodes, links, starts)

  @parameterized.parameters(*range(12))
  def test_links_without_a_unit_to_spare_are_packed(self, seed):
    nodes, links, starts = _random_packing(seed)
    rng = random.Random(seed)
    ring = [(v, (v + 1) % nodes, sum(starts)) for v in range(nodes)]
    scarce = [*links, *ring]
    for i in rng.sample(range(len(scarce)), len(scarce)):
      a, b, most = scarce[i]
      for capacity in range(most + 1):  # As little as the others allow.
        scarce[i] = a, b, capacity
        if edmonds.enterable(nodes, scarce, starts):
          break

    trees = arborescences.pack(nodes, scarce, starts)

    self._check(nodes, scarce, starts, trees)

  def test_hypercube_with_many_tight_sets_is_packed(self):
    nodes = 32
    links = [(v, v ^ 1 << k, 31) for v in range(nodes) for k in range(5)]

    trees = arborescences.pack(nodes, links, [5] * nodes)

    self._check(nodes, links, [5] * nodes, trees)

  def test_single_node_needs_no_links(self):
    trees = arborescences.pack(1, [], [3])

    self.assertEqual(trees, [arborescences.Branching(0, 3, ())])

  def _check(self, nodes, links, starts, trees):
    room = {}
    for a, b, capacity in links:
      room[a, b] = room.get((a, b), 0) + capacity
    started = [0] * nodes
    for tree in trees:
      self.assertGreater(tree.units, 0)
      started[tree.root] += tree.units
      reached = [tree.root]
      for a, b in tree.hops:
        self.assertIn(a, reached)
        reached.append(b)
        room[a, b] -= tree.units
      self.assertCountEqual(reached, range(nodes))
    self.assertEqual(started, list(starts))
    self.assertGreaterEqual(min(room.values(), default=0), 0)


def _random_packing(seed):
  """A graph of two to six nodes and trees that may or may not fit."""
  rng = random.Random(seed)
  nodes = rng.randint(2, 6)
  links = [
    (a, b, rng.randint(1, 8))
    for a, b in itertools.permutations(range(nodes), 2)
    if rng.random() < 0.7
  ]
  return nodes, links, [rng.randint(0, 3) for _ in range(nodes)]


if __name__ == '__main__':
  absltest.main()
