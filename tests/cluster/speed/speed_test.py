"""Tests for cluster.speed."""

import itertools
import math
import pathlib
import random
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from cluster.speed import speed

TRACE = """\
,worker,gpu,time,ms
0,b,25,1,100
1,a,25,1,300
2,b,25,12,500
3,a,25,9,400
4,b,25,9,200
"""


class SpeedTest(parameterized.TestCase):
  def test_seconds_are_those_of_the_batch_times_slowdown_and_factor(self):
    model = speed.regime(num_workers=2, seed=0, factors=(1.0, 3.0), stay=0.0)
    times = speed.Speed(0.5, 0.125, [1.0, 2.0], model)

    self.assertEqual(times.seconds(0, 0, 4), 1.0)
    self.assertEqual(times.seconds(1, 0, 4), 2.0)
    self.assertEqual(times.seconds(1, 1, 4), 6.0)
    self.assertEqual(times.seconds(1, 1, 0), 3.0)

  def test_islands_divide_batches_and_the_slowest_process_sets_the_time(self):
    model = speed.regime(num_workers=4, seed=0, factors=(1.0, 3.0), stay=0.0)
    slowdown = [1.0, 2.0, 1.0, 5.0]
    alone = speed.Speed(0.5, 0.125, slowdown, model)
    islands = speed.Speed(0.5, 0.125, slowdown, model, hosts=2)

    for worker, iteration in itertools.product(range(2), range(3)):
      members = (2 * worker, 2 * worker + 1)
      self.assertEqual(
        islands.seconds(worker, iteration, 7),  # 4 and 3 examples.
        max(alone.seconds(each, iteration, 4) for each in members),
      )
    with self.assertRaisesRegex(ValueError, 'worker from 0 to 1, .* got 2'):
      islands.seconds(2, 0, 1)

  def test_constant_factor_is_one(self):
    model = speed.constant(num_workers=3, seed=5)

    self.assertEqual({model.factor(w, 10**9) for w in range(3)}, {1.0})

  @parameterized.named_parameters(
    ('fixed', {'fixed_s': -1.0}, 'fixed_s: .* got -1.0'),
    ('endless', {'per_example_s': math.inf}, 'per_example_s: .* got inf'),
    ('nan', {'fixed_s': math.nan}, 'fixed_s: .* got nan'),
    ('nothing', {'fixed_s': 0.0}, r'fixed_s \+ per_example_s: .* got 0.0'),
    ('length', {'slowdown': [1.0]}, r'slowdown: expected 2 .* got \[1.0\]'),
    ('zero', {'slowdown': [1.0, 0.0]}, 'slowdown: .* numbers above 0'),
  )
  def test_rejects(self, changes, message):
    arguments = {
      'fixed_s': 1.0,
      'per_example_s': 0.0,
      'slowdown': [1.0, 1.0],
      'model': speed.constant(num_workers=2, seed=0),
    }

    with self.assertRaisesRegex(ValueError, message):
      speed.Speed(**(arguments | changes))

  @parameterized.parameters((-1, 0, 1), (2, 0, 1), (0, -1, 1), (0, 0, -1))
  def test_values_that_are_no_iteration_are_rejected(self, *arguments):
    model = speed.constant(num_workers=2, seed=0)
    times = speed.Speed(1.0, 1.0, [1.0, 1.0], model)

    with self.assertRaisesRegex(ValueError, 'Expected worker from 0 to 1'):
      times.seconds(*arguments)


