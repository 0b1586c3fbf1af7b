"""Tests for sync.zipline."""

import doctest
import heapq
import itertools

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from sync import zipline

_EXACT = ('sort', 'zipline', 'opt', 'opt_bs')
_HEURISTIC = ('grid_scan', 'full_grid_scan')


def _heap_search(times: np.ndarray) -> tuple[float, float, float]:
  """Returns start, end and wait, by a heap that always advances the first."""
  rows = [row[np.isfinite(row)].tolist() for row in times]
  heap = [(row[0], p, 0) for p, row in enumerate(rows)]
  heapq.heapify(heap)
  end = max(row[0] for row in rows)
  windows = []
  while True:
    start, p, j = heap[0]
    windows.append((end - start, end, -start))
    if j + 1 == len(rows[p]):
      wait, end, minus_start = min(windows)
      return -minus_start, end, wait
    heapq.heapreplace(heap, (rows[p][j + 1], p, j + 1))
    end = max(end, rows[p][j + 1])


def _end_of_grid_scan(times: np.ndarray, centres: list[float]) -> float:
  windows = []
  for centre in centres:
    if centre < np.inf:
      chosen = [
        min(row, key=lambda time, at=centre: abs(time - at))
        for row in times.tolist()
      ]
      windows.append((max(chosen) - min(chosen), max(chosen)))
  return min(windows)[1]


def _pad(rows: list[list[float]]) -> np.ndarray:
  padded = itertools.zip_longest(*rows, fillvalue=np.inf)
  return np.array(list(padded), np.float64).T


def _small_grid(rng: np.random.Generator, span: int) -> np.ndarray:
  """Returns times of up to four workers, one to four integers below `span`."""
  rows = [
    np.sort(rng.choice(span, rng.integers(1, 5), replace=False)).tolist()
    for _ in range(rng.integers(1, 5))
  ]
  return _pad(rows)


