"""Tests for topology.forests.timing, against events and closed forms."""

import dataclasses
import heapq
import itertools
import math
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

import topology
from cluster.virtual import network
from topology.baselines import schemes
from topology.clusters import randomized, shapes
from topology.clusters.cluster import Link
from topology.forests import dealing, timing, trees
from topology.forests.trees import Tree

COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')
LINE = shapes.line(5, 2)
CLUSTERS = {
  'mesh': randomized.random_mesh(6, 3, density=0.5, high_GBps=9),
  'symmetric': randomized.random_mesh(6, 1, symmetric=True, high_GBps=5),
  'star': shapes.star([1, 3, 5, 8], [4, 2, 9, 1]),
  'tree': shapes.tree([2, 3], [4, 3]),
  'fat_tree': shapes.fat_tree(2, 7),
  'line': shapes.line(4, '2.5'),
}
_CLUSTERS = {
  'star': shapes.star(['0.004', '0.003', '0.002', '0.001']),
  'mesh': randomized.spread(shapes.full_mesh(5, '0.01'), ratio=9, seed=1),
  'tree': shapes.tree([2, 3], ['0.001', '0.002']),
}


def _latency(cluster):
  rng = random.Random(3)
  return {ends: rng.random() * 1e-2 for ends in cluster.capacity_Bps}


def _whole_s(cluster, forest, sizes):
  """Returns the seconds of the fullest link."""
  load = dict.fromkeys(cluster.capacity_Bps, 0)
  for tree, size in zip(forest.trees, sizes, strict=True):
    for hop in (*tree.up, *tree.down):
      for ends in itertools.pairwise(hop):
        load[ends] += size
  return max(float(n / cluster.capacity_Bps[e]) for e, n in load.items())


def _by_events(
  cluster, forest, chunks, of_tree, latency_s, ready_s, ahead_bytes
):
  """Returns the end, chunk by chunk and hop by hop as in the module docs."""
  chunks, trees = np.array(chunks), range(len(forest.trees))
  sizes = [int(chunks[of_tree == t].sum()) for t in trees]
  byte_s = _whole_s(cluster, forest, sizes) / sum(sizes)
  due, latest = dict.fromkeys(cluster.workers, -np.inf), -np.inf
  for c, t in enumerate(of_tree):
    tree = forest.trees[t]
    known = {w: ready_s[i, c] for w, i in cluster.rank.items()}
    for w in cluster.workers:
      due[w] = max(known[w], due[w]) + chunks[c] * byte_s
      latest = max(latest, due[w])
    for number, hop in enumerate((*tree.up, *tree.down)):
      if number == len(tree.up):
        known = {tree.root: known[tree.root]}
      links = [*itertools.pairwise(hop)]
      slowest = min(cluster.capacity_Bps[ends] for ends in links)
      alone_s = float(int(chunks[c]) / slowest)
      early_s = due[hop[0]] - ahead_bytes * byte_s
      arrival = max(known[hop[0]] + alone_s, early_s)
      arrival += sum(latency_s[ends] for ends in links)
      known[hop[-1]] = max(known.get(hop[-1], -np.inf), arrival)
    latest = max(latest, *known.values())
  return latest


def _last(of_tree, tree):
  """Returns the chunks, those of one tree after all others."""
  return [*np.flatnonzero(of_tree != tree), *np.flatnonzero(of_tree == tree)]


