"""Tests for topology.routing, against NetworkX."""

import itertools
import random
from fractions import Fraction

import networkx as nx
import numpy as np
from absl.testing import absltest, parameterized

from topology.clusters import randomized, shapes
from topology.clusters.cluster import Cluster, Link
from topology.packing import arrays

PRICES = ('equal', 'random', 'extreme')
SEEDS = (*range(3),)


class CellsTest(parameterized.TestCase):
  """Nearest workers, against Dijkstra's algorithm."""

  @parameterized.product(seed=SEEDS, kind=PRICES)
  def test_ways_are_cheapest_from_and_to_a_worker(self, seed, kind):
    for network in _networks(seed):
      prices = _prices(network, seed, kind)

      cells = network.cells(prices)

      forward = _graph(network, prices)
      sides = (
        (cells.away, cells.there, cells.source, forward),
        (cells.home, cells.back, cells.sink, forward.reverse()),
      )
      for turned, (distance, ways, owner, graph) in enumerate(sides):
        want = _lengths(graph, network.workers)
        for node in range(network.nodes):
          if node not in want:
            self.assertEqual((ways[node], owner[node]), (None, -1))
            self.assertEqual(distance[node], np.inf)
            continue
          way = ways[node]
          np.testing.assert_allclose(distance[node], want[node], rtol=1e-12)
          np.testing.assert_allclose(
            prices[network.use[[*way]]].sum(), want[node], rtol=1e-12
          )
          ends = [owner[node], node][:: -1 if turned else 1]
          self._assert_leads(network, way, *ends)

  def _assert_leads(self, network, way, start, end):
    nodes = [start]
    for link in way:
      self.assertEqual(network.src[link], nodes[-1])
      nodes.append(network.dst[link])
    self.assertEqual(nodes[-1], end)
    self.assertTrue(set(nodes[1:-1]).isdisjoint(network.workers))


class TreeTest(parameterized.TestCase):
  """Spanning trees over the hops between all pairs of workers."""

  @parameterized.product(seed=SEEDS, kind=PRICES)
  def test_tree_is_a_cheapest_one_of_the_closure(self, seed, kind):
    for network in _networks(seed, directed=False):
      prices = _prices(network, seed, kind)
      cells = network.cells(prices)

      cost, kept = network.tree(cells, prices)

      closure = _closure(network, prices).to_undirected()
      want = nx.minimum_spanning_tree(closure, weight='price')
      np.testing.assert_allclose(cost, want.size(weight='price'), rtol=1e-11)
      joined = nx.Graph(
        (cells.source[network.src[i]], cells.source[network.dst[i]])
        for i in kept
      )
      self.assertTrue(nx.is_tree(joined))
      self.assertCountEqual(joined, network.workers)

  @parameterized.product(seed=SEEDS, kind=PRICES)
  def test_loads_times_prices_equal_the_cost_of_the_tree(self, seed, kind):
    for network in _networks(seed, directed=False):
      prices = _prices(network, seed, kind)
      cells = network.cells(prices)
      cost, kept = network.tree(cells, prices)

      loads = network.loads(cells, kept)

      np.testing.assert_allclose(loads @ prices, cost, rtol=1e-11)
      np.testing.assert_array_equal(loads, np.rint(loads))

  def test_switch_without_workers_behind_it_is_left_out(self):
    links = [('a', 's'), ('s', 'b'), ('t', 'u'), ('s', 'v')]
    network = _network('ab', 'stuv', links + [pair[::-1] for pair in links])
    prices = np.ones(len(network.capacity))

    cost, kept = network.tree(network.cells(prices), prices)

    self.assertEqual((cost, len(kept)), (2, 1))