def _random_gaps(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
  speed = rng.uniform(0.5, 2.0, (n, 1))
  return np.cumsum(speed * rng.uniform(0.1, 1.0, (n, columns)), axis=1)


class ZiplineTestCase(parameterized.TestCase):
  """Base of the tests below, with shared assertions."""

  def assert_same_barrier(self, found, expected, times):
    self.assertEqual(found[1:], expected[1:], times)
    np.testing.assert_array_equal(found.iteration, expected.iteration)

  def assert_valid(self, barrier, times):
    n, columns = times.shape
    rows = np.arange(n)
    chosen = times[rows, barrier.iteration]
    beyond = np.minimum(barrier.iteration + 1, columns - 1)
    later = (times[rows, beyond] > barrier.end_s) | (beyond == columns - 1)
    self.assertEqual(barrier.iteration.dtype, np.int64)
    self.assertEqual(barrier.iteration.shape, (n,))
    self.assertEqual(barrier.start_s, chosen.min())
    self.assertEqual(barrier.end_s, chosen.max())
    self.assertEqual(barrier.wait_s, barrier.end_s - barrier.start_s)
    self.assertTrue(later.all(), times)
    for number in barrier[1:]:
      self.assertIs(type(number), float)


class ExactMethodsTest(ZiplineTestCase):
  @parameterized.product(span=[5, 8, 20], seed=[0, 1])
  def test_agree_with_every_choice_of_points(self, span, seed):
    rng = np.random.default_rng([span, seed])
    for _ in range(1500):
      times = _small_grid(rng, span)
      expected = zipline.search(times, method='brute_force')
      self.assert_valid(expected, times)
      for method in _EXACT:
        found = zipline.search(times, method=method)
        self.assert_same_barrier(found, expected, times)

  def test_agree_where_the_waits_of_unequal_windows_round_alike(self):
    rng = np.random.default_rng(0)
    pool = np.append(1e-17 * np.arange(6.0), 1.0 + 2.0**-52 * np.arange(6.0))
    for _ in range(1500):
      places = _small_grid(rng, len(pool))
      padding = np.isinf(places)
      times = pool[np.where(padding, 0.0, places).astype(np.int64)]
      times[padding] = np.inf
      expected = zipline.search(times, method='brute_force')
      for method in _EXACT:
        found = zipline.search(times, method=method)
        self.assert_same_barrier(found, expected, times)

  @parameterized.product(n=[1, 2, 7, 40, 150], columns=[1, 15, 60])
  def test_agree_with_a_heap_on_larger_inputs(self, n, columns):
    rng = np.random.default_rng([n, columns])
    for whole, padded in itertools.product([False, True], repeat=2):
      times = _random_gaps(rng, n, columns)
      if whole:  # Many workers then share their times.
        times = np.cumsum(np.ceil(3.0 * times[:, :1] + times % 3.0), axis=1)
      if padded:
        length = rng.integers(1, columns + 1, (n, 1))
        times = np.where(np.arange(columns) < length, times, np.inf)
      expected = _heap_search(times)
      for method in _EXACT:
        found = zipline.search(times, method=method)
        self.assert_valid(found, times)
        self.assertEqual(found[1:], expected)

  @hypothesis.settings(deadline=None, max_examples=300)
  @hypothesis.given(
    st.lists(
      st.lists(
        st.floats(allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=4,
        unique=True,
      ).map(sorted),
      min_size=1,
      max_size=4,
    )
  )
  def test_agree_on_any_finite_times(self, rows):
    times = _pad(rows)
    expected = zipline.search(times, method='brute_force')
    for method in _EXACT:
      found = zipline.search(times, method=method)
      self.assert_same_barrier(found, expected, times)


class BarrierTest(ZiplineTestCase):
  @parameterized.parameters(*_EXACT, 'brute_force')
  def test_matches_an_example_worked_by_hand(self, method):
    times = np.array([[2.0, 9.0, 16.0], [5.0, 10.0, 15.0], [1.0, 11.0, np.inf]])

    barrier = zipline.search(times, method=method)

    self.assertEqual(barrier.iteration.tolist(), [1, 1, 1])
    self.assertEqual(barrier[1:], (9.0, 11.0, 2.0))

  @parameterized.parameters(*_EXACT, 'brute_force')
  def test_prefers_the_earliest_of_equal_waits(self, method):
    times = np.array([[1.0, 11.0, 21.0], [3.0, 13.0, 23.0]])

    barrier = zipline.search(times, method=method)

    self.assertEqual(barrier.iteration.tolist(), [0, 0])
    self.assertEqual(barrier[1:], (1.0, 3.0, 2.0))

  @parameterized.parameters(*_EXACT, *_HEURISTIC, 'brute_force')
  def test_makes_a_single_worker_stop_after_its_next_iteration(self, method):
    barrier = zipline.search(np.array([[4.0, 5.0, np.inf]]), method=method)

    self.assertEqual(barrier.iteration.tolist(), [0])
    self.assertEqual(barrier[1:], (4.0, 4.0, 0.0))

  @parameterized.parameters(*_EXACT, *_HEURISTIC, 'brute_force')
  def test_ends_at_the_slowest_worker_if_each_has_one_point(self, method):
    barrier = zipline.search(np.array([[3.0], [1.0], [2.0]]), method=method)

    self.assertEqual(barrier.iteration.tolist(), [0, 0, 0])
    self.assertEqual(barrier[1:], (1.0, 3.0, 2.0))

  @parameterized.parameters(*_EXACT, *_HEURISTIC, 'brute_force')
  def test_lets_the_wait_overflow_without_a_warning(self, method):
    times = np.array([[-1.7e308, np.inf], [1.7e308, np.inf]])

    barrier = zipline.search(times, method=method)

    self.assertEqual(barrier.iteration.tolist(), [0, 0])
    self.assertEqual(barrier.wait_s, np.inf)

  def test_does_not_depend_on_the_order_of_the_workers(self):
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.integers(1, 9, (30, 20)), axis=1).astype(np.float64)
    order = rng.permutation(30)

    straight = zipline.search(times)
    shuffled = zipline.search(times[order])

    self.assertEqual(straight[1:], shuffled[1:])
    np.testing.assert_array_equal(straight.iteration[order], shuffled.iteration)

  def test_leaves_its_input_as_it_was(self):
    times = _random_gaps(np.random.default_rng(0), 5, 6)
    before = times.copy()

    for method in (*_EXACT, *_HEURISTIC, 'brute_force'):
      zipline.search(times, method=method)

    np.testing.assert_array_equal(times, before)

  def test_runs_the_example_of_its_documentation(self):
    self.assertEqual(doctest.testmod(zipline).failed, 0)


class HeuristicsTest(ZiplineTestCase):
  @parameterized.product(method=_HEURISTIC, seed=[0, 1])
  def test_never_beat_the_smallest_wait(self, method, seed):
    rng = np.random.default_rng(seed)
    for trial in range(200):
      times = _small_grid(rng, 12) if trial % 2 else _random_gaps(rng, 9, 12)
      best = zipline.search(times)
      barrier = zipline.search(times, method=method)
      self.assert_valid(barrier, times)
      self.assertGreaterEqual(barrier.wait_s, best.wait_s)

  def test_can_miss_the_smallest_wait(self):
    rng = np.random.default_rng(0)
    for method in _HEURISTIC:
      missed = 0
      for _ in range(300):
        times = _random_gaps(rng, 6, 6)
        best = zipline.search(times).wait_s
        missed += zipline.search(times, method=method).wait_s > best
      self.assertGreater(missed, 0, method)

  def test_wait_less_around_all_points_than_around_one_row(self):
    rng = np.random.default_rng(0)
    wait_s = dict.fromkeys(_HEURISTIC, 0.0)
    for _ in range(100):
      times = _random_gaps(rng, 8, 10)
      for method in _HEURISTIC:
        wait_s[method] += zipline.search(times, method=method).wait_s
    self.assertLess(wait_s['full_grid_scan'], wait_s['grid_scan'])

  def test_end_where_the_points_nearest_to_a_centre_end(self):
    rng = np.random.default_rng(0)
    for trial in range(300):
      times = _small_grid(rng, 12) if trial % 2 else _random_gaps(rng, 5, 6)
      first = times[times[:, 0].argmin()].tolist()
      every = times.ravel().tolist()
      for method, centres in zip(_HEURISTIC, (first, every), strict=True):
        barrier = zipline.search(times, method=method)
        self.assertEqual(barrier.end_s, _end_of_grid_scan(times, centres))


class RejectionTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('no_workers', np.zeros((0, 3)), r'non-empty .* got \(0, 3\)'),
    ('no_columns', np.zeros((3, 0)), r'non-empty .* got \(3, 0\)'),
    ('one_axis', np.arange(3.0), r'shape \[n, R\], got \(3,\)'),
    ('three_axes', np.ones((1, 1, 1)), r'shape \[n, R\], got \(1, 1, 1\)'),
    ('nan', [[1, 2], [3, np.nan]], r'no NaN, got \[ ?3. nan\] for worker 1'),
    ('nan_first', [[np.nan, 2]], 'no NaN'),
    ('nan_then_padding', [[np.nan, np.inf]], 'no NaN'),
    ('minus_infinity', [[-np.inf, 2]], 'no -inf'),
    ('minus_infinity_later', [[1, -np.inf]], 'no -inf'),
    ('equal', [[1, 2], [3, 3]], r'strictly increasing .* for worker 1'),
    ('decreasing', [[2, 1]], 'strictly increasing'),
    ('zeros_of_both_signs', [[-0.0, 0.0]], 'strictly increasing'),
    ('finite_after_padding', [[1, np.inf, 2]], 'then only padding'),
    ('finite_after_first', [[np.inf, 2]], 'then only padding'),
    ('only_padding', [[1, 2], [np.inf, np.inf]], 'finite time .* worker 1'),
    ('only_one_padding', [[np.inf]], 'finite time .* worker 0'),
  )
  def test_rejects_invalid_times_by_message(self, times, message):
    with self.assertRaisesRegex(ValueError, message):
      zipline.search(np.asarray(times, np.float64))

  def test_names_the_methods_when_one_is_unknown(self):
    with self.assertRaisesRegex(ValueError, "'opt_bs'.* got 'fast'"):
      zipline.search(np.ones((1, 1)), method='fast')


if __name__ == '__main__':
  absltest.main()
