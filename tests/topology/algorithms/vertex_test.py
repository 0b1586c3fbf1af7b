"""Corners of linear programs, beside the exact simplex method."""

import itertools
import random
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

from topology.algorithms import simplex, stopping, vertex


class BestTest(parameterized.TestCase):
  """The optimum is that of exact arithmetic, also where many rows bind."""

  @parameterized.parameters(*range(12))
  def test_corner_is_where_the_exact_method_ends(self, seed):
    rng = np.random.default_rng(seed)
    m, k = rng.integers(1, 14, 2)
    rows = rng.integers(0, 2 + seed % 3, (m, k))
    rows[0, ~rows.any(0)] = 1  # So that it is bounded.
    objective = rng.integers(1, 5, k)
    program = [(row, 1) for row in rows.tolist()]
    exact, _ = simplex.Program(objective.tolist(), program).solve()
    want = sum(int(c) * x for c, x in zip(objective, exact, strict=True))

    chosen, binding = vertex.best(
      rows.astype(float), objective.astype(float), stopping.never
    )

    matrix = rows[np.ix_(binding, chosen)]
    x = vertex.solve(matrix, [1] * len(binding), stopping.never)
    self.assertGreaterEqual(min(x), 0)
    got = sum(int(objective[j]) * v for j, v in zip(chosen, x, strict=True))
    self.assertEqual(got, want)

  def test_unbounded_objective_has_no_corner(self):
    rows, gain = np.array([[1.0, 0.0]]), np.ones(2)

    self.assertIsNone(vertex.best(rows, gain, stopping.never))

  def test_search_stops_on_request(self):
    for work in (
      lambda stop: vertex.best(np.eye(5), np.ones(5), stop),
      lambda stop: vertex.solve(np.eye(5, dtype=int), [1] * 5, stop),
    ):
      asked = itertools.count()
      with self.assertRaises(stopping.Stopped):
        work(lambda asked=asked: next(asked) == 3)


class SolvedTest(parameterized.TestCase):
  """Solutions are exact, of whatever size their fractions are."""

  @parameterized.parameters(1, 2, 3, 8, 30)
  def test_known_solution_is_recovered(self, count):
    rng = random.Random(count)
    matrix = np.array(
      [
        [rng.choice((0, 0, 1, 2, 7)) for _ in range(count)]
        for _ in range(count)
      ]
    ) + 3 * np.eye(count, dtype=int)
    right = [rng.randrange(10**12) for _ in range(count)]

    found = vertex.solve(matrix, right, stopping.never)

    for row, value in zip(matrix.tolist(), right, strict=True):
      total = sum(a * x for a, x in zip(row, found, strict=True))
      self.assertEqual(total, value)

  def test_negative_and_long_fractions(self):
    matrix = np.array([[3, 1], [1, 7]])
    wanted = [Fraction(-1, 20), Fraction(23, 20)]

    right = [int(3 * wanted[0] + wanted[1]), int(wanted[0] + 7 * wanted[1])]
    self.assertEqual(right, [1, 8])
    self.assertEqual(vertex.solve(matrix, right, stopping.never), wanted)

  def test_singular_system_gives_none(self):
    matrix = np.array([[1, 2], [2, 4]])

    self.assertIsNone(vertex.solve(matrix, [1, 1], stopping.never))


if __name__ == '__main__':
  absltest.main()
