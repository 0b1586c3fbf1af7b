"""Tests for topology.forests.released, against events and closed forms."""

import dataclasses
import itertools
import math
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

import topology
from topology.baselines import schemes
from topology.clusters import randomized, shapes
from topology.clusters.cluster import Link
from topology.forests import dealing, released, timing
from topology.forests.trees import Tree

_CLUSTERS = {
  'star': shapes.star(['0.004', '0.003', '0.002', '0.001']),
  'mesh': randomized.spread(shapes.full_mesh(5, '0.01'), ratio=9, seed=1),
  'tree': shapes.tree([2, 3], ['0.001', '0.002']),
}


def _latency(cluster):
  rng = random.Random(3)
  return {ends: rng.random() * 1e-2 for ends in cluster.capacity_Bps}


def _whole_s(cluster, forest, sizes):
  """Seconds of the fullest link."""
  load = dict.fromkeys(cluster.capacity_Bps, 0)
  for tree, size in zip(forest.trees, sizes, strict=True):
    for hop in (*tree.up, *tree.down):
      for ends in itertools.pairwise(hop):
        load[ends] += size
  return max(float(n / cluster.capacity_Bps[e]) for e, n in load.items())


def _by_events(
  cluster, forest, chunks, of_tree, latency_s, ready_s, ahead_bytes
):
  """Goes through all chunks hop by hop, as the module's docstring says."""
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
  """The chunks of one tree after those of all others."""
  return [*np.flatnonzero(of_tree != tree), *np.flatnonzero(of_tree == tree)]


