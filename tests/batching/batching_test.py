"""Tests for the behavior that all batchings share.

LB-BSP and R2SP have further tests of their own.
"""

import copy
import dataclasses
import importlib
import math
import pickle

import numpy as np
from absl.testing import absltest, parameterized

from batching import fixed
from batching.batching import Measurement
from batching.curves import Curve
from configs import default


@dataclasses.dataclass
class _Last:
  """Predictor of the last speed."""

  speeds: np.ndarray

  def observe(self, speeds, factors):
    self.speeds = np.where(np.isnan(speeds), self.speeds, speeds)

  def predict(self):
    return self.speeds

  def reset(self, worker):
    self.speeds[worker] = np.nan


_TUNED = ('r2sp', 'r2sp_released')
_CASES = ('fixed', 'lb_bsp', 'lb_bsp_gpu', 'curves', *_TUNED)


def _make(case, num_workers=4, **changed):
  """Returns a batching with the config's defaults."""
  name = 'lb_bsp_gpu' if case == 'curves' else case
  own = default.get_config().batching[name].to_dict()
  if case == 'lb_bsp':
    own['predictor'] = _Last(np.full(4, np.nan))
  if name == 'lb_bsp_gpu':
    own['curves'] = [Curve(0.5, 0.1, 0.03)] if case == 'curves' else ()
  module = importlib.import_module(f'batching.{name}')
  arguments = {'num_workers': num_workers, 'worker_batch': 16} | own
  return module.make(**arguments | changed)


def _superstep(policy, rng, workers):
  sizes = policy.assign(workers)
  for worker, examples in sizes.items():
    compute_s = (worker + 1) * (0.2 + 0.1 * examples) * rng.lognormal(0, 0.3)
    policy.observe(
      Measurement(worker, 0.0, compute_s, 0.1, rng.uniform(0, 3), examples)
    )
  return sizes


