"""Tests for papers.measures.forest: rates of trees with one root."""

import itertools

from absl.testing import absltest, parameterized

import topology
from papers.measures import forest
from topology.clusters import parts, randomized


def _mesh(capacities):
  names = [f'w{n}' for n in range(len(capacities))]
  links = [
    (names[a], names[b], capacities[a][b])
    for a, b in itertools.permutations(range(len(names)), 2)
  ]
  return parts.make_cluster(names, (), links)


class RatesOfRootsTest(parameterized.TestCase):
  def test_two_workers_have_the_rate_of_the_slower_direction(self):
    rates = forest.find_rates_of_roots(_mesh([[0, 3], [5, 0]]))
    self.assertSequenceAlmostEqual(rates, [3e9, 3e9])

  def test_trees_of_both_phases_share_links(self):
    rates = forest.find_rates_of_roots(_mesh([[0, 1, 1], [1, 0, 1], [1, 1, 0]]))
    # A tree has two links, each with both directions: 4 R <= 6 links of 1.
    self.assertSequenceAlmostEqual(rates, [1.5e9] * 3)

  @parameterized.parameters(1, 2, 3)
  def test_no_root_is_faster_than_a_forest(self, seed):
    cluster = randomized.random_mesh(5, seed)
    best = float(topology.pack(cluster).rate_Bps)
    rates = forest.find_rates_of_roots(cluster)
    self.assertLessEqual(max(rates), best * (1 + 1e-9))
    self.assertGreater(min(rates), 0)

  def test_switches_are_refused(self):
    cluster = forest.build_cluster('star([1, 1])')
    with self.assertRaisesRegex(ValueError, 'cluster: expected no switches'):
      forest.find_rates_of_roots(cluster)


if __name__ == '__main__':
  absltest.main()
