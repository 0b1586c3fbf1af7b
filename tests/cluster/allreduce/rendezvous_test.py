"""Tests for the rendezvous of allreduce runs, and faults."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.allreduce.faults import chunk_faults
from cluster.allreduce.rendezvous import Rendezvous, Unreachable
from cluster.probing.failed_links import FailedLinks
from cluster.process.exits import Unmendable
from cluster.process.faults import Faults
from route import links, ring


class RendezvousTest(parameterized.TestCase):
  def _make_rendezvous(self, workers):
    self.now = 0.0
    rendezvous = Rendezvous(
      links.read_cluster('', workers),
      ring.build_in_order,
      size_bytes=1000,
      failed=FailedLinks(timeout_s=10.0, clock=lambda: self.now),
    )
    for index in range(workers):
      rendezvous.add(index, f'1.1.1.1:{index + 1}')
    return rendezvous

  @parameterized.parameters(
    (0, [8, 8], 'ab', 4),
    (0, [8, 4], 'ab', 2),  # The one with fewest cores decides.
    (0, [8, 8], 'aa', 2),  # Two processes share a host.
    (0, [1, 8], 'ab', 1),
    (3, [1, 8], 'ab', 3),
  )
  def test_all_members_have_the_same_lanes(self, lanes, cores, hosts, expected):
    rendezvous = Rendezvous(
      links.read_cluster('star([1e10, 1e10])', 2),
      ring.build_in_order,
      size_bytes=1000,
      lanes=lanes,
    )
    for index, count in enumerate(cores):
      address = f'1.1.1.{ord(hosts[index])}:{index + 1}'
      rendezvous.add(index, address, count)
    orders = [order for _, order in rendezvous.form(range(2), 0)]
    found = [order.members.lanes for order in orders]
    self.assertEqual(found, [expected] * 2)

  @settings(deadline=None, max_examples=30)
  @given(st.integers(2, 5), st.randoms())
  def test_members_fetch_the_newest_version(self, workers, random):
    rendezvous = self._make_rendezvous(workers)
    version = 0
    rendezvous.form(range(workers), 0)
    for round_ in range(4):
      order = [*rendezvous.members]
      random.shuffle(order)
      done = [rendezvous.add_connected(k, 'same') for k in order]
      self.assertEqual(done, [False] * (len(order) - 1) + [True])
      self.assertTrue(rendezvous.stop())
      self.assertFalse(rendezvous.stop())
      self.assertEqual(rendezvous.membership_epoch, round_ + 1)
      versions = {k: version + random.randint(0, 1) for k in order}
      lost = {k for k in order if k and random.random() < 0.3}
      newest = None
      for k in order:
        self.assertIsNone(newest)
        if k in lost:
          rendezvous.mark_lost(k, 'dead')
        else:
          rendezvous.add_stopped(k, versions[k], [float(k)])
        newest = rendezvous.find_newest()
      self.assertIsNone(rendezvous.find_newest())
      version = max(versions[k] for k in order if k not in lost)
      self.assertEqual(newest[0], version)
      self.assertEqual(versions[int(newest[1][0])], version)
      self.assertEqual(rendezvous.remove_lost(), dict.fromkeys(lost, 'dead'))
      members = [k for k in order if k not in lost]
      messages = dict(rendezvous.form(sorted(members), version))
      holders = {k for k in members if versions[k] == version}
      first = int(newest[1][0])
      for k in members:
        had = k in holders and (version or k == first)
        expected = {first} if not version else holders
        expected = set() if had else expected
        sources = messages[k].sources
        self.assertEqual(len(sources), min(len(expected), 4))
        self.assertLessEqual({source for source, _ in sources}, expected)
        self.assertTrue(all(at == f'1.1.1.1:{j + 1}' for j, at in sources))
        self.assertEqual(messages[k].membership_epoch, round_ + 1)

  def test_residuals_count_once_after_a_restored_checkpoint(self):
    rendezvous = self._make_rendezvous(3)
    rendezvous.restored = 5  # With the sum of all residuals, at worker 0.
    for version, expected in ((5, [False, True, True]), (6, [False] * 3)):
      orders = dict(rendezvous.form((0, 1, 2), version))
      found = [orders[k].drops_residual for k in range(3)]
      self.assertEqual(found, expected)

  def test_an_earlier_answer_is_not_awaited_again(self):
    rendezvous = self._make_rendezvous(2)
    rendezvous.form((0, 1), 0)
    rendezvous.stop()
    self.assertEqual(rendezvous.awaited, [0, 1])
    rendezvous.add_stopped(0, 3, [])
    self.assertEqual(rendezvous.awaited, [1])
    self.assertFalse(rendezvous.add_connected(0, ''))
    rendezvous.add_stopped(1, 3, [])
    self.assertIsNotNone(rendezvous.find_newest())

  @parameterized.parameters(0, 5)
  def test_the_coordinators_state_is_the_first_source(self, at):
    rendezvous = self._make_rendezvous(3)
    messages = dict(rendezvous.form((0, 1, 2), at))
    sources = [messages[k].sources for k in range(3)]
    self.assertEqual(sources, [[], [(0, '1.1.1.1:1')], [(0, '1.1.1.1:1')]])

  def test_a_lost_link_to_the_source_is_avoided_at_version_0(self):
    rendezvous = self._make_rendezvous(3)
    for _ in range(2):
      rendezvous.form((0, 1, 2), 0)
      rendezvous.suspect(0, 2)
    messages = dict(rendezvous.form((0, 1, 2), 0))
    self.assertEqual(rendezvous.packed.avoided_pairs, {(0, 2), (2, 0)})
    self.assertEqual(messages[2].sources, [(1, '1.1.1.1:2')])

  def test_a_corrupt_replica_is_not_a_source(self):
    rendezvous = self._make_rendezvous(3)
    for corrupt, expected in ((0, 1), (1, 0)):
      rendezvous.form((0, 1), 5)
      rendezvous.mark_corrupt(corrupt)
      rendezvous.stop()
      for k in (0, 1):
        rendezvous.add_stopped(k, 5, [])
      rendezvous.find_newest()
      messages = dict(rendezvous.form((0, 1, 2), 5))
      self.assertEqual(
        messages[2].sources, [(expected, f'1.1.1.1:{expected + 1}')]
      )
      rendezvous.mark_sound(corrupt)

  def test_members_use_different_reachable_sources(self):
    rendezvous = self._make_rendezvous(6)
    rendezvous.form(range(6), 0)
    found = [rendezvous.find_sources(k, (0, 1, 2)) for k in (3, 4, 5)]
    ranks = [[rank for rank, _ in each] for each in found]
    self.assertEqual(ranks, [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    for _ in range(2):
      rendezvous.form(range(6), 0)
      rendezvous.suspect(4, 1)
    rendezvous.form(range(6), 0)
    ranks = {rank for rank, _ in rendezvous.find_sources(4, (0, 1, 2))}
    self.assertEqual(ranks, {0, 2})
    self.assertEqual(rendezvous.find_sources(4, (1,)), [])

  def test_a_worker_that_rejoins_fetches_the_state(self):
    rendezvous = self._make_rendezvous(3)
    rendezvous.form((0, 1, 2), 5)
    rendezvous.stop()
    for k in range(3):
      rendezvous.add_stopped(k, 5, [])
    rendezvous.find_newest()
    rendezvous.add(2, '1.1.1.1:9')
    messages = dict(rendezvous.form((0, 1, 2), 5))
    sources = [messages[k].sources for k in range(3)]
    self.assertEqual(sources, [[], [], [(0, '1.1.1.1:1'), (1, '1.1.1.1:2')]])

  def test_an_unreachable_worker_is_named(self):
    rendezvous = self._make_rendezvous(3)
    rendezvous.form((0, 1, 2), 0)
    for other in (0, 1):
      rendezvous.suspect(2, other)
    rendezvous.form((0, 1, 2), 0)
    for other in (0, 1):
      rendezvous.suspect(other, 2)
    with self.assertRaises(Unreachable) as cut:
      rendezvous.form((0, 1, 2), 0)
    self.assertEqual(cut.exception.worker, 2)
    rendezvous.add(2, '1.1.1.1:9')  # It only joins again.
    self.assertFalse(rendezvous.admits(2))
    with self.assertRaises(Unreachable):
      rendezvous.form((0, 1, 2), 0)
    rendezvous.add(2, '1.1.1.9:3')  # On another host.
    self.assertTrue(rendezvous.admits(2))
    rendezvous.form((0, 1, 2), 0)

  def test_a_link_that_has_failed_is_used_again_after_two_timeouts(self):
    rendezvous = self._make_rendezvous(3)
    rendezvous.form((0, 1, 2), 0)
    first = rendezvous.packed
    for _ in range(2):
      rendezvous.suspect(1, 2)
      rendezvous.form((0, 1, 2), 0)
    self.assertEqual(rendezvous.packed.avoided_pairs, {(1, 2), (2, 1)})
    without = rendezvous.packed
    rendezvous.mark_summed()
    self.now = 19.9
    self.assertEqual(rendezvous.retry_reason, '')
    self.now = 20.0
    self.assertIn('between workers 1 and 2', rendezvous.retry_reason)
    rendezvous.form((0, 1, 2), 0)
    self.assertEqual(rendezvous.retry_reason, '')
    self.assertIs(rendezvous.packed, first)  # It is not packed again.
    rendezvous.suspect(2, 1)
    rendezvous.form((0, 1, 2), 0)
    self.assertIs(rendezvous.packed, without)
    self.now = 59.9
    self.assertEqual(rendezvous.retry_reason, '')
    self.now = 60.0
    self.assertNotEqual(rendezvous.retry_reason, '')
    rendezvous.form((0, 1, 2), 0)
    rendezvous.mark_summed()
    rendezvous.suspect(2, 1)  # The first failure after a success.
    rendezvous.form((0, 1, 2), 0)
    self.assertEmpty(rendezvous.packed.avoided_pairs)

  def test_a_worker_whose_executor_fails_is_excluded_for_some_time(self):
    rendezvous = self._make_rendezvous(3)
    rendezvous.form((0, 1, 2), 0)
    rendezvous.suspect(1, 1)
    rendezvous.form((0, 1, 2), 0)
    rendezvous.suspect(1, 1)
    with self.assertRaisesRegex(Unreachable, 'worker 1 has an executor') as cut:
      rendezvous.form((0, 1, 2), 0)
    self.assertEqual(cut.exception.worker, 1)
    self.assertFalse(rendezvous.admits(1))
    rendezvous.form((0, 2), 0)
    self.assertEmpty(rendezvous.packed.avoided_pairs)
    self.now = 20.0
    self.assertTrue(rendezvous.admits(1))
    rendezvous.form((0, 1, 2), 0)

  def test_a_link_that_failed_once_is_used_again(self):
    rendezvous = self._make_rendezvous(3)
    rendezvous.form((0, 1, 2), 0)
    for _ in range(3):
      rendezvous.suspect(1, 2)
      rendezvous.form((0, 1, 2), 0)
      self.assertEmpty(rendezvous.packed.avoided_pairs)
      rendezvous.mark_summed()

  def test_lost_links_of_lost_workers_do_not_count(self):
    rendezvous = self._make_rendezvous(4)
    rendezvous.form((0, 1, 2, 3), 0)
    for _ in range(2):
      rendezvous.suspect(2, 3)
      rendezvous.form((0, 1, 2, 3), 0)
    rendezvous.suspect(0, 1)
    rendezvous.form((0, 1), 0)
    rendezvous.suspect(1, 0)
    with self.assertRaises(Unreachable) as cut:
      rendezvous.form((0, 1), 0)
    self.assertEqual(cut.exception.worker, 1)

  def test_a_run_without_a_forest_ends(self):
    def none(*args):
      raise ValueError('none')

    rendezvous = Rendezvous(links.read_cluster('', 2), none, size_bytes=1)
    for k in (0, 1):
      rendezvous.add(k, '1.1.1.1:1')
    with self.assertRaisesRegex(Unmendable, 'There is no forest'):
      rendezvous.form((0, 1), 0)


class TravelTest(parameterized.TestCase):
  """Faults injected into chunks."""

  def _travel(self, *entries, whole=None):
    faults = Faults(
      entries,
      num_workers=2,
      num_servers=1,
      directory=pathlib.Path(tempfile.mkdtemp()),
      interface='eth0',
      timeout_s=1.0,
    )
    self.happened = []
    faults.happen = lambda fault: fault and self.happened.append(fault.phase)
    fault = faults.due(1, 0) if whole else None
    return chunk_faults(faults, 1, 0, fault)

  def test_each_fault_is_injected_in_its_phase(self):
    travel = self._travel(
      *((1, 0, 'die', p) for p in ('pull', 'first', 'last'))
    )
    injected = []
    for left in (3, 2, 1):
      travel.damage(b'1234', left)
      injected.append((*self.happened,))
      travel.note_sent()
      injected.append((*self.happened,))
      travel.note_received()
    self.assertEqual(injected[0], ())
    self.assertEqual(injected[1], ('first',))
    self.assertEqual(injected[2], ('first', 'pull'))
    self.assertEqual(injected[3], ('first', 'pull'))
    self.assertEqual(injected[4], ('first', 'pull', 'last'))
    self.assertEqual(self.happened, ['first', 'pull', 'last'])

  @parameterized.parameters(
    ('compute', [1, 0, 0]), ('first', [1, 0, 0]), ('last', [0, 0, 1])
  )
  def test_one_chunk_is_corrupted(self, phase, expected):
    travel = self._travel((1, 0, 'corrupt', phase), whole=phase == 'compute')
    changed = []
    for left in (3, 2, 1):
      body, sent = travel.damage(b'1234', left)
      self.assertEqual(body, b'1234')
      changed.append(int(bytes(sent) != body))
      travel.note_sent()
    self.assertEqual(changed, expected)

  def test_a_chunk_is_shortened(self):
    travel = self._travel((1, 0, 'wrong_size'), whole=True)
    self.assertEqual(travel.damage(b'12345678', 2), (b'1234', b'1234'))
    self.assertEqual(travel.damage(b'12345678', 1), (b'12345678', b'12345678'))

  def test_other_workers_have_no_fault(self):
    self.assertIsNone(self._travel((0, 0, 'die', 'first')))


if __name__ == '__main__':
  absltest.main()
