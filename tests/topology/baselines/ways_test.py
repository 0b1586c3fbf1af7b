"""Ways between pairs of workers, groups of them, and orders for rings."""

import itertools
import random
from fractions import Fraction

import networkx as nx
from absl.testing import absltest, parameterized

import topology
from topology.baselines import ring_orders, schemes, ways
from topology.clusters import cluster, machines, randomized, shapes
from topology.clusters.cluster import Cluster, Link

GB = 10**9


class RingTest(parameterized.TestCase):
  """The order of a ring, against all orders."""

  @parameterized.product(seed=[*range(2)], both_ways=(False, True))
  def test_best_order_has_the_widest_narrowest_link(self, seed, both_ways):
    graph = randomized.random_mesh(6, seed)
    name = 'best_ring_both_ways' if both_ways else 'best_ring'

    scheme = getattr(schemes, name)(graph, topology.pack(graph))

    GBps = {(a, b): c for a, b, c in graph.links}
    widest = max(
      min(GBps[a, b] for ring in ways for a, b in _around(ring))
      for order in itertools.permutations(graph.workers)
      for ways in [[order, order[::-1]] if both_ways else [order]]
    )
    want = widest * Fraction(6, 2 * 5) * (1 + both_ways)
    self.assertEqual(scheme.rate_Bps, want * GB)

  @parameterized.parameters(*range(2))
  def test_search_finds_the_best_order_of_10(self, seed):
    graph = randomized.random_mesh(10, seed)

    order = ring_orders.best_order(ways.Ways(graph), both_ways=False)

    self.assertCountEqual(order, graph.workers)
    GBps = {(a, b): c for a, b, c in graph.links}
    self.assertEqual(min(GBps[hop] for hop in _around(order)), _widest(graph))

  @parameterized.named_parameters(
    ('boxes', machines.dgx_a100(2)),
    ('racks', shapes.tree([4, 4], [10, 10])),
    ('torus', shapes.torus([4, 4], 1)),
  )
  def test_search_undoes_a_shuffle(self, graph):
    shuffled = _shuffled(graph)

    for both_ways in (False, True):
      full = [
        _fullest(
          each,
          ring_orders.best_order(ways.Ways(each), both_ways=both_ways),
          both_ways,
        )
        for each in (graph, shuffled)
      ]

      self.assertEqual(full[1], full[0])
      naive = _fullest(shuffled, shuffled.workers, both_ways)
      self.assertLess(full[1], naive)

  def test_64_workers_get_a_much_better_ring(self):
    graph = randomized.random_mesh(64, 1)

    order = ring_orders.best_order(ways.Ways(graph), both_ways=False)

    GBps = {(a, b): c for a, b, c in graph.links}
    self.assertCountEqual(order, graph.workers)
    self.assertEqual(min(GBps[hop] for hop in _around(graph.workers)), 2)
    self.assertGreater(min(GBps[hop] for hop in _around(order)), 40)


