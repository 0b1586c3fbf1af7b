"""Tests for random clusters and for clusters by name."""

import math
from collections import Counter
from fractions import Fraction

import networkx as nx
from absl.testing import absltest, parameterized

from topology.clusters import machines, randomized, shapes
from topology.clusters.builders import build_cluster


class RandomTest(parameterized.TestCase):
  """Seeds, ranges and heterogeneity."""

  @parameterized.named_parameters(
    ('mesh', lambda seed: randomized.random_mesh(6, seed)),
    ('switched', lambda seed: randomized.random_switched(6, 3, seed)),
    ('spread', lambda seed: randomized.spread(shapes.ring(6, 1), 9, seed)),
  )
  def test_same_seed_gives_the_same_cluster(self, build):
    self.assertEqual(build(1), build(1))
    self.assertNotEqual(build(1), build(2))

  @parameterized.parameters(*range(5))
  def test_sparse_symmetric_mesh_is_its_own_reverse(self, seed):
    graph = randomized.random_mesh(7, seed, density=0.3, symmetric=True)

    self.assertEqual(graph, graph.reversed())
    self.assertLess(len(graph.links), 42)

  @parameterized.parameters(*range(5))
  def test_workers_are_each_behind_one_switch(self, seed):
    graph = randomized.random_switched(
      12, 5, seed, density=0.3, low_GBps=3, high_GBps=4
    )

    degree = Counter(link.src for link in graph.links)
    self.assertEqual({degree[worker] for worker in graph.workers}, {1})
    self.assertContainsSubset({link.GBps for link in graph.links}, {3, 4})
    whole = nx.Graph(link[:2] for link in graph.links)
    whole.add_nodes_from(graph.nodes)
    between = nx.Graph(whole.subgraph(graph.switches))
    self.assertTrue(nx.is_connected(between))
    self.assertLess(between.number_of_edges(), 10)

  @parameterized.product(
    ratio=(1, '1.5', 3, 10, 100, Fraction(1000, 7)), symmetric=(False, True)
  )
  def test_spread_has_the_ratio_in_equal_steps(self, ratio, symmetric):
    graph = shapes.full_mesh(8, 40)

    uneven = randomized.spread(graph, ratio, 3, symmetric=symmetric)

    ratio = Fraction(ratio)
    GBps = sorted(link.GBps for link in uneven.links)[:: 1 + symmetric]
    self.assertLen(GBps, 28 if symmetric else 56)
    self.assertEqual((GBps[0], GBps[-1]), (40 / ratio, 40))
    step = math.log(ratio) / (len(GBps) - 1)
    for i, capacity in enumerate(GBps):
      want = math.log(40 / ratio) + i * step
      self.assertAlmostEqual(math.log(capacity), want, delta=0.005)
      if i:  # The least is 1 / ratio as given; the others are decimals.
        self.assertEqual(capacity * 10**6 % 1, 0)

  def test_spread_keeps_symmetric_and_asymmetric_links(self):
    graph = shapes.star([1, 2, 3], [2, 4, 6])

    links = randomized.spread(graph, 50, 0).links
    capacity = {(src, dst): GBps for src, dst, GBps in links}

    for i in range(3):
      self.assertEqual(capacity['s0', f'w{i}'], 2 * capacity[f'w{i}', 's0'])

  @parameterized.parameters('line(1, 5)', 'line(2, 5)')
  def test_spread_of_one_pair_changes_nothing(self, spec):
    graph = build_cluster(spec)

    self.assertEqual(randomized.spread(graph, 100, 0), graph)


class NamedTest(parameterized.TestCase):
  """Clusters from strings."""

  @parameterized.parameters(
    ('torus([4, 4], 25)', shapes.torus([4, 4], 25)),
    (' dgx_a100( 2 ) ', machines.dgx_a100(2)),
    ('dgx_a100(boxes=2, rail_GBps=12.5)', machines.dgx_a100(2, rail_GBps=12.5)),
    (
      'random_mesh(16, 1, symmetric=True)',
      randomized.random_mesh(16, 1, symmetric=True),
    ),
    ('star((1, 2.5), ["1/3", 1e2])', shapes.star([1, 2.5], ['1/3', 100])),
    (
      'spread(tree([2, 2], [1, 1]), 10, seed=3)',
      randomized.spread(shapes.tree([2, 2], [1, 1]), 10, 3),
    ),
  )
  def test_a_spec_equals_the_call(self, spec, want):
    self.assertEqual(build_cluster(spec), want)

  @parameterized.parameters(
    ('0.1', Fraction(1, 10)),
    ('0.12345678901234567890123', Fraction('0.12345678901234567890123')),
    ('1_000.5', Fraction(2001, 2)),
    ('.5', Fraction(1, 2)),
    ('2.', Fraction(2)),
    ('1e-3', Fraction(1, 1000)),
    ('10000000000000000000001', Fraction(10**22 + 1)),
  )
  def test_numbers_are_exact(self, text, want):
    graph = build_cluster(f'line(2, {text})')

    self.assertEqual(graph.links[0].GBps, want)

  @parameterized.parameters(
    ('', "Expected NAME.*as in 'ring.*got '';.*full_mesh"),
    ('ring', "Expected NAME.*got 'ring'"),
    ('ring(8, 25', 'Expected NAME'),
    ('x = ring(8, 25)', 'Expected NAME'),
    ('ring(8, 25) if 1 else 2', 'Expected NAME'),
    ('grid(8, 25)', "Expected one of bcube, .*, wan, got 'grid'"),
    ('named("ring(8, 25)")', "Expected one of .*got 'named'"),
    ('Fraction(8)', "Expected one of .*got 'Fraction'"),
    ('cluster.from_json(3)', "Expected one of .*got 'cluster.from_json'"),
    ('ring(8)', r"ring\(workers, GBps, both_ways\): missing .* 'GBps'"),
    ('ring(8, 25, 1)', 'ring.*too many positional arguments'),
    ('ring(8, 25, way=1)', "ring.*unexpected keyword argument 'way'"),
    ('ring(8, 25, GBps=1)', "ring.*multiple values for argument 'GBps'"),
    ('ring(8, GBps=1, GBps=1)', "ring: .*once, got 'GBps'"),
    ('ring(8, **{"GBps": 1})', r"ring: .*once, got '\*\*'"),
    ('ring(8, 25, both_ways=0)', 'both_ways: expected a bool, got 0'),
    ('ring(8, 5 * 5)', r"Expected numbers.*got '5 \* 5'"),
    ('ring(8, *[1])', r"Expected numbers.*got '\*\[1\]'"),
    ('ring(8, -"1")', 'Expected numbers.*got'),
    ('ring(8, None)', "Expected numbers.*got 'None'"),
    ('ring(8, 1j)', "Expected numbers.*got '1j'"),
    ('ring(x, 1)', "Expected numbers.*got 'x'"),
    ('ring(ring(2, 1), 1)', 'ring: workers: expected an integer'),
    ('spread(ring(0, 1), 1, 1)', 'ring: workers: .*got 0'),
  )
  def test_wrong_spec_is_an_error(self, spec, message):
    with self.assertRaisesRegex(ValueError, message):
      build_cluster(spec)


if __name__ == '__main__':
  absltest.main()