class RandomTest(parameterized.TestCase):
  @parameterized.parameters(0.1, 0.5, 1.0)
  def test_lognormal_has_mean_one_and_the_given_sigma(self, sigma):
    logs = np.log(_table(lambda **c: speed.lognormal(**c, sigma=sigma)))

    error = sigma / math.sqrt(logs.size)
    self.assertAlmostEqual(logs.mean(), -(sigma**2) / 2, delta=5 * error)
    self.assertAlmostEqual(logs.std(), sigma, delta=5 * error)
    mean_error = math.sqrt(math.expm1(sigma**2) / logs.size)
    self.assertAlmostEqual(np.exp(logs).mean(), 1.0, delta=5 * mean_error)

  def test_lognormal_of_no_spread_is_constant(self):
    factors = _table(lambda **c: speed.lognormal(**c, sigma=0.0))

    self.assertEqual(set(factors.flat), {1.0})

  def test_draws_of_workers_and_of_neighbouring_iterations_are_unrelated(self):
    logs = np.log(_table(lambda **c: speed.lognormal(**c, sigma=1.0)))

    limit = 5 / math.sqrt(logs.size)
    for one, other in ((logs[:-1], logs[1:]), (logs[:, :-1], logs[:, 1:])):
      self.assertLess(abs(np.corrcoef(one.flat, other.flat)[0, 1]), limit)

  @parameterized.product(stay=[0.0, 0.5, 0.9], states=[2, 3])
  def test_share_of_the_first_state_follows_the_markov_chain(
    self, stay, states
  ):
    factors = [1.0, 3.0, 7.0][:states]
    model = speed.regime(num_workers=4000, seed=1, factors=factors, stay=stay)

    # Second eigenvalue of the transition matrix, to the power of the time.
    decay = 1 - states * (1 - stay) / (states - 1)
    for iteration in (0, 1, 2, 5, 20):
      share = np.mean([model.factor(w, iteration) == 1 for w in range(4000)])
      expected = 1 / states + (1 - 1 / states) * decay**iteration
      self.assertAlmostEqual(share, expected, delta=5 * 0.5 / math.sqrt(4000))

  def test_states_are_equally_likely_in_the_long_run(self):
    factors = _table(
      lambda **c: speed.regime(**c, factors=(1.0, 2.0, 5.0), stay=0.5)
    )

    for factor in (1.0, 2.0, 5.0):
      self.assertAlmostEqual(np.mean(factors == factor), 1 / 3, delta=0.02)

  @parameterized.parameters((0.0, 400), (1.0, 0))
  def test_chain_that_never_or_always_stays(self, stay, changes):
    model = speed.regime(num_workers=1, seed=2, factors=(1.0, 3.0), stay=stay)

    factors = [model.factor(0, k) for k in range(401)]

    self.assertEqual(np.count_nonzero(np.diff(factors)), changes)

  @parameterized.named_parameters(
    ('lognormal', lambda **c: speed.lognormal(**c, sigma=0.3)),
    ('regime', lambda **c: speed.regime(**c, factors=(1.0, 3.0), stay=0.9)),
  )
  def test_factors_depend_on_seed_worker_and_iteration_only(self, make):
    table = _table(make, workers=4, iterations=700)
    places = [(w, k) for w in range(4) for k in range(700)]
    random.Random(0).shuffle(places)
    model = make(num_workers=9, seed=0)

    for worker, iteration in places:
      factor = model.factor(worker, iteration)
      self.assertEqual(factor, table[worker, iteration])

    self.assertFalse(np.array_equal(table[0], table[1]))
    other = _table(make, workers=4, iterations=700, seed=2**64 - 1)
    self.assertFalse(np.array_equal(table, other))


class DrivingTest(parameterized.TestCase):
  def test_driving_factors_of_a_regime_are_of_the_next_iteration(self):
    model = speed.regime(num_workers=3, seed=0, factors=(1.0, 4.0), stay=0.7)

    for worker, k in itertools.product(range(3), range(200)):
      expected = (1 / model.factor(worker, k + 1),)
      self.assertEqual(model.driving(worker, k), expected)

  def test_noise_and_jitter_have_their_deviations(self):
    plain, noisy = (
      speed.regime(
        num_workers=2, seed=1, factors=(1.0, 4.0), stay=0.7, **deviations
      )
      for deviations in ({}, {'sigma': 0.2, 'noise': 0.1})
    )
    places = [(w, k) for w in range(2) for k in range(4000)]
    jitter = [noisy.factor(*p) / plain.factor(*p) for p in places]
    error = [noisy.driving(*p)[0] / plain.driving(*p)[0] for p in places]

    self.assertAlmostEqual(np.mean(jitter), 1.0, delta=0.01)
    self.assertAlmostEqual(np.std(np.log(jitter)), 0.2, delta=0.01)
    self.assertAlmostEqual(np.std(np.log(error)), 0.1, delta=0.005)
    self.assertLess(abs(np.corrcoef(jitter, error)[0, 1]), 0.05)

  @parameterized.parameters(
    lambda: speed.constant(num_workers=2, seed=0),
    lambda: speed.lognormal(num_workers=2, seed=0, sigma=0.1),
  )
  def test_other_models_have_none(self, make):
    self.assertEqual(make().driving(1, 5), ())
    self.assertEqual(make().num_driving, 0)

  def test_small_batches_take_the_least_time(self):
    model = speed.constant(num_workers=1, seed=0)
    made = speed.Speed(
      fixed_s=0.1,
      per_example_s=0.01,
      slowdown=[2.0],
      model=model,
      least_s=0.3,
    )
    for batch, expected in ((1, 0.6), (20, 0.6), (21, 0.62)):
      self.assertAlmostEqual(made.seconds(0, 0, batch), expected)


