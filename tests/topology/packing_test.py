"""Tests for what packs a forest: flows, switches bypassed, trees, stops."""

import itertools
import random

from absl.testing import absltest, parameterized

from tests.support import small
from topology import (
  allreduce,
  arborescences,
  bounds,
  builders,
  flow,
  simplex,
  splitting,
  stopping,
)


class ArborescencesTest(parameterized.TestCase):
  """Trees of small graphs against Edmonds' condition on all sets."""

  @parameterized.parameters(*range(60))
  def test_trees_are_packed_whenever_all_sets_can_be_entered(self, seed):
    nodes, links, starts = _random_packing(seed)

    if _enterable(nodes, links, starts):
      trees = arborescences.pack(nodes, links, starts)
      self._check(nodes, links, starts, trees)
    else:
      with self.assertRaisesRegex(ValueError, 'room for all trees'):
        arborescences.pack(nodes, links, starts)

  @parameterized.parameters(*range(40))
  def test_links_without_a_unit_to_spare_are_packed(self, seed):
    nodes, links, starts = _random_packing(seed)
    rng = random.Random(seed)
    ring = [(v, (v + 1) % nodes, sum(starts)) for v in range(nodes)]
    scarce = [*links, *ring]
    for i in rng.sample(range(len(scarce)), len(scarce)):
      a, b, most = scarce[i]
      for capacity in range(most + 1):  # As little as the others allow.
        scarce[i] = a, b, capacity
        if _enterable(nodes, scarce, starts):
          break

    trees = arborescences.pack(nodes, scarce, starts)

    self._check(nodes, scarce, starts, trees)

  def test_hypercube_is_packed_though_many_sets_are_in_the_way(self):
    nodes = 32
    links = [(v, v ^ 1 << k, 31) for v in range(nodes) for k in range(5)]

    trees = arborescences.pack(nodes, links, [5] * nodes)

    self._check(nodes, links, [5] * nodes, trees)

  def test_single_node_needs_no_links(self):
    trees = arborescences.pack(1, [], [3])

    self.assertEqual(trees, [arborescences.Branching(0, 3, ())])

  def _check(self, nodes, links, starts, trees):
    room = {}
    for a, b, capacity in links:
      room[a, b] = room.get((a, b), 0) + capacity
    started = [0] * nodes
    for tree in trees:
      self.assertGreater(tree.units, 0)
      started[tree.root] += tree.units
      reached = [tree.root]
      for a, b in tree.hops:
        self.assertIn(a, reached)
        reached.append(b)
        room[a, b] -= tree.units
      self.assertCountEqual(reached, range(nodes))
    self.assertEqual(started, list(starts))
    self.assertGreaterEqual(min(room.values(), default=0), 0)


class SplittingTest(parameterized.TestCase):
  """Switches are bypassed without harm to any set of workers."""

  @parameterized.parameters(*range(40))
  def test_links_between_workers_still_enter_each_set_often_enough(self, seed):
    rng = random.Random(seed)
    workers, switches = rng.randint(2, 5), rng.randint(1, 3)
    nodes = workers + switches
    amount = dict.fromkeys(itertools.permutations(range(nodes), 2), 0)
    for _ in range(rng.randint(2, 12)):  # Round trips keep switches balanced.
      trip = rng.sample(range(nodes), rng.randint(2, nodes))
      for ends in itertools.pairwise([*trip, trip[0]]):
        amount[ends] += 1 + seed % 3
    links = [(a, b, c) for (a, b), c in amount.items() if c]
    units = [rng.randint(0, 3) for _ in range(workers)]

    if not _enterable(nodes, links, units, workers):
      with self.assertRaisesRegex(ValueError, 'units into node'):
        splitting.bypass(nodes, range(workers), links, units)
      return
    routes = splitting.bypass(nodes, range(workers), links, units)

    self.assertTrue(
      _enterable(
        workers,
        [(a, b, sum(c for _, c in paths)) for (a, b), paths in routes.items()],
        units,
      )
    )
    for (a, b), paths in routes.items():
      for path, count in paths:
        self.assertEqual((path[0], path[-1]), (a, b))
        self.assertTrue(all(v >= workers for v in path[1:-1]))
        for ends in itertools.pairwise(path):
          amount[ends] -= count
    self.assertGreaterEqual(min(amount.values()), 0)

  @parameterized.parameters(*range(20))
  def test_detours_carry_as_much_as_blocking_flows(self, seed):
    rng = random.Random(seed)
    links = [
      (a, b, rng.randint(1, 9))
      for a, b in itertools.permutations(range(8), 2)
      if rng.random() < 0.3
    ]
    limit = rng.choice((3, 1000))
    one, other = flow.network(8, links), flow.network(8, links)

    got = flow.detour(one, 0, 7, limit)

    self.assertEqual(got, flow.augment(other, 0, 7, limit))
    for row in one:
      self.assertGreaterEqual(min(row.values(), default=0), 0)
    if got < limit:
      self.assertEqual(flow.reach(one, 0), flow.reach(other, 0))


