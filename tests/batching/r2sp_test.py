"""Tests for R2SP's tuning: its fixed point under noise, gaps and changes.

The oracle is arithmetic: with the batches of `turns.Times.equal` all workers
finish together with the slowest one.
"""

import copy

import numpy as np
from absl.testing import absltest, parameterized

from batching import r2sp
from batching.batching import Measurement
from configs import default
from outputs import serialization
from sync import asp, bsp, ssp
from sync import r2sp as turn_scheme
from tests.support import turns

_BATCH = 320
_EXAMPLE_S = 0.06 / _BATCH
_SETTLED = 100  # Iterations.
# Slowdown and transfer of each worker.
_SET_UPS = {
  'links': ([1] * 8, [0.01, 0.01, 0.02, 0.02, 0.04, 0.04, 0.08, 0.16]),
  'speeds': ([1, 1, 1, 1, 1.5, 1.5, 2, 3], [0.01] * 8),
  'both': ([1, 1.2, 1, 1, 1.5, 1.5, 2, 3], [0.01, 0.05, 0.02, 0.04] * 2),
  'one_slow': ([1, 1, 1, 1, 1, 1.5, 2, 4], [0.03] * 8),
  'three': ([1, 1.3, 3.1], [0.0] * 3),
  'near': ([1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35], [0.01] * 8),
}


def _tuning(num_workers, **changed):
  arguments = {'num_workers': num_workers, 'worker_batch': _BATCH}
  arguments |= default.get_config().batching.r2sp.to_dict()
  return r2sp.make(**arguments | changed)


def _times(slowdown, transfer_s, fixed_s=0.0):
  per_example_s = [each * _EXAMPLE_S for each in slowdown]
  return turns.Times(per_example_s, transfer_s, fixed_s)


def _tolerance(sigma, workers, iterations=_SETTLED):
  """Returns the share by which a batch may be off, by the noise it is from.

  Spare time counts as none up to 2 + 2 sqrt(ln n) standard errors of the
  difference of two means, and three standard errors are seldom exceeded.

  Args:
    sigma: Sigma of the times of iterations.
    workers: Number of workers.
    iterations: Iterations that are averaged: ten windows of ten if settled.
  """
  errors = 3 + 2 + 2 * np.sqrt(np.log(workers))
  return errors * sigma * np.sqrt(2 / iterations)


def _rounds(policy, times, count, workers=None, gate_s=0.0, rng=None):
  """Runs rounds in which all workers start together; returns the next batches.

  Args:
    policy: Tuning under test.
    times: Iteration times of all workers.
    count: Number of iterations of each worker.
    workers: Living workers; all by default.
    gate_s: Seconds that even the slowest worker waits.
    rng: Random generator of 10 % jitter; None for no jitter.
  """
  workers = workers or list(range(len(times.transfer_s)))
  for _ in range(count):
    sizes = policy.assign(workers)
    compute_s = {}
    for worker in workers:
      jitter = rng.lognormal(-0.005, 0.1) if rng else 1.0
      compute_s[worker] = times.compute_s(worker, sizes[worker]) * jitter
    ends_s = {w: compute_s[w] + times.transfer_s[w] for w in workers}
    last_s = max(ends_s.values())
    for worker in workers:
      policy.observe(
        Measurement(
          worker=worker,
          time=0.0,
          compute_s=compute_s[worker],
          transfer_s=times.transfer_s[worker],
          waited_s=last_s - ends_s[worker] + gate_s,
          examples=sizes[worker],
        )
      )
  return policy.assign(workers)


