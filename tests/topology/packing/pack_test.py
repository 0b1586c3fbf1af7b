"""Tests for topology.forest."""

import json
from fractions import Fraction

from absl.testing import absltest, parameterized

import topology
from tests.support import requires
from topology.baselines import schemes
from topology.bounds import allgather
from topology.clusters import cluster, machines, randomized, shapes
from topology.clusters.cluster import Cluster
from topology.forests import trees, verify

COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')


class GroundTruthTest(parameterized.TestCase):
  """Optima that were proved elsewhere."""

  @parameterized.parameters(*COLLECTIVES)
  def test_packing_is_exact_up_to_16_workers(self, collective):
    text = requires.topologies('ground_truth.json').read_text()
    for known in json.loads(text)['topologies']:
      rate_Bps = _known_rate_Bps(known, collective)
      if rate_Bps is None:
        continue
      with self.subTest(known['name']):
        graph = cluster.from_json(known)

        packed = topology.pack(graph, collective=collective)

        self.assertLessEqual(len(graph.workers), 16)
        self.assertEqual(packed.rate_Bps, rate_Bps)
        self.assertEqual(packed.gap, 0)


class PackTest(parameterized.TestCase):
  """Closed forms, and what a forest looks like."""

  def test_mesh_sends_each_part_straight_to_all(self):
    packed = topology.pack(shapes.full_mesh(4, 25), collective='allgather')

    self.assertEqual(packed.rate_Bps, 100 * 10**9)
    self.assertLen(packed.trees, 4)
    first = packed.trees[0]
    self.assertEqual(first.root, 'w0')
    self.assertEqual(first.weight_Bps, Fraction(25 * 10**9))
    self.assertEqual(first.share, Fraction(1, 4))
    self.assertEqual(first.up, [])
    self.assertEqual(first.down, [('w0', 'w1'), ('w0', 'w2'), ('w0', 'w3')])

  def test_star_sends_straight_through_its_switch(self):
    packed = topology.pack(shapes.star([100] * 8), collective='allgather')

    self.assertLen(packed.trees, 8)
    for tree in packed.trees:
      self.assertCountEqual(
        tree.down,
        [(tree.root, 's0', f'w{i}') for i in range(8) if f'w{i}' != tree.root],
      )

  def test_reduce_scatter_goes_up_to_its_roots(self):
    packed = topology.pack(shapes.line(3, '2.5'), collective='reduce_scatter')

    tree = packed.trees[0]
    self.assertEqual(tree.root, 'w0')
    self.assertEqual(tree.up, [('w2', 'w1'), ('w1', 'w0')])
    self.assertEqual(tree.down, [])
    self.assertEqual(packed.rate_Bps, Fraction(3 * 10**9 * 5, 4))

  @parameterized.product(up=(10, 40), down=(10, 40), collective=COLLECTIVES)
  def test_switch_with_unequal_sides_is_limited_by_the_slower(
    self, up, down, collective
  ):
    graph = shapes.star([up] * 6, [down] * 6)

    packed = topology.pack(graph, collective=collective)

    twice = 2 if collective == 'allreduce' else 1  # Each byte goes both ways.
    want = Fraction(min(up, down) * 6 * 10**9, 5 * twice)
    self.assertEqual(packed.rate_Bps, want)

  @parameterized.named_parameters(
    ('mesh', shapes.full_mesh(5, 8), 20),
    ('ring', shapes.ring(6, 10), 12),
    ('line', shapes.line(6, 10), 10),
    ('star', shapes.star([10] * 6), 6),
    ('unequal_star', shapes.star([10, 10, 100, 100]), 10),
    ('torus', shapes.torus([3, 3], 25), Fraction(225, 4)),
    ('hypercube', shapes.torus([2, 2, 2], 5), Fraction(120, 7)),
    ('fat_tree', shapes.fat_tree(4, 10), Fraction(16, 3)),
    ('bcube', shapes.bcube(3, 2, 10), Fraction(45, 4)),
    ('one_box', machines.dgx_a100(1), Fraction(1200, 7)),
    ('two_boxes', machines.dgx_a100(2), Fraction(520, 3)),
  )
  def test_allreduce_has_the_rate_of_its_closed_form(self, graph, GBps):
    packed = topology.pack(graph)

    self.assertEqual(packed.collective, 'allreduce')
    self.assertEqual(packed.rate_Bps, GBps * 10**9)

  def test_line_is_summed_in_its_middle(self):
    packed = topology.pack(shapes.line(5, 10))

    self.assertLen(packed.trees, 1)
    self.assertEqual(packed.trees[0].root, 'w2')

  def test_symmetric_allreduce_goes_up_where_it_goes_down(self):
    packed = topology.pack(randomized.random_mesh(6, 1, symmetric=True))

    for tree in packed.trees:
      self.assertEqual(tree.up, [hop[::-1] for hop in tree.down[::-1]])

  @parameterized.parameters(*COLLECTIVES)
  def test_single_worker_needs_no_trees(self, collective):
    packed = topology.pack(shapes.full_mesh(1, 1), collective=collective)

    self.assertEqual(packed.trees, ())
    self.assertIsNone(packed.rate_Bps)
    self.assertIsNone(packed.bound_Bps)
    self.assertEqual(packed.gap, 0)

  @parameterized.named_parameters(
    ('collective', {'collective': 'broadcast'}, 'allgather.*broadcast'),
    ('negative_gap', {'gap': -0.1}, 'gap: expected at least 0 .*got -0.1'),
    ('gap_of_1', {'gap': 1}, 'gap: .*below 1, got 1'),
    ('gap_nan', {'gap': float('nan')}, 'gap: .*got nan'),
    ('no_tree', {'max_trees': 0}, 'max_trees: .*at least 1 .*got 0'),
    ('part_of_a_tree', {'max_trees': 2.5}, 'max_trees: .*integer .*got 2.5'),
    (
      'fewer_trees_than_roots',
      {'max_trees': 3, 'collective': 'allgather'},
      'max_trees: .*at least 4 for this allgather, got 3',
    ),
    (
      'fewer_trees_than_sums',
      {'max_trees': 3, 'collective': 'reduce_scatter'},
      'max_trees: .*at least 4 for this reduce_scatter, got 3',
    ),
    ('negative_time', {'time_limit_s': -1}, 'time_limit_s: .*got -1'),
    ('nan_seconds', {'time_limit_s': float('nan')}, 'time_limit_s: .*got nan'),
    ('no_end', {'time_limit_s': float('inf')}, 'time_limit_s: .*got inf'),
    (
      'one_phase',
      {'overlap': False, 'collective': 'allgather'},
      'overlap: expected True for allgather',
    ),
    ('few', {'overlap': False, 'max_trees': 9}, 'overlap: .*max_trees'),
    ('soon', {'overlap': False, 'time_limit_s': 9}, 'overlap: .*time_limit_s'),
  )
  def test_wrong_argument_is_an_error(self, arguments, message):
    for graph in (shapes.full_mesh(4, 1), shapes.line(4, 1)):
      with self.assertRaisesRegex(ValueError, message):
        topology.pack(graph, **arguments)

  def test_random_mesh_of_16_is_packed_and_checked(self):
    graph = randomized.random_mesh(16, 1)

    packed = topology.pack(graph, collective='allgather')

    verify.check(graph, packed)
    inv_x, _ = allgather.bound(graph)
    self.assertEqual(packed.rate_Bps, 16 * 10**9 / inv_x)


