"""Tests for topology.baselines.moved: a forest over other links."""

from absl.testing import absltest

import topology
from topology.baselines import schemes
from topology.baselines.transfer import transfer_forest
from topology.clusters import shapes


class MovedTest(absltest.TestCase):
  def test_a_ring_over_other_links_is_a_ring_of_those(self):
    star, mesh = shapes.star([1] * 4), shapes.full_mesh(4, 3)
    ring = schemes.naive_ring(star, topology.pack(star))
    expected = schemes.naive_ring(mesh, topology.pack(mesh))

    found = transfer_forest(
      ring, mesh, {worker: worker for worker in star.workers}
    )

    self.assertEqual(found.trees, expected.trees)
    self.assertEqual(found.rate_Bps, expected.rate_Bps)
    self.assertIsNone(found.bound_Bps)

  def test_workers_may_have_other_names_and_other_rates(self):
    star = shapes.star([1, 2, 3])
    packed = topology.pack(star)
    slow = shapes.star([3, 2, 1], [6, 4, 2])
    name_of = {'w0': 'w2', 'w1': 'w1', 'w2': 'w0'}

    found = transfer_forest(packed, slow, name_of)

    self.assertEqual(
      [
        name_of[tree.root]
        for tree in sorted(packed.trees, key=lambda t: t.root)
      ],
      [t.root for t in sorted(found.trees, key=lambda t: t.root, reverse=True)],
    )
    self.assertGreaterEqual(found.rate_Bps, packed.rate_Bps)
    self.assertAlmostEqual(float(sum(t.share for t in found.trees)), 1)

  def test_a_single_worker_stays_alone(self):
    alone = topology.Cluster(('a',), ('a',), ())
    self.assertEqual(
      transfer_forest(topology.pack(alone), alone, {'a': 'a'}).trees, ()
    )


if __name__ == '__main__':
  absltest.main()
