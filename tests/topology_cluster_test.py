"""Tests for topology.cluster and topology.builders."""

import dataclasses
import json
from fractions import Fraction

from absl.testing import absltest, parameterized

from topology import builders, cluster


class FromJsonTest(parameterized.TestCase):
  """What is read, added up, dropped and refused."""

  @parameterized.parameters(
    ('25', Fraction(25)),
    ('12.5', Fraction(25, 2)),
    ('100/3', Fraction(100, 3)),
    ('1e2', Fraction(100)),
    (25, Fraction(25)),
    (0.1, Fraction(1, 10)),
    (Fraction(2, 7), Fraction(2, 7)),
  )
  def test_capacities_are_kept_exactly(self, value, want):
    graph = cluster.from_json(_pair(value))

    self.assertEqual(graph.links[0], cluster.Link('a', 'b', want))

  def test_parallel_links_add_up(self):
    data = _pair('1/3')
    data['links'] += [{'src': 'a', 'dst': 'b', 'GBps': '1/6'}]

    graph = cluster.from_json(data)

    self.assertLen(graph.links, 2)
    self.assertEqual(graph.links[0].GBps, Fraction(1, 2))

  def test_zero_capacity_is_no_link(self):
    data = _pair('1')
    data['nodes'] += [{'id': 's', 'worker': False}]
    data['links'] += [{'src': 'a', 'dst': 's', 'GBps': '0'}]

    graph = cluster.from_json(data)

    self.assertLen(graph.links, 2)
    self.assertEqual(graph.switches, ('s',))

  def test_order_of_links_does_not_matter(self):
    data = cluster.to_json(builders.tree([2, 2], [1, 2]))
    turned = {**data, 'links': data['links'][::-1]}

    self.assertEqual(cluster.from_json(data), cluster.from_json(turned))

  def test_what_is_written_is_read_back(self):
    graph = builders.star(['1/3', 2.5, 7], [1, 2, 3])

    text = json.dumps(cluster.to_json(graph))

    self.assertEqual(cluster.from_json(json.loads(text)), graph)

  def test_single_worker_needs_no_links(self):
    graph = cluster.from_json({'nodes': [_node('a')], 'links': []})

    self.assertEqual(graph.workers, ('a',))

  @parameterized.parameters(
    -1,
    '-1/2',
    'nan',
    'inf',
    float('nan'),
    float('inf'),
    '1/0',
    'fast',
    None,
    True,
    ((),),
  )
  def test_wrong_capacity_is_an_error_that_names_the_link(self, value):
    with self.assertRaisesRegex(ValueError, 'a to b: expected a finite GBps'):
      cluster.from_json(_pair(value))

  @parameterized.named_parameters(
    ('no_worker', [('a', False)], [], 'expected one or more'),
    ('same_id_twice', [('a', True), ('a', True)], [], "'a' twice"),
    ('unknown_node', [('a', True)], [('a', 'x')], "known nodes, got 'x'"),
    ('loop', [('a', True)], [('a', 'a')], "'a' to itself"),
    ('id_of_other_type', [(1, True)], [], 'expected a string'),
    ('worker_of_other_type', [('a', 'yes')], [], 'expected a string'),
    ('no_link', [('a', True), ('b', True)], [], 'b is unreachable from a'),
    (
      'one_way',
      [('a', True), ('b', True)],
      [('a', 'b')],
      'a is unreachable from b',
    ),
    (
      'switch_without_way_out',
      [('a', True), ('b', True), ('s', False)],
      [('a', 's'), ('b', 's')],
      'b is unreachable from a',
    ),
  )
  def test_wrong_graph_is_an_error(self, nodes, pairs, message):
    data = {
      'nodes': [_node(*node) for node in nodes],
      'links': [{'src': a, 'dst': b, 'GBps': '1'} for a, b in pairs],
    }

    with self.assertRaisesRegex(ValueError, message):
      cluster.from_json(data)

  @parameterized.parameters(
    ({},),
    ({'nodes': []},),
    ({'nodes': [3], 'links': []},),
    ({'nodes': [{'id': 'a'}], 'links': []},),
  )
  def test_missing_key_is_an_error(self, data):
    with self.assertRaisesRegex(ValueError, 'Expected a mapping with'):
      cluster.from_json(data)


