"""Clusters of well-known shapes, machines, and all builders together."""

import itertools
import json
from collections import Counter
from fractions import Fraction

import networkx as nx
from absl.testing import absltest, parameterized

from tests.support import requires
from topology.bounds import allgather
from topology.clusters import cluster, machines, shapes
from topology.clusters.builders import BUILDERS, build_cluster

# Per spec its workers, switches and links, and whether it is its own reverse.
SHAPES = {
  'full_mesh(4, 25)': (4, 0, 12, True),
  'ring(6, 25)': (6, 0, 12, True),
  'ring(6, 25, both_ways=False)': (6, 0, 6, False),
  'ring(1, 1)': (1, 0, 0, True),
  'line(5, 0.1)': (5, 0, 8, True),
  'star([1, 2, 3])': (3, 1, 6, True),
  'star([1, 2, 3], [1, 2, 4])': (3, 1, 6, False),
  'tree([2, 3, 2], [4, 2, 1])': (12, 9, 40, True),
  'tree([2, 2], [[1, 2], "1/3"])': (4, 3, 12, True),
  'torus([3, 3], 25)': (9, 0, 36, True),
  'torus([2, 3], 25)': (6, 0, 18, True),
  'hypercube(0, 1)': (1, 0, 0, True),
  'hypercube(4, 1)': (16, 0, 64, True),
  'fat_tree(4, 10)': (16, 20, 96, True),
  'bcube(3, 2, 10)': (9, 6, 36, True),
  'dcell(3, 0, 10)': (3, 1, 6, True),
  'dcell(3, 1, 10)': (12, 4, 36, True),
  'dcell(2, 2, 10)': (42, 21, 168, True),
  'wan([2, 3, 1], 25, [(0, 2, 1), (4, 5, 0.5)])': (6, 0, 12, True),
  'dgx_1("v100")': (8, 0, 32, True),
  'dgx_1("p100")': (8, 0, 32, True),
  'dgx_a100([8, 4])': (12, 4, 48, True),
  'dgx_a100([1])': (1, 1, 2, True),
  'dgx_h100([8, 8, 2])': (18, 11, 72, True),
  'dgx_h100([2, 1])': (3, 4, 12, True),
  'mi250([8, 16])': (24, 1, 126, True),
  'dgx_a100(1)': (8, 1, 16, True),
  'dgx_a100(2)': (16, 4, 64, True),
  'dgx_h100(1)': (8, 1, 16, True),
  'dgx_h100(3)': (24, 11, 96, True),
  'mi250(1)': (16, 0, 56, True),
  'mi250(3)': (48, 1, 264, True),
  'pcie()': (8, 6, 26, True),
  'random_mesh(5, 0)': (5, 0, 20, False),
  'random_mesh(5, 0, symmetric=True)': (5, 0, 20, True),
  'random_switched(9, 4, 0, density=0)': (9, 4, 24, False),
  'random_switched(9, 4, 0, density=1)': (9, 4, 30, False),
  'random_switched(9, 4, 0, density=1, symmetric=True)': (9, 4, 30, True),
  'spread(full_mesh(4, 25), 100, 1)': (4, 0, 12, True),
  'spread(full_mesh(4, 25), 100, 1, symmetric=False)': (4, 0, 12, False),
}

