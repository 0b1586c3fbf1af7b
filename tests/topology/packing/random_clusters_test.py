"""Random small clusters: all trees as an oracle, and metamorphic relations."""

import itertools
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized
from scipy import optimize

import topology
from topology.clusters import randomized
from topology.clusters.cluster import Cluster, Link

COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')


class OracleTest(parameterized.TestCase):
  """Linear programs over all trees and all paths of small clusters."""

  @parameterized.product(seed=[*range(8)], collective=COLLECTIVES)
  def test_small_cluster_with_switches_is_packed_as_well_as_can_be(
    self, seed, collective
  ):
    graph = _random_switched(seed)

    packed = topology.pack(graph, collective=collective)

    want = _best_rate_Bps(graph, collective)
    self.assertAlmostEqual(float(packed.rate_Bps) / want, 1.0, places=9)
    self.assertEqual(packed.gap, 0)

  @parameterized.product(seed=[*range(5)], collective=COLLECTIVES)
  def test_links_alike_in_both_directions_are_used_as_well_as_can_be(
    self, seed, collective
  ):
    graph = _random_switched(seed)
    graph = Cluster(
      graph.nodes, graph.workers, graph.links + graph.reversed().links
    )

    packed = topology.pack(graph, collective=collective)

    want = _best_rate_Bps(graph, collective)
    self.assertAlmostEqual(float(packed.rate_Bps) / want, 1.0, places=9)

  @parameterized.product(seed=[1, 2], collective=COLLECTIVES)
  def test_five_workers_without_switches_are_packed_optimally(
    self, seed, collective
  ):
    graph = randomized.random_mesh(5, seed, density=0.6, high_GBps=9)

    packed = topology.pack(graph, collective=collective)

    want = _best_rate_Bps(graph, collective)
    self.assertAlmostEqual(float(packed.rate_Bps) / want, 1.0, places=9)

  @parameterized.product(workers=(2, 5, 7), seed=[0, 1])
  def test_symmetric_allreduce_is_the_strength_of_the_graph(
    self, workers, seed
  ):
    graph = randomized.random_mesh(
      workers, seed, density=(0, 0.3, 0.6, 1)[seed], symmetric=True
    )

    packed = topology.pack(graph, collective='allreduce')

    self.assertEqual(packed.rate_Bps, _strength(graph) * 10**9)

  @parameterized.product(workers=(3, 5), seed=[*range(2)])
  def test_parts_of_a_graph_are_enumerated_once_each(self, workers, seed):
    graph = randomized.random_mesh(workers, seed, symmetric=True)

    # 1, 2, 5, 15, 52 are the Bell numbers.
    parts = list(_partitions(workers))
    self.assertLen(parts, {3: 5, 5: 52}[workers])
    self.assertLen(set(parts), len(parts))
    self.assertLessEqual(_strength(graph), _thinnest(graph))


class MetamorphicTest(parameterized.TestCase):
  """Tests of invariance and monotonicity under changes of a cluster."""

  @parameterized.parameters(*range(3))
  def test_scaled_capacities_scale_all_weights(self, seed):
    graph = _random_switched(seed)
    scaled = _mapped(graph, factor=Fraction(7, 3))

    small = topology.pack(graph, collective='allgather')
    large = topology.pack(scaled, collective='allgather')

    self.assertEqual(large.rate_Bps, small.rate_Bps * Fraction(7, 3))
    self.assertEqual(
      [t.down for t in large.trees], [t.down for t in small.trees]
    )

  @parameterized.parameters(*range(4))
  def test_added_link_never_hurts(self, seed):
    graph = _random_switched(seed)
    src, dst = random.Random(seed).sample(graph.nodes, 2)
    more = Cluster(
      graph.nodes,
      graph.workers,
      (*graph.links, Link(src, dst, Fraction(3, 2))),
    )

    for collective in COLLECTIVES:
      before = topology.pack(graph, collective=collective)
      after = topology.pack(more, collective=collective)
      self.assertGreaterEqual(after.rate_Bps, before.rate_Bps)

  @parameterized.parameters(*range(4))
  def test_other_names_and_another_order_keep_the_rate(self, seed):
    graph = _random_switched(seed)
    nodes = random.Random(seed).sample(graph.nodes, len(graph.nodes))
    other = _mapped(graph, names={v: f'n{i}' for i, v in enumerate(nodes)})
    other = Cluster(tuple(sorted(other.nodes)), other.workers, other.links)

    for collective in COLLECTIVES:
      self.assertEqual(
        topology.pack(graph, collective=collective).rate_Bps,
        topology.pack(other, collective=collective).rate_Bps,
      )

  @parameterized.parameters(*range(4))
  def test_reversal_exchanges_allgather_and_reduce_scatter(self, seed):
    graph = _random_switched(seed)

    gather = topology.pack(graph, collective='allgather')
    scatter = topology.pack(graph.reversed(), collective='reduce_scatter')

    self.assertEqual(gather.rate_Bps, scatter.rate_Bps)
    self.assertEqual(
      [t.down for t in gather.trees],
      [[hop[::-1] for hop in t.up[::-1]] for t in scatter.trees],
    )

  @parameterized.parameters(*range(4))
  def test_reversal_keeps_the_rate_of_an_allreduce(self, seed):
    graph = _random_switched(seed)

    there = topology.pack(graph, collective='allreduce')
    back = topology.pack(graph.reversed(), collective='allreduce')

    self.assertEqual(there.rate_Bps, back.rate_Bps)

  @parameterized.parameters(*range(4))
  def test_allreduce_is_between_both_phases_in_turn_and_each_alone(self, seed):
    graph = _random_switched(seed)

    rate, gather, scatter = (
      topology.pack(graph, collective=collective).rate_Bps
      for collective in COLLECTIVES
    )

    self.assertGreaterEqual(rate, 1 / (1 / gather + 1 / scatter))
    n = len(graph.workers)
    self.assertLessEqual(rate * (n - 1), gather * n)


