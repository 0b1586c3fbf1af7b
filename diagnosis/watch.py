"""Warnings of a run: slow workers and links appear and end, by the rule."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from diagnosis import rule, traffic, workers
from diagnosis.rounds import Rounds
from diagnosis.rule import Change, Detector

_TIMES = 256  # Rounds whose times are stored at most.


class StragglerChange(NamedTuple):
  """A worker or a link that has become slow, or is slow no longer.

  Attributes:
    of: 'worker', or 'link' of a worker.
    worker: Index of the worker.
    is_slow: True if it has become slow.
    since: Time at which that began, seconds on the run's clock.
    ratio: Its seconds over the median of the others.
  """

  of: str
  worker: int
  is_slow: bool
  since: float
  ratio: float

  def row(self, time: float) -> dict[str, Any]:
    """Returns the row of events.jsonl at a time, seconds."""
    return {
      'event': 'straggler',
      'time': time,
      'of': self.of,
      'did': 'appears' if self.is_slow else 'ends',
      'worker': self.worker,
      'since': self.since,
      'ratio': self.ratio,
    }

  @property
  def text(self) -> str:
    """The warning as a sentence."""
    subject, what = f'worker {self.worker} takes', 'to compute an iteration '
    if self.of == 'link':
      subject, what = f'transfers of worker {self.worker} take', ''
    since = f'since {self.since:.4g} s.'
    if not self.is_slow:
      return f'{subject} as long {what}as the others again, {since}'
    return (
      f'{subject} {self.ratio:.2g} times as long {what}as the median of the '
      f'others, {since}'
    )


@dataclasses.dataclass
class Series:
  """Rounds and tests of one kind of seconds; plain data.

  Attributes:
    of: 'worker' or 'link'.
    rounds: Collector of the current round.
    others: The same of seconds that go with them; unused for workers.
    detector: Tests.
    times: Ends of the newest rounds, seconds.
  """

  is_state = True  # Plain data: checkpoints hold it.

  of: str
  rounds: Rounds
  others: Rounds
  detector: Detector
  times: list[float] = dataclasses.field(default_factory=list)

  def start(self, workers: Iterable[int]) -> None:
    """Begins a round of these workers."""
    self.rounds.start(workers)
    self.others.start(workers)

  def leave(self, worker: int) -> None:
    """Forgets a worker that has left."""
    self.rounds.leave(worker)
    self.others.leave(worker)
    self.detector.forget(worker)

  def add(
    self, worker: int, time: float, seconds: float, compute_s: float
  ) -> list[StragglerChange]:
    """Adds an iteration; returns the warnings of a round that it completes."""
    row = self.rounds.add(worker, seconds)
    computing = self.others.add(worker, compute_s)
    if row is None or computing is None:
      return []
    if self.of == 'link':
      row = workers.link_numbers(row, computing)
    self.times.append(time)
    del self.times[:-_TIMES]
    return [
      self._warning(change)
      for changed in self.detector.update(row)
      for change in self.detector.changes(changed)
    ]

  def _warning(self, change: Change) -> StragglerChange:
    first = self.detector.count - len(self.times)  # Round of the oldest time.
    place = max(change.since - 1 - first, 0)
    since = self.times[place] if change.since > 0 else 0.0
    return StragglerChange(
      self.of, change.series, change.is_slow, since, change.ratio
    )


@dataclasses.dataclass
class Watch:
  """Watch over the workers of a run; plain data.

  Attributes:
    workers: Tests of computing.
    links: Tests of transfers; None if workers have no links of their own.
  """

  is_state = True  # Plain data: checkpoints hold it.

  workers: Series
  links: Series | None

  def start(self, workers: Iterable[int]) -> None:
    """Begins with these workers."""
    for series in self._series:
      series.start(workers)

  def leave(self, worker: int) -> None:
    """Forgets a worker that has left."""
    for series in self._series:
      series.leave(worker)

  def push(
    self, worker: int, time: float, compute_s: float
  ) -> list[StragglerChange]:
    """Adds the computing of a push, seconds; returns new warnings.

    Args:
      time: Time of the push, seconds, clock of the run.
      compute_s: Seconds of computing of its iteration.
    """
    return self.workers.add(worker, time, compute_s, compute_s)

  def iteration(
    self, worker: int, time: float, phases_s: Mapping[str, float]
  ) -> list[StragglerChange]:
    """Adds the phases of an iteration, seconds; returns new warnings.

    Tests links alone; does nothing if workers have none of their own.

    Args:
      time: End of the iteration, seconds, clock of the run.
      phases_s: Seconds by phase, with 'pull', 'compute' and 'push'.
    """
    if self.links is None:
      return []
    transfer_s = phases_s['pull'] + phases_s['push']
    return self.links.add(worker, time, transfer_s, phases_s['compute'])

  def is_like(self, other: 'Watch') -> bool:
    """Returns whether another watch is of as many workers, and the like."""
    mine, its = self.workers.rounds, other.workers.rounds
    return (mine.num_workers, self.links is None) == (
      its.num_workers,
      other.links is None,
    )

  @property
  def _series(self) -> list[Series]:
    return [self.workers, *([self.links] if self.links else [])]


def make(num_workers: int, *, has_links: bool) -> Watch:
  """Returns a watch that has seen nothing.

  Args:
    num_workers: Number of workers.
    has_links: Whether each worker has a link of its own to the servers.
  """

  def series(of: str, effect: float) -> Series:
    return Series(
      of,
      Rounds(num_workers),
      Rounds(num_workers),
      rule.make((num_workers,), effect),
    )

  links = series('link', rule.LINK_EFFECT) if has_links else None
  return Watch(series('worker', rule.EFFECT), links)


@dataclasses.dataclass
class LinkWatch:
  """Watch over the links of an allreduce, or to servers; plain data.

  Attributes:
    ends: Sending and receiving worker of each link, or hosts; empty before the
      first row.
    is_planned: Whether planned rates are known.
    detector: Tests of the links; None before the first row.
  """

  is_state = True  # Plain data: checkpoints hold it.

  ends: list[Any] = dataclasses.field(default_factory=list)
  is_planned: bool = False
  detector: Detector | None = None

  def begin_epoch(self, is_planned: bool) -> None:
    """Begins with other links.

    Args:
      is_planned: Whether planned rates are known.
    """
    self.ends, self.is_planned, self.detector = [], is_planned, None

  def update(self, window: traffic.Traffic) -> list[tuple[Any, bool]]:
    """Adds the traffic of some iterations.

    Args:
      window: The traffic.

    Returns:
      Links that have become slow (True) or normal (False).
    """
    found = traffic.link_costs(window, is_planned=self.is_planned)
    if self.detector is None and found:
      self.ends = sorted(found)
      self.detector = rule.make((len(self.ends),))
    if self.detector is None:
      return []
    row = np.array([found.get(ends, np.nan) for ends in self.ends])
    changes = [
      change
      for _ in range(min(window.iterations, traffic.REPEATS))
      for changed in self.detector.update(row, np.ones_like(row))
      for change in self.detector.changes(changed)
    ]
    return [(self.ends[each.series], each.is_slow) for each in changes]
