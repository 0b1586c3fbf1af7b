"""Tests for topology.clusters.pruned: what is left of a cluster."""

import itertools
import random
from fractions import Fraction

import networkx as nx
from absl.testing import absltest, parameterized

import topology
from topology.clusters import measured, parts, shapes
from topology.clusters.pruned import remove


class WithoutTest(parameterized.TestCase):
  def test_a_removed_worker_takes_its_links_with_it(self):
    star = shapes.star([4, 5, 6], [3, 2, 1])

    left = remove(star, workers=['w1'])

    self.assertEqual(left.workers, ('w0', 'w2'))
    ends = [('w0', 's0', 4), ('w2', 's0', 6), ('s0', 'w0', 3), ('s0', 'w2', 1)]
    self.assertCountEqual(left.links, ends)

  def test_a_removed_pair_of_a_mesh_is_a_removed_link(self):
    mesh = shapes.full_mesh(3, 2)

    left = remove(mesh, pairs=[('w0', 'w2')])

    self.assertEqual(set(mesh.links) - set(left.links), {('w0', 'w2', 2)})

  @parameterized.parameters(
    ([('w0', 'w1')],),
    ([('w0', 'w1'), ('w1', 'w0')],),
    ([('w0', 'w1'), ('w2', 'w1'), ('w0', 'w3')],),
  )
  def test_removed_pairs_of_a_star_equal_a_measured_cluster(self, pairs):
    up, down = [4, 3, 2, 1], [1, 2, 3, 5]
    left = remove(shapes.star(up, down), pairs=pairs)

    # An independent graph of the same: pairs that carry next to nothing.
    none = Fraction(1, 10**9)
    slow = {(int(a[1]), int(b[1])): none for a, b in pairs}
    rates = measured.Rates(
      tuple(map(Fraction, up)), tuple(map(Fraction, down)), slow
    )
    rate = topology.pack(left).rate_Bps
    expected = topology.pack(measured.build_cluster(rates)).rate_Bps
    self.assertAlmostEqual(float(rate / expected), 1, places=6)

  @parameterized.parameters(*range(12))
  def test_a_sender_reaches_others_as_fast_as_over_the_widest_way(self, seed):
    rng = random.Random(seed)
    switches = [f's{i}' for i in range(6)]
    ring = [*zip(switches, switches[1:] + switches[:1], strict=True)]
    others = rng.sample([*itertools.permutations(switches, 2)], 12)
    links = [(a, b, rng.randint(1, 9)) for a, b in dict.fromkeys(ring + others)]
    workers = ['w0', 'w1', 'w2', 'w3']
    for worker in workers:
      links.append((worker, rng.choice(switches), rng.randint(5, 9)))
      links.append((rng.choice(switches), worker, rng.randint(5, 9)))
    cluster = parts.make_cluster(workers, switches, links)

    left = remove(cluster, pairs=[('w0', 'w1')])

    wide = {dst: GBps for src, dst, GBps in left.links if src == 'w0.out'}
    for receiver in ('w2', 'w3'):
      nodes = {'w0', receiver, *switches}
      within = [link for link in links if {*link[:2]} <= nodes]
      loops = [(node, node) for node in nodes]  # So that all are nodes.
      widest = max(
        least
        for least in range(1, 10)
        if nx.has_path(
          nx.DiGraph(loops + [(a, b) for a, b, c in within if c >= least]),
          'w0',
          receiver,
        )
      )
      self.assertEqual(wide.pop(f'{receiver}.in'), widest)
    self.assertEmpty(wide)

  def test_no_hop_of_a_forest_uses_a_removed_pair(self):
    lost = [('w0', 'w3'), ('w3', 'w0'), ('w1', 'w2')]
    tree = shapes.tree([2, 2], [1, 1])

    packed = topology.pack(remove(tree, pairs=lost))

    hops = itertools.chain.from_iterable((*t.up, *t.down) for t in packed.trees)
    self.assertEmpty({(hop[0], hop[-1]) for hop in hops} & {*lost})

  @parameterized.parameters('a.out', 'b.in', "a.out'")
  def test_switches_may_have_any_names(self, switch):
    links = [(w, switch, 1) for w in 'abc'] + [(switch, w, 1) for w in 'abc']
    cluster = parts.make_cluster('abc', [switch], links)
    left = remove(cluster, pairs=[('a', 'b')])

    # Only c is reached by a, whatever passes through no other worker.
    reached, ends = set(), {'a'}
    while ends:
      ends = {dst for src, dst, _ in left.links if src in ends} - reached
      reached |= ends
      ends -= {*'abc'}
    self.assertEqual(reached & {*'abc'}, {'c'})

  @parameterized.parameters(
    ({'workers': ['w9']}, "workers: expected some of .* got 'w9'"),
    ({'pairs': [('w0', 's0')]}, "got 's0'"),
    ({'workers': ['w0', 'w1', 'w2']}, 'expected some to be left'),
    ({'workers': ['w1']}, 'unreachable'),
  )
  def test_impossible_removals_are_rejected(self, lost, message):
    with self.assertRaisesRegex(ValueError, message):
      remove(shapes.line(3, 1), **lost)


if __name__ == '__main__':
  absltest.main()
