"""What papers plot of a run: phases of iterations, gaps, bandwidth over time.

Of what the accounts are told anyway, in memory that does not grow with the
run.  Quantiles are those of bins of relative width, as in Masson, Rim and Lee,
'DDSketch: a Fast and Fully-Mergeable Quantile Sketch with Relative-Error
Guarantees' (VLDB 2019).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from outputs.accounting import PHASES

_STEP = math.log(1.01)  # Of bins, in logarithms.
_BINS, _ZERO = 1 << 16, 1 << 15  # Keys of a series; that of the number 1.
_HELD = 4096  # Rows that are not in bins yet, at most.
_QUANTILES = {'median_s': 0.5, 'p95_s': 0.95}
_WINDOWS = 256  # At most; then two become one.
_FIRST_S = 2.0**-10  # Length of a window at first.


@dataclasses.dataclass
class Spread:
  """How numbers of at least 0 are spread, in some columns for some rows.

  They are counted in bins whose largest number is 1 % above the least.  A
  quantile is the mean of the bin that it is in: exact where all numbers of the
  bin are equal.  Adding takes O(1), amortised; memory is that of the bins.

  Attributes:
    columns: How many.
    held: Rows to be counted: which one, and a number for each column.
    keys: Int64 [bins], ascending: of row, column and bin.
    counts: Float64 [bins], numbers in each.
    sums: Float64 [bins], their sums.
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
    """Takes in a row's number, and a number for each column."""
    self.held.append(row)
    if len(self.held) >= _HELD:
      self.fold()

  def fold(self) -> None:
    """Counts what is held."""
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
    """Returns the rows of which there are numbers, ascending."""
    self.fold()
    return np.unique(self.keys // (_BINS * self.columns)).tolist()

  def quantiles(
    self, column: int, row: int | None = None, *, zeros: float = 0.0
  ) -> dict[str, float | None]:
    """Returns the median and the 95th percentile of a column, seconds.

    A quantile is the least number that so many are not above; None if there
    are no numbers.

    Args:
      column: Which one.
      row: Of which row; None for all.
      zeros: Numbers 0 that were not added, but belong to them.
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
  """What is measured of a run so far; plain data.

  Attributes:
    phases: Seconds of an iteration in each phase, by worker.
    gaps: Seconds from one update to the next; one row.
    applied: Pushes in updates.
    updates: With pushes in them.
    updated: When the last one was applied, seconds; None before the first.
    window_s: Length of a window.
    windows: Bytes that arrived in each.
    counted: Bytes in them.
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

  def iterated(self, worker: int, spent: Mapping[str, float]) -> None:
    """A worker goes on after an iteration with so many seconds by phase.

    Args:
      worker: Which one.
      spent: Seconds of all PHASES, in this order.
    """
    self.phases.add((worker, *spent.values()))

  def committed(self, time: float, pushes: int) -> None:
    """An update of so many pushes was applied."""
    if not pushes:
      return
    if self.updated is not None:
      self.gaps.add((0, time - self.updated))
    self.updated = time
    self.updates += 1
    self.applied += pushes

  def arrived(self, time: float, size_bytes: int) -> None:
    """So many bytes have arrived since the start."""
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

  def summary(self, time: float) -> dict[str, Any]:
    """Returns the measures' part of summary.json at `time` seconds."""
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
    """Returns how gaps are spread, with zeros that are not among them."""
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
