"""Tests for claims.statistics: SciPy, enumeration and definitions."""

import itertools
import math

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

from claims import statistics

_INF = math.inf


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


class SignedRankTest(parameterized.TestCase):
  @parameterized.product(n=[1, 2, 5, 6, 9, 13], seed=[0, 1, 2])
  def test_p_value_equals_scipy_without_ties(self, n, seed):
    ours, others = np.random.default_rng(seed).uniform(1, 2, (2, n))

    test = stats.wilcoxon(np.log(ours), np.log(others), method='exact')

    self.assertAlmostEqual(statistics.signed_rank_p(ours, others), test.pvalue)

  @parameterized.parameters(*range(5))
  def test_p_value_equals_brute_force_with_ties(self, seed):
    rng = np.random.default_rng(seed)
    others = np.full(8, 4.0)
    ours = others * rng.choice([0.5, 1.0, 2.0, 4.0], 8)

    ours, others = ours.tolist(), others.tolist()
    p = statistics.signed_rank_p(ours, others)

    self.assertAlmostEqual(p, _brute_force(ours, others))

  def test_six_agreeing_seeds_are_the_fewest_that_are_significant(self):
    self.assertEqual(
      statistics.signed_rank_p([1] * 5, [2, 3, 4, 5, 6]), 2 / 2**5
    )
    self.assertEqual(
      statistics.signed_rank_p([1] * 6, [2, 3, 4, 5, 6, 7]), 2 / 2**6
    )

  def test_equal_values_do_not_differ(self):
    self.assertEqual(statistics.signed_rank_p([1.0, _INF], [1.0, _INF]), 1.0)

  def test_an_infinite_time_is_the_most_distant(self):
    ours, others = [1.0, 2.0, 3.0], [_INF, 1.9, 2.8]
    # Ranks 3, 1, 2 with signs -, +, + sum to 0: all sums are as large.
    self.assertEqual(statistics.signed_rank_p(ours, others), 1.0)

  def test_too_many_seeds_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'at most 16'):
      statistics.signed_rank_p([1.0] * 17, [2.0] * 17)


class PairedTest(parameterized.TestCase):
  @parameterized.product(n=[2, 6, 16], log=[True, False])
  def test_a_difference_is_tested_as_by_scipy(self, n, log):
    ours, others = np.random.default_rng(n).uniform(1, 2, (2, n))
    pair = (np.log(ours), np.log(others)) if log else (ours, others)

    p = statistics.differ_p(ours, others, log=log)

    self.assertAlmostEqual(p, stats.ttest_rel(*pair).pvalue)

  @parameterized.product(n=[2, 6, 16], log=[True, False])
  def test_limits_are_two_one_sided_tests(self, n, log):
    ours, others = np.random.default_rng(n).uniform(1, 1.2, (2, n))
    limits = (0.8, 1.1) if log else (-0.2, 0.1)
    effects = np.log(ours / others) if log else ours - others
    ends = np.log(limits) if log else limits
    expected = max(
      stats.ttest_1samp(effects, end, alternative=side).pvalue
      for end, side in zip(ends, ('greater', 'less'), strict=True)
    )
    p = statistics.within_p(ours, others, limits, log=log)
    self.assertAlmostEqual(p, expected)

  def test_a_limit_of_zero_is_no_limit_of_a_ratio(self):
    ours, others = [1.0, 1.1, 0.9], [1.2, 1.0, 1.1]
    effects = np.log(np.array(ours) / others)
    expected = stats.ttest_1samp(effects, np.log(1.3), alternative='less')
    p = statistics.within_p(ours, others, (0.0, 1.3), log=True)
    self.assertAlmostEqual(p, expected.pvalue)

  def test_numbers_without_spread_are_known_exactly(self):
    ours, others = [0.3 * 3] * 6, [0.3] * 6
    self.assertEqual(statistics.differ_p(ours, others, log=True), 0.0)
    self.assertEqual(statistics.differ_p(ours, ours, log=True), 1.0)
    within = statistics.within_p(ours, ours, (0.95, 1.05), log=True)
    self.assertEqual(within, 0.0)
    without = statistics.within_p(ours, others, (0.95, 1.05), log=True)
    self.assertEqual(without, 1.0)

  def test_infinite_numbers_are_ranked_and_never_alike(self):
    ours, others = [1.0, 2.0], [_INF, _INF]
    p = statistics.differ_p(ours, others, log=True)
    self.assertEqual(p, statistics.signed_rank_p(ours, others))
    within = statistics.within_p(others, others, (0.9, 1.1), log=True)
    self.assertEqual(within, 1.0)


class HolmTest(parameterized.TestCase):
  @parameterized.parameters(*range(5))
  def test_rejections_are_those_of_the_sequential_procedure(self, seed):
    ps = np.random.default_rng(seed).uniform(0, 0.1, 8)
    adjusted = statistics.holm(ps)
    for level in (0.01, 0.05, 0.2):
      rejected = set()
      for rank, place in enumerate(np.argsort(ps)):
        if ps[place] > level / (len(ps) - rank):
          break
        rejected.add(int(place))
      found = {place for place, p in enumerate(adjusted) if p <= level}
      self.assertEqual(found, rejected)

  def test_no_tests_need_no_correction(self):
    self.assertEqual(statistics.holm([]), [])


class IntervalTest(parameterized.TestCase):
  @parameterized.parameters(4, 5)
  def test_the_interval_holds_95_percent_of_all_resamples(self, n):
    values = np.random.default_rng(n).normal(size=n)
    low, high = statistics.interval_of(values)
    medians = np.median(
      [list(each) for each in itertools.product(values, repeat=n)], axis=1
    )
    # The exact quantiles, each with an error of resampling.
    below = np.quantile(medians, [0.015, 0.035], method='inverted_cdf')
    above = np.quantile(medians, [0.965, 0.985], method='inverted_cdf')
    self.assertTrue(below[0] <= low <= below[1], (below, low))
    self.assertTrue(above[0] <= high <= above[1], (above, high))

  def test_infinite_times_are_allowed(self):
    interval = statistics.interval_of([1.0, 2.0, _INF, _INF])
    self.assertEqual(interval, (1.0, _INF))

  def test_a_single_number_has_no_interval(self):
    self.assertIsNone(statistics.interval_of([1.0]))


if __name__ == '__main__':
  absltest.main()
