"""The cheapest trees at given prices, against NetworkX."""

import itertools
import random

import networkx as nx
import numpy as np
from absl.testing import absltest, parameterized

from tests.support import hop_prices, random_clusters
from topology.algorithms import cheapest_trees
from topology.clusters import randomized


class CheapestTest(parameterized.TestCase):
  """Cheapest trees against those of NetworkX."""

  @parameterized.parameters(*range(4))
  def test_spanning_tree_is_that_of_the_closure(self, seed):
    rng = random.Random(seed)
    graph = randomized.random_switched(
      rng.randint(2, 12), rng.randint(1, 9), seed, symmetric=True
    )
    worker, links = hop_prices.random_prices(graph, seed)
    there = [(a, b, price) for a, b, price in links if a < b]
    alike = [*there, *((b, a, price) for a, b, price in there)]
    closure = nx.Graph()
    closure.add_weighted_edges_from(
      (*ends, price)
      for ends, price in hop_prices.between(worker, alike).items()
    )

    got = cheapest_trees.spanning_tree(worker, there)

    self.assertEqual(
      got, nx.minimum_spanning_tree(closure).size(weight='weight')
    )

  def test_switch_without_links_is_ignored(self):
    worker = [True, False, True, False]

    self.assertEqual(
      cheapest_trees.spanning_tree(worker, [(0, 3, 1), (2, 3, 4)]), 5
    )

  @parameterized.parameters(*range(4))
  def test_hops_are_shortest_paths_through_switches(self, seed):
    for graph in random_clusters.every(seed, most=7):
      worker, links = hop_prices.random_prices(graph, seed)
      for factor in (1, 10**20):
        large = [(a, b, price * factor) for a, b, price in links]

        got = cheapest_trees.hops(worker, large)

        chosen = np.flatnonzero(worker).tolist()
        want = hop_prices.between(worker, large)
        dear = len(chosen) * sum(price for _, _, price in large)
        for (i, a), (j, b) in itertools.product(enumerate(chosen), repeat=2):
          if (a, b) in want:
            self.assertEqual(got[i, j], want[a, b])
          else:
            self.assertGreater(got[i, j], dear)

  @parameterized.product(seed=(0, 1, 2, 3), factor=(1, 10**20))
  def test_arborescences_are_the_cheapest_of_each_root(self, seed, factor):
    for graph in random_clusters.every(seed, most=8):
      worker, links = hop_prices.random_prices(graph, seed)
      price = cheapest_trees.hops(worker, links)
      far = price[0, 0]
      count = len(price)
      want = []
      for root in range(count):
        closure = nx.DiGraph()
        closure.add_weighted_edges_from(
          (a, b, int(price[a, b]))
          for a, b in itertools.permutations(range(count), 2)
          if b != root and price[a, b] < far
        )
        tree = nx.minimum_spanning_arborescence(closure)
        want.append(tree.size(weight='weight') * factor)

      large = price if factor == 1 else price.astype(object) * factor

      self.assertEqual(cheapest_trees.arborescences(large), want)


if __name__ == '__main__':
  absltest.main()
