"""The best weights of trees, against a solver of linear programs."""

import time

import numpy as np
from absl.testing import absltest, parameterized
from scipy import optimize

from topology.packing import weights


class BestTest(parameterized.TestCase):
  @parameterized.parameters(*range(12))
  def test_weights_of_random_trees_equal_the_oracle(self, seed):
    loads, capacity, _ = _random(seed)

    found, prices = weights.best(loads, capacity)

    want = _oracle(loads, capacity, np.zeros(loads.shape[1], int))
    self.assertAlmostEqual(found.sum() / want, 1, delta=2e-7)
    self.assertAlmostEqual(capacity @ prices / want, 1, delta=2e-7)
    self.assertAlmostEqual((prices @ loads).min(), 1, places=12)
    _assert_feasible(loads, capacity, found, prices)

  @parameterized.parameters(*range(12))
  def test_random_trees_of_roots_that_carry_the_same(self, seed):
    loads, capacity, roots = _random(seed)

    found, prices = weights.best(loads, capacity, roots)

    want = _oracle(loads, capacity, roots)
    sums = np.bincount(roots, found)
    costs = prices @ loads
    cheapest = sum(costs[roots == r].min() for r in range(len(sums)))
    np.testing.assert_allclose(sums, sums[0], rtol=1e-12)
    self.assertAlmostEqual(sums[0] / want, 1, delta=2e-7)
    self.assertAlmostEqual(capacity @ prices / want, 1, delta=2e-7)
    self.assertAlmostEqual(cheapest, 1, places=12)
    _assert_feasible(loads, capacity, found, prices)

  @parameterized.parameters(False, True)
  def test_as_many_trees_as_a_large_cluster_takes(self, rooted):
    rng = np.random.default_rng(0)
    # The first links, as a worker's only one, are part of every tree.
    loads = (rng.random((2000, 256)) < 0.05).astype(np.int8)
    loads[:500] += 1
    capacity = rng.integers(1, 4, 2000) * 25e9
    roots = np.arange(256) % 32 if rooted else np.zeros(256, int)

    start_s = time.thread_time()  # Loads of other workers do not count.
    found, prices = weights.best(loads, capacity, roots)
    took_s = time.thread_time() - start_s

    rate = np.bincount(roots, found).min()
    self.assertAlmostEqual(capacity @ prices / rate, 1, delta=2e-7)
    _assert_feasible(loads, capacity, found, prices)
    # A fraction of a second on a machine that has nothing else to do.
    self.assertLess(took_s, 10)

  def test_one_tree_is_as_fast_as_its_tightest_link(self):
    found, prices = weights.best(np.array([[1], [2], [0]]), [3.0, 5.0, 1.0])

    np.testing.assert_allclose(found, [2.5], rtol=1e-12)
    np.testing.assert_allclose(prices, [0, 0.5, 0], atol=1e-6)

  def test_link_that_no_tree_uses_costs_nothing(self):
    found, prices = weights.best([[0, 0], [1, 1]], [1e-9, 4.0])

    self.assertAlmostEqual(found.sum(), 4, delta=1e-6)
    np.testing.assert_allclose([1e-9, 4.0] * prices, [0, 4], atol=1e-6)

  def test_trees_of_the_complete_graph_share_it(self):
    # The stars of n workers use every link twice: n / 2 trees for links of 1.
    workers = 12
    pairs = [(a, b) for a in range(workers) for b in range(a)]
    loads = np.array(
      [[root in pair for root in range(workers)] for pair in pairs]
    )

    found, prices = weights.best(loads, np.ones(len(pairs)))

    np.testing.assert_allclose(found, np.full(workers, 0.5), rtol=1e-6)
    self.assertAlmostEqual(prices.sum(), workers / 2, delta=1e-6)

  def test_equal_trees_and_equal_links_change_nothing(self):
    loads = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]])
    many = np.tile(loads, (50, 40))

    found, prices = weights.best(many, np.full(150, 2.0))

    # Each tree uses two of three links.
    self.assertAlmostEqual(found.sum(), 3, delta=1e-6)
    self.assertAlmostEqual(2 * prices.sum(), 3, delta=1e-6)
    # The later of equal trees are not needed.
    np.testing.assert_array_equal(found[3:], 0)

  def test_equal_trees_of_two_roots_share_the_links(self):
    loads = np.ones((2, 4))

    found, _ = weights.best(loads, [3.0, 6.0], [7, 7, 2, 7])

    np.testing.assert_allclose(found, [1.5, 0, 1.5, 0], rtol=1e-12)

  def test_tree_not_worth_its_price_gets_nothing(self):
    found, _ = weights.best([[1, 0, 5], [0, 1, 5]], [1.0, 1.0])

    self.assertEqual(found[2], 0)
    np.testing.assert_allclose(found[:2], 1, rtol=1e-6)

  @parameterized.parameters(1e-12, 1e-3, 1e12)
  def test_unit_of_the_capacities_does_not_matter(self, unit):
    loads, capacity, roots = _random(3)

    found, prices = weights.best(loads, capacity, roots)
    other, scaled = weights.best(loads, capacity * unit, roots)

    np.testing.assert_allclose(other, found * unit, rtol=1e-5, atol=1e-6 * unit)
    np.testing.assert_allclose(scaled, prices, rtol=1e-5, atol=1e-6)

  def test_capacities_of_many_orders_of_magnitude(self):
    rng = np.random.default_rng(5)
    loads = rng.integers(0, 3, (60, 40))
    # Beyond the tolerances of the oracle: the prices prove the optimum.
    capacity = 10 ** rng.uniform(-6, 6, 60)

    found, prices = weights.best(loads, capacity)

    self.assertAlmostEqual(capacity @ prices / found.sum(), 1, delta=2e-7)
    _assert_feasible(loads, capacity, found, prices)

  @parameterized.named_parameters(
    ('no_trees', np.ones((3, 0)), np.ones(3), None, 'loads'),
    ('no_table', np.ones(3), np.ones(3), None, 'loads'),
    ('negative_load', [[1, -1]], [1.0], None, 'loads'),
    ('tree_without_links', [[1, 0]], [1.0], None, 'each tree'),
    ('capacities_of_other_links', [[1, 1]], [1.0, 2.0], None, 'capacity'),
    ('capacity_0', [[1], [1]], [1.0, 0.0], None, 'capacity'),
    ('infinite_capacity', [[1]], [np.inf], None, 'capacity'),
    ('roots_of_other_trees', [[1, 1]], [1.0], [0], 'roots'),
  )
  def test_invalid_arguments_are_rejected(self, loads, capacity, roots, field):
    with self.assertRaisesRegex(ValueError, field):
      weights.best(loads, capacity, roots)


