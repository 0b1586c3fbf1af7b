"""Tests for topology.prices and the cheapest trees under them."""

import itertools
import random
from fractions import Fraction

import networkx as nx
import numpy as np
from absl.testing import absltest, parameterized

from topology import allreduce, builders, cheapest, cluster, forest, prices


class OptimumTest(parameterized.TestCase):
  """Prices of the linear program prove what it promises."""

  @parameterized.parameters(*range(20))
  def test_rate_of_a_random_cluster_is_proved_exactly(self, seed):
    for graph in _clusters(seed):
      best = allreduce.optimum(graph)

      self.assertEqual(prices.proven(graph, best.prices), best.rate_GBps)

  @parameterized.parameters(*range(5))
  def test_links_that_are_not_free_are_listed_in_order(self, seed):
    for graph in _clusters(seed):
      listed = allreduce.optimum(graph).prices.links

      named = {link[:2] for link in listed}
      want = [link[:2] for link in graph.links if link[:2] in named]
      self.assertEqual([link[:2] for link in listed], want)
      self.assertGreater(min(price for _, _, price in listed), 0)


class ProvenTest(parameterized.TestCase):
  """All columns, packed forests, and what is no proof."""

  def test_star_with_equal_prices_has_its_closed_form(self):
    graph = builders.star([100] * 8)
    equal = prices.Prices(tuple((a, b, Fraction(3)) for a, b, _ in graph.links))

    self.assertEqual(prices.proven(graph, equal), Fraction(400, 7))

  @parameterized.parameters(*range(15))
  def test_cheapest_of_all_columns_counts(self, seed):
    for graph in _clusters(seed, most=4):
      priced = _random(graph, seed)
      if graph == graph.reversed():  # The mean, written out here once more.
        back = {(b, a): price for a, b, price in priced.links}
        priced = prices.Prices(
          tuple((a, b, (p + back[a, b]) / 2) for a, b, p in priced.links)
        )
      worth = sum(p * _capacity(graph)[a, b] for a, b, p in priced.links)

      got = prices.proven(graph, priced)

      self.assertEqual(got, worth / _cheapest_column(graph, priced))

  @parameterized.parameters(*range(10))
  def test_no_prices_prove_less_than_what_a_forest_reaches(self, seed):
    for graph in _clusters(seed):  # Five of them.
      rate_GBps = forest.pack(graph).rate_Bps / 10**9
      for other in range(5):
        priced = _random(graph, other, least=0)
        try:
          self.assertGreaterEqual(prices.proven(graph, priced), rate_GBps)
        except ValueError as error:  # With prices of 0.
          self.assertRegex(str(error), 'column|positive')

  @parameterized.parameters(*range(10))
  def test_mean_of_both_directions_proves_as_much(self, seed):
    graph = builders.random_switched(4, 2, seed, symmetric=True)
    priced = _random(graph, seed)
    back = {(b, a): price for a, b, price in priced.links}
    mean = prices.Prices(
      tuple((a, b, (p + back[a, b]) / 2) for a, b, p in priced.links)
    )
    worth = sum(p * _capacity(graph)[a, b] for a, b, p in priced.links)

    got = prices.proven(graph, priced)

    self.assertEqual(got, prices.proven(graph, mean))
    self.assertLessEqual(got, worth / _cheapest_column(graph, priced))

  def test_only_ratios_of_prices_count(self):
    for graph in _clusters(3):
      priced = _random(graph, 3)
      # The last factor makes integers of more than 64 bits.
      for factor in (Fraction(2, 7), Fraction(10**30 + 1, 3**40)):
        scaled = prices.Prices(
          tuple((a, b, price * factor) for a, b, price in priced.links)
        )
        self.assertEqual(
          prices.proven(graph, scaled), prices.proven(graph, priced)
        )

  @parameterized.named_parameters(
    ('negative', [('w0', 's0', -1)], 'w0 to s0: .*at least 0, got -1'),
    ('float', [('w0', 's0', 0.5)], 'w0 to s0: .*a fraction .*got 0.5'),
    ('no_link', [('w0', 'w1', 1)], 'prices of links, got w0 to w1'),
    ('unknown', [('w9', 's0', 1)], 'prices of links, got w9 to s0'),
    ('twice', [('w0', 's0', 1), ('w0', 's0', 1)], 'w0 to s0 twice'),
    ('none', [], 'a positive price, got none'),
    ('zero', [('w0', 's0', 0)], 'a positive price, got none'),
  )
  def test_wrong_prices_are_no_proof(self, links, message):
    with self.assertRaisesRegex(ValueError, message):
      prices.proven(builders.star([1, 2, 3]), prices.Prices(tuple(links)))

  @parameterized.parameters(True, False)
  def test_free_column_is_no_proof(self, symmetric):
    graph = builders.ring(4, 5)
    if not symmetric:
      slow = cluster.Link('w0', 'w1', Fraction(1))
      graph = cluster.Cluster(graph.nodes, graph.workers, (*graph.links, slow))
    priced = prices.Prices((('w0', 'w1', Fraction(1)),))

    with self.assertRaisesRegex(ValueError, 'column, got one that is free'):
      prices.proven(graph, priced)

  def test_single_worker_has_nothing_to_prove(self):
    with self.assertRaisesRegex(ValueError, 'a positive price'):
      prices.proven(builders.line(1, 1), prices.Prices(()))

  def test_thousand_workers_are_fast_and_follow_the_closed_form(self):
    graph = builders.torus([32, 32], 25)
    equal = prices.Prices(tuple((a, b, Fraction(1)) for a, b, _ in graph.links))

    got = prices.proven(graph, equal)

    self.assertEqual(got, Fraction(25 * 2 * 1024, 1023))


