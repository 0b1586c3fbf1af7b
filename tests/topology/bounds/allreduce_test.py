"""The best allreduce, and its proof."""

from absl.testing import absltest, parameterized

from tests.support import random_clusters
from topology.bounds import allreduce, prices
from topology.clusters import randomized, shapes


class AllreduceTest(parameterized.TestCase):
  """The optimum, what it leaves each direction, and its proof."""

  @parameterized.parameters(
    shapes.star([10, 20, 5, 8], [40, 50, 9, 4]),
    randomized.random_mesh(6, 1),
    randomized.random_mesh(6, 1, symmetric=True),
    shapes.tree([2, 3], [9, 4]),
  )
  def test_optimum_is_proved_and_divides_each_link(self, graph):
    best = allreduce.optimum(graph)

    self.assertEqual(prices.prove_rate(graph, best.prices), best.rate_GBps)
    self.assertEqual(sum(best.root_GBps), best.rate_GBps)
    used = dict.fromkeys([link[:2] for link in graph.links], 0)
    for src, dst, GBps in (*best.up, *best.down):
      used[src, dst] += GBps
    for src, dst, GBps in graph.links:
      self.assertLessEqual(used[src, dst], GBps)


class OptimumTest(parameterized.TestCase):
  """Prices of the linear program prove what it promises."""

  @parameterized.parameters(*range(6))
  def test_rate_of_a_random_cluster_is_proved_exactly(self, seed):
    for graph in random_clusters.every(seed):
      best = allreduce.optimum(graph)

      self.assertEqual(prices.prove_rate(graph, best.prices), best.rate_GBps)

  @parameterized.parameters(*range(2))
  def test_links_that_are_not_free_are_listed_in_order(self, seed):
    for graph in random_clusters.every(seed):
      listed = allreduce.optimum(graph).prices.links

      named = {link[:2] for link in listed}
      want = [link[:2] for link in graph.links if link[:2] in named]
      self.assertEqual([link[:2] for link in listed], want)
      self.assertGreater(min(price for _, _, price in listed), 0)


if __name__ == '__main__':
  absltest.main()