class WaysTest(parameterized.TestCase):
  """Ways and groups."""

  @parameterized.parameters(*range(4))
  def test_ways_are_the_widest_of_the_shortest(self, seed):
    graph = _random_switched(seed)
    found = ways.Ways(graph)

    for a, b in itertools.permutations(graph.workers, 2):
      hop = found.hop(a, b)

      known = _shortest(graph, {a, b, *graph.switches}, a, b)
      known = known or _shortest(graph, set(graph.nodes), a, b)
      self.assertIn(hop, known)
      widest = max(_width(graph, way) for way in known)
      self.assertEqual(_width(graph, hop), widest)

  def test_ties_between_ways_go_to_the_first(self):
    graph = shapes.torus([2, 2], 1)

    self.assertEqual(ways.Ways(graph).hop('w0', 'w3'), ('w0', 'w1', 'w3'))
    self.assertEqual(ways.Ways(graph).hop('w3', 'w0'), ('w3', 'w1', 'w0'))

  def test_switches_are_preferred_to_a_shorter_way_through_a_worker(self):
    graph = cluster.from_json(
      {
        'nodes': [{'id': v, 'worker': v in 'abc'} for v in 'abcrst'],
        'links': [
          {'src': x, 'dst': y, 'GBps': 1}
          for way in ('arstb', 'acb', 'ba')
          for x, y in itertools.pairwise(way)
        ],
      }
    )

    self.assertEqual(ways.Ways(graph).hop('a', 'b'), tuple('arstb'))
    self.assertEqual(ways.Ways(graph).hop('c', 'a'), tuple('cba'))

  def test_shares_divide_links_between_the_pairs_that_want_them(self):
    shares = ways.Ways(shapes.ring(4, 6)).shares()

    # Each link: a neighbor, and half of each of two pairs that are opposite.
    self.assertEqual(set(shares.values()), {3})

  @parameterized.named_parameters(
    ('boxes', machines.dgx_a100(3), 8),
    ('racks', shapes.tree([4, 4], [10, 10]), 4),
    ('racks_oversubscribed_by_2', shapes.tree([2, 8], [40, 10]), 8),
    ('racks_of_racks', shapes.tree([2, 2, 4], [2, 20, 10]), 8),
    ('wide_racks', shapes.tree([4, 4], [40, 10]), 16),
    ('mesh', shapes.full_mesh(6, 1), 6),
    ('ring', shapes.ring(7, 1), 7),
    ('one_way_ring', shapes.ring(7, 1, both_ways=False), 7),
    ('star', shapes.star([3] * 5), 5),
    ('torus', shapes.torus([3, 3], 1), 9),
    ('hypercube', shapes.torus([2, 2, 2], 1), 8),
    ('bcube', shapes.bcube(3, 2, 1), 9),
    ('straggler', shapes.star([9, 9, 9, 1]), 4),
    ('pair', shapes.line(2, 1), 2),
    ('single', shapes.line(1, 1), 1),
  )
  def test_groups_are_runs_of_workers(self, graph, size):
    found = ways.Ways(graph).groups()

    workers = graph.workers
    want = [list(workers[i : i + size]) for i in range(0, len(workers), size)]
    self.assertEqual(found, want)

  def test_boxes_are_found_in_any_order(self):
    graph = _shuffled(machines.dgx_a100(2))

    found = ways.Ways(graph).groups()

    self.assertLen(found, 2)
    self.assertIn({f'w{i}' for i in range(8)}, map(set, found))
    self.assertEqual(found[0][0], graph.workers[0])


def _shuffled(graph):
  nodes = random.Random(1).sample(graph.nodes, len(graph.nodes))
  return Cluster(tuple(nodes), graph.workers, graph.links)


def _around(order):
  return itertools.pairwise((*order, order[0]))


def _fullest(graph, order, both_ways):
  made = ways.Ways(graph)
  loads = {}
  for ring in (order, order[::-1])[: 1 + both_ways]:
    for a, b in _around(ring):
      for ends in itertools.pairwise(made.hop(a, b)):
        loads[ends] = loads.get(ends, 0) + 1
  return max(loads.get((a, b), 0) / c for a, b, c in graph.links)


def _widest(graph):
  """The largest capacity of which a ring can have all links, by sets."""
  count = len(graph.workers)
  GBps = {(a, b): c for a, b, c in graph.links}
  for least in sorted(set(GBps.values()), reverse=True):
    onwards = [
      sum(
        (GBps.get((a, b), 0) >= least) << j for j, b in enumerate(graph.workers)
      )
      for a in graph.workers
    ]
    # Per set of workers, those where a way from the first through all ends.
    ends = [0] * (1 << count)
    ends[1] = 1
    for chosen in range(1, 1 << count, 2):
      for i in range(count):
        if ends[chosen] >> i & 1:
          for j in range(count):
            if onwards[i] >> j & 1 and not chosen >> j & 1:
              ends[chosen | 1 << j] |= 1 << j
    if any(ends[-1] >> i & onwards[i] & 1 for i in range(count)):
      return least
  return None


def _random_switched(seed):
  rng = random.Random(seed)
  while True:
    workers = [f'w{i}' for i in range(rng.randint(3, 5))]
    nodes = (*workers, *(f's{i}' for i in range(rng.randint(1, 4))))
    links = tuple(
      Link(a, b, Fraction(rng.randint(1, 4)))
      for a, b in itertools.permutations(nodes, 2)
      if rng.random() < (0.5 if 's' in a + b else 0.15)
    )
    try:
      return Cluster(nodes, tuple(workers), links)
    except ValueError:  # Not connected: draw again.
      continue


def _shortest(graph, nodes, src, dst):
  directed = nx.DiGraph((a, b) for a, b, _ in graph.links)
  allowed = directed.subgraph(nodes)
  if {src, dst} <= set(allowed) and nx.has_path(allowed, src, dst):
    return [tuple(w) for w in nx.all_shortest_paths(allowed, src, dst)]
  return []


def _width(graph, way):
  GBps = {(a, b): c for a, b, c in graph.links}
  return min(GBps[ends] for ends in itertools.pairwise(way))


if __name__ == '__main__':
  absltest.main()