class PaperTest(parameterized.TestCase):
  @parameterized.product(backwards=[False, True], gate_s=[0.0, 0.3])
  def test_table_2_of_the_paper(self, backwards, gate_s):
    # Two g2.2xlarge, two p2.xlarge, four g3.4xlarge.
    speeds = [429] * 2 + [628] * 2 + [917] * 4
    waits = [0.0] * 2 + [0.62] * 2 + [0.82] * 4
    policy = _tuning(8, worker_batch=512)
    order = list(reversed(range(8))) if backwards else list(range(8))
    for _ in range(10):
      self.assertEqual(set(policy.assign(range(8)).values()), {512})
      for worker in order:
        compute_s = 512 / speeds[worker]
        waited_s = waits[worker] + gate_s
        policy.observe(Measurement(worker, 0.0, compute_s, 0.1, waited_s, 512))
    sizes = list(policy.assign(range(8)).values())
    self.assertEqual(sizes, [512] * 2 + [901] * 2 + [1264] * 4)
    self.assertEqual(sum(sizes), 7882)
    self.assertIsNone(policy.max_batch)

  def test_batches_of_equal_times_are_a_fixed_point(self):
    policy = _tuning(3, worker_batch=300)
    times = turns.Times([0.001, 0.002, 0.003], [0.4, 0.05, 0.1])
    for _ in range(20):
      sizes = _rounds(policy, times, 10, gate_s=0.07)
      self.assertEqual(sizes, {0: 600, 1: 475, 2: 300})


class NoiseTest(parameterized.TestCase):
  @parameterized.product(sigma=[0.02, 0.1, 0.3], workers=[2, 8], seed=[0, 1])
  def test_equal_workers_keep_their_batches(self, sigma, workers, seed):
    policy = _tuning(workers)
    times = _times([1.0] * workers, [0.01] * workers)
    sizes = turns.simulate(
      policy, times, sigma=sigma, iterations=2000, seed=seed
    )
    np.testing.assert_array_equal(sizes, _BATCH)

  @parameterized.parameters(
    (bsp, {}),
    (asp, {}),
    (ssp, {'bound': 3}),
    (turn_scheme, {'relaxation': 1.0, 'smoothing': 0.1}),
    (turn_scheme, {'relaxation': 0.0, 'smoothing': 0.1}),
  )
  def test_equal_workers_keep_their_batches_under_any_scheme(self, module, own):
    times = _times([1.0] * 8, [0.01] * 8)
    scheme = module.make(num_workers=8, **own)
    sizes = turns.simulate(
      _tuning(8), times, sigma=0.3, iterations=500, seed=2, scheme=scheme
    )
    np.testing.assert_array_equal(sizes, _BATCH)

  @parameterized.product(set_up=[*_SET_UPS], sigma=[0.02, 0.1], seed=[0, 1])
  def test_times_become_equal_and_stay_so(self, set_up, sigma, seed):
    times = _times(*_SET_UPS[set_up])
    policy = _tuning(len(times.transfer_s))
    sizes = turns.simulate(
      policy, times, sigma=sigma, iterations=500, seed=seed
    )
    expected = times.equalizing_batches(_BATCH)
    self._check_within(
      sizes[_SETTLED:], expected, _tolerance(sigma, len(expected))
    )

  @parameterized.parameters(0.02, 0.1)
  def test_times_become_equal_with_a_fixed_cost(self, sigma):
    times = _times([1.0, 1.5, 2.0, 4.0], [0.01] * 4, fixed_s=0.03)
    sizes = turns.simulate(
      _tuning(4), times, sigma=sigma, iterations=600, seed=0
    )
    expected = times.equalizing_batches(_BATCH)
    self._check_within(sizes[300:], expected, _tolerance(sigma, 4))

  def test_one_pause_of_a_worker_changes_nothing(self):
    times, rng = _times([1.0] * 4, [0.01] * 4), np.random.default_rng(0)
    paused = _times([1.0, 1.0, 100.0, 1.0], [0.01] * 4)
    policy = _tuning(4)
    for before in (3, 17, 50):
      _rounds(policy, times, before, rng=rng)
      _rounds(policy, paused, 1, rng=rng)
      for _ in range(150):
        sizes = _rounds(policy, times, 1, rng=rng)
        self.assertEqual({*sizes.values()}, {_BATCH})

  def _check_within(self, sizes, expected, share):
    off = np.abs(np.array(sizes) / np.array(expected) - 1)
    self.assertLess(off.max(), share, np.unravel_index(off.argmax(), off.shape))