# The builders that make the graphs of the ground-truth files.
KNOWN = {
  'ground_truth.json': {
    'full_mesh_n4': shapes.full_mesh(4, 25),
    'ring_bi_n8': shapes.ring(8, 25),
    'ring_uni_n6': shapes.ring(6, 25, both_ways=False),
    'line_n5': shapes.line(5, 25),
    'star_switch_n8': shapes.star([100] * 8),
    'star_switch_hetero_n6': shapes.star([100, 100, 50, 50, 25, 10]),
    'star_asym_updown_n6': shapes.star([40] * 6, [10] * 6),
    'tree2_4x4_over4': shapes.tree([4, 4], [10, 10]),
    'dgx1p_p100': machines.dgx_1('p100'),
    'dgx_a100_1box': machines.dgx_a100(1),
    'dgx_a100_2box': machines.dgx_a100(2),
    'mi250_1box': machines.mi250(1),
    'bcube_n3_k1': shapes.bcube(3, 2, 10),
    'dcell_n3_k1': shapes.dcell(3, 1, 10),
    'fat_tree_k4': shapes.fat_tree(4, 10),
    'torus_3x3': shapes.torus([3, 3], 25),
    'two_clusters_wan': shapes.wan([4, 4], 25, [(3, 4, 1)]),
    'pcie_2socket_n8': machines.pcie(),
    'single_worker': shapes.full_mesh(1, 1),
  },
  'ground_truth_large.json': {
    'a100_8box': machines.dgx_a100(8),
    'torus_8x8': shapes.torus([8, 8], 25),
    'tree_16x16_hetero': shapes.tree(
      [16, 16], [[10, 20, 30, 40, 50, 60, 70, 80] * 2, 10]
    ),
  },
}


class GroundTruthTest(parameterized.TestCase):
  """Graphs that were written down elsewhere."""

  @parameterized.parameters(*KNOWN)
  def test_builders_make_the_known_graphs(self, file):
    rows = json.loads(requires.topologies(file).read_text())['topologies']
    known = {row['name']: row for row in rows}
    for name, graph in KNOWN[file].items():
      with self.subTest(name):
        self.assertEqual(graph, _rename(known[name]))


class ShapesTest(parameterized.TestCase):
  """Tests of the properties that all builders share."""

  def test_every_builder_is_among_the_shapes(self):
    used = {spec.partition('(')[0] for spec in SHAPES}

    self.assertEqual(used, set(BUILDERS))

  @parameterized.parameters(*SHAPES)
  def test_shape_has_so_many_parts(self, spec):
    workers, switches, links, symmetric = SHAPES[spec]

    graph = build_cluster(spec)

    self.assertLen(graph.workers, workers)
    self.assertLen(graph.switches, switches)
    self.assertLen(graph.links, links)
    self.assertEqual(graph == graph.reversed(), symmetric)
    self.assertEqual(graph.workers, tuple(f'w{i}' for i in range(workers)))
    self.assertEqual(graph.switches, tuple(f's{i}' for i in range(switches)))

  @parameterized.parameters(*SHAPES)
  def test_shape_is_written_and_read_back(self, spec):
    graph = build_cluster(spec)

    text = json.dumps(cluster.to_json(graph))

    self.assertEqual(cluster.from_json(json.loads(text)), graph)


