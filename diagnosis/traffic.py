"""Slow links of an allreduce, or to servers, from their traffic."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from diagnosis import costs, rule
from diagnosis.costs import Estimate

REPEATS = 4  # Iterations for which the traffic of a longer interval counts.


class Traffic(NamedTuple):
  """Traffic of an allreduce's links for some iterations.

  Attributes:
    start: Start, seconds on the run's clock.
    iterations: Number of iterations.
    exposed: Share of an iteration that is exposed communication.
    slowness: Planned over measured rate, by sending and receiving worker; with
      servers, usual over measured rate, by host.
  """

  start: float
  iterations: int
  exposed: float
  slowness: Mapping[Any, float]


class SlowLink(NamedTuple):
  """A link that was slow.

  Attributes:
    share: Share of its time that the run would take without it.
    start: Time at which the newest slowness began, seconds on the run's clock;
      None for the start of the run.
    end: Time at which it ended; None if it was slow at the end.
  """

  share: Estimate
  start: float | None
  end: float | None


def link_costs(window: Traffic, *, is_planned: bool) -> dict[Any, float]:
  """Returns how many times longer each link makes an iteration.

  Exposed communication is taken to be in proportion to the slowness of the
  slowest link.

  Args:
    window: Traffic of the links.
    is_planned: Whether planned rates are known; else a link is compared with
      the median of all.
  """
  usual = 1.0
  if not is_planned and window.slowness:
    usual = float(np.median([*window.slowness.values()]))
  return {
    ends: 1 / (1 - window.exposed * (1 - min(usual / slowness, 1.0)))
    for ends, slowness in window.slowness.items()
  }


def is_too_short(windows: Sequence[Traffic]) -> bool:
  """Returns whether there is traffic, but too little of it for a verdict."""
  return 0 < sum(map(_repeats, windows)) < rule.LEAST


def find_slow_links(
  windows: Sequence[Traffic], *, is_planned: bool
) -> dict[Any, SlowLink]:
  """Returns the links that become slow by the rule; {} without traffic.

  Args:
    windows: Traffic of consecutive iterations.
    is_planned: Whether planned rates are known: see `link_costs`.
  """
  ends = sorted({each for window in windows for each in window.slowness})
  rows, begins = [], []
  for window in windows:
    found = link_costs(window, is_planned=is_planned)
    row = [found.get(each, math.nan) for each in ends]
    rows += [row] * _repeats(window)
    begins += [window.start] * _repeats(window)
  if not rows:
    return {}
  table = np.array(rows)
  episodes = rule.find_episodes(table, reference=np.ones_like(table))
  slow = {}
  for series, own in rule.by_series(episodes).items():
    is_slow = rule.mark(own, len(table))
    shares = np.where(is_slow, 1 / table[:, series], 1.0)
    parts = shares[~np.isnan(shares)][::REPEATS]
    last = own[-1]
    slow[ends[series]] = SlowLink(
      costs.interval(parts, float(parts.mean())),
      None if last.start <= rule.START else begins[last.start],
      None if last.end is None else begins[last.end - 1],
    )
  return slow


def _repeats(window: Traffic) -> int:
  """Returns the number of iterations for which a window stands."""
  return min(window.iterations, REPEATS)