class BadClusterTest(parameterized.TestCase):
  """Links that are none, or count together, and what has no forest."""

  @parameterized.parameters(*COLLECTIVES)
  def test_link_of_capacity_zero_changes_nothing(self, collective):
    # It would close a ring.
    graph = shapes.line(4, 3)
    links = [*graph.links, ('w3', 'w0', 0), ('w0', 'w3', '0')]

    packed = topology.pack(_cluster('0123', links), collective=collective)

    self.assertEqual(packed, topology.pack(graph, collective=collective))

  @parameterized.parameters(*COLLECTIVES)
  def test_parallel_links_are_as_fast_as_their_sum(self, collective):
    graph = shapes.star(['1/2', 3, 2], [1, 1, '5/2'])
    half = [(src, dst, GBps / 2) for src, dst, GBps in graph.links]
    nodes, workers = graph.nodes, graph.workers

    packed = topology.pack(
      Cluster(nodes, workers, (*half, *half)), collective=collective
    )

    self.assertEqual(packed, topology.pack(graph, collective=collective))

  @parameterized.parameters(-1, '-0.5', float('nan'), 'nan', '-inf')
  def test_invalid_capacity_is_an_error(self, GBps):
    links = [*shapes.line(3, 1).links, ('w0', 'w2', GBps)]

    with self.assertRaisesRegex(ValueError, 'w0 to w2: .*at least 0'):
      _cluster('012', links)

  @parameterized.named_parameters(
    ('two_parts', ['01', '10', '23', '32'], 'w2 is unreachable from w0'),
    ('cannot_answer', ['01', '12', '23', '21', '10'], 'w0 is .* from w3'),
    ('only_sends', ['01', '10', '12', '21', '30'], 'w3 is unreachable from w0'),
    ('one_way_line', ['01', '12', '23'], 'w0 is unreachable from w1'),
    ('alone', ['01', '10', '12', '21'], 'w3 is unreachable from w0'),
  )
  def test_unreachable_worker_is_rejected_by_name(self, pairs, message):
    links = [(f'w{a}', f'w{b}', 1) for a, b in pairs]

    with self.assertRaisesRegex(ValueError, message):
      _cluster('0123', links)

  @parameterized.parameters(*COLLECTIVES)
  def test_single_worker_among_switches_needs_no_trees(self, collective):
    graph = Cluster(('w0', 's0', 's1'), ('w0',), (('w0', 's0', 1),))

    for wanted in ({}, {'gap': 0.1, 'max_trees': 1, 'time_limit_s': 0}):
      packed = topology.pack(graph, collective=collective, **wanted)

      verify.check(graph, packed)
      self.assertEqual((packed.trees, packed.rate_Bps), ((), None))

  @parameterized.parameters(*COLLECTIVES)
  def test_switch_that_leads_nowhere_changes_nothing(self, collective):
    graph = shapes.full_mesh(3, 2)
    dead = [('w0', 's0', 9), ('s0', 's1', 9), ('s2', 's3', 9), ('s3', 's2', 9)]
    more = Cluster(
      (*graph.nodes, 's0', 's1', 's2', 's3'),
      graph.workers,
      (*graph.links, *dead),
    )

    packed = topology.pack(more, collective=collective)

    rate = topology.pack(graph, collective=collective).rate_Bps
    self.assertEqual(packed.rate_Bps, rate)


