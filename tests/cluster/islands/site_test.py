"""Tests for cluster/islands/site.py: what a follower does, and how it ends."""

from unittest import mock

import jax
from absl.testing import absltest, parameterized

from cluster.islands import site
from cluster.network import messages
from cluster.network.errors import Closed
from cluster.process.exits import Exit
from learning.iteration import Iteration

_PUSH = messages.ComputePush(((0, 3),), 4, 1.0, 0.1, True)


class _Follower:
  """A leader that announces messages, and raises exceptions among them."""

  index = 2

  def __init__(self, *heard):
    self._heard = [*heard]

  def receive(self):
    message = self._heard.pop(0)
    if isinstance(message, Exception):
      raise message
    return message

  def find_end(self):
    return self._heard.pop(0) if self._heard else None


class _Lost(Exception):
  pass


def _ended(code, *, at_once=False):
  return messages.LeaderEnded(code, 'a reason', at_once)


class FollowerSiteTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self._pushes = mock.Mock()
    self._end = mock.Mock()
    for name, value in (
      ('end', self._end),
      ('end_lost', mock.Mock(side_effect=_Lost)),
      ('processes', mock.Mock()),
    ):
      patch = mock.patch.object(site, name, value)
      patch.start()
      self.addCleanup(patch.stop)

  def _follow(self, *heard):
    site.FollowerSite(_Follower(*heard), self._pushes)()

  def test_it_computes_what_is_announced_until_the_leader_ends(self):
    prepare = messages.PrepareExamples(((0, 3),))
    warm_up = messages.WarmUpIsland(3, True)
    self._follow(warm_up, prepare, _PUSH, _ended(0))
    call = mock.call
    self.assertEqual(
      self._pushes.mock_calls,
      [
        call.warm_up(None, 3, changing=True),
        call.prepare(((0, 3),)),
        call.follow_push(
          Iteration(((0, 3),), worker=2, number=4, rate=0.1), has_state=True
        ),
      ],
    )
    self._end.assert_not_called()

  def test_it_ends_with_the_code_of_the_leader(self):
    with self.assertRaises(Exit) as raised:
      self._follow(_ended(143))
    self.assertEqual(raised.exception.code, 143)
    self._end.side_effect = _Lost
    with self.assertRaises(_Lost):
      self._follow(_ended(75, at_once=True))
    self.assertEqual(self._end.call_args.args[0], 75)

  def test_it_is_lost_with_its_leader(self):
    with self.assertRaises(_Lost):
      self._follow(Closed('the connection ended'))

  @parameterized.parameters(True, False)
  def test_an_error_of_xla_ends_it_as_the_leader_or_as_lost(self, is_told):
    error = jax.errors.JaxRuntimeError('gloo')
    self._pushes.follow_push.side_effect = error
    heard = [_PUSH, _ended(143)] if is_told else [_PUSH]
    with self.assertRaises(Exit if is_told else _Lost):
      self._follow(*heard)


if __name__ == '__main__':
  absltest.main()
