"""Tests of failed links, by a clock of ours."""

import itertools

from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.probing.failed_links import FailedLinks

_TIMEOUT_S = 10.0


class _Run:
  """Memberships of workers whose links are cut as a test says."""

  def __init__(self, workers=3):
    self.now, self.trials = 0.0, []
    self.members = list(range(workers))
    self.failed = FailedLinks(timeout_s=_TIMEOUT_S, clock=lambda: self.now)
    self.cut = set()

  def form(self):
    """Forms memberships until one sums over all links assumed to work."""
    for _ in range(10):
      self.failed.settle(self.members)
      used = self.used()
      broken = self.cut & used
      if not broken:
        self.failed.record_allreduce(self.used)
        return
      self.trials.append(self.now)
      self.now += _TIMEOUT_S
      for a, b in sorted(broken):
        self.failed.suspect(a, b)
    raise AssertionError('No membership has summed.')

  def used(self):
    pairs = set(itertools.combinations(self.members, 2))
    return pairs - self.failed.avoided_pairs

  def advance(self, until_s, step_s=1.0):
    """Lets time pass; a link that is due ends the membership."""
    while self.now < until_s:
      self.now += step_s
      if self.failed.due(self.members):
        self.form()
      else:
        self.failed.record_allreduce(self.used)


