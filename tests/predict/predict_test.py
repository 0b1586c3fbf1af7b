"""Tests for the behavior that all predictors share."""

import copy
import importlib
import pickle

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import default
from learning import compilations
from outputs import serialization
from predict import gate

_TRAINED = ('narx', 'rnn', 'lstm')
_NAMES = ('last', 'ema', 'arima', *_TRAINED)
_WORKERS = 3


def _make(
  name: str, *, num_workers: int = _WORKERS, num_factors: int = 2, needed=20
):
  """Returns a predictor that fits early, as tests are short."""
  own = default.get_config().batching.lb_bsp.predictor[name].to_dict()
  if 'needed' in own:
    own.update(needed=needed, kept=40)
  module = importlib.import_module(f'predict.{name}')
  return module.make(
    num_workers=num_workers, num_factors=num_factors, seed=3, **own
  )


def _series(steps: int, *, seed: int = 0, num_factors: int = 2):
  """Returns speeds, [T, n], driven by factors, [T, n, F], one step earlier."""
  draws = np.random.default_rng(seed)
  factors = draws.uniform(size=(steps, _WORKERS, max(num_factors, 1)))
  noise = draws.uniform(0.9, 1.1, (steps, _WORKERS))
  speeds = np.array([1.0, 20.0, 300.0]) * noise
  speeds[1:] *= 0.5 + factors[:-1, :, 0]
  return speeds, factors[..., :num_factors]


def _walk(predictor, speeds, factors):
  predictions = [predictor.predict()]
  for step in zip(speeds, factors, strict=True):
    predictor.observe(*step)
    predictions.append(predictor.predict())
  return np.array(predictions)


