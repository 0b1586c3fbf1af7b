"""Tests for batching.allocation and batching.curves."""

import doctest
import itertools
import json

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st
from scipy import optimize

from batching import allocation, curves
from batching.curves import Curve


def _divisions(total, least, most):
  """Returns all divisions of `total`, [divisions, n]."""
  ranges = [range(least, min(bound, total) + 1) for bound in most]
  every = np.array(list(itertools.product(*ranges)))
  return every[every.sum(1) == total]


def _real(total, speeds, least, most):
  """Returns the division in real numbers that finishes first, by bisection."""

  def excess(time_s):
    return np.clip(time_s * speeds, least, most).sum() - total

  late_s = max(np.max(most / speeds), np.max(least / speeds))
  time_s = optimize.brentq(excess, 0, 2 * late_s, xtol=1e-14, rtol=1e-14)
  return np.clip(time_s * speeds, least, most)


def _problem(rng):
  """Returns few examples, speeds, and bounds that allow a division."""
  n = int(rng.integers(1, 5))
  least = int(rng.integers(1, 3))
  most = rng.integers(least, 12, n)
  total = int(rng.integers(n * least, min(most.sum(), 16 + least) + 1))
  return total, n, least, most


@st.composite
def _divided(draw):
  """Returns total, speeds (many of them equal), least and most."""
  n = draw(st.integers(1, 12))
  speeds = draw(
    st.lists(st.integers(1, 40).map(lambda v: v / 4), min_size=n, max_size=n)
  )
  least = draw(st.integers(1, 4))
  most = draw(st.lists(st.integers(least, 60), min_size=n, max_size=n))
  total = draw(st.integers(n * least, sum(most)))
  return total, speeds, least, most


