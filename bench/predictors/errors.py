"""Errors of predictors of speeds on traces.

A predictor of predict/, with its default settings, runs through a trace: it
predicts every value before it observes it.  Errors are root mean squares over
the last 30 % of each worker's values, averaged over workers; the earlier values
are for learning.  The first eight values count for neither, because the
published errors of the PAI traces omit them.
"""

import importlib
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cluster.speed import driving, traces
from configs import default
from predict.predictor import Predictor

RECORDED = pathlib.Path(__file__).parents[1] / 'recorded.csv'
ALONE = 'narx, network alone'
_SKIPPED = 8  # First values of a worker, which count for no error.
_LEARNING_SHARE = 0.7  # Share of the other values that is for learning only.


class Trace(NamedTuple):
  """Measurements of all workers, by iteration.

  Attributes:
    values: Float64 [T, n], speeds or times; NaN after a worker's last one.
    factors: Float64 [T, n, F], read after the iteration.
  """

  values: np.ndarray
  factors: np.ndarray


def read_recording(path: str | pathlib.Path) -> Trace:
  """Returns the speeds and factors of a recording of tools/record.py."""
  rows = traces.rows(
    str(path),
    driving.NAMES,
    worker_column='worker',
    order_column='iteration',
    value_column='compute_s',
  )
  return _trace([row._replace(value=1 / row.value) for row in rows])


def read_pai(path: str | pathlib.Path) -> Trace:
  """Returns the times of a job of the PAI trace, without factors."""
  rows = traces.rows(
    str(path),
    (),
    worker_column='worker',
    order_column='time',
    value_column='batch_time_norm',
  )
  return _trace(rows)


def make(
  name: str, *, num_workers: int, num_factors: int, seed: int = 0
) -> Predictor:
  """Returns a predictor with the settings of configs/default.py.

  Args:
    name: Module of predict/.
  """
  settings = default.get_config().batching.lb_bsp.predictor[name].to_dict()
  module = importlib.import_module(f'predict.{name}')
  return module.make(
    num_workers=num_workers, num_factors=num_factors, seed=seed, **settings
  )


def walk(
  predictor: Predictor,
  trace: Trace,
  forecast: Callable[[Predictor], np.ndarray] = lambda p: p.predict(),
) -> np.ndarray:
  """Returns the prediction of each value from the values before it, [T, n].

  It learns from the trace as it goes, and is changed.

  Args:
    predictor: Predictor that has observed nothing.
    trace: Measurements, of T iterations of n workers.
    forecast: Returns what the predictor predicts.
  """
  predictions = np.empty_like(trace.values)
  for step, (values, factors) in enumerate(zip(*trace, strict=True)):
    predictions[step] = forecast(predictor)
    predictor.observe(values, factors)
  return predictions


def error(predictions: np.ndarray, trace: Trace) -> float:
  """Returns the root mean square error, averaged over workers.

  Args:
    predictions: Float64 [T, n].
    trace: Measurements; the values for learning do not count.
  """
  errors = []
  for predicted, values in zip(predictions.T, trace.values.T, strict=True):
    residuals = (predicted - values)[np.isfinite(values)]
    start = _SKIPPED + int(_LEARNING_SHARE * (len(residuals) - _SKIPPED))
    errors.append(np.sqrt(np.mean(residuals[start:] ** 2)))
  return float(np.mean(errors))


def error_of(name: str, trace: Trace, seed: int = 0) -> float:
  """Returns the error of a predictor with its default settings on a trace.

  Args:
    name: Module of predict/; or 'narx, network alone' for the prediction of
      NARX's network without the gate that weighs it.
  """
  _, workers, factors = trace.factors.shape
  predictor = make(
    'narx' if name == ALONE else name,
    num_workers=workers,
    num_factors=factors,
    seed=seed,
  )
  if name == ALONE:
    return error(walk(predictor, trace, lambda p: p.gate.experts[-1]), trace)
  return error(walk(predictor, trace), trace)


def excess(names: Sequence[str], trace: Trace) -> list[float]:
  """Returns the errors of predictors over the smaller one of `last` and `ema`.

  The ratio is 1 where both errors are 0, as on a trace that never changes.
  """
  least = min(error_of(name, trace) for name in ('last', 'ema'))
  errors = [error_of(name, trace) for name in names]
  return [1.0 if each == least else each / least for each in errors]


def ablations(trace: Trace) -> dict[str, Trace]:
  """Returns the trace without current factors, and without any factors."""
  late = np.full_like(trace.factors, np.nan)
  late[1:] = trace.factors[:-1]
  return {
    'narx, no current factors': trace._replace(factors=late),
    'narx, no factors': trace._replace(factors=trace.factors[..., :0]),
  }


def _trace(rows: Sequence[traces.Row]) -> Trace:
  series: dict[str, list] = {}
  for row in sorted(rows, key=lambda row: row.order):
    series.setdefault(row.worker, []).append((row.value, *row.driving))
  steps = max(map(len, series.values()))
  table = np.full((steps, len(series), 1 + len(rows[0].driving)), np.nan)
  for worker, name in enumerate(sorted(series)):
    table[: len(series[name]), worker] = series[name]
  return Trace(table[..., 0], table[..., 1:])
