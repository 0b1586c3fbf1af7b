"""Measures errors and costs of predictors on synthetic traces."""

import time
from collections.abc import Mapping

import numpy as np

from bench import predict, synthetic

_KINDS = ('driven', 'bursts', 'regimes', 'idle factors')
_PREDICTORS = ('last', 'ema', 'arima', 'rnn', 'lstm', 'narx')
_SEED = 500  # First seed; predictors were chosen with smaller ones.
_STEPS = {'quick': 300, 'full': 600}
_TIMED = 200


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns root mean square errors by kind and predictor, and milliseconds."""
  records: list[Mapping[str, object]] = []
  for kind in _KINDS:
    generated = synthetic.make(kind, seed=_SEED + seed, steps=_STEPS[scale])
    trace = predict.Trace(*generated)
    errors = {name: predict.error_of(name, trace) for name in _PREDICTORS}
    errors['yardstick'] = min(errors['last'], errors['ema'])
    if trace.factors.shape[-1]:
      late = predict.ablations(trace)['narx, no current factors']
      errors['narx, late'] = predict.error_of('narx', late)
    records += [
      {'kind': kind, 'predictor': name, 'rmse': error}
      for name, error in errors.items()
    ]
  ms = _cost_ms(seed)
  return [*records, {'kind': 'cost', 'predictor': 'narx', 'ms': ms}]


def _cost_ms(seed: int) -> float:
  """Returns the milliseconds to predict and observe four workers, median."""
  draws = np.random.default_rng(seed)
  predictor = predict.make('narx', num_workers=4, num_factors=2)
  times_ms = []
  for _ in range(_TIMED):
    speeds, factors = 1 + draws.uniform(size=4), draws.uniform(size=(4, 2))
    start = time.perf_counter()
    predictor.predict()
    predictor.observe(speeds, factors)
    times_ms.append(1e3 * (time.perf_counter() - start))
  return float(np.median(times_ms[_TIMED // 2 :]))
