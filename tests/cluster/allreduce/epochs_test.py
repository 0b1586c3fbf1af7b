"""Tests of members that are lost: terms, and successors that may continue."""

from unittest import mock

from absl.testing import absltest, parameterized

from cluster.process.exits import Relinquished, Unmendable
from tests.support import replicas


def _start(workers):
  world = replicas.SimulatedRun(workers)
  world.begin()
  world.reach(2)
  return world


def _lose(world, *workers):
  """Ends members at once, and waits until the others iterate."""
  left = tuple(k for k in world.rendezvous.members if k not in workers)
  for worker in workers:
    world.members[worker].end()
  epochs = world.runtime.epochs
  world.run_until(
    lambda: epochs.is_running and world.rendezvous.members == left
  )
  world.reach(world.store.version + 2)
  world.check()


class TermsTest(parameterized.TestCase):
  @parameterized.parameters(
    (4, (1,), 1),
    (4, (1, 2), 2),  # Half of them may elect another coordinator.
    (4, (1, 2, 3), 2),
    (5, (1, 2), 1),
    (5, (1, 2, 3), 2),
  )
  def test_a_coordinator_takes_a_term_unless_more_than_half_have_stayed(
    self, workers, lost, term
  ):
    world = _start(workers)
    self.assertEqual(world.terms.newest, 1)
    _lose(world, *lost)
    self.assertEqual(world.terms.newest, term)

  def test_members_that_leave_one_after_the_other_leave_a_majority(self):
    world = _start(6)
    for worker in (1, 2, 3):  # 3 of 6 are left, but 3 of the last 4.
      _lose(world, worker)
      self.assertEqual(world.terms.newest, 1)
    _lose(world, 4)
    self.assertEqual(world.terms.newest, 1)
    _lose(world, 5)  # 1 of 2.
    self.assertEqual(world.terms.newest, 2)

  def test_members_that_have_joined_count_for_the_next_majority(self):
    world = _start(4)
    _lose(world, 1, 2)
    for worker in (1, 2):
      world.join(worker)
    world.gather()
    world.reach(world.store.version + 2)
    self.assertEqual(world.terms.newest, 2)
    _lose(world, 3)
    self.assertEqual(world.terms.newest, 2)

  def test_a_coordinator_that_was_succeeded_begins_no_epoch(self):
    world = _start(4)
    self.assertTrue(world.terms.take(2, 3))  # By a process that was cut off.
    with self.assertRaisesRegex(Relinquished, 'has a coordinator of term 2'):
      _lose(world, 1)

  def test_one_of_two_coordinators_that_take_a_term_at_once_relinquishes(self):
    world = _start(4)
    with (
      mock.patch.object(world.terms, 'take', return_value=False),
      self.assertRaisesRegex(Relinquished, 'Another coordinator has term 2'),
    ):
      _lose(world, 1, 2)


class SuccessionTest(absltest.TestCase):
  def test_half_of_the_members_continue_though_one_lacks_an_iteration(self):
    world = _start(4)
    lagging, newest = world.members[1], world.members[2]
    world.run_until(
      lambda: newest.version == lagging.version + 1, but=[('1/0', 'apply')]
    )
    world.members[3].end()
    self.assertTrue(world.replace_coordinator())
    self.assertEqual(world.local, 2)
    version = world.members[2].version
    self.assertEqual(world.members[1].version, version - 1)
    world.run_until(lambda: world.runtime.epochs.is_running)
    self.assertEqual(world.rendezvous.members, (1, 2))
    world.reach(version + 3)
    world.check()


class LocalWorkerTest(absltest.TestCase):
  def _lose_at_once(self, *workers):
    """Returns how a run of three ends that loses workers within an epoch."""
    world = _start(3)
    with self.assertRaises(Unmendable) as raised:
      for worker in workers:
        member = world.members[worker]
        member.end()
        while member.to_coordinator:
          world.deliver(member)
    return type(raised.exception)

  def test_the_run_goes_to_another_coordinator_while_members_are_left(self):
    self.assertEqual(self._lose_at_once(0), Relinquished)

  def test_members_that_are_lost_cannot_take_the_run(self):
    self.assertEqual(self._lose_at_once(1, 0), Unmendable)


if __name__ == '__main__':
  absltest.main()
