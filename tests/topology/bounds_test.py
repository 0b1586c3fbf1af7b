"""Tests for topology.bounds and the flows and programs under it."""

import itertools
import json
import os
import pathlib
import random
from fractions import Fraction

from absl.testing import absltest, parameterized

from topology import (
  allreduce,
  bounds,
  builders,
  cluster,
  flow,
  prices,
  simplex,
)

FOLDER = os.environ.get('SYNCOPATE_TOPOLOGIES')


class GroundTruthTest(parameterized.TestCase):
  """Optima that were proved elsewhere."""

  @parameterized.parameters('ground_truth.json', 'ground_truth_large.json')
  def test_bounds_are_equal_as_fractions(self, file):
    if FOLDER is None:
      self.skipTest('SYNCOPATE_TOPOLOGIES, a folder of JSON files, is not set.')
    for known in json.loads(pathlib.Path(FOLDER, file).read_text())[
      'topologies'
    ]:
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

          got, _ = getattr(bounds, collective)(graph)

          self.assertEqual(got, None if inv_x is None else Fraction(inv_x))


class AllgatherTest(parameterized.TestCase):
  """Closed forms, enumerated cuts, and proofs."""

  @parameterized.named_parameters(
    ('mesh', builders.full_mesh(4, 25), '1/25'),
    ('ring', builders.ring(8, 25), '7/50'),
    ('one_way_ring', builders.ring(6, 25, both_ways=False), '1/5'),
    ('line', builders.line(5, 25), '4/25'),
    ('star', builders.star([100] * 8), '7/100'),
    ('faster_down', builders.star([10] * 6, [40] * 6), '1/2'),
    ('faster_up', builders.star([40] * 6, [10] * 6), '1/2'),
    ('tree', builders.tree([4, 4], [10, 10]), '3/2'),
  )
  def test_bound_is_the_closed_form(self, graph, want):
    inv_x, cut = bounds.allgather(graph)

    self.assertEqual(inv_x, Fraction(want))
    self.assertEqual(bounds.proven(graph, cut), inv_x)

  @parameterized.parameters(*range(12))
  def test_without_switches_the_bound_is_the_largest_of_all_cuts(self, seed):
    graph = builders.random_mesh(6, seed, density=0.5, high_GBps=9)

    inv_x, cut = bounds.allgather(graph)

    want = max(
      len(side)
      / sum(c for a, b, c in graph.links if a in side and b not in side)
      for size in range(1, 6)
      for side in itertools.combinations(graph.nodes, size)
    )
    self.assertEqual(inv_x, want)
    self.assertLen(cut.parts, 1)

  def test_bottleneck_is_named(self):
    halves = [[f'{half}{i}' for i in range(3)] for half in 'ab']
    inner = [
      cluster.Link(a, b, Fraction(25))
      for half in halves
      for a, b in itertools.permutations(half, 2)
    ]
    wan = [
      cluster.Link(*ends, Fraction(1)) for ends in (('a0', 'b0'), ('b0', 'a0'))
    ]
    nodes = (*halves[0], *halves[1])

    inv_x, cut = bounds.allgather(cluster.Cluster(nodes, nodes, (*inner, *wan)))

    self.assertEqual(inv_x, 3)
    self.assertIn(cut.nodes, [tuple(half) for half in halves])
    self.assertIn(cut.links, [(('a0', 'b0'),), (('b0', 'a0'),)])

  def test_switch_that_cannot_copy_is_part_of_the_proof(self):
    graph = builders.star([10] * 6, [40] * 6)

    _, cut = bounds.allgather(graph)

    self.assertLen(cut.parts, 6)
    self.assertEqual([switch for switch, _ in cut.switch_prices], ['s0'])

  def test_best_links_have_balanced_switches_and_keep_the_bound(self):
    graph = builders.star([10, 20, 5], [40, 50, 9])

    best = bounds.optimum(graph)

    reduced = cluster.Cluster(graph.nodes, graph.workers, best.links)
    self.assertEqual(bounds.allgather(reduced)[0], best.inv_x)
    entering = sum(c for _, dst, c in best.links if dst == 's0')
    self.assertLessEqual(
      sum(c for src, _, c in best.links if src == 's0'), entering
    )
    whole = {link[:2]: link.GBps for link in graph.links}
    for src, dst, capacity in best.links:
      self.assertLessEqual(capacity, whole[src, dst])

  def test_reduce_scatter_is_the_allgather_of_the_reversed_cluster(self):
    graph = builders.star([10, 20, 5], [40, 50, 9])

    self.assertEqual(
      bounds.reduce_scatter(graph), bounds.allgather(graph.reversed())
    )

  def test_single_worker_has_no_bound(self):
    self.assertEqual(bounds.allgather(builders.line(1, 1)), (None, None))
    self.assertEqual(bounds.reduce_scatter(builders.line(1, 1)), (None, None))

  def test_any_cut_proves_no_more_than_the_bound(self):
    graph = builders.star([10, 20, 5, 8], [40, 50, 9, 4])
    inv_x, cut = bounds.allgather(graph)
    rng = random.Random(0)

    for _ in range(200):
      side = tuple(rng.sample(graph.nodes, rng.randint(1, 4)))
      if not 0 < len(set(side) & set(graph.workers)) < 4:
        continue
      price = ('s0', Fraction(rng.randint(0, 9), 8))
      try:
        proven = bounds.proven(
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
    cut = bounds.Cut(
      side, (), ((Fraction(weight), side),), ((switch, Fraction(price)),)
    )

    with self.assertRaisesRegex(ValueError, message):
      bounds.proven(builders.star([1, 1, 1]), cut)

  def test_floats_prove_nothing(self):
    graph = builders.star([1, 1, 1])
    _, cut = bounds.allgather(graph)

    with self.assertRaisesRegex(ValueError, 'Expected fractions'):
      bounds.proven(graph, cut._replace(parts=((5e-324, ('w0',)),)))


class AllreduceTest(parameterized.TestCase):
  """The optimum, what it leaves each direction, and its proof."""

  @parameterized.parameters(
    builders.star([10, 20, 5, 8], [40, 50, 9, 4]),
    builders.random_mesh(6, 1),
    builders.random_mesh(6, 1, symmetric=True),
    builders.tree([2, 3], [9, 4]),
  )
  def test_optimum_is_proved_and_divides_each_link(self, graph):
    best = allreduce.optimum(graph)

    self.assertEqual(prices.proven(graph, best.prices), best.rate_GBps)
    self.assertEqual(sum(best.root_GBps), best.rate_GBps)
    used = dict.fromkeys([link[:2] for link in graph.links], 0)
    for src, dst, GBps in (*best.up, *best.down):
      used[src, dst] += GBps
    for src, dst, GBps in graph.links:
      self.assertLessEqual(used[src, dst], GBps)


class FlowTest(parameterized.TestCase):
  """Maximum flows against all cuts."""

  @parameterized.parameters(*range(20))
  def test_flow_is_the_smallest_cut(self, seed):
    rng = random.Random(seed)
    links = [
      (a, b, rng.randint(1, 9))
      for a, b in itertools.permutations(range(6), 2)
      if rng.random() < 0.4
    ]
    residual = flow.network(6, links)

    added = flow.augment(residual, 0, 5, 1000)

    cuts = [
      (sum(c for a, b, c in links if a in side and b not in side), side)
      for size in range(5)
      for side in (
        {0, *rest} for rest in itertools.combinations(range(1, 5), size)
      )
    ]
    self.assertEqual(added, min(value for value, _ in cuts))
    self.assertIn((added, set(flow.reach(residual, 0))), cuts)

  def test_flow_stops_at_its_limit_and_can_go_on(self):
    residual = flow.network(3, [(0, 1, 5), (1, 2, 4), (0, 2, 1)])

    self.assertEqual(flow.augment(residual, 0, 2, 2), 2)
    self.assertEqual(flow.augment(residual, 0, 2, 9), 3)

  def test_parallel_links_add_up(self):
    residual = flow.network(2, [(0, 1, 5), (0, 1, 4)])

    self.assertEqual(flow.augment(residual, 0, 1, 100), 9)


class SimplexTest(parameterized.TestCase):
  """Exact optima with their own proof."""

  def test_optimum_of_an_example_is_exact(self):
    z, y = simplex.maximize([3, 5], [[1, 0], [0, 2], [3, 2]], [4, 12, 17])

    self.assertEqual(z, [Fraction(5, 3), Fraction(6)])
    self.assertEqual(y, [0, Fraction(3, 2), 1])

  @parameterized.parameters(*range(20))
  def test_prices_prove_the_optimum(self, seed):
    rng = random.Random(seed)
    n, m = rng.randint(1, 6), rng.randint(1, 6)
    rows = [[rng.randint(-2, 9) for _ in range(n)] for _ in range(m)]
    rows.append([1] * n)  # Bounded.
    limits = [rng.choice((0, 1, 5, 7)) for _ in rows]
    objective = [rng.randint(-3, 9) for _ in range(n)]

    z, y = simplex.maximize(objective, rows, limits)

    self.assertGreaterEqual(min(*z, *y), 0)
    for row, limit in zip(rows, limits, strict=True):
      self.assertLessEqual(_dot(row, z), limit)
    for j, column in enumerate(zip(*rows, strict=True)):
      self.assertGreaterEqual(_dot(column, y), objective[j])
    self.assertEqual(_dot(objective, z), _dot(limits, y))

  def test_rows_can_be_added_to_a_solved_program(self):
    program = simplex.Program([3, 5], [[1, 0], [0, 2]], [4, 12])
    program.solve()

    program.add([3, 2], 17)

    self.assertEqual(program.solve()[0], [Fraction(5, 3), Fraction(6)])

  @parameterized.parameters(10**5, 10**12, 10**40)
  def test_large_integers_stay_exact(self, large):
    rows = [[large + 1, large - 1, 7], [large, 3, large + 2], [5, large, large]]
    limits = [large * large + 1, large + 5, 3 * large]

    z, y = simplex.maximize([large, 2, 3], rows, limits)

    for row, limit in zip(rows, limits, strict=True):
      self.assertLessEqual(_dot(row, z), limit)
    for column, price in zip(
      zip(*rows, strict=True), [large, 2, 3], strict=True
    ):
      self.assertGreaterEqual(_dot(column, y), price)
    self.assertEqual(_dot([large, 2, 3], z), _dot(limits, y))

  def test_program_without_bound_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'bounded'):
      simplex.maximize([1, 1], [[1, -1]], [1])


def _dot(first, second):
  return sum(a * b for a, b in zip(first, second, strict=True))


if __name__ == '__main__':
  absltest.main()