class ChangeTest(parameterized.TestCase):
  def _changed(self, before, after, *, seed):
    """Returns batches of 600 iterations, the last 300 with other times."""
    return turns.simulate(
      _tuning(4),
      before,
      sigma=0.1,
      iterations=600,
      seed=seed,
      changes={300: after},
    )

  def _check_equalizing(self, sizes, times):
    np.testing.assert_allclose(
      sizes,
      times.equalizing_batches(_BATCH),
      rtol=_tolerance(0.1, len(sizes)),
    )

  def test_a_batch_shrinks_when_its_worker_slows_down(self):
    before = _times([1.0, 1.0, 2.0, 3.0], [0.01] * 4)
    after = _times([2.0, 1.0, 2.0, 3.0], [0.01] * 4)
    sizes = self._changed(before, after, seed=0)
    self._check_equalizing(sizes[299], before)
    self.assertLess(sizes[325, 0], 0.8 * sizes[299, 0])
    self._check_equalizing(sizes[420], after)
    self._check_equalizing(sizes[-1], after)

  def test_a_worker_that_becomes_the_slowest_returns_to_its_initial_batch(self):
    before = _times([1.0, 1.0, 2.0, 3.0], [0.01] * 4)
    after = _times([6.0, 1.0, 2.0, 3.0], [0.01] * 4)
    sizes = self._changed(before, after, seed=1)
    self.assertEqual(sizes[400, 0], _BATCH)
    self._check_equalizing(sizes[420], after)

  def test_all_shrink_when_the_slowest_is_as_fast_as_they_are(self):
    before = _times([1.0, 1.0, 1.0, 4.0], [0.01] * 4)
    after = _times([1.0] * 4, [0.01] * 4)
    sizes = turns.simulate(
      _tuning(4),
      before,
      sigma=0.1,
      iterations=400,
      seed=0,
      changes={200: after},
    )
    self.assertGreater(sizes[199, :3].min(), 3.5 * _BATCH)
    self.assertEqual(sizes[330].tolist(), [_BATCH] * 4)

  def test_a_batch_shrinks_when_its_link_slows_down(self):
    before = _times([1.0, 1.0, 3.0], [0.01] * 3)
    after = _times([1.0, 1.0, 3.0], [0.01, 0.09, 0.01])
    sizes = turns.simulate(
      _tuning(3),
      before,
      sigma=0.1,
      iterations=500,
      seed=0,
      changes={200: after},
    )
    self.assertLess(sizes[230, 1], 0.8 * sizes[199, 1])
    self._check_equalizing(sizes[-1], after)