class ProportionalTest(parameterized.TestCase):
  def test_the_result_is_the_closest_to_the_division_in_real_numbers(self):
    rng = np.random.default_rng(0)
    for _ in range(400):
      total, n, least, most = _problem(rng)
      speeds = rng.uniform(1, 8, n) if n > 2 else rng.integers(1, 4, n)
      every = _divisions(total, least, most)
      real = _real(total, speeds, least, most)

      sizes = allocation.proportional(total, speeds, least, most.tolist())

      distances = np.square(every - real).sum(1)
      self.assertIn(sizes, every.tolist())
      self.assertAlmostEqual(np.square(sizes - real).sum(), distances.min())
      self.assertLess(np.abs(sizes - real).max(), 1 + 1e-9)
      soonest_s = (every / speeds).max(1).min()
      late_s = (sizes / speeds).max() - soonest_s
      self.assertLessEqual(late_s, 1 / speeds.min() + 1e-9)

  def test_real_times_are_as_short_as_a_linear_program_finds(self):
    rng = np.random.default_rng(1)
    for _ in range(50):
      total, n, least, most = _problem(rng)
      speeds = rng.uniform(1, 8, n)
      found = optimize.linprog(
        [0] * n + [1],
        A_ub=np.hstack([np.diag(1 / speeds), -np.ones((n, 1))]),
        b_ub=np.zeros(n),
        A_eq=[[1] * n + [0]],
        b_eq=[total],
        bounds=[*((least, bound) for bound in most), (0, None)],
      )
      real = _real(total, speeds, least, most)
      np.testing.assert_allclose((real / speeds).max(), found.fun, rtol=1e-6)

  @hypothesis.settings(max_examples=300, deadline=None)
  @hypothesis.given(_divided())
  def test_sum_and_bounds_hold(self, problem):
    total, _, least, most = problem
    sizes = allocation.proportional(*problem)
    self.assertEqual(sum(sizes), total)
    for size, bound in zip(sizes, most, strict=True):
      self.assertBetween(size, least, bound)

  @hypothesis.settings(max_examples=300, deadline=None)
  @hypothesis.given(_divided(), st.integers(0, 11), st.floats(1.0, 9.0))
  def test_faster_workers_never_get_fewer(self, problem, which, factor):
    total, speeds, least, most = problem
    which %= len(speeds)
    sizes = allocation.proportional(*problem)
    faster = [v * factor if w == which else v for w, v in enumerate(speeds)]
    again = allocation.proportional(total, faster, least, most)
    self.assertGreaterEqual(again[which], sizes[which])
    same = [max(most)] * len(speeds)
    sizes = allocation.proportional(total, speeds, least, same)
    for one, other in itertools.permutations(range(len(speeds)), 2):
      if speeds[one] > speeds[other]:
        self.assertGreaterEqual(sizes[one], sizes[other])

  @parameterized.parameters(range(20))
  def test_the_order_of_workers_does_not_matter(self, seed):
    rng = np.random.default_rng(seed)
    speeds, most = rng.uniform(1, 9, 9), rng.integers(30, 60, 9)
    order = rng.permutation(9)
    sizes = allocation.proportional(200, speeds, 3, most.tolist())
    permuted = allocation.proportional(
      200, speeds[order], 3, most[order].tolist()
    )
    self.assertEqual(permuted, [sizes[worker] for worker in order])

  def test_ties_go_to_the_lowest_index(self):
    self.assertEqual(
      allocation.proportional(250, [2.0] * 100, 1, [9] * 100),
      [3] * 50 + [2] * 50,
    )

  def test_a_thousand_workers_of_very_unequal_speed(self):
    speeds = np.geomspace(1e-6, 1e6, 1000)
    sizes = allocation.proportional(64_000, speeds, 1, [1_000] * 1000)
    self.assertEqual(sum(sizes), 64_000)
    self.assertEqual((min(sizes), max(sizes)), (1, 1_000))

  @parameterized.parameters(
    ((5, [1.0, 0.0], 1, [9, 9]), 'speeds: expected numbers of more than 0'),
    ((5, [1.0, np.nan], 1, [9, 9]), 'speeds: expected numbers of more than 0'),
    ((5, [1.0, np.inf], 1, [9, 9]), 'speeds: expected numbers of more than 0'),
    ((5.5, [1.0], 1, [9]), 'total: expected an integer'),
    ((5, [1.0], 0, [9]), 'least: expected an integer of at least 1, got 0'),
    ((5, [1.0, 1.0], 1, [9]), 'most: expected 2 numbers, got 1'),
    ((5, [1.0, 1.0], 2, [9, 1]), 'most: expected at least 2 each'),
    ((5, [1.0, 1.0], 3, [9, 9]), 'total: expected 6 to 18, which 2 .* got 5'),
    ((5, [1.0, 1.0], 1, [2, 2]), 'total: expected 2 to 4, which 2 .* got 5'),
  )
  def test_impossible_divisions_are_rejected(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      allocation.proportional(*arguments)

  def test_examples_of_docstrings_hold(self):
    self.assertEqual(doctest.testmod(allocation).failed, 0)
    self.assertGreater(doctest.testmod(allocation).attempted, 0)


def _curve(rng, most=None):
  flat_s = rng.uniform(0, 6) * (rng.random() < 0.7)
  return Curve(flat_s, rng.uniform(0, 3), rng.uniform(0.2, 2), most)


class EqualTimeTest(parameterized.TestCase):
  def test_no_division_finishes_earlier(self):
    rng = np.random.default_rng(0)
    for _ in range(400):
      total, _, least, most = _problem(rng)
      own = [_curve(rng, int(bound)) for bound in most]
      own = [
        own[0]._replace(most=c.most) if rng.random() < 0.3 else c for c in own
      ]
      every = _divisions(total, least, most)
      times = [
        [c.seconds(x) for c, x in zip(own, e, strict=True)] for e in every
      ]

      sizes = allocation.equal_time(total, own, least)

      self.assertIn(sizes, every.tolist())
      end_s = max(c.seconds(x) for c, x in zip(own, sizes, strict=True))
      np.testing.assert_allclose(end_s, np.max(times, axis=1).min(), rtol=1e-9)

  def test_division_without_flat_parts_is_proportional(self):
    rng = np.random.default_rng(3)
    for _ in range(50):
      speeds = rng.uniform(1, 9, 6)
      own = [Curve(0.0, 0.0, 1 / speed) for speed in speeds]
      sizes = allocation.equal_time(300, own, 1)
      by_speed = allocation.proportional(300, speeds, 1, [300] * 6)
      self.assertLessEqual(np.abs(np.subtract(sizes, by_speed)).max(), 1)

  def test_flat_parts_are_shared_in_proportion(self):
    small, large = Curve(1.0, 0.0, 1 / 64), Curve(1.0, 0.0, 1 / 128)
    self.assertEqual(
      allocation.equal_time(129, [small, small, large], 1), [33, 32, 64]
    )

  @parameterized.parameters(range(10))
  def test_the_order_of_workers_does_not_matter(self, seed):
    rng = np.random.default_rng(seed)
    own = [_curve(rng, int(most)) for most in rng.integers(30, 60, 9)]
    order = rng.permutation(9)
    sizes = allocation.equal_time(200, own, 3)
    permuted = allocation.equal_time(200, [own[w] for w in order], 3)
    self.assertEqual(permuted, [sizes[worker] for worker in order])

  @parameterized.parameters(
    (1, [4, 4]), (4, [4, 4]), (1, [1, 7]), (1, [None, None])
  )
  def test_the_smallest_and_largest_possible_totals(self, least, most):
    own = [Curve(2.0, -1.0, 1.5, bound) for bound in most]
    self.assertEqual(sum(allocation.equal_time(8, own, least)), 8)
    self.assertEqual(allocation.equal_time(2 * least, own, least), [least] * 2)

  def test_a_thousand_workers(self):
    rng = np.random.default_rng(0)
    own = [_curve(rng) for _ in range(1000)]
    self.assertEqual(sum(allocation.equal_time(64_000, own, 1)), 64_000)

  def test_impossible_divisions_are_rejected(self):
    own = [Curve(0.0, 0.0, 1.0, 2)] * 2
    with self.assertRaisesRegex(ValueError, 'total: expected 2 to 4, .* got 5'):
      allocation.equal_time(5, own, 1)


class FitTest(parameterized.TestCase):
  _BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

  @parameterized.parameters(
    (Curve(0.0, 0.02, 0.003),),
    (Curve(0.01, 0.002, 0.0005),),
    (Curve(0.01, -0.02, 0.001),),
    (Curve(0.3, 0.0, 0.01),),
  )
  def test_fit_recovers_a_known_curve(self, true):
    times = [true.seconds(batch) for batch in self._BATCHES]
    found = curves.fit(self._BATCHES, times)
    self.assertLess(
      np.abs(curves.errors(found, self._BATCHES, times)).max(), 1e-9
    )
    np.testing.assert_allclose(found[1:3], true[1:3], rtol=1e-9, atol=1e-12)

  @parameterized.parameters(range(5))
  def test_fit_is_robust_to_noise(self, seed):
    rng = np.random.default_rng(seed)
    true = Curve(0.01, 0.002, 0.0005)
    times = [true.seconds(b) * rng.lognormal(0, 0.02) for b in self._BATCHES]
    found = curves.fit(self._BATCHES, times)
    for batch in (1, 8, 16, 64, 100, 500):
      np.testing.assert_allclose(
        found.seconds(batch), true.seconds(batch), rtol=0.04
      )

  @parameterized.parameters(range(20))
  def test_no_curve_has_smaller_errors(self, seed):
    rng = np.random.default_rng(seed)
    batches = np.sort(rng.choice(64, 7, replace=False)) + 1
    true = Curve(rng.uniform(0, 30), rng.uniform(0, 5), rng.uniform(0.3, 2))
    times = [true.seconds(b) * rng.lognormal(0, 0.3) for b in batches]

    def cost(fields):
      return np.square(curves.errors(Curve(*fields), batches, times)).sum()

    found = cost(curves.fit(batches, times)[:3])

    for _ in range(15):
      start = rng.uniform([0, -20, 0.01], [40, 20, 3])
      other = optimize.minimize(cost, start, method='Nelder-Mead')
      if other.x[2] > 0:
        self.assertLessEqual(found, other.fun + 1e-9)

  @parameterized.parameters(
    ([1, 2], [1.0, 2.0], 'batches: expected at least three'),
    ([1, 2, 2], [1.0, 2.0, 3.0], 'batches: expected .* ascending'),
    ([1, 2, 4], [1.0, 2.0], 'batches: .* with 2 times'),
    ([0, 2, 4], [1.0, 2.0, 3.0], 'batches: expected'),
    ([1, 2, 4], [1.0, 0.0, 3.0], 'seconds: expected more than 0'),
    ([1, 2, 4], [1.0, 1.0, 1.0], 'seconds: .* grow .* larger batches'),
    ([1, 2, 4], [3.0, 2.0, 1.0], 'seconds: .* grow'),
  )
  def test_uninformative_measurements_are_rejected(
    self, batches, times, message
  ):
    with self.assertRaisesRegex(ValueError, message):
      curves.fit(batches, times)


class ParseTest(parameterized.TestCase):
  def _content(self, **changed):
    curve = Curve(0.01, 0.002, 0.0005)._asdict() | changed
    return {'version': 1, 'device': 'a device', 'curve': curve}

  @parameterized.parameters(None, 512)
  def test_a_written_profile_can_be_parsed(self, most):
    content = json.loads(json.dumps(self._content(most=most)))
    self.assertEqual(curves.parse(content), Curve(0.01, 0.002, 0.0005, most))

  @parameterized.parameters(
    ({'flat_s': -1.0}, 'flat_s: expected at least 0 seconds, got -1.0'),
    ({'slope_s': 0.0}, 'slope_s: expected more than 0, got 0.0'),
    ({'slope_s': '1'}, "slope_s: expected a number, got '1'"),
    ({'flat_s': None}, 'flat_s: expected a number, got None'),
    ({'flat_s': 0.0, 'intercept_s': -1.0}, 'intercept_s: .* got -1.0'),
    ({'most': 0}, 'most: expected an integer of at least 1, got 0'),
    ({'other': 0}, 'curve: expected .*slope_s.*other'),
  )
  def test_invalid_fields_are_rejected_by_name(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      curves.parse(self._content(**changed))

  @parameterized.parameters(([],), ({},), ({'version': 2},), (None,))
  def test_other_files_are_rejected(self, content):
    with self.assertRaisesRegex(ValueError, 'version: expected 1'):
      curves.parse(content)


if __name__ == '__main__':
  absltest.main()