class ClusterTest(parameterized.TestCase):
  """Plain immutable data."""

  def test_cluster_cannot_be_changed(self):
    graph = builders.line(2, 1)

    with self.assertRaises(dataclasses.FrozenInstanceError):
      graph.links = ()

  def test_equal_clusters_have_equal_hashes(self):
    self.assertEqual(hash(builders.line(3, 1)), hash(builders.line(3, '1.0')))

  def test_reversal_turns_each_link(self):
    graph = builders.star([1, 2], [3, 4])

    self.assertEqual(graph.reversed(), builders.star([3, 4], [1, 2]))

  def test_workers_that_are_no_nodes_are_an_error(self):
    with self.assertRaisesRegex(ValueError, 'expected distinct nodes'):
      cluster.Cluster(('a',), ('b',), ())


class BuildersTest(parameterized.TestCase):
  """Nodes, links and capacities of each shape."""

  @parameterized.named_parameters(
    ('full_mesh', builders.full_mesh(4, 25), 4, 0, 12),
    ('ring', builders.ring(6, 25), 6, 0, 12),
    ('one_way_ring', builders.ring(6, 25, both_ways=False), 6, 0, 6),
    ('line', builders.line(5, 25), 5, 0, 8),
    ('star', builders.star([1, 2, 3]), 3, 1, 6),
    ('tree', builders.tree([2, 3, 2], [4, 2, 1]), 12, 9, 40),
    ('random_mesh', builders.random_mesh(5, 0), 5, 0, 20),
    ('one_worker', builders.ring(1, 1), 1, 0, 0),
    ('torus', builders.torus([3, 3], 25), 9, 0, 36),
    ('narrow_torus', builders.torus([2, 3], 25), 6, 0, 18),
    ('fat_tree', builders.fat_tree(4, 10), 16, 20, 96),
    ('bcube', builders.bcube(3, 2, 10), 9, 6, 36),
    ('one_box', builders.dgx_a100(1), 8, 1, 16),
    ('two_boxes', builders.dgx_a100(2), 16, 4, 64),
  )
  def test_shape_has_so_many_parts(self, graph, workers, switches, links):
    self.assertLen(graph.workers, workers)
    self.assertLen(graph.switches, switches)
    self.assertLen(graph.links, links)

  def test_ring_of_two_has_parallel_links(self):
    self.assertEqual(builders.ring(2, 3), builders.line(2, 6))

  def test_star_has_its_own_capacities_up_and_down(self):
    capacity = {
      link[:2]: link.GBps for link in builders.star([1, 2], [3, 4]).links
    }

    self.assertEqual(capacity['w1', 's0'], 2)
    self.assertEqual(capacity['s0', 'w1'], 4)

  def test_tree_has_a_capacity_for_each_level(self):
    capacity = {
      link[:2]: link.GBps for link in builders.tree([2, 2], [5, 1]).links
    }

    self.assertEqual(capacity['s0', 's1'], 5)
    self.assertEqual(capacity['w3', 's2'], 1)

  def test_same_seed_gives_the_same_random_mesh(self):
    first, same, other = (builders.random_mesh(6, seed) for seed in (1, 1, 2))

    self.assertEqual(first, same)
    self.assertNotEqual(first, other)

  @parameterized.parameters(*range(5))
  def test_sparse_symmetric_mesh_is_its_own_reverse(self, seed):
    graph = builders.random_mesh(7, seed, density=0.3, symmetric=True)

    self.assertEqual(graph, graph.reversed())
    self.assertLess(len(graph.links), 42)

  @parameterized.named_parameters(
    ('no_workers', lambda: builders.full_mesh(0, 1)),
    ('no_capacity', lambda: builders.line(3, 0)),
    ('negative', lambda: builders.ring(3, -1)),
    ('lengths', lambda: builders.star([1, 2], [1])),
    ('no_levels', lambda: builders.tree([], [])),
    ('empty_level', lambda: builders.tree([2, 0], [1, 1])),
    ('no_sides', lambda: builders.torus([], 1)),
    ('empty_side', lambda: builders.torus([3, 0], 1)),
    ('odd_ports', lambda: builders.fat_tree(3, 1)),
    ('no_digits', lambda: builders.bcube(3, 0, 1)),
    ('no_boxes', lambda: builders.dgx_a100(0)),
    ('density', lambda: builders.random_mesh(3, 0, density=1.5)),
    ('range', lambda: builders.random_mesh(3, 0, low_GBps=3, high_GBps=2)),
  )
  def test_wrong_arguments_are_an_error(self, build):
    with self.assertRaises(ValueError):
      build()


def _node(node, worker=True):
  return {'id': node, 'worker': worker}


def _pair(value):
  """Two workers; `value` is the capacity from the first to the second."""
  return {
    'nodes': [_node('a'), _node('b')],
    'links': [
      {'src': 'a', 'dst': 'b', 'GBps': value},
      {'src': 'b', 'dst': 'a', 'GBps': '1'},
    ],
  }


if __name__ == '__main__':
  absltest.main()