class AllreduceTest(parameterized.TestCase):
  @parameterized.product(
    name=[*_CLUSTERS], scheme=['packed', 'ring', 'tree'], ahead=[0, 30_000]
  )
  def test_it_is_what_events_say(self, name, scheme, ahead):
    cluster, rng = _CLUSTERS[name], np.random.default_rng(5)
    forest = topology.pack(cluster)
    if scheme == 'ring':
      forest = schemes.naive_ring(cluster, forest)
    elif scheme == 'tree':
      forest = schemes.double_binary_tree(cluster, forest)
    latency_s = _latency(cluster)
    chunks = [*rng.integers(1, 9000, 40)]
    shares = [float(tree.share) for tree in forest.trees]
    of_tree = np.array(dealing.dealt(shares, chunks))
    ready_s = rng.random((len(cluster.workers), 40)).cumsum(axis=1)

    timed = released.Allreduce(
      cluster, forest, chunks, latency_s=latency_s, ahead_bytes=ahead
    )

    expected = _by_events(
      cluster, forest, chunks, of_tree, latency_s, ready_s, ahead
    )
    self.assertAlmostEqual(timed(ready_s), expected, places=9)
    hops = 2 * (len(cluster.workers) - 1)
    self.assertEqual(sum(timed.carried.values()), hops * sum(chunks))

  @parameterized.product(name=[*_CLUSTERS], count=[1, 7], times=[1, 1000])
  def test_at_the_weight_with_all_ready_it_is_the_closed_form(
    self, name, count, times
  ):
    cluster = _CLUSTERS[name]
    forest, latency_s = topology.pack(cluster), _latency(cluster)
    # So that each tree's share is of whole bytes, and its weight its due.
    size = times * math.lcm(*(t.share.denominator for t in forest.trees))
    chunks, of_tree, slots_s = [], [], []
    for t, (start, stop) in enumerate(forest.byte_ranges(size)):
      cut = [start + (stop - start) * i // count for i in range(count + 1)]
      parts = [*np.diff(cut)]
      chunks += parts
      of_tree += [t] * count
      slots_s.append(max(parts) / float(forest.trees[t].weight_Bps))

    expected = timing.simulate(
      cluster, forest, size, latency_s=latency_s, chunks=count
    )
    ready_s = np.full((len(cluster.workers), len(chunks)), 2.0)
    chunks, of_tree = np.array(chunks), np.array(of_tree)
    found = []
    for last in range(len(forest.trees)):
      order = _last(of_tree, last)
      timed = released.Allreduce(
        cluster,
        forest,
        chunks[order],
        latency_s=latency_s,
        of_tree=of_tree[order],
        slots_s=slots_s,
      )
      found.append(timed(ready_s))
    # There all trees end with their last chunk, here the one that has it.
    self.assertAlmostEqual(max(found), 2.0 + expected.total_s, places=9)

  @parameterized.product(name=[*_CLUSTERS], scheme=['packed', 'ring'])
  def test_with_all_ready_it_is_as_long_as_is_said_without_chunks(
    self, name, scheme
  ):
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

    expected = released.all_ready_s(
      cluster, forest, most * count, latency_s=latency_s, chunk_bytes=most
    )
    ready_s = np.full((len(cluster.workers), count), 2.0)
    found = []
    for last in range(len(forest.trees)):
      timed = released.Allreduce(
        cluster,
        forest,
        [most] * count,
        latency_s=latency_s,
        of_tree=of_tree[_last(of_tree, last)],
      )
      found.append(timed(ready_s))
    self.assertAlmostEqual(max(found), 2.0 + expected, places=9)

  def test_a_single_worker_has_what_it_has(self):
    alone = topology.Cluster(('a',), ('a',), ())

    timed = released.Allreduce(
      alone, topology.pack(alone), [5, 5], latency_s={}
    )

    self.assertEqual(timed(np.array([[1.0, 3.0]])), 3.0)
    self.assertEqual(timed.carried, {})

  def test_a_ring_of_equal_links_costs_what_it_is_known_to_cost(self):
    star, size, B = shapes.star(['0.001'] * 4), 4_000_000, 1e6
    ring = schemes.naive_ring(star, topology.pack(star))
    latency_s = dict.fromkeys(star.capacity_Bps, 0.001)

    timed = released.Allreduce(star, ring, [1000] * 4000, latency_s=latency_s)

    # The links are full until the first hop of all is through: each of the
    # four up links carries 2 (n - 1) / n of all bytes.  Then five hops more of
    # a chunk, and two links' latency on each hop.
    whole_s, hops_s = 2 * 3 / 4 * size / B, 5 * 1000 / B + 6 * 0.002
    self.assertAlmostEqual(timed(np.zeros((4, 4000))), whole_s + hops_s)

  @parameterized.parameters(4, 8, 100)
  def test_what_workers_run_ahead_hides_the_hops(self, chunks):
    star, size, B = shapes.star(['0.001'] * 4), 4_000_000, 1e6
    ring = schemes.naive_ring(star, topology.pack(star))
    latency_s = dict.fromkeys(star.capacity_Bps, 0.001)

    timed = released.Allreduce(
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

  def test_of_other_chunks_it_is_as_if_made_for_them(self):
    star = shapes.star(['0.001', '0.002', '0.001', '0.004'])
    forest = topology.pack(star)
    given = {'latency_s': dict.fromkeys(star.capacity_Bps, 0.001)}
    given['ahead_bytes'] = 5000
    rng = np.random.default_rng(0)
    first = released.Allreduce(star, forest, [1000] * 9, **given)
    for count in (1, 7, 40):
      chunks = rng.integers(1, 2000, count)
      ready_s = rng.random((4, count))
      fresh = released.Allreduce(star, forest, chunks, **given)
      again = first.of(chunks)
      self.assertEqual(again(ready_s), fresh(ready_s))
      self.assertEqual(again.carried, fresh.carried)

  def test_what_beginning_takes_is_a_part_of_the_turn(self):
    star, B = shapes.star(['0.001'] * 4), 1e6
    shards = schemes.sharded_server(star, topology.pack(star))
    timed = released.Allreduce(
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
    timed = released.Allreduce(
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
    timed = released.Allreduce(
      line, forest, [1000], latency_s=dict.fromkeys(line.capacity_Bps, 0)
    )

    # 10 ms on each of the slow links, 1 ms on each of the fast ones.
    self.assertAlmostEqual(timed(np.zeros((3, 1))), 0.022, places=9)


if __name__ == '__main__':
  absltest.main()
