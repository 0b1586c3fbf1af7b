"""Tests for the schedule of mirrors, and for the parts that processes hold."""

import numpy as np
from absl.testing import absltest, parameterized

from cluster.network.streams import Port, Security, TransportError
from cluster.parameter_server.mirroring import Fetch, Mirroring, Place
from cluster.parameter_server.mirrors import COORDINATOR, MirrorStore


def _places(*hosts):
  """Returns a process on each host, by rank."""
  return {
    rank: Place(f'{rank}' * 32, f'10.0.0.{host}:{1000 + rank}')
    for rank, host in enumerate(hosts)
  }


class ScheduleTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.mirroring = Mirroring(every_s=10.0, limit_s=60.0)
    self.workers = _places(0, 1, 2)

  def _begin(self, now=0.0):
    return self.mirroring.begin(
      now,
      own=self.workers[0],
      servers=[*self.workers.values()],
      workers=self.workers,
    )

  def _answer_all(self, pending, now=0.0):
    return [
      self.mirroring.answer(now, *fetch, None)
      for fetch in [
        (each.worker, pending.number, each.part) for each in pending.fetches
      ]
    ]

  @parameterized.parameters((2, 2), (3, 3), (5, 3))
  def test_each_part_is_in_three_processes_if_there_are_so_many(
    self, count, copies
  ):
    self.workers = _places(*range(count))
    pending = self._begin()
    for server, addresses in pending.sources.items():
      self.assertEqual(addresses[0], self.workers[server].address)
      self.assertLen({*addresses}, copies)

  def test_every_worker_holds_parts(self):
    pending = self._begin()
    holders = {each.worker for each in pending.fetches}
    self.assertEqual(holders, {0, 1, 2})
    standbys = {each.worker for each in pending.fetches if each.part == 'coord'}
    self.assertEqual(standbys, {1, 2})

  def test_parts_are_held_on_other_hosts_if_there_are_any(self):
    self.workers = _places(0, 0, 1, 1)
    pending = self._begin()
    for server, (_, *holders) in pending.sources.items():
      host = self.workers[server].host
      for holder in holders:
        self.assertNotEqual(holder.rpartition(':')[0], host)

  def test_a_mirror_is_complete_when_all_have_answered(self):
    pending = self._begin()
    self.assertFalse(self.mirroring.is_due(100.0))
    answers = self._answer_all(pending)
    self.assertEqual(answers, [False] * (len(answers) - 1) + [True])
    self.assertEqual(self.mirroring.complete.number, 1)
    self.assertFalse(self.mirroring.is_due(9.0))
    self.assertTrue(self.mirroring.is_due(10.0))

  def test_an_answer_for_another_mirror_is_ignored(self):
    pending = self._begin()
    fetch = next(iter(pending.fetches))
    answer = (fetch.worker, 7, fetch.part, None)
    self.assertFalse(self.mirroring.answer(0.0, *answer))
    self.assertIn(fetch, self.mirroring.pending.fetches)

  def test_a_mirror_is_given_up_when_a_holder_is_lost(self):
    self._begin()
    self.mirroring.lose(1)
    self.assertIsNone(self.mirroring.pending)
    self.assertTrue(self.mirroring.is_due(0.0))
    self.assertEqual(self._begin().number, 2)

  def test_a_mirror_is_due_when_a_holder_of_the_last_is_lost(self):
    self._answer_all(self._begin())
    self.mirroring.lose(2)
    self.assertTrue(self.mirroring.is_due(1.0))

  @parameterized.parameters('error', 'late')
  def test_the_last_mirror_stays_if_the_next_fails(self, how):
    self._answer_all(self._begin())
    pending = self._begin(10.0)
    if how == 'late':
      self.mirroring.check(71.0)
    else:
      fetch = next(iter(pending.fetches))
      answer = (fetch.worker, pending.number, fetch.part, 'lost')
      self.mirroring.answer(11.0, *answer)
    self.assertIsNone(self.mirroring.pending)
    self.assertEqual(self.mirroring.complete.number, 1)

  @parameterized.parameters(
    (0.4, 10.0),  # Seconds that a mirror takes, and between it and the next.
    (3.0, 60.0),
  )
  def test_mirrors_take_a_twentieth_of_the_time(self, took_s, interval_s):
    self._answer_all(self._begin(100.0), 100.0 + took_s)
    self.assertFalse(self.mirroring.is_due(99.9 + interval_s))
    self.assertTrue(self.mirroring.is_due(100.1 + interval_s))

  def test_a_mirror_that_was_given_up_late_is_not_repeated_at_once(self):
    self._begin()
    self.mirroring.check(61.0)
    self.assertFalse(self.mirroring.is_due(1200.0))
    self.assertTrue(self.mirroring.is_due(1221.0))

  def test_a_change_of_processes_does_not_wait(self):
    self._answer_all(self._begin(), 9.0)
    self.mirroring.lose(1)
    self.assertTrue(self.mirroring.is_due(9.0))

  def test_a_mirror_follows_a_checkpoint_at_once_if_mirrors_are_short(self):
    self._answer_all(self._begin(100.0), 100.2)  # Allowed again at 104.
    self.mirroring.follow_checkpoint()
    self.assertFalse(self.mirroring.is_due(103.9))
    self.assertTrue(self.mirroring.is_due(104.1))

  def test_a_checkpoint_does_not_make_long_mirrors_more_frequent(self):
    self._answer_all(self._begin(100.0), 103.0)
    self.mirroring.follow_checkpoint()
    self.assertFalse(self.mirroring.is_due(159.9))
    self.assertTrue(self.mirroring.is_due(160.1))

  def test_one_process_has_no_mirrors(self):
    self.workers = _places(0)
    self.assertIsNone(self._begin())
    self.assertFalse(self.mirroring.is_due(1.0))

  def test_no_mirror_is_due_without_an_interval(self):
    self.assertFalse(Mirroring(every_s=0.0, limit_s=1.0).is_due(100.0))

  def test_a_dedicated_server_is_mirrored_by_workers(self):
    server = Place('a' * 32, '10.0.0.9:1')
    pending = self.mirroring.begin(
      0.0, own=server, servers=[server], workers=self.workers
    )
    self.assertIn(Fetch(1, 'share0'), pending.fetches)