class CommonTest(parameterized.TestCase):
  @parameterized.product(case=_CASES, copied=['pickle', 'deepcopy'])
  def test_a_copy_continues_like_the_original(self, case, copied):
    policy = _make(case)
    rng = np.random.default_rng(0)
    for superstep in range(60):
      if superstep in (13, 37):
        policy.leave(2)
      if superstep in (14, 41):
        policy.join(2)
      workers = [0, 1, 3] if 37 <= superstep < 41 else [0, 1, 2, 3]
      if superstep == 13:
        workers = [0, 1, 3]
      if copied == 'pickle':
        restored = pickle.loads(pickle.dumps(policy))
      else:
        restored = copy.deepcopy(policy)
      same = np.random.default_rng(superstep)
      for _ in range(12):
        _superstep(restored, same, workers)
      expected = copy.deepcopy(policy)
      same = np.random.default_rng(superstep)
      for _ in range(12):
        _superstep(expected, same, workers)
      self.assertEqual(restored.assign(workers), expected.assign(workers))
      _superstep(policy, rng, workers)

  @parameterized.parameters('lb_bsp', 'lb_bsp_gpu', 'curves')
  def test_the_global_batch_stays_while_workers_leave_and_rejoin(self, case):
    policy = _make(case, most=(40,), least=2)
    rng = np.random.default_rng(1)
    living = {0, 1, 2, 3}
    for superstep in range(300):
      if superstep % 7 == 3:
        worker = int(rng.integers(4))
        if worker not in living:
          policy.join(worker)
          living.add(worker)
        elif len(living) > 2:
          policy.leave(worker)
          living.remove(worker)
      sizes = _superstep(policy, rng, sorted(living))
      self.assertEqual(set(sizes), living)
      self.assertEqual(sum(sizes.values()), 64)
      self.assertBetween(min(sizes.values()), 2, 40)
      self.assertLessEqual(max(sizes.values()), policy.max_batch)

  @parameterized.parameters(*_CASES)
  def test_no_workers_get_no_batches(self, case):
    policy = _make(case)
    self.assertEqual(policy.assign([]), {})
    self.assertEqual(policy.assign([0, 1, 2, 3]), dict.fromkeys(range(4), 16))
    for worker in range(4):
      policy.leave(worker)
    self.assertEqual(policy.assign([]), {})

  @parameterized.parameters(*_CASES)
  def test_the_order_of_workers_does_not_matter(self, case):
    one, other = _make(case, worker_batch=19), _make(case, worker_batch=19)
    one.assign([0, 1, 2, 3])
    other.assign([3, 1, 0, 2])
    one.leave(1)
    other.leave(1)
    self.assertEqual(one.assign([0, 2, 3]), other.assign([3, 0, 2]))

  @parameterized.parameters(*_CASES)
  def test_only_batchings_that_divide_a_global_batch_need_barriers(self, case):
    needed = case not in ('fixed', *_TUNED)
    self.assertEqual(_make(case).needs_barriers, needed)

  @parameterized.parameters('lb_bsp', 'lb_bsp_gpu', 'curves', *_TUNED)
  def test_impossible_events_are_rejected(self, case):
    policy = _make(case)
    policy.leave(1)
    with self.assertRaisesRegex(ValueError, 'expected a living worker, got 1'):
      policy.leave(1)
    with self.assertRaisesRegex(ValueError, 'to be absent, got waiting'):
      policy.join(0)
    with self.assertRaisesRegex(ValueError, 'a living worker in 0..3, got 1'):
      policy.observe(Measurement(1, 0.0, 1.0, 0.0, 0.0, 16))
    with self.assertRaisesRegex(ValueError, 'a living worker in 0..3, got 1'):
      policy.assign([0, 1])
    with self.assertRaisesRegex(ValueError, 'a living worker in 0..3, got 4'):
      policy.assign([0, 4])
    for compute_s in (0.0, -1.0, math.nan, math.inf):
      with self.assertRaisesRegex(ValueError, 'compute_s: expected more'):
        policy.observe(Measurement(0, 0.0, compute_s, 0.0, 0.0, 16))
    with self.assertRaisesRegex(ValueError, 'examples: .* least 1, got 0'):
      policy.observe(Measurement(0, 0.0, 1.0, 0.0, 0.0, 0))

  @parameterized.parameters(
    ('fixed', {'worker_batch': 0}, 'worker_batch: .* least 1, .* got 0'),
    ('fixed', {'num_workers': 0}, 'num_workers: .* least 1, got 0'),
    ('lb_bsp', {'worker_batch': 1.5}, 'worker_batch: expected an integer'),
    ('lb_bsp', {'num_workers': 0}, 'num_workers: .* least 1, got 0'),
    ('lb_bsp', {'least': 17}, 'least: expected at most 16, .* got 17'),
    ('lb_bsp', {'most': (9, 9)}, r'most: .* no, one or 4 numbers, got \(9, 9'),
    (
      'lb_bsp',
      {'most': (15,)},
      'most: expected a sum of at least 64, .*15',
    ),
    ('lb_bsp', {'most': (2,), 'least': 3}, 'most: .* at least 3, got 2'),
    ('curves', {'curves': [Curve(1, 1, 1)] * 3}, 'curves: .* or 4 .* got 3'),
    ('curves', {'curves': [Curve(1, 1, 0)]}, 'slope_s: expected more than 0'),
    (
      'curves',
      {'curves': [Curve(1, 1, 1, 9)]},
      'most: expected a sum of at least 64',
    ),
    ('curves', {'curves': [Curve(1, 1, 1, 9)], 'least': 10}, 'most: .* got 9'),
    ('r2sp', {'worker_batch': 0}, 'worker_batch: .* least 1, .* got 0'),
    ('r2sp', {'most': (15,)}, 'most: expected .* least 16, got 15'),
    ('r2sp', {'most': (32, 32)}, r'most: .* no, one or 4 numbers'),
    (
      'r2sp_released',
      {'worker_batch': 0},
      'worker_batch: .* least 1, .* got 0',
    ),
    ('r2sp_released', {'recent': 11}, 'window: expected .* recent, 11, got 10'),
    ('r2sp_released', {'most': (15,)}, 'most: expected .* least 16, got 15'),
    ('r2sp_released', {'most': (32, 32)}, r'most: .* no, one or 4 numbers'),
  )
  def test_invalid_arguments_are_rejected_by_name(self, case, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _make(case, **changed)

  @parameterized.product(
    case=_TUNED, name=['transfer_s', 'waited_s'], value=[math.nan, math.inf]
  )
  def test_missing_times_are_rejected(self, case, name, value):
    measurement = Measurement(0, 0.0, 1.0, 0.0, 0.0, 16)._replace(
      **{name: value}
    )
    with self.assertRaisesRegex(ValueError, f'{name}: expected seconds, got'):
      _make(case).observe(measurement)

  def test_fixed_batches_never_change(self):
    policy = fixed.make(num_workers=3, worker_batch=5)
    policy.leave(1)
    policy.observe(Measurement(0, 0.0, 1.0, 0.0, 0.0, 5))
    self.assertEqual(policy.assign([2, 0]), {2: 5, 0: 5})
    self.assertEqual(policy.max_batch, 5)


if __name__ == '__main__':
  absltest.main()
