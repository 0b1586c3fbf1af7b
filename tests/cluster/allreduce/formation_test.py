"""Tests of who takes part in reduced runs, and of what reaches them."""

import pathlib
import tempfile
import time

import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.allreduce.formation import Cut, Formation
from cluster.membership import handover
from cluster.network.errors import TransportError
from cluster.network.streams import Security
from cluster.probing.failed_links import FailedLinks
from cluster.process.exits import Unmendable
from cluster.process.faults import Faults
from route import links, ring
from tests.support import relays


class FormationTest(parameterized.TestCase):
  def _formation(self, workers):
    self.now = 0.0
    formation = Formation(
      links.believed('', workers),
      ring.in_order,
      size_bytes=1000,
      failed=FailedLinks(timeout_s=10.0, clock=lambda: self.now),
    )
    for index in range(workers):
      formation.came(index, f'1.1.1.1:{index + 1}', f'2.2.2.2:{index + 1}')
    return formation

  @settings(deadline=None, max_examples=30)
  @given(st.integers(2, 5), st.randoms())
  def test_the_newest_version_wins(self, workers, random):
    formation = self._formation(workers)
    version = 0
    formation.form(range(workers), 0)
    for round_ in range(4):
      order = [*formation.members]
      random.shuffle(order)
      done = [formation.formed(k, 'same') for k in order]
      self.assertEqual(done, [False] * (len(order) - 1) + [True])
      self.assertTrue(formation.stop())
      self.assertFalse(formation.stop())
      self.assertEqual(formation.generation, round_ + 1)
      versions = {k: version + random.randint(0, 1) for k in order}
      lost = {k for k in order if k and random.random() < 0.3}
      told = None
      for k in order:
        self.assertIsNone(told)
        if k in lost:
          formation.gone(k, 'dead')
        else:
          formation.stopped(k, versions[k], [float(k)])
        told = formation.ended()
      self.assertIsNone(formation.ended())
      version = max(versions[k] for k in order if k not in lost)
      self.assertEqual(told[0], version)
      self.assertEqual(versions[int(told[1][0])], version)
      self.assertEqual(formation.buried(), dict.fromkeys(lost, 'dead'))
      members = [k for k in order if k not in lost]
      said = dict(formation.form(sorted(members), version))
      source = int(told[1][0])
      for k in members:
        had = versions[k] == version and (version or k == source)
        expected = None if had else (source, f'2.2.2.2:{source + 1}')
        self.assertEqual(said[k].source, expected)
        self.assertEqual(said[k].epoch, round_ + 1)

  def test_an_answer_of_before_is_none(self):
    formation = self._formation(2)
    formation.form((0, 1), 0)
    formation.stop()
    self.assertEqual(formation.awaited, [0, 1])
    formation.stopped(0, 3, [])
    self.assertEqual(formation.awaited, [1])
    self.assertFalse(formation.formed(0, ''))
    formation.stopped(1, 3, [])
    self.assertIsNotNone(formation.ended())

  @parameterized.parameters(0, 5)
  def test_the_lead_gives_what_was_restored_or_what_it_begins_with(self, at):
    formation = self._formation(3)
    said = dict(formation.form((0, 1, 2), at))
    sources = [said[k].source for k in range(3)]
    self.assertEqual(sources, [None, (0, '2.2.2.2:1'), (0, '2.2.2.2:1')])

  def test_nobody_is_cut_off_by_what_it_does_not_need(self):
    formation = self._formation(3)
    for _ in range(2):
      formation.form((0, 1, 2), 0)
      formation.suspect(0, 2)
    said = dict(formation.form((0, 1, 2), 0))
    self.assertEqual(formation.packed.lost, {(0, 2), (2, 0)})
    self.assertEqual(said[2].source, (1, '2.2.2.2:2'))

  def test_a_corrupt_state_is_given_to_nobody(self):
    formation = self._formation(3)
    for corrupt, source in ((0, 1), (1, 0)):
      formation.form((0, 1), 5)
      formation.distrust(corrupt)
      formation.stop()
      for k in (0, 1):
        formation.stopped(k, 5, [])
      formation.ended()
      said = dict(formation.form((0, 1, 2), 5))
      self.assertEqual(said[2].source[0], source)
      formation.trust(corrupt)

  def test_sources_are_spread_over_those_that_can_be_reached(self):
    formation = self._formation(6)
    formation.form(range(6), 0)
    found = [formation.source(k, (0, 1, 2))[0] for k in (3, 4, 5)]
    self.assertEqual(found, [0, 1, 2])
    for _ in range(2):
      formation.form(range(6), 0)
      formation.suspect(4, 1)
    formation.form(range(6), 0)
    self.assertIn(formation.source(4, (0, 1, 2))[0], (0, 2))
    self.assertIsNone(formation.source(4, (1,)))

  def test_who_comes_back_has_nothing_of_before(self):
    formation = self._formation(3)
    formation.form((0, 1, 2), 5)
    formation.stop()
    for k in range(3):
      formation.stopped(k, 5, [])
    formation.ended()
    formation.came(2, '1.1.1.1:9', '2.2.2.2:9')
    said = dict(formation.form((0, 1, 2), 5))
    sources = [said[k].source for k in range(3)]
    self.assertEqual(sources, [None, None, (0, '2.2.2.2:1')])

  def test_who_cannot_be_reached_by_anybody_is_named(self):
    formation = self._formation(3)
    formation.form((0, 1, 2), 0)
    for other in (0, 1):
      formation.suspect(2, other)
    formation.form((0, 1, 2), 0)
    for other in (0, 1):
      formation.suspect(other, 2)
    with self.assertRaises(Cut) as cut:
      formation.form((0, 1, 2), 0)
    self.assertEqual(cut.exception.worker, 2)
    formation.came(2, '1.1.1.1:9', '2.2.2.2:3')  # It only joins again.
    self.assertFalse(formation.admits(2))
    with self.assertRaises(Cut):
      formation.form((0, 1, 2), 0)
    formation.came(2, '1.1.1.9:3', '2.2.2.2:3')  # On another host.
    self.assertTrue(formation.admits(2))
    formation.form((0, 1, 2), 0)

  def test_a_link_that_has_failed_is_used_again_after_two_timeouts(self):
    formation = self._formation(3)
    formation.form((0, 1, 2), 0)
    first = formation.packed
    for _ in range(2):
      formation.suspect(1, 2)
      formation.form((0, 1, 2), 0)
    self.assertEqual(formation.packed.lost, {(1, 2), (2, 1)})
    without = formation.packed
    formation.summed()
    self.now = 19.9
    self.assertEqual(formation.retries, '')
    self.now = 20.0
    self.assertIn('between workers 1 and 2', formation.retries)
    formation.form((0, 1, 2), 0)
    self.assertEqual(formation.retries, '')
    self.assertIs(formation.packed, first)  # It is not packed again.
    formation.suspect(2, 1)
    formation.form((0, 1, 2), 0)
    self.assertIs(formation.packed, without)
    self.now = 59.9
    self.assertEqual(formation.retries, '')
    self.now = 60.0
    self.assertNotEqual(formation.retries, '')
    formation.form((0, 1, 2), 0)
    formation.summed()
    formation.suspect(2, 1)  # A mishap now.
    formation.form((0, 1, 2), 0)
    self.assertEmpty(formation.packed.lost)

  def test_who_fails_itself_is_cut_and_admitted_later(self):
    formation = self._formation(3)
    formation.form((0, 1, 2), 0)
    formation.suspect(1, 1)
    formation.form((0, 1, 2), 0)
    formation.suspect(1, 1)
    with self.assertRaisesRegex(Cut, 'worker 1 has an executor') as cut:
      formation.form((0, 1, 2), 0)
    self.assertEqual(cut.exception.worker, 1)
    self.assertFalse(formation.admits(1))
    formation.form((0, 2), 0)
    self.assertEmpty(formation.packed.lost)
    self.now = 20.0
    self.assertTrue(formation.admits(1))
    formation.form((0, 1, 2), 0)

  def test_what_is_lost_once_is_tried_again(self):
    formation = self._formation(3)
    formation.form((0, 1, 2), 0)
    for _ in range(3):
      formation.suspect(1, 2)
      formation.form((0, 1, 2), 0)
      self.assertEmpty(formation.packed.lost)
      formation.summed()

  def test_links_of_those_who_are_lost_blame_nobody(self):
    formation = self._formation(4)
    formation.form((0, 1, 2, 3), 0)
    for _ in range(2):
      formation.suspect(2, 3)
      formation.form((0, 1, 2, 3), 0)
    formation.suspect(0, 1)
    formation.form((0, 1), 0)
    formation.suspect(1, 0)
    with self.assertRaises(Cut) as cut:
      formation.form((0, 1), 0)
    self.assertEqual(cut.exception.worker, 1)

  def test_without_any_forest_it_ends(self):
    def none(*args):
      raise ValueError('none')

    formation = Formation(links.believed('', 2), none, size_bytes=1)
    for k in (0, 1):
      formation.came(k, '1.1.1.1:1', '')
    with self.assertRaisesRegex(Unmendable, 'There is no forest'):
      formation.form((0, 1), 0)


