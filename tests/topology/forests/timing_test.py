"""Tests for topology.timing: closed forms, and events one after the other."""

import dataclasses
import heapq
import itertools
import math
import random
from fractions import Fraction

from absl.testing import absltest, parameterized

import topology
from cluster.virtual import network
from topology.clusters import randomized, shapes
from topology.forests import timing, trees, verify

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


class ChainTest(parameterized.TestCase):
  """A line of five workers, one tree of 2 GB/s, and arithmetic."""

  @parameterized.product(chunks=(1, 4, 50), latency_s=(0.0, 0.25))
  def test_chunks_fill_the_hops_one_way_and_then_follow(
    self, chunks, latency_s
  ):
    for packed, names in (
      (_chain(down=True), LINE.workers[1:]),
      (_chain(up=True), ('w0',)),
    ):
      timed = timing.simulate(
        LINE, packed, 10**9, latency_s=latency_s, chunks=chunks
      )

      want_s = (chunks + 3) * 0.5 / chunks + 4 * latency_s
      self.assertAlmostEqual(timed.total_s, want_s)
      self.assertAlmostEqual(timed.done_s[names[-1]], want_s)
      others = [timed.done_s[w] for w in LINE.workers if w not in names]
      self.assertEqual(set(others), {0.0})

  @parameterized.parameters(1, 2, 100)
  def test_sums_return_chunk_by_chunk(self, chunks):
    timed = timing.simulate(
      LINE,
      _chain(up=True, down=True),
      10**9,
      latency_s=1e-3,
      chunks=chunks,
      message_s=1e-4,
    )

    slot_s = 0.5 / chunks + 1e-4
    for hops, worker in enumerate(LINE.workers, start=4):
      self.assertAlmostEqual(
        timed.done_s[worker], (chunks + hops - 1) * slot_s + hops * 1e-3
      )
    self.assertEqual(timed.total_s, timed.done_s['w4'])

  def test_many_chunks_take_the_bytes_and_the_latency_of_the_path(self):
    latency_s = {(a, b): int(b[1]) / 8 for a, b, _ in LINE.links}

    timed = timing.simulate(
      LINE, _chain(down=True), 10**9, latency_s=latency_s, chunks=10**8
    )

    self.assertAlmostEqual(timed.total_s, 0.5 + (1 + 2 + 3 + 4) / 8)

  def test_chunks_that_are_not_alike_wait_for_the_largest(self):
    # Chunks of 1 and 2 bytes at 2e9 B/s over 4 hops.
    timed = timing.simulate(LINE, _chain(down=True), 3, latency_s=0, chunks=2)

    self.assertAlmostEqual(timed.total_s * 2e9, 3 + 3 * 2)

  @parameterized.parameters((False, True), (True, False), (True, True))
  def test_links_carry_the_bytes_of_all_hops_over_them(self, up, down):
    timed = timing.simulate(
      LINE, _chain(up=up, down=down), 77, latency_s=0.0, chunks=3
    )

    want = {(a, b): 77 * (down if a < b else up) for a, b, _ in LINE.links}
    self.assertEqual(timed.link_bytes, want)


class OracleTest(parameterized.TestCase):
  """Forests of random clusters against all their events."""

  @parameterized.product(name=[*CLUSTERS], collective=COLLECTIVES)
  def test_times_are_those_of_all_events(self, name, collective):
    graph = CLUSTERS[name]
    packed = topology.pack(graph, collective=collective)
    verify.check(graph, packed)
    rng = random.Random(name + collective)
    for size in (0, 1, 23, 1000, 10**6):
      # Bytes take a nanosecond: rounding counts for the small sizes.
      scale_s = rng.choice((0.0, 1e-9, 1e-7))
      latency_s = {(a, b): rng.random() * scale_s for a, b, _ in graph.links}
      chunks = [rng.choice((1, 2, 3, 7, 16)) for _ in packed.trees]
      message_s = rng.choice((0.0, 3e-9))
      with self.subTest(size=size, scale_s=scale_s):
        timed = timing.simulate(
          graph,
          packed,
          size,
          latency_s=latency_s,
          chunks=chunks,
          message_s=message_s,
        )

        want_s = _events(graph, packed, size, latency_s, chunks, message_s)
        self.assertEqual([*timed.done_s], [*graph.workers])
        for worker in graph.workers:
          self.assertAlmostEqual(
            timed.done_s[worker] * 1e9, want_s[worker] * 1e9, places=6
          )
        self.assertEqual(timed.total_s, max(timed.done_s.values()))

  def test_star_takes_as_long_as_its_flows_in_the_virtual_cluster(self):
    graph = shapes.star([8] * 5)
    packed = topology.pack(graph, collective='allgather')
    hosts_s = [1.0, 2.0, 3.0, 4.0, 5.0]
    latency_s = dict(zip(graph.workers, hosts_s, strict=True)) | {'s0': 0.0}
    net = network.Network(
      up_Bps=[8e9] * 5, down_Bps=[8e9] * 5, latency_s=hosts_s
    )
    flows = {
      net.start(0.0, src, dst, 16e9): f'w{dst}'
      for src, dst in itertools.permutations(range(5), 2)
    }
    arrived = {}
    while net.next_time() < math.inf:
      time = net.next_time()
      arrived |= {flows[flow]: time for flow in net.advance(time)}

    timed = timing.simulate(
      graph,
      packed,
      5 * 16 * 10**9,
      latency_s={
        (a, b): latency_s[a] + latency_s[b] for a, b, _ in graph.links
      },
      chunks=1,
    )

    self.assertEqual(arrived['w4'], 8.0 + 5.0 + 4.0)
    for worker in graph.workers:
      self.assertAlmostEqual(timed.done_s[worker], arrived[worker])


