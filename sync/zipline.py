"""The barrier at which workers of unequal speed wait least for each other.

The search chooses one of every worker's predicted iterations, so that the first
worker to stop waits as short as possible for the last: the smallest range that
covers an element of each of n sorted lists.  Zhao et al., "Elastic Bulk
Synchronous Parallel Model for Distributed Deep Learning", ICDM 2019, pose the
problem and give ZipLine and two grid scans.
"""

import bisect
import collections
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Barrier(NamedTuple):
  """A synchronisation point of all workers.

  Attributes:
    iteration: Int64 [n].  Per worker, the last column of the predicted end
      times that is not after `end_s`: the iteration after which it stops.
    start_s: Seconds at which the first worker stops.
    end_s: Seconds at which the last worker stops.
    wait_s: `end_s - start_s`, the longest wait of any worker.
  """

  iteration: np.ndarray
  start_s: float
  end_s: float
  wait_s: float


_WORST = (np.inf, np.inf)  # Wait and end, beyond those of any window.


def search(end_times: np.ndarray, *, method: str = 'sort') -> Barrier:
  """Returns the barrier at which the longest wait of a worker is shortest.

  Every barrier is fixed by its end: each worker stops at its last point that
  is not after the end, and the earliest of these is the start.  Among the ends
  whose waits, as float64 differences, are smallest, the earliest is taken; its
  start is then the earliest too.  The result is therefore unique, and the same
  on every machine and by every exact method, for m points in all:

    sort: One sort of the points, no loop over them.  O(m log m).
    zipline: ZipLine of the paper, linear search for each point.  O(m n).
    opt: ZipLineOpt, which spares the search at the start of the window.
    opt_bs: ZipLineOptBS, binary search instead of linear.  O(m log n), but for
      the deletions from an array.
    brute_force: Every choice of points.  O(R^n), for tests.

  Two methods of the paper are heuristics, which may miss the smallest wait.
  Only the end they find is used; the stops before it are as above, which can
  only shorten the wait:

    grid_scan: Around each point of the worker that is first to finish, the
      nearest point of every worker.  O(R^2 n).
    full_grid_scan: The same around the points of all workers.  O(R^2 n^2).

  Args:
    end_times: Float64 [n, R], seconds.  Row p holds the predicted end times of
      the next iterations of worker p, strictly increasing.  A worker with
      fewer than R of them is padded at the end with infinity.
    method: One of the names above.

  Raises:
    ValueError: If `end_times` is not of the kind described or is empty, if a
      worker has no finite end time, or if the method is unknown.

  Example:
    >>> barrier = search(np.array([[3., 6., 9.], [4., 8., 12.]]))
    >>> barrier.iteration.tolist(), barrier.wait_s
    ([0, 0], 1.0)
  """
  if method not in _METHODS:
    raise ValueError(f'Expected a method in {[*_METHODS]}, got {method!r}.')
  times = np.asarray(end_times, np.float64)
  _check(times)
  with np.errstate(over='ignore'):  # An infinite wait compares as it should.
    end_s = _METHODS[method](times)
  iteration = (times <= end_s).sum(axis=1, dtype=np.int64) - 1
  start_s = float(times[np.arange(len(times)), iteration].min())
  return Barrier(iteration, start_s, end_s, end_s - start_s)


def _check(times: np.ndarray) -> None:
  if times.ndim != 2 or times.size == 0:
    raise ValueError(
      f'Expected a non-empty array of shape [n, R], got {times.shape}.'
    )
  earlier, later = times[:, :-1], times[:, 1:]
  increasing = (later > earlier) | (later == np.inf)
  if np.isfinite(times[:, 0]).all() and increasing.all():
    return
  for wrong, expected in (
    (np.isnan(times), 'no NaN'),
    (times == -np.inf, 'no -inf'),
    (~increasing, 'strictly increasing times, then only padding'),
    (times[:, :1] == np.inf, 'a finite time for every worker'),
  ):
    if wrong.any():
      worker = int(wrong.any(axis=1).argmax())
      raise ValueError(
        f'Expected {expected}, got {times[worker]} for worker {worker}.'
      )


