"""Transfers, compute times and pace of a run, from its timeline."""

import bisect
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import analysis
from analysis import pacing
from analysis.runs import Run
from configs.checks import require
from tuning.calibrating.links import Transfers

# Phases that follow a phase that has ended normally.
_NEXT = {
  'pull': ('compute',),
  'compute': ('push', 'wait'),  # Waits on allreduce routes.
  'push': ('wait', 'pull'),
}
_WARM = 3.0  # First compute times above this multiple of the median: warm-up.


class Span(NamedTuple):
  """Time that a worker spent in one phase.

  Attributes:
    worker: Index of the worker.
    phase: Name of the phase, such as 'compute'.
    start: Start of the phase, seconds on the run's clock.
    end: End of the phase, seconds on the run's clock.
  """

  worker: int
  phase: str
  start: float
  end: float


class Pace(NamedTuple):
  """Pace of a run.

  Attributes:
    iteration_s: Mean seconds of an iteration: see `analysis.pace`.
    waiting_share: Share of the workers' time in these iterations that they
      waited, 0 to 1.
  """

  iteration_s: float
  waiting_share: float


class Timeline(NamedTuple):
  """The timeline of a run that has ended.

  Attributes:
    workers: Spans of each worker, in order.
    run: The run.
    summary: Content of summary.json.
  """

  workers: Sequence[Sequence[Span]]
  run: Run
  summary: Mapping[str, Any]


def read(path: str | pathlib.Path) -> Timeline:
  """Returns the timeline of the run in a folder.

  Raises:
    ValueError: If there is no run, if it has no summary yet, or if a file of it
      is broken.
    OSError: If a file cannot be read.
  """
  run = analysis.read(path)
  if run.summary is None:
    raise ValueError(
      f'{path}: expected a run that has ended, with summary.json, got none.'
    )
  count = run.config['cluster']['workers']
  workers: list[list[Span]] = [[] for _ in range(count)]
  columns = (run.spans[name].tolist() for name in Span._fields)
  for span in map(Span, *columns):
    known = span.worker in range(count) and span.phase in (*_NEXT, 'wait')
    expected = f'phases of workers below {count}'
    require(known, f'{run.path}/trace.json', expected, span)
    workers[span.worker].append(span)
  for spans in workers:
    spans.sort(key=lambda span: span.start)
  return Timeline(workers, run, run.summary)


def pace(run: Run) -> Pace:
  """Returns how fast a run went, and how much its workers waited.

  The start of the run does not count, as in `analysis.pace`.

  Raises:
    ValueError: If it is too short.
    OSError: If a file cannot be read.
  """
  found = analysis.pace(run)
  share = pacing.waiting_share(run, found.start, found.end)
  return Pace(found.mean_s.value, share)


def transfers(timeline: Timeline, phase: str) -> Transfers:
  """Returns the transfers that have arrived completely.

  Args:
    phase: 'pull' or 'push'.
  """
  whole = sorted(
    (span.start, span.worker, span.end - span.start)
    for spans in _whole(timeline, phase)
    for span in spans
    if span.end > span.start
  )
  columns = np.array(whole).reshape(-1, 3).T
  return Transfers(columns[1].astype(int), columns[0], columns[2])


def size_bytes(timeline: Timeline) -> int:
  """Returns the mean bytes of the pushes and pulls that arrived.

  Raises:
    ValueError: If none has arrived.
  """
  # A worker that computes has pulled, even if the run ended meanwhile.
  pulls = sum(s.phase == 'compute' for spans in timeline.workers for s in spans)
  arrived = pulls + timeline.summary['iterations']
  require(arrived > 0, f'{timeline.run.path}', 'pulls that arrived', arrived)
  size_bytes: int = round(timeline.summary['bytes'] / arrived)
  return size_bytes


def compute_times(timeline: Timeline) -> list[list[float]]:
  """Returns the seconds that each worker computed, by iteration.

  The first ones are omitted as warm-up while they exceed three times their
  worker's median.
  """
  times = []
  for spans in _whole(timeline, 'compute'):
    own = [span.end - span.start for span in spans]
    limit = _WARM * float(np.median(own)) if own else 0.0
    first = next((n for n, s in enumerate(own) if s <= limit), len(own))
    times.append(own[first:])
  return times


def _whole(timeline: Timeline, phase: str) -> list[list[Span]]:
  """Returns the complete spans of a phase, by worker."""
  events = timeline.run.events
  leaves = events.select(events['event'] == 'leave')
  left = [
    leaves['time'][leaves['worker'] == worker].tolist()
    for worker in range(len(timeline.workers))
  ]
  return [
    [
      span
      for span, after in itertools.pairwise(spans)
      if span.phase == phase
      and after.phase in _NEXT[phase]
      and not _within(ends, span.start, after.start)
    ]
    for spans, ends in zip(timeline.workers, left, strict=True)
  ]


def _within(times: Sequence[float], start: float, end: float) -> bool:
  place = bisect.bisect_left(times, start)
  return place < len(times) and times[place] <= end
