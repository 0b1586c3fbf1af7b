"""What the timeline of a run says: its transfers, compute times and pace."""

import bisect
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from configs.checks import require
from tools.calibrating.links import Transfers
from tools.reading import records
from tools.reading.records import Span

# What begins when a phase has ended as it should.
_NEXT = {
  'pull': ('compute',),
  'compute': ('push', 'wait'),  # For others, where workers sum.
  'push': ('wait', 'pull'),
}
_WARM = 3.0  # Times the median, from which first compute times are warm-up.


class Pace(NamedTuple):
  """How fast a run went, from when all had pushed once to the last push.

  Attributes:
    iteration_s: Seconds of living workers per iteration.
    waiting_share: Of the workers' time, 0 to 1.
  """

  iteration_s: float
  waiting_share: float


class Timeline(NamedTuple):
  """The timeline of a run that has ended.

  Attributes:
    workers: The spans of each worker, in order.
    events: Of events.jsonl.
    summary: Of summary.json.
    path: Its folder.
  """

  workers: Sequence[Sequence[Span]]
  events: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any]
  path: pathlib.Path


def read(path: str | pathlib.Path) -> Timeline:
  """Returns the timeline of a run.

  Args:
    path: Its folder.

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
  """Returns the transfers that have arrived whole.

  Args:
    timeline: Of a run.
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
  """Returns the bytes of a push or pull: all bytes by all that arrived.

  Raises:
    ValueError: If there was none.
  """
  # Whoever computes has pulled, even if the run then ended.
  pulls = sum(s.phase == 'compute' for spans in timeline.workers for s in spans)
  arrived = pulls + timeline.summary['iterations']
  require(arrived > 0, f'{timeline.path}', 'pulls that arrived', arrived)
  return round(timeline.summary['bytes'] / arrived)


def compute_times(timeline: Timeline) -> list[list[float]]:
  """Returns the seconds that each worker computed, by iteration.

  The first ones are left out as warm-up while they exceed three times their
  worker's median.
  """
  times = []
  for spans in _whole(timeline, 'compute'):
    own = [span.end - span.start for span in spans]
    limit = _WARM * float(np.median(own)) if own else 0.0
    times.append(list(itertools.dropwhile(lambda s, m=limit: s > m, own)))
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
  expected = 'pushes after each worker has made one'
  require(count > 0, f'{timeline.path}', expected, count)
  seconds = dict.fromkeys((*_NEXT, 'wait'), 0.0)
  for span in itertools.chain(*timeline.workers):
    within = min(span.end, end) - max(span.start, start)
    seconds[span.phase] += max(within, 0.0)
  living_s = (end - start) * len(timeline.workers)
  living_s -= _gone_s(timeline, start, end)
  return Pace(living_s / count, seconds['wait'] / sum(seconds.values()))


def _whole(timeline: Timeline, phase: str) -> list[list[Span]]:
  """Returns the spans of a phase that was not cut off, of each worker."""
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


def _gone_s(timeline: Timeline, start: float, end: float) -> float:
  """Returns the seconds that workers were gone from start to end, summed."""
  gone_s, since = 0.0, {}
  for event in timeline.events:
    if event['event'] == 'leave':
      since[event['worker']] = event['time']
    elif event['event'] == 'join':
      left = since.pop(event['worker'])
      gone_s += max(min(event['time'], end) - max(left, start), 0.0)
  return gone_s + sum(max(end - max(t, start), 0.0) for t in since.values())


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