class StoreTest(absltest.TestCase):
  def _store(self):
    store = MirrorStore(Port('127.0.0.1', 0, Security()), 5.0)
    self.addCleanup(store.close)
    return store

  def test_a_part_is_fetched_bit_for_bit(self):
    one, other = self._store(), self._store()
    state = {'params': np.arange(7, dtype=np.float32), 'version': 3, 'held': {}}
    address = one.put(4, 'share0', state)
    other.fetch(4, 'share0', [address])
    got = other.get(4, 'share0')
    np.testing.assert_array_equal(got['params'], state['params'])
    self.assertEqual((got['version'], got['held']), (3, {}))

  def test_a_part_is_fetched_from_the_process_that_is_left(self):
    one, other = self._store(), self._store()
    address = one.put(1, COORDINATOR, {'x': np.ones(3)})
    other.fetch(1, COORDINATOR, ['127.0.0.1:9', address])
    self.assertTrue(other.has(1, COORDINATOR))

  def test_a_part_of_another_mirror_is_an_error(self):
    one, other = self._store(), self._store()
    address = one.put(1, 'share0', {'x': np.ones(3)})
    with self.assertRaises(TransportError):
      other.fetch(2, 'share0', [address])
    with self.assertRaisesRegex(LookupError, 'expected mirror 2 of share0'):
      one.get(2, 'share0')

  def test_old_parts_are_dropped(self):
    store = self._store()
    for number in range(3):
      store.put(number, 'share0', {'x': np.ones(3)})
    store.drop_before(2)
    held = [store.has(number, 'share0') for number in range(3)]
    self.assertEqual(held, [False, False, True])


if __name__ == '__main__':
  absltest.main()
