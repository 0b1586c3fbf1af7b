"""Tests for the accuracy of predict/, on known processes and real traces."""

import functools
import importlib
import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from bench import synthetic
from bench.predictors import errors
from configs import default
from predict import arima
from tests.support import requires

_BOUND = ('late spikes', 'regimes', 'jumping walk', 'lost factors')
_MORE = (
  'walk',
  'shifts',
  'spikes',
  'periodic',
  'constant',
  'outages',
  'square',
)


def _error(name: str, speeds, factors, *, from_: int, **changed) -> float:
  """Returns the root mean square of one-step errors after `from_` steps."""
  own = default.get_config().batching.lb_bsp.predictor[name].to_dict() | changed
  predictor = importlib.import_module(f'predict.{name}').make(
    num_workers=speeds.shape[1],
    num_factors=factors.shape[2],
    seed=0,
    **own,
  )
  predicted = errors.walk(predictor, errors.Trace(speeds, factors))
  return float(np.sqrt(np.mean((predicted - speeds)[from_:] ** 2)))


def _draw_driven(steps: int, workers: int, noise: float, seed: int = 0):
  """Returns speeds and factors of a known NARX process with random factors.

    v[k] = 10 + 0.5 (v[k-1] - 10) - 4 / (1 + 9 c[k]) + e[k]

  c[k] is read after iteration k-1: row k-1 of the factors.
  """
  draws = np.random.default_rng(seed)
  current = draws.uniform(size=(steps + 1, workers))
  for k in range(1, steps + 1):
    stays = draws.uniform(size=workers) < 0.8
    current[k] = np.where(stays, current[k - 1], current[k])
  speeds = np.empty((steps, workers))
  before = np.full(workers, 10.0)
  for k in range(steps):
    before = 10 + 0.5 * (before - 10) - 4 / (1 + 9 * current[k])
    before = before + noise * draws.standard_normal(workers)
    speeds[k] = before
  return speeds, current[1:, :, None]


@functools.cache
def _error_on_known(name: str) -> float:
  """Returns the error of a predictor on a known process."""
  return _error(name, *_draw_driven(800, 4, noise=0.2), from_=550)


class NarxTest(absltest.TestCase):
  def test_the_error_on_a_known_process_is_close_to_its_noise(self):
    self.assertLess(_error_on_known('narx'), 1.2 * 0.2)
    for other in ('last', 'ema'):
      self.assertGreater(_error_on_known(other), 1.5 * _error_on_known('narx'))

  def test_current_factors_reduce_the_error(self):
    speeds, factors = _draw_driven(800, 4, noise=0.2)
    found = _error_on_known('narx')
    for blind in errors.ablations(errors.Trace(speeds, factors)).values():
      self.assertGreater(_error('narx', *blind, from_=550), 1.5 * found)

  def test_past_speeds_alone_predict_a_periodic_process(self):
    draws = np.random.default_rng(0)
    speeds = 10 + 3 * np.sin(np.arange(500)[:, None] * 0.9 + [0, 1, 2, 3])
    speeds += 0.1 * draws.standard_normal(speeds.shape)
    factors = np.empty((*speeds.shape, 0))
    found = _error('narx', speeds, factors, from_=350)
    self.assertLess(found, 0.3)
    self.assertGreater(_error('ema', speeds, factors, from_=350), 1.0)


class RecurrentTest(parameterized.TestCase):
  def test_lstm_beats_averages_on_a_known_process(self):
    self._check_beats_averages('lstm')

  @pytest.mark.soak
  def test_rnn_beats_averages_on_a_known_process(self):
    self._check_beats_averages('rnn')

  def _check_beats_averages(self, name):
    for other in ('last', 'ema'):
      self.assertGreater(_error_on_known(other), 1.5 * _error_on_known(name))


