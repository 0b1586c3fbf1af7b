"""Tests for bench.bits."""

import numpy as np
from absl.testing import absltest

from bench import bits


class MissedTest(absltest.TestCase):
  def test_numbers_on_the_levels_miss_nothing(self):
    gradient = np.array([3, -3, 0, 3, 0, 0, -3], np.float32)
    self.assertEqual(bits.missed(gradient, 2, 7), 0.0)

  def test_a_rounded_number_misses_its_error(self):
    # The levels are -1, 0 and 1; .4 is sent as 0.
    gradient = np.array([1.0, -1.0, 0.4], np.float32)
    self.assertAlmostEqual(bits.missed(gradient, 2, 3), 0.16 / 2.16, places=6)

  def test_eight_bits_of_a_uniform_gradient_miss_a_twelfth_of_a_squared_step(
    self,
  ):
    gradient = np.linspace(-1, 1, 10**5, dtype=np.float32)
    expected = (1 / 127) ** 2 / 12 / (1 / 3)
    actual = bits.missed(gradient, 8, 10**5)
    self.assertAlmostEqual(actual / expected, 1.0, places=1)


if __name__ == '__main__':
  absltest.main()