class HopsTest(parameterized.TestCase):
  """Candidates for trees."""

  @parameterized.product(seed=SEEDS, kind=(*PRICES, 'beyond_rounding'))
  def test_hops_are_simple_paths_through_switches(self, seed, kind):
    for network in _networks(seed):
      prices = _prices(network, seed, kind)
      for turn in (0, 1, 5):
        hops = network.hops(prices, turn)

        self.assertLen(set(hops), len(hops))
        for hop in hops:
          path = network.path(hop)
          self.assertLen(set(path), len(path))
          self.assertEqual((path[0], path[-1]), (hop.src, hop.dst))
          self.assertContainsSubset(path[:: len(path) - 1], network.workers)
          self.assertTrue(set(path[1:-1]).isdisjoint(network.workers))
          self.assertEqual(
            hop.uses, tuple(network.use[link] for link in hop.links)
          )

  def test_way_that_rounding_leads_through_a_switch_twice_is_dropped(self):
    # The links between s and t are too cheap to be seen beside the others, and
    # the one that leads back comes first.
    links = ['as', 'st', 'ts', 'tb', 'ba']
    network = _network('ab', 'ts', links)
    names = [''.join('tsab'[v] for v in (a, b)) for a, b in _ends(network)]
    prices = np.array([1e-20 if name in 'stst' else 1.0 for name in names])

    hops = network.hops(prices, 0)

    self.assertContainsSubset([(3, 2)], [hop[:2] for hop in hops])
    for hop in hops:
      self.assertLen(set(network.path(hop)), len(hop.links) + 1)

  @parameterized.product(seed=SEEDS, kind=PRICES)
  def test_cheapest_of_all_hops_is_among_them(self, seed, kind):
    for network in _networks(seed, paired=False):
      prices = _prices(network, seed, kind)
      closure = _closure(network, prices)

      hops = network.hops(prices, seed)

      least = min(price for *_, price in closure.edges(data='price'))
      got = min(_cost(hop, prices) for hop in hops)
      np.testing.assert_allclose(got, least, rtol=1e-12)
      for hop in hops:
        price = closure.edges[hop.src, hop.dst]['price']
        self.assertGreaterEqual(_cost(hop, prices), price * (1 - 1e-12))

  @parameterized.product(seed=SEEDS, kind=PRICES)
  def test_paired_hops_hold_a_cheapest_tree(self, seed, kind):
    for network in _networks(seed, directed=False):
      prices = _prices(network, seed, kind)
      graph = nx.Graph()
      # From dear to cheap, as of parallel edges the last one stays.
      hops = network.hops(prices, seed)
      for hop in sorted(hops, key=lambda hop: -_cost(hop, prices)):
        graph.add_edge(hop.src, hop.dst, price=_cost(hop, prices))

      tree = nx.minimum_spanning_tree(graph, weight='price')

      got = tree.size(weight='price')
      cost, _ = network.tree(network.cells(prices), prices)
      np.testing.assert_allclose(got, cost, rtol=1e-11)
      self.assertCountEqual(graph, network.workers)

  def test_hops_lead_from_rack_to_rack_though_near_workers_are_nearer(self):
    pairs = ['as', 'bs', 'ct', 'dt', 'st']
    pairs += [pair[::-1] for pair in pairs] + ['ab']  # Not alike both ways.
    network = _network('abcd', 'st', pairs)

    hops = network.hops(np.ones(len(network.capacity)), 0)

    rack = dict(zip(network.workers, 'sstt', strict=True))
    across = {rack[hop.src] + rack[hop.dst] for hop in hops}
    self.assertContainsSubset({'st', 'ts'}, across)

  def test_turns_join_each_arm_of_a_star_to_all_others(self):
    graph = shapes.star([1] * 6)
    for paired in (True, False):
      network = arrays.Arrays(graph, paired=paired)
      prices = np.ones(len(network.capacity))

      ends = {h[:2] for turn in range(5) for h in network.hops(prices, turn)}

      if paired:
        ends |= {pair[::-1] for pair in ends}
      self.assertLen(ends, 30)

  @parameterized.parameters(True, False)
  def test_without_switches_all_links_are_hops(self, paired):
    network = arrays.Arrays(shapes.full_mesh(5, 1), paired=paired)

    hops = network.hops(np.ones(len(network.capacity)), 0)

    self.assertLen(hops, 10 if paired else 20)

  @parameterized.parameters(*SEEDS)
  def test_paired_hop_goes_back_over_the_same_capacities(self, seed):
    for network in _networks(seed, directed=False):
      for hop in network.hops(_prices(network, seed, 'random'), 0):
        back = network.backwards(hop)

        self.assertEqual(network.path(back), network.path(hop)[::-1])
        self.assertEqual(back.uses, hop.uses[::-1])
        self.assertEqual(
          back.uses, tuple(network.use[link] for link in back.links)
        )


class NearestTest(parameterized.TestCase):
  """Dijkstra's algorithm from a set of workers."""

  @parameterized.product(seed=SEEDS, kind=PRICES)
  def test_hop_is_the_cheapest_between_both_sets(self, seed, kind):
    rng = random.Random(seed)
    for network in _networks(seed):
      prices = _prices(network, seed, kind)
      closure = _closure(network, prices)
      count = rng.randrange(1, len(network.workers))
      reached = set(rng.sample(network.workers, count))
      for up in (False, True):
        hop = network.nearest(reached, prices.tolist(), up=up)

        start, end = (hop.dst, hop.src) if up else (hop.src, hop.dst)
        self.assertIn(start, reached)
        self.assertNotIn(end, reached)
        want = min(
          price
          for a, b, price in closure.edges(data='price')
          if (a in reached) != up and (b in reached) == up
        )
        np.testing.assert_allclose(_cost(hop, prices), want, rtol=1e-12)
        self.assertTrue(set(network.path(hop)[1:-1]).isdisjoint(closure))

  def test_nothing_is_near_where_all_are_reached(self):
    network = arrays.Arrays(shapes.star([1] * 3), paired=False)

    with self.assertRaisesRegex(ValueError, 'a way to some other worker'):
      network.nearest({0, 1, 2}, [1.0] * 6, up=False)