class PhasesTest(parameterized.TestCase):
  """An allreduce of which one phase follows the other."""

  @parameterized.named_parameters(
    ('star', shapes.star([100] * 8), Fraction(400, 7)),
    ('pair', shapes.line(2, 10), 10),
    ('line', shapes.line(5, 10), 10),
    ('mesh', shapes.full_mesh(5, 8), 20),
    ('ring', shapes.ring(6, 10), 12),
    ('one_way_ring', shapes.ring(4, 3, both_ways=False), 2),
  )
  def test_equal_links_are_used_as_well_as_with_overlap(self, graph, GBps):
    packed = topology.pack(graph, overlap=False)

    self.assertEqual(packed.rate_Bps, GBps * 10**9)
    self.assertEqual(topology.pack(graph).rate_Bps, packed.rate_Bps)

  @parameterized.product(seed=[*range(4)], symmetric=(True, False))
  def test_phases_are_between_equal_shards_and_overlap(self, seed, symmetric):
    for graph in (
      randomized.random_mesh(5, seed, density=0.6, symmetric=symmetric),
      randomized.random_switched(5, 2, seed, symmetric=symmetric),
    ):
      best = topology.pack(graph)

      packed = topology.pack(graph, overlap=False)

      self.assertEqual(packed.bound_Bps, best.rate_Bps)
      self.assertLessEqual(packed.rate_Bps, best.rate_Bps)
      shards = schemes.equal_shards(graph, best)
      self.assertGreaterEqual(packed.rate_Bps, shards.rate_Bps)
      self.assertLessEqual(_phases(graph, packed), 1)


def _phases(graph, packed):
  """The part of the time that both phases need, if each has all links."""
  capacity = {link[:2]: link.GBps * 10**9 for link in graph.links}
  return sum(
    max(
      load / capacity[ends]
      for ends, load in trees.loads(
        (tree.weight_Bps, getattr(tree, stage)) for tree in packed.trees
      ).items()
    )
    for stage in ('up', 'down')
  )


def _cluster(numbers, links):
  workers = tuple(f'w{number}' for number in numbers)
  return Cluster(workers, workers, tuple(links))


def _known_rate_Bps(known, collective):
  """The rate in a ground-truth file; None if there is none."""
  if collective == 'allreduce':
    rate = known['allreduce']['rate_GBps']
    return None if rate is None else Fraction(rate) * 10**9
  inv_x = known[collective]['inv_x']
  if inv_x in ('inf', None):
    return None
  workers = sum(node['worker'] for node in known['nodes'])
  return workers * 10**9 / Fraction(inv_x)


if __name__ == '__main__':
  absltest.main()