def _random_switched(seed):
  """Two to four workers, up to three switches, capacities of all kinds."""
  rng = random.Random(seed)
  while True:
    workers = [f'w{i}' for i in range(rng.randint(2, 4))]
    switches = [f's{i}' for i in range(rng.randint(1, 3))]
    nodes = (*workers, *switches)
    density = rng.choice((0.3, 0.5, 0.8))
    links = tuple(
      Link(a, b, Fraction(rng.randint(1, 12), rng.choice((1, 1, 2, 3))))
      for a, b in itertools.permutations(nodes, 2)
      # Switches matter most where workers have few links of their own.
      if rng.random() < (density if 's' in a + b else 0.3 * density)
    )
    try:
      return Cluster(nodes, tuple(workers), links)
    except ValueError:  # Not connected: draw again.
      continue


def _mapped(graph, *, names=None, factor=Fraction(1)):
  names = names or {node: node for node in graph.nodes}
  return Cluster(
    tuple(names[node] for node in graph.nodes),
    tuple(names[node] for node in graph.workers),
    tuple(
      Link(names[a], names[b], capacity * factor)
      for a, b, capacity in graph.links
    ),
  )


def _best_rate_Bps(graph, collective):
  """The optimum over all trees and paths, a linear program in floats.

  Variables: a rate for each root, a weight for each rooted tree of workers and
  direction, and a flow for each path through switches.
  """
  workers = graph.workers
  pairs = list(itertools.permutations(workers, 2))
  paths = [path for a, b in pairs for path in _paths(graph, a, b)]
  trees = [
    (root, up, {(b, a) if up else (a, b) for a, b in tree})
    for up in (True, False)
    if collective == 'allreduce' or up == (collective == 'reduce_scatter')
    for root in workers
    for tree in _out_trees(workers, root)
  ]
  n, end = len(workers), len(workers) + len(trees)
  rows, limits = [], []

  def add(rates, weights, flows, limit):
    rows.append(np.concatenate([rates, weights, flows]).astype(float))
    limits.append(float(limit))

  idle = np.zeros(len(paths))
  for up in sorted({up for _, up, _ in trees}):
    for i, root in enumerate(workers):
      chosen = [-((r, u) == (root, up)) for r, u, _ in trees]
      add(np.eye(n)[i], chosen, idle, 0)
  for pair in pairs:
    used = [pair in tree for _, _, tree in trees]
    add(np.zeros(n), used, [-((p[0], p[-1]) == pair) for p in paths], 0)
  for src, dst, capacity in graph.links:
    load = [(src, dst) in itertools.pairwise(path) for path in paths]
    add(np.zeros(n), np.zeros(len(trees)), load, capacity)
  if collective != 'allreduce':
    for i in range(1, n):
      for sign in (1, -1):
        row = sign * (np.eye(n)[i] - np.eye(n)[0])
        add(row, np.zeros(len(trees)), idle, 0)
  objective = np.zeros(end + len(paths))
  objective[:n] = -1
  result = optimize.linprog(objective, np.array(rows), limits, method='highs')
  return -result.fun * 1e9


def _strength(graph):
  """The least capacity between parts of the workers, over parts less one."""
  place = {worker: i for i, worker in enumerate(graph.workers)}
  pairs = [(place[a], place[b], c) for a, b, c in graph.links if a < b]
  return min(
    sum(c for a, b, c in pairs if part[a] != part[b]) / max(part)
    for part in _partitions(len(place))
    if max(part)
  )


def _thinnest(graph):
  """The capacity of the worker that has least."""
  return min(
    sum(link.GBps for link in graph.links if link.src == worker)
    for worker in graph.workers
  )


def _partitions(count):
  """Each way to divide items, once: of each its part, numbered as they come."""
  parts = [(0,)]
  for _ in range(count - 1):
    parts = [(*p, new) for p in parts for new in range(max(p) + 2)]
  return parts


def _out_trees(workers, root):
  """All spanning out-trees from the root, as sets of pairs."""
  others = [worker for worker in workers if worker != root]
  for parents in itertools.product(workers, repeat=len(others)):
    parent = dict(zip(others, parents, strict=True))
    if all(_leads_to(parent, worker, root) for worker in others):
      yield {(parent[worker], worker) for worker in others}


def _leads_to(parent, worker, root):
  for _ in range(len(parent) + 1):
    if worker == root:
      return True
    worker = parent[worker]
  return False


def _paths(graph, src, dst):
  """All paths between two workers through switches, none of them twice."""
  ends = {(a, b) for a, b, _ in graph.links}
  for length in range(len(graph.switches) + 1):
    for inner in itertools.permutations(graph.switches, length):
      path = (src, *inner, dst)
      if ends.issuperset(itertools.pairwise(path)):
        yield path


if __name__ == '__main__':
  absltest.main()
