"""Tests for topology.forests.released, against events and closed forms."""

import itertools
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

import topology
from topology.baselines import schemes
from topology.clusters import randomized, shapes
from topology.forests import released, timing

_CLUSTERS = {
  'star': shapes.star(['0.004', '0.003', '0.002', '0.001']),
  'mesh': randomized.spread(shapes.full_mesh(5, '0.01'), ratio=9, seed=1),
  'tree': shapes.tree([2, 3], ['0.001', '0.002']),
}


def _latency(cluster):
  rng = random.Random(3)
  return {ends: rng.random() * 1e-2 for ends in cluster.capacity_Bps}


def _by_events(cluster, forest, chunks, of_tree, latency_s, slots_s, ready_s):
  """Goes through all chunks hop by hop, as the module's docstring says."""
  start, latest = ready_s.min(), ready_s.max()
  for t, tree in enumerate(forest.trees):
    weight, before = float(tree.weight_Bps), {}
    own = [c for c in range(len(chunks)) if of_tree[c] == t]
    largest = max((chunks[c] for c in own), default=1)
    sent = 0
    for c in own:
      sent += chunks[c]
      have = {w: ready_s[i, c] for w, i in cluster.rank.items()}
      for number, hop in enumerate((*tree.up, *tree.down)):
        if number == len(tree.up):
          root = have[tree.root]
          have = {tree.root: root}
        through = max(
          have[hop[0]] + slots_s[t] * chunks[c] / largest,
          before.get(number, start) + chunks[c] / weight,
          start + sent / weight,
        )
        before[number] = through
        come = through + sum(
          latency_s[ends] for ends in itertools.pairwise(hop)
        )
        have[hop[-1]] = max(have.get(hop[-1], -np.inf), come)
        latest = max(latest, come)
  return latest


class AllreduceTest(parameterized.TestCase):
  @parameterized.product(name=[*_CLUSTERS], scheme=['packed', 'ring', 'tree'])
  def test_it_is_what_events_say(self, name, scheme):
    cluster, rng = _CLUSTERS[name], np.random.default_rng(5)
    forest = topology.pack(cluster)
    if scheme == 'ring':
      forest = schemes.naive_ring(cluster, forest)
    elif scheme == 'tree':
      forest = schemes.double_binary_tree(cluster, forest)
    latency_s = _latency(cluster)
    chunks = [*rng.integers(1, 9000, 40)]
    of_tree = released.dealt([t.weight_Bps for t in forest.trees], 40)
    slots_s = [
      released.slot_s(
        cluster, tree, max(np.array(chunks)[of_tree == t], default=0)
      )
      for t, tree in enumerate(forest.trees)
    ]
    ready_s = rng.random((len(cluster.workers), 40)).cumsum(axis=1)

    timed = released.Allreduce(cluster, forest, chunks, latency_s=latency_s)

    expected = _by_events(
      cluster, forest, chunks, of_tree, latency_s, slots_s, ready_s
    )
    self.assertAlmostEqual(timed(ready_s), expected, places=9)
    hops = 2 * (len(cluster.workers) - 1)
    self.assertEqual(timed.carried_bytes, hops * sum(chunks))

  @parameterized.product(name=[*_CLUSTERS], count=[1, 7], size=[10**5, 10**6])
  def test_at_the_weight_with_all_ready_it_is_the_closed_form(
    self, name, count, size
  ):
    cluster = _CLUSTERS[name]
    forest, latency_s = topology.pack(cluster), _latency(cluster)
    chunks, of_tree, slots_s = [], [], []
    for t, (start, stop) in enumerate(forest.byte_ranges(size)):
      cut = [start + (stop - start) * i // count for i in range(count + 1)]
      parts = [*np.diff(cut)]
      chunks += parts
      of_tree += [t] * count
      slots_s.append(max(parts) / float(forest.trees[t].weight_Bps))

    timed = released.Allreduce(
      cluster,
      forest,
      chunks,
      latency_s=latency_s,
      of_tree=np.array(of_tree),
      slots_s=slots_s,
    )

    expected = timing.simulate(
      cluster, forest, size, latency_s=latency_s, chunks=count
    )
    ready_s = np.full((len(cluster.workers), len(chunks)), 2.0)
    self.assertAlmostEqual(timed(ready_s), 2.0 + expected.total_s, places=9)

  def test_a_single_worker_has_what_it_has(self):
    alone = topology.Cluster(('a',), ('a',), ())

    timed = released.Allreduce(
      alone, topology.pack(alone), [5, 5], latency_s={}
    )

    self.assertEqual(timed(np.array([[1.0, 3.0]])), 3.0)
    self.assertEqual(timed.carried_bytes, 0)

  def test_a_ring_of_equal_links_costs_what_it_is_known_to_cost(self):
    star, size, B = shapes.star(['0.001'] * 4), 4_000_000, 1e6
    ring = schemes.naive_ring(star, topology.pack(star))
    latency_s = dict.fromkeys(star.capacity_Bps, 0.001)

    timed = released.Allreduce(star, ring, [1000] * 4000, latency_s=latency_s)

    # The first hop at the weight, five more of a chunk, and two links' latency
    # on each hop.
    expected = 2 * 3 / 4 * size / B + 5 * 1000 / B + 6 * 0.002
    self.assertAlmostEqual(timed(np.zeros((4, 4000))), expected, places=6)


class DealtTest(parameterized.TestCase):
  def test_everyone_has_its_share_at_any_time(self):
    shares = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]

    dealt = released.dealt([*map(float, shares)], 600)

    for tree, share in enumerate(shares):
      counts = np.cumsum(dealt == tree)
      wanted = float(share) * np.arange(1, 601)
      self.assertLess(np.abs(counts - wanted).max(), 1)


if __name__ == '__main__':
  absltest.main()