class NetworksTest(parameterized.TestCase):
  """Shapes against NetworkX's and closed forms."""

  @parameterized.named_parameters(
    ('full_mesh', shapes.full_mesh(6, 1), nx.complete_graph(6)),
    ('ring', shapes.ring(7, 1), nx.cycle_graph(7)),
    ('line', shapes.line(7, 1), nx.path_graph(7)),
    ('star', shapes.star([1] * 5), nx.star_graph(5)),
    ('tree', shapes.tree([3, 3], [1, 1]), nx.balanced_tree(3, 2)),
    ('torus', shapes.torus([3, 4, 5], 1), nx.grid_graph([3, 4, 5], True)),
    ('hypercube', shapes.hypercube(4, 1), nx.hypercube_graph(4)),
    # K4 for each face with its diagonals, and the edges between the faces.
    (
      'hybrid_cube_mesh',
      machines.dgx_1('v100'),
      nx.cartesian_product(nx.complete_graph(4), nx.path_graph(2)),
    ),
  )
  def test_shape_is_that_of_networkx(self, graph, want):
    self.assertTrue(nx.is_isomorphic(_as_undirected(graph), want))

  def test_hypercube_is_a_torus_without_parallel_links(self):
    self.assertEqual(shapes.hypercube(3, 2), shapes.torus([2, 2, 2], 1))

  def test_ring_of_two_has_parallel_links(self):
    self.assertEqual(shapes.ring(2, 3), shapes.line(2, 6))

  def test_star_has_its_own_capacities_up_and_down(self):
    capacity = _capacities(shapes.star([1, 2], [3, 4]))

    self.assertEqual(capacity['w1', 's0'], 2)
    self.assertEqual(capacity['s0', 'w1'], 4)

  def test_tree_has_a_capacity_for_each_level(self):
    capacity = _capacities(shapes.tree([2, 2], [5, 1]))

    self.assertEqual(capacity['s0', 's1'], 5)
    self.assertEqual(capacity['w3', 's2'], 1)

  def test_tree_has_a_capacity_for_each_child(self):
    capacity = _capacities(shapes.tree([2, 2], [[5, 6], [1, 2, 3, '0.4']]))

    self.assertEqual(capacity['s0', 's2'], 6)
    self.assertEqual(capacity['w2', 's2'], 3)
    self.assertEqual(capacity['s2', 'w3'], Fraction(2, 5))

  @parameterized.parameters((2, 3), (3, 2), (4, 1))
  def test_bcube_is_as_far_as_digits_differ(self, ports, levels):
    hops = _hops(shapes.bcube(ports, levels, 1))

    for a, b in itertools.product(range(ports**levels), repeat=2):
      differ = sum(
        a // ports**i % ports != b // ports**i % ports for i in range(levels)
      )
      self.assertEqual(hops[f'w{a}'][f'w{b}'], 2 * differ)

  @parameterized.parameters((2, 0), (3, 0), (2, 1), (5, 1), (2, 2))
  def test_dcell_has_the_counts_and_diameter_of_its_paper(self, ports, levels):
    workers = ports
    for _ in range(levels):
      workers *= workers + 1

    graph = shapes.dcell(ports, levels, 1)

    self.assertLen(graph.workers, workers)
    self.assertLen(graph.switches, workers // ports)
    degree = Counter(link.src for link in graph.links)
    self.assertEqual({degree[w] for w in graph.workers}, {levels + 1})
    self.assertEqual({degree[s] for s in graph.switches}, {ports})
    # 2^(k+1) - 1 hops between servers, of which those in a cell have a switch.
    in_cell = 2**levels
    self.assertLessEqual(
      max(max(far.values()) for far in _hops(graph).values()),
      2 ** (levels + 1) - 1 + in_cell,
    )

  def test_dcell_joins_each_two_cells_once(self):
    graph = shapes.dcell(4, 1, 1)

    cell = {worker: i // 4 for i, worker in enumerate(graph.workers)}
    joined = Counter(
      (cell[link.src], cell[link.dst])
      for link in graph.links
      if link.src in cell and link.dst in cell
    )

    self.assertEqual(joined, Counter(itertools.permutations(range(5), 2)))

  def test_wan_links_only_the_given_workers_of_different_sites(self):
    graph = shapes.wan([2, 3, 1], 25, [(0, 2, 1), (4, 5, 0.5), (5, 4, 1)])

    capacity = _capacities(graph)

    self.assertEqual(capacity['w3', 'w2'], 25)
    self.assertEqual(capacity['w2', 'w0'], 1)
    self.assertEqual(capacity['w4', 'w5'], Fraction(3, 2))
    self.assertNotIn(('w1', 'w2'), capacity)

  @parameterized.named_parameters(
    ('no_workers', 'full_mesh(0, 1)', 'workers: .* at least 1, got 0'),
    ('fraction', 'full_mesh(2.5, 1)', r'workers: .*Fraction\(5, 2\)'),
    ('bool', 'line(True, 1)', 'workers: .*True'),
    ('no_capacity', 'line(3, 0)', 'GBps: expected a number above 0, got 0'),
    ('negative', 'ring(3, -1)', 'GBps: .*-1'),
    ('infinite', 'ring(3, "inf")', "GBps: .*'inf'"),
    ('no_number', 'ring(3, [1])', r'GBps: .*\[1\]'),
    ('lengths', 'star([1, 2], [1])', 'down_GBps: .* 2, got 1'),
    ('no_list', 'star(3)', 'up_GBps: expected a list, got 3'),
    ('none', 'star([])', 'up_GBps: expected one or more, got none'),
    ('no_levels', 'tree([], [])', 'fanouts: expected one or more'),
    ('missing_level', 'tree([2, 2], [1])', 'GBps: .* per level, 2, got 1'),
    ('empty_level', 'tree([2, 0], [1, 1])', 'fanouts: .*got 0'),
    ('children', 'tree([2, 2], [[1], 1])', 'GBps: .* per child, 2, got 1'),
    ('no_sides', 'torus([], 1)', 'sides: expected one or more'),
    ('string', 'torus("44", 1)', "sides: expected a list, got '44'"),
    ('empty_side', 'torus([3, 0], 1)', 'sides: .*got 0'),
    ('dimensions', 'hypercube(-1, 1)', 'dimensions: .*at least 0, got -1'),
    ('odd_ports', 'fat_tree(3, 1)', 'ports: expected an even number, got 3'),
    ('no_digits', 'bcube(3, 0, 1)', 'levels: .*got 0'),
    ('no_ports', 'dcell(0, 1, 1)', 'ports: .*got 0'),
    ('cell', 'dcell(2, -1, 1)', 'levels: .*at least 0, got -1'),
    ('one_site', 'wan([4], 1, [(0, 1, 1)])', r'different sites, got \[0, 1\]'),
    ('no_such', 'wan([1, 1], 1, [(0, 2, 1)])', r'of 2 workers.*\[0, 2\]'),
    ('pair', 'wan([1, 1], 1, [(0, 1)])', r'\(worker, worker, GBps\), got'),
    ('slow', 'wan([1, 1], 1, [(0, 1, 0)])', 'links: .*above 0, got 0'),
    ('apart', 'wan([1, 1, 1], 1, [(0, 1, 1)])', 'w2 is unreachable'),
    ('no_boxes', 'dgx_a100(0)', 'boxes: .*got 0'),
    ('no_box', 'dgx_a100([])', 'boxes: .*got none'),
    ('no_gpu', 'dgx_a100([8, 0])', 'boxes: .*got 0'),
    ('full', 'dgx_h100([8, 9])', r'boxes: .*at most 8 .*\[8, 9\]'),
    ('dies', 'mi250([17])', 'boxes: .*at most 16'),
    ('box', 'dgx_h100(2, box_GBps=0)', 'box_GBps: .*got 0'),
    ('rail', 'dgx_a100(1, rail_GBps=-2)', 'rail_GBps: .*got -2'),
    ('xgmi', 'mi250(1, xgmi_GBps="x")', "xgmi_GBps: .*'x'"),
    ('gpu', 'dgx_1("a100")', "gpu: expected 'v100' or 'p100', got 'a100'"),
    ('socket', 'pcie(socket_GBps=0)', 'socket_GBps: .*got 0'),
    ('density', 'random_mesh(3, 0, density=1.5)', 'density: expected 0 to 1'),
    ('range', 'random_mesh(3, 0, low_GBps=3, high_GBps=2)', 'high_GBps: .*3'),
    ('seed', 'random_mesh(3, "x")', 'seed: .*at least 0'),
    ('no_switch', 'random_switched(3, 0, 0)', 'switches: .*got 0'),
    ('ratio', 'spread(line(2, 1), 0.5, 0)', 'ratio: expected at least 1'),
    ('no_graph', 'spread(3, 2, 0)', 'graph: expected a cluster, got 3'),
  )
  def test_wrong_arguments_are_an_error(self, spec, message):
    with self.assertRaisesRegex(ValueError, message):
      build_cluster(spec)


class BoxesTest(parameterized.TestCase):
  """Machines against what is known of them."""

  @parameterized.parameters(25, 50)
  def test_v100s_of_a_dgx_1_lie_on_rings(self, GBps):
    # Three rings over all of them, two of which share their links.
    ring = nx.Graph(
      link[:2] for link in machines.dgx_1('v100').links if link.GBps == GBps
    )

    self.assertTrue(nx.is_isomorphic(ring, nx.cycle_graph(8)))

  @parameterized.named_parameters(
    # The rate into a worker over all its links limits these.
    ('v100', machines.dgx_1('v100'), Fraction(7, 6 * 25)),
    ('p100', machines.dgx_1('p100'), Fraction(7, 4 * 20)),
    ('h100', machines.dgx_h100(1), Fraction(7, 450)),
    ('h100_4box', machines.dgx_h100(4), Fraction(31, 450 + 50)),
    ('hypercube', shapes.hypercube(4, 10), Fraction(15, 4 * 10)),
    # And the links of a box these; what ForestColl reports for them.
    ('a100_4box', machines.dgx_a100(4), Fraction(32 * 100, 26667)),
    ('mi250_2box', machines.mi250(2), Fraction(32 * 100, 35413)),
  )
  def test_allgather_has_the_published_rate(self, graph, want):
    inv_x, _ = allgather.bound(graph)

    self.assertAlmostEqual(inv_x, want, delta=want / 50000)

  def test_rails_of_h100s_join_one_index(self):
    graph = machines.dgx_h100(3)

    capacity = _capacities(graph)

    rail = [w for w in graph.workers if (w, 's5') in capacity]
    self.assertEqual(rail, ['w2', 'w10', 'w18'])
    self.assertEqual(capacity['s5', 'w10'], 50)
    self.assertEqual(capacity['w10', 's1'], 450)

  def test_boxes_of_mi250s_are_joined_by_one_switch(self):
    one, two = (_capacities(machines.mi250(n)) for n in (1, 2))

    joined = {ends: c for ends, c in two.items() if 's0' in ends}

    self.assertLen(joined, 64)
    self.assertEqual(set(joined.values()), {16})
    for ends, GBps in one.items():
      self.assertEqual(two[ends], GBps)
      second = tuple(f'w{int(end[1:]) + 16}' for end in ends)
      self.assertEqual(two[second], GBps)

  def test_capacities_can_be_chosen(self):
    graph = machines.pcie(gpu_GBps=1, uplink_GBps='0.2', socket_GBps=3)

    capacity = _capacities(graph)

    self.assertEqual(capacity['w7', 's3'], 1)
    self.assertEqual(capacity['s5', 's3'], Fraction(1, 5))
    self.assertEqual(capacity['s4', 's5'], 3)


def _rename(known):
  """A ground-truth graph with our ids, and switches from the core down."""
  workers = [n['id'] for n in known['nodes'] if n['worker']]
  switches = [n['id'] for n in known['nodes'] if not n['worker']]
  switches.sort(key=lambda n: n.startswith('agg') - n.startswith('core'))
  name = {node: f'w{i}' for i, node in enumerate(workers)}
  name |= {node: f's{i}' for i, node in enumerate(switches)}
  return cluster.from_json(
    {
      'nodes': [{'id': name[n], 'worker': n in workers} for n in name],
      'links': [
        link | {'src': name[link['src']], 'dst': name[link['dst']]}
        for link in known['links']
      ],
    }
  )


def _capacities(graph):
  return {link[:2]: link.GBps for link in graph.links}


def _as_undirected(graph):
  made = nx.Graph(link[:2] for link in graph.links)
  made.add_nodes_from(graph.nodes)
  return made


def _hops(graph):
  """Per worker the links to each other worker."""
  hops = dict(nx.all_pairs_shortest_path_length(_as_undirected(graph)))
  return {a: {b: hops[a][b] for b in graph.workers} for a in graph.workers}


if __name__ == '__main__':
  absltest.main()
