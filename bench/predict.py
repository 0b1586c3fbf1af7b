"""Measures the errors and the cost of predictions of speeds.

  python -m bench.predict [--data=DIR] [--trace=FILE]

Each predictor of predict/, with its default settings, runs through a trace: it
predicts every value before it observes it.  Errors are root mean squares over
the last 30 % of each worker's values, averaged over workers; the earlier values
are for learning.  The first eight values count for neither, because the
published errors of the PAI traces omit them.  FILE is a recording of
tools/record.py (bench/recorded.csv by default), whose values are speeds in
steps per second; DIR (or $SYNCOPATE_DATA) holds pai/job1.csv and pai/job3.csv,
whose values are times.  Synthetic traces are those of bench/synthetic.py.  The
benchmark takes about two minutes on two cores.
"""

import importlib
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from absl import app, flags

from bench import synthetic
from cluster.speed import driving, traces
from configs import default, paths
from learning import compilations
from predict.predictor import Predictor

_NAMES = ('last', 'ema', 'arima', 'rnn', 'lstm', 'narx')
_NETWORKS = ('rnn', 'lstm', 'narx')
_ALONE = 'narx, network alone'
_SEEDS = (300, 301)  # Not among those that the gate was chosen with.
_TIMED = ('last', 'ema', 'narx', 'rnn', 'lstm', 'arima')
RECORDED = pathlib.Path(__file__).with_name('recorded.csv')
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


def main(argv: list[str]) -> None:
  """Prints the errors on each trace and the costs of a prediction."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  trace = pathlib.Path(values.trace or RECORDED)
  if trace.exists():
    print_errors('recorded, steps per second', read_recording(trace))
  else:
    print(f'recorded: skipped, there is no {trace}')
  data = values.data or os.environ.get('SYNCOPATE_DATA', '')
  for job in ('job1', 'job3'):
    path = pathlib.Path(data, 'pai', f'{job}.csv')
    if data and path.exists():
      print_errors(f'PAI {job}, times', read_pai(path))
    else:
      print(f'PAI {job}: skipped, there is no {path}')
  print_synthetic()
  print_costs()


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
  """Returns a predictor with the settings of configs/default.py."""
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
  """Returns the prediction of each value from those before, [T, n].

  Args:
    predictor: Predictor, which observes the trace.
    trace: Measurements.
    forecast: Returns the prediction of a predictor.
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
    trace: Measurements.
    seed: Seed of the predictor's parameters.
  """
  _, workers, factors = trace.factors.shape
  predictor = make(
    'narx' if name == _ALONE else name,
    num_workers=workers,
    num_factors=factors,
    seed=seed,
  )
  if name == _ALONE:
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


def print_errors(title: str, trace: Trace) -> None:
  """Prints error and duration of every predictor on a trace."""
  steps, workers, factors = trace.factors.shape
  print(f'\n{title}: {workers} workers, up to {steps} values each\n')
  print(f'{"predictor":26}{"RMSE":>10}{"/ last":>9}{"seconds":>9}')
  runs = [(name, name, trace) for name in (*_NAMES, _ALONE)]
  if factors:
    runs += [(row, 'narx', other) for row, other in ablations(trace).items()]
  last_error = None
  for row, name, run_trace in runs:
    start = time.perf_counter()
    rmse = error_of(name, run_trace)
    seconds = time.perf_counter() - start
    last_error = last_error or rmse
    print(
      f'{row:26}{rmse:10.4g}{rmse / last_error:9.3f}{seconds:9.1f}',
      flush=True,
    )


def print_synthetic() -> None:
  """Prints the larger ratio of the seeds for each kind of synthetic trace."""
  names = ('last', 'ema', *_NETWORKS, _ALONE)
  print(
    '\nsynthetic traces: error over the better one of last and ema, worst of '
    'seeds\n'
  )
  print(f'{"kind":16}' + ''.join(f'{name.split()[-1]:>9}' for name in names))
  for title, kinds in (
    ('chosen on', synthetic.DESIGN),
    ('held out', synthetic.HELD_OUT),
  ):
    print(f'{title}:')
    for kind in kinds:
      excesses = [
        excess(names, Trace(*synthetic.make(kind, seed=seed)))
        for seed in _SEEDS
      ]
      cells = ''.join(f'{ratio:9.3f}' for ratio in np.max(excesses, axis=0))
      print(f'{kind:16}{cells}', flush=True)


def print_costs(workers: int = 1000, rounds: int = 300) -> None:
  """Prints the milliseconds to predict and observe all workers."""
  draws = np.random.default_rng(0)
  factors = draws.uniform(size=(rounds, workers, 2))
  speeds = 1 + factors[..., 0] + draws.uniform(size=(rounds, workers))
  print(f'\npredict and observe, {workers} workers, 2 factors\n')
  print(f'{"predictor":26}{"median ms":>10}{"p90 ms":>9}{"compiled":>9}')
  for name in _TIMED:
    predictor = make(name, num_workers=workers, num_factors=2)
    before = compilations.count()
    times_ms = []
    for step in range(rounds):
      start = time.perf_counter()
      predictor.predict()
      predictor.observe(speeds[step], factors[step])
      times_ms.append(1e3 * (time.perf_counter() - start))
    compiled = compilations.count() - before
    settled = times_ms[-100:]  # Histories are full, and ARIMA fits.
    print(
      f'{name:26}{np.median(settled):10.2f}{np.quantile(settled, 0.9):9.2f}'
      f'{compiled:9}',
      flush=True,
    )


def _trace(rows: Sequence[traces.Row]) -> Trace:
  series: dict[str, list] = {}
  for row in sorted(rows, key=lambda row: row.order):
    series.setdefault(row.worker, []).append((row.value, *row.driving))
  steps = max(map(len, series.values()))
  table = np.full((steps, len(series), 1 + len(rows[0].driving)), np.nan)
  for worker, name in enumerate(sorted(series)):
    table[: len(series[name]), worker] = series[name]
  return Trace(table[..., 0], table[..., 1:])


def _parse(argv: list[str]) -> list[str]:
  paths.define_path(
    'data', 'Folder of pai/job1.csv and job3.csv; $SYNCOPATE_DATA by default.'
  )
  paths.define_path(
    'trace', 'Recording of tools.record; bench/recorded.csv by default.'
  )
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