class HandoverTest(parameterized.TestCase):
  _TREE = {
    'params': {
      'a': np.arange(7, dtype=np.float32).reshape(7, 1) / 3,
      'b': np.zeros((0, 3), np.float32),
      'c': np.float32(0.1),
    },
    'count': np.int32(4),
    'version': 3,
    'big': np.arange(2_000_000, dtype=np.float32),
  }

  def _state(self, version):
    if version != 3:
      raise LookupError(f'expected to have version {version}, got 3')
    return self._TREE, 'digest'

  def test_it_comes_bit_for_bit(self):
    giving = handover.Handover('127.0.0.1', Security(), self._state)
    self.addCleanup(giving.close)
    steps = []
    found, digest = handover.fetch(
      giving.address, 3, Security(), 5.0, step=lambda: steps.append(1)
    )
    self.assertEqual(digest, 'digest')
    self.assertEqual(found['version'], 3)
    for name in ('a', 'b', 'c'):
      one, other = found['params'][name], self._TREE['params'][name]
      self.assertEqual(one.shape, other.shape)
      self.assertEqual(one.dtype, other.dtype)
      np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found['big'], self._TREE['big'])
    self.assertGreater(len(steps), 1)

  def test_it_may_take_long_if_it_goes_on(self):
    giving = handover.Handover('127.0.0.1', Security(), self._state)
    self.addCleanup(giving.close)
    steps = []
    with relays.Relay(giving.address, back_Bps=4e6) as relay:
      start = time.monotonic()
      handover.fetch(
        relay.address, 3, Security(), 1.5, step=lambda: steps.append(1)
      )
      self.assertGreater(time.monotonic() - start, 1.8)
    self.assertGreater(len(steps), 20)

  def test_a_known_state_is_not_transferred(self):
    giving = handover.Handover('127.0.0.1', Security(), self._state)
    self.addCleanup(giving.close)
    for known, comes in (('digest', False), ('other', True)):
      state, digest = handover.fetch(
        giving.address, 3, Security(), 5.0, known=known
      )
      self.assertEqual(state is not None, comes)
      self.assertEqual(digest, 'digest')

  def test_another_version_is_not_given(self):
    giving = handover.Handover('127.0.0.1', Security(), self._state)
    self.addCleanup(giving.close)
    with self.assertRaisesRegex(TransportError, 'expected to have version 4'):
      handover.fetch(giving.address, 4, Security(), 5.0)

  def test_a_source_that_is_gone_is_told_in_time(self):
    giving = handover.Handover('127.0.0.1', Security(), self._state)
    giving.close()
    start = time.monotonic()
    with self.assertRaises(TransportError):
      handover.fetch(giving.address, 3, Security(), 0.3)
    self.assertLess(time.monotonic() - start, 10.0)


