"""The schemes that packed forests are compared with."""

import itertools
import json
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized
from scipy import optimize

import topology
from tests.support import requires
from topology.baselines import ring_orders, schemes, ways
from topology.bounds import allgather
from topology.clusters import cluster, machines, randomized, shapes
from topology.clusters.cluster import Cluster, Link
from topology.forests import verify

COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')
GB = 10**9
NAMES = {  # Values of the ground truth.
  'ring_naive': 'naive_ring',
  'ring_naive_bidir': 'naive_ring_both_ways',
  'ring_best': 'best_ring',
  'ring_best_bidir': 'best_ring_both_ways',
  'nccl_like_8_rotated_rings': 'rotated_rings',
}
SERVERS = {  # How much longer a single server and sharded ones take.
  'random_asym_n6_s5': (4.8, 22.4),
  'dgx_a100_2box': (55.47, 17.33),
  'mi250_1box': (13.71, 9.429),
  'bcube_n3_k1': (6.75, 1.5),
  'dcell_n3_k1': (6.545, 2.182),
  'fat_tree_k4': (8, 3.2),
  'pcie_2socket_n8': (4, 2.743),
}
GRAPHS = {
  'pair': shapes.line(2, 10),
  'mesh': shapes.full_mesh(4, 25),
  'one_way': shapes.ring(5, 3, both_ways=False),
  'line': shapes.line(6, '2.5'),
  'star': shapes.star([10, 40, 40, 40, 5], [40, 10, 40, 40, 5]),
  'racks': shapes.tree([3, 3], [10, 10]),
  'uneven': randomized.random_mesh(7, 3, density=0.4),
  'bcube': shapes.bcube(3, 2, 10),
}


class GroundTruthTest(parameterized.TestCase):
  """Rates that were computed elsewhere."""

  def test_rates_are_those_of_the_ground_truth(self):
    for known, graph in _truths():
      with self.subTest(known['name']):
        best = topology.pack(graph)
        for given, name in NAMES.items():
          if given in known['baselines']:
            ring = getattr(schemes, name)(graph, best)

            seconds = Fraction(known['baselines'][given]['s_per_GB'])
            self.assertEqual(ring.rate_Bps, GB / seconds, name)
        shards = schemes.equal_shards(graph, best)
        seconds = Fraction(known['allreduce']['equal_shards_s_per_GB'])
        self.assertEqual(shards.rate_Bps, GB / seconds)

  def test_best_orders_are_those_of_the_ground_truth(self):
    for known, graph in _truths():
      for given in {'ring_best', 'ring_best_bidir'} & {*known['baselines']}:
        order = ring_orders.best_order(
          ways.Ways(graph), both_ways=given == 'ring_best_bidir'
        )

        self.assertEqual(order, known['baselines'][given]['order'])

  def test_servers_are_as_slow_as_in_the_ground_truth(self):
    for known, graph in _truths():
      if known['name'] in SERVERS:
        best = topology.pack(graph)
        single, sharded = SERVERS[known['name']]

        rate = schemes.single_server(graph, best).rate_Bps
        self.assertAlmostEqual(float(best.rate_Bps / rate) / single, 1, 3)
        rate = schemes.sharded_server(graph, best).rate_Bps
        self.assertAlmostEqual(float(best.rate_Bps / rate) / sharded, 1, 3)


class SoundnessTest(parameterized.TestCase):
  """Tests of the properties that all schemes share."""

  @parameterized.product(name=[*GRAPHS], collective=COLLECTIVES)
  def test_all_are_sound_and_not_above_the_bound(self, name, collective):
    graph = GRAPHS[name]
    best = topology.pack(graph, collective=collective)

    made = schemes.build_all(graph, best)

    self.assertGreaterEqual(len(made), 8)
    for scheme in made.values():
      verify.check(graph, scheme, relays=True)
      self.assertLessEqual(scheme.rate_Bps, best.rate_Bps)
      self.assertEqual(scheme.bound_Bps, best.bound_Bps)
      self.assertEqual(scheme.collective, collective)

  @parameterized.parameters(*COLLECTIVES)
  def test_boxes_have_all_schemes(self, collective):
    graph = machines.dgx_a100(2)
    best = topology.pack(graph, collective=collective)

    made = schemes.build_all(graph, best)

    want = [
      'naive_ring',
      'naive_ring_both_ways',
      'best_ring',
      'best_ring_both_ways',
      'rotated_rings',
      'hierarchical',
      'double_binary_tree',
      'single_server',
      'sharded_server',
    ]
    if collective == 'allreduce':
      want += ['load_balanced_shards', 'equal_shards']
    self.assertEqual(list(made), want)
    ratio = {}
    for name, scheme in made.items():
      verify.check(graph, scheme, relays=True)
      ratio[name] = best.rate_Bps / scheme.rate_Bps
    self.assertEqual(ratio['naive_ring'], 13)
    self.assertEqual(ratio['naive_ring_both_ways'], Fraction(13, 2))
    self.assertEqual(ratio['rotated_rings'], Fraction(13, 8))
    self.assertLess(ratio['hierarchical'], Fraction(11, 10))
    self.assertEqual(ratio.get('equal_shards', 1), 1)

  @parameterized.parameters(*COLLECTIVES)
  def test_single_worker_gets_the_best(self, collective):
    graph = shapes.star([10])
    best = topology.pack(graph, collective=collective)

    for scheme in (
      *(schemes.naive_ring, schemes.best_ring_both_ways),
      *(schemes.rotated_rings, schemes.hierarchical),
    ):
      self.assertIs(scheme(graph, best), best)
    self.assertEqual(schemes.build_all(graph, best), {})

  def test_reversal_exchanges_allgather_and_reduce_scatter(self):
    graph = shapes.full_mesh(5, 3)

    gather, scatter = (
      schemes.build_all(graph, topology.pack(graph, collective=collective))
      for collective in ('allgather', 'reduce_scatter')
    )

    for name, scheme in gather.items():
      self.assertEqual(scheme.rate_Bps, scatter[name].rate_Bps)


