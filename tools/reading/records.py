"""Reads the files of a run, even while it runs or after it has crashed."""

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from outputs import formats

# Rows of events.jsonl that are no events of a scheme.
_LINKS = 'links'
_KEPT = ('forgot', 'recalled')  # Residuals of workers.
DRIFT = 'drift'  # Replicas that differed from the reference.
_SHOWN = 64  # Workers whose spans are read, at most.
_WINDOW = 16  # Iterations of a mean worker whose spans are read.
_CONFIG = ('config.seed', 'config.sync.name', 'config.cluster.workers')
_METRIC = ('kind', 'time', 'iterations', 'accuracy')
_SPAN = ('name', 'ts', 'dur', 'tid')
_SUMMARY = ('ended', 'staleness', 'worker_seconds')
_NO_SUMMARY = {'ended': None, 'staleness': {}, 'worker_seconds': {}}


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
  """Record of one run, read from its files, for pictures and tables.

  Attributes:
    path: Folder of the run.
    config: Config, from manifest.json.
    rows: Rows of metrics.jsonl.
    ended: 'finished', or another `ended` of summary.json; None without one.
    staleness: Applied pushes by staleness, versions; empty without a summary.
    seconds: Worker seconds by phase, where not 0; empty without a summary.
    window: Start and end of the interval of `spans`, seconds on the run's
      clock.
    workers: Indices of the workers that have `spans`.
    spans: All spans of these workers that overlap the window.
    summary: Content of summary.json; None without one.
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


def load(path: str | pathlib.Path) -> RunRecord:
  """Returns the record of a run.

  Without summary.json, which every run writes unless it is killed, files may be
  missing and their last lines may be cut off.

  Args:
    path: Folder of a run.

  Raises:
    ValueError: If there is no run, or if a file is broken; names the file, the
      expected content and the content.
    OSError: If a file cannot be read.
  """
  path = pathlib.Path(path)
  manifest = config(path)
  summary = read_summary(path)
  whole, sums = summary is not None, summary or _NO_SUMMARY
  rows = tuple(_metrics(path, whole))
  workers = _evenly(manifest['cluster']['workers'])
  shown = window(rows, manifest['cluster']['workers'])
  return RunRecord(
    path=path,
    config=manifest,
    rows=rows,
    ended=sums['ended'],
    staleness={int(stale): n for stale, n in sums['staleness'].items()},
    seconds={phase: s for phase, s in sums['worker_seconds'].items() if s},
    window=shown,
    workers=workers,
    spans=tuple(_overlapping(_spans(path, whole), shown, workers))
    if _keeps(manifest, 'timeline')
    else (),
    summary=summary,
  )


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


def window(
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


def config(path: pathlib.Path) -> dict[str, Any]:
  """Returns the config of a run, as its manifest has it.

  Args:
    path: Folder of a run.

  Raises:
    ValueError: If there is no run, or if its manifest is broken.
    OSError: If it cannot be read.
  """
  return manifest(path)['config']


def manifest(path: pathlib.Path) -> dict[str, Any]:
  """Returns a run's manifest; arguments and errors are those of `config`.

  A folder of an earlier version is refused.
  """
  file = path / 'manifest.json'
  if not file.is_file():
    got = 'a folder without one' if path.is_dir() else 'no folder'
    raise ValueError(f'{path}: expected a run with manifest.json, got {got}.')
  found = _read(file, _CONFIG)
  formats.check_run_folder(found, path)
  return found


def has_events(run: RunRecord) -> bool:
  """Returns whether a run wrote its scheme's events."""
  return _keeps(run.config, 'events')


def _keeps(config: Mapping[str, Any], output: str) -> bool:
  """Returns whether a run writes an output."""
  return bool(config['outputs'][output])


def events(
  path: pathlib.Path, *, kept: bool = False
) -> Iterator[dict[str, Any]]:
  """Yields the events of a run's scheme with its decisions, in order.

  Args:
    path: Folder of a run.
    kept: True to yield also the rows of residuals that were lost or recovered.

  Raises:
    ValueError: If a line is broken; names file and line.
    OSError: If the file cannot be read.
  """
  for row in every(path):
    told = row['event']
    if told not in (_LINKS, DRIFT, *_KEPT) or (kept and told in _KEPT):
      yield row


def links(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the rows about links, which are no events of a scheme.

  Arguments and errors are those of `events`.
  """
  return (row for row in every(path) if row['event'] == _LINKS)


def every(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields both, in the order in which they happened."""
  there = (path / 'events.jsonl').exists()
  if not there and not _keeps(config(path), 'events'):
    raise ValueError(
      f'{path}: expected a run with events.jsonl, got one with '
      'config.outputs.events=False.'
    )
  whole = read_summary(path) is not None
  for where, row in _lines(path / 'events.jsonl', whole):
    told = row.get('event')
    fields = {_LINKS: ('time', 'did', 'why')} | dict.fromkeys(
      (*_KEPT, DRIFT), ('worker',)
    )
    _check(row, fields.get(told, ('event', 'decision')), where)
    yield row


def _metrics(path: pathlib.Path, whole: bool) -> Iterator[dict[str, Any]]:
  for where, row in _lines(path / 'metrics.jsonl', whole):
    _check(row, _METRIC, where)
    yield row


def _spans(path: pathlib.Path, whole: bool) -> Iterator[Span]:
  for where, row in _lines(path / 'trace.json', whole):
    if row.get('ph') == 'X':
      _check(row, _SPAN, where)
      start = row['ts'] / 1e6
      yield Span(row['tid'], row['name'], start, start + row['dur'] / 1e6)


def _overlapping(
  spans: Iterable[Span], shown: tuple[float, float], workers: Sequence[int]
) -> Iterator[Span]:
  """Yields the workers' spans in the window, without reading on after it."""
  going = set(workers)  # A worker's spans come in order.
  for span in spans:
    if span.worker in going:
      if span.end > shown[0] and span.start < shown[1]:
        yield span
      if span.end >= shown[1]:
        going.remove(span.worker)
    if not going:
      return


def _lines(
  file: pathlib.Path, whole: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields where an object stands and the object, of a file with one per line.

  Args:
    file: JSON lines, or a JSON array with an element per line.
    whole: Whether the file must be there, with a last line that has an end.
  """
  if not (whole or file.exists()):
    return
  with file.open(encoding='utf-8', errors='replace') as lines:
    for number, line in enumerate(lines, start=1):
      if not (whole or line.endswith('\n')):
        return
      text = line.strip().removesuffix(',')
      if text not in ('[', ']'):
        where = f'{file}, line {number}'
        yield where, _object(text, where)


def _read(file: pathlib.Path, fields: Sequence[str]) -> dict[str, Any]:
  """Returns the object of a file, which must have the fields."""
  text = file.read_text(encoding='utf-8', errors='replace')
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
  """Refuses an object without one of the fields, given by dotted names."""
  for field in fields:
    value: Any = content
    for part in field.split('.'):
      if not isinstance(value, dict) or part not in value:
        raise ValueError(
          f'{where}: expected the field {field}, got {str(content)[:80]}.'
        )
      value = value[part]


def _evenly(count: int) -> tuple[int, ...]:
  """Returns 0 to count - 1, or `_SHOWN` of them, evenly spaced."""
  picked = np.linspace(0, count - 1, min(count, _SHOWN)).round()
  return tuple(int(number) for number in picked)
