"""Tests for bench.synthetic."""

import numpy as np
from absl.testing import absltest, parameterized

from bench import synthetic


class SyntheticTest(parameterized.TestCase):
  @parameterized.parameters(*synthetic.DESIGN, *synthetic.HELD_OUT)
  def test_speeds_depend_on_kind_and_seed(self, kind):
    speeds, factors = synthetic.make(kind, seed=1, steps=80, workers=5)
    self.assertEqual(speeds.shape, (80, 5))
    self.assertEqual(factors.shape[:2], (80, 5))
    self.assertGreater(np.nanmin(speeds), 0)
    again = synthetic.make(kind, seed=1, steps=80, workers=5)
    np.testing.assert_array_equal(again[0], speeds)
    np.testing.assert_array_equal(again[1], factors)
    other, _ = synthetic.make(kind, seed=2, steps=80, workers=5)
    self.assertEqual((other == speeds).all(), kind == 'constant')

  @parameterized.parameters('driven', 'bursts', 'hidden load', 'upside down')
  def test_factors_precede_speeds_by_an_iteration(self, kind):
    speeds, factors = synthetic.make(kind, seed=0, steps=300, workers=1)
    next_correlation = np.corrcoef(factors[:200, 0, 0], speeds[1:201, 0])[0, 1]
    same_correlation = np.corrcoef(factors[:200, 0, 0], speeds[:200, 0])[0, 1]
    self.assertLess(next_correlation, -0.2)
    self.assertLess(next_correlation, same_correlation)

  def test_outages_have_gaps(self):
    speeds, _ = synthetic.make('outages', seed=0)
    self.assertBetween(np.isnan(speeds).mean(), 0.02, 0.08)

  def test_unknown_kinds_are_rejected(self):
    with self.assertRaisesRegex(ValueError, "kind: expected one of .*'waves'"):
      synthetic.make('waves', seed=0)


if __name__ == '__main__':
  absltest.main()