class RateTest(parameterized.TestCase):
  """Closed forms: n workers, links of c GB/s."""

  @parameterized.named_parameters(
    # Each link of a ring carries 2 (n - 1) / n of the data.
    ('naive_ring', 'naive_ring', Fraction(5 * 8, 2 * 4)),
    ('naive_ring_both_ways', 'naive_ring_both_ways', 5 * 8 / Fraction(4)),
    ('best_ring', 'best_ring', Fraction(5 * 8, 2 * 4)),
    ('rotated_rings', 'rotated_rings', Fraction(5 * 8, 2)),
    ('single_server', 'single_server', 8),
    ('sharded_server', 'sharded_server', Fraction(5 * 8, 2)),
    ('equal_shards', 'equal_shards', Fraction(5 * 8, 2)),
  )
  def test_mesh_of_5(self, name, GBps):
    graph = shapes.full_mesh(5, 8)

    scheme = getattr(schemes, name)(graph, topology.pack(graph))

    self.assertEqual(scheme.rate_Bps, GBps * GB)

  @parameterized.named_parameters(
    ('naive_ring', 'naive_ring', Fraction(8 * 10, 2 * 7)),
    ('both_ways', 'best_ring_both_ways', Fraction(8 * 10, 2 * 7)),
    ('rotated_rings', 'rotated_rings', Fraction(8 * 10, 2 * 7)),
    # A worker takes two halves up and one down where it is no leaf, and one
    # down where it is.
    ('double_binary_tree', 'double_binary_tree', 5),
    ('single_server', 'single_server', Fraction(10, 7)),
    ('sharded_server', 'sharded_server', Fraction(8 * 10, 2 * 7)),
  )
  def test_star_of_8(self, name, GBps):
    graph = shapes.star([10] * 8)

    scheme = getattr(schemes, name)(graph, topology.pack(graph))

    self.assertEqual(scheme.rate_Bps, GBps * GB)

  @parameterized.named_parameters(
    ('naive_ring', 'naive_ring', 'allgather', Fraction(6 * 10, 5)),
    ('both_ways', 'naive_ring_both_ways', 'allgather', Fraction(6 * 20, 5)),
    ('scatter', 'naive_ring', 'reduce_scatter', Fraction(6 * 10, 5)),
    # To the server's neighbors go the shards of all others, for 3 workers.
    ('server', 'single_server', 'allgather', Fraction(6 * 10, 3 * 5)),
    ('servers', 'sharded_server', 'allgather', Fraction(6 * 10, 6)),
  )
  def test_ring_of_6(self, name, collective, GBps):
    graph = shapes.ring(6, 10)
    best = topology.pack(graph, collective=collective)

    scheme = getattr(schemes, name)(graph, best)

    self.assertEqual(scheme.rate_Bps, GBps * GB)

  def test_rings_of_many_trees_have_no_more_hops_than_the_rings(self):
    graph = shapes.star([8] * 40)
    rings = schemes.rotated_rings(graph, topology.pack(graph, gap=0.1))

    hops = [hop for tree in rings.trees for hop in (*tree.up, *tree.down)]
    self.assertLen(rings.trees, 16 * 40)
    self.assertLen(hops, 16 * 40 * 39 * 2)
    self.assertLen({id(hop) for hop in hops}, 16 * 40)

  def test_hierarchy_crosses_a_thin_link_once_each_way(self):
    graph = _two_meshes(4, 25, 1)
    best = topology.pack(graph)

    self.assertLen(ways.Ways(graph).groups(), 2)
    self.assertEqual(schemes.hierarchical(graph, best).rate_Bps, GB)
    rotated = schemes.rotated_rings(graph, best)
    self.assertEqual(rotated.rate_Bps, Fraction(8 * GB, 2 * 7))

  @parameterized.parameters(
    ([10] * 8,),
    ([100, 100, 100, 50, 50, 10],),  # Bound by the slowest host.
    ([9, 8, 7, 6, 5, 4.5],),  # Bound by all hosts together.
    ([3, 2],),
    ([1] * 7 + [0.5],),
  )
  def test_balanced_shards_around_a_switch_are_the_optimum(self, GBps):
    graph, count = shapes.star(GBps), len(GBps)
    best = topology.pack(graph)
    scheme = schemes.load_balanced_shards(graph, best)
    seconds = max(1 / min(GBps), (2 * count - 2) / sum(GBps))
    self.assertAlmostEqual(float(scheme.rate_Bps) * seconds / GB, 1, 6)
    self.assertAlmostEqual(float(best.rate_Bps) * seconds / GB, 1, 12)

  @parameterized.parameters(*range(4))
  def test_no_other_sizes_of_shards_are_faster(self, seed):
    graph = randomized.random_mesh(6, seed)
    scheme = schemes.load_balanced_shards(graph, topology.pack(graph))
    # Each of the other workers sends its part of a shard to the shard's worker
    # and gets the sum: a shard of x loads the links to and from it by x.
    found = optimize.linprog(
      -np.ones(6),
      A_ub=[
        [float(worker in link[:2]) for worker in graph.workers]
        for link in graph.links
      ],
      b_ub=[float(link.GBps) for link in graph.links],
    )
    self.assertAlmostEqual(float(scheme.rate_Bps) / GB / -found.fun, 1, 6)

  @parameterized.parameters(8, 16, 32)
  def test_a_host_at_half_rate_costs_the_least_that_is_possible(self, hosts):
    # OptCC, arXiv 2606.01680: overhead over a ring of equal hosts, f = 1/2.
    half = Fraction(1, 2)
    least = max(
      (1 - half) / (hosts - 1 + half), hosts / (2 * half * (hosts - 1)) - 1
    )
    equal, slow = (
      shapes.star([1] * hosts),
      shapes.star([1] * (hosts - 1) + [half]),
    )
    ring = schemes.naive_ring(equal, topology.pack(equal))
    packed = topology.pack(slow)
    self.assertEqual(packed.gap, 0)
    self.assertEqual(ring.rate_Bps / packed.rate_Bps, 1 + least)
    degraded = schemes.best_ring_both_ways(slow, packed)
    self.assertEqual(ring.rate_Bps / degraded.rate_Bps, 2)

  @parameterized.parameters(9, 10, 12)
  def test_rings_of_up_to_12_in_a_mesh_are_the_widest(self, count):
    # Of a hidden ring of wide links among narrow ones.
    rng = random.Random(count)
    order = rng.sample(range(count), count)
    wide = {*itertools.pairwise([*order, order[0]])}
    names = [f'w{i}' for i in range(count)]
    links = tuple(
      Link(names[a], names[b], Fraction(10 if (a, b) in wide else 9))
      for a, b in itertools.permutations(range(count), 2)
    )
    graph = Cluster(tuple(names), tuple(names), links)
    ring = schemes.best_ring(graph, topology.pack(graph, gap=0.1))
    self.assertEqual(ring.rate_Bps, Fraction(10 * GB * count, 2 * (count - 1)))

  def test_hierarchy_of_one_group_is_an_error(self):
    graph = shapes.full_mesh(3, 1)

    with self.assertRaisesRegex(ValueError, 'several groups'):
      schemes.hierarchical(graph, topology.pack(graph))

  def test_equal_shards_take_one_phase_after_the_other(self):
    graph = randomized.random_mesh(6, 5, density=0.7)

    shards = schemes.equal_shards(graph, topology.pack(graph))

    down, _ = allgather.bound(graph)
    up, _ = allgather.bound(graph.reversed())
    self.assertEqual(shards.rate_Bps, 6 * GB / (up + down))
    for worker in graph.workers:
      share = sum(t.share for t in shards.trees if t.root == worker)
      self.assertEqual(share, Fraction(1, 6))

  @parameterized.parameters(*range(2, 20))
  def test_no_worker_passes_data_on_in_both_binary_trees(self, count):
    graph = shapes.star([1] * count)

    first, second = schemes.double_binary_tree(
      graph, topology.pack(graph)
    ).trees

    self.assertEqual((first.share, second.share), (Fraction(1, 2),) * 2)
    inner = []
    for tree in (first, second):
      parents = [hop[0] for hop in tree.down]
      self.assertLessEqual(max(map(parents.count, parents)), 2)
      inner.append(set(parents))
      depth = {tree.root: 0}
      for hop in tree.down:
        depth[hop[-1]] = depth[hop[0]] + 1
      self.assertLess(max(depth.values()), count.bit_length())
    self.assertTrue(inner[0].isdisjoint(inner[1]))


def _truths():
  """The ground-truth entries with two or more workers, and their clusters."""
  text = requires.topologies('ground_truth.json').read_text()
  return [
    (known, cluster.from_json(known))
    for known in json.loads(text)['topologies']
    if known['feasible'] and len(known['nodes']) > 1
  ]


def _two_meshes(size, inner, outer):
  names = [f'w{i}' for i in range(2 * size)]
  links = [
    Link(a, b, inner)
    for half in (names[:size], names[size:])
    for a, b in itertools.permutations(half, 2)
  ]
  ends = names[size - 1], names[size]
  links += [Link(*ends, outer), Link(*ends[::-1], outer)]
  return Cluster(tuple(names), tuple(names), tuple(links))


if __name__ == '__main__':
  absltest.main()
