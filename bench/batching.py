"""Measures the gain of balanced batches on workers of unequal speed.

  python -m bench.batching [--parts=constant,ratio,traces] [--lab] [--out=DIR]
    [--data=DIR]

constant: four workers with slowdowns of 1, 1, 2 and 3.  The table has examples
per second over the sum of the workers' solo speeds, with equal batches and with
LB-BSP.
ratio: one slow worker among four.  The table has the speed-ups of LB-BSP over
BSP, and of R2SP with tuned batches over R2SP without, beside published ones.
traces: recorded speeds, and synthetic ones of bench/synthetic.py.  An oracle
knows the next speeds; the table has the share of its gain over equal batches
that LB-BSP reaches with each predictor.

With --lab (root; 9 minutes more) the first two parts also run in a lab (see
tools/lab.py), with injected compute times and links of 1 Gbit/s.  --data is the
folder that has pai/job1.csv and pai/job3.csv, $SYNCOPATE_DATA by default.
"""

import argparse
import contextlib
import csv
import dataclasses
import io
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import train
from analysis import records
from batching import allocation, fixed, lb_bsp
from batching.batching import Batching, Measurement
from bench import clusters, predict, synthetic
from cluster.speed import speed as speeds
from configs import default, timing

_PARTS = ('constant', 'ratio', 'traces')
_WORKERS = 4
BATCH = 32
_EXAMPLE_S = 0.004
_SLOWDOWN = (1.0, 1.0, 2.0, 3.0)
_RATIOS = (1, 2, 4, 8)
_SUPERSTEPS = 60
_SKIPPED = 15  # Supersteps in which LB-BSP and R2SP find their batches.
_PREDICTORS = ('last', 'ema', 'lstm', 'narx')
_SYNTHETIC = ('shifts', 'spikes', 'periodic', 'driven', 'regimes')
_CLAIMS = (
  'LB-BSP: up to 2x (poster, 2018), up to 54 % (SoCC 2020)',
  'R2SP: 40 % faster convergence by tuned batches (INFOCOM 2019)',
)


