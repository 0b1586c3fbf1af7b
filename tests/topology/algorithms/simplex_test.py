"""Exact linear programs."""

import random
from fractions import Fraction

from absl.testing import absltest, parameterized

from topology.algorithms import simplex


class SimplexTest(parameterized.TestCase):
  """Exact optima with their own proof."""

  def test_optimum_of_an_example_is_exact(self):
    z, y = simplex.Program(
      [3, 5], [([1, 0], 4), ([0, 2], 12), ([3, 2], 17)]
    ).solve()

    self.assertEqual(z, [Fraction(5, 3), Fraction(6)])
    self.assertEqual(y, [0, Fraction(3, 2), 1])

  @parameterized.parameters(*range(8))
  def test_prices_prove_the_optimum(self, seed):
    rng = random.Random(seed)
    n, m = rng.randint(1, 6), rng.randint(1, 6)
    rows = [[rng.randint(-2, 9) for _ in range(n)] for _ in range(m)]
    rows.append([1] * n)  # Bounded.
    limits = [rng.choice((0, 1, 5, 7)) for _ in rows]
    objective = [rng.randint(-3, 9) for _ in range(n)]

    z, y = simplex.Program(objective, [*zip(rows, limits, strict=True)]).solve()

    self.assertGreaterEqual(min(*z, *y), 0)
    for row, limit in zip(rows, limits, strict=True):
      self.assertLessEqual(_dot(row, z), limit)
    for j, column in enumerate(zip(*rows, strict=True)):
      self.assertGreaterEqual(_dot(column, y), objective[j])
    self.assertEqual(_dot(objective, z), _dot(limits, y))

  def test_rows_can_be_added_to_a_solved_program(self):
    program = simplex.Program([3, 5], [([1, 0], 4), ([0, 2], 12)])
    program.solve()

    program.add([3, 2], 17)

    self.assertEqual(program.solve()[0], [Fraction(5, 3), Fraction(6)])

  @parameterized.parameters(10**5, 10**12, 10**40)
  def test_large_integers_stay_exact(self, large):
    rows = [[large + 1, large - 1, 7], [large, 3, large + 2], [5, large, large]]
    limits = [large * large + 1, large + 5, 3 * large]

    z, y = simplex.Program(
      [large, 2, 3], [*zip(rows, limits, strict=True)]
    ).solve()

    for row, limit in zip(rows, limits, strict=True):
      self.assertLessEqual(_dot(row, z), limit)
    for column, price in zip(
      zip(*rows, strict=True), [large, 2, 3], strict=True
    ):
      self.assertGreaterEqual(_dot(column, y), price)
    self.assertEqual(_dot([large, 2, 3], z), _dot(limits, y))

  def test_program_without_bound_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'bounded'):
      simplex.Program([1, 1], [([1, -1], 1)]).solve()


def _dot(first, second):
  return sum(a * b for a, b in zip(first, second, strict=True))


if __name__ == '__main__':
  absltest.main()