class AllreduceTimingTest(parameterized.TestCase):
  @parameterized.product(
    name=[*_CLUSTERS], scheme=['packed', 'ring', 'tree'], ahead=[0, 30_000]
  )
  def test_ends_are_those_of_all_events(self, name, scheme, ahead):
    cluster, rng = _CLUSTERS[name], np.random.default_rng(5)
    forest = topology.pack(cluster)
    if scheme == 'ring':
      forest = schemes.naive_ring(cluster, forest)
    elif scheme == 'tree':
      forest = schemes.double_binary_tree(cluster, forest)
    latency_s = _latency(cluster)
    chunks = [*rng.integers(1, 9000, 40)]
    shares = [float(tree.share) for tree in forest.trees]
    of_tree = np.array(dealing.deal(shares, chunks))
    ready_s = rng.random((len(cluster.workers), 40)).cumsum(axis=1)

    timed = timing.AllreduceTiming(
      cluster, forest, chunks, latency_s=latency_s, ahead_bytes=ahead
    )

    expected = _by_events(
      cluster, forest, chunks, of_tree, latency_s, ready_s, ahead
    )
    self.assertAlmostEqual(timed(ready_s), expected, places=9)
    hops = 2 * (len(cluster.workers) - 1)
    self.assertEqual(sum(timed.carried.values()), hops * sum(chunks))

  @parameterized.product(name=[*_CLUSTERS], scheme=['packed', 'ring'])
  def test_time_with_all_data_ready_is_all_ready_s(self, name, scheme):
    cluster = _CLUSTERS[name]
    forest, latency_s = topology.pack(cluster), _latency(cluster)
    if scheme == 'ring':
      forest = schemes.naive_ring(cluster, forest)
    # Whole chunks for each tree, so that each has its share.
    most = 50
    count = math.lcm(*(tree.share.denominator for tree in forest.trees))
    of_tree = np.concatenate(
      [[t] * int(tree.share * count) for t, tree in enumerate(forest.trees)]
    )

    expected = timing.all_ready_s(
      cluster, forest, most * count, latency_s=latency_s, chunk_bytes=most
    )
    ready_s = np.full((len(cluster.workers), count), 2.0)
    found = []
    for last in range(len(forest.trees)):
      timed = timing.AllreduceTiming(
        cluster,
        forest,
        [most] * count,
        latency_s=latency_s,
        of_tree=of_tree[_last(of_tree, last)],
      )
      found.append(timed(ready_s))
    self.assertAlmostEqual(max(found), 2.0 + expected, places=9)

  def test_a_single_worker_waits_for_its_own_chunks_only(self):
    alone = topology.Cluster(('a',), ('a',), ())

    timed = timing.AllreduceTiming(
      alone, topology.pack(alone), [5, 5], latency_s={}
    )

    self.assertEqual(timed(np.array([[1.0, 3.0]])), 3.0)
    self.assertEqual(timed.carried, {})

  def test_a_ring_of_equal_links_takes_its_closed_form(self):
    star, size, B = shapes.star(['0.001'] * 4), 4_000_000, 1e6
    ring = schemes.naive_ring(star, topology.pack(star))
    latency_s = dict.fromkeys(star.capacity_Bps, 0.001)

    timed = timing.AllreduceTiming(
      star, ring, [1000] * 4000, latency_s=latency_s
    )

    # The links are full until the first hop of all is through: each of the
    # four up links carries 2 (n - 1) / n of all bytes.  Then five hops more of
    # a chunk, and two links' latency on each hop.
    whole_s, hops_s = 2 * 3 / 4 * size / B, 5 * 1000 / B + 6 * 0.002
    self.assertAlmostEqual(timed(np.zeros((4, 4000))), whole_s + hops_s)

  @parameterized.parameters(4, 8, 100)
  def test_running_ahead_hides_the_hops(self, chunks):
    star, size, B = shapes.star(['0.001'] * 4), 4_000_000, 1e6
    ring = schemes.naive_ring(star, topology.pack(star))
    latency_s = dict.fromkeys(star.capacity_Bps, 0.001)

    timed = timing.AllreduceTiming(
      star,
      ring,
      [1000] * 4000,
      latency_s=latency_s,
      ahead_bytes=chunks * 1000,
    )

    # The same; but each chunk that they are ahead is 2 (n - 1) / n of a chunk
    # on each link.
    whole_s, hops_s = 2 * 3 / 4 * size / B, 5 * 1000 / B + 6 * 0.002
    hidden_s = min(chunks * 2 * 3 / 4 * 1000 / B, hops_s)
    expected = whole_s + hops_s - hidden_s
    self.assertAlmostEqual(timed(np.zeros((4, 4000))), expected, places=9)
    # A single chunk takes all its hops, whatever may run ahead.
    ready_s = np.concatenate([[-1e9] * 3999, [0.0]]) * np.ones((4, 1))
    expected = 6 * 1000 / B + 6 * 0.002
    self.assertAlmostEqual(timed(ready_s), expected, places=9)

  def test_with_chunks_equals_a_new_timing(self):
    star = shapes.star(['0.001', '0.002', '0.001', '0.004'])
    forest = topology.pack(star)
    given = {'latency_s': dict.fromkeys(star.capacity_Bps, 0.001)}
    given['ahead_bytes'] = 5000
    rng = np.random.default_rng(0)
    first = timing.AllreduceTiming(star, forest, [1000] * 9, **given)
    for count in (1, 7, 40):
      chunks = rng.integers(1, 2000, count)
      ready_s = rng.random((4, count))
      fresh = timing.AllreduceTiming(star, forest, chunks, **given)
      again = first.with_chunks(chunks)
      self.assertEqual(again(ready_s), fresh(ready_s))
      self.assertEqual(again.carried, fresh.carried)

  def test_beginning_a_chunk_takes_part_of_its_turn(self):
    star, B = shapes.star(['0.001'] * 4), 1e6
    shards = schemes.sharded_server(star, topology.pack(star))
    timed = timing.AllreduceTiming(
      star,
      shards,
      [1000] * 40,
      latency_s=dict.fromkeys(star.capacity_Bps, 0),
      begin_s=np.where(np.arange(40) % 10 == 0, 0.5, 0.0),
    )
    bytes_s = 2 * 3 / 4 * 40_000 / B
    found = timed(np.zeros((4, 40)))
    self.assertBetween(found, 4 * 0.5 + bytes_s, 4 * 0.5 + bytes_s + 0.003)

  def test_a_burst_after_a_pause_comes_no_faster_than_links_allow(self):
    star, B = shapes.star(['0.001'] * 4), 1e6
    shards = schemes.sharded_server(star, topology.pack(star))
    timed = timing.AllreduceTiming(
      star, shards, [1000] * 4000, latency_s=dict.fromkeys(star.capacity_Bps, 0)
    )
    ready_s = np.zeros((4, 4000))
    ready_s[:, 2000:] = 10.0

    # Each link carries 2 (n - 1) / n of the second half, and then a chunk more
    # goes down.
    expected = 10 + 2 * 3 / 4 * 2_000_000 / B + 1000 / B
    self.assertAlmostEqual(timed(ready_s), expected, places=9)

  def test_a_chunk_is_held_up_on_its_slow_hops_alone(self):
    line = topology.Cluster(
      ('a', 'b', 'c'),
      ('a', 'b', 'c'),
      tuple(
        Link(*ends, Fraction(rate))
        for pair, rate in (('ab', '0.001'), ('bc', '0.0001'))
        for ends in (pair, pair[::-1])
      ),
    )
    tree = Tree(
      'a',
      Fraction(10**5),
      Fraction(1),
      [('c', 'b'), ('b', 'a')],
      [('a', 'b'), ('b', 'c')],
    )
    forest = dataclasses.replace(topology.pack(line), trees=(tree,))
    timed = timing.AllreduceTiming(
      line, forest, [1000], latency_s=dict.fromkeys(line.capacity_Bps, 0)
    )

    # 10 ms on each of the slow links, 1 ms on each of the fast ones.
    self.assertAlmostEqual(timed(np.zeros((3, 1))), 0.022, places=9)


