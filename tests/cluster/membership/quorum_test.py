"""Tests for the workers that a run waits for."""

from absl.testing import absltest

from cluster.membership.quorum import Quorum


class QuorumTest(absltest.TestCase):
  def _create(self, min_workers):
    self.now = 100.0
    return Quorum(
      num_workers=3,
      min_workers=min_workers,
      grace_s=2.0,
      clock=lambda: self.now,
    )

  def test_by_default_all_workers_are_needed(self):
    quorum = self._create(0)
    self.assertFalse(quorum.is_reached([0, 1]))
    self.now += 1000.0
    self.assertFalse(quorum.is_reached([0, 1]))
    self.assertTrue(quorum.is_reached([0, 1, 2]))

  def test_the_minimum_waits_for_others_during_the_grace_period(self):
    quorum = self._create(2)
    self.assertFalse(quorum.is_reached([0]))
    self.now += 5.0
    self.assertFalse(quorum.is_reached([0, 2]))
    self.now += 1.5
    self.assertFalse(quorum.is_reached([0, 2]))
    self.now += 0.5
    self.assertTrue(quorum.is_reached([0, 2]))

  def test_all_workers_start_at_once(self):
    self.assertTrue(self._create(2).is_reached([0, 1, 2]))

  def test_a_loss_below_the_minimum_begins_the_wait_again(self):
    quorum = self._create(2)
    quorum.is_reached([0, 2])
    self.now += 1.5
    quorum.is_reached([0])
    self.now += 1.5
    self.assertFalse(quorum.is_reached([0, 2]))
    self.now += 2.0
    self.assertTrue(quorum.is_reached([0, 2]))


if __name__ == '__main__':
  absltest.main()
