"""Distributions that papers plot: phases, gaps between updates, bandwidth.

Memory does not grow with the run.  Quantiles are means of bins of relative
width, as in Masson, Rim and Lee,
'DDSketch: a Fast and Fully-Mergeable Quantile Sketch with Relative-Error
Guarantees' (VLDB 2019).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from outputs.accounting import PHASES

_STEP = math.log(1.01)  # Width of bins, in logarithms.
_BINS, _ZERO = 1 << 16, 1 << 15  # Keys of a series; key of the number 1.
_HELD = 4096  # Rows that are not in bins yet, at most.
_QUANTILES = {'median_s': 0.5, 'p95_s': 0.95}
_WINDOWS = 256  # At most; then two become one.
_FIRST_S = 2.0**-10  # Length of a window at first.


@dataclasses.dataclass
class Spread:
  """Distributions of numbers >= 0, one for each pair of a row and a column.

  Numbers are counted in bins whose largest number is 1 % above the smallest.  A
  quantile is the mean of its bin: exact where all numbers of the bin are equal.
  Adding takes O(1), amortised; memory is proportional to the number of bins.

  Attributes:
    columns: Number of columns.
    held: Numbers to be counted: a row's index, and one number for each column.
    keys: Int64 [bins], ascending: row, column and bin in one number.
    counts: Float64 [bins], how many numbers each bin has.
    sums: Float64 [bins], sum of the numbers of each bin.
  """

  is_state = True  # Plain data: checkpoints hold it.

  columns: int
  held: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
  keys: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, np.int64)
  )
  counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
  sums: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

  def add(self, row: tuple[float, ...]) -> None:
    """Adds a row's index, followed by a number for each column."""
    self.held.append(row)
    if len(self.held) >= _HELD:
      self.fold()

  def fold(self) -> None:
    """Moves the numbers that `add` has collected into bins."""
    if not self.held:
      return
    held = np.array(self.held)
    self.held.clear()
    numbers = np.maximum(held[:, 1:], 0.0)
    with np.errstate(divide='ignore'):
      bins = np.floor(np.log(numbers) / _STEP).clip(-_ZERO, _ZERO - 1)
    series = held[:, :1] * self.columns + np.arange(self.columns)
    keys = (series * _BINS + bins + _ZERO).astype(np.int64).ravel()
    self.keys, into = np.unique(
      np.concatenate([self.keys, keys]), return_inverse=True
    )
    counts = np.concatenate([self.counts, np.ones(len(keys))])
    sums = np.concatenate([self.sums, numbers.ravel()])
    self.counts = np.bincount(into, counts)
    self.sums = np.bincount(into, sums)

  def rows(self) -> list[int]:
    """Returns the indices of the rows that have numbers, ascending."""
    self.fold()
    rows = np.unique(self.keys // (_BINS * self.columns))
    return [int(row) for row in rows]

  def quantiles(
    self, column: int, row: int | None = None, *, zeros: float = 0.0
  ) -> dict[str, float | None]:
    """Returns the median and the 95th percentile of a column, seconds.

    A quantile is the smallest number at or below which a share of the numbers
    lies; None without numbers.

    Args:
      column: Index of the column.
      row: Index of the row; None for all rows.
      zeros: Number of zeros that belong to the numbers but were not added.
    """
    self.fold()
    if row is None:
      chosen = self.keys // _BINS % self.columns == column
    else:
      first = (row * self.columns + column) * _BINS
      chosen = slice(*np.searchsorted(self.keys, (first, first + _BINS)))
    bins, into = np.unique(self.keys[chosen] % _BINS, return_inverse=True)
    counts = np.bincount(into, self.counts[chosen], len(bins))
    means = np.bincount(into, self.sums[chosen], len(bins)) / counts
    ends = zeros + np.cumsum(counts)
    total = float(ends[-1]) if len(bins) else zeros
    found: dict[str, float | None] = dict.fromkeys(_QUANTILES)
    for name, share in _QUANTILES.items() if total else ():
      rank = math.ceil(share * total - 1e-9)  # 0.95 is no binary fraction.
      at = np.searchsorted(ends, rank)
      found[name] = 0.0 if rank <= zeros else float(means[at])
    return found


@dataclasses.dataclass
class Measures:
  """Distributions of a run so far; plain data.

  Attributes:
    phases: Seconds of an iteration in each phase, a row for each worker.
    gaps: Seconds from one update to the next; one row.
    applied: Number of pushes in updates.
    updates: Number of updates with pushes.
    updated: Time of the last of these updates, seconds; None before the first.
    window_s: Length of a window, seconds.
    windows: Bytes that arrived in each window.
    counted: Bytes in all windows.
  """

  is_state = True  # Plain data: checkpoints hold it.

  phases: Spread = dataclasses.field(
    default_factory=lambda: Spread(len(PHASES))
  )
  gaps: Spread = dataclasses.field(default_factory=lambda: Spread(1))
  applied: int = 0
  updates: int = 0
  updated: float | None = None
  window_s: float = _FIRST_S
  windows: list[int] = dataclasses.field(default_factory=list)
  counted: int = 0

  def add_iteration(self, worker: int, phases_s: Mapping[str, float]) -> None:
    """Adds a worker's iteration: seconds in each of PHASES, in this order."""
    self.phases.add((worker, *phases_s.values()))

  def add_update(self, time: float, pushes: int) -> None:
    """Adds an update that sums `pushes` pushes, applied at `time` seconds."""
    if not pushes:
      return
    if self.updated is not None:
      self.gaps.add((0, time - self.updated))
    self.updated = time
    self.updates += 1
    self.applied += pushes

  def add_bytes(self, time: float, size_bytes: int) -> None:
    """Adds the bytes that have arrived between the start and `time` seconds.

    Args:
      time: Seconds since the start.
      size_bytes: Bytes of all this time, with those of earlier calls.
    """
    window = int(time / self.window_s)
    while window >= _WINDOWS:
      pairs = [*self.windows, 0]
      self.windows = [
        sum(pairs[k : k + 2]) for k in range(0, len(self.windows), 2)
      ]
      self.window_s *= 2
      window = int(time / self.window_s)
    while window >= len(self.windows):
      self.windows.append(0)
    self.windows[window] += size_bytes - self.counted
    self.counted = size_bytes

  def fold(self) -> None:
    """Moves all numbers into bins, which take less space."""
    self.phases.fold()
    self.gaps.fold()

  def summary(self, time: float) -> dict[str, Any]:
    """Returns the fields of summary.json that are distributions."""
    return {
      'breakdown': self._breakdown(None),
      'worker_breakdown': {
        str(worker): self._breakdown(worker) for worker in self.phases.rows()
      },
      'gaps': {
        'updates': self._gaps(0),
        'pushes': self._gaps(self.applied - self.updates),
      },
      'bandwidth': {'window_s': self.window_s, 'Bps': self._rates(time)},
    }

  def _breakdown(
    self, worker: int | None
  ) -> dict[str, dict[str, float | None]]:
    return {
      phase: self.phases.quantiles(column, worker)
      for column, phase in enumerate(PHASES)
    }

  def _gaps(self, zeros: int) -> dict[str, float | None]:
    """Returns quantiles of the gaps and of `zeros` more gaps of 0 s."""
    found: dict[str, float | None] = {
      **self.gaps.quantiles(0, zeros=zeros),
      'zero_share': None,
    }
    at_once = self.gaps.counts[self.gaps.keys == 0].sum() + zeros
    if total := self.gaps.counts.sum() + zeros:
      found['zero_share'] = float(at_once / total)
    return found

  def _rates(self, time: float) -> list[float]:
    """Returns bytes per second in each window; the last may be shorter."""
    starts = [k * self.window_s for k in range(len(self.windows))]
    return [
      size / min(self.window_s, time - start)
      for start, size in zip(starts, self.windows, strict=True)
      if time > start
    ]