class RelationTest(parameterized.TestCase):
  """What holds of every forest."""

  @parameterized.product(name=[*CLUSTERS], collective=COLLECTIVES)
  def test_more_chunks_come_down_to_the_rate(self, name, collective):
    graph = CLUSTERS[name]
    packed = topology.pack(graph, collective=collective)
    size = 10**9

    totals = [
      timing.simulate(graph, packed, size, latency_s=0.0, chunks=chunks).total_s
      for chunks in (1, 2, 3, 10, 100, 10**5)
    ]

    self.assertEqual(totals, sorted(totals, reverse=True))
    # A part may have a byte more than its share.
    self.assertGreaterEqual(totals[-1], (size - 1) / packed.rate_Bps - 1e-9)
    self.assertLess(totals[-1], 1.0002 * size / packed.rate_Bps)

  @parameterized.parameters(*COLLECTIVES)
  def test_single_worker_and_no_bytes_take_no_time(self, collective):
    for graph, size in ((shapes.line(1, 1), 10**9), (LINE, 0)):
      packed = topology.pack(graph, collective=collective)

      timed = timing.simulate(
        graph, packed, size, latency_s=1.0, chunks=4, message_s=1.0
      )

      self.assertEqual(timed.total_s, 0.0)
      self.assertEqual(timed.done_s, dict.fromkeys(graph.workers, 0.0))
      self.assertEqual(set(timed.link_bytes.values()) - {0}, set())

  def test_forest_without_trees_takes_no_time(self):
    packed = dataclasses.replace(_chain(down=True), trees=())

    timed = timing.simulate(LINE, packed, 5, latency_s=1.0, chunks=4)

    self.assertEqual(timed.total_s, 0.0)