class StopTest(parameterized.TestCase):
  """Control comes back when the caller wants it, not before."""

  @parameterized.named_parameters(
    ('bound', lambda stop: bounds.optimum(builders.dgx_a100(1), stop)),
    (
      'bound_with_unequal_switches',
      lambda stop: bounds.optimum(builders.star([4, 5, 6], [8, 9, 7]), stop),
    ),
    (
      'allreduce',
      lambda stop: allreduce.optimum(builders.ring(5, 3), stop=stop),
    ),
    (
      'bypass',
      lambda stop: splitting.bypass(
        5,
        range(4),
        [(w, 4, 3) for w in range(4)] + [(4, w, 3) for w in range(4)],
        [1] * 4,
        stop,
      ),
    ),
    (
      'pack',
      lambda stop: arborescences.pack(
        8,
        [(v, v ^ 1 << k, 7) for v in range(8) for k in range(3)],
        [3] * 8,
        stop,
      ),
    ),
    (
      'simplex',
      lambda stop: simplex.Program(
        [3, 5], [[1, 0], [0, 2], [3, 2]], [4, 12, 17], stop
      ).solve(),
    ),
  )
  def test_stops_whenever_it_is_told_to(self, work):
    asked = itertools.count()
    result = work(lambda: next(asked) < 0)  # Which only counts.
    times = next(asked)

    self.assertGreater(times, 3)
    for last in range(times):
      asked = itertools.count()
      with self.assertRaises(stopping.Stopped):
        work(lambda asked=asked, last=last: next(asked) == last)
      self.assertEqual(next(asked), last + 1)
    self.assertEqual(work(stopping.never), result)


class DeterminismTest(absltest.TestCase):
  """No dependence on the order of sets."""

  def test_other_hash_seeds_give_the_same_forests(self):
    code = (
      'from topology import builders, forest\n'
      'for graph in (builders.random_mesh(8, 1), builders.bcube(3, 2, 10),\n'
      '              builders.dgx_a100(2)):\n'
      '  for collective in forest.COLLECTIVES:\n'
      '    print(forest.pack(graph, collective=collective))\n'
    )
    self.assertLen(small.printed(code, '1', '2', '3'), 1)


def _random_packing(seed):
  """A graph of two to six nodes and trees that may or may not fit."""
  rng = random.Random(seed)
  nodes = rng.randint(2, 6)
  links = [
    (a, b, rng.randint(1, 8))
    for a, b in itertools.permutations(range(nodes), 2)
    if rng.random() < 0.7
  ]
  return nodes, links, [rng.randint(0, 3) for _ in range(nodes)]


def _enterable(nodes, links, starts, workers=None):
  """Whether each set with a worker can be entered by all trees from outside.

  The first nodes are workers, of which each has its trees.
  """
  workers = nodes if workers is None else workers
  for size in range(1, nodes + 1):
    for side in itertools.combinations(range(nodes), size):
      inside = set(side)
      if min(side) >= workers:
        continue
      entering = sum(c for a, b, c in links if a not in inside and b in inside)
      outside = sum(c for v, c in enumerate(starts) if v not in inside)
      if entering < outside:
        return False
  return True


if __name__ == '__main__':
  absltest.main()
