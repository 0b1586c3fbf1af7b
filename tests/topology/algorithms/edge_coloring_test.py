"""Partial permutations of random multigraphs."""

import itertools
import random
from collections import Counter

from absl.testing import absltest, parameterized

from topology.algorithms import edge_coloring


class ColoredTest(parameterized.TestCase):
  @parameterized.product(seed=[*range(12)], growing=[False, True])
  def test_random_multigraph_needs_as_many_colors_as_its_degree(
    self, seed, growing
  ):
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    pairs = [
      (rng.randrange(count), rng.randrange(count))
      for _ in range(rng.randint(1, 80))
    ]
    groups = edge_coloring.colored(pairs, growing=growing)

    self.assertEqual(_degree(pairs), len(groups))
    _check_groups(self, pairs, groups)

  @parameterized.parameters(False, True)
  def test_complete_graph_with_repeated_edges_is_filled(self, growing):
    pairs = list(itertools.product(range(6), range(6))) * 3
    random.Random(0).shuffle(pairs)

    groups = edge_coloring.colored(pairs, growing=growing)

    self.assertEqual([len(group) for group in groups], [6] * 18)
    _check_groups(self, pairs, groups)

  def test_nothing_needs_no_color(self):
    self.assertEqual(edge_coloring.colored([]), [])


def _degree(pairs):
  degree = Counter(('src', src) for src, _ in pairs)
  degree.update(('dst', dst) for _, dst in pairs)
  return max(degree.values())


def _check_groups(test, pairs, groups):
  """All pairs once, no src and no dst twice in a group."""
  test.assertEqual(
    sorted(itertools.chain.from_iterable(groups)), list(range(len(pairs)))
  )
  for group in groups:
    test.assertNotEmpty(group)
    for side in (0, 1):
      test.assertLen({pairs[i][side] for i in group}, len(group))


if __name__ == '__main__':
  absltest.main()
