"""Measures cost and exactness of the search for a barrier, by method.

Times are the fastest of several calls.  A stable sort of the same points, timed
alongside, is a control.
"""

import functools
from collections.abc import Mapping

import numpy as np

from bench import zipline as bench
from sync import zipline

_METHODS = ('sort', 'zipline', 'opt', 'opt_bs', 'grid_scan', 'full_grid_scan')
_WORKERS = {'quick': (10, 100, 400), 'full': (10, 100, 1000)}
_POINTS = (15, 150)
_SMALL = 40  # Searches to compare with brute force.


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns the records of costs, of their slopes and of exactness."""
  records: list[Mapping[str, object]] = [_exactness(seed)]
  for points in _POINTS:
    costs = {n: _costs(seed, n, points, scale) for n in _WORKERS[scale]}
    for n, each in costs.items():
      records += [
        {
          'method': method,
          'n': n,
          'R': points,
          'us': us,
          'of_sort': us / each['control'],
        }
        for method, us in each.items()
      ]
    large = max(_WORKERS[scale])
    records += [
      {
        'method': method,
        'slope_of': points,
        'slope': float(
          np.log(costs[large][method] / costs[100][method])
          / np.log(large / 100)
        ),
      }
      for method in _METHODS
      if method in costs[large]
    ]
  return records


def _costs(seed: int, n: int, points: int, scale: str) -> dict[str, float]:
  times = bench.published_times(np.random.default_rng([seed, n]), n, points)
  sort = functools.partial(np.sort, times.ravel(), kind='stable')
  costs = {'control': 1e6 * bench.least_seconds(sort)}
  for method in _METHODS:
    # Cost grows as n^2 R^2: 4 s of NumPy at n = 400, R = 150.
    is_long = method == 'full_grid_scan' and n * points > 100 * 150
    if is_long and scale == 'quick':
      continue
    search = functools.partial(zipline.search, times, method=method)
    costs[method] = 1e6 * bench.least_seconds(search)
  return costs


def _exactness(seed: int) -> Mapping[str, object]:
  """Returns the share of searches that find the smallest wait, by method."""
  rng = np.random.default_rng(seed)
  hits = dict.fromkeys(_METHODS, 0)
  for _ in range(_SMALL):
    times = bench.random_times(rng, 4, 5)
    least = zipline.search(times, method='brute_force').wait_s
    for method in _METHODS:
      hits[method] += zipline.search(times, method=method).wait_s == least
  shares = {f'exact.{name}': count / _SMALL for name, count in hits.items()}
  return {'part': 'exact', **shares}
