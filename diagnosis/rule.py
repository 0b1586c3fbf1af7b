"""Rule for slow workers and links: sequential tests against the other ones.

Each iteration gives one number per series (a worker or a link), such as its
seconds of computing.  The deviation of a series is the logarithm of its number
over the median of the others.  A one-sided cumulative sum of log-likelihood
ratios (Page, Continuous inspection schemes, 1954) tests whether the mean
deviation is that of a series that is slower by `effect` rather than 0; a second
sum in the other direction finds the end.  A series becomes slow only with a
mean deviation of three quarters of the effect since the sum's last zero: what
is surely but slightly slower is no straggler.  A false alarm comes after at
least exp(limit) iterations on average (Lorden, Procedures for reacting to a
change in distribution, 1971), for independent normal deviations.

A warning in a run and a diagnosis of its files use the same detector.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EFFECT = 1.2  # Slowdown of a worker for which the rule is made.
LINK_EFFECT = 1.5  # The same of a link, whose times vary more.
LEAST = 20  # Iterations with fewer of which there is no verdict.
START = 5  # Iterations after the start that still count as the start.
_EARLY = 10  # Iterations from which the first jitter is estimated.
_MEMORY = 64  # Iterations over which jitter is averaged.
_ALARMS = 1e-5  # Bound of the rate of false alarms of all series together.
_STEPS = 6  # Iterations that an alarm takes at least.
_FLOOR = 0.02  # Least jitter, of a logarithm: clocks and models are not exact.
_ENOUGH = 0.75  # Least mean deviation of a slow series over that of `effect`.
_CLIP = 4.0  # Largest difference that counts as jitter, in mean differences.
# Standard deviation of normal numbers over the mean absolute difference of two.
_SCALE = math.sqrt(math.pi) / 2


class Change(NamedTuple):
  """A series that has become slow, or is no longer slow.

  Attributes:
    series: Index of the series.
    is_slow: True if it has become slow.
    since: Iteration at which that began, by the sum's last zero.
    ratio: Its numbers over the median of the others, a geometric mean over the
      time in which it was slow.
  """

  series: int
  is_slow: bool
  since: int
  ratio: float


class Episode(NamedTuple):
  """Iterations in which a series was slow.

  Attributes:
    series: Index of the series.
    start: First iteration.
    end: Iteration after the last; None if it was slow at the end.
  """

  series: int
  start: int
  end: int | None


def median_of_others(values: np.ndarray) -> np.ndarray:
  """Returns for each series the median of the other ones' values.

  Args:
    values: Float [..., series]; NaN for a missing one.

  Returns:
    Float of the same shape; NaN without another series.
  """
  is_known = ~np.isnan(values)
  order = values.argsort(axis=-1)  # NaN last.
  ranks = order.argsort(axis=-1)
  others = is_known.sum(axis=-1, keepdims=True) - is_known
  last = values.shape[-1] - 1
  is_single = values.ndim == 1  # Indices are several times as fast.
  ordered = values[order] if is_single else np.sort(values, axis=-1)

  def pick(place: np.ndarray) -> np.ndarray:
    """Returns the value at a place among the others, in ascending order."""
    place = np.maximum(place, 0)
    place = np.minimum(place + (is_known & (ranks <= place)), last)
    found: np.ndarray = (
      ordered[place]
      if is_single
      else np.take_along_axis(ordered, place, axis=-1)
    )
    return found

  found = (pick((others - 1) // 2) + pick(others // 2)) / 2
  return np.where(others > 0, found, np.nan)


def median(values: np.ndarray) -> np.ndarray:
  """Returns medians over the last axis, which stays.

  Args:
    values: Float [..., series], without NaN, which would count as the largest.

  Returns:
    Float [..., 1].
  """
  count = values.shape[-1]
  ordered = np.sort(values, axis=-1)
  low, high = (count - 1) // 2, count // 2
  found: np.ndarray = (
    ordered[..., low : low + 1] + ordered[..., high : high + 1]
  ) / 2
  return found


@dataclasses.dataclass
class Detector:
  """State of the tests of all series; plain data.

  Arrays have the shape of the numbers of an iteration, [..., series]: leading
  axes are independent runs, for simulations.

  Attributes:
    effect: Slowdown for which the tests are made.
    limit: Sum at which a series becomes slow or normal.
    count: Number of iterations so far.
    early: Deviations of the first iterations, until the tests begin.
    before: Newest deviation of each series.
    spread: Mean absolute difference of consecutive deviations.
    differences: Number of differences in `spread`.
    latest: Newest logarithm of each series' number.
    sums: Sum towards the other state.
    zeros: Iteration after the newest at which the sum was zero.
    since: Iteration at which the newest change began.
    is_slow: Bool, the state.
    totals: Sum of the deviations since `zeros`, and of the whole episode while
      slow.
    counts: Number of these deviations.
  """

  is_state = True  # Plain data: checkpoints hold it.

  effect: float
  limit: float
  count: int
  early: list[np.ndarray]
  before: np.ndarray
  spread: np.ndarray
  differences: np.ndarray
  latest: np.ndarray
  sums: np.ndarray
  zeros: np.ndarray
  since: np.ndarray
  is_slow: np.ndarray
  totals: np.ndarray
  counts: np.ndarray

  def update(
    self, numbers: np.ndarray, reference: np.ndarray | None = None
  ) -> list[np.ndarray]:
    """Adds the numbers of one iteration.

    Args:
      numbers: Float [..., series]; NaN or 0 for series without one.
      reference: Expected numbers; None for the median of the others' newest.

    Returns:
      Bool arrays of the series that have become slow or normal: one array for
      each iteration that was tested, which is none or several at first.
    """
    is_known = numbers > 0
    logs = np.where(is_known, np.log(np.where(is_known, numbers, 1.0)), np.nan)
    self.latest = np.where(is_known, logs, self.latest)
    if reference is None:
      expected = median_of_others(self.latest)
    else:
      expected = np.log(reference)
    deviations = logs - expected
    self._measure(deviations)
    if self.count < _EARLY:
      self.early.append(deviations)
      self.count += 1
      if self.count < _EARLY:
        return []
      early, self.early = self.early, []
      return [self._test(each, k) for k, each in enumerate(early)]
    self.count += 1
    return [self._test(deviations, self.count - 1)]

  def forget(self, series: int) -> None:
    """Forgets a series whose worker has left."""
    for array, value in (
      (self.before, np.nan),
      (self.latest, np.nan),
      (self.sums, 0.0),
      (self.is_slow, False),
      (self.totals, 0.0),
      (self.counts, 0),
    ):
      array[..., series] = value

  @property
  def ratios(self) -> np.ndarray:
    """Geometric mean of number over reference since the latest zero."""
    found: np.ndarray = np.exp(self.totals / np.maximum(self.counts, 1))
    return found

  def _measure(self, deviations: np.ndarray) -> None:
    """Updates the estimate of jitter."""
    differences = np.abs(deviations - self.before)
    is_new = ~np.isnan(differences)
    differences = np.where(is_new, differences, 0.0)
    usual = np.maximum(self.spread, _FLOOR / _SCALE)
    differences = np.where(
      self.differences > _EARLY // 2,
      np.minimum(differences, _CLIP * usual),
      differences,
    )
    self.differences = self.differences + is_new
    weight = is_new / np.minimum(np.maximum(self.differences, 1), _MEMORY)
    self.spread = self.spread + weight * (differences - self.spread)
    self.before = np.where(np.isnan(deviations), self.before, deviations)

  def _test(self, deviations: np.ndarray, iteration: int) -> np.ndarray:
    """Adds deviations to the sums; returns which series change their state."""
    usual = median(self.spread)
    jitter = np.maximum(_SCALE * np.maximum(self.spread, usual), _FLOOR)
    shift = math.log(self.effect)
    steps = shift / jitter**2 * (deviations - shift / 2)
    bound = self.limit / _STEPS
    is_known = ~np.isnan(deviations)
    steps = np.minimum(np.maximum(steps, -bound), bound)
    steps = np.where(is_known, steps, 0.0)
    sums = self.sums + np.where(self.is_slow, -steps, steps)
    is_zero = sums <= 0
    self.sums = np.where(is_zero, 0.0, sums)
    self.zeros = np.where(is_zero, iteration + 1, self.zeros)
    restarts = is_zero & ~self.is_slow
    total = self.totals + np.where(is_known, deviations, 0.0)
    self.totals = np.where(restarts, 0.0, total)
    self.counts = np.where(restarts, 0, self.counts + is_known)
    mean = self.totals / np.maximum(self.counts, 1)
    changed: np.ndarray = (self.sums > self.limit) & (
      self.is_slow | (mean > _ENOUGH * shift)
    )
    if not changed.any():
      return changed
    self.since = np.where(changed, self.zeros, self.since)
    self.zeros = np.where(changed, iteration + 1, self.zeros)
    self.is_slow = self.is_slow ^ changed
    self.sums = np.where(changed, 0.0, self.sums)
    return changed

  def changes(self, changed: np.ndarray) -> list[Change]:
    """Returns the changes of one run from a result of `update`.

    Args:
      changed: Bool [series].
    """
    return [
      Change(
        int(k),
        bool(self.is_slow[k]),
        int(self.since[k]),
        float(self.ratios[k]),
      )
      for k in np.flatnonzero(changed)
    ]


def make(shape: Sequence[int], effect: float = EFFECT) -> Detector:
  """Returns a detector that has seen nothing.

  Args:
    shape: Shape of the numbers of an iteration; the last axis is the series.
    effect: Slowdown for which the tests are made, above 1.
  """
  zeros = np.zeros(shape)
  return Detector(
    effect=effect,
    limit=math.log(max(shape[-1], 1) / _ALARMS),
    count=0,
    early=[],
    before=zeros + np.nan,
    spread=zeros.copy(),
    differences=np.zeros(shape, int),
    latest=zeros + np.nan,
    sums=zeros.copy(),
    zeros=np.zeros(shape, int),
    since=np.zeros(shape, int),
    is_slow=np.zeros(shape, bool),
    totals=zeros.copy(),
    counts=np.zeros(shape, int),
  )


def find_episodes(
  numbers: np.ndarray,
  *,
  effect: float = EFFECT,
  reference: np.ndarray | None = None,
) -> list[Episode]:
  """Returns when series were slow, in the order of the beginnings.

  Args:
    numbers: Float [iterations, series], positive; NaN for missing ones.
    effect: Slowdown for which the tests are made.
    reference: Expected numbers, of the same shape; None for the medians of the
      other series.
  """
  detector = make(numbers.shape[1:], effect)
  episodes: dict[int, list[Episode]] = {}
  for k, row in enumerate(numbers):
    expected = None if reference is None else reference[k]
    for changed in detector.update(row, expected):
      for change in detector.changes(changed):
        known = episodes.setdefault(change.series, [])
        if change.is_slow:
          known.append(Episode(change.series, change.since, None))
        else:
          known[-1] = known[-1]._replace(end=change.since)
  found = [each for known in episodes.values() for each in known]
  return sorted(found, key=lambda each: (each.start, each.series))


def by_series(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
  """Returns the episodes of each series, in the order of the first ones."""
  found: dict[int, list[Episode]] = {}
  for each in episodes:
    found.setdefault(each.series, []).append(each)
  return found


def mark(episodes: Sequence[Episode], count: int) -> np.ndarray:
  """Returns which of `count` iterations are within episodes, as Bool.

  Args:
    episodes: Episodes of one series, or of several together.
  """
  marked = np.zeros(count, bool)
  for each in episodes:
    marked[each.start : each.end] = True
  return marked
