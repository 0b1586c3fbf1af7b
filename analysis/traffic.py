"""Planned and measured traffic of the links of an allreduce run."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.runs import Run
from configs.checks import require
from topology.clusters.cluster import Cluster
from topology.forests import export
from topology.forests.trees import Forest

Ends = tuple[int, int]  # Sending and receiving worker.
_FOREST = (
  'membership_epoch',
  'version',
  'members',
  'forest',
  'rates',
  'links',
)
_TRAFFIC = ('since', 'iterations', 'compute_s', 'wait_s', 'push_s', 'rates')
_PLANNED = ('names', 'size_bytes', 'chunk_bytes', 'known', 'hash')
_RATE = ('src', 'dst', 'planned_Bps')


class Link(NamedTuple):
  """Traffic from one worker to another.

  Attributes:
    bytes: Bytes sent.
    busy_s: Seconds in which bytes were in transit.
    planned_Bps: Rate in the forest, bytes per second; 0 without one.
  """

  bytes: int
  busy_s: float
  planned_Bps: float

  @property
  def Bps(self) -> float | None:
    """Bytes per second while bytes were in transit; None without any."""
    return self.bytes / self.busy_s if self.busy_s else None

  @property
  def ratio(self) -> float | None:
    """Measured over planned rate; None if either is unknown."""
    if self.Bps is None or not self.planned_Bps:
      return None
    return self.Bps / self.planned_Bps


class TrafficWindow(NamedTuple):
  """Iterations and traffic between two rows of events.jsonl.

  Attributes:
    start: Start, seconds on the run's clock.
    end: End, seconds on the run's clock.
    iterations: Number of iterations.
    compute_s: Seconds of computing in an iteration, a mean over workers.
    wait_s: Seconds of waiting for slower workers, likewise.
    push_s: Seconds of communication that overlaps no computing, likewise.
    links: Traffic by sending and receiving worker.
  """

  start: float
  end: float
  iterations: int
  compute_s: float | None
  wait_s: float | None
  push_s: float | None
  links: Mapping[Ends, Link]

  @property
  def exposed_share(self) -> float:
    """Share of an iteration that is exposed communication."""
    parts = [self.compute_s, self.wait_s, self.push_s]
    total = sum(part or 0.0 for part in parts)
    return (self.push_s or 0.0) / total if total else 0.0


class SumPlan(NamedTuple):
  """Forest over which workers sum.

  Attributes:
    cluster: Links with the rates that were known then.
    forest: Forest of the cluster.
    names: Worker by node id of the cluster.
    size_bytes: Bytes of the summed vector.
    chunk_bytes: Largest bytes of a chunk.
    has_rates: True if the rates of links were known; else all are taken to be
      equal.
  """

  cluster: Cluster
  forest: Forest
  names: Mapping[str, int]
  size_bytes: int
  chunk_bytes: int
  has_rates: bool


class MembershipEpoch(NamedTuple):
  """Time in which the same workers summed over the same forest.

  Attributes:
    number: Number of the epoch; restarts from 0 with the coordinator.
    reason: Reason of its start.
    members: Indices of the workers.
    version: Version of the parameters at its start.
    plan: Forest; None if it is unknown.
    windows: Recorded windows, in order.
  """

  number: int
  reason: str
  members: Sequence[int]
  version: int
  plan: SumPlan | None
  windows: Sequence[TrafficWindow]

  @property
  def iterations(self) -> int:
    """Number of recorded iterations."""
    return sum(window.iterations for window in self.windows)

  def mean(self, phase: str) -> float:
    """Returns the mean seconds of a phase in an iteration.

    Args:
      phase: 'compute_s', 'wait_s' or 'push_s', as of `TrafficWindow`.
    """
    windows = self.windows
    parts = (w.iterations * (getattr(w, phase) or 0.0) for w in windows)
    seconds: float = sum(parts) / max(self.iterations, 1)
    return seconds

  def sum_links(self) -> dict[Ends, Link]:
    """Returns the traffic of each link in all windows.

    A plan without rates has only ratios of rates.  They are scaled so that the
    link with the largest measured over planned rate is as planned.
    """
    sums: dict[Ends, Link] = {}
    for window in self.windows:
      for ends, link in window.links.items():
        before = sums.get(ends, Link(0, 0.0, 0.0))
        sums[ends] = Link(
          before.bytes + link.bytes,
          before.busy_s + link.busy_s,
          link.planned_Bps,
        )
    if self.plan and not self.plan.has_rates:
      unit = max((link.ratio or 0.0 for link in sums.values()), default=0.0)
      for ends, link in sums.items():
        sums[ends] = link._replace(planned_Bps=link.planned_Bps * unit)
    return sums


def read_epochs(run: Run) -> list[MembershipEpoch]:
  """Returns the epochs of an allreduce run, in order; [] for another run.

  Raises:
    ValueError: If a row is broken; names the file.
    OSError: If a file cannot be read.
  """
  epochs: list[MembershipEpoch] = []
  for row in run.link_rows:
    if row['did'] == 'forest':
      epochs.append(parse_epoch(row, run.path))
    elif row['did'] == 'traffic' and epochs:
      last = epochs[-1]
      windows = (*last.windows, _parse_window(row, run.path))
      epochs[-1] = last._replace(windows=windows)
  return epochs


def longest_epoch(run: Run, workers: int | None = None) -> MembershipEpoch:
  """Returns the epoch of a run with the most recorded iterations.

  Args:
    run: The run.
    workers: Number of workers, all of which the epoch must have; None for any
      members.

  Raises:
    ValueError: If there is none.
    OSError: If a file cannot be read.
  """
  epochs, path = read_epochs(run), run.path
  if not epochs:
    raise ValueError(
      f'{path}/events.jsonl: expected rows on links, as of a run on an '
      'allreduce route, got none.'
    )
  if workers is not None:
    whole = [*range(workers)]
    everybody = [epoch for epoch in epochs if [*epoch.members] == whole]
    members = [[*epoch.members] for epoch in epochs]
    require(bool(everybody), f'{path}', 'iterations of all workers', members)
    epochs = everybody
  return max(epochs, key=lambda epoch: epoch.iterations)


def slowest_links(
  links: Mapping[Ends, Link], count: int
) -> list[tuple[Ends, Link]]:
  """Returns the links with the smallest measured over planned rates.

  Args:
    links: Links by source and destination.
    count: Number of links to return.
  """
  known = [each for each in links.items() if each[1].ratio is not None]
  return sorted(known, key=lambda each: each[1].ratio or 0.0)[:count]


def parse_epoch(row: Mapping[str, Any], path: pathlib.Path) -> MembershipEpoch:
  """Returns the epoch that starts with a row, without windows.

  Args:
    row: Row of events.jsonl whose `did` is 'forest'.
    path: Folder of the run, for messages.

  Raises:
    ValueError: If the row is broken; names the file.
  """
  _check(row, _FOREST, path)
  plan = None
  if row['forest'] is not None:
    _check(row, _PLANNED, path)
    digest = export.digest(row['forest'])
    field, expected = f'{path}/events.jsonl: hash', 'that of the forest'
    require(digest == row['hash'], field, expected, row['hash'])
    try:
      cluster, forest = export.from_json(row['forest'])
    except ValueError as error:
      raise ValueError(f'{path}/events.jsonl: {error}') from error
    plan = SumPlan(cluster, forest, *(row[name] for name in _PLANNED[:-1]))
  return MembershipEpoch(
    row['membership_epoch'],
    row['why'],
    row['members'],
    row['version'],
    plan,
    (),
  )


def _parse_window(row: Mapping[str, Any], path: pathlib.Path) -> TrafficWindow:
  _check(row, _TRAFFIC, path)
  links = {}
  for each in row['rates']:
    _check(each, _RATE, path)
    links[each['src'], each['dst']] = Link(
      each.get('bytes', 0), each.get('busy_s', 0.0), each['planned_Bps'] or 0.0
    )
  return TrafficWindow(
    start=row['since'],
    end=row['time'],
    iterations=row['iterations'],
    compute_s=row['compute_s'],
    wait_s=row['wait_s'],
    push_s=row['push_s'],
    links=links,
  )


def _check(
  row: Mapping[str, Any], fields: Iterable[str], path: pathlib.Path
) -> None:
  for name in fields:
    if name not in row:
      raise ValueError(
        f'{path}/events.jsonl: expected the field {name}, got {str(row)[:80]}.'
      )