def _random(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns loads, capacities and roots; every other time most are alike."""
  rng = np.random.default_rng(seed)
  links, trees = rng.integers(2, 60), rng.integers(2, 60)
  loads = (rng.random((links, trees)) < rng.uniform(0.05, 0.9)).astype(int)
  loads *= rng.integers(1, 3, loads.shape)
  loads[rng.integers(0, links, trees), np.arange(trees)] += 1
  if seed % 2:
    loads = loads[:, rng.integers(0, trees, trees)]
    capacity = rng.integers(1, 3, links).astype(float)
  else:
    capacity = rng.uniform(0.1, 10, links)
  if seed % 4 > 1:
    loads[: links // 2] += 1
  count = rng.integers(1, trees + 1)
  roots = np.append(np.arange(count), rng.integers(0, count, trees - count))
  return loads, capacity, rng.permutation(roots)


def _oracle(
  loads: np.ndarray, capacity: np.ndarray, roots: np.ndarray
) -> float:
  """Returns the largest weight that all roots can carry, of HiGHS."""
  links, trees = loads.shape
  each = np.eye(roots.max() + 1)[roots].T
  rows = np.block(
    [[loads, np.zeros((links, 1))], [-each, np.ones((len(each), 1))]]
  )
  solved = optimize.linprog(
    np.append(np.zeros(trees), -1),
    A_ub=rows,
    b_ub=np.append(capacity, np.zeros(len(each))),
  )
  assert solved.status == 0, solved.message
  return -solved.fun


def _assert_feasible(
  loads: np.ndarray,
  capacity: np.ndarray,
  found: np.ndarray,
  prices: np.ndarray,
) -> None:
  assert found.min() >= 0 and prices.min() >= 0
  np.testing.assert_array_less(loads @ found / capacity, 1 + 1e-12)


if __name__ == '__main__':
  absltest.main()