class FailedLinksTest(parameterized.TestCase):
  def test_one_loss_is_a_mishap_and_two_without_a_sum_are_a_failed_link(self):
    run = _Run()
    for _ in range(5):
      run.failed.suspect(1, 2)
      run.failed.settle(run.members)
      self.assertEmpty(run.failed.avoided_pairs)
      run.failed.record_allreduce(run.used)
    run.failed.suspect(1, 2)
    run.failed.settle(run.members)
    run.failed.suspect(2, 1)
    run.failed.settle(run.members)
    self.assertEqual(run.failed.avoided_pairs, {(1, 2), (2, 1)})

  def test_a_short_cut_leaves_a_link_out_for_two_timeouts(self):
    run = _Run()
    run.cut = {(0, 1)}
    run.form()
    self.assertLen(run.trials, 2)
    failed_s = run.now
    run.cut = set()
    run.advance(failed_s + 2 * _TIMEOUT_S - 1)
    self.assertEqual(run.failed.avoided_pairs, {(0, 1), (1, 0)})
    run.advance(failed_s + 2 * _TIMEOUT_S)
    self.assertEmpty(run.failed.avoided_pairs)
    run.advance(failed_s + 1000 * _TIMEOUT_S)
    self.assertEmpty(run.failed.avoided_pairs)
    self.assertLen(run.trials, 2)

  def test_a_lasting_cut_is_tried_after_times_that_double_up_to_a_most(self):
    run = _Run()
    run.cut = {(0, 1)}
    run.form()
    run.advance(1000 * _TIMEOUT_S)
    starts = run.trials[1:]
    gaps = [
      round((after - before) / _TIMEOUT_S) - 1
      for before, after in itertools.pairwise(starts)
    ]
    self.assertEqual(gaps[:8], [2, 4, 8, 16, 32, 64, 128, 128])
    self.assertEqual({*gaps[7:]}, {128})
    # Each costs a timeout.
    self.assertLess(len(starts) * _TIMEOUT_S, 0.02 * run.now)

  def test_a_link_that_fails_again_soon_is_left_out_for_longer(self):
    run = _Run()
    waits = []
    for _ in range(4):
      run.cut = {(0, 1)}
      run.form()
      run.cut, begun = set(), run.now
      while run.failed.avoided_pairs:
        run.advance(run.now + 1)
      waits.append(round((run.now - begun) / _TIMEOUT_S))
    self.assertEqual(waits, [2, 4, 8, 16])
    # After long success the backoff starts from its minimum.
    run.advance(run.now + 17 * _TIMEOUT_S)
    run.cut = {(0, 1)}
    run.form()
    run.cut, begun = set(), run.now
    while run.failed.avoided_pairs:
      run.advance(run.now + 1)
    self.assertEqual(round((run.now - begun) / _TIMEOUT_S), 2)

  def test_a_link_that_no_forest_uses_stays_on_trial(self):
    run = _Run()
    run.cut = {(0, 1)}
    run.form()
    run.now += 2 * _TIMEOUT_S
    run.failed.settle(run.members)
    run.failed.record_allreduce(lambda: [(0, 2), (1, 2)])
    run.failed.suspect(0, 1)  # Once is enough.
    run.failed.settle(run.members)
    self.assertEqual(run.failed.avoided_pairs, {(0, 1), (1, 0)})

  def test_the_death_of_a_worker_marks_no_link_as_failed(self):
    run = _Run()
    for _ in range(3):
      run.failed.suspect(1, 2)
      run.failed.settle([0, 1])
    self.assertEmpty(run.failed.avoided_pairs)
    run.failed.forget_losses(2, moved=False)
    run.failed.suspect(1, 2)
    run.failed.settle(run.members)
    self.assertEmpty(run.failed.avoided_pairs)

  def test_an_excluded_worker_waits_for_the_first_of_its_links(self):
    run = _Run()
    run.cut = {(0, 2), (1, 2)}
    run.form()
    self.assertTrue(run.failed.admits(2))
    run.failed.exclude(2)
    failed_s = run.now
    run.failed.forget_losses(2, moved=False)  # Its process rejoins at once.
    for passed_s in (0, 1, 2 * _TIMEOUT_S - 1):
      run.now = failed_s + passed_s
      self.assertFalse(run.failed.admits(2))
    run.now = failed_s + 2 * _TIMEOUT_S
    self.assertTrue(run.failed.admits(2))
    run.failed.settle(run.members)
    self.assertEmpty(run.failed.avoided_pairs)

  def test_a_worker_on_another_host_has_other_links(self):
    run = _Run()
    run.cut = {(0, 2), (1, 2)}
    run.form()
    run.failed.exclude(2)
    run.failed.forget_losses(2, moved=True)
    self.assertTrue(run.failed.admits(2))
    self.assertEmpty(run.failed.avoided_pairs)

  def test_a_worker_that_fails_itself_is_named_and_tried_again(self):
    run = _Run()
    for _ in range(2):
      self.assertIsNone(run.failed.failed_worker(run.members))
      run.failed.suspect(1, 1)
      run.failed.settle(run.members)
    self.assertEqual(run.failed.failed_worker(run.members), 1)
    self.assertEmpty(run.failed.avoided_pairs)  # It is no link.
    run.failed.exclude(1)
    self.assertFalse(run.failed.admits(1))
    run.now += 2 * _TIMEOUT_S
    self.assertTrue(run.failed.admits(1))
    run.failed.settle(run.members)
    self.assertIsNone(run.failed.failed_worker(run.members))

  def test_measured_links_are_sound(self):
    run = _Run()
    run.cut = {(0, 1), (1, 2)}
    run.form()
    before = run.failed.avoided_pairs
    run.failed.apply_measurement(())
    self.assertEmpty(run.failed.avoided_pairs)
    run.failed.apply_measurement(before)
    self.assertEqual(run.failed.avoided_pairs, before)

  def test_without_a_timeout_nothing_is_tried_again(self):
    failed = FailedLinks(timeout_s=float('inf'), clock=lambda: 1e12)
    for _ in range(2):
      failed.suspect(0, 1)
      failed.settle([0, 1])
    self.assertIsNone(failed.due([0, 1]))
    self.assertLen(failed.avoided_pairs, 2)

  @settings(deadline=None, max_examples=60)
  @given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=30)
  )
  def test_whatever_is_cut_trials_are_few_and_links_heal(self, cuts):
    run = _Run(4)
    pairs = [*itertools.combinations(range(4), 2)]
    for which, seconds in cuts:
      run.cut ^= {pairs[which]}
      run.form()
      run.advance(run.now + 10 * seconds)
    changes = len(cuts)
    run.cut, healed_s = set(), run.now
    run.advance(healed_s + 128 * _TIMEOUT_S + 1)
    self.assertEmpty(run.failed.avoided_pairs)
    # Per link: two at first for each change, and one each time it doubles.
    self.assertLessEqual(len(run.trials), 2 * changes + 6 * 8 + run.now / 1e3)


if __name__ == '__main__':
  absltest.main()
