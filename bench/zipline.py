"""Measures the search for a barrier, by method, workers and points.

  python -m bench.zipline
  python -m bench.zipline --max_n=1000

The first takes about 40 s on two cores, the second about 15 s.
Published figures: Zhao et al., "Elastic Bulk Synchronous Parallel Model for
Distributed Deep Learning", ICDM 2019, Table II, and its figure of variants.
"""

import functools
import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import app, flags

from sync import zipline

_WORKERS = (10, 30, 100, 300, 1000, 3000, 10000)
_POINTS = (15, 150)
_BUDGET_S = 5.0
# Least power of n with which the cost of a method grows.
_POWER = {
  'sort': 1,
  'zipline': 2,
  'opt': 2,
  'opt_bs': 1,
  'grid_scan': 1,
  'full_grid_scan': 2,
}
_PAPER_US = {
  ('zipline', 15): {10: 1.49e2, 100: 6.37e3, 1000: 2.53e5},
  ('zipline', 150): {10: 1.32e3, 100: 4.99e4, 1000: 2.38e6},
  ('opt', 15): {100: 1.7e3, 1000: 9.3e4},
  ('opt', 150): {100: 1.9e4, 1000: 7.7e5},
  ('opt_bs', 15): {100: 1.9e3, 1000: 7.6e4},
  ('opt_bs', 150): {100: 2.3e4, 1000: 5.6e5},
  ('grid_scan', 15): {10: 1.68e2, 100: 1.11e3, 1000: 7.45e3},
  ('grid_scan', 150): {10: 5.50e3, 100: 4.38e4, 1000: 2.57e5},
  ('full_grid_scan', 15): {10: 1.54e3, 100: 8.13e4, 1000: 4.04e6},
  ('full_grid_scan', 150): {10: 4.67e4, 100: 2.15e6, 1000: 2.07e8},
}


def main(argv: list[str]) -> None:
  """Measures and prints every table."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  max_n = flags.FLAGS.max_n
  print_sorts()
  for points in _POINTS:
    print_methods(points, [n for n in _WORKERS if n <= max_n])
  print(
    f'\n-: skipped, as predicted to take over {_BUDGET_S:g} s, or not '
    'published.\nopt and opt_bs of the paper are read off a figure.  slope: '
    'fitted power of n,\nover n >= 100.  Times are the fastest of several '
    'runs.  brute_force is left\nout: its R^n choices are too many for any n '
    'here.'
  )


def published_times(
  rng: np.random.Generator, n: int, columns: int, pushes: int = 10
) -> np.ndarray:
  """Returns predicted end times as in the paper's experiments on cost.

  Every worker has one interval, a whole number of milliseconds from 1000 to
  1500, and starts at a whole number of milliseconds below n.  It pushes
  `pushes` times, and then until no worker has a later push; its predictions are
  its last push and the expected pushes after it.

  Args:
    n: Number of workers.
    columns: Number R of predictions per worker.

  Returns:
    Float64 [n, R], milliseconds.
  """
  interval = rng.integers(1000, 1501, (n, 1)).astype(np.float64)
  start = rng.integers(0, n, (n, 1))
  last = start + interval * (pushes - 1)
  last += interval * np.ceil((last.max() - last) / interval)
  return last + interval * np.arange(columns)


def random_times(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
  """Returns end times with uniform gaps, float64 [n, R], seconds."""
  # Subtracted from one, because a gap must not be zero.
  return np.cumsum(1.0 - rng.uniform(size=(n, columns)), axis=1)


def print_sorts(n: int = 1000, columns: int = 150, runs: int = 31) -> None:
  """Prints the cost of a search beside one stable sort of the same points."""
  print(
    f'Search by sort, with its checks, beside np.sort(kind="stable") of all '
    f'points:\nn = {n}, R = {columns}, medians of {runs} interleaved runs.\n'
  )
  print(f'{"times":<12}{"np.sort ms":>12}{"search ms":>12}{"ratio":>8}')
  for name, generate in (
    ('published', published_times),
    ('random gaps', random_times),
  ):
    times = generate(np.random.default_rng(0), n, columns)
    sort = functools.partial(np.sort, times.ravel(), kind='stable')
    search = functools.partial(zipline.search, times)
    seconds = [(_seconds(sort), _seconds(search)) for _ in range(runs)]
    sort_s, search_s = np.median(seconds, axis=0)
    print(f'{name:<12}{1e3 * sort_s:12.2f}{1e3 * search_s:12.2f}', end='')
    print(f'{search_s / sort_s:8.2f}')


def print_methods(columns: int, workers: Sequence[int]) -> None:
  """Prints the microseconds of every method, and the published ones."""
  cost = {method: _costs(method, columns, workers) for method in _POWER}
  ratio = {
    method: {n: us / cost['sort'][n] for n, us in row.items()}
    for method, row in cost.items()
  }
  paper = {method: _PAPER_US.get((method, columns), {}) for method in _POWER}
  _print_block(f'R = {columns}: microseconds', cost, workers)
  _print_block(f'R = {columns}: times the cost of sort', ratio, workers)
  published = [n for n in workers if n in (10, 100, 1000)]
  _print_block(
    f'R = {columns}: microseconds in the paper, C++', paper, published
  )


def _costs(
  method: str, columns: int, workers: Sequence[int]
) -> dict[int, float]:
  """Returns the microseconds of a search by number of workers."""
  # Stops at the first number whose search would exceed the budget.
  costs = {}
  for n in workers:
    if costs:
      before, us = list(costs.items())[-1]
      if 1e-6 * us * (n / before) ** _POWER[method] > _BUDGET_S:
        break
    times = published_times(np.random.default_rng(n), n, columns)
    search = functools.partial(zipline.search, times, method=method)
    costs[n] = 1e6 * least_seconds(search)
  return costs


def least_seconds(call: Callable[[], object]) -> float:
  """Returns the seconds of the fastest of up to 21 calls.

  There are fewer calls where they take over 0.7 s in all.  The fastest counts
  because other load on the machine can only slow a call down.
  """
  seconds = [_seconds(call)]
  while len(seconds) < 21 and sum(seconds) < 0.7:
    seconds.append(_seconds(call))
  return min(seconds)


def _seconds(call: Callable[[], object]) -> float:
  start = time.perf_counter()
  call()
  return time.perf_counter() - start


def _print_block(
  title: str,
  rows: dict[str, dict[int, float]],
  workers: Sequence[int],
) -> None:
  print(f'\n{title}\n')
  print(''.join(f'{name:>10}' for name in ('n', *workers, 'slope')))
  for method, row in rows.items():
    cells = [format(row[n], '.3g') if n in row else '-' for n in workers]
    print(f'{method:<15}' + ''.join(f'{c:>10}' for c in (*cells, _slope(row))))


def _slope(row: dict[int, float]) -> str:
  """Returns the fitted power of n; a dash for fewer than two numbers."""
  fitted = {n: value for n, value in row.items() if n >= 100}
  if len(fitted) < 2:
    return '-'
  slope, _ = np.polyfit(np.log([*fitted]), np.log([*fitted.values()]), 1)
  return f'{slope:.2f}'


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer(
    'max_n', max(_WORKERS), 'Most workers to measure.', lower_bound=1
  )
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