class ChainTest(parameterized.TestCase):
  """A line of five workers, one tree of 2 GB/s, and arithmetic."""

  @parameterized.product(chunks=(1, 4, 50), latency_s=(0.0, 0.25))
  def test_one_way_fills_the_hops_and_then_follows(self, chunks, latency_s):
    for forest in (_chain(down=True), _chain(up=True)):
      total_s = timing.all_ready_s(
        LINE,
        forest,
        10**9,
        latency_s=latency_s,
        chunk_bytes=10**9 // chunks,
      )

      self.assertAlmostEqual(
        total_s, (chunks + 3) * 0.5 / chunks + 4 * latency_s
      )

  @parameterized.parameters(1, 2, 100)
  def test_sums_return_chunk_by_chunk(self, chunks):
    total_s = timing.all_ready_s(
      LINE,
      _chain(up=True, down=True),
      10**9,
      latency_s=1e-3,
      chunk_bytes=10**9 // chunks,
      message_s=1e-4,
    )

    slot_s = 0.5 / chunks + 1e-4
    self.assertAlmostEqual(total_s, (chunks + 7) * slot_s + 8 * 1e-3)

  def test_small_chunks_take_the_bytes_and_the_latency_of_the_path(self):
    latency_s = {(a, b): int(b[1]) / 8 for a, b, _ in LINE.links}

    total_s = timing.all_ready_s(
      LINE, _chain(down=True), 10**9, latency_s=latency_s, chunk_bytes=10
    )

    self.assertAlmostEqual(total_s, 0.5 + (1 + 2 + 3 + 4) / 8, places=6)

  def test_messages_of_all_trees_hold_the_links_that_they_share(self):
    # Two trees of half the bytes, both over the same links: 5 chunks each.
    chain = _chain(down=True)
    half = dataclasses.replace(chain.trees[0], share=Fraction(1, 2))
    forest = dataclasses.replace(chain, trees=(half, half))

    total_s = timing.all_ready_s(
      LINE, forest, 10**9, latency_s=0.0, chunk_bytes=10**8, message_s=1e-3
    )

    self.assertAlmostEqual(total_s, 0.5 + 10 * 1e-3 + 3 * (0.05 + 1e-3))

  def test_hidden_seconds_shorten_the_way_of_the_last_chunk_only(self):
    arguments = {'latency_s': 0.25, 'chunk_bytes': 10**9}
    for hidden_s, left_s in ((0.0, 2.5), (1.0, 1.5), (99.0, 0.0)):
      total_s = timing.all_ready_s(
        LINE, _chain(down=True), 10**9, hidden_s=hidden_s, **arguments
      )

      self.assertAlmostEqual(total_s, 0.5 + left_s)

  def test_a_chunk_has_no_more_bytes_than_its_tree(self):
    times = {
      timing.all_ready_s(
        LINE, _chain(down=True), 10**8, latency_s=0.25, chunk_bytes=chunk_bytes
      )
      for chunk_bytes in (10**8, 10**9)
    }
    self.assertLen(times, 1)