class BestChunksTest(parameterized.TestCase):
  """Against all counts, one after the other."""

  @parameterized.product(
    name=('mesh', 'star', 'tree'),
    collective=COLLECTIVES,
    message_s=(0.0, 1e-9, 2e-8),
    size=(40, 3000),
  )
  def test_no_other_counts_take_less(self, name, collective, message_s, size):
    graph = CLUSTERS[name]
    packed = topology.pack(graph, collective=collective)
    rng = random.Random(name)
    latency_s = {(a, b): rng.random() * 1e-8 for a, b, _ in graph.links}
    costs = {'latency_s': latency_s, 'message_s': message_s}

    best, timed = timing.best_chunks(graph, packed, size, most=40, **costs)

    self.assertEqual(
      timed, timing.simulate(graph, packed, size, chunks=best, **costs)
    )
    for number, ends in enumerate(packed.byte_ranges(size)):
      # A tree alone, with the bytes that it has beside the others.
      tree = dataclasses.replace(packed.trees[number], share=Fraction(1))
      alone = dataclasses.replace(packed, trees=(tree,))
      part = ends[1] - ends[0]
      totals = [
        timing.simulate(graph, alone, part, chunks=count, **costs).total_s
        for count in range(1, 41)
      ]
      self.assertAlmostEqual(
        totals[best[number] - 1] * 1e9, min(totals) * 1e9, places=6
      )

  def test_all_combinations_of_few_trees_are_no_faster(self):
    graph = randomized.random_mesh(3, 1, high_GBps=4)
    packed = topology.pack(graph)
    costs = {'latency_s': 1e-8, 'message_s': 4e-9}
    self.assertLen(packed.trees, 3)

    best, timed = timing.best_chunks(graph, packed, 200, most=6, **costs)

    totals = {
      chunks: timing.simulate(
        graph, packed, 200, chunks=chunks, **costs
      ).total_s
      for chunks in itertools.product(range(1, 7), repeat=len(packed.trees))
    }
    self.assertEqual(timed.total_s, min(totals.values()))
    self.assertEqual(timed.total_s, totals[best])

  def test_chain_has_the_root_of_fill_over_cost(self):
    # C * message_s + 7 * size_s / C is least at the root of their ratio.
    best, _ = timing.best_chunks(
      LINE,
      _chain(up=True, down=True),
      10**9,
      latency_s=1e-3,
      message_s=7 * 0.5 / 200**2,
    )

    self.assertEqual(best, (200,))

  def test_chunks_only_shorten_ways_of_several_hops(self):
    # From w1, one hop of latency and three without: 1 / C of fill in them.
    hops = [('w1', 'w0'), ('w1', 'w2'), ('w2', 'w3'), ('w3', 'w4')]
    chain = _chain(down=True)
    tree = dataclasses.replace(chain.trees[0], root='w1', down=hops)
    packed = dataclasses.replace(chain, trees=(tree,))
    latency_s = {(a, b): 0.0 for a, b, _ in LINE.links} | {('w1', 'w0'): 0.101}

    best, timed = timing.best_chunks(
      LINE, packed, 10**9, latency_s=latency_s, message_s=1e-6
    )

    self.assertEqual(best, (10,))
    self.assertAlmostEqual(timed.total_s, 0.5 + 0.101 + 10e-6)

  def test_free_messages_are_as_many_as_are_allowed(self):
    best, _ = timing.best_chunks(
      LINE, _chain(down=True), 10**9, latency_s=0.0, message_s=0.0, most=512
    )

    self.assertEqual(best, (512,))

  def test_parts_without_bytes_have_one_chunk(self):
    best, timed = timing.best_chunks(
      LINE, _chain(down=True), 0, latency_s=1.0, message_s=1.0
    )

    self.assertEqual((best, timed.total_s), ((1,), 0.0))


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
    ('chunks', {'chunks': 0}, 'chunks: .* 0'),
    ('half_chunks', {'chunks': 1.5}, 'chunks: .* 1.5'),
    ('one_of_chunks', {'chunks': (0,)}, 'chunks: .* 0'),
    ('too_many', {'chunks': (1, 2)}, 'chunks: expected 1 counts, got 2'),
  )
  def test_bad_argument(self, changes, message):
    good = {'size_bytes': 9, 'latency_s': 0.0, 'chunks': 1, 'message_s': 0.0}

    with self.assertRaisesRegex(ValueError, message):
      timing.simulate(LINE, _chain(down=True), **(good | changes))

  def test_bad_latency_of_one_link(self):
    latency_s = {(a, b): 0.0 for a, b, _ in LINE.links} | {('w2', 'w3'): -1.0}

    with self.assertRaisesRegex(ValueError, r"latency_s of \('w2', 'w3'\)"):
      timing.simulate(LINE, _chain(down=True), 9, latency_s=latency_s, chunks=1)

  def test_forest_of_another_cluster(self):
    packed = topology.pack(shapes.full_mesh(5, 1), collective='allgather')

    with self.assertRaisesRegex(ValueError, "links of the cluster, .*'w2'"):
      timing.simulate(LINE, packed, 9, latency_s=0.0, chunks=1)

  def test_no_chunks_to_choose_from(self):
    with self.assertRaisesRegex(ValueError, 'most: .* 0'):
      timing.best_chunks(
        LINE, _chain(down=True), 9, latency_s=0.0, message_s=0.0, most=0
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


def _events(graph, packed, size, latency_s, chunks, message_s):
  """Per worker, when it has all, by sending every chunk over every hop."""
  done = dict.fromkeys(graph.workers, 0.0)
  for tree, (first, end), count in zip(
    packed.trees, packed.byte_ranges(size), chunks, strict=True
  ):
    borders = [c * (end - first) // count for c in range(count + 1)]
    sizes = [b - a for a, b in itertools.pairwise(borders) if b > a]
    held_s = [s / float(tree.weight_Bps) + message_s for s in sizes]
    last = _last_arrivals(tree, held_s, latency_s)
    for (stage, *_, worker), time in last.items():
      if stage == 'down' or worker == tree.root:
        done[worker] = max(done[worker], time)
  return done


def _last_arrivals(tree, held_s, latency_s):
  """Per hop, when its last chunk arrives; hops are ('up' or 'down', *nodes)."""
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
      if ready and chunk < len(held_s) and other not in busy:
        busy.add(other)
        started[other] += 1
        free = time + held_s[chunk]
        on_way = sum(latency_s[ends] for ends in itertools.pairwise(other[1:]))
        heapq.heappush(events, (free, 'free', other))
        heapq.heappush(events, (free + on_way, 'arrived', other))
  return last


if __name__ == '__main__':
  absltest.main()
