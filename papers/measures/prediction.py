"""Measures errors and costs of predictors on synthetic traces."""

import time
from collections.abc import Mapping

import numpy as np

from bench import synthetic
from bench.predictors import errors

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
    trace = errors.Trace(*generated)
    rmse = {name: errors.error_of(name, trace) for name in _PREDICTORS}
    rmse['yardstick'] = min(rmse['last'], rmse['ema'])
    if trace.factors.shape[-1]:
      late = errors.ablations(trace)['narx, no current factors']
      rmse['narx, late'] = errors.error_of('narx', late)
    records += [
      {'kind': kind, 'predictor': name, 'rmse': each}
      for name, each in rmse.items()
    ]
  ms = _cost_ms(seed)
  return [*records, {'kind': 'cost', 'predictor': 'narx', 'ms': ms}]


def _cost_ms(seed: int) -> float:
  """Returns the milliseconds to predict and observe four workers, median."""
  draws = np.random.default_rng(seed)
  predictor = errors.make('narx', num_workers=4, num_factors=2)
  times_ms = []
  for _ in range(_TIMED):
    speeds, factors = 1 + draws.uniform(size=4), draws.uniform(size=(4, 2))
    start = time.perf_counter()
    predictor.predict()
    predictor.observe(speeds, factors)
    times_ms.append(1e3 * (time.perf_counter() - start))
  return float(np.median(times_ms[_TIMED // 2 :]))
