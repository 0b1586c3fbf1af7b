"""Tests for claims.judging."""

import itertools
import math

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

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


def _brute_force(ours, others):
  """Returns the share of signs whose rank sum is as large, by enumeration."""
  distances = [abs(math.log(a / b)) for a, b in zip(ours, others, strict=True)]
  signs = [(a > b) - (a < b) for a, b in zip(ours, others, strict=True)]
  unequal = [(d, s) for d, s in zip(distances, signs, strict=True) if s]
  ranks = stats.rankdata([d for d, _ in unequal])
  observed = abs(sum(r * s for r, (_, s) in zip(ranks, unequal, strict=True)))
  sums = [
    abs(sum(r * s for r, s in zip(ranks, each, strict=True)))
    for each in itertools.product((-1, 1), repeat=len(unequal))
  ]
  return sum(each >= observed - 1e-9 for each in sums) / len(sums)


class PValueTest(parameterized.TestCase):
  @parameterized.product(n=[1, 2, 5, 6, 9, 13], seed=[0, 1, 2])
  def test_p_value_equals_scipy_without_ties(self, n, seed):
    ours, others = np.random.default_rng(seed).uniform(1, 2, (2, n))

    test = stats.wilcoxon(np.log(ours), np.log(others), method='exact')

    self.assertAlmostEqual(judging.p_value(ours, others), test.pvalue)

  @parameterized.parameters(*range(5))
  def test_p_value_equals_brute_force_with_ties(self, seed):
    rng = np.random.default_rng(seed)
    others = np.full(8, 4.0)
    ours = others * rng.choice([0.5, 1.0, 2.0, 4.0], 8)

    ours, others = ours.tolist(), others.tolist()
    p = judging.p_value(ours, others)

    self.assertAlmostEqual(p, _brute_force(ours, others))

  def test_six_agreeing_seeds_are_the_fewest_that_are_significant(self):
    self.assertEqual(judging.p_value([1] * 5, [2, 3, 4, 5, 6]), 2 / 2**5)
    self.assertEqual(judging.p_value([1] * 6, [2, 3, 4, 5, 6, 7]), 2 / 2**6)

  def test_equal_values_do_not_differ(self):
    self.assertEqual(judging.p_value([1.0, _INF], [1.0, _INF]), 1.0)

  def test_an_infinite_time_is_the_most_distant(self):
    ours, others = [1.0, 2.0, 3.0], [_INF, 1.9, 2.8]
    # Ranks 3, 1, 2 with signs -, +, + sum to 0: all sums are as large.
    self.assertEqual(judging.p_value(ours, others), 1.0)

  def test_too_many_seeds_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'at most 16'):
      judging.p_value([1.0] * 17, [2.0] * 17)


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
    clear = self._compare([1.0] * 6, [2.0] * 6, confirmed=(0.0, 0.6))
    self.assertEqual((clear.verdict, clear.p), (judging.CONFIRMED, 1 / 32))
    few = self._compare([1.0] * 5, [2.0] * 5, confirmed=(0.0, 0.6))
    self.assertEqual((few.verdict, few.p), (judging.UNDECIDED, 1 / 16))
    noise = self._compare([1, 3, 1, 3, 1, 3], [2] * 6, confirmed=(0.0, 0.6))
    self.assertEqual(noise.verdict, judging.UNDECIDED)

  def test_a_claim_of_no_difference_needs_no_significance(self):
    same = self._compare([2.0] * 6, [2.0] * 6, confirmed=(0.9, 1.1))
    self.assertEqual((same.verdict, same.p), (judging.CONFIRMED, 1.0))
    other = self._compare([2.0] * 6, [1.0] * 6, confirmed=(0.9, 1.1))
    self.assertEqual(other.verdict, judging.REFUTED)

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
