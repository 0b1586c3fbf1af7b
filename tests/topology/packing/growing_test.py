"""Tests for topology.growing."""

import collections
import random

import networkx as nx
import numpy as np
from absl.testing import absltest, parameterized

from tests.support import random_clusters
from topology.clusters import randomized, shapes
from topology.packing import arrays, growing

SEEDS = (*range(3),)


class PairedTest(parameterized.TestCase):
  """Trees up and down over the same links."""

  @parameterized.product(seed=SEEDS, GBps=(1e-9, 7.0, 1e12))
  def test_trees_span_and_can_be_carried_out_in_order(self, seed, GBps):
    for graph in random_clusters.alike(seed):
      network = arrays.Arrays(graph, paired=True)

      trees = [*_both(network, 5, GBps)]

      self.assertLen(trees, 5)
      for tree in trees:
        _assert_spans(network, tree)

  @parameterized.parameters(*SEEDS)
  def test_down_is_up_turned_round_from_the_middle(self, seed):
    for graph in random_clusters.alike(seed):
      network = arrays.Arrays(graph, paired=True)
      for tree in _both(network, 3, 10.0):
        hops = nx.Graph(hop[:2] for hop in tree.down)

        self.assertEqual(tree.up, tuple(map(network.backwards, tree.down)))
        self.assertEqual(
          nx.eccentricity(hops, tree.root),
          nx.radius(hops) if len(hops) > 1 else 0,
        )

  def test_few_trees_spread_over_all_links_of_a_mesh(self):
    network = arrays.Arrays(shapes.full_mesh(8, 1), paired=True)

    trees = [*_both(network, 4, 4.0)]

    # 28 hops on 28 pairs of workers, of which hardly any need be used twice.
    used = collections.Counter(h.uses for tree in trees for h in tree.down)
    self.assertEqual(used.total(), 28)
    self.assertGreaterEqual(len(used), 20)
    self.assertLessEqual(max(used.values()), 2)


class OneWayTest(parameterized.TestCase):
  """A tree down for each root."""

  @parameterized.product(seed=SEEDS, GBps=(1e-9, 7.0, 1e12))
  def test_each_worker_has_a_tree_that_spans(self, seed, GBps):
    for graph in random_clusters.every(seed, 9, 6):
      network = arrays.Arrays(graph, paired=False)
      full = np.linspace(0, 1, len(network.capacity))

      trees = [*_grow_down(network, GBps, full)]

      self.assertEqual([tree.root for tree in trees], network.workers)
      for tree in trees:
        self.assertEqual(tree.up, ())
        _assert_spans(network, tree)

  def test_hops_that_do_not_suffice_are_found_one_by_one(self):
    lacking = 0
    for seed in range(20):
      network = arrays.Arrays(
        random_clusters.one_way(random.Random(seed), 9, 3, 0.15), paired=False
      )
      full = np.zeros(len(network.capacity))
      now = np.array(growing.Costs(network, 1.0, full).now)
      hops = nx.DiGraph()
      hops.add_nodes_from(network.workers)
      for turn in range(-20, 20):
        hops.add_edges_from(hop[:2] for hop in network.hops(now, turn))
      reached = nx.descendants(hops, network.workers[0])
      lacking += len(reached) < len(network.workers) - 1

      tree = next(_grow_down(network, 1.0, full))

      _assert_spans(network, tree)
    self.assertGreater(lacking, 0)

  @parameterized.parameters(*SEEDS)
  def test_hasty_trees_span(self, seed):
    for graph in random_clusters.every(seed, 9, 6):
      network = arrays.Arrays(graph, paired=False)
      full = np.zeros(len(network.capacity))

      trees = [*_grow_down(network, 1.0, full, hasty=True)]

      self.assertEqual([tree.root for tree in trees], network.workers)
      for tree in trees:
        _assert_spans(network, tree)

  def test_star_sends_up_once_where_nothing_more_fits(self):
    network = arrays.Arrays(shapes.star([1, 100, 100, 100]), paired=False)
    full = np.zeros(len(network.capacity))

    tree = next(_grow_down(network, 1.0, full))

    self.assertLen([hop for hop in tree.down if hop.src == 0], 1)


