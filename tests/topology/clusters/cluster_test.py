"""Tests for topology.cluster."""

import dataclasses
import decimal
import json
from fractions import Fraction

import networkx as nx
import numpy as np
from absl.testing import absltest, parameterized

import topology
from tests.support import small
from topology.clusters import cluster, shapes
from topology.clusters.cluster import Cluster, Link


class FromJsonTest(parameterized.TestCase):
  """Tests of reading: parallel links, capacities, and rejected data."""

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

    self.assertEqual(graph.links[0], Link('a', 'b', want))

  def test_parallel_links_add_up(self):
    data = _pair('1/3')
    data['links'] += [{'src': 'a', 'dst': 'b', 'GBps': '1/6'}]

    graph = cluster.from_json(data)

    self.assertLen(graph.links, 2)
    self.assertEqual(graph.links[0].GBps, Fraction(1, 2))

  @parameterized.parameters(
    (np.int32(3), Fraction(3)),
    (np.int64(4 * 10**10), Fraction(4 * 10**10)),
    (np.float64(0.1), Fraction(1, 10)),
    (decimal.Decimal('12.50'), Fraction(25, 2)),
    (Fraction(100, 3), Fraction(100, 3)),
  )
  def test_numbers_of_all_kinds_become_fractions(self, value, want):
    ends = [{'id': 'a', 'worker': True}, {'id': 'b', 'worker': True}]
    links = [
      {'src': 'a', 'dst': 'b', 'GBps': value},
      {'src': 'b', 'dst': 'a', 'GBps': value},
    ]

    graph = cluster.from_json({'nodes': ends, 'links': links})

    for link in graph.links:
      self.assertEqual(link.GBps, want)
      self.assertIs(type(link.GBps.numerator), int)
    self.assertEqual(topology.pack(graph).rate_Bps, want * 10**9)

  def test_zero_capacity_is_no_link(self):
    data = _pair('1')
    data['nodes'] += [{'id': 's', 'worker': False}]
    data['links'] += [{'src': 'a', 'dst': 's', 'GBps': '0'}]

    graph = cluster.from_json(data)

    self.assertLen(graph.links, 2)
    self.assertEqual(graph.switches, ('s',))

  def test_order_of_links_does_not_matter(self):
    data = cluster.to_json(shapes.tree([2, 2], [1, 2]))
    turned = {**data, 'links': data['links'][::-1]}

    self.assertEqual(cluster.from_json(data), cluster.from_json(turned))

  def test_written_clusters_are_read_back(self):
    graph = shapes.star(['1/3', 2.5, 7], [1, 2, 3])

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
    ('worker_of_other_type', [('a', 'yes')], [], "a bool, got 'yes'"),
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
    ({}, "nodes: expected an object with 'nodes', got {}"),
    ([], r"nodes: expected an object with 'nodes', got \[\]"),
    ({'nodes': []}, "links: expected an object with 'links'"),
    ({'nodes': 7, 'links': []}, 'nodes: expected a list, got 7'),
    ({'nodes': 'ab', 'links': []}, "nodes: expected a list, got 'ab'"),
    ({'nodes': [3], 'links': []}, r'nodes\[0\].id: expected an object .*3'),
    ({'nodes': [{'id': 'a'}], 'links': []}, r'nodes\[0\].worker: expected'),
    ({'nodes': [], 'links': [{'src': []}]}, r'links\[0\].src: .*string.*\[\]'),
    ({'nodes': [], 'links': None}, 'links: expected a list, got None'),
  )
  def test_values_of_wrong_types_are_rejected_by_name(self, data, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      cluster.from_json(data)

  @parameterized.parameters('1e999999999', '1e-999999999', '1E+500 ')
  def test_a_number_too_large_to_write_out_is_rejected_at_once(self, value):
    with self.assertRaisesRegex(ValueError, 'a to b: expected a finite GBps'):
      cluster.from_json(_pair(value))


class FromNetworkxTest(parameterized.TestCase):
  """Graphs of all four kinds."""

  def test_undirected_edge_is_a_link_each_way(self):
    graph = nx.complete_graph(['w0', 'w1', 'w2'])
    nx.set_edge_attributes(graph, '2.5', 'GBps')

    self.assertEqual(
      cluster.from_networkx(graph), shapes.full_mesh(3, Fraction(5, 2))
    )

  def test_directed_edge_is_a_link_one_way(self):
    graph = nx.DiGraph()
    nx.add_cycle(graph, ['w0', 'w1', 'w2'], GBps=0.1)

    self.assertEqual(
      cluster.from_networkx(graph),
      shapes.ring(3, Fraction(1, 10), both_ways=False),
    )

  @parameterized.parameters((nx.MultiGraph, 5), (nx.MultiDiGraph, 3))
  def test_parallel_edges_add_up(self, kind, want):
    graph = kind([('a', 'b', {'GBps': 1}), ('a', 'b', {'GBps': 2})])
    graph.add_edge('b', 'a', GBps=2)

    links = cluster.from_networkx(graph).links

    self.assertLen(links, 2)
    self.assertEqual(links[0].GBps, want)

  def test_switches_are_marked(self):
    graph = nx.Graph()
    graph.add_nodes_from(['w0', 'w1'], worker=True)
    graph.add_node('s0', worker=False)
    graph.add_edge('w0', 's0', GBps=1)
    graph.add_edge('s0', 'w1', GBps='1/3')

    self.assertEqual(
      cluster.from_networkx(graph), shapes.star([1, Fraction(1, 3)])
    )

  def test_nodes_of_other_types_get_their_string_as_id(self):
    graph = nx.grid_graph([2, 2])
    nx.set_edge_attributes(graph, 3, 'GBps')

    found = cluster.from_networkx(graph)

    self.assertEqual(found.workers[1], '(0, 1)')
    self.assertLen(found.links, 8)

  @parameterized.named_parameters(
    ('no_capacity', {}, {}, "a to b: .* with 'GBps'"),
    ('negative', {'GBps': -1}, {}, 'a to b: expected a finite GBps'),
    (
      'some_marked',
      {'GBps': 1},
      {'a': True},
      "b: expected an object with 'work",
    ),
    ('other_type', {'GBps': 1}, {'a': True, 'b': 1}, 'a bool, got 1'),
    ('no_worker', {'GBps': 1}, {'a': False, 'b': False}, 'one or more, got no'),
  )
  def test_wrong_attributes_are_an_error(self, edge, workers, message):
    graph = nx.Graph([('a', 'b', edge)])
    nx.set_node_attributes(graph, workers, 'worker')

    with self.assertRaisesRegex(ValueError, message):
      cluster.from_networkx(graph)

  @parameterized.named_parameters(
    ('loop', nx.Graph([(1, 2, {'GBps': 1}), (1, 1, {'GBps': 1})]), 'to itself'),
    ('same_string', nx.Graph([(1, '1', {'GBps': 1})]), "'1' twice"),
    ('one_way', nx.DiGraph([(1, 2, {'GBps': 1})]), '1 is unreachable from 2'),
    ('nothing', nx.Graph(), 'one or more, got none'),
  )
  def test_wrong_graph_is_an_error(self, graph, message):
    with self.assertRaisesRegex(ValueError, message):
      cluster.from_networkx(graph)

  def test_networkx_is_not_needed(self):
    code = (
      'import sys\n'
      'from topology.clusters import cluster, shapes\n'
      'sys.exit("networkx" in sys.modules)\n'
    )
    small.python('-c', code).check_returncode()


class ClusterTest(parameterized.TestCase):
  """Plain immutable data."""

  def test_cluster_cannot_be_changed(self):
    graph = shapes.line(2, 1)

    with self.assertRaises(dataclasses.FrozenInstanceError):
      graph.links = ()

  def test_equal_clusters_have_equal_hashes(self):
    self.assertEqual(hash(shapes.line(3, 1)), hash(shapes.line(3, '1.0')))

  def test_reversal_turns_each_link(self):
    graph = shapes.star([1, 2], [3, 4])

    self.assertEqual(graph.reversed(), shapes.star([3, 4], [1, 2]))

  def test_workers_that_are_no_nodes_are_an_error(self):
    with self.assertRaisesRegex(ValueError, 'expected distinct nodes'):
      Cluster(('a',), ('b',), ())


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