class CheapestTest(parameterized.TestCase):
  """Cheapest trees against those of NetworkX."""

  @parameterized.parameters(*range(12))
  def test_spanning_tree_is_that_of_the_closure(self, seed):
    rng = random.Random(seed)
    graph = builders.random_switched(
      rng.randint(2, 12), rng.randint(1, 9), seed, symmetric=True
    )
    worker, links = _numbered(graph, seed)
    there = [(a, b, price) for a, b, price in links if a < b]
    alike = [*there, *((b, a, price) for a, b, price in there)]
    closure = nx.Graph()
    closure.add_weighted_edges_from(
      (*ends, price) for ends, price in _hop_prices(worker, alike).items()
    )

    got = cheapest.spanning_tree(worker, there)

    self.assertEqual(
      got, nx.minimum_spanning_tree(closure).size(weight='weight')
    )

  def test_switch_without_links_is_passed_over(self):
    worker = [True, False, True, False]

    self.assertEqual(cheapest.spanning_tree(worker, [(0, 3, 1), (2, 3, 4)]), 5)

  @parameterized.parameters(*range(12))
  def test_hops_are_shortest_paths_through_switches(self, seed):
    for graph in _clusters(seed, most=7):
      worker, links = _numbered(graph, seed)
      for factor in (1, 10**20):
        large = [(a, b, price * factor) for a, b, price in links]

        got = cheapest.hops(worker, large)

        chosen = np.flatnonzero(worker).tolist()
        want = _hop_prices(worker, large)
        dear = len(chosen) * sum(price for _, _, price in large)
        for (i, a), (j, b) in itertools.product(enumerate(chosen), repeat=2):
          if (a, b) in want:
            self.assertEqual(got[i, j], want[a, b])
          else:
            self.assertGreater(got[i, j], dear)

  @parameterized.product(seed=tuple(range(12)), factor=(1, 10**20))
  def test_arborescences_are_the_cheapest_of_each_root(self, seed, factor):
    for graph in _clusters(seed, most=8):
      worker, links = _numbered(graph, seed)
      price = cheapest.hops(worker, links)
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

      self.assertEqual(cheapest.arborescences(large), want)


def _clusters(seed, most=5):
  """Five random clusters of 2 to `most` workers: alike both ways or not."""
  rng = random.Random(seed)
  for symmetric in (False, True):
    yield builders.random_mesh(
      rng.randint(2, most), seed, density=0.5, symmetric=symmetric
    )
    yield builders.random_switched(
      rng.randint(2, most), rng.randint(1, 3), seed, symmetric=symmetric
    )
  yield _one_way(rng, rng.randint(2, most), rng.randint(0, 3))


def _one_way(rng, workers, switches):
  """Links at random, few of which have one back, and nodes in any order."""
  nodes = [f'n{i}' for i in range(workers + switches)]
  rng.shuffle(nodes)
  links = [(nodes[i - 1], nodes[i]) for i in range(len(nodes))]
  links += [e for e in itertools.permutations(nodes, 2) if rng.random() < 0.3]
  return cluster.Cluster(
    tuple(nodes),
    tuple(rng.sample(nodes, workers)),
    tuple(
      cluster.Link(*ends, Fraction(rng.randint(1, 20), 4)) for ends in links
    ),
  )


def _random(graph, seed, least=1):
  rng = random.Random(seed)
  return prices.Prices(
    tuple(
      (a, b, Fraction(rng.randint(least, 9), rng.randint(1, 3)))
      for a, b, _ in graph.links
    )
  )


def _capacity(graph):
  return {link[:2]: link.GBps for link in graph.links}


def _numbered(graph, seed):
  """Which nodes are workers, and links with random prices, some of them 0."""
  rng = random.Random(seed)
  index = {node: i for i, node in enumerate(graph.nodes)}
  links = [(index[a], index[b], rng.randint(0, 9)) for a, b, _ in graph.links]
  return [node in graph.workers for node in graph.nodes], links


def _hop_prices(worker, links):
  """Per pair of workers with a path between them through switches, its price.

  By Dijkstra's algorithm, without the links out of all other workers.
  """
  found = {}
  for src in np.flatnonzero(worker).tolist():
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(worker)))
    graph.add_weighted_edges_from(
      link for link in links if link[0] == src or not worker[link[0]]
    )
    lengths = nx.single_source_dijkstra_path_length(graph, src)
    for dst, length in lengths.items():
      if dst != src and worker[dst]:
        found[src, dst] = length
  return found


def _cheapest_column(graph, priced):
  """By all roots, and all choices of a hop for each of the other workers."""
  index = {node: i for i, node in enumerate(graph.nodes)}
  worker = [node in graph.workers for node in graph.nodes]
  hop = _hop_prices(worker, [(index[a], index[b], p) for a, b, p in priced[0]])
  workers = np.flatnonzero(worker).tolist()

  def tree(root, way):
    others = [v for v in workers if v != root]
    costs = []
    for chosen in itertools.product(workers, repeat=len(others)):
      parent = dict(zip(others, chosen, strict=True))
      ends = [pair[::way] for pair in parent.items()]
      if all(pair in hop for pair in ends) and _ends_at(root, parent):
        costs.append(sum(hop[pair] for pair in ends))
    return min(costs)

  return min(tree(root, 1) + tree(root, -1) for root in workers)


def _ends_at(root, parent):
  """Whether all parents lead to the root."""
  for start in parent:
    node = start
    for _ in parent:
      node = parent.get(node, root)
    if node != root:
      return False
  return True


if __name__ == '__main__':
  absltest.main()
