"""Tests for the allreduce runtime: eviction of workers without progress."""

import itertools
import time
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.allreduce.catching_up import CatchingUp
from tests.support import replicas


class DeadlinesTest(parameterized.TestCase):
  """Deadlines by a simulated clock."""

  def setUp(self):
    super().setUp()
    self.now = itertools.count(100.0, 1e-6)
    self._ahead_s, self._steps = 0.0, {}
    self.enterContext(
      mock.patch.object(
        time, 'monotonic', lambda: next(self.now) + self._ahead_s
      )
    )
    self.world = replicas.SimulatedRun(3, timeout_s=10.0)
    self.world.begin()
    self.world.reach(3)

  def _pass(self, seconds, hung=()):
    """Passes seconds during which all workers send heartbeats."""
    for _ in range(round(seconds)):
      self._ahead_s += 1.0
      for index, member in enumerate(self.world.reception.members):
        if member.stream:
          member.last_heartbeat = time.monotonic()
          peer = self.world.members[index]
          doing = 'compute' if index in hung else 'transfer'
          steps = 1 if peer.doing == 'fetching' else 2  # Less progress.
          steps = self._steps.get(index, steps)
          version = self.world.store.version
          at = peer.version if peer.doing == 'catching up' else version
          progress = (doing, at, steps)
          member.progress.update(progress, member.last_heartbeat)
      self.world.check_deadlines()

  def test_a_worker_that_computes_may_answer_late(self):
    world, late = self.world, {('2/0', 'compute')}
    world.run_until(lambda: world.members[2].doing == 'computing', but=late)
    world.members[1].end()
    world.run_until(lambda: world.rendezvous.awaited == [2], but=late)
    self._pass(25, hung=[2])  # 2 timeouts and 4 times its 3 s are 32.
    self.assertEqual(world.rendezvous.awaited, [2])
    world.reach(5)
    self.assertEqual(world.rendezvous.members, (0, 2))

  @parameterized.parameters('arrive', 'handle', 'connect')
  def test_a_worker_that_does_not_answer_is_evicted(self, action):
    world, late = self.world, {('2/0', action)}
    world.members[1].end()
    world.run_without(but=late)
    self.assertEqual(world.rendezvous.awaited, [2])
    self._pass(23)
    self.assertIsNone(world.reception.members[2].stream)
    world.reach(world.store.version + 2)
    self.assertEqual(world.rendezvous.members, (0,))

  def test_the_coordinators_worker_is_evicted_last(self):
    world, late = self.world, {(f'{k}/0', 'apply') for k in range(3)}
    world.run_without(but=late)
    self._steps = {0: 1, 1: 3, 2: 2}
    self._pass(23)
    self.assertIsNone(world.reception.members[2].stream)
    self.assertTrue(world.reception.members[1].stream)

  def test_a_worker_that_fetches_the_state_is_evicted_not_those_that_wait(self):
    world = self.world
    world.members[1].end()
    world.reach(5)
    late = {('1/1', 'fetch')}
    with mock.patch.object(CatchingUp, 'add'):  # As after failed attempts.
      world.join(1)
      world.run_without(but=late)
    self.assertEqual(world.members[1].doing, 'fetching')
    self._pass(23)
    self.assertTrue(world.reception.members[0].stream)
    self.assertTrue(world.reception.members[2].stream)
    self.assertIsNone(world.reception.members[1].stream)

  def test_a_worker_that_hangs_as_it_catches_up_is_evicted_and_delays_none(
    self,
  ):
    world = self.world
    world.members[1].end()
    world.reach(5)
    world.join(1)
    late = {('1/1', 'catch_up')}
    world.run_until(lambda: world.members[1].doing == 'catching up', but=late)
    for _ in range(23):
      self._pass(1)
      world.reach(world.store.version + 1, but=late)
    self.assertTrue(world.reception.members[0].stream)
    self.assertTrue(world.reception.members[2].stream)
    self.assertIsNone(world.reception.members[1].stream)
    self.assertIsNone(world.members[0].recorded)
    self.assertIsNone(world.members[2].recorded)


if __name__ == '__main__':
  absltest.main()
