"""Tests for bench.made: traces are what they are called."""

import numpy as np
from absl.testing import absltest, parameterized

from bench import made


class MadeTest(parameterized.TestCase):
  @parameterized.parameters(*made.DESIGN, *made.HELD_OUT)
  def test_are_speeds_of_their_seed(self, kind):
    speeds, factors = made.make(kind, seed=1, steps=80, workers=5)
    self.assertEqual(speeds.shape, (80, 5))
    self.assertEqual(factors.shape[:2], (80, 5))
    self.assertGreater(np.nanmin(speeds), 0)
    again = made.make(kind, seed=1, steps=80, workers=5)
    np.testing.assert_array_equal(again[0], speeds)
    np.testing.assert_array_equal(again[1], factors)
    other, _ = made.make(kind, seed=2, steps=80, workers=5)
    self.assertEqual((other == speeds).all(), kind == 'constant')

  @parameterized.parameters('driven', 'bursts', 'hidden load', 'upside down')
  def test_factors_tell_of_the_next_iteration(self, kind):
    speeds, factors = made.make(kind, seed=0, steps=300, workers=1)
    seen = np.corrcoef(factors[:200, 0, 0], speeds[1:201, 0])[0, 1]
    late = np.corrcoef(factors[:200, 0, 0], speeds[:200, 0])[0, 1]
    self.assertLess(seen, -0.2)
    self.assertLess(seen, late)

  def test_some_have_gaps(self):
    speeds, _ = made.make('outages', seed=0)
    self.assertBetween(np.isnan(speeds).mean(), 0.02, 0.08)

  def test_others_are_refused(self):
    with self.assertRaisesRegex(ValueError, "kind: expected one of .*'waves'"):
      made.make('waves', seed=0)


if __name__ == '__main__':
  absltest.main()
