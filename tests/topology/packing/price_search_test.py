"""Tests for topology.pricing, against exact optima."""

import random

import numpy as np
from absl.testing import absltest, parameterized

from topology.algorithms import stopping
from topology.bounds import allreduce, prices
from topology.clusters import machines, randomized, shapes
from topology.packing import arrays, price_search


class BoundTest(parameterized.TestCase):
  """Never below what can be reached, and proved."""

  @parameterized.parameters(*range(4))
  def test_bound_of_a_symmetric_cluster_is_not_below_the_optimum(self, seed):
    for graph in _clusters(seed, symmetric=True):
      self._assert_proved(graph, close=1.05)

  @parameterized.parameters(*range(4))
  def test_bound_of_a_directed_cluster_is_not_below_the_optimum(self, seed):
    for graph in _clusters(seed, symmetric=False):
      self._assert_proved(graph, close=3)

  @parameterized.parameters(*range(2))
  def test_thin_links_are_no_reason_to_prove_too_little(self, seed):
    for graph in _clusters(seed, symmetric=True):
      self._assert_proved(randomized.spread(graph, 10**8, seed), close=1.1)

  @parameterized.named_parameters(
    ('star', shapes.star([10] * 9)),
    ('unequal_star', shapes.star([10, 10, 100, 100])),
    ('other_star', shapes.star([40] * 5, [10] * 5)),
    ('ring', shapes.ring(8, 5)),
    ('tree', shapes.tree([3, 4], [7, 5])),
    ('boxes', machines.dgx_a100(4)),
    ('torus', shapes.torus([4, 4], 3)),
    ('fat_tree', shapes.fat_tree(4, 10)),
    ('bcube', shapes.bcube(3, 2, 10)),
  )
  def test_prices_to_start_with_prove_the_optimum_of(self, graph):
    network = _network(graph)

    bound = price_search.Bound(graph, network)

    proved = prices.prove_rate(graph, bound.certificate())
    self.assertEqual(proved, allreduce.optimum(graph).rate_GBps)

  def test_search_for_prices_ends_when_told_to(self):
    graph = randomized.random_mesh(12, 1, symmetric=True)
    asked = []

    def stop():
      asked.append(None)
      return len(asked) == 3

    price_search.Bound(graph, _network(graph)).follow(1000, stop)

    self.assertLen(asked, 3)

  def _assert_proved(self, graph, close):
    optimum = allreduce.optimum(graph).rate_GBps
    network = _network(graph)
    bound = price_search.Bound(graph, network)
    generator = np.random.default_rng(0)
    for _ in range(3):
      before = bound.rate
      if network.paired:
        bound.follow(32, stopping.never)
      bound.improve(generator.random(len(network.capacity)))
      self.assertLessEqual(bound.rate, before)

    proved = prices.prove_rate(graph, bound.certificate())

    self.assertGreaterEqual(proved, optimum)
    self.assertLessEqual(proved, close * optimum)
    np.testing.assert_allclose(bound.rate, float(proved), rtol=1e-3)


def _clusters(seed, symmetric):
  rng = random.Random(seed)
  count = rng.randint(2, 8)
  density = rng.choice((0.2, 0.6))
  yield randomized.random_mesh(
    count, seed, density=density, symmetric=symmetric
  )
  yield randomized.random_switched(
    rng.randint(2, 6), rng.randint(1, 4), seed, symmetric=symmetric
  )


def _network(graph):
  return arrays.Arrays(graph, paired=graph == graph.reversed())


if __name__ == '__main__':
  absltest.main()
