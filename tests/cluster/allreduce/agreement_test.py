"""Tests for cluster.allreduce.agreement."""

import collections
import math
import random

from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.allreduce.agreement import Agreement
from learning import drift


def _begin_check(digests, version=4):
  agreement = Agreement()
  agreement.begin(version, digests)
  for k, index in enumerate(digests):
    last = agreement.add_digest(index, version, digests[index])
    if last != (k == len(digests) - 1):
      raise AssertionError(f'It was {last} at digest {k} of {digests}.')
  return agreement


class AgreementTest(parameterized.TestCase):
  @settings(max_examples=200, deadline=None)
  @given(st.dictionaries(st.integers(0, 9), st.sampled_from('abc'), min_size=1))
  def test_the_largest_group_with_the_lowest_rank_is_the_reference(
    self, digests
  ):
    agreement = _begin_check(digests)
    counts = collections.Counter(digests.values())
    best = max(counts.values())
    tied = [k for k in digests if counts[digests[k]] == best]
    expected = {k for k in digests if digests[k] == digests[min(tied)]}
    self.assertEqual({*agreement.reference}, expected)
    self.assertEqual({*agreement.differing}, {*digests} - expected)
    self.assertEqual(agreement.reference_digest, digests[min(tied)])

  @settings(max_examples=200, deadline=None)
  @given(
    st.integers(1, 4),
    st.lists(st.sampled_from([0.0, 1e-7, 9e-4, 2e-3, 5.0, None]), max_size=6),
    st.randoms(),
  )
  def test_differences_beyond_the_bound_are_corrupt(self, equal, apart, rng):
    digests = dict.fromkeys(range(equal), 'same')
    digests |= {equal + k: f'own {k}' for k in range(len(apart))}
    agreement = _begin_check(digests)
    differing = [k for k in digests if k not in agreement.reference]
    agreement.compare(differing)
    differences = dict(zip(differing, apart, strict=False))
    rng.shuffle(differing)
    for k, index in enumerate(differing):
      self.assertEqual(agreement.awaited, sorted(differing[k:]))
      last = agreement.add_difference(
        index, 4, differences[index], agreement.reference_digest
      )
      self.assertEqual(last, k == len(differing) - 1)
    corrupt = {
      k
      for k in differences
      if differences[k] is None or differences[k] > drift.BOUND
    }
    self.assertEqual({*agreement.corrupt}, corrupt)
    rest = len(digests) - len(corrupt)
    self.assertEqual(agreement.has_majority, rest > len(corrupt))
    agreement.count()
    self.assertEqual(agreement.totals['corrupt'], len(corrupt))
    self.assertEqual(
      agreement.totals['repairs'], len(differences) - len(corrupt)
    )

  def test_members_without_a_vote_do_not_choose(self):
    agreement = Agreement()
    agreement.begin(4, range(4), voters=[1, 2])
    for index, digest in enumerate('abba'):
      agreement.add_digest(index, 4, digest)
    self.assertEqual(agreement.reference, (1, 2))
    agreement.compare([0, 3])
    for index in (0, 3):
      agreement.add_difference(index, 4, 0.5, 'a')
    self.assertTrue(agreement.has_majority)
    agreement.begin(4, range(3), voters=[0, 2])
    for index, digest in enumerate('aab'):
      agreement.add_digest(index, 4, digest)
    self.assertEqual(agreement.reference, (0, 1))
    agreement.compare([2])
    agreement.add_difference(2, 4, 0.5, 'b')
    self.assertFalse(agreement.has_majority)

  def test_a_member_that_does_not_hold_what_it_fetched_is_corrupt(self):
    agreement = _begin_check({0: 'a', 1: 'a', 2: 'b'})
    agreement.compare([2])
    self.assertTrue(agreement.add_difference(2, 4, 1e-8, 'b'))
    self.assertEqual(agreement.corrupt, [2])
    self.assertEqual(agreement.differences, {2: math.inf})

  def test_answers_of_other_checks_are_ignored(self):
    agreement = _begin_check({0: 'a', 1: 'b'})
    agreement.compare([1])
    self.assertFalse(agreement.add_difference(1, 3, 5.0, 'a'))
    self.assertFalse(agreement.add_difference(0, 4, 5.0, 'a'))
    self.assertTrue(agreement.add_difference(1, 4, 0.0, 'a'))
    self.assertFalse(agreement.add_difference(1, 4, 5.0, 'a'))
    agreement.end()
    self.assertEqual((agreement.agreed, agreement.is_running), (4, False))
    agreement.begin(9, [0, 1])
    for index, version in ((0, 4), (7, 9)):
      self.assertFalse(agreement.add_digest(index, version, 'a'))
    self.assertEqual(agreement.awaited, [0, 1])
    agreement.cancel()
    self.assertEqual((agreement.agreed, agreement.is_running), (4, False))
    self.assertFalse(agreement.add_digest(0, 9, 'a'))

  def test_one_member_agrees_with_itself(self):
    agreement = _begin_check({3: 'a'})
    self.assertEmpty(agreement.differing)
    self.assertTrue(agreement.has_majority)

  def test_digests_may_come_in_any_order(self):
    rng = random.Random(0)
    for _ in range(20):
      items = [(0, 'b'), (1, 'a'), (2, 'a'), (3, 'b')]
      rng.shuffle(items)
      self.assertEqual(_begin_check(dict(items)).reference, (0, 3))


if __name__ == '__main__':
  absltest.main()