class EventsTest(parameterized.TestCase):
  """Single trees of random meshes against all their events."""

  @parameterized.product(
    seed=[*range(6)], collective=COLLECTIVES, message_s=(0.0, 3e-2)
  )
  def test_single_trees_end_when_events_say(self, seed, collective, message_s):
    rng = random.Random(f'{seed} {collective}')
    for unequal in (False, True):
      forest, mesh = _random_tree(rng, collective, unequal=unequal)
      (tree,) = forest.trees
      latency_s = {ends: rng.random() for ends in mesh.capacity_Bps}
      chunks, chunk_bytes = rng.choice((1, 2, 7, 16)), 10**8
      total_s = timing.all_ready_s(
        mesh,
        forest,
        chunks * chunk_bytes,
        latency_s=latency_s,
        chunk_bytes=chunk_bytes,
        message_s=message_s,
      )

      held_s = {
        hop: float(chunk_bytes / mesh.capacity_Bps[hop]) + message_s
        for hop in (*tree.up, *tree.down)
      }
      last = _last_arrivals(tree, chunks, held_s, latency_s)
      end_s = max(last.values())
      # Exact where hops are alike.  Else the slowest hop, which holds all
      # chunks, need not be on the longest way: each alone is within `end_s`.
      self.assertGreaterEqual(total_s, end_s - 1e-9)
      self.assertLessEqual(total_s, 2 * end_s + 1e-9)
      if not unequal:
        self.assertAlmostEqual(total_s, end_s)


class VirtualNetworkTest(absltest.TestCase):
  def test_star_takes_as_long_as_its_flows_in_the_virtual_network(self):
    graph = shapes.star([8] * 5)
    packed = topology.pack(graph, collective='allgather')
    hosts_s = [1.0, 2.0, 3.0, 4.0, 5.0]
    latency_s = dict(zip(graph.workers, hosts_s, strict=True)) | {'s0': 0.0}
    net = network.Network(
      up_Bps=[8e9] * 5, down_Bps=[8e9] * 5, latency_s=hosts_s
    )
    for src, dst in itertools.permutations(range(5), 2):
      net.start(0.0, src, dst, 16e9)
    while net.next_time() < math.inf:
      end_s = net.next_time()
      net.advance(end_s)

    total_s = timing.all_ready_s(
      graph,
      packed,
      5 * 16 * 10**9,
      latency_s={
        (a, b): latency_s[a] + latency_s[b] for a, b, _ in graph.links
      },
      chunk_bytes=16 * 10**9,
    )

    self.assertEqual(end_s, 8.0 + 5.0 + 4.0)
    self.assertAlmostEqual(total_s, end_s)


