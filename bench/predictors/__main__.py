"""Measures errors and costs of predictors, and the gain of balanced batches.

  python -m bench.predictors
  python -m bench.predictors --parts=constant,ratio --lab
  python -m bench.predictors --parts=errors --trace=mine.csv

errors: of each predictor of predict/ on a recording of tools.record, whose
values are speeds in steps per second, and on the PAI traces, whose values are
times.  bench/predictors/errors.py says which values count.
synthetic: the same on traces of bench/synthetic.py.
costs: milliseconds to predict and observe 1,000 workers.
traces: throughput of LB-BSP on these traces.  An oracle knows the next speeds;
the table has the share of its gain over equal batches that LB-BSP reaches with
each predictor.
constant: four workers with slowdowns of 1, 1, 2 and 3.  The table has examples
per second over the sum of the workers' solo speeds, with equal batches and with
LB-BSP.
ratio: one slow worker among four.  The table has the speed-ups of LB-BSP over
BSP, and of R2SP with tuned batches over R2SP without, beside published ones.

With --lab (root; 9 minutes more) the last two parts also run in a lab of
tools.lab, with injected compute times and links of 1 Gbit/s.  The first three
parts take about two minutes on two cores.
"""

import csv
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from absl import app, flags

from analysis import printing
from batching import fixed
from bench import flag_lists, synthetic
from bench.predictors import batches, errors
from bench.predictors.errors import Trace
from cluster.speed import speed as speeds
from configs import paths
from learning import compilations

_PARTS = ('errors', 'synthetic', 'costs', 'traces', 'constant', 'ratio')
_JOBS = ('job1', 'job3')
_NAMES = ('last', 'ema', 'arima', 'rnn', 'lstm', 'narx')
_NETWORKS = ('rnn', 'lstm', 'narx')
_SEEDS = (300, 301)  # Not among those that the gate was chosen with.
_TIMED = ('last', 'ema', 'narx', 'rnn', 'lstm', 'arima')
_SLOWDOWN = (1.0, 1.0, 2.0, 3.0)
_RATIOS = (1, 2, 4, 8)
_BALANCED = ('last', 'ema', 'lstm', 'narx')
_SYNTHETIC = ('shifts', 'spikes', 'periodic', 'driven', 'regimes')
_CLAIMS = (
  'LB-BSP: up to 2x (poster, 2018), up to 54 % (SoCC 2020)',
  'R2SP: 40 % faster convergence by tuned batches (INFOCOM 2019)',
)


def main(argv: list[str]) -> None:
  """Prints the tables of the chosen parts."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  out = pathlib.Path(values.out or tempfile.mkdtemp())
  pai = pathlib.Path(values.data or os.environ.get('SYNCOPATE_DATA', ''), 'pai')
  if 'errors' in values.parts:
    trace = errors.read_recording(values.trace or errors.RECORDED)
    print_errors('recorded, steps per second', trace)
    for job, path in _find_jobs(pai):
      print_errors(f'PAI {job}, times', errors.read_pai(path))
  if 'synthetic' in values.parts:
    print_synthetic()
  if 'costs' in values.parts:
    print_costs()
  if 'traces' in values.parts:
    print_traces(pai)
  if 'constant' in values.parts:
    print_constant(out / 'constant', lab=values.lab)
  if 'ratio' in values.parts:
    print_ratio(out / 'ratio', lab=values.lab)


def print_errors(title: str, trace: Trace) -> None:
  """Prints error and duration of every predictor on a trace."""
  steps, workers, factors = trace.factors.shape
  print(f'\n{title}: {workers} workers, up to {steps} values each\n')
  print(f'{"predictor":26}{"RMSE":>10}{"/ last":>9}{"seconds":>9}')
  runs = [(name, name, trace) for name in (*_NAMES, errors.ALONE)]
  if factors:
    runs += [
      (row, 'narx', other) for row, other in errors.ablations(trace).items()
    ]
  last_error = None
  for row, name, run_trace in runs:
    start = time.perf_counter()
    rmse = errors.error_of(name, run_trace)
    seconds = time.perf_counter() - start
    last_error = last_error or rmse
    print(
      f'{row:26}{rmse:10.4g}{rmse / last_error:9.3f}{seconds:9.1f}',
      flush=True,
    )


def print_synthetic() -> None:
  """Prints the larger ratio of the seeds for each kind of synthetic trace."""
  names = ('last', 'ema', *_NETWORKS, errors.ALONE)
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
        errors.excess(names, Trace(*synthetic.make(kind, seed=seed)))
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
    predictor = errors.make(name, num_workers=workers, num_factors=2)
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


def print_traces(pai: pathlib.Path) -> None:
  """Prints the share of an oracle's gain that LB-BSP reaches, by trace."""
  traces = {
    'recorded': batches.read_speeds(
      errors.RECORDED, 'compute_s', 'iteration', 'cpu,memory'
    )
  }
  for job, path in _find_jobs(pai):
    speed_of = batches.read_speeds(path, 'batch_time_norm', 'time', '')
    traces[f'PAI {job}'] = speed_of
  traces |= {f'synthetic, {kind}': _synthetic(kind) for kind in _SYNTHETIC}
  rows = [('trace', 'fixed', 'oracle', *_BALANCED, 'aim')]
  for name, (speed, supersteps) in traces.items():
    workers = speed.model.num_workers
    equal = batches.simulate(
      fixed.make(num_workers=workers, worker_batch=batches.BATCH),
      speed,
      supersteps,
    )
    oracle = batches.simulate(
      batches.Oracle(speed, workers * batches.BATCH), speed, supersteps
    )
    alone = batches.solo_rate(speed, supersteps)
    cells = [name, f'{equal / alone:.3f}', f'{oracle / alone:.3f}']
    for predictor in _BALANCED:
      reached = batches.simulate(
        batches.make_lb_bsp(predictor, speed), speed, supersteps
      )
      cells.append(
        f'{reached / alone:.3f} ({(reached - equal) / (oracle - equal):.0%})'
      )
    rows.append((*cells, '50%'))
  print(
    '\nExamples/s over the mean sum of solo speeds (share of the gap between '
    f'fixed and\noracle), bulk-synchronous:\n\n{printing.markdown(rows)}',
    flush=True,
  )


