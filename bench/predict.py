"""Measures the errors and the cost of predictions of speeds.

  python -m bench.predict [--data=DIR] [--trace=FILE]

Each predictor of predict/, at its defaults, walks through a trace: it predicts
every value before it is told.  Errors are root mean squares over the last 30 %
of each worker's values, averaged over workers; all that comes before is for
learning.  The first eight values are no part of either, as the yardsticks of
the PAI traces leave them out.  FILE is a recording of tools/record.py
(bench/recorded.csv if not given), whose values are speeds in steps per
second; DIR (or $SYNCOPATE_DATA) holds pai/job1.csv and pai/job3.csv, whose
values are times.  Made traces are those of bench/made.py.  Takes about two
minutes on two cores.
"""

import argparse
import importlib
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bench import made
from cluster.speed import driving, traces
from configs import default
from learning import compilations
from predict.predictor import Predictor

_NAMES = ('last', 'ema', 'arima', 'rnn', 'lstm', 'narx')
_NETWORKS = ('rnn', 'lstm', 'narx')
_ALONE = 'narx, network alone'
_SEEDS = (300, 301)  # None of those that the gate was chosen with.
_BOUNDED = ('last', 'ema', 'narx', 'rnn', 'lstm', 'arima')
RECORDED = pathlib.Path(__file__).with_name('recorded.csv')
_LEFT_OUT = 8
_LEARNT = 0.7


class Trace(NamedTuple):
  """Measurements of each worker, by iteration.

  Attributes:
    values: Float64 [T, n], speeds or times; NaN after a worker's last.
    factors: Float64 [T, n, F], read after the iteration.
  """

  values: np.ndarray
  factors: np.ndarray


