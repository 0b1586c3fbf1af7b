"""Tests for topology.baselines.adapted."""

import itertools
import random
from fractions import Fraction

from absl.testing import absltest, parameterized

import topology
from route import double_tree, links, ring, selection
from topology.baselines import adapted
from topology.clusters import cluster, pruned
from topology.forests import verify


class AdaptForestTest(parameterized.TestCase):
  @parameterized.product(
    build=[ring.build_in_order, double_tree.build_forest, 'packed'],
    seed=[*range(6)],
  )
  def test_forests_of_other_workers_are_sound(self, build, seed):
    rng = random.Random(seed)
    workers = rng.randint(4, 12)
    whole = links.make_equal(workers)
    names = whole.workers
    some = rng.sample(names, rng.randint(2, workers - 1))
    before = pruned.remove(whole, workers=[w for w in names if w not in some])
    after = rng.sample(names, rng.randint(3, workers))
    a, b = rng.sample(after, 2)
    lost = [(a, b), (b, a)] if seed % 2 and len(after) > 3 else []
    now = pruned.remove(
      whole, workers=[w for w in names if w not in after], pairs=lost
    )
    forest = topology.pack(before) if build == 'packed' else build(before, 1000)

    got = adapted.adapt_forest(forest, now, selection.make_empty(now), lost)

    verify.check(now, got)
    hops = [hop for tree in got.trees for hop in (*tree.up, *tree.down)]
    self.assertEmpty({(hop[0], hop[-1]) for hop in hops} & {*lost})

  @parameterized.parameters(*range(4))
  def test_a_forest_on_a_mesh_stays_nearly_as_fast(self, seed):
    rng = random.Random(seed)
    names = [f'host{k}' for k in range(8)]
    mesh = cluster.Cluster(
      tuple(names),
      tuple(names),
      tuple(
        cluster.Link(a, b, Fraction(rng.randint(5, 50), 1000))
        for a, b in itertools.permutations(names, 2)
      ),
    )
    left = pruned.remove(mesh, workers=[names[3]])
    forest = topology.pack(mesh)

    got = adapted.adapt_forest(forest, left, selection.make_empty(left))

    verify.check(left, got)
    self.assertGreater(got.rate_Bps, 0.3 * topology.pack(left).rate_Bps)

  def test_the_lost_leaf_of_a_chain_costs_nothing_else(self):
    three = links.make_equal(3)
    a, b, c = three.workers
    chain = ring.build_in_order(three, 1000)
    left = pruned.remove(three, workers=[c])

    got = adapted.adapt_forest(chain, left, selection.make_empty(left))

    edges = {(hop[0], hop[-1]) for tree in got.trees for hop in tree.up}
    self.assertEqual(edges, {(a, b), (b, a)})

  def test_a_worker_that_can_reach_no_other_is_an_error(self):
    three = links.make_equal(3)
    a, b, c = three.workers
    avoided = {(c, a), (c, b)}
    with self.assertRaisesRegex(ValueError, f'Worker {c} can reach no other'):
      adapted.adapt_forest(
        ring.build_in_order(three, 1000),
        three,
        selection.make_empty(three),
        avoided,
      )


if __name__ == '__main__':
  absltest.main()
