"""Reader of run folders, also of runs that are running or have crashed.

`read` returns a run.  Its files are read when they are first needed; rows come
as tables, with a NumPy array for each column.
"""

import os
import pathlib
from collections.abc import (
  Callable,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from outputs import formats, manifests

_T = TypeVar('_T')

# Values of `event` in rows of events.jsonl that are no events of a scheme.
LINKS = 'links'
_RESIDUALS = ('forgot', 'recalled')  # Residuals of workers, lost or recovered.
DRIFT = 'drift'  # Replicas that differed from the reference.
ROLLBACK = 'rollback'  # Returns to mirrors.
STRAGGLER = 'straggler'  # Slow workers and links, and their ends.
# Fields that rows must have, by `event`; those of schemes have a decision.
_FIELDS: Mapping[str, tuple[str, ...]] = {
  LINKS: ('time', 'did', 'why'),
  **dict.fromkeys((DRIFT, *_RESIDUALS), ('worker',)),
  ROLLBACK: ('time', 'updates'),
  STRAGGLER: ('time', 'of', 'did'),
}
_DECISION = ('event', 'decision')
_PUSH = ('time', 'worker', 'compute_s', 'examples')
_CONFIG = ('config.seed', 'config.sync.name', 'config.cluster.workers')
_WORKERS = 'config.cluster.workers'
_METRIC = ('kind', 'time', 'iterations', 'accuracy')
_SPAN = ('name', 'ts', 'dur', 'tid')
_SUMMARY = ('ended', 'staleness', 'worker_seconds')
_LIVE = ('written', 'workers')
_REAL_TIME = 'wall_'  # Prefix of fields.
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'


class Table:
  """Rows as columns: NumPy arrays of one length, by name.

  `table['time']` is a column, `len(table)` the number of rows, and
  `'loss' in table` tells whether there is such a column.
  """

  def __init__(self, columns: Mapping[str, np.ndarray]):
    self.columns = dict(columns)

  def __len__(self) -> int:
    return len(next(iter(self.columns.values()), ()))

  def __contains__(self, name: str) -> bool:
    return name in self.columns

  def __getitem__(self, name: str) -> np.ndarray:
    return self.columns[name]

  def select(self, chosen: np.ndarray) -> 'Table':
    """Returns some rows: `chosen` is Bool [rows], or places of rows."""
    return Table({name: each[chosen] for name, each in self.columns.items()})


class Follower:
  """Reader of the lines of a file, as a running process writes them.

  Attributes:
    path: JSON lines, or a JSON array with an element per line; it need not
      exist yet.
    changed_at: Unix time of its last change; None before it exists.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.changed_at: float | None = None
    self._offset, self._inode, self._number = 0, -1, 0

  def read(
    self,
    decode: Callable[[bytes], _T],
    *,
    is_complete: bool = False,
  ) -> tuple[list[_T], bool]:
    """Returns the rows since the last call, and whether all are new.

    All rows are new after the file was replaced or has become shorter, as when
    a run returns to a checkpoint or to a mirror.  A last line without its end
    is left for the next call.

    Args:
      decode: Returns the row of a line.
      is_complete: Whether the file must exist and end with a whole line.

    Raises:
      ValueError: If a line is broken; names file and line.
      OSError: If the file exists and cannot be read.
    """
    if not (is_complete or self.path.exists()):
      return [], False
    rows = []
    with self.path.open('rb') as file:
      status = os.fstat(file.fileno())
      self.changed_at = status.st_mtime
      is_new = status.st_ino != self._inode or status.st_size < self._offset
      if is_new:
        self._offset, self._inode, self._number = 0, status.st_ino, 0
      file.seek(self._offset)
      for line in file:
        if not (is_complete or line.endswith(b'\n')):
          break
        text = line.strip().removesuffix(b',')
        if not self._number:
          text = text.removeprefix(_BYTE_ORDER_MARK)
        if text not in (b'[', b']'):
          try:
            rows.append(decode(text))
          except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            where = f'{self.path}, line {self._number + 1}'
            raise _refusal(where, text, error) from error
        self._offset += len(line)
        self._number += 1
    return rows, is_new


class _Decision(msgspec.Struct, gc=False):
  """Fields of a decision that columns have: see `sync.scheme.Decision`."""

  into: int | None = None
  commit: tuple[int, ...] = ()
  release: tuple[int, ...] = ()
  barrier: bool = False


class _Event(msgspec.Struct):
  """Row of events.jsonl."""

  event: str
  time: float | None = None
  worker: int | None = None
  compute_s: float | None = None
  examples: int | None = None
  factors: tuple[float | None, ...] = ()
  decision: _Decision | None = None


class _Span(msgspec.Struct, gc=False):
  """Row of trace.json."""

  ph: str
  name: str | None = None
  ts: float | None = None
  dur: float | None = None
  tid: int | None = None


class Run:
  """A run, from the files of its folder.

  Attributes:
    path: Folder of the run.
    manifest: Content of manifest.json.  Fields of the config that may change
      when a run on real hosts resumes have the values of the last start; the
      number of workers is the largest of all starts.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    self._files = {
      name: Follower(path / name)
      for name in ('metrics.jsonl', 'events.jsonl', 'trace.json')
    }
    self._rows: list[dict[str, Any]] = []
    self._events: _EventTables | None = None
    self._spans: Table | None = None
    self.refresh()

  def refresh(self) -> None:
    """Follows a running run: tables then have the rows written since.

    Raises:
      ValueError: If a file is broken; names it.
      OSError: If a file cannot be read.
    """
    self.manifest = _read_manifest(self.path)
    file = self.path / 'summary.json'
    self._summary = _read(file, _SUMMARY) if file.exists() else None
    self._is_read: set[str] = set()

  @property
  def config(self) -> Mapping[str, Any]:
    """The config, by section."""
    config: Mapping[str, Any] = self.manifest['config']
    return config

  @property
  def measures(self) -> Mapping[str, str]:
    """Directions of the measures of evaluations, 'rises' or 'falls', by name.

    The primary one is the first; empty without a model.
    """
    measures: Mapping[str, str] = self.manifest['measures']
    return measures

  @property
  def summary(self) -> Mapping[str, Any] | None:
    """Content of summary.json; None without one."""
    return self._summary

  @property
  def ended(self) -> str | None:
    """Value of `ended` in summary.json; None without one."""
    return None if self._summary is None else self._summary['ended']

  @property
  def live(self) -> Mapping[str, Any] | None:
    """Content of live.json, the status of a run on real hosts; None without."""
    file = self.path / 'live.json'
    return _read(file, _LIVE) if file.exists() else None

  @property
  def rows(self) -> Sequence[Mapping[str, Any]]:
    """Rows of metrics.jsonl, as dictionaries."""
    if self._must_read('metrics.jsonl'):
      rows, is_new = self._read('metrics.jsonl', _decode_metric)
      self._rows = rows if is_new else self._rows + rows
    return self._rows

  @property
  def metrics(self) -> Table:
    """Rows of metrics.jsonl; NaN where a row has no number."""
    names = dict.fromkeys(name for row in self.rows for name in row)
    return Table(
      {
        name: _make_column([row.get(name) for row in self.rows])
        for name in names
      }
    )

  @property
  def has_events(self) -> bool:
    """True if the run writes events.jsonl."""
    return bool(self.config['outputs']['events'])

  @property
  def events(self) -> Table:
    """Events of the scheme: rows of events.jsonl that have a decision.

    Columns: `event`, such as 'push'; `time`, seconds; `worker`, -1 for none;
    `compute_s`, seconds of computing of a push; `examples` of a push; `into`,
    the update of a push, -1 for none; `barrier`, Bool; `factors`, a tuple.

    Raises:
      ValueError: If the run writes no events, or a row is broken.
      OSError: If the file cannot be read.
    """
    return self._read_events().events

  @property
  def commits(self) -> Table:
    """Updates in the order in which they were applied; `event`, `update`.

    `event` is the place in `events` of the decision that applied the update.
    """
    return self._read_events().commits

  @property
  def releases(self) -> Table:
    """Releases of workers in order; `event` as in `commits`, and `worker`."""
    return self._read_events().releases

  @property
  def remarks(self) -> Sequence[Mapping[str, Any]]:
    """Rows of events.jsonl that no scheme gets, such as those on links."""
    return self._read_events().remarks

  @property
  def link_rows(self) -> list[Mapping[str, Any]]:
    """Rows of events.jsonl on links."""
    return [row for row in self.remarks if row['event'] == LINKS]

  @property
  def spans(self) -> Table:
    """Phases of workers, by their ends: rows of trace.json.

    Columns: `worker`, `phase`, such as 'compute', `start` and `end`, seconds.
    No rows if the run writes no timeline.
    """
    if self._must_read('trace.json') or self._spans is None:
      rows: list[_Span] = []
      is_new = False
      if self.config['outputs']['timeline']:
        rows, is_new = self._read('trace.json', _decode_span)
      new = _make_spans([row for row in rows if row.ph == 'X'])
      self._spans = _join(None if is_new else self._spans, new)
    return self._spans

  def read_event_rows(self) -> list[dict[str, Any]]:
    """Returns all rows of events.jsonl, as dictionaries with every field.

    Raises:
      ValueError: If the run writes no events, or a row is broken.
      OSError: If the file cannot be read.
    """
    self._check_events()
    rows, _ = Follower(self.path / 'events.jsonl').read(
      _decode_event_row, is_complete=self._summary is not None
    )
    return rows

  def _check_events(self) -> None:
    if not (self.has_events or (self.path / 'events.jsonl').exists()):
      raise ValueError(
        f'{self.path}: expected a run with events.jsonl, got one with '
        'config.outputs.events=False.'
      )

  def _must_read(self, name: str) -> bool:
    """Returns whether new rows of a file are wanted, once after a refresh."""
    must = name not in self._is_read
    self._is_read.add(name)
    return must

  def _read(
    self, name: str, decode: Callable[[bytes], _T]
  ) -> tuple[list[_T], bool]:
    is_complete = self._summary is not None
    return self._files[name].read(decode, is_complete=is_complete)

  def _read_events(self) -> '_EventTables':
    if self._must_read('events.jsonl') or self._events is None:
      self._check_events()
      rows, is_new = self._read('events.jsonl', _decode_event)
      before = None if is_new else self._events
      self._events = _add_rows(before, rows)
    return self._events


class _EventTables(NamedTuple):
  """Tables of the rows of events.jsonl: see `Run`."""

  events: Table
  commits: Table
  releases: Table
  remarks: Sequence[Mapping[str, Any]]


def _add_rows(
  before: _EventTables | None, rows: Sequence[_Event | dict[str, Any]]
) -> _EventTables:
  """Returns tables with further rows of events.jsonl."""
  events = [row for row in rows if isinstance(row, _Event)]
  first = len(before.events) if before else 0
  decisions = [
    (place, event.decision)
    for place, event in enumerate(events, start=first)
    if event.decision
  ]
  columns = {
    'event': np.array([each.event for each in events], str),
    'time': np.array([each.time for each in events], float),
    'worker': _make_ints(each.worker for each in events),
    'compute_s': np.array([each.compute_s for each in events], float),
    'examples': _make_ints((each.examples for each in events), 0),
    'into': _make_ints(each.into for _, each in decisions),
    'barrier': np.array([each.barrier for _, each in decisions], bool),
    'factors': np.fromiter((each.factors for each in events), object),
  }
  commits = ((place, each.commit) for place, each in decisions)
  releases = ((place, each.release) for place, each in decisions)
  new = _EventTables(
    Table(columns),
    _make_pairs('update', commits),
    _make_pairs('worker', releases),
    [row for row in rows if not isinstance(row, _Event)],
  )
  if before is None:
    return new
  return _EventTables(
    _join(before.events, new.events),
    _join(before.commits, new.commits),
    _join(before.releases, new.releases),
    [*before.remarks, *new.remarks],
  )


def read(path: str | pathlib.Path) -> Run:
  """Returns a run, from its folder.

  A run without summary.json is running or was killed: its files may be missing
  and their last lines may be truncated.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no run, or if a file is broken; names the file, the
      expectation and the content.
    OSError: If a file cannot be read.
  """
  return Run(pathlib.Path(path))


def time_label(runs: Iterable[Run]) -> str:
  """Returns the label of an axis with the times of runs."""
  clocks = {run.config['cluster']['runtime'] for run in runs}
  return 'virtual time (s)' if clocks == {'virtual'} else 'time (s)'


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
  manifest = _read_first_manifest(path)
  starts, first = manifest['starts'], manifests.read_field(manifest, field)
  return [
    start.get('changed', {}).get(field, first)
    for number, start in enumerate(starts)
    if all(
      start['examples'] < other['examples'] for other in starts[number + 1 :]
    )
  ]


def read_events(
  path: pathlib.Path,
  *,
  with_residuals: bool = False,
  with_rollbacks: bool = False,
) -> Iterator[dict[str, Any]]:
  """Yields the events of a run's scheme with its decisions, as rows, in order.

  For replays, which need every field; `Run.events` has them as a table.

  Args:
    path: Folder of a run.
    with_residuals: True to yield also the rows of residuals that were lost or
      recovered.
    with_rollbacks: True to yield also the rows of returns to mirrors.

  Raises:
    ValueError: If a line is broken; names file and line.
    OSError: If the file cannot be read.
  """
  others = {LINKS, DRIFT, STRAGGLER, *(() if with_residuals else _RESIDUALS)}
  others |= set() if with_rollbacks else {ROLLBACK}
  for row in read(path).read_event_rows():
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


def read_objects(file: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the objects of a complete file.

  Args:
    file: JSON lines, a JSON array with an element per line, or one object.

  Raises:
    ValueError: If the file is no valid JSON; names the file.
    OSError: If it cannot be read.
  """
  if file.suffix == '.jsonl':
    return Follower(file).read(decode_object, is_complete=True)[0]
  content = _decode(file, Any)
  return content if isinstance(content, list) else [content]


def without_real_time(row: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a row without its fields of real time."""
  return {k: v for k, v in row.items() if not k.startswith(_REAL_TIME)}


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
  """Returns the manifest of a run with the config of its last start."""
  found = _read_first_manifest(path)
  changes = [start.get('changed', {}) for start in found.get('starts', [])]
  first = manifests.read_field(found, _WORKERS)
  workers = [first, *(each.get(_WORKERS, first) for each in changes)]
  last = changes[-1] if changes else {}  # The run has not begun.
  for field, value in (last | {_WORKERS: max(workers)}).items():
    manifests.write_field(found, field, value)
  return found


def _read_first_manifest(path: pathlib.Path) -> dict[str, Any]:
  """Returns the content of manifest.json: the config is of the first start."""
  file = path / 'manifest.json'
  if not file.is_file():
    got = 'a folder without one' if path.is_dir() else 'no folder'
    raise ValueError(f'{path}: expected a run with manifest.json, got {got}.')
  found = _read(file, _CONFIG)
  formats.check_run_folder(found, path)
  return found


def _read(file: pathlib.Path, fields: Sequence[str]) -> dict[str, Any]:
  """Returns the object of a JSON file that has the fields."""
  content: dict[str, Any] = _decode(file, dict[str, Any])
  for field in fields:
    value: Any = content
    for part in field.split('.'):
      if not isinstance(value, dict) or part not in value:
        raise ValueError(
          f'{file}: expected the field {field}, got {str(content)[:80]}.'
        )
      value = value[part]
  return content


def _decode(file: pathlib.Path, kind: Any) -> Any:
  """Returns the content of a JSON file."""
  text = file.read_bytes().removeprefix(_BYTE_ORDER_MARK)
  try:
    return msgspec.json.decode(text, type=kind)
  except (msgspec.DecodeError, UnicodeDecodeError) as error:
    raise _refusal(str(file), text, error) from error


def _refusal(where: str, text: bytes, error: Exception) -> ValueError:
  """Returns the error for a text that is not what a file must have."""
  got = text[:80].decode(errors='replace')
  if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
    return ValueError(
      f'{where}: expected a JSON object, got {got!r} ({error}).'
    )
  return ValueError(f'{where}: {error}, got {got}.')


_OBJECT = msgspec.json.Decoder(dict[str, Any])
_EVENT, _SPAN_ROW = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Span)


def decode_object(text: bytes) -> dict[str, Any]:
  """Returns the object of a line of JSON."""
  return _OBJECT.decode(text)


def _decode_metric(text: bytes) -> dict[str, Any]:
  row = _OBJECT.decode(text)
  _require(row, _METRIC)
  return row


def _decode_event(text: bytes) -> _Event | dict[str, Any]:
  """Returns an event of the scheme, or another row as a dictionary."""
  event = _EVENT.decode(text)
  if event.decision is None:
    return _decode_event_row(text)
  for field in _PUSH if event.event == 'push' else _PUSH[:1]:
    if getattr(event, field) is None:
      raise ValueError(f'expected the field {field}')
  return event


def _decode_event_row(text: bytes) -> dict[str, Any]:
  row = _OBJECT.decode(text)
  _require(row, ('event',))
  _require(row, _FIELDS.get(row['event'], _DECISION))
  return row


def _decode_span(text: bytes) -> _Span:
  span = _SPAN_ROW.decode(text)
  if span.ph == 'X':
    for field in _SPAN:
      if getattr(span, field) is None:
        raise ValueError(f'expected the field {field}')
  return span


def _require(row: Mapping[str, Any], fields: Sequence[str]) -> None:
  for field in fields:
    if field not in row:
      raise ValueError(f'expected the field {field}')


def _make_spans(spans: Sequence[_Span]) -> Table:
  start = np.array([each.ts for each in spans], float) / 1e6
  took_s = np.array([each.dur for each in spans], float) / 1e6
  return Table(
    {
      'worker': _make_ints(each.tid for each in spans),
      'phase': np.array([each.name for each in spans], str),
      'start': start,
      'end': start + took_s,
    }
  )


def _make_ints(values: Iterable[int | None], missing: int = -1) -> np.ndarray:
  return np.array([missing if v is None else v for v in values], int)


def _make_pairs(
  name: str, several: Iterable[tuple[int, Sequence[int]]]
) -> Table:
  """Returns a row for each value, with the place of its event."""
  pairs = [(place, value) for place, values in several for value in values]
  columns = np.array(pairs, int).reshape(-1, 2).T
  return Table({'event': columns[0], name: columns[1]})


def _make_column(values: Sequence[Any]) -> np.ndarray:
  """Returns numbers with NaN for None, or any other values as they are."""
  if all(isinstance(value, int | float | None) for value in values):
    return np.array([np.nan if v is None else v for v in values], float)
  if all(isinstance(value, str) for value in values):
    return np.array(values, str)
  return np.fromiter(values, object, len(values))


def _join(before: Table | None, new: Table) -> Table:
  if before is None:
    return new
  return Table(
    {
      name: np.concatenate([column, new[name]])
      for name, column in before.columns.items()
    }
  )
