"""Tests for cluster/islands/meeting.py, with threads in place of processes."""

import contextlib
import json
import pathlib
import tempfile
import threading
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.islands import meeting
from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.network.handshake import Security
from cluster.process import roles
from cluster.process.exits import Unmendable

_SECURITY = Security(token='a secret of enough length')
_LIMIT_S = 20.0
_READY = messages.FollowerReady('config', messages.Versions('code'), 2)


class MeetingTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self._folder = pathlib.Path(tempfile.mkdtemp())
    self._joined = []
    self._lost = threading.Event()

    def join(address, *, count, index, **_):
      self._joined.append((address, count, index))

    patches = (
      mock.patch.object(meeting.xla_group, 'join', join),
      mock.patch.object(meeting, 'end_lost', self._record_lost),
      mock.patch.object(meeting.exits, 'observe_end'),
    )
    for patch in patches:
      patch.start()
      self.addCleanup(patch.stop)

  def _record_lost(self, message, error=None):
    del error
    self._reason = message
    self._lost.set()

  def _lead(self, *, index=0, hosts=2, start_s=_LIMIT_S):
    leader = meeting.Leader(index, hosts, timeout_s=_LIMIT_S)
    ports = tuple(roles.free_ports(2))
    # Followers that disconnect after the test end no process.
    self.addCleanup(leader._tell_end, 0, '', False)
    leader.meet(
      *(self._folder, '127.0.0.1', ports, _SECURITY),
      devices=(),
      start_s=start_s,
      tls=None,
    )
    return leader

  @contextlib.contextmanager
  def _follow(self, count, *, index=0):
    """Yields followers, which have met their leader at the end."""
    followers = [
      meeting.Follower(index, member, count + 1, timeout_s=_LIMIT_S)
      for member in range(1, count + 1)
    ]
    threads = [
      threading.Thread(
        target=each.meet,
        args=(self._folder, _SECURITY),
        kwargs={'devices': (), 'start_s': _LIMIT_S, 'tls': None},
      )
      for each in followers
    ]
    for thread in threads:
      thread.start()
    try:
      yield followers
    finally:
      for thread in threads:
        thread.join()

  def test_all_processes_meet_and_hear_what_the_leader_announces(self):
    folder = self._folder / meeting.FOLDER
    folder.mkdir()
    (port,) = roles.free_ports(1)
    stale = json.dumps({'address': f'127.0.0.1:{port}'})
    (folder / 'worker-0.json').write_text(stale)  # Of an earlier leader.
    with self._follow(2) as followers:
      leader = self._lead(hosts=3)
    (address,) = {address for address, *_ in self._joined}
    expected = {(address, 3, member) for member in range(3)}
    self.assertEqual({*self._joined}, expected)
    for each in followers:
      each.report(_READY)
    leader.check(_READY, start_s=_LIMIT_S)
    leader.prepare(((0, 3),))
    leader.warm_up(3, changing=True)
    leader.push(((0, 3),), iteration=4, scale=2.0, rate=None, has_state=True)
    for each in followers:
      heard = [each.receive() for _ in range(3)]
      self.assertEqual(
        heard,
        [
          messages.PrepareExamples(((0, 3),)),
          messages.WarmUpIsland(3, True),
          messages.ComputePush(((0, 3),), 4, 2.0, None, True),
        ],
      )
    leader._tell_end(143, 'SIGTERM', False)
    for each in followers:
      self.assertEqual(
        each.receive(), messages.LeaderEnded(143, 'SIGTERM', False)
      )
      each._stream.close()
    self.assertFalse(self._lost.is_set())

  def test_a_follower_that_disconnects_ends_its_leader(self):
    with self._follow(1) as (follower,):
      self._lead()
    follower._stream.close()
    self.assertTrue(self._lost.wait(_LIMIT_S))
    self.assertRegex(self._reason, 'Worker 0 has lost its island: worker:0.1')

  def test_a_leader_that_disconnects_is_noticed(self):
    with self._follow(1) as (follower,):
      leader = self._lead()
    for stream in [*leader._streams.values()]:
      stream.cancel()
    with self.assertRaises(TransportError):
      follower.receive()

  def test_a_leader_gives_up_without_its_followers(self):
    with self.assertRaisesRegex(Unmendable, r"lacks .*\['worker:2.1'\]"):
      self._lead(index=2, start_s=0.1)

  @parameterized.parameters(
    ({'fingerprint': 'other'}, "fingerprint of worker:0.1: expected 'config'"),
    ({'devices': 1}, 'devices of worker:0.1: expected 2, as of its leader'),
  )
  def test_a_follower_that_differs_is_refused(self, changed, message):
    with self._follow(1) as (follower,):
      leader = self._lead()
    fields = {'fingerprint': 'config', 'devices': 2} | changed
    follower.report(messages.FollowerReady(versions=_READY.versions, **fields))
    with self.assertRaisesRegex(ValueError, message):
      leader.check(_READY, start_s=_LIMIT_S)


if __name__ == '__main__':
  absltest.main()
