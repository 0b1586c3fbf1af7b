"""Tests for topology.units."""

from absl.testing import absltest, parameterized

import topology
from topology.clusters import machines, randomized, shapes
from topology.forests import rounds, trees, verify
from topology.packing import units

CLUSTERS = {
  'mesh': shapes.full_mesh(4, 25),
  'star': shapes.star([10, 10, 10, 100]),
  'dgx_1': machines.dgx_1('p100'),
  'random': randomized.random_mesh(6, 3, symmetric=True),
  'one_way_links': randomized.random_mesh(6, 3, density=0.4),
  'torus': shapes.torus([3, 3], 10),
}


class EqualUnitsTest(parameterized.TestCase):
  """Sound forests of so many units, which are not faster than the best."""

  @parameterized.product(name=list(CLUSTERS), collective=trees.COLLECTIVES)
  def test_all_trees_are_multiples_of_one_unit(self, name, collective):
    graph = CLUSTERS[name]
    packed = topology.pack(graph, collective=collective)
    count = 2 * len(graph.workers)

    equal = units.equal_units(graph, packed, count)

    verify.check(graph, equal)
    unit = equal.rate_Bps / count
    for tree in equal.trees:
      self.assertEqual((tree.weight_Bps / unit).denominator, 1)
    self.assertLessEqual(equal.rate_Bps, packed.rate_Bps)
    self.assertEqual(equal.bound_Bps, packed.bound_Bps)
    self.assertEqual(equal.collective, collective)

  @parameterized.parameters(
    # So many units, found by hand to divide the best forest.
    (shapes.full_mesh(4, 25), 'allgather', 4),
    (shapes.full_mesh(6, 25), 'allreduce', 6),
    (shapes.ring(6, 10, both_ways=False), 'allgather', 6),
    (shapes.line(5, 10), 'allreduce', 1),
    (shapes.star([10] * 5), 'allgather', 5),
    (shapes.star([10, 10, 10, 100]), 'allreduce', 1),
  )
  def test_enough_units_are_as_fast_as_the_best(self, graph, collective, count):
    packed = topology.pack(graph, collective=collective)

    equal = units.equal_units(graph, packed, count)

    self.assertEqual(equal.rate_Bps, packed.rate_Bps)

  def test_more_units_come_nearer_to_the_best(self):
    graph = randomized.random_mesh(8, 6, symmetric=True)
    packed = topology.pack(graph)

    rates = [
      units.equal_units(graph, packed, count).rate_Bps / packed.rate_Bps
      for count in (4, 16, 64)
    ]

    self.assertEqual(sorted(rates), rates)
    self.assertGreater(rates[-1], 0.95)

  def test_single_unit_is_the_widest_spanning_tree(self):
    graph = randomized.random_mesh(7, 2, symmetric=True)
    packed = topology.pack(graph)

    equal = units.equal_units(graph, packed, 1)

    self.assertEqual(equal.rate_Bps, _widest(graph) * 10**9)

  def test_units_make_rounds_possible(self):
    graph = randomized.random_mesh(8, 6, symmetric=True)
    packed = topology.pack(graph)
    with self.assertRaisesRegex(ValueError, 'max_permutes'):
      rounds.plan(graph, packed)

    plan = rounds.plan(graph, units.equal_units(graph, packed, 16))

    self.assertLessEqual(len(plan.pairs), 128)

  @parameterized.parameters(
    ('allreduce', 0, 'at least 1, got 0'),
    ('allgather', 6, 'a multiple of 4, got 6'),
    ('reduce_scatter', 0, 'at least 1 and a multiple of 4, got 0'),
  )
  def test_wrong_units_are_an_error(self, collective, count, message):
    graph = CLUSTERS['mesh']
    packed = topology.pack(graph, collective=collective)

    with self.assertRaisesRegex(ValueError, f'units: .*{message}'):
      units.equal_units(graph, packed, count)

  def test_single_worker_stays_as_it_is(self):
    graph = shapes.full_mesh(1, 1)
    packed = topology.pack(graph)

    self.assertEqual(units.equal_units(graph, packed, 4), packed)


def _widest(graph):
  """The largest capacity whose links alone connect all workers."""
  for width in sorted({GBps for _, _, GBps in graph.links}, reverse=True):
    group = {worker: worker for worker in graph.workers}
    for src, dst, GBps in graph.links:
      if GBps >= width:
        old, new = group[src], group[dst]
        group = {w: new if g == old else g for w, g in group.items()}
    if len(set(group.values())) == 1:
      return width
  raise AssertionError('The cluster is connected.')


if __name__ == '__main__':
  absltest.main()
