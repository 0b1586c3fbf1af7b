"""Systems solved alike everywhere, against exact arithmetic."""

from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

from topology.algorithms import definite


class GramTest(parameterized.TestCase):
  @parameterized.parameters(0, 1, 2)
  def test_entries_have_forty_bits_of_their_diagonal(self, seed):
    rng = np.random.default_rng(seed)
    whole = (rng.random((700, 5)) < 0.3) * rng.integers(1, 9, (700, 5)) * 1.0
    weight = 10 ** rng.uniform(-9, 9, 700)
    weight[whole[:, 0] > 0] *= 1e-12

    got = definite.Gram(whole).of(weight)

    exact = [[Fraction(0)] * 5 for _ in range(5)]
    for row, factor in zip(whole.tolist(), weight.tolist(), strict=True):
      for j in range(5):
        for k in range(5):
          exact[j][k] += Fraction(row[j]) * Fraction(row[k]) * Fraction(factor)
    np.testing.assert_array_equal(got, got.T)
    for j in range(5):
      for k in range(5):
        unit = float(exact[j][j] * exact[k][k]) ** 0.5
        error = abs(float(Fraction(float(got[j, k])) - exact[j][k]))
        self.assertLess(error, 2**-36 * unit)

  def test_matrix_of_zeros_gives_zeros(self):
    got = definite.Gram(np.zeros((3, 2))).of(np.ones(3))

    np.testing.assert_array_equal(got, np.zeros((2, 2)))


class FactorTest(parameterized.TestCase):
  @parameterized.parameters(1, 31, 32, 33, 64, 100, 257)
  def test_solution_is_that_of_the_system(self, size):
    rng = np.random.default_rng(size)
    half = rng.normal(size=(size, size)) / size**0.5
    matrix = half @ half.T + np.eye(size)
    unit = 1 / np.sqrt(matrix.diagonal())
    matrix *= unit * unit[:, None]
    want = rng.normal(size=size)

    got = definite.Factor(matrix).solve(matrix @ want)

    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(definite.times(matrix, want), matrix @ want)

  def test_nearly_singular_system_is_solved_within_rounding(self):
    rng = np.random.default_rng(0)
    half = rng.normal(size=(80, 40))
    matrix = half @ half.T
    unit = 1 / np.sqrt(matrix.diagonal())
    matrix *= unit * unit[:, None]
    matrix += 1e-12 * np.eye(80)
    right = matrix @ rng.normal(size=80)

    rest = right - matrix @ definite.Factor(matrix).solve(right)

    self.assertLess(abs(rest).max(), 1e-3)

  @parameterized.parameters(2, 40)
  def test_indefinite_matrix_is_an_error(self, size):
    matrix = np.eye(size)
    matrix[-1, 0] = matrix[0, -1] = 2

    with self.assertRaisesRegex(ValueError, 'positive definite'):
      definite.Factor(matrix)


if __name__ == '__main__':
  absltest.main()