def print_constant(out: pathlib.Path, *, lab: bool) -> None:
  """Prints the speeds of equal and balanced batches over the solo speeds.

  Args:
    out: Folder of the runs.
    lab: Whether to measure real processes in a lab, too.
  """
  alone = sum(1 / (batches.EXAMPLE_S * slowdown) for slowdown in _SLOWDOWN)
  rows = [('batching', 'virtual', 'aim', 'lab', 'aim')]
  for name, aims in (('fixed', ('', '')), ('lb_bsp', ('0.95', '0.90'))):
    reached = [
      f'{rate / alone:.3f}' if rate else '-'
      for rate in batches.measure_rates(out, 'bsp', name, _SLOWDOWN, lab=lab)
    ]
    rows.append((name, reached[0], aims[0], reached[1], aims[1]))
  print(
    f'\nExamples/s over the sum of the solo speeds, workers '
    f'{_SLOWDOWN} times as slow:\n\n{printing.markdown(rows)}',
    flush=True,
  )


def print_ratio(out: pathlib.Path, *, lab: bool) -> None:
  """Prints speed-ups by the slowdown of the slowest worker.

  Args:
    out: Folder of the runs.
    lab: Whether to measure real processes in a lab, too.
  """
  rows = [('slowest/fastest', 'bound', 'LB-BSP', 'LB-BSP, lab')]
  rows[0] += ('R2SP tuned', 'R2SP tuned, lab')
  for ratio in _RATIOS:
    slowdown = (1.0,) * (batches.WORKERS - 1) + (float(ratio),)
    bound = ratio * sum(1 / each for each in slowdown) / batches.WORKERS
    cells = [f'{ratio}', f'{bound:.2f}']
    for sync, tuned in (('bsp', 'lb_bsp'), ('r2sp', 'r2sp')):
      base, balanced = (
        batches.measure_rates(out / f'{ratio}', sync, name, slowdown, lab=lab)
        for name in ('fixed', tuned)
      )
      cells += [
        f'{new / old:.2f}' if new else '-'
        for new, old in zip(balanced, base, strict=True)
      ]
    rows.append(tuple(cells))
  print(
    f'\nExamples/s over the same scheme with equal batches, one slow worker of '
    f'{batches.WORKERS}:\n\n{printing.markdown(rows)}\n\n' + '\n'.join(_CLAIMS),
    flush=True,
  )


def _find_jobs(pai: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
  """Yields name and file of each PAI job, and prints which are missing."""
  for job in _JOBS:
    path = pai / f'{job}.csv'
    if path.exists():
      yield job, path
    else:
      print(f'PAI {job}: skipped, there is no {path}')


def _synthetic(kind: str) -> tuple[speeds.Speed, int]:
  """Returns synthetic speeds, and their number of iterations."""
  generated, factors = synthetic.make(kind, seed=300)
  names = [f'factor{number}' for number in range(factors.shape[2])]
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'synthetic.csv')
    with path.open('w', encoding='utf-8') as file:
      writer = csv.writer(file)
      writer.writerow(['worker', 'iteration', 'time_s', *names])
      for (step, worker), value in np.ndenumerate(generated):
        writer.writerow([worker, step, 1 / value, *factors[step, worker]])
    return batches.read_speeds(path, 'time_s', 'iteration', ','.join(names))


def _parse(argv: list[str]) -> list[str]:
  flag_lists.define_choices('parts', _PARTS, 'Parts to print.')
  paths.define_path(
    'data', 'Folder of pai/job1.csv and job3.csv; $SYNCOPATE_DATA by default.'
  )
  paths.define_path(
    'trace',
    'Of errors: recording of tools.record; bench/recorded.csv by default.',
  )
  flags.DEFINE_bool(
    'lab', False, 'Of constant and ratio: runs in a lab, too (root).'
  )
  paths.define_path(
    'out', 'Of constant and ratio: folder of the runs; a new one by default.'
  )
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
