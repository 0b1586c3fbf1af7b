"""Tests for topology.prices and the cheapest trees under them."""

import itertools
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

import topology
from tests.support import hop_prices, random_clusters
from topology.bounds import prices
from topology.clusters import randomized, shapes
from topology.clusters.cluster import Cluster, Link


class ProvenTest(parameterized.TestCase):
  """All columns, packed forests, and what is no proof."""

  def test_star_with_equal_prices_has_its_closed_form(self):
    graph = shapes.star([100] * 8)
    equal = prices.Prices(tuple((a, b, Fraction(3)) for a, b, _ in graph.links))

    self.assertEqual(prices.prove_rate(graph, equal), Fraction(400, 7))

  @parameterized.parameters(*range(6))
  def test_cheapest_of_all_columns_counts(self, seed):
    for graph in random_clusters.every(seed, most=4):
      priced = _random(graph, seed)
      if graph == graph.reversed():  # The mean, written out here once more.
        back = {(b, a): price for a, b, price in priced.links}
        priced = prices.Prices(
          tuple((a, b, (p + back[a, b]) / 2) for a, b, p in priced.links)
        )
      worth = sum(p * _capacity(graph)[a, b] for a, b, p in priced.links)

      got = prices.prove_rate(graph, priced)

      self.assertEqual(got, worth / _cheapest_column(graph, priced))

  @parameterized.parameters(*range(4))
  def test_no_prices_prove_less_than_what_a_forest_reaches(self, seed):
    for graph in random_clusters.every(seed):  # Five of them.
      rate_GBps = topology.pack(graph).rate_Bps / 10**9
      for other in range(5):
        priced = _random(graph, other, least=0)
        try:
          self.assertGreaterEqual(prices.prove_rate(graph, priced), rate_GBps)
        except ValueError as error:  # With prices of 0.
          self.assertRegex(str(error), 'column|positive')

  @parameterized.parameters(*range(4))
  def test_mean_of_both_directions_proves_as_much(self, seed):
    graph = randomized.random_switched(4, 2, seed, symmetric=True)
    priced = _random(graph, seed)
    back = {(b, a): price for a, b, price in priced.links}
    mean = prices.Prices(
      tuple((a, b, (p + back[a, b]) / 2) for a, b, p in priced.links)
    )
    worth = sum(p * _capacity(graph)[a, b] for a, b, p in priced.links)

    got = prices.prove_rate(graph, priced)

    self.assertEqual(got, prices.prove_rate(graph, mean))
    self.assertLessEqual(got, worth / _cheapest_column(graph, priced))

  def test_only_ratios_of_prices_count(self):
    for graph in random_clusters.every(3):
      priced = _random(graph, 3)
      # The last factor makes integers of more than 64 bits.
      for factor in (Fraction(2, 7), Fraction(10**30 + 1, 3**40)):
        scaled = prices.Prices(
          tuple((a, b, price * factor) for a, b, price in priced.links)
        )
        self.assertEqual(
          prices.prove_rate(graph, scaled), prices.prove_rate(graph, priced)
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
      prices.prove_rate(shapes.star([1, 2, 3]), prices.Prices(tuple(links)))

  @parameterized.parameters(True, False)
  def test_free_column_is_no_proof(self, symmetric):
    graph = shapes.ring(4, 5)
    if not symmetric:
      slow = Link('w0', 'w1', Fraction(1))
      graph = Cluster(graph.nodes, graph.workers, (*graph.links, slow))
    priced = prices.Prices((('w0', 'w1', Fraction(1)),))

    with self.assertRaisesRegex(ValueError, 'column, got one that is free'):
      prices.prove_rate(graph, priced)

  def test_single_worker_has_nothing_to_prove(self):
    with self.assertRaisesRegex(ValueError, 'a positive price'):
      prices.prove_rate(shapes.line(1, 1), prices.Prices(()))

  def test_thousand_workers_are_fast_and_follow_the_closed_form(self):
    graph = shapes.torus([32, 32], 25)
    equal = prices.Prices(tuple((a, b, Fraction(1)) for a, b, _ in graph.links))

    got = prices.prove_rate(graph, equal)

    self.assertEqual(got, Fraction(25 * 2 * 1024, 1023))


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


def _cheapest_column(graph, priced):
  """By all roots, and all choices of a hop for each of the other workers."""
  index = {node: i for i, node in enumerate(graph.nodes)}
  worker = [node in graph.workers for node in graph.nodes]
  hop = hop_prices.between(
    worker, [(index[a], index[b], p) for a, b, p in priced[0]]
  )
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