class ArimaTest(parameterized.TestCase):
  def test_recovers_a_known_autoregression(self):
    draws = np.random.default_rng(0)
    noise = draws.standard_normal((600, 2))
    values = noise.copy()
    for k in range(2, 600):
      values[k] += 1.2 * values[k - 1] - 0.7 * values[k - 2]
    speeds = 50 + values
    factors = np.empty((600, 2, 0))
    floor = float(np.sqrt(np.mean(noise[300:] ** 2)))

    found = _error('arima', speeds, factors, from_=300, p=2, d=0, q=0, kept=300)

    self.assertLess(found, 1.03 * floor)
    self.assertGreater(_error('last', speeds, factors, from_=300), 1.2 * floor)

  def test_recovers_a_known_moving_average_of_differences(self):
    # The best prediction is an exponential average of weight 0.3.
    draws = np.random.default_rng(1)
    noise = draws.standard_normal((600, 1))
    steps = noise.copy()
    steps[1:] -= 0.7 * noise[:-1]
    speeds = 200 + np.cumsum(steps, axis=0)
    factors = np.empty((600, 1, 0))

    found = _error('arima', speeds, factors, from_=300, p=0, d=1, q=1)

    best = _error('ema', speeds, factors, from_=300, smoothing=0.3)
    self.assertLess(abs(found / best - 1), 0.03)

  def _make(self, **changed):
    settings = {'p': 1, 'd': 0, 'q': 0, 'kept': 40, 'needed': 20, 'refit': 10}
    return arima.make(
      num_factors=0, seed=0, smoothing=0.3, **settings | changed
    )

  def test_every_worker_is_fitted_in_turn(self):
    predictor = self._make(num_workers=3, needed=8, refit=1)
    draws = np.random.default_rng(0)
    for step in range(20):
      predictor.observe(draws.uniform(1, 2, 3), np.empty((3, 0)))
      if step > 10:
        # One fit of each in three observations.
        age = predictor.history.count - predictor.fitted_at
        self.assertCountEqual(age, [0, 1, 2])

  @parameterized.parameters((1, 0, 1), (1, 1, 1))
  def test_a_worker_that_was_reset_is_predicted_as_a_new_one(self, p, d, q):
    own = {'num_workers': 1, 'p': p, 'd': d, 'q': q, 'refit': 30}
    used, new = self._make(**own), self._make(**own)
    draws = np.random.default_rng(0)
    none = np.empty((1, 0))
    for _ in range(25):
      used.observe(draws.uniform(5, 9, 1), none)
    used.reset(0)
    for _ in range(30):
      np.testing.assert_array_equal(used.predict(), new.predict())
      speed = draws.uniform(1, 2, 1)
      used.observe(speed, none)
      new.observe(speed, none)
    self.assertEqual(new.num_fallback, 0)

  def test_fits_one_worker_at_a_time(self):
    predictor = self._make(num_workers=5)
    draws = np.random.default_rng(0)
    waiting = []
    for _ in range(26):
      predictor.observe(draws.uniform(1, 2, 5), np.empty((5, 0)))
      waiting.append(predictor.num_fallback)
    self.assertEqual(waiting[18:], [5, 4, 3, 2, 1, 0, 0, 0])


class BoundTest(parameterized.TestCase):
  """Tests of networks against averages where factors have no use."""

  # Seed and length differ from those of the traces that settings were tuned on.
  @parameterized.parameters(
    *((kind, 'narx') for kind in _BOUND),
    *(('lost factors', name) for name in ('rnn', 'lstm')),
  )
  def test_networks_are_hardly_worse_than_averages(self, kind, name):
    self._assert_bounded(kind, name)

  @parameterized.parameters(
    *((kind, 'narx') for kind in _MORE), ('regimes', 'rnn'), ('crowd', 'lstm')
  )
  @pytest.mark.soak
  def test_networks_are_hardly_worse_on_other_traces(self, kind, name):
    self._assert_bounded(kind, name)

  def _assert_bounded(self, kind, name):
    trace = errors.Trace(*synthetic.make(kind, seed=400, steps=400))
    (ratio,) = errors.excess([name], trace)
    self.assertLess(ratio, 1.02)

  @parameterized.parameters(('driven', 0.5), ('noise', 0.9), ('regimes', 0.98))
  def test_networks_beat_averages_on_predictable_traces(self, kind, most):
    trace = errors.Trace(*synthetic.make(kind, seed=401, steps=400))
    (ratio,) = errors.excess(['narx'], trace)
    self.assertLess(ratio, most)

  @parameterized.parameters(1, 9)
  def test_the_bound_holds_for_any_number_of_workers(self, workers):
    trace = errors.Trace(
      *synthetic.make('shifts', seed=402, steps=300, workers=workers)
    )
    (ratio,) = errors.excess(['narx'], trace)
    self.assertLess(ratio, 1.02)