class _Reference:
  """The rule of the tuning, from the iterations of each window themselves.

  Windows are lists by worker of (examples, compute, busy, spare seconds).
  """

  def __init__(self, num_workers, *, window, history, most):
    self._window, self._history, self._most = window, history, most
    self.living = {*range(num_workers)}
    self.sizes = dict.fromkeys(range(num_workers), _BATCH)
    self._windows = []
    self._begin({*range(num_workers)})

  def _begin(self, left_out=frozenset()):
    self._completed = dict.fromkeys(self.sizes, 0)
    self._current = {worker: [] for worker in self.sizes}
    self._left_out = {*left_out}

  def observe(self, measurement):
    worker, examples = measurement.worker, measurement.examples
    self._completed[worker] += 1
    if worker in self._left_out:
      self._left_out.remove(worker)
    else:
      initial_s = measurement.compute_s / examples * _BATCH
      spare_s = measurement.waited_s + measurement.compute_s - initial_s
      busy_s = initial_s + measurement.transfer_s
      row = examples, measurement.compute_s, busy_s, spare_s
      self._current[worker].append(row)
    has_all = all(self._completed[w] >= self._window for w in self.living)
    if self._completed[worker] >= self._window and has_all:
      if self._windows and self._has_changed():
        self._windows = []
      self._windows = [*self._windows, self._current][-self._history :]
      self._begin(self._left_out)
      self._tune()

  def leave(self, worker):
    self.living.remove(worker)
    self.sizes[worker], self._completed[worker] = _BATCH, 0
    for window in (*self._windows, self._current):
      window[worker] = []

  def join(self, worker):
    self.living.add(worker)
    self._windows = []
    self._begin(self.sizes)

  def _rows(self):
    """Returns the iterations in all windows, [n, 4], by living worker."""
    return {
      w: np.array([row for window in self._windows for row in window[w]])
      for w in self.living
    }

  def _variances(self, rows):
    spread = {w: np.var(each[:, 2], ddof=1) for w, each in rows.items()}
    square = {w: np.mean(each[:, 2]) ** 2 for w, each in rows.items()}
    share = np.mean([spread[w] / square[w] for w in rows])
    return {w: max(spread[w], share * square[w]) for w in rows}

  def _has_changed(self):
    before = self._rows()
    variances = self._variances(before)
    for worker, rows in before.items():
      now = np.array(self._current[worker])
      off_s = abs(now[:, 2].mean() - rows[:, 2].mean())
      error = variances[worker] * (1 / len(now) + 1 / len(rows))
      if off_s > 5 * np.sqrt(error):
        return True
    return False

  def _tune(self):
    rows = self._rows()
    variances = self._variances(rows)
    spare_s = {w: each[:, 3].mean() for w, each in rows.items()}
    slowest = min(spare_s, key=spare_s.get)
    errors = 2 + 2 * np.sqrt(np.log(len(rows)))
    for worker, each in rows.items():
      extra_s = spare_s[worker] - spare_s[slowest]
      margin_s = errors * np.sqrt(
        variances[worker] / len(each) + variances[slowest] / len(rows[slowest])
      )
      counted_s = extra_s - margin_s**2 / extra_s if extra_s > margin_s else 0
      speed = each[:, 0].sum() / each[:, 1].sum()
      size = round(_BATCH + counted_s * speed)
      self.sizes[worker] = min([size, *self._most[worker : worker + 1]])