class EveryPredictorTest(parameterized.TestCase):
  @parameterized.parameters(
    *((name, 2) for name in _NAMES), *((name, 0) for name in _NAMES[:-2])
  )
  def test_predicts_each_observed_worker_and_no_other(self, name, num_factors):
    self._assert_observed_alone(name, num_factors)

  @parameterized.parameters('rnn', 'lstm')
  @pytest.mark.soak  # Compiles both networks again.
  def test_recurrent_networks_predict_without_factors(self, name):
    self._assert_observed_alone(name, 0)

  def _assert_observed_alone(self, name, num_factors):
    predictor = _make(name, num_factors=num_factors)
    speeds, factors = _series(60, num_factors=num_factors)
    speeds[:, 1] = np.nan

    predictions = _walk(predictor, speeds, factors)

    self.assertEqual(predictions.dtype, np.float64)
    self.assertTrue(np.isnan(predictions[0]).all())
    self.assertTrue(np.isnan(predictions[:, 1]).all())
    seen = predictions[1:, [0, 2]]
    self.assertTrue((seen >= speeds[:, [0, 2]].min(axis=0)).all())
    self.assertTrue((seen <= speeds[:, [0, 2]].max(axis=0)).all())

  @parameterized.parameters(*_NAMES)
  def test_predictions_do_not_depend_on_the_future(self, name):
    speeds, factors = _series(60)
    others, other_factors = speeds.copy(), factors.copy()
    others[45:] *= 3
    other_factors[45:] = 0

    one = _walk(_make(name), speeds, factors)
    other = _walk(_make(name), others, other_factors)

    np.testing.assert_array_equal(one[:46], other[:46])
    self.assertTrue((one[46:] != other[46:]).any())

  @parameterized.parameters(*_NAMES)
  def test_a_copy_continues_like_the_original(self, name):
    speeds, factors = _series(60)
    straight = _walk(_make(name), speeds, factors)
    for at in (0, 7, 33):
      first = _make(name)
      _walk(first, speeds[:at], factors[:at])
      for second in (
        pickle.loads(pickle.dumps(first)),
        copy.deepcopy(first),
      ):
        rest = _walk(second, speeds[at:], factors[at:])
        np.testing.assert_array_equal(rest, straight[at:])

  @parameterized.parameters(*_NAMES)
  def test_the_state_can_be_saved_in_a_checkpoint(self, name):
    predictor = _make(name)
    _walk(predictor, *_series(25))
    serialization.check('predictor', predictor)

  @parameterized.parameters(*_NAMES)
  def test_repeated_predictions_are_equal(self, name):
    speeds, factors = _series(40)
    predictor = _make(name)
    _walk(predictor, speeds, factors)
    once = predictor.predict()
    once_more = predictor.predict()
    np.testing.assert_array_equal(once, once_more)
    once[:] = 0  # Results are copies.
    np.testing.assert_array_equal(predictor.predict(), once_more)

  @parameterized.parameters(*_NAMES)
  def test_a_missing_speed_is_no_observation(self, name):
    speeds, factors = _series(50)
    alone = _make(name)
    straight = _walk(alone, speeds, factors)[-1]
    gaps = _make(name)
    nothing = np.full(_WORKERS, np.nan)
    for step, now in enumerate(zip(speeds, factors, strict=True)):
      gaps.observe(*now)
      before = gaps.predict()
      if step % 3 == 0:
        gaps.observe(nothing, factors[step] + 1)
        np.testing.assert_array_equal(gaps.predict(), before)
    np.testing.assert_array_equal(gaps.predict(), straight)

  @parameterized.parameters(*_NAMES)
  def test_workers_can_be_observed_at_different_times(self, name):
    speeds, factors = _series(90)
    speeds[::2, 0] = np.nan
    speeds[:50, 1] = np.nan
    factors[::3, 2] = np.nan

    predictions = _walk(_make(name), speeds, factors)[-1]

    self.assertTrue(np.isfinite(predictions).all())
    self.assertTrue((predictions >= np.nanmin(speeds, axis=0)).all())
    self.assertTrue((predictions <= np.nanmax(speeds, axis=0)).all())

  @parameterized.parameters(*_NAMES)
  def test_reset_deletes_the_history_of_one_worker(self, name):
    speeds, factors = _series(60)
    predictor = _make(name)
    _walk(predictor, speeds, factors)
    others = predictor.predict()[[0, 2]]

    predictor.reset(1)

    after = predictor.predict()
    self.assertTrue(np.isnan(after[1]))
    np.testing.assert_array_equal(after[[0, 2]], others)
    # A machine of another speed: no history affects its prediction.
    predictor.observe(np.array([1.0, 7e4, 300.0]), factors[0])
    self.assertEqual(predictor.predict()[1], 7e4)

  @parameterized.parameters(*_NAMES)
  def test_predictions_stay_within_the_range_of_past_speeds(self, name):
    speeds, factors = _series(80)
    speeds[40] = 1e90
    speeds[45] = 1e-90
    speeds[50:, 1] = 5.0  # A speed that no longer changes.
    factors[42] = 1e99
    factors[60:] = 0.0

    predictions = _walk(_make(name), speeds, factors)[1:]

    self.assertTrue(np.isfinite(predictions).all())
    low = np.minimum.accumulate(speeds, axis=0)
    high = np.maximum.accumulate(speeds, axis=0)
    # An average is a sum, and rounded.
    self.assertTrue((predictions >= low * (1 - 1e-12)).all())
    self.assertTrue((predictions <= high * (1 + 1e-12)).all())

  @parameterized.parameters(*_NAMES)
  def test_constant_speeds_are_predicted_exactly(self, name):
    predictor = _make(name)
    factors = _series(60)[1]
    speeds = np.tile([0.1, 3.0, 1e4], (60, 1))
    np.testing.assert_allclose(
      _walk(predictor, speeds, factors)[1:], speeds, rtol=1e-12
    )

  @parameterized.parameters(*_TRAINED, 'last', 'ema')
  def test_nothing_is_compiled_after_construction(self, name):
    predictor = _make(name)
    before = compilations.count()
    speeds, factors = _series(60)
    speeds[30:40] = np.nan
    speeds[41, 0] = np.nan
    factors[35:45] = np.nan

    _walk(predictor, speeds, factors)
    predictor.reset(0)
    _walk(predictor, speeds, factors)

    self.assertEqual(compilations.count(), before)

  @parameterized.parameters(*_NAMES)
  def test_invalid_observations_are_rejected(self, name):
    speeds, factors = _series(1)
    for wrong, message in (
      ((speeds[0][:2], factors[0]), r'speeds: expected the shape \(3,\), got'),
      ((speeds[0], factors[0][:, :1]), r'factors: .* \(3, 2\), got \(3, 1\)'),
      ((speeds[0] * [1, 0, 1], factors[0]), 'speeds: .* got 0.0 for worker 1'),
      ((speeds[0] * [1, 1, -1], factors[0]), 'speeds: .* for worker 2'),
      ((np.full(3, np.inf), factors[0]), 'speeds: .* got inf for worker 0'),
      ((speeds[0], np.full((3, 2), np.inf)), 'factors: .* for worker 0'),
    ):
      predictor = _make(name)
      with self.assertRaisesRegex(ValueError, message):
        predictor.observe(*wrong)
      self.assertTrue(np.isnan(predictor.predict()).all())
    for worker in (-1, 3):
      with self.assertRaisesRegex(ValueError, 'worker: expected 0 to 2, got'):
        _make(name).reset(worker)

  @parameterized.product(
    name=_NAMES,
    wrong=[{'num_workers': 0}, {'num_factors': -1}, {'num_workers': 2.0}],
  )
  def test_invalid_sizes_are_rejected(self, name, wrong):
    with self.assertRaisesRegex(ValueError, f'{next(iter(wrong))}: expected'):
      _make(name, **wrong)

  @parameterized.parameters(
    ('arima', 'needed', 3),
    ('narx', 'kept', 3),
    ('narx', 'needed', 3),
  )
  def test_too_few_observations_are_rejected(self, name, field, value):
    own = default.get_config().batching.lb_bsp.predictor[name].to_dict()
    module = importlib.import_module(f'predict.{name}')
    with self.assertRaisesRegex(ValueError, f'{field}: expected'):
      module.make(
        num_workers=_WORKERS, num_factors=2, seed=0, **(own | {field: value})
      )