class NetworkTest(absltest.TestCase):
  """Tests of the arrays of a cluster."""

  def test_both_directions_of_a_pair_share_a_capacity(self):
    graph = randomized.random_switched(6, 3, 1, symmetric=True)

    network = arrays.Arrays(graph, paired=True)

    self.assertLen(network.capacity, len(graph.links) // 2)
    capacity = network.capacity[network.use].tolist()
    self.assertEqual(capacity, [float(link.GBps) for link in graph.links])

  def test_layers_are_those_of_a_tree(self):
    network = arrays.Arrays(shapes.tree([2, 3], [5, 7]), paired=True)

    layers = [layer.sum() for layer in network.layers()]

    self.assertEqual(layers, [6, 2])

  def test_thinnest_worker_is_found_in_each_direction(self):
    graph = shapes.star([4, 1, 3], [2, 5, 1])
    network = arrays.Arrays(graph, paired=False)

    into, out = network.around_thinnest()

    links = [link[:2] for link in graph.links]
    chosen = [links[np.flatnonzero(network.use == i)[0]] for i in range(6)]
    self.assertEqual([chosen[i] for i in np.flatnonzero(into)], [('s0', 'w2')])
    self.assertEqual([chosen[i] for i in np.flatnonzero(out)], [('w1', 's0')])


def _networks(seed, *, directed=True, paired=True):
  """Random networks, and switches in series, for one or both kinds."""
  rng = random.Random(seed)
  sizes = [(rng.randint(2, 9), rng.randint(1, 7)) for _ in range(2)]
  alike = [randomized.random_switched(*s, seed, symmetric=True) for s in sizes]
  alike.append(_series(rng))
  if paired:
    yield from (arrays.Arrays(graph, paired=True) for graph in alike)
  if directed:
    yield from (arrays.Arrays(graph, paired=False) for graph in alike)
    for density in (0.05, 0.3):
      yield arrays.Arrays(_one_way(rng, density), paired=False)


def _series(rng):
  """Two workers behind each end of a chain of switches, and a detour."""
  chain = [f's{i}' for i in range(rng.randint(1, 5))]
  ends = [('a', chain[0]), ('b', chain[0]), ('c', chain[-1]), ('d', chain[-1])]
  pairs = [*ends, *itertools.pairwise(chain), ('a', 'c')]
  links = [(*pair, rng.randint(1, 9)) for pair in pairs]
  links += [(b, a, capacity) for a, b, capacity in links]
  return Cluster(('a', 'b', *chain, 'c', 'd'), tuple('abcd'), links)


def _one_way(rng, density):
  """Links at random, few of which have one back, and nodes in any order."""
  nodes = [f'n{i}' for i in range(rng.randint(3, 14))]
  links = [(nodes[i - 1], nodes[i]) for i in range(len(nodes))]
  pairs = itertools.permutations(nodes, 2)
  links += [pair for pair in pairs if rng.random() < density]
  workers = rng.sample(nodes, rng.randint(2, min(len(nodes), 8)))
  rng.shuffle(nodes)
  return Cluster(
    tuple(nodes),
    tuple(workers),
    tuple(Link(*e, Fraction(rng.randint(1, 20), 4)) for e in links),
  )


def _network(workers, switches, pairs):
  links = tuple(Link(*pair, Fraction(1)) for pair in pairs)
  graph = Cluster((*switches, *workers), tuple(workers), links)
  return arrays.Arrays(graph, paired=graph == graph.reversed())


def _prices(network, seed, kind):
  rng, count = random.Random(seed), len(network.capacity)
  if kind == 'equal':
    return np.ones(count)
  if kind == 'random':
    return np.array([float(rng.randint(1, 5)) for _ in range(count)])
  if kind == 'extreme':
    return np.array([10 ** rng.uniform(-12, 0) for _ in range(count)])
  return np.array([rng.choice((1e-30, 1e-16, 1.0)) for _ in range(count)])


def _graph(network, prices):
  """All nodes and links, with the prices of the links."""
  graph = nx.DiGraph()
  graph.add_nodes_from(range(network.nodes))
  costs = prices[network.use].tolist()
  for (a, b), price in zip(_ends(network), costs, strict=True):
    graph.add_edge(a, b, price=price)
  return graph


def _ends(network):
  return [*zip(network.src.tolist(), network.dst.tolist(), strict=True)]


def _lengths(graph, workers):
  """Per node the least price of a way from some worker over switches."""
  inner = graph.copy()
  inner.remove_edges_from(list(graph.in_edges(workers)))
  return nx.multi_source_dijkstra_path_length(
    inner, set(workers), weight='price'
  )


def _closure(network, prices):
  """The prices of the hops between all pairs of workers that have one."""
  graph, chosen = _graph(network, prices), set(network.workers)
  closure = nx.DiGraph()
  closure.add_nodes_from(network.workers)
  for worker in network.workers:
    inner = graph.copy()
    others = chosen - {worker}
    inner.remove_edges_from(list(graph.out_edges(others)))
    lengths = nx.single_source_dijkstra_path_length(
      inner, worker, weight='price'
    )
    for other in sorted(others & set(lengths)):
      closure.add_edge(worker, other, price=lengths[other])
  return closure


def _cost(hop, prices):
  return sum(prices[use] for use in hop.uses)


if __name__ == '__main__':
  absltest.main()
