"""Readers of the files of a run, also of a running or crashed one."""

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from outputs import formats, manifests

# Values of `event` in rows of events.jsonl that are no events of a scheme.
_LINKS = 'links'
_RESIDUALS = ('forgot', 'recalled')  # Residuals of workers, lost or recovered.
DRIFT = 'drift'  # Replicas that differed from the reference.
ROLLBACK = 'rollback'  # Returns to mirrors.
STRAGGLER = 'straggler'  # Slow workers and links, and their ends.
_SHOWN = 64  # Largest number of workers whose spans are read.
_WINDOW = 16  # Mean iterations of a worker in the window of spans.
_CONFIG = ('config.seed', 'config.sync.name', 'config.cluster.workers')
_WORKERS = 'config.cluster.workers'
_METRIC = ('kind', 'time', 'iterations', 'accuracy')
_SPAN = ('name', 'ts', 'dur', 'tid')
_SUMMARY = ('ended', 'staleness', 'worker_seconds')
_NO_SUMMARY: Mapping[str, Any] = {
  'ended': None,
  'staleness': {},
  'worker_seconds': {},
}
# Measures of runs whose manifest has none: it is of an earlier version.
_MEASURES = {
  'accuracy': 'rises',
  'perplexity': 'falls',
  'bits_per_byte': 'falls',
}
_REAL_TIME = 'wall_'  # Prefix of fields.


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


class RunRecord(NamedTuple):
  """Files of one run, as pictures and tables need them.

  Attributes:
    path: Folder of the run.
    config: Config, from manifest.json.
    rows: Rows of metrics.jsonl.
    ended: Value of `ended` in summary.json; None without a summary.
    staleness: Applied pushes by staleness, versions; empty without a summary.
    seconds: Worker seconds by phase, where not 0; empty without a summary.
    window: Start and end of the interval of `spans`, seconds on the run's
      clock.
    workers: Indices of the workers that have `spans`.
    spans: All spans of these workers that overlap the window.
    summary: Content of summary.json; None without one.
    measures: Directions of the measures of evaluations, 'rises' or 'falls', by
      name, the primary one first; empty without a model.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  rows: Sequence[Mapping[str, Any]]
  ended: str | None
  staleness: Mapping[int, int]
  seconds: Mapping[str, float]
  window: tuple[float, float]
  workers: Sequence[int]
  spans: Sequence[Span]
  summary: Mapping[str, Any] | None = None
  measures: Mapping[str, str] = {}


def time_label(runs: Iterable[RunRecord]) -> str:
  """Returns the label of an axis with the times of runs."""
  clocks = {run.config['cluster']['runtime'] for run in runs}
  return 'virtual time (s)' if clocks == {'virtual'} else 'time (s)'


def load(path: str | pathlib.Path) -> RunRecord:
  """Returns the record of a run.

  A run without summary.json is running or was killed: its files may be missing
  and their last lines may be truncated.

  Args:
    path: Folder of a run.

  Raises:
    ValueError: If there is no run, or if a file is broken; names the file, the
      expectation and the content.
    OSError: If a file cannot be read.
  """
  path = pathlib.Path(path)
  manifest = read_manifest(path)
  config = manifest['config']
  summary = read_summary(path)
  is_complete, sums = summary is not None, summary or _NO_SUMMARY
  rows = tuple(_read_metrics(path, is_complete))
  workers = _pick_evenly(config['cluster']['workers'])
  shown = find_window(rows, config['cluster']['workers'])
  return RunRecord(
    path=path,
    config=config,
    rows=rows,
    ended=sums['ended'],
    staleness={int(stale): n for stale, n in sums['staleness'].items()},
    seconds={phase: s for phase, s in sums['worker_seconds'].items() if s},
    window=shown,
    workers=workers,
    spans=tuple(_overlapping(read_spans(path, is_complete), shown, workers))
    if config['outputs']['timeline']
    else (),
    summary=summary,
    measures=find_measures(manifest),
  )


def find_measures(manifest: Mapping[str, Any]) -> Mapping[str, str]:
  """Returns the directions of a run's measures from its manifest."""
  measures: Mapping[str, str] = manifest.get('measures', _MEASURES)
  return measures


def read_summary(path: pathlib.Path) -> dict[str, Any] | None:
  """Returns the content of summary.json, or None without one.

  Args:
    path: Folder of a run.

  Raises:
    ValueError: If it is broken; names the file.
    OSError: If it cannot be read.
  """
  file = path / 'summary.json'
  return _read(file, _SUMMARY) if file.exists() else None


