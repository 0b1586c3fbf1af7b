"""What the search for a barrier costs, and how good what it finds is.

Times are the fastest of several, with a stable sort of the same points beside
them in the same window as a control.
"""

import functools
from collections.abc import Mapping

import numpy as np

from bench import zipline as bench
from claims.measures import answering
from sync import zipline

_METHODS = ('sort', 'zipline', 'opt', 'opt_bs', 'grid_scan', 'full_grid_scan')
_WORKERS = {'quick': (10, 100, 400), 'full': (10, 100, 1000)}
_POINTS = (15, 150)
_SMALL = 40  # Searches beside brute force.


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns a record per method, workers and points, and those of slopes."""
  found: list[Mapping[str, object]] = [_found(seed)]
  for points in _POINTS:
    costs = {n: _costs(seed, n, points, scale) for n in _WORKERS[scale]}
    for n, each in costs.items():
      found += [
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
    found += [
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
  return found


def _costs(seed: int, n: int, points: int, scale: str) -> dict[str, float]:
  times = bench.published_times(np.random.default_rng([seed, n]), n, points)
  sort = functools.partial(np.sort, times.ravel(), kind='stable')
  costs = {'control': 1e6 * bench.least_seconds(sort)}
  for method in _METHODS:
    # Grows as n^2 R^2: 4 s of NumPy at n = 400, R = 150.
    long = method == 'full_grid_scan' and n * points > 100 * 150
    if long and scale == 'quick':
      continue
    search = functools.partial(zipline.search, times, method=method)
    costs[method] = 1e6 * bench.least_seconds(search)
  return costs


def _found(seed: int) -> Mapping[str, object]:
  """Returns shares of small searches that find the smallest wait there is."""
  rng = np.random.default_rng(seed)
  hits = dict.fromkeys(_METHODS, 0)
  for _ in range(_SMALL):
    times = bench.random_times(rng, 4, 5)
    least = zipline.search(times, method='brute_force').wait_s
    for method in _METHODS:
      hits[method] += zipline.search(times, method=method).wait_s == least
  shares = {f'exact.{name}': count / _SMALL for name, count in hits.items()}
  return {'part': 'exact', **shares}


if __name__ == '__main__':
  answering.print_records(measure)