def main(argv: list[str] | None = None) -> None:
  """Prints the table of every part."""
  parser = argparse.ArgumentParser(
    prog='bench.batching', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--parts', default=','.join(_PARTS))
  parser.add_argument('--lab', action='store_true', help='real hosts, too')
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--data', default=os.environ.get('SYNCOPATE_DATA'))
  flags = parser.parse_args(argv)
  out = pathlib.Path(flags.out or tempfile.mkdtemp())
  for part in flags.parts.split(','):
    if part == 'constant':
      print_constant(out / part, lab=flags.lab)
    elif part == 'ratio':
      print_ratio(out / part, lab=flags.lab)
    elif part == 'traces':
      print_traces(flags.data)
    else:
      parser.error(f'--parts: expected some of {_PARTS}, got {part!r}.')


def print_constant(out: pathlib.Path, *, lab: bool) -> None:
  """Prints the speeds of equal and balanced batches over the solo speeds."""
  alone = sum(1 / (_EXAMPLE_S * slowdown) for slowdown in _SLOWDOWN)
  rows = [('batching', 'virtual', 'aim', 'lab', 'aim')]
  for name, aims in (('fixed', ('', '')), ('lb_bsp', ('0.95', '0.90'))):
    reached = [
      f'{rate / alone:.3f}' if rate else '-'
      for rate in _measured_rates(out, 'bsp', name, _SLOWDOWN, lab=lab)
    ]
    rows.append((name, reached[0], aims[0], reached[1], aims[1]))
  print(
    f'\nExamples/s over the sum of the solo speeds, workers '
    f'{_SLOWDOWN} times as slow:\n\n{clusters.table(*rows)}',
    flush=True,
  )


def print_ratio(out: pathlib.Path, *, lab: bool) -> None:
  """Prints speed-ups by the slowdown of the slowest worker."""
  rows = [('slowest/fastest', 'bound', 'LB-BSP', 'LB-BSP, lab')]
  rows[0] += ('R2SP tuned', 'R2SP tuned, lab')
  for ratio in _RATIOS:
    slowdown = (1.0,) * (_WORKERS - 1) + (float(ratio),)
    bound = ratio * sum(1 / each for each in slowdown) / _WORKERS
    cells = [f'{ratio}', f'{bound:.2f}']
    for sync, tuned in (('bsp', 'lb_bsp'), ('r2sp', 'r2sp')):
      base, balanced = (
        _measured_rates(out / f'{ratio}', sync, name, slowdown, lab=lab)
        for name in ('fixed', tuned)
      )
      cells += [
        f'{new / old:.2f}' if new else '-'
        for new, old in zip(balanced, base, strict=True)
      ]
    rows.append(tuple(cells))
  print(
    f'\nExamples/s over the same scheme with equal batches, one slow worker of '
    f'{_WORKERS}:\n\n{clusters.table(*rows)}\n\n' + '\n'.join(_CLAIMS),
    flush=True,
  )


def print_traces(data: str | None) -> None:
  """Prints the share of an oracle's gain that LB-BSP reaches, by trace."""
  traces = {
    'recorded': read_speeds(
      predict.RECORDED, 'compute_s', 'iteration', 'cpu,memory'
    )
  }
  for job in ('job1', 'job3'):
    path = pathlib.Path(data or '', 'pai', f'{job}.csv')
    if path.exists():
      traces[f'PAI {job}'] = read_speeds(path, 'batch_time_norm', 'time', '')
    else:
      print(f'PAI {job}: skipped, there is no {path}.')
  traces |= {f'synthetic, {kind}': _synthetic(kind) for kind in _SYNTHETIC}
  rows = [('trace', 'fixed', 'oracle', *_PREDICTORS, 'aim')]
  for name, (speed, supersteps) in traces.items():
    workers = speed.model.num_workers
    equal = simulate(
      fixed.make(num_workers=workers, worker_batch=BATCH), speed, supersteps
    )
    oracle = simulate(Oracle(speed, workers * BATCH), speed, supersteps)
    alone = solo_rate(speed, supersteps)
    cells = [name, f'{equal / alone:.3f}', f'{oracle / alone:.3f}']
    for predictor in _PREDICTORS:
      reached = simulate(make_lb_bsp(predictor, speed), speed, supersteps)
      cells.append(
        f'{reached / alone:.3f} ({(reached - equal) / (oracle - equal):.0%})'
      )
    rows.append((*cells, '50%'))
  print(
    '\nExamples/s over the mean sum of solo speeds (share of the gap between '
    f'fixed and\noracle), bulk-synchronous:\n\n{clusters.table(*rows)}',
    flush=True,
  )


class Rule(Protocol):
  """Part of a `Batching` that simulated supersteps need."""

  def observe(self, measurement: Measurement) -> None:
    """Takes the measurement of a worker's iteration."""

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the batch of each worker for the next superstep."""


def simulate(
  batching: Rule, speed: speeds.Speed, supersteps: int, start: int = 0
) -> float:
  """Returns the examples per second of simulated BSP supersteps.

  Args:
    batching: Batching, which observes each superstep.
    speed: Compute times of workers; transfers take no time.
    supersteps: Number of supersteps.
    start: Iteration of the speeds with which the first superstep begins.
  """
  workers = range(speed.model.num_workers)
  time, examples = 0.0, 0
  for iteration in range(start, start + supersteps):
    sizes = batching.assign(workers)
    took = [speed.seconds(w, iteration, sizes[w]) for w in workers]
    time += max(took)
    examples += sum(sizes.values())
    for worker in workers:
      batching.observe(
        Measurement(
          worker=worker,
          time=time,
          compute_s=took[worker],
          transfer_s=0.0,
          waited_s=max(took) - took[worker],
          examples=sizes[worker],
          factors=speed.driving(worker, iteration),
        )
      )
  return examples / time


@dataclasses.dataclass
class Oracle:
  """Batching with the true speeds of the next iterations.

  Attributes:
    speed: Speeds of the workers.
    total: Examples of a superstep.
    iteration: The next iteration.
  """

  speed: speeds.Speed
  total: int
  iteration: int = 0

  def observe(self, measurement: Measurement) -> None:
    """Does nothing, as the speeds are known."""
    del measurement

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns batches in proportion to the next speeds."""
    next_speeds = [
      1 / self.speed.seconds(worker, self.iteration, 1) for worker in workers
    ]
    self.iteration += 1
    most = [self.total] * len(workers)
    sizes = allocation.proportional(self.total, next_speeds, 1, most)
    return dict(zip(workers, map(int, sizes), strict=True))


def make_lb_bsp(name: str, speed: speeds.Speed, seed: int = 0) -> Batching:
  """Returns LB-BSP with a predictor, both with default settings.

  Args:
    name: Module of predict/.
    speed: Speeds of the workers.
    seed: Seed of the predictor's parameters.
  """
  section = default.get_config().batching.lb_bsp.to_dict()
  workers, factors = speed.model.num_workers, speed.model.num_driving
  section['predictor'] = predict.make(
    name, num_workers=workers, num_factors=factors, seed=seed
  )
  return lb_bsp.make(num_workers=workers, worker_batch=BATCH, **section)


def read_speeds(
  path: pathlib.Path, value: str, order: str, driving: str
) -> tuple[speeds.Speed, int]:
  """Returns recorded speeds, and the iterations that every worker has.

  Args:
    path: CSV file with a column `worker`.
    value: Column of the times.
    order: Column by which a worker's rows are sorted.
    driving: Columns of the driving factors, with commas between them.
  """
  columns = {'worker_column': 'worker', 'order_column': order}
  columns |= {'value_column': value, 'driving_columns': driving}
  with path.open(encoding='utf-8-sig') as file:
    place = file.readline().strip().split(',').index('worker')
    workers = [line.split(',')[place] for line in file]
  counts = [workers.count(worker) for worker in dict.fromkeys(workers)]
  model = speeds.trace(
    num_workers=len(counts), seed=0, path=str(path), **columns
  )
  speed = speeds.Speed(
    fixed_s=0.0,
    per_example_s=_EXAMPLE_S,
    slowdown=[1.0] * len(counts),
    model=model,
  )
  return speed, min(counts)


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
    return read_speeds(path, 'time_s', 'iteration', ','.join(names))


def solo_rate(speed: speeds.Speed, supersteps: int) -> float:
  """Returns the mean sum of the workers' solo speeds, examples/s.

  Args:
    speed: Speeds of the workers.
    supersteps: Number of iterations, from the first one.
  """
  workers = range(speed.model.num_workers)
  took = [[speed.seconds(w, k, 1) for w in workers] for k in range(supersteps)]
  return float(np.mean(np.sum(1 / np.array(took), axis=1)))


def _measured_rates(
  out: pathlib.Path,
  sync: str,
  batching: str,
  slowdown: Sequence[float],
  *,
  lab: bool,
) -> tuple[float, float | None]:
  """Returns the examples/s of a virtual run, and with `lab` of a real one."""
  fields = {
    **timing.fields(
      workers=_WORKERS,
      iterations=_SUPERSTEPS,
      size_bytes=100_000,
      batch=BATCH,
      compute_s=0.0,
    ),
    'sync.name': sync,
    'batching.name': batching,
    'cluster.speed.per_example_s': _EXAMPLE_S,
    'cluster.speed.slowdown': tuple(slowdown),
  }
  path = out / f'{sync}_{batching}'
  virtual = _examples_per_s(_run(path / 'virtual', fields))
  if not lab:
    return virtual, None
  real = clusters.run(
    path / 'real',
    'configs/default.py',
    fields | {'cluster.speed.injected': True, 'route.server.mirror_s': 0.0},
    workers=_WORKERS,
    link='1gbit',
  )
  return virtual, _examples_per_s(real)


def _run(path: pathlib.Path, fields: Mapping[str, Any]) -> pathlib.Path:
  with contextlib.redirect_stdout(io.StringIO()):  # Hides its table.
    train.build(timing.config(fields), workdir=str(path))()
  return path


def _examples_per_s(path: pathlib.Path) -> float:
  """Returns the examples/s of a run after the skipped supersteps."""
  pushes = [e for e in records.read_events(path) if e['event'] == 'push']
  pushes = pushes[_SKIPPED * _WORKERS - 1 :]
  examples = sum(push['examples'] for push in pushes[1:])
  return examples / (pushes[-1]['time'] - pushes[0]['time'])


if __name__ == '__main__':
  main()