class TraceTest(parameterized.TestCase):
  def test_each_worker_replays_its_rows_in_order_and_wraps_around(self):
    model = self._model()

    # The mean is 300 ms; worker b comes first in the file.
    for worker, values in ((0, [1, 2, 5]), (1, [3, 4]), (2, [1, 2, 5])):
      expected = [values[k % len(values)] / 3 for k in range(8)]
      factors = [model.factor(worker, k) for k in range(8)]
      np.testing.assert_allclose(factors, expected, rtol=1e-15)

  def test_mean_over_the_file_is_one(self):
    model = self._model(num_workers=2)

    factors = [
      model.factor(w, k) for w, n in ((0, 3), (1, 2)) for k in range(n)
    ]

    self.assertAlmostEqual(np.mean(factors), 1.0, places=15)

  def test_driving_factors_are_those_of_the_iteration(self):
    model = self._model(driving_columns='ms,gpu')

    self.assertEqual(model.num_driving, 2)
    for worker, values in ((0, [100, 200, 500]), (1, [300, 400])):
      for k in range(8):
        expected = (float(values[k % len(values)]), 25.0)
        self.assertEqual(model.driving(worker, k), expected)

  @parameterized.named_parameters(
    (
      'driving_columns',
      {'driving_columns': 'gpu,cpu'},
      "driving_columns: .* 'cpu'",
    ),
    ('worker_column', {'worker_column': 'host'}, "worker_column: .* 'host'"),
    ('order_column', {'order_column': 'step'}, "order_column: .* 'step'"),
    ('value_column', {'value_column': 's'}, "value_column: .* got 's'"),
    ('no_rows', {'text': ',worker,gpu,time,ms\n'}, 'path: expected rows'),
    ('empty_file', {'text': ''}, r'worker_column: expected one of \[\]'),
    ('word', {'text': TRACE + '5,b,25,13,fast'}, "line 7, ms: .* 'fast'"),
    ('zero', {'text': TRACE + '5,b,25,13,0'}, "ms: .* > 0.0, got '0'"),
    ('endless', {'text': TRACE + '5,b,25,13,inf'}, "ms: .* got 'inf'"),
    ('order', {'text': TRACE + '5,b,25,,7'}, "line 7, time: .* got ''"),
    ('short_row', {'text': TRACE + '5,b,25,13'}, 'line 7, ms: .* got None'),
    ('no_worker', {'text': TRACE + '5,,25,13,7'}, "worker: expected .* got ''"),
    ('bytes', {'text': 'é', 'encoding': 'latin-1'}, 'path: expected a CSV'),
  )
  def test_rejects(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      self._model(**changes)

  def test_rejects_a_file_that_is_not_there(self):
    with self.assertRaisesRegex(ValueError, 'path: .* No such file'):
      self._model(path='nowhere.csv')

  def _model(self, text=TRACE, encoding='utf-8', **changes):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'trace.csv')
    path.write_text(text, encoding=encoding)
    arguments = {
      'num_workers': 3,
      'seed': 0,
      'path': str(path),
      'worker_column': 'worker',
      'order_column': 'time',
      'value_column': 'ms',
    }
    return speed.trace(**(arguments | changes))


class RejectionTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('no_worker', 'constant', {'num_workers': 0}, 'num_workers: .* got 0'),
    ('seed', 'constant', {'seed': -1}, 'seed: .* got -1'),
    (
      'one_factor',
      'regime',
      {'factors': (1.0,)},
      'factors: expected at least two',
    ),
  )
  def test_rejects(self, name, changes, message):
    own = {
      'constant': {},
      'lognormal': {'sigma': 0.1},
      'regime': {'factors': (1.0, 3.0), 'stay': 0.9},
    }[name]
    arguments = {'num_workers': 2, 'seed': 0} | own

    with self.assertRaisesRegex(ValueError, message):
      getattr(speed, name)(**(arguments | changes))


def _table(make, workers=40, iterations=1000, seed=0):
  """Factors, [workers, iterations]."""
  model = make(num_workers=workers, seed=seed)
  return np.array(
    [[model.factor(w, k) for k in range(iterations)] for w in range(workers)]
  )


if __name__ == '__main__':
  absltest.main()