def find_window(
  rows: Sequence[Mapping[str, Any]], workers: int
) -> tuple[float, float]:
  """Returns start and end of the interval to show in detail, seconds.

  The interval is the middle of the measured time: `_WINDOW` iterations of a
  mean worker, or all of the time if there are fewer.

  Args:
    rows: Rows of metrics.jsonl.
    workers: Number of workers.
  """
  if not rows or not rows[-1]['iterations']:
    return 0.0, 0.0
  end_s, iterations = rows[-1]['time'], rows[-1]['iterations']
  length = min(_WINDOW * workers * end_s / iterations, end_s)
  return (end_s - length) / 2, (end_s + length) / 2


def read_config(path: pathlib.Path) -> dict[str, Any]:
  """Returns the config of a run from its manifest.

  Args:
    path: Folder of a run.

  Raises:
    ValueError: If there is no run, or if its manifest is broken.
    OSError: If it cannot be read.
  """
  config: dict[str, Any] = read_manifest(path)['config']
  return config


def read_manifest(path: pathlib.Path) -> dict[str, Any]:
  """Returns the manifest of a run.

  Fields of the config that may change when a run on real hosts resumes have the
  values of the last start; the number of workers is the largest of all starts.

  Args:
    path: Folder of a run.

  Raises:
    ValueError: If there is no run, or if its manifest is broken.
    OSError: If it cannot be read.
  """
  found = _read_manifest(path)
  changes = [start.get('changed', {}) for start in found.get('starts', [])]
  first = manifests.read_field(found, _WORKERS)
  workers = [first, *(each.get(_WORKERS, first) for each in changes)]
  last = changes[-1] if changes else {}  # The run has not begun.
  for field, value in (last | {_WORKERS: max(workers)}).items():
    manifests.write_field(found, field, value)
  return found


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
  """Returns the content of manifest.json: the config is of the first start."""
  file = path / 'manifest.json'
  if not file.is_file():
    got = 'a folder without one' if path.is_dir() else 'no folder'
    raise ValueError(f'{path}: expected a run with manifest.json, got {got}.')
  found = _read(file, _CONFIG)
  formats.check_run_folder(found, path)
  return found


def values_at_starts(path: pathlib.Path, field: str) -> list[Any]:
  """Returns a field of the config at each start whose events are kept.

  Events of a start that ended before its first checkpoint are not kept.

  Args:
    path: Folder of a run.
    field: Path of the field, such as 'config.cluster.workers'.

  Raises:
    ValueError: If there is no run, or if its manifest is broken.
    OSError: If it cannot be read.
  """
  manifest = _read_manifest(path)
  starts, first = manifest['starts'], manifests.read_field(manifest, field)
  return [
    start.get('changed', {}).get(field, first)
    for number, start in enumerate(starts)
    if all(
      start['examples'] < other['examples'] for other in starts[number + 1 :]
    )
  ]


def has_events(run: RunRecord) -> bool:
  """Returns True if a run writes the events of its scheme."""
  return bool(run.config['outputs']['events'])


def read_events(
  path: pathlib.Path,
  *,
  with_residuals: bool = False,
  with_rollbacks: bool = False,
) -> Iterator[dict[str, Any]]:
  """Yields the events of a run's scheme with its decisions, in order.

  Args:
    path: Folder of a run.
    with_residuals: True to yield also the rows of residuals that were lost or
      recovered.
    with_rollbacks: True to yield also the rows of returns to mirrors.

  Raises:
    ValueError: If a line is broken; names file and line.
    OSError: If the file cannot be read.
  """
  others = {_LINKS, DRIFT, STRAGGLER, *(() if with_residuals else _RESIDUALS)}
  others |= set() if with_rollbacks else {ROLLBACK}
  for row in read_all_events(path):
    if row['event'] not in others:
      row.pop('factors', None)  # The scheme does not get them.
      yield row