class TravelTest(parameterized.TestCase):
  """Faults of chunks."""

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
    return faults.travel(1, 0, fault)

  def test_each_comes_at_its_moment(self):
    travel = self._travel(
      *((1, 0, 'die', p) for p in ('pull', 'first', 'last'))
    )
    seen = []
    for left in (3, 2, 1):
      travel.goes(b'1234', left)
      seen.append((*self.happened,))
      travel.gone()
      seen.append((*self.happened,))
      travel.came()
    self.assertEqual(seen[0], ())
    self.assertEqual(seen[1], ('first',))
    self.assertEqual(seen[2], ('first', 'pull'))
    self.assertEqual(seen[3], ('first', 'pull'))
    self.assertEqual(seen[4], ('first', 'pull', 'last'))
    self.assertEqual(self.happened, ['first', 'pull', 'last'])

  @parameterized.parameters(
    ('compute', [1, 0, 0]), ('first', [1, 0, 0]), ('last', [0, 0, 1])
  )
  def test_one_chunk_is_corrupt(self, phase, expected):
    travel = self._travel((1, 0, 'corrupt', phase), whole=phase == 'compute')
    changed = []
    for left in (3, 2, 1):
      body, sent = travel.goes(b'1234', left)
      self.assertEqual(body, b'1234')
      changed.append(int(bytes(sent) != body))
      travel.gone()
    self.assertEqual(changed, expected)

  def test_a_chunk_may_be_too_short(self):
    travel = self._travel((1, 0, 'wrong_size'), whole=True)
    self.assertEqual(travel.goes(b'12345678', 2), (b'1234', b'1234'))
    self.assertEqual(travel.goes(b'12345678', 1), (b'12345678', b'12345678'))

  def test_nothing_happens_to_others(self):
    self.assertIsNone(self._travel((0, 0, 'die', 'first')))


if __name__ == '__main__':
  absltest.main()
