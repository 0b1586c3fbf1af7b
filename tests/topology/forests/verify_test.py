"""Tests for topology.verify: sound forests pass, broken ones do not."""

import dataclasses
from fractions import Fraction

from absl.testing import absltest, parameterized

import topology
from topology.bounds import cuts, prices
from topology.clusters import randomized, shapes
from topology.forests import trees, verify

STAR = shapes.star([12, 12, 12, 12])
LINE = shapes.line(3, 10)


class CheckTest(parameterized.TestCase):
  """Each case has one defect."""

  @parameterized.parameters(*trees.COLLECTIVES)
  def test_sound_forest_passes(self, collective):
    for graph in (STAR, LINE, randomized.random_mesh(5, 1)):
      verify.check(graph, topology.pack(graph, collective=collective))

  def test_sound_forest_of_another_cluster_does_not(self):
    packed = topology.pack(shapes.full_mesh(3, 10), collective='allgather')

    with self.assertRaisesRegex(ValueError, r"needs a link \('w0', 'w2'\)"):
      verify.check(LINE, packed)

  @parameterized.named_parameters(
    ('dropped', lambda hops: hops[:-1], 'w3 receives 0 times'),
    ('doubled', lambda hops: (*hops, hops[0]), 'w1 receives 2 times'),
    (
      'root_receives',
      lambda hops: (*hops, hops[0][::-1]),
      'w0 receives 2 times',
    ),
    (
      'too_early',
      lambda hops: (('w3', 's0', 'w1'), *hops[1:]),
      'w3 sends down what it has not received',
    ),
    ('to_itself', lambda hops: (('w0', 's0', 'w0'), *hops[1:]), 'twice'),
    ('short', lambda hops: (('w0',), *hops[1:]), 'from worker to worker'),
    (
      'to_a_switch',
      lambda hops: (('w0', 's0'), *hops[1:]),
      'from worker to worker',
    ),
    (
      'through_a_worker',
      lambda hops: (('w0', 's0', 'w2', 's0', 'w1'), *hops[1:]),
      'through what is no switch',
    ),
    (
      'without_a_link',
      lambda hops: (('w0', 'w1'), *hops[1:]),
      r"a link \('w0', 'w1'\), which is none",
    ),
    (
      'unknown_node',
      lambda hops: (('w0', 's9', 'w1'), *hops[1:]),
      'through what is no switch',
    ),
  )
  def test_wrong_hops_down_are_found(self, change, message):
    packed = topology.pack(STAR, collective='allgather')
    broken = _with_tree(packed, down=change(packed.trees[0].down))

    with self.assertRaisesRegex(ValueError, f'Tree 0: .*{message}'):
      verify.check(STAR, broken)

  @parameterized.named_parameters(
    ('dropped', lambda hops: hops[:-1], 'w1 is counted 0 times'),
    ('doubled', lambda hops: (*hops, hops[-1]), 'sends up twice'),
    ('too_early', lambda hops: hops[::-1], 'sends up before it has all'),
    ('root_sends', lambda hops: (*hops, ('w0', 'w1')), 'sends up before'),
  )
  def test_wrong_hops_up_are_found(self, change, message):
    packed = topology.pack(LINE, collective='reduce_scatter')
    broken = _with_tree(packed, up=change(packed.trees[0].up))

    with self.assertRaisesRegex(ValueError, f'Tree 0: .*{message}'):
      verify.check(LINE, broken)

  def test_contribution_that_goes_two_ways_is_counted_twice(self):
    mesh = shapes.full_mesh(3, 10)
    packed = topology.pack(mesh, collective='reduce_scatter')
    hops = (('w2', 'w1'), ('w2', 'w0'), ('w1', 'w0'))

    with self.assertRaisesRegex(ValueError, 'w2 sends up twice'):
      verify.check(mesh, _with_tree(packed, up=hops))

  @parameterized.named_parameters(
    ('of_no_worker', {'root': 's0'}, "root 's0' is no worker"),
    ('float', {'weight_Bps': 4e9}, 'no positive fraction'),
    ('zero', {'weight_Bps': Fraction(0)}, 'no positive fraction'),
    ('other_weight', {'weight_Bps': Fraction(1)}, 'The rate is'),
    ('other_share', {'share': Fraction(1, 3)}, 'share 1/3 is not its own'),
    ('float_share', {'share': 0.25}, 'share 0.25 is not its own'),
    ('up', {'up': (('w1', 's0', 'w0'),)}, 'Hops up have no place'),
  )
  def test_wrong_tree_is_found(self, changes, message):
    packed = topology.pack(STAR, collective='allgather')

    with self.assertRaisesRegex(ValueError, message):
      verify.check(STAR, _with_tree(packed, **changes))

  @parameterized.named_parameters(
    ('collective', {'collective': 'gossip'}, 'Unknown collective'),
    ('no_rate', {'rate_Bps': None}, 'The rate is'),
    ('rate', {'rate_Bps': Fraction(1)}, 'The rate is'),
    ('no_trees', {'trees': ()}, 'The rate is 0'),
    ('bound', {'bound_Bps': Fraction(10**12)}, 'The bound is'),
    ('no_bound', {'bound_Bps': None}, 'no proof'),
    ('no_cut', {'certificate': None}, 'no proof'),
  )
  def test_wrong_totals_are_found(self, changes, message):
    packed = topology.pack(STAR, collective='allgather')

    with self.assertRaisesRegex(ValueError, message):
      verify.check(STAR, dataclasses.replace(packed, **changes))

  def test_overloaded_link_is_found(self):
    packed = topology.pack(STAR, collective='allgather')
    trees = tuple(
      dataclasses.replace(tree, weight_Bps=tree.weight_Bps * 2)
      for tree in packed.trees
    )
    broken = dataclasses.replace(
      packed, trees=trees, rate_Bps=packed.rate_Bps * 2
    )

    with self.assertRaisesRegex(
      ValueError, 'from w0 to s0 carries 24000000000'
    ):
      verify.check(STAR, broken)

  def test_roots_with_unequal_parts_are_found(self):
    packed = topology.pack(LINE, collective='allgather')
    trees = tuple(
      dataclasses.replace(tree, weight_Bps=weight * 10**9, share=weight / 9)
      for tree, weight in zip(
        packed.trees, map(Fraction, (2, 3, 4)), strict=True
      )
    )
    broken = dataclasses.replace(
      packed, trees=trees, rate_Bps=Fraction(9 * 10**9)
    )

    with self.assertRaisesRegex(ValueError, 'Trees of w0 carry'):
      verify.check(LINE, broken)

  def test_trees_for_a_single_worker_are_found(self):
    graph = shapes.line(1, 1)
    packed = topology.pack(graph, collective='allgather')
    tree = trees.Tree('w0', Fraction(1), Fraction(1), (), ())

    verify.check(graph, packed)
    with self.assertRaisesRegex(ValueError, 'single worker'):
      verify.check(graph, dataclasses.replace(packed, trees=(tree,)))

  def test_weaker_bound_is_accepted_if_its_cut_proves_it(self):
    packed = topology.pack(LINE, collective='allgather')
    cut = cuts.Cut(('w0',), (('w0', 'w1'),), ((Fraction(1), ('w0',)),), ())
    weaker = dataclasses.replace(
      packed, certificate=cut, bound_Bps=Fraction(30 * 10**9)
    )

    verify.check(LINE, weaker)

    self.assertEqual(weaker.gap, Fraction(1, 2))

  @parameterized.named_parameters(
    ('no_up', {'up': ()}, 'is counted 0 times'),
    ('no_down', {'down': ()}, 'receives 0 times'),
    ('other_root', {'root': 'w2'}, ''),
  )
  def test_wrong_tree_of_an_allreduce_is_found(self, changes, message):
    packed = topology.pack(STAR, collective='allreduce')

    with self.assertRaisesRegex(ValueError, f'Tree 0: .*{message}'):
      verify.check(STAR, _with_tree(packed, **changes))

  def test_float_bound_is_none(self):
    packed = topology.pack(STAR)
    broken = dataclasses.replace(packed, bound_Bps=float(packed.bound_Bps))

    with self.assertRaisesRegex(ValueError, 'no fraction'):
      verify.check(STAR, broken)

  def test_bottleneck_must_be_that_of_the_proof(self):
    packed = topology.pack(STAR, collective='allgather')
    for change in ({'nodes': ('w0',)}, {'links': (('w0', 's0'),)}):
      cut = packed.certificate._replace(**change)
      broken = dataclasses.replace(packed, certificate=cut)

      with self.assertRaisesRegex(ValueError, 'bottleneck is none'):
        verify.check(STAR, broken)

  def test_bound_of_an_allreduce_needs_its_own_proof(self):
    packed = topology.pack(STAR, collective='allreduce')
    broken = dataclasses.replace(packed, bound_Bps=packed.bound_Bps + 1)

    with self.assertRaisesRegex(ValueError, 'The bound is'):
      verify.check(STAR, broken)

  def test_weaker_bound_of_an_allreduce_is_accepted_if_prices_prove_it(self):
    graph = shapes.star([10, 10, 100, 100])
    packed = topology.pack(graph)
    equal = prices.Prices(tuple((a, b, Fraction(1)) for a, b, _ in graph.links))
    weaker = dataclasses.replace(
      packed, certificate=equal, bound_Bps=Fraction(220 * 10**9, 6)
    )

    verify.check(graph, weaker)

    self.assertEqual(weaker.gap, Fraction(8, 11))

  @parameterized.named_parameters(
    ('negative', ('w0', 's0', Fraction(-1)), 'at least 0'),
    ('of_no_link', ('w0', 'w1', Fraction(1)), 'prices of links'),
    ('of_one_link', ('w0', 's0', Fraction(1)), 'The bound is'),
  )
  def test_wrong_prices_are_found(self, link, message):
    packed = topology.pack(STAR)
    broken = dataclasses.replace(packed, certificate=prices.Prices((link,)))

    with self.assertRaisesRegex(ValueError, message):
      verify.check(STAR, broken)

  def test_proof_of_another_collective_is_none(self):
    packed = topology.pack(STAR, collective='allreduce')
    other = topology.pack(STAR, collective='allgather')

    for forest_, cut in (
      (packed, other.certificate),
      (other, packed.certificate),
    ):
      with self.assertRaisesRegex(ValueError, 'no proof'):
        verify.check(STAR, dataclasses.replace(forest_, certificate=cut))

  def test_loads_are_those_of_all_hops(self):
    packed = topology.pack(LINE, collective='allgather')

    load = packed.loads_Bps

    self.assertEqual(load['w0', 'w1'], 5 * 10**9)
    self.assertEqual(load['w1', 'w2'], 10 * 10**9)


def _with_tree(packed, **changes):
  """The forest with its first tree changed."""
  first = dataclasses.replace(packed.trees[0], **changes)
  return dataclasses.replace(packed, trees=(first, *packed.trees[1:]))


if __name__ == '__main__':
  absltest.main()