class RelationTest(parameterized.TestCase):
  """Properties of every forest."""

  @parameterized.product(name=[*CLUSTERS], collective=COLLECTIVES)
  def test_smaller_chunks_come_down_to_the_rate(self, name, collective):
    graph, size = CLUSTERS[name], 10**9
    packed = topology.pack(graph, collective=collective)

    totals = [
      timing.all_ready_s(graph, packed, size, latency_s=0.0, chunk_bytes=each)
      for each in (size, size // 2, size // 10, 10**6, 10**4)
    ]

    self.assertEqual(totals, sorted(totals, reverse=True))
    rate_s = float(size / packed.rate_Bps)
    self.assertGreaterEqual(totals[-1], rate_s * (1 - 1e-12))
    self.assertLess(totals[-1], 1.001 * rate_s)

  @parameterized.parameters(*COLLECTIVES)
  def test_single_workers_and_forests_without_trees_take_no_time(
    self, collective
  ):
    alone = shapes.line(1, 1)
    for graph, forest in (
      (alone, topology.pack(alone, collective=collective)),
      (LINE, dataclasses.replace(_chain(down=True), trees=())),
    ):
      costs = {'latency_s': 1.0, 'message_s': 1.0}

      total_s = timing.all_ready_s(
        graph, forest, 10**9, chunk_bytes=1000, **costs
      )

      self.assertEqual(total_s, 0.0)
      self.assertEqual(
        timing.best_chunk_bytes(graph, forest, 10**9, **costs)[1], 0.0
      )


class BestChunkBytesTest(parameterized.TestCase):
  """Chunk sizes against all others, one after the other."""

  @parameterized.product(
    name=('mesh', 'star', 'tree'),
    collective=COLLECTIVES,
    message_s=(0.0, 1e-9, 2e-8),
    size=(40, 400),
  )
  def test_no_other_chunk_size_takes_less(
    self, name, collective, message_s, size
  ):
    graph = CLUSTERS[name]
    packed = topology.pack(graph, collective=collective)
    rng = random.Random(name)
    latency_s = {(a, b): rng.random() * 1e-8 for a, b, _ in graph.links}
    costs = {'latency_s': latency_s, 'message_s': message_s}

    best, seconds = timing.best_chunk_bytes(
      graph, packed, size, max_chunks=size, **costs
    )

    totals = [
      timing.all_ready_s(graph, packed, size, chunk_bytes=each, **costs)
      for each in range(1, size + 1)
    ]
    self.assertEqual(seconds, totals[best - 1])
    largest = max(tree.share for tree in packed.trees) * size
    parts = {-(-math.ceil(largest) // count) for count in range(1, size + 1)}
    self.assertEqual(seconds, min(totals[each - 1] for each in parts))

  def test_a_chain_has_the_root_of_fill_over_cost(self):
    # C * message_s + 7 * size_s / C is least at the root of their ratio.
    forest = _chain(up=True, down=True)

    best, _ = timing.best_chunk_bytes(
      LINE, forest, 10**9, latency_s=1e-3, message_s=7 * 0.5 / 200**2
    )

    self.assertEqual(timing.chunk_counts(forest, 10**9, best), [200])

  def test_free_messages_are_as_many_as_are_allowed(self):
    forest = _chain(down=True)

    best, _ = timing.best_chunk_bytes(
      LINE, forest, 2**30, latency_s=0.0, message_s=0.0, max_chunks=512
    )

    self.assertEqual(timing.chunk_counts(forest, 2**30, best), [512])


class RejectionTest(parameterized.TestCase):
  """Errors name the field."""

  @parameterized.named_parameters(
    ('size', {'size_bytes': -1}, 'size_bytes: .* -1'),
    ('half_a_byte', {'size_bytes': 0.5}, 'size_bytes: .* 0.5'),
    ('latency', {'latency_s': -1e-9}, 'latency_s: .* -1e-09'),
    ('nan', {'latency_s': math.nan}, 'latency_s: .* nan'),
    ('infinite', {'latency_s': math.inf}, 'latency_s: .* inf'),
    ('of_no_link', {'latency_s': {}}, r"latency_s of \('w0', 'w1'\): .* None"),
    ('message', {'message_s': math.nan}, 'message_s: .* nan'),
    ('chunk', {'chunk_bytes': 0}, 'chunk_bytes: .* 0'),
    ('half_chunk', {'chunk_bytes': 1.5}, 'chunk_bytes: .* 1.5'),
  )
  def test_bad_argument(self, changes, message):
    good = {
      'size_bytes': 9,
      'latency_s': 0.0,
      'chunk_bytes': 1,
      'message_s': 0.0,
    }

    with self.assertRaisesRegex(ValueError, message):
      timing.all_ready_s(LINE, _chain(down=True), **(good | changes))

  def test_bad_latency_of_one_link(self):
    latency_s = {(a, b): 0.0 for a, b, _ in LINE.links} | {('w2', 'w3'): -1.0}

    with self.assertRaisesRegex(ValueError, r"latency_s of \('w2', 'w3'\)"):
      timing.all_ready_s(
        LINE, _chain(down=True), 9, latency_s=latency_s, chunk_bytes=1
      )

  def test_forest_of_another_cluster(self):
    packed = topology.pack(shapes.full_mesh(5, 1), collective='allgather')

    with self.assertRaisesRegex(ValueError, "links of the cluster, .*'w2'"):
      timing.all_ready_s(LINE, packed, 9, latency_s=0.0, chunk_bytes=1)

  def test_no_chunks_to_choose_from(self):
    with self.assertRaisesRegex(ValueError, 'max_chunks: .* 0'):
      timing.best_chunk_bytes(
        LINE, _chain(down=True), 9, latency_s=0.0, message_s=0.0, max_chunks=0
      )


def _chain(*, up=False, down=False):
  """One tree along the line, at the rate of its links, rooted at its end."""
  hops = list(itertools.pairwise(LINE.workers))
  tree = trees.Tree(
    'w0',
    Fraction(2 * 10**9),
    Fraction(1),
    [hop[::-1] for hop in hops[::-1]] if up else [],
    hops if down else [],
  )
  one_way = 'reduce_scatter' if up else 'allgather'
  collective = 'allreduce' if up and down else one_way
  return trees.Forest(collective, (tree,), tree.weight_Bps, None, None)


def _random_tree(rng, collective, *, unequal):
  """Returns a forest of one tree over direct links, and its full mesh."""
  names = tuple(f'w{i}' for i in range(6))
  mesh = topology.Cluster(
    names,
    names,
    tuple(
      Link(a, b, Fraction(rng.randint(1, 9) if unequal else 2))
      for a, b in itertools.permutations(names, 2)
    ),
  )
  down = [(names[rng.randrange(i)], names[i]) for i in range(1, len(names))]
  up = [hop[::-1] for hop in down[::-1]]
  tree = Tree(
    names[0],
    Fraction(10**9),
    Fraction(1),
    [] if collective == 'allgather' else up,
    [] if collective == 'reduce_scatter' else down,
  )
  return trees.Forest(collective, (tree,), tree.weight_Bps, None, None), mesh


def _last_arrivals(tree, chunks, held_s, latency_s):
  """Returns, per hop, when its last chunk arrives.

  Hops are ('up' or 'down', *nodes); `held_s` has the seconds of a chunk by the
  nodes of a hop.
  """
  hops = [('up', *hop) for hop in tree.up]
  hops += [('down', *hop) for hop in tree.down]
  needs = {  # Hops from which a chunk must have arrived.
    hop: [
      other
      for other in hops
      if other[-1] == hop[1]
      and other[0] == ('up' if hop[1] == tree.root else hop[0])
    ]
    for hop in hops
  }
  started, arrived = dict.fromkeys(hops, 0), dict.fromkeys(hops, 0)
  busy, last = set(hops), {}
  events = [(0.0, 'free', hop) for hop in hops]  # A heap: (time, what, hop).
  while events:
    time, what, hop = heapq.heappop(events)
    if what == 'free':
      busy.remove(hop)
    else:
      arrived[hop] += 1
      last[hop] = time
    for other in hops:
      chunk = started[other]
      ready = all(arrived[need] > chunk for need in needs[other])
      if ready and chunk < chunks and other not in busy:
        busy.add(other)
        started[other] += 1
        free = time + held_s[other[1:]]
        on_way = sum(latency_s[ends] for ends in itertools.pairwise(other[1:]))
        heapq.heappush(events, (free, 'free', other))
        heapq.heappush(events, (free + on_way, 'arrived', other))
  return last


if __name__ == '__main__':
  absltest.main()