class FallbackTest(parameterized.TestCase):
  @parameterized.parameters(*_TRAINED, 'arima')
  def test_averages_predict_until_there_is_enough_history(self, name):
    predictor, averages = _make(name), _make(name, needed=1000)
    speeds, factors = _series(45)
    speeds[20:, 0] = np.nan  # 20 observations, of 20 that are needed.
    speeds[19:, 1] = np.nan  # 19 observations.
    speeds[::2, 2] = np.nan  # 20 observations after 40 steps.
    counted = []
    for step in zip(speeds, factors, strict=True):
      predictor.observe(*step)
      averages.observe(*step)
      same = predictor.predict() == averages.predict()
      self.assertEqual(predictor.num_fallback, int(same.sum()))
      counted.append(predictor.num_fallback)
    self.assertEqual(same.tolist(), [False, True, False])
    self.assertEqual(counted[:2], [2, 3])
    self.assertEqual(counted[-1], 1)

  @parameterized.parameters(*_TRAINED)
  def test_the_fallback_mixes_the_last_speed_and_two_averages(self, name):
    network, last = _make(name, needed=1000), _make('last')
    quick, slow = _make('ema'), _make('ema')
    quick.smoothing, slow.smoothing = 0.7, 0.3
    mixed = gate.make(num_workers=_WORKERS, quick=0.7, slow=0.3, discount=0.03)
    for step in zip(*_series(45), strict=True):
      for each in (network, last, quick, slow):
        each.observe(*step)
      mixed.observe(step[0])
      expected = mixed.mix(slow.predict())
      np.testing.assert_allclose(network.predict(), expected, rtol=1e-12)
      averages = [each.predict() for each in (last, quick, slow)]
      np.testing.assert_allclose(network.gate.averages, averages, rtol=1e-12)

  @parameterized.parameters('last', 'ema')
  def test_predictors_without_history_never_fall_back(self, name):
    self.assertEqual(_make(name).num_fallback, 0)


class SeedTest(parameterized.TestCase):
  @parameterized.parameters(*_TRAINED)
  def test_the_seed_determines_the_predictions(self, name):
    own = default.get_config().batching.lb_bsp.predictor[name].to_dict()
    make = importlib.import_module(f'predict.{name}').make
    speeds, factors = _series(60)
    one, same, other = (
      _walk(
        make(num_workers=_WORKERS, num_factors=2, seed=seed, **own),
        speeds,
        factors,
      )
      for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    self.assertTrue((one[-1] != other[-1]).all())


if __name__ == '__main__':
  absltest.main()
