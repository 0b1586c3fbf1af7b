"""Tests for the schemes of sync/, against timelines computed by hand."""

from absl.testing import absltest, parameterized

from sync import asp, bsp, dssp, elastic, quorum, r2sp, ssp
from tests.support import schedules
from tests.support.driver import Driver


class TimelineTest(parameterized.TestCase):
  """Tests against timelines of three workers."""

  def _releases(self, scheme_, seconds, pushes):
    driver = Driver(scheme_, 3)
    driver.run(schedules.constant(*seconds), pushes=pushes)
    return driver

  def test_bsp_continues_with_the_slowest_worker(self):
    driver = self._releases(bsp.make(num_workers=3), (1, 2, 4), 6)
    self.assertEqual(
      driver.releases, [(0, (0, 1, 2)), (4, (0, 1, 2)), (8, (0, 1, 2))]
    )
    self.assertEqual(
      [s.decision.commit for s in driver.steps],
      [(), (), (), (0,), (), (), (1,)],
    )

  def test_asp_never_waits(self):
    driver = self._releases(asp.make(num_workers=3), (1, 2, 4), 7)
    self.assertEqual(
      driver.releases[1:],
      [
        (1, (0,)),
        (2, (0,)),
        (2, (1,)),
        (3, (0,)),
        (4, (0,)),
        (4, (1,)),
        (4, (2,)),
      ],
    )

  def test_ssp_waits_beyond_its_bound(self):
    driver = self._releases(ssp.make(num_workers=3, bound=1), (1, 2, 4), 8)
    self.assertEqual(
      driver.releases[1:],
      [(1, (0,)), (2, (1,)), (4, (0, 1, 2)), (8, (0, 1, 2))],
    )

  def test_dssp_grants_the_predicted_best_number_of_iterations(self):
    # At 9 both fast workers predict 9, 13, 17, 21 (their last interval was
    # spent waiting) against 12, 16, 20, 24: one extra iteration.  At 10 they
    # predict 10, 11, 12 against 12: two more, which is `high`.
    driver = self._releases(
      dssp.make(num_workers=3, low=1, high=4), (1, 1, 4), 20
    )
    self.assertEqual(
      driver.releases[1:],
      [
        (1, (0,)),
        (1, (1,)),
        (4, (0, 1, 2)),
        (8, (0, 1, 2)),
        (9, (0,)),
        (9, (1,)),
        (10, (0,)),
        (10, (1,)),
        (11, (0,)),
        (11, (1,)),
        (12, (2,)),
        (16, (2,)),
        (20, (2,)),
        (24, (0, 1, 2)),
      ],
    )

  def test_elastic_stops_at_the_barrier_that_zipline_finds(self):
    # Monitoring ends at 6; predictions are 7 8 9, 8 10 12 and 9 12 15: the
    # first window of one second is 8..9.
    driver = self._releases(
      elastic.make(num_workers=3, lookahead=3, monitor_pushes=2), (1, 2, 3), 16
    )
    self.assertEqual(
      driver.releases[-4:], [(6, (2,)), (7, (0,)), (8, (0,)), (9, (0, 1, 2))]
    )
    last = driver.steps[-1].decision
    self.assertTrue(last.barrier)
    stopped = [
      s.event['worker']
      for s in driver.steps
      if s.decision.into == last.into is not None
    ]
    self.assertEqual(stopped, [1, 0, 2])

  def test_elastic_with_a_longer_lookahead_need_not_wait(self):
    driver = self._releases(
      elastic.make(num_workers=3, lookahead=6, monitor_pushes=2), (1, 2, 3), 22
    )
    self.assertEqual(driver.releases[-1], (12, (0, 1, 2)))
    self.assertEqual(
      [s.event['time'] for s in driver.steps if s.decision.barrier], [12]
    )

  def test_quorum_waits_for_workers_in_its_grace_window(self):
    # Two of three have pushed at 2: the window ends at 2 + .5 x 2 = 3.  Worker
    # 2 is late: its push of 4 counts in the second round, whose quorum is at 4
    # with worker 0, and whose window ends at 4.5.
    driver = self._releases(
      quorum.make(num_workers=3, minimum=2, grace=0.5, late='count'),
      (1, 2, 4),
      4,
    )
    self.assertEqual(driver.releases, [(0, (0, 1, 2)), (3, (0, 1))])
    self.assertEqual(
      [(s.kind, s.event['time']) for s in driver.steps if s.decision.wake_at],
      [('push', 2), ('push', 4)],
    )
    self.assertEqual(driver.steps[-1].decision.wake_at, 4.5)

  def test_quorum_ends_a_round_when_all_have_pushed(self):
    driver = self._releases(
      quorum.make(num_workers=3, minimum=2, grace=1.0, late='count'),
      (2, 2, 3),
      6,
    )
    self.assertEqual(driver.releases[1:], [(3, (0, 1, 2)), (6, (0, 1, 2))])

  def test_quorum_drops_late_pushes_until_the_next_round_starts(self):
    # Round 0 ends at 2, round 1 at 4, round 2 at 6: at 5 worker 2 is late.
    driver = self._releases(
      quorum.make(num_workers=3, minimum=2, grace=0.0, late='drop'),
      (2, 2, 5),
      7,
    )
    self.assertEqual(
      driver.releases[1:],
      [(2, (0, 1)), (4, (0, 1)), (6, (0, 1, 2))],
    )
    self.assertLen(driver.dropped, 1)

  def test_r2sp_continues_in_turns(self):
    # T is 3 and the gap 1: pushes at 3, 3, 3 are granted at 3, 4, 5.
    driver = self._releases(
      r2sp.make(num_workers=3, relaxation=1.0, smoothing=1.0), (3, 3, 3), 9
    )
    self.assertEqual(
      driver.releases[1:],
      [
        (3, (0,)),
        (4, (1,)),
        (5, (2,)),
        (6, (0,)),
        (7, (1,)),
        (8, (2,)),
        (9, (0,)),
        (10, (1,)),
        (11, (2,)),
      ],
    )

  def test_r2sp_waits_for_the_worker_whose_turn_it_is(self):
    driver = self._releases(
      r2sp.make(num_workers=3, relaxation=0.0, smoothing=1.0), (5, 1, 2), 6
    )
    self.assertEqual(
      driver.releases, [(0, (0, 1, 2)), (5, (0, 1, 2)), (10, (0, 1, 2))]
    )


if __name__ == '__main__':
  absltest.main()
