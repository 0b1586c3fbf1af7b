"""Slow workers and links of workers: since when, by how much, at what cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from diagnosis import costs, rule
from diagnosis.costs import Estimate, Iterations

SLIGHT = 0.05  # Share of the median computing added to transfers, which matter.
NEGLIGIBLE = 0.01  # Share of a run's time below which there is no slowdown.
_SLOWEST = 0.03  # Share of the workers that are replaced together.
_CORRELATED = 0.5  # Least correlation that is worth a word.

Replay = Callable[[Iterations, np.ndarray], float]


class Slowness(NamedTuple):
  """A worker that computes, or whose link transfers, slower than the others.

  Attributes:
    kind: 'worker' or 'link'.
    worker: Index of the worker.
    ratio: Its seconds over the median of the others.
    share: Share of its time that the run would take with the median instead;
      NaN if that is unknown.
    episodes: Rounds in which it was slow, in order.
    own_s: Median seconds of the rounds in which it was slow.
    usual_s: Median of the others' seconds, in all rounds.
    batch: Its examples over the others' median; None if they are unknown.
    correlations: Correlation of its seconds of computing with each driving
      factor for which it is clear, such as 'cpu'.
  """

  kind: str
  worker: int
  ratio: Estimate
  share: Estimate
  episodes: Sequence[rule.Episode]
  own_s: float
  usual_s: float
  batch: float | None
  correlations: Mapping[str, float]


class Spread(NamedTuple):
  """Slowdown of a run by the spread of all workers.

  Attributes:
    share: Share of its time that the run would take with all at the median.
    slowest: Share of the workers that are the slowest ones.
    explained: Share of the slowdown that these explain; None without one.
  """

  share: Estimate
  slowest: float
  explained: float | None


def link_numbers(transfer_s: np.ndarray, compute_s: np.ndarray) -> np.ndarray:
  """Returns the seconds of transfers that the rule compares.

  A small share of the computing is added, so that differences between transfers
  that are short beside it do not count.

  Args:
    transfer_s: Float [..., workers].
    compute_s: Float of the same shape.

  Returns:
    Float of the same shape.
  """
  known = np.where(np.isnan(compute_s), 0.0, compute_s)
  return transfer_s + SLIGHT * rule.median(known)


def find_slow(
  iterations: Iterations,
  num_workers: int,
  replay: Replay,
  *,
  has_links: bool,
  factors: Mapping[str, np.ndarray],
) -> list[Slowness]:
  """Returns the slow workers and links that matter, the most costly first.

  Args:
    iterations: Iterations of a run, of `rule.LEAST` rounds or more.
    num_workers: Number of workers, at least 2.
    replay: Replay of iterations, as `costs.share` takes it.
    has_links: Whether transfers are those of a worker's own link, rather than
      of an allreduce of all.
    factors: Float [pushes] of each driving factor, such as 'cpu', by name.
  """
  compute_s = iterations.table(iterations.compute_s, num_workers)
  transfer_s = iterations.table(iterations.transfer_s, num_workers)
  tables = [('worker', compute_s, compute_s, rule.EFFECT)]
  if has_links:
    numbers_s = link_numbers(transfer_s, compute_s)
    tables.append(('link', numbers_s, transfer_s, rule.LINK_EFFECT))
  found = [
    _measure(kind, worker, episodes, table_s, iterations, replay, factors)
    for kind, numbers, table_s, effect in tables
    for worker, episodes in rule.by_series(
      rule.find_episodes(numbers, effect=effect)
    ).items()
  ]
  found = [
    each
    for each in found
    if is_costly(each.share)
    or (each.kind == 'worker' and each.ratio.value >= rule.EFFECT)
  ]
  return sorted(found, key=lambda each: each.share.value)


def is_costly(share: Estimate | None) -> bool:
  """Returns whether something costs a run any time, as far as is known.

  Args:
    share: Share of its time that the run would take without it; None or NaN if
      that is unknown.
  """
  return share is None or not share.value > 1 - NEGLIGIBLE


def measure_spread(
  iterations: Iterations, num_workers: int, replay: Replay
) -> Spread:
  """Returns what the differences of workers cost; arguments as `find_slow`."""
  compute_s = iterations.table(iterations.compute_s, num_workers)
  usual_s = np.nanmedian(_carry_forward(compute_s), axis=1)
  number = max(math.ceil(_SLOWEST * num_workers), 1)
  order = np.argsort(-np.nanmean(compute_s, axis=0))
  chosen = np.isin(iterations.workers, order[:number])
  seconds = iterations.compute_s + iterations.transfer_s
  at_median_s = usual_s[iterations.rounds] + iterations.transfer_s
  ideal, slowest = (
    costs.share(iterations, seconds, replaced_s, replay)
    for replaced_s in (at_median_s, np.where(chosen, at_median_s, seconds))
  )
  saved = 1 - ideal.value
  explained = None
  if saved > NEGLIGIBLE:
    explained = max(1 - slowest.value, 0.0) / saved
  return Spread(ideal, number / num_workers, explained)


def _measure(
  kind: str,
  worker: int,
  episodes: Sequence[rule.Episode],
  table_s: np.ndarray,
  iterations: Iterations,
  replay: Replay,
  factors: Mapping[str, np.ndarray],
) -> Slowness:
  """Returns how slow a worker or its link is; seconds are [rounds, workers]."""
  is_slow = rule.mark(episodes, len(table_s))
  usual_s = rule.median_of_others(_carry_forward(table_s))[:, worker]
  with np.errstate(divide='ignore', invalid='ignore'):
    logs = np.log(table_s[:, worker] / usual_s)
  chosen = (iterations.workers == worker) & is_slow[iterations.rounds]
  seconds = iterations.compute_s + iterations.transfer_s
  own_s = iterations.compute_s if kind == 'worker' else iterations.transfer_s
  change_s = np.minimum(usual_s[iterations.rounds] - own_s, 0.0)
  share = costs.share(
    iterations, seconds, seconds + np.where(chosen, change_s, 0.0), replay
  )
  mine = iterations.examples[chosen]
  others = iterations.examples[iterations.workers != worker]
  has_batches = len(mine) and len(others) and np.median(others) > 0
  return Slowness(
    kind,
    worker,
    _ratio(logs[is_slow & np.isfinite(logs)]),
    share,
    episodes,
    _median(table_s[is_slow, worker]),
    _median(usual_s),
    float(np.median(mine) / np.median(others)) if has_batches else None,
    _correlate(iterations, worker, factors),
  )


def _correlate(
  iterations: Iterations, worker: int, factors: Mapping[str, np.ndarray]
) -> dict[str, float]:
  mine, found = iterations.workers == worker, {}
  for name, values in factors.items():
    pairs = np.array([iterations.compute_s[mine], values[mine]])
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] < rule.LEAST or not pairs.std(axis=1).all():
      continue
    correlation = float(np.corrcoef(pairs)[0, 1])
    if abs(correlation) > max(_CORRELATED, 3 / math.sqrt(pairs.shape[1])):
      found[name] = correlation
  return found


def _ratio(logs: np.ndarray) -> Estimate:
  """Returns the geometric mean of ratios from means of consecutive blocks."""
  if not len(logs):
    return Estimate(math.nan, math.nan, math.nan)
  parts = [
    float(part.mean()) for part in np.array_split(logs, min(10, len(logs)))
  ]
  mean = costs.interval(parts, float(logs.mean()))
  return Estimate(*(float(np.exp(min(each, 700.0))) for each in mean))


def _median(values: np.ndarray) -> float:
  """Returns the median of the known values; NaN without any."""
  known = values[~np.isnan(values)]
  return float(np.median(known)) if len(known) else math.nan


def _carry_forward(table: np.ndarray) -> np.ndarray:
  """Returns a table in which missing values are the column's last before."""
  places = np.where(np.isnan(table), 0, np.arange(len(table))[:, None])
  places = np.maximum.accumulate(places, axis=0)
  return np.take_along_axis(table, places, axis=0)