class ReferenceTest(parameterized.TestCase):
  @parameterized.parameters(*range(24))
  def test_batches_are_those_of_the_rule_while_workers_come_and_go(self, seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    window, history = (int(n) for n in rng.integers((3, 1), (6, 5)))
    most = (tuple(rng.integers(_BATCH, 4 * _BATCH, count).tolist()), ())[
      seed % 2
    ]
    own = {'window': window, 'history': history}
    policy = _tuning(count, most=most, **own)
    reference = _Reference(count, most=most, **own)
    per_example_s = rng.uniform(0.5, 2, count) * _EXAMPLE_S
    tuned = set()
    for _ in range(600):
      worker = int(rng.integers(count))
      kind = rng.uniform()
      if worker not in reference.living:
        for each in (policy, reference) if kind < 0.3 else ():
          each.join(worker)
      elif kind < 0.02:
        for each in (policy, reference):
          each.leave(worker)
      else:
        per_example_s[worker] *= 3 if kind > 0.995 else 1
        examples = reference.sizes[worker]
        measurement = Measurement(
          worker=worker,
          time=0.0,
          compute_s=examples * per_example_s[worker] * rng.lognormal(0, 0.1),
          transfer_s=rng.uniform(0.01, 0.02),
          waited_s=rng.exponential(0.02 * (1 + worker)),
          examples=examples,
        )
        for each in (policy, reference):
          each.observe(measurement)
      living = sorted(reference.living)
      expected = {each: reference.sizes[each] for each in living}
      self.assertEqual(policy.assign(living), expected)
      tuned |= {*expected.values()}
    self.assertGreater(len(tuned), 3 if count > 1 else 0)


class MembersTest(parameterized.TestCase):
  _TIMES = _times([1.0, 2.0, 4.0], [0.0] * 3)

  def test_batches_stop_at_their_bounds_and_those_of_others_do_not(self):
    most = (2 * _BATCH, _BATCH, _BATCH)
    policy = _tuning(3, most=most)
    for _ in range(5):
      sizes = _rounds(policy, self._TIMES, 10)
    self.assertEqual(tuple(sizes.values()), most)
    self.assertEqual(policy.max_batch, 2 * _BATCH)
    policy = _tuning(3, most=(3 * _BATCH,))
    sizes = _rounds(policy, self._TIMES, 20)
    self.assertEqual(sizes, {0: 3 * _BATCH, 1: 2 * _BATCH, 2: _BATCH})

  def test_the_slowest_remaining_worker_has_the_initial_batch(self):
    policy, rng = _tuning(3), np.random.default_rng(0)
    _rounds(policy, self._TIMES, 37, rng=rng)
    policy.leave(2)
    self.assertEqual(policy.report()['batch_sum'], sum(policy.sizes[:2]))
    sizes = _rounds(policy, self._TIMES, 13, workers=[0, 1], rng=rng)
    self.assertEqual(sizes[1], _BATCH)
    tolerance = _tolerance(0.1, 2, iterations=40)  # Four windows have ended.
    np.testing.assert_allclose(sizes[0], 2 * _BATCH, rtol=tolerance)

  def test_a_window_ends_without_a_worker_that_has_left(self):
    policy = _tuning(3)
    for worker in (0, 1):
      for _ in range(12):
        waited_s = 0.0 if worker else 1.0
        policy.observe(Measurement(worker, 0.0, 1.0, 0.0, waited_s, _BATCH))
    policy.leave(2)
    self.assertEqual(policy.assign([0, 1]), {0: _BATCH, 1: _BATCH})
    policy.observe(Measurement(1, 0.0, 1.0, 0.0, 0.0, _BATCH))
    self.assertEqual(policy.assign([0, 1]), {0: 2 * _BATCH, 1: _BATCH})

  def test_a_worker_that_rejoins_starts_with_the_initial_batch(self):
    policy, rng = _tuning(3), np.random.default_rng(0)
    before = _rounds(policy, self._TIMES, 35, rng=rng)
    policy.leave(0)
    policy.join(0)
    others = {1: before[1], 2: before[2]}
    self.assertEqual(policy.assign([0, 1, 2]), {0: _BATCH} | others)
    # No window ends before the worker has completed its iterations.
    sizes = _rounds(policy, self._TIMES, 9, rng=rng)
    self.assertEqual(sizes, {0: _BATCH} | others)
    # It may be another machine: now the second is the fastest.
    times = _times([2.0, 1.0, 4.0], [0.0] * 3)
    policy.leave(0)
    policy.join(0)
    sizes = _rounds(policy, times, 100, rng=rng)
    np.testing.assert_allclose(
      list(sizes.values()),
      times.equalizing_batches(_BATCH),
      rtol=_tolerance(0.1, 3),
    )

  def test_batches_shrink_when_the_slowest_worker_joins(self):
    policy, rng = _tuning(3), np.random.default_rng(0)
    policy.leave(2)
    sizes = _rounds(policy, self._TIMES, 60, workers=[0, 1], rng=rng)
    tolerance = _tolerance(0.1, 2, iterations=60)
    np.testing.assert_allclose(sizes[0], 2 * _BATCH, rtol=tolerance)
    policy.join(2)
    sizes = _rounds(policy, self._TIMES, 60, rng=rng)
    np.testing.assert_allclose(
      list(sizes.values()),
      self._TIMES.equalizing_batches(_BATCH),
      rtol=_tolerance(0.1, 3, iterations=60),
    )

  def test_one_worker_alone_keeps_its_batch(self):
    policy = _tuning(1)
    times = _times([1.0], [0.01])
    sizes = _rounds(policy, times, 50, gate_s=0.5, rng=np.random.default_rng(0))
    self.assertEqual(sizes, {0: _BATCH})

  def test_a_checkpoint_holds_the_whole_state(self):
    policy, rng = _tuning(3), np.random.default_rng(0)
    _rounds(policy, self._TIMES, 34, rng=rng)
    restored = serialization.load(*serialization.dump(policy))
    self.assertEqual(restored, policy)
    for tuning, same in ((policy, copy.deepcopy(rng)), (restored, rng)):
      _rounds(tuning, self._TIMES, 33, rng=same)
    self.assertEqual(restored, policy)
    self.assertGreater(policy.sizes[0], 3 * _BATCH)


if __name__ == '__main__':
  absltest.main()
