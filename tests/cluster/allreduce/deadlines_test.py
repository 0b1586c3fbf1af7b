"""Tests for the runtime of reduced routes: who takes too long."""

import itertools
import time
from unittest import mock

from absl.testing import absltest, parameterized

from tests.support import replicas


class DeadlinesTest(parameterized.TestCase):
  """With a clock that is moved by hand."""

  def setUp(self):
    super().setUp()
    self.now = itertools.count(100.0, 1e-6)
    self._ahead_s, self._steps = 0.0, {}
    self.enterContext(
      mock.patch.object(
        time, 'monotonic', lambda: next(self.now) + self._ahead_s
      )
    )
    self.world = replicas.World(3, timeout_s=10.0)
    self.world.begin()
    self.world.reach(3)

  def _pass(self, seconds, hung=()):
    """Lets seconds go by, in which all give signs of life."""
    for _ in range(round(seconds)):
      self._ahead_s += 1.0
      for index, member in enumerate(self.world.reception.members):
        if member.stream:
          member.seen = time.monotonic()
          life = self.world.members[index]
          doing = 'compute' if index in hung else 'transfer'
          steps = 1 if life.doing == 'fetching' else 2  # It has less.
          steps = self._steps.get(index, steps)
          pace = (doing, self.world.store.version, steps)
          member.pace.tell(pace, member.seen)
      self.world.pass_by()

  def test_who_computes_for_long_may_answer_late(self):
    world, late = self.world, {('2/0', 'compute')}
    world.until(lambda: world.members[2].doing == 'computing', but=late)
    world.members[1].end()
    world.until(lambda: world.formation.awaited == [2], but=late)
    self._pass(25, hung=[2])  # 2 timeouts and 4 times its 3 s are 32.
    self.assertEqual(world.formation.awaited, [2])
    world.reach(5)
    self.assertEqual(world.formation.members, (0, 2))

  @parameterized.parameters('arrive', 'heed', 'connect')
  def test_who_does_not_answer_is_lost(self, action):
    world, late = self.world, {('2/0', action)}
    world.members[1].end()
    world.rest(but=late)
    self.assertEqual(world.formation.awaited, [2])
    self._pass(23)
    self.assertIsNone(world.reception.members[2].stream)
    world.reach(world.store.version + 2)
    self.assertEqual(world.formation.members, (0,))

  def test_the_lead_gives_up_its_own_worker_last(self):
    world, late = self.world, {(f'{k}/0', 'apply') for k in range(3)}
    world.rest(but=late)
    self._steps = {0: 1, 1: 3, 2: 2}
    self._pass(23)
    self.assertIsNone(world.reception.members[2].stream)
    self.assertTrue(world.reception.members[1].stream)

  def test_who_gets_the_learner_holds_up_the_others_who_wait_for_it(self):
    world = self.world
    world.members[1].end()
    world.reach(5)
    world.come(1)
    late = {('1/1', 'fetch')}
    world.rest(but=late)
    self.assertEqual(world.members[1].doing, 'fetching')
    self._pass(23)
    self.assertTrue(world.reception.members[0].stream)
    self.assertTrue(world.reception.members[2].stream)
    self.assertIsNone(world.reception.members[1].stream)


if __name__ == '__main__':
  absltest.main()
