"""Tests for claims.judging."""

import math

import numpy as np
from absl.testing import absltest, parameterized

from claims import judging
from claims.published import Claim, Measure

_INF = math.inf


def _records(values, **fields):
  return [
    {'seed': seed, 'status': 'finished', 'x': value, **fields}
    for seed, value in enumerate(values)
  ]


def _claim(measure, **rule):
  return Claim('it is so', 'a paper', 'found', measure=measure, **rule)


class JudgeTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('confirmed', [1.9, 2.0, 2.9], judging.CONFIRMED),
    ('at_the_edge', [2.5, 2.5, 9.0], judging.CONFIRMED),
    ('in_shape', [2.6, 3.0, 0.0], judging.SHAPE),
    ('refuted', [0.9, 0.5, 2.0], judging.REFUTED),
    ('infinite', [_INF, _INF, 2.0], judging.REFUTED),
  )
  def test_the_median_is_judged(self, values, verdict):
    claim = _claim(Measure('x', {}), confirmed=(1.5, 2.5), shape=(1.0, 4.0))

    judgement = judging.judge(claim, _records(values))

    self.assertEqual(judgement.verdict, verdict)
    self.assertEqual(judgement.median, np.median(values))
    self.assertEqual(
      (judgement.least, judgement.most), (min(values), max(values))
    )
    self.assertIsNone(judgement.p)

  def _compare(self, ours, others, **rule):
    records = _records(ours, scheme='a') + _records(others, scheme='b')
    measure = Measure('x', {'scheme': 'a'}, {'scheme': 'b'})
    return judging.judge(_claim(measure, **rule), records)

  def test_a_difference_has_to_show_over_the_seeds(self):
    clear = self._compare([1.0, 1.1, 0.9], [2.0] * 3, confirmed=(0.0, 0.6))
    self.assertEqual(clear.verdict, judging.CONFIRMED)
    self.assertLess(clear.p, 0.02)
    noise = self._compare([1, 3, 1, 3, 1, 3], [3] * 6, confirmed=(0.0, 0.8))
    self.assertEqual(noise.verdict, judging.UNDECIDED)
    single = self._compare([1.0], [2.0], confirmed=(0.0, 0.6))
    self.assertEqual((single.verdict, single.p), (judging.UNDECIDED, 1.0))

  def test_a_negligible_difference_is_no_effect(self):
    ours = [1.01, 1.0, 1.02, 1.01, 1.0, 1.02]
    for shape in ((0.0, 1.0), (1.0, 2.0)):
      judgement = self._compare(ours, [1.0] * 6, shape=shape)
      self.assertEqual(judgement.verdict, judging.NO_EFFECT)
    wide = self._compare([0.8, 1.3] * 3, [1.0] * 6, shape=(0.0, 1.0))
    self.assertEqual(wide.verdict, judging.UNDECIDED)

  def test_a_negligible_difference_within_the_range_confirms(self):
    ours = [1.03, 1.031, 1.029] * 2
    judgement = self._compare(ours, [1.0] * 6, confirmed=(1.02, 1.2))
    self.assertEqual(judgement.verdict, judging.CONFIRMED)

  def test_a_claim_of_likeness_needs_a_test_of_its_range(self):
    same = self._compare([2.0] * 6, [2.0] * 6, confirmed=(0.9, 1.1))
    self.assertEqual((same.verdict, same.p), (judging.CONFIRMED, 0.0))
    noise = self._compare([1.5, 3.0] * 3, [2.0] * 6, confirmed=(0.9, 1.2))
    self.assertEqual(noise.verdict, judging.UNDECIDED)
    wider = self._compare(
      [2.4, 2.5] * 3, [2.0] * 6, confirmed=(0.9, 1.1), shape=(0.5, 1.5)
    )
    self.assertEqual(wider.verdict, judging.SHAPE)
    other = self._compare([2.0] * 6, [1.0] * 6, confirmed=(0.9, 1.1))
    self.assertEqual(other.verdict, judging.REFUTED)

  def test_tests_of_a_family_are_corrected_together(self):
    ours = [1.0, 1.4, 0.8, 1.3, 0.9, 1.1]
    records = _records(ours, scheme='a') + _records([1.5] * 6, scheme='b')
    claim = _claim(
      Measure('x', {'scheme': 'a'}, {'scheme': 'b'}), confirmed=(0.0, 0.9)
    )
    alone = judging.judge(claim, records)
    self.assertEqual((alone.verdict, alone.holm), (judging.CONFIRMED, alone.p))
    count = int(0.05 / alone.p) + 1
    family = judging.judge_family([(claim, records)] * count)
    self.assertEqual({each.verdict for each in family}, {judging.UNDECIDED})
    self.assertAlmostEqual(family[0].holm, count * alone.p)

  def test_an_infinite_time_is_compared_by_ranks(self):
    judgement = self._compare(
      [1.0] * 6, [_INF, 2.0, 3.0, 4.0, 5.0, 6.0], confirmed=(0.0, 0.6)
    )
    self.assertEqual((judgement.verdict, judgement.p), ('confirmed', 1 / 32))

  def test_a_claim_that_cannot_fail_keeps_its_numbers(self):
    claim = _claim(
      Measure('x', {}), confirmed=(0.0, 9.0), unfalsifiable='x is a square'
    )
    judgement = judging.judge(claim, _records([1.0, 2.0, 4.0]))
    self.assertEqual(judgement.verdict, judging.UNFALSIFIABLE)
    self.assertEqual((judgement.median, judgement.reason), (2, 'x is a square'))

  @parameterized.parameters((2.0, judging.UNFALSIFIABLE), (1.9, 'confirmed'))
  def test_a_setting_that_never_acts_is_not_put_to_a_test(self, last, verdict):
    records = _records([1.0, 1.0, 2.0], s='bounded')
    records += _records([1.0, 1.0, last], s='free')
    claim = _claim(
      Measure('x', {'s': 'bounded'}),
      confirmed=(0.0, 9.0),
      same_as={'s': 'free'},
    )
    self.assertEqual(judging.judge(claim, records).verdict, verdict)

  def test_ratios_are_those_of_pairs_of_one_seed(self):
    judgement = self._compare(
      [2.0, 9.0, 4.0], [1.0, 3.0, 4.0], shape=(0.5, 9.0)
    )
    self.assertEqual(
      (judgement.least, judgement.median, judgement.most), (1, 2, 3)
    )

  def test_differences_are_judged_by_a_rule_around_zero(self):
    records = _records([0.9] * 6, s='a') + _records([0.8] * 6, s='b')
    measure = Measure('x', {'s': 'a'}, minus={'s': 'b'})
    claim = _claim(measure, confirmed=(0.05, 0.2))
    judgement = judging.judge(claim, records)
    self.assertEqual(judgement.verdict, judging.CONFIRMED)
    self.assertAlmostEqual(judgement.median, 0.1)

  def test_spreads_are_largest_over_smallest_numbers(self):
    records = [
      {'seed': 0, 'status': 'finished', 's': s, 'r': r, 'x': x}
      for s, r, x in (
        ('a', 1, 3.0),
        ('a', 2, 2.0),
        ('b', 1, 8.0),
        ('b', 2, 2.0),
      )
    ]
    measure = Measure('x', {'s': 'a'}, {'s': 'b'}, over='r', over_by='r')
    self.assertEqual(judging.read_pairs(measure, records), [(1.5, 4.0)])

  def test_numbers_are_means_over_folds(self):
    records = [
      {'seed': 0, 'status': 'finished', 's': s, 'fold': fold, 'x': x}
      for s, fold, x in (
        ('a', 0, 3.0),
        ('a', 1, 5.0),
        ('b', 0, 1.0),
        ('b', 1, 2.0),
      )
    ]
    measure = Measure('x', {'s': 'a'}, {'s': 'b'}, mean_over='fold')
    self.assertEqual(judging.read_pairs(measure, records), [(4.0, 1.5)])
    with self.assertRaisesRegex(ValueError, 'and any fold, got 3'):
      judging.read_pairs(measure, [*records, records[0]])

  def test_seeds_without_a_number_count(self):
    records = _records([1.0, 1.0, 1.0, 1.0])
    for record in records[2:]:
      record['status'] = 'diverged'
    claim = _claim(Measure('x', {}), confirmed=(0.5, 1.5))
    judgement = judging.judge(claim, records)
    self.assertEqual(
      (judgement.verdict, judgement.missing), (judging.UNDECIDED, 2)
    )
    records[2]['status'] = 'finished'
    judgement = judging.judge(claim, records)
    self.assertEqual(
      (judgement.verdict, judgement.missing), (judging.CONFIRMED, 1)
    )

  def test_an_unreached_level_has_an_infinite_time_unless_the_run_failed(self):
    record = {'seed': 0, 'status': 'finished', 'time_to.0.9': None}
    for status, expected in (
      ('finished', _INF),
      ('diverged', _INF),
      ('failed', None),
    ):
      judgement = judging.read_number(
        'time_to.0.9', record | {'status': status}
      )
      self.assertEqual(judgement, expected)

  def test_an_unavailable_claim_has_its_reason(self):
    claim = Claim('it is so', 'a paper', 'found', unavailable='needs GPUs')
    judgement = judging.judge(claim, [])
    self.assertEqual(judgement.verdict, judging.UNAVAILABLE)
    self.assertEqual(judgement.reason, 'needs GPUs')

  @parameterized.named_parameters(
    ('none', Measure('x', {'s': 'c'}), 'one record of seed 0 .* got 0'),
    ('two', Measure('x', {}), 'one record of seed 0 .* got 2'),
    ('field', Measure('y', {'s': 'a'}), 'y in each record'),
    ('spread', Measure('x', {'s': 'a'}, over='s'), 'and any s'),
  )
  def test_records_that_do_not_fit_are_refused(self, measure, message):
    records = _records([1.0], s='a') + _records([2.0], s='b')
    with self.assertRaisesRegex(ValueError, message):
      judging.judge(_claim(measure, confirmed=(0.0, 1.0)), records)


if __name__ == '__main__':
  absltest.main()