def split_absent(
  rows: Iterable[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
  """Yields rows, each start with the workers that were absent at it.

  A run that starts without some workers records that they leave right after the
  start, at the same time.  These rows are not yielded themselves.

  Args:
    rows: Rows of events.jsonl, in order.

  Yields:
    A row, and the absent workers; () for all rows but starts.
  """
  start: dict[str, Any] | None = None
  absent: list[int] = []
  for row in rows:
    if start is not None:
      if row['event'] == 'leave' and row['time'] == start['time']:
        absent.append(row['worker'])
        continue
      yield start, tuple(absent)
    start, absent = (row, []) if row['event'] == 'start' else (None, [])
    if start is None:
      yield row, ()
  if start is not None:
    yield start, tuple(absent)


def read_link_events(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the rows about links, which are no events of a scheme.

  Arguments and errors are those of `read_events`.
  """
  return (row for row in read_all_events(path) if row['event'] == _LINKS)


def read_all_events(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields all rows of events.jsonl, in the order of the events.

  Arguments and errors are those of `read_events`.
  """
  exists = (path / 'events.jsonl').exists()
  if not exists and not read_config(path)['outputs']['events']:
    raise ValueError(
      f'{path}: expected a run with events.jsonl, got one with '
      'config.outputs.events=False.'
    )
  is_complete = read_summary(path) is not None
  for where, row in _read_lines(path / 'events.jsonl', is_complete):
    _check(row, _event_fields(row.get('event')), where)
    yield row


def read_spans(path: pathlib.Path, is_complete: bool = False) -> Iterator[Span]:
  """Yields the phases of all workers from trace.json, by their ends.

  Args:
    path: Folder of a run.
    is_complete: True if the file must end with a whole line.

  Raises:
    ValueError: If a line is broken; names file and line.
    OSError: If the file cannot be read.
  """
  for where, row in _read_lines(path / 'trace.json', is_complete):
    if row.get('ph') == 'X':
      _check(row, _SPAN, where)
      start = row['ts'] / 1e6
      yield Span(row['tid'], row['name'], start, start + row['dur'] / 1e6)


def read_rows(file: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the objects of a complete file of a run.

  Args:
    file: JSON lines, a JSON array with an element per line, or one object.

  Raises:
    ValueError: If the file is no valid JSON; names the file.
    OSError: If it cannot be read.
  """
  if file.suffix == '.jsonl':
    return [row for _, row in _read_lines(file, True)]
  try:
    content = json.loads(file.read_text(encoding='utf-8-sig'))
  except json.JSONDecodeError as error:
    raise ValueError(f'{file}: expected JSON, got {error}.') from error
  return content if isinstance(content, list) else [content]


def without_real_time(row: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a row without its fields of real time."""
  return {k: v for k, v in row.items() if not k.startswith(_REAL_TIME)}


def _event_fields(event: str | None) -> tuple[str, ...]:
  """Returns the fields that a row of an event must have."""
  if event == _LINKS:
    return 'time', 'did', 'why'
  if event in (DRIFT, *_RESIDUALS):
    return ('worker',)
  if event == ROLLBACK:
    return 'time', 'updates'
  if event == STRAGGLER:
    return 'time', 'of', 'did'
  return 'event', 'decision'


def _read_metrics(
  path: pathlib.Path, is_complete: bool
) -> Iterator[dict[str, Any]]:
  for where, row in _read_lines(path / 'metrics.jsonl', is_complete):
    _check(row, _METRIC, where)
    yield row


def _overlapping(
  spans: Iterable[Span], shown: tuple[float, float], workers: Sequence[int]
) -> Iterator[Span]:
  """Yields the spans of workers in the window, and stops reading after it."""
  left = set(workers)  # Spans of a worker are in the order of time.
  for span in spans:
    if span.worker in left:
      if span.end > shown[0] and span.start < shown[1]:
        yield span
      if span.end >= shown[1]:
        left.remove(span.worker)
    if not left:
      return


def _read_lines(
  file: pathlib.Path, is_complete: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the place and the object of each line of a file.

  Args:
    file: JSON lines, or a JSON array with an element per line.
    is_complete: True if the file must exist and end with a whole line.
  """
  if not (is_complete or file.exists()):
    return
  with file.open(encoding='utf-8-sig', errors='replace') as lines:
    for number, line in enumerate(lines, start=1):
      if not (is_complete or line.endswith('\n')):
        return
      text = line.strip().removesuffix(',')
      if text not in ('[', ']'):
        where = f'{file}, line {number}'
        yield where, _object(text, where)


def _read(file: pathlib.Path, fields: Sequence[str]) -> dict[str, Any]:
  """Returns the object of a JSON file that has the fields."""
  text = file.read_text(encoding='utf-8-sig', errors='replace')
  content = _object(text, str(file))
  _check(content, fields, str(file))
  return content


def _object(text: str, where: str) -> dict[str, Any]:
  problem = f'{where}: expected a JSON object, got {text[:80]!r}'
  try:
    content = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(f'{problem} ({error}).') from error
  if not isinstance(content, dict):
    raise ValueError(f'{problem}.')
  return content


def _check(
  content: Mapping[str, Any], fields: Sequence[str], where: str
) -> None:
  """Refuses an object without one of the fields, which have dotted names."""
  for field in fields:
    value: Any = content
    for part in field.split('.'):
      if not isinstance(value, dict) or part not in value:
        raise ValueError(
          f'{where}: expected the field {field}, got {str(content)[:80]}.'
        )
      value = value[part]


def _pick_evenly(count: int) -> tuple[int, ...]:
  """Returns 0 to count - 1, or `_SHOWN` of them, evenly spaced."""
  picked = np.linspace(0, count - 1, min(count, _SHOWN)).round()
  return tuple(int(number) for number in picked)