class TraceTest(parameterized.TestCase):
  """Tests on real traces, where they are available."""

  @parameterized.product(job=['job1', 'job3'], name=['narx', 'rnn', 'lstm'])
  def test_networks_are_no_worse_than_averages(self, job, name):
    path = requires.data(f'pai/{job}.csv')
    (ratio,) = errors.excess([name], errors.read_pai(path))
    self.assertLess(ratio, 1.02)

  @parameterized.parameters(('job1', 13.8), ('job3', 31.2))
  def test_the_error_of_the_last_speed_is_reproduced(self, job, yardstick):
    path = requires.data(f'pai/{job}.csv')
    found = errors.error_of('last', errors.read_pai(path))
    self.assertAlmostEqual(found, yardstick, delta=0.05)

  def test_current_factors_help_narx_on_the_recording(self):
    self._assert_factors_help(600)

  @pytest.mark.soak
  def test_current_factors_help_narx_on_the_whole_recording(self):
    self._assert_factors_help(None)

  def _assert_factors_help(self, steps):
    values, factors = errors.read_recording(errors.RECORDED)
    trace = errors.Trace(values[:steps], factors[:steps])
    found = errors.error_of('narx', trace)
    least = min(errors.error_of(name, trace) for name in ('last', 'ema'))
    self.assertLess(found, 0.98 * least)
    for blind in errors.ablations(trace).values():
      self.assertGreater(errors.error_of('narx', blind), 1.01 * found)


class BenchTest(absltest.TestCase):
  def test_the_score_is_of_the_end_of_each_worker(self):
    values = np.arange(1.0, 29.0)[:, None] * [1.0, 2.0]
    values[18:, 1] = np.nan
    trace = errors.Trace(values, np.empty((28, 2, 0)))
    predictions = values - 3.0
    predictions[:22, 0] = 99.0  # The score excludes 8 + 70 % of 20,
    predictions[:15, 1] = 99.0  # and 8 + 70 % of 10.
    self.assertEqual(errors.error(predictions, trace), 3.0)
    predictions[22, 0] -= 3.0
    self.assertGreater(errors.error(predictions, trace), 3.0)

  def test_the_score_ignores_gaps(self):
    values = np.arange(1.0, 29.0)[:, None]
    gaps = np.insert(values, [3, 15, 26], np.nan, axis=0)
    predictions = np.arange(28.0)[:, None] ** 1.1
    of_gaps = np.insert(predictions, [3, 15, 26], 99.0, axis=0)
    whole = errors.Trace(values, np.empty((28, 1, 0)))
    other = errors.Trace(gaps, np.empty((31, 1, 0)))
    self.assertEqual(
      errors.error(of_gaps, other), errors.error(predictions, whole)
    )

  def test_recordings_are_read_by_worker_and_iteration(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'trace.csv')
      path.write_text(
        'worker,iteration,time,compute_s,cpu,memory\n'
        '0,0,1.0,0.5,0.9,0.8\n0,1,2.0,0.25,0.7,0.6\n1,0,3.0,0.125,0.5,0.4\n'
      )
      trace = errors.read_recording(str(path))
    np.testing.assert_array_equal(trace.values, [[2, 8], [4, np.nan]])
    np.testing.assert_array_equal(trace.factors[:, 0], [[0.9, 0.8], [0.7, 0.6]])
    np.testing.assert_array_equal(trace.factors[0, 1], [0.5, 0.4])
    self.assertTrue(np.isnan(trace.factors[1, 1]).all())


if __name__ == '__main__':
  absltest.main()
