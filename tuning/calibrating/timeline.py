"""Transfers, compute times and pace from the timeline of a run."""

import bisect
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis import records
from analysis.records import Span
from configs.checks import require
from tuning.calibrating.links import Transfers

# Phases that follow a phase that has ended normally.
_NEXT = {
  'pull': ('compute',),
  'compute': ('push', 'wait'),  # Waits on allreduce routes.
  'push': ('wait', 'pull'),
}
_WARM = 3.0  # First compute times above this multiple of the median: warm-up.


class Pace(NamedTuple):
  """Pace of a run, from the first push of the last worker to the last push.

  Attributes:
    iteration_s: Seconds of live workers per iteration.
    waiting_share: Share of the workers' time spent on waiting, 0 to 1.
  """

  iteration_s: float
  waiting_share: float


class Timeline(NamedTuple):
  """The timeline of a run that has ended.

  Attributes:
    workers: Spans of each worker, in order.
    events: Rows of events.jsonl.
    summary: Content of summary.json.
    path: Folder of the run.
  """

  workers: Sequence[Sequence[Span]]
  events: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any]
  path: pathlib.Path


def read(path: str | pathlib.Path) -> Timeline:
  """Returns the timeline of the run in a folder.

  Raises:
    ValueError: If there is no run, if it has no summary yet, or if a file of it
      is broken.
    OSError: If a file cannot be read.
  """
  path = pathlib.Path(path)
  config, summary = records.read_config(path), records.read_summary(path)
  if summary is None:
    raise ValueError(
      f'{path}: expected a run that has ended, with summary.json, got none.'
    )
  workers: list[list[Span]] = [[] for _ in range(config['cluster']['workers'])]
  for span in _spans(path / 'trace.json', len(workers)):
    workers[span.worker].append(span)
  for spans in workers:
    spans.sort(key=lambda span: span.start)
  return Timeline(workers, tuple(records.read_events(path)), summary, path)


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
  require(arrived > 0, f'{timeline.path}', 'pulls that arrived', arrived)
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


def pace(timeline: Timeline) -> Pace:
  """Returns how fast a run went, without its beginning and its tail.

  Raises:
    ValueError: If nothing was pushed after every worker had pushed once.
  """
  pushes = [e for e in timeline.events if e['event'] == 'push']
  firsts: dict[int, float] = {}
  for push in pushes:
    firsts.setdefault(push['worker'], push['time'])
  start = max(firsts.values(), default=0.0)
  end = pushes[-1]['time'] if pushes else 0.0
  count = sum(start < push['time'] for push in pushes)
  expected = 'pushes after the first one of each worker'
  require(count > 0, f'{timeline.path}', expected, count)
  seconds = dict.fromkeys((*_NEXT, 'wait'), 0.0)
  for span in itertools.chain(*timeline.workers):
    within = min(span.end, end) - max(span.start, start)
    seconds[span.phase] += max(within, 0.0)
  living_s = (end - start) * len(timeline.workers)
  living_s -= _absent_s(timeline, start, end)
  return Pace(living_s / count, seconds['wait'] / sum(seconds.values()))


def _whole(timeline: Timeline, phase: str) -> list[list[Span]]:
  """Returns the complete spans of a phase, by worker."""
  left: list[list[float]] = [[] for _ in timeline.workers]
  for event in timeline.events:
    if event['event'] == 'leave':
      left[event['worker']].append(event['time'])
  return [
    [
      span
      for span, after in itertools.pairwise(spans)
      if span.phase == phase
      and after.phase in _NEXT[phase]
      and not _within(leaves, span.start, after.start)
    ]
    for spans, leaves in zip(timeline.workers, left, strict=True)
  ]


def _within(times: Sequence[float], start: float, end: float) -> bool:
  place = bisect.bisect_left(times, start)
  return place < len(times) and times[place] <= end


def _absent_s(timeline: Timeline, start: float, end: float) -> float:
  """Returns the seconds that workers were absent from start to end, summed."""
  absent_s = 0.0
  since: dict[int, float] = {}
  for event in timeline.events:
    name, time = event['event'], event['time']
    back: Sequence[int] = ()
    if name == 'leave':
      since[event['worker']] = time
    elif name == 'join':
      back = (event['worker'],)
    elif name == 'start':  # Perhaps with another number of workers than before.
      back = event['decision'].get('release', ())
      for worker in {*range(len(timeline.workers))} - {*back}:
        since.setdefault(worker, time)
    for worker in back:
      if (left := since.pop(worker, None)) is not None:
        absent_s += max(min(time, end) - max(left, start), 0.0)
  return absent_s + sum(max(end - max(t, start), 0.0) for t in since.values())


def _spans(file: pathlib.Path, workers: int) -> list[Span]:
  text = file.read_text(encoding='utf-8')
  try:
    rows = json.loads(text)
    spans = [_span(row) for row in rows if row['ph'] == 'X']
  except (json.JSONDecodeError, KeyError, TypeError) as error:
    raise ValueError(f'{file}: expected a timeline, got {error!r}.') from error
  for span in spans:
    known = span.worker in range(workers) and span.phase in (*_NEXT, 'wait')
    require(known, f'{file}', f'phases of workers below {workers}', span)
  return spans


def _span(row: Mapping[str, Any]) -> Span:
  start = row['ts'] / 1e6
  return Span(row['tid'], row['name'], start, start + row['dur'] / 1e6)