class TwoWayTest(parameterized.TestCase):
  """Trees up and trees down, with the same root."""

  @parameterized.product(seed=SEEDS, GBps=(1e-9, 7.0, 1e12))
  def test_both_span_and_can_be_carried_out_in_order(self, seed, GBps):
    for graph in random_clusters.every(seed, 9, 6):
      network = arrays.Arrays(graph, paired=False)

      trees = [*_both(network, 4, GBps)]

      self.assertLen(trees, 4)
      for tree in trees:
        _assert_spans(network, tree)

  def test_root_is_the_worker_with_the_thinnest_links(self):
    # It sends its sums nowhere, and receives no result.
    network = arrays.Arrays(shapes.star([8, 2, 9], [7, 3, 8]), paired=False)

    tree = next(_both(network, 1, 1.0))

    self.assertEqual(tree.root, 1)


class PricesTest(parameterized.TestCase):
  """Tests of link prices."""

  def test_exponential_rises_and_is_near_the_true_one(self):
    x = np.linspace(-20, 40, 601)

    got = growing.exp(x)

    self.assertTrue((np.diff(got) > 0).all())
    # (1 + x / n)^n is e^x, less about the share x^2 / 2 n.
    off = x - np.log(got)
    np.testing.assert_allclose(off, x**2 / (2 * 4096), rtol=0.01, atol=1e-9)

  def test_price_is_that_of_the_share_that_is_used(self):
    network = arrays.Arrays(shapes.line(3, 10), paired=True)
    full = np.array([0.0, 0.3])
    prices = growing.Costs(network, 1.0, full)

    start = [*prices.now]
    prices.raise_([0])
    prices.raise_([0])

    np.testing.assert_allclose(start, np.exp([2.0, 2.0 + 6.0]) / 10, rtol=0.01)
    np.testing.assert_allclose(prices.now[0], np.exp(6.0) / 10, rtol=0.01)
    self.assertEqual(prices.now[1], start[1])
    np.testing.assert_allclose(prices.price([0, 1]), sum(prices.now))

  @parameterized.parameters(1e-12, 1.0, 1e12)
  def test_prices_of_links_however_thin_stay_finite(self, GBps):
    graph = shapes.star(['1e-12', 1, '1e12'])
    network = arrays.Arrays(graph, paired=False)
    ones = np.ones(len(network.capacity))

    prices = growing.Costs(network, GBps, 16 * ones)
    for _ in range(10_000):
      prices.raise_(range(len(ones)))

    self.assertLess(len(ones) * max(prices.now), 1e202)
    self.assertGreater(min(prices.now), 0)

  def test_trees_over_links_too_thin_for_them_span(self):
    for ratio in (10**6, 10**12):
      for graph in random_clusters.every(1, 9, 6):
        thin = randomized.spread(graph, ratio, 1, symmetric=False)
        network = arrays.Arrays(thin, paired=False)
        full = np.zeros(len(network.capacity))
        grown = _both(network, 20, 1e3)
        for tree in (*grown, *_grow_down(network, 50.0, full)):
          _assert_spans(network, tree)


def _both(network, count, GBps):
  """Trees up and down that carry so much together."""
  nothing = np.zeros(len(network.capacity))
  grower = growing.Grower(network, GBps / count, nothing)
  return (grower.both() for _ in range(count))


def _grow_down(network, GBps, full, hasty=False):
  """A tree for each root that carries so much."""
  grower = growing.Grower(network, GBps, full)
  return (
    grower.down(root, hasty=hasty and i > 0)
    for i, root in enumerate(network.workers)
  )


def _assert_spans(network, tree):
  """Each worker receives once, after its parent; up likewise, backwards."""
  ways = [tree.down] if not tree.up else [tree.down, tree.up]
  for place, hops in enumerate(ways):
    reached = [tree.root]
    for hop in hops:
      path = network.path(hop)
      assert len(set(path)) == len(path)
      assert set(path[1:-1]).isdisjoint(network.workers)
      near, far = (hop.dst, hop.src) if place else (hop.src, hop.dst)
      assert near in reached and far not in reached
      reached.append(far)
    assert sorted(reached) == network.workers


if __name__ == '__main__':
  absltest.main()