def main(argv: list[str] | None = None) -> None:
  """Prints the table of errors and that of costs."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--data', default=os.environ.get('SYNCOPATE_DATA', ''))
  parser.add_argument('--trace', default=str(RECORDED))
  arguments = parser.parse_args(argv)
  if pathlib.Path(arguments.trace).exists():
    print_errors('recorded, steps per second', recorded(arguments.trace))
  else:
    print(f'recorded: skipped, there is no {arguments.trace}')
  for job in ('job1', 'job3'):
    path = pathlib.Path(arguments.data, 'pai', f'{job}.csv')
    if arguments.data and path.exists():
      print_errors(f'PAI {job}, times', pai(path))
    else:
      print(f'PAI {job}: skipped, there is no {path}')
  print_made()
  print_costs()


def recorded(path: str | pathlib.Path) -> Trace:
  """Returns the speeds and the factors that tools/record.py has recorded."""
  rows = traces.rows(
    str(path),
    driving.NAMES,
    worker_column='worker',
    order_column='iteration',
    value_column='compute_s',
  )
  return _trace([row._replace(value=1 / row.value) for row in rows])


def pai(path: str | pathlib.Path) -> Trace:
  """Returns the times of a job of the PAI trace; there are no factors."""
  rows = traces.rows(
    str(path),
    (),
    worker_column='worker',
    order_column='time',
    value_column='batch_time_norm',
  )
  return _trace(rows)


def make(name: str, *, num_workers: int, num_factors: int) -> Predictor:
  """Returns a predictor with the arguments that configs/default.py has."""
  own = default.get_config().batching.lb_bsp.predictor[name].to_dict()
  module = importlib.import_module(f'predict.{name}')
  return module.make(
    num_workers=num_workers, num_factors=num_factors, seed=0, **own
  )


def walk(
  predictor: Predictor,
  trace: Trace,
  asked: Callable[[Predictor], np.ndarray] = lambda it: it.predict(),
) -> np.ndarray:
  """Returns what is predicted of each value from those before: [T, n].

  Args:
    predictor: Predictor, which observes the trace.
    trace: Measurements.
    asked: Returns the prediction of a predictor.
  """
  predictions = np.empty_like(trace.values)
  for step, (values, factors) in enumerate(zip(*trace, strict=True)):
    predictions[step] = asked(predictor)
    predictor.observe(values, factors)
  return predictions


def error(predictions: np.ndarray, trace: Trace) -> float:
  """Returns the root mean square over the end, averaged over workers."""
  errors = []
  for predicted, values in zip(predictions.T, trace.values.T, strict=True):
    missed = (predicted - values)[np.isfinite(values)]
    start = _LEFT_OUT + int(_LEARNT * (len(missed) - _LEFT_OUT))
    errors.append(np.sqrt(np.mean(missed[start:] ** 2)))
  return float(np.mean(errors))


def missed(name: str, trace: Trace) -> float:
  """Returns the error of a predictor at its defaults on a trace.

  Args:
    name: Module of predict/; or 'narx, network alone', which is what its
      network says, whatever weight that has.
    trace: Measurements.
  """
  _, workers, factors = trace.factors.shape
  predictor = make(
    'narx' if name == _ALONE else name,
    num_workers=workers,
    num_factors=factors,
  )
  if name == _ALONE:
    return error(walk(predictor, trace, lambda it: it.gate.experts[-1]), trace)
  return error(walk(predictor, trace), trace)


def excess(names: Sequence[str], trace: Trace) -> list[float]:
  """Returns errors over the smaller one of `last` and `ema`.

  1 where both are none, as on a trace that never changes.
  """
  least = min(missed(name, trace) for name in ('last', 'ema'))
  errors = [missed(name, trace) for name in names]
  return [1.0 if each == least else each / least for each in errors]


def ablated(trace: Trace) -> dict[str, Trace]:
  """Returns the trace as it is, without current factors and without any."""
  late = np.full_like(trace.factors, np.nan)
  late[1:] = trace.factors[:-1]
  return {
    'narx, no current factors': trace._replace(factors=late),
    'narx, no factors': trace._replace(factors=trace.factors[..., :0]),
  }


def print_errors(title: str, trace: Trace) -> None:
  """Prints a row per predictor."""
  steps, workers, factors = trace.factors.shape
  print(f'\n{title}: {workers} workers, up to {steps} values each\n')
  print(f'{"predictor":26}{"RMSE":>10}{"of last":>9}{"seconds":>9}')
  runs = [(name, name, trace) for name in (*_NAMES, _ALONE)]
  if factors:
    runs += [(row, 'narx', other) for row, other in ablated(trace).items()]
  yardstick = None
  for row, name, told in runs:
    start = time.perf_counter()
    found = missed(name, told)
    seconds = time.perf_counter() - start
    yardstick = yardstick or found
    print(
      f'{row:26}{found:10.4g}{found / yardstick:9.3f}{seconds:9.1f}',
      flush=True,
    )


def print_made() -> None:
  """Prints a row per kind of made trace: the larger ratio of the seeds."""
  names = ('last', 'ema', *_NETWORKS, _ALONE)
  print('\nmade traces, over the better one of last and ema, worst of seeds\n')
  print(f'{"kind":16}' + ''.join(f'{name.split()[-1]:>9}' for name in names))
  for title, kinds in (('chosen on', made.DESIGN), ('held out', made.HELD_OUT)):
    print(f'{title}:')
    for kind in kinds:
      found = [
        excess(names, Trace(*made.make(kind, seed=seed))) for seed in _SEEDS
      ]
      cells = ''.join(f'{ratio:9.3f}' for ratio in np.max(found, axis=0))
      print(f'{kind:16}{cells}', flush=True)


def print_costs(workers: int = 1000, rounds: int = 300) -> None:
  """Prints what a prediction and an observation of all workers cost."""
  draws = np.random.default_rng(0)
  factors = draws.uniform(size=(rounds, workers, 2))
  speeds = 1 + factors[..., 0] + draws.uniform(size=(rounds, workers))
  print(f'\npredict and observe, {workers} workers, 2 factors\n')
  print(f'{"predictor":26}{"median ms":>10}{"p90 ms":>9}{"compiled":>9}')
  for name in _BOUNDED:
    predictor = make(name, num_workers=workers, num_factors=2)
    before = compilations.count()
    times_ms = []
    for step in range(rounds):
      start = time.perf_counter()
      predictor.predict()
      predictor.observe(speeds[step], factors[step])
      times_ms.append(1e3 * (time.perf_counter() - start))
    compiled = compilations.count() - before
    settled = times_ms[-100:]  # What is kept is full, and ARIMA fits.
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


if __name__ == '__main__':
  main()