def _sort(times: np.ndarray) -> float:
  """Returns the end of the best window, by one sort."""
  # A window that starts at x ends at the latest of the workers' first points
  # and of the successors, within their rows, of all points before x.  No window
  # can start after the earliest of the workers' last points.
  latest_start = np.where(times < np.inf, times, -np.inf).max(axis=1).min()
  flat = times.ravel()
  # A row's last point is never below the bound, so that the next element of
  # the flat array is always a successor in the same row, and finite.
  index = np.flatnonzero(flat < latest_start)
  points, successors = flat[index], flat[index + 1]
  # Equal points may come in any order: the first of them decides, and what
  # comes later among them sees the same end or a later one.
  order = points.argsort()
  starts = np.append(points[order], latest_start)
  ends = np.append(times[:, 0].max(), successors[order])
  np.maximum.accumulate(ends, out=ends)
  return float(ends[(ends - starts).argmin()])


def _zipline(times: np.ndarray) -> float:
  window: list[int] = []  # Workers with a point in the window, by its time.
  stamp_of: dict[int, float] = {}
  missing = len(times)
  best = _WORST
  for stamp, worker in _merge_points(times):
    try:
      window.remove(worker)
    except ValueError:  # A worker without a point yet, or removed below.
      missing -= 1
    window.append(worker)
    stamp_of[worker] = stamp
    if not missing:
      best = min(best, (stamp - stamp_of[window[0]], stamp))
      del window[0]
      missing = 1
  return best[1]


def _opt(times: np.ndarray) -> float:
  window: collections.deque[int] = collections.deque()
  stamp_of: dict[int, float] = {}
  best = _WORST
  for stamp, worker in _merge_points(times):
    first = bool(window) and window[0] == worker
    full = len(window) == len(times)
    if first:
      window.popleft()
    elif worker in stamp_of:
      window.remove(worker)
    window.append(worker)
    stamp_of[worker] = stamp
    # Only a full window that has lost its first point, or has just been
    # filled, can be better than the ones before.
    if len(window) == len(times) and (first or not full):
      best = min(best, (stamp - stamp_of[window[0]], stamp))
  return best[1]


def _opt_bs(times: np.ndarray) -> float:
  window: list[tuple[float, int]] = []  # Time and worker, sorted.
  stamp_of: dict[int, float] = {}
  best = _WORST
  for stamp, worker in _merge_points(times):
    first = bool(window) and window[0][1] == worker
    full = len(window) == len(times)
    if first:
      del window[0]
    elif worker in stamp_of:
      del window[bisect.bisect_left(window, (stamp_of[worker], worker))]
    window.append((stamp, worker))
    stamp_of[worker] = stamp
    if len(window) == len(times) and (first or not full):
      best = min(best, (stamp - window[0][0], stamp))
  return best[1]


def _merge_points(times: np.ndarray) -> Iterator[tuple[float, int]]:
  """Yields the finite points and their workers, by time, then by worker."""
  order = times.argsort(axis=None, kind='stable')
  order = order[: np.count_nonzero(times < np.inf)]
  yield from zip(
    times.ravel()[order].tolist(),
    (order // times.shape[1]).tolist(),
    strict=True,
  )


def _grid_scan(times: np.ndarray) -> float:
  return _scan_around(times, times[times[:, 0].argmin()])


def _full_grid_scan(times: np.ndarray) -> float:
  return _scan_around(times, times.ravel())


def _scan_around(times: np.ndarray, centres: np.ndarray) -> float:
  rows = np.arange(len(times))
  best = _WORST
  for centre in centres[centres < np.inf].tolist():
    nearest = times[rows, np.abs(times - centre).argmin(axis=1)]
    end = float(nearest.max())
    best = min(best, (end - float(nearest.min()), end))
  return best[1]


def _brute_force(times: np.ndarray) -> float:
  rows = [row[row < np.inf].tolist() for row in times]
  choices = itertools.product(*rows)
  return float(min((max(z) - min(z), max(z)) for z in choices)[1])


_METHODS = {
  'sort': _sort,
  'zipline': _zipline,
  'opt': _opt,
  'opt_bs': _opt_bs,
  'grid_scan': _grid_scan,
  'full_grid_scan': _full_grid_scan,
  'brute_force': _brute_force,
}
