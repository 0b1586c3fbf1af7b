"""The best allgather, and the cuts that prove it."""

import itertools
import json
import random
from fractions import Fraction

from absl.testing import absltest, parameterized

from tests.support import requires
from topology.bounds import allgather, cuts
from topology.clusters import cluster, randomized, shapes
from topology.clusters.cluster import Cluster, Link


class GroundTruthTest(parameterized.TestCase):
  """Optima that were proved elsewhere."""

  @parameterized.parameters('ground_truth.json', 'ground_truth_large.json')
  def test_bounds_are_equal_as_fractions(self, file):
    text = requires.topologies(file).read_text()
    for known in json.loads(text)['topologies']:
      for collective in ('allgather', 'reduce_scatter'):
        if collective not in known:
          continue
        with self.subTest(known['name'], collective=collective):
          inv_x = known[collective]['inv_x']
          if inv_x == 'inf':
            with self.assertRaisesRegex(ValueError, 'unreachable'):
              cluster.from_json(known)
            continue
          graph = cluster.from_json(known)

          turn = collective == 'reduce_scatter'

          got, _ = allgather.bound(graph.reversed() if turn else graph)

          self.assertEqual(got, None if inv_x is None else Fraction(inv_x))


class AllgatherTest(parameterized.TestCase):
  """Closed forms, enumerated cuts, and proofs."""

  @parameterized.named_parameters(
    ('mesh', shapes.full_mesh(4, 25), '1/25'),
    ('ring', shapes.ring(8, 25), '7/50'),
    ('one_way_ring', shapes.ring(6, 25, both_ways=False), '1/5'),
    ('line', shapes.line(5, 25), '4/25'),
    ('star', shapes.star([100] * 8), '7/100'),
    ('faster_down', shapes.star([10] * 6, [40] * 6), '1/2'),
    ('faster_up', shapes.star([40] * 6, [10] * 6), '1/2'),
    ('tree', shapes.tree([4, 4], [10, 10]), '3/2'),
  )
  def test_bound_is_the_closed_form(self, graph, want):
    inv_x, cut = allgather.bound(graph)

    self.assertEqual(inv_x, Fraction(want))
    self.assertEqual(cuts.prove_time(graph, cut), inv_x)

  @parameterized.parameters(*range(5))
  def test_without_switches_the_bound_is_the_largest_of_all_cuts(self, seed):
    graph = randomized.random_mesh(6, seed, density=0.5, high_GBps=9)

    inv_x, cut = allgather.bound(graph)

    want = max(
      len(side)
      / sum(c for a, b, c in graph.links if a in side and b not in side)
      for size in range(1, 6)
      for side in itertools.combinations(graph.nodes, size)
    )
    self.assertEqual(inv_x, want)
    self.assertLen(cut.parts, 1)

  def test_bottleneck_links_are_returned(self):
    halves = [[f'{half}{i}' for i in range(3)] for half in 'ab']
    inner = [
      Link(a, b, Fraction(25))
      for half in halves
      for a, b in itertools.permutations(half, 2)
    ]
    wan = [Link(*ends, Fraction(1)) for ends in (('a0', 'b0'), ('b0', 'a0'))]
    nodes = (*halves[0], *halves[1])

    inv_x, cut = allgather.bound(Cluster(nodes, nodes, (*inner, *wan)))

    self.assertEqual(inv_x, 3)
    self.assertIn(cut.nodes, [tuple(half) for half in halves])
    self.assertIn(cut.links, [(('a0', 'b0'),), (('b0', 'a0'),)])

  def test_switch_that_cannot_copy_is_part_of_the_proof(self):
    graph = shapes.star([10] * 6, [40] * 6)

    _, cut = allgather.bound(graph)

    self.assertLen(cut.parts, 6)
    self.assertEqual([switch for switch, _ in cut.switch_prices], ['s0'])

  def test_best_links_have_balanced_switches_and_keep_the_bound(self):
    graph = shapes.star([10, 20, 5], [40, 50, 9])

    best = allgather.optimum(graph)

    reduced = Cluster(graph.nodes, graph.workers, best.links)
    self.assertEqual(allgather.bound(reduced)[0], best.inv_x)
    entering = sum(c for _, dst, c in best.links if dst == 's0')
    self.assertLessEqual(
      sum(c for src, _, c in best.links if src == 's0'), entering
    )
    whole = {link[:2]: link.GBps for link in graph.links}
    for src, dst, capacity in best.links:
      self.assertLessEqual(capacity, whole[src, dst])

  def test_single_worker_has_no_bound(self):
    self.assertEqual(allgather.bound(shapes.line(1, 1)), (None, None))

  def test_any_cut_proves_no_more_than_the_bound(self):
    graph = shapes.star([10, 20, 5, 8], [40, 50, 9, 4])
    inv_x, cut = allgather.bound(graph)
    rng = random.Random(0)

    for _ in range(200):
      side = tuple(rng.sample(graph.nodes, rng.randint(1, 4)))
      if not 0 < len(set(side) & set(graph.workers)) < 4:
        continue
      price = ('s0', Fraction(rng.randint(0, 9), 8))
      try:
        proven = cuts.prove_time(
          graph,
          cut._replace(parts=((Fraction(1), side),), switch_prices=(price,)),
        )
      except ValueError as error:
        self.assertIn('links out of it', str(error))
        continue
      self.assertLessEqual(proven, inv_x)

  @parameterized.named_parameters(
    ('all_workers', ('w0', 'w1', 'w2'), 1, 's0', 0, 'Expected some workers'),
    ('no_worker', ('s0',), 1, 's0', 0, 'Expected some workers'),
    ('negative_weight', ('w0',), -1, 's0', 0, 'Expected some workers'),
    ('price_of_a_worker', ('w0',), 1, 'w1', 1, 'Expected prices of switches'),
    ('negative_price', ('w0',), 1, 's0', -1, 'Expected prices of switches'),
  )
  def test_wrong_cut_is_no_proof(self, side, weight, switch, price, message):
    cut = cuts.Cut(
      side, (), ((Fraction(weight), side),), ((switch, Fraction(price)),)
    )

    with self.assertRaisesRegex(ValueError, message):
      cuts.prove_time(shapes.star([1, 1, 1]), cut)

  def test_float_certificates_are_rejected(self):
    graph = shapes.star([1, 1, 1])
    _, cut = allgather.bound(graph)

    with self.assertRaisesRegex(ValueError, 'Expected fractions'):
      cuts.prove_time(graph, cut._replace(parts=((5e-324, ('w0',)),)))


if __name__ == '__main__':
  absltest.main()
