"""Files of a run, in one folder, written during the run.

The files are manifest.json, metrics.jsonl, events.jsonl, trace.json (Chrome
trace format), TensorBoard events and summary.json.  An unknown value is null,
never NaN.
"""

import collections
import contextlib
import datetime
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from outputs import atomic, formats, inputs, manifests, tracking
from outputs.manifests import DISPLAY, LOCAL, fingerprint
from outputs.transient import LIVE_S, FolderLock, start_limit_s
from system import processes

# Fields of a manifest that must be equal for bit-identical results.
_EXACT = ('versions', 'cores', 'xla_flags', 'git_revision')
# Fields that may change when a run on real hosts resumes.
_HOSTS = (
  *LOCAL,
  *('config.route.server.servers', 'config.route.server.dedicated'),
  *('config.cluster.workers', 'config.cluster.speed.slowdown'),
  'config.cluster.min_workers',
  *('config.cluster.timeout_s', 'config.cluster.start_s'),
  'config.cluster.faults',
)
_BOARD = 'events.out.tfevents.*'
_APPENDED = ('metrics.jsonl', 'events.jsonl', 'trace.json')


class RunFiles:
  """Writer of one run's files.

  Attributes:
    workdir: Folder of the run.
    has_given_folder: True if the caller chose the folder.
    events: True if the run writes events.jsonl (config.outputs.events).
    timeline: True if the run writes trace.json (config.outputs.timeline).
    board: True if the run writes TensorBoard events (config.outputs.board).
    mlflow: URI of MLflow, to which the run is sent (config.outputs.mlflow); ''
      for none.
  """

  events = timeline = board = True
  mlflow = ''

  def __init__(self, workdir: str | None):
    """Creates a writer, but no folder or file.

    Args:
      workdir: New folder, or the folder of a run to resume; None for a new
        folder under runs/, named by the time.

    Raises:
      ValueError: If `workdir` is empty.
    """
    if workdir == '':
      raise ValueError("workdir: expected the path of a folder, got ''.")
    self.has_given_folder = workdir is not None
    if workdir is None:
      now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')
      workdir = f'runs/{now}-{processes.getpid()}'
    self.workdir = pathlib.Path(workdir)
    self._lock: FolderLock | None = None
    self._manifest: dict[str, Any] = {}  # Content of manifest.json.
    self._start: dict[str, Any] = {}  # The last of its `starts`.
    self._tracker: tracking.Tracker | None = None  # If the run uses MLflow.

  def hold(
    self, cluster: Mapping[str, Any], *, limit_s: float = math.inf
  ) -> FolderLock:
    """Creates the folder, and holds its lock until `close` or `release`.

    If another process holds the lock, this one waits, as that process may be
    ending: for `start_limit_s` at most, or, in a virtual run, for `LIVE_S` if
    the store is a live process of this host.

    Args:
      cluster: `config.cluster`.
      limit_s: Another limit, seconds, if it is lower.

    Returns:
      The lock of the folder.

    Raises:
      OSError: If the folder cannot be made.
      ValueError: If its path is that of a file, or lies below one.
      Busy: If another process has held the lock for that long.
    """
    if self._lock is None:
      try:
        self.workdir.mkdir(parents=True, exist_ok=True)
      except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
          f'workdir: expected a folder, got {str(self.workdir)!r}, which is a '
          'file or lies below one.'
        ) from error
      self._lock = FolderLock(
        self.workdir,
        busy='workdir: expected a folder of its own, but another run writes to '
        f'{self.workdir} at this moment',
        limit_s=min(start_limit_s(cluster), limit_s),
        live_s=LIVE_S if cluster['runtime'] == 'virtual' else None,
      )
    return self._lock

  def claim(self, manifest: Mapping[str, Any]) -> None:
    """Creates the folder and its manifest, or resumes the run in the folder.

    Holds the lock of the folder; see `hold`.

    Args:
      manifest: From `manifest`.

    Raises:
      OSError: If the folder cannot be made.
      Busy: If another process holds the lock of the folder for too long.
      ValueError: If it holds a run of another config; names the fields.
    """
    lock = self.hold(manifest['config']['cluster'])
    with self.release_on_error():
      self._check(manifest, lock.run)
      lock.record(fingerprint(manifest))
    written = manifest['config']['outputs']
    self.events, self.timeline = written['events'], written['timeline']
    self.board, self.mlflow = written['board'], written['mlflow']

  @contextlib.contextmanager
  def release_on_error(self) -> Iterator[None]:
    """Releases the folder if the body of the `with` statement fails."""
    try:
      yield
    except BaseException:
      self.release()
      raise

  @property
  def has_earlier_starts(self) -> bool:
    """True if the folder's run has begun before: see `claim`."""
    return len(self._manifest.get('starts', [])) > 1

  def _check(self, manifest: Mapping[str, Any], run: str) -> None:
    """Writes the manifest, or compares it with that of the folder.

    Args:
      manifest: Manifest of this run.
      run: Fingerprint of the folder's run, by its lock; '' if unknown.
    """
    path = self.workdir / 'manifest.json'
    if not path.exists():
      self._check_free()
      self._open(manifest, [], manifest, [])
      return
    before = atomic.read_object(path)
    if before is None:
      self._check_known(run, fingerprint(manifest))
      self._open(manifest, [], manifest, [])
      return
    formats.check_run_folder(before, f'workdir: {self.workdir}')
    differing = _all_differences(before, manifest)
    if before['config']['epochs'] < manifest['config']['epochs']:
      differing = [each for each in differing if each[0] != 'config.epochs']
      self._check_extension(before['config'])
    both = before['config'], manifest['config']
    runtimes = {config['cluster']['runtime'] for config in both}
    free = _HOSTS if runtimes == {'distributed'} else ()
    for field, line in differing:
      if field in free:
        logging.warning('The run continues with another %s', line)
    changed = [field for field, _ in differing if field in free]
    refused = [line for field, line in differing if field not in free]
    if refused:
      raise ValueError(
        f'workdir: {self.workdir} holds a run of another config.  '
        + '  '.join(refused)
      )
    earlier = before.get('starts', [])  # A run may end before it begins.
    for field in _EXACT:
      if before[field] != manifest[field]:
        logging.warning(
          'The run began with %s %s and continues with %s: its results may '
          'differ in the last bits from those of an uninterrupted one.',
          field,
          before[field],
          manifest[field],
        )
    for start in earlier:
      if start['devices'] != manifest['devices']:
        logging.warning(
          'The run resumes on %s; %s on %s: its digits may differ from those '
          'of an uninterrupted one.',
          describe_kinds(manifest['devices']),
          'it began' if start is earlier[0] else 'it was',
          describe_kinds(start['devices']),
        )
        break
    epochs = manifest['config']['epochs']
    if epochs > before['config']['epochs']:
      logging.info(
        'The run becomes longer: config.epochs is %s, and was %s.',
        epochs,
        before['config']['epochs'],
      )
      # Other processes take a run that has a summary for finished.
      (self.workdir / 'summary.json').unlink(missing_ok=True)
      before = {**before, 'config': {**before['config'], 'epochs': epochs}}
      _write(path, before)
    self._open(before, earlier, manifest, changed)

  def _check_extension(self, config: Mapping[str, Any]) -> None:
    """Checks that a run of a recorded config can get more epochs.

    Raises:
      ValueError: If its learning rates would have been others, or if it has
        finished without a checkpoint.
    """
    epochs, schedule = config['epochs'], config['schedule']['name']
    reason = ''
    if schedule == 'cosine' and config['model']['name'] != 'none':
      reason = "config.schedule.name 'cosine' reaches its end there"
    elif self.read_summary() and not any(
      (self.workdir / 'checkpoints').glob('*/coordinator')
    ):
      reason = 'the run has finished without a checkpoint'
    if reason:
      raise ValueError(
        f'config.epochs: expected {epochs}, as in {self.workdir}, because '
        f'{reason}; start another run with config.model.init.'
      )

  def _open(
    self,
    known: Mapping[str, Any],
    earlier: Sequence[Mapping[str, Any]],
    manifest: Mapping[str, Any],
    changed: Sequence[str],
  ) -> None:
    """Writes the manifest of a new folder; prepares the entry of this start.

    Args:
      known: Manifest that the folder has, or is to have.
      earlier: Starts of the run so far.
      manifest: Manifest of this start.
      changed: Fields of its config that differ from those of the folder.
    """
    if not earlier:
      _write(self.workdir / 'manifest.json', known)
    self._start = manifests.start_of(manifest)
    self._start['changed'] = {
      field: manifests.read_field(manifest, field)
      for field in changed
      if field not in LOCAL
    }
    self._manifest = {**known, 'starts': [*earlier, self._start]}

  def record_workers(self, workers: Mapping[int, Sequence[str]]) -> None:
    """Adds to the manifest on which devices workers compute, from now on.

    Logs workers that did so on other devices at an earlier start.

    Args:
      workers: Kinds of the devices of each, by rank; some or all of them.
    """
    *earlier, start = self._manifest['starts']
    known = start.setdefault('workers', {})
    for worker, kinds in sorted(workers.items()):
      before = [
        other['workers'][str(worker)]
        for other in [*earlier, start]
        if str(worker) in other.get('workers', {})
      ]
      if before and before[-1] != list(kinds):
        logging.warning(
          'Worker %d computes on %s, and did so on %s before: digits may '
          'differ from those of an uninterrupted run.',
          worker,
          describe_kinds(kinds),
          describe_kinds(before[-1]),
        )
      known[str(worker)] = list(kinds)
    self._write_manifest()

  def _write_manifest(self) -> None:
    if not self.is_superseded:
      _write(self.workdir / 'manifest.json', self._manifest)

  def read_summary(self, epochs: float = 0.0) -> dict[str, Any] | None:
    """Returns the summary if the folder holds a run that has finished.

    A run without a readable summary has not finished, nor has one of fewer
    epochs.

    Args:
      epochs: Least length of the run, config.epochs.

    Raises:
      OSError: If there is a summary, but the system cannot read it.
    """
    summary = atomic.read_object(self.workdir / 'summary.json') or {}
    known = atomic.read_object(self.workdir / 'manifest.json')
    if known is not None and known['config']['epochs'] < epochs:
      return None
    return summary if summary.get('ended') == 'finished' else None

  def check(self, sizes: Mapping[str, int]) -> None:
    """Checks that the files are complete enough to resume the run.

    Args:
      sizes: Bytes of each file, as `state` returned them.

    Raises:
      ValueError: If a file has become shorter than it was.
    """
    for name, size in sizes.items():
      path = self.workdir / name
      found = path.stat().st_size if path.exists() else 0
      if found < size:
        raise ValueError(
          f'workdir: expected {path} to have {size} bytes, as when the '
          f'checkpoint was made, got {found}.'
        )

  def begin(
    self,
    *,
    num_workers: int,
    sizes: Mapping[str, int] | None = None,
    examples: int = 0,
  ) -> None:
    """Opens the files that are written during the run.

    The manifest gets an entry of this start.

    Args:
      num_workers: Number of workers.
      sizes: Bytes of each file at the checkpoint to resume from, as `state`
        returned them; None for a new run.
      examples: Examples applied until then.
    """
    sizes = sizes or {}
    self._start['examples'] = examples
    self._write_manifest()
    written = (True, self.events, self.timeline)
    names = [
      name
      for name, is_written in zip(_APPENDED, written, strict=True)
      if is_written
    ]
    self._files = {name: (self.workdir / name).open('a+') for name in names}
    for name, file in self._files.items():
      file.truncate(sizes.get(name, 0))
      file.seek(0, os.SEEK_END)  # Truncation leaves the position.
    (self.workdir / 'summary.json').unlink(missing_ok=True)
    self._open_board()
    self._open_tracker()
    if sizes:
      return
    for worker in range(num_workers if self.timeline else 0):
      row = {
        'name': 'thread_name',
        'ph': 'M',
        'args': {'name': f'worker {worker}'},
        'pid': 0,
        'tid': worker,
      }
      line = (',\n' if worker else '[\n') + _dumps(row)
      self._files['trace.json'].write(line)

  def succeed(
    self, manifest: Mapping[str, Any], sizes: Mapping[str, int]
  ) -> None:
    """Opens copies of the files of a run that another process has written.

    `publish` replaces the files by them, so that the other process, which may
    only be stopped, cannot write to them any more.

    Args:
      manifest: Manifest of this process.
      sizes: Bytes of each file to continue from.

    Raises:
      OSError: If the files cannot be copied.
      ValueError: If a file is shorter.
    """
    written = manifest['config']['outputs']
    self.events, self.timeline = written['events'], written['timeline']
    self.board, self.mlflow = False, ''  # Until `publish`.
    self.check(sizes)
    self._files = {}
    for name, size in sizes.items():
      source, copy = self.workdir / name, self._copy(name)
      shutil.copyfile(source, copy)
      os.truncate(copy, size)
      self._files[name] = self._copy(name).open('a+')

  def publish(self, manifest: Mapping[str, Any]) -> None:
    """Takes the folder over: its lock, and all files of the run.

    Args:
      manifest: Manifest of this process.

    Raises:
      OSError: If a file cannot be replaced.
      ValueError: If the folder has no readable manifest.
    """
    self._lock = FolderLock(self.workdir, busy='', limit_s=0.0, seizes=True)
    self._lock.record(fingerprint(manifest))
    before = atomic.read_object(self.workdir / 'manifest.json')
    if before is None or not before.get('starts'):
      raise ValueError(f'workdir: {self.workdir} has no manifest of the run.')
    self._manifest, self._start = before, before['starts'][-1]
    for name in self._files:
      self._copy(name).replace(self.workdir / name)
    (self.workdir / 'summary.json').unlink(missing_ok=True)
    written = manifest['config']['outputs']
    self.board, self.mlflow = written['board'], written['mlflow']
    self._open_board()
    self._open_tracker()

  def _copy(self, name: str) -> pathlib.Path:
    """Returns the path of a successor's copy of a file."""
    return self.workdir / f'.{name}.{processes.getpid()}.new'

  def _open_board(self) -> None:
    """Plots the rows of metrics.jsonl anew, and those that follow."""
    for path in self.workdir.glob(_BOARD):
      path.unlink()
    if not self.board:
      return
    from outputs.board import Board  # Slow; only the coordinator needs it.

    self._board = Board(self.workdir)
    for line in (self.workdir / 'metrics.jsonl').read_text().splitlines():
      self._plot(json.loads(line))

  def _open_tracker(self) -> None:
    """Starts to send the run to MLflow, if its config says so."""
    if not self.mlflow:
      return
    self._tracker = tracking.Tracker(
      self.workdir,
      self.mlflow,
      self._manifest,
      may_write=lambda: not self.is_superseded,
    )

  def rewind(self, sizes: Mapping[str, int]) -> None:
    """Returns to earlier sizes of the files, in the process that writes them.

    Args:
      sizes: Bytes of each file, as `sizes` returned them.
    """
    for name, file in self._files.items():
      file.flush()
      file.truncate(sizes[name])
      file.seek(0, os.SEEK_END)
    if self.board:
      self._board.close()
    self._open_board()

  def abandon(self) -> None:
    """Closes the files of a run that another process continues."""
    if self._tracker is not None:
      self._tracker.abandon()
    for name, file in self._files.items():
      file.close()
      self._copy(name).unlink(missing_ok=True)
    self.release()

  @property
  def is_superseded(self) -> bool:
    """True if another process has taken the folder over: see `publish`."""
    return self._lock is not None and not self._lock.is_held()

  def sizes(self) -> dict[str, int]:
    """Returns the bytes of each file, which other processes can read."""
    for file in self._files.values():
      file.flush()
    return {name: file.tell() for name, file in self._files.items()}

  def state(self) -> dict[str, int]:
    """Flushes the files to the disk, and returns the bytes of each."""
    for file in self._files.values():
      file.flush()
      os.fsync(file.fileno())
    return {name: file.tell() for name, file in self._files.items()}

  def metric(self, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics.jsonl and plots it against examples."""
    self._files['metrics.jsonl'].write(_dumps(row) + '\n')
    self._files['metrics.jsonl'].flush()
    self._plot(row)
    if self._tracker is not None:
      self._tracker.log(row)

  def evaluations(self) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl on evaluations, of all starts."""
    file = self._files['metrics.jsonl']
    file.seek(0)  # Rows are appended wherever the position is.
    rows = [json.loads(line) for line in file if line.startswith(_EVALUATION)]
    file.seek(0, os.SEEK_END)
    return rows

  def event(self, row: Mapping[str, Any]) -> None:
    """Appends an event and its decision to events.jsonl, if the run has it."""
    if self.events:
      self._files['events.jsonl'].write(_dumps(row) + '\n')

  def live(self, status: Mapping[str, Any]) -> None:
    """Replaces live.json, of which nothing depends: it is not flushed.

    The rows of events.jsonl so far become readable as well.
    """
    if self.is_superseded:
      return
    new = self._copy('live.json')
    new.write_text(_dumps(status) + '\n')
    new.replace(self.workdir / 'live.json')
    for name in ('events.jsonl', 'trace.json'):
      if name in self._files:
        self._files[name].flush()

  def span(
    self, worker: int, phase: str, start: float, end: float, examples: int
  ) -> None:
    """Adds a phase of a worker's iteration to the timeline; seconds."""
    if not self.timeline:
      return
    # Formatted by hand: runs of thousands of workers have millions of spans.
    self._files['trace.json'].write(
      f',\n{{"name":"{phase}","ph":"X","ts":{start * 1e6!r},'
      f'"dur":{(end - start) * 1e6!r},"pid":0,"tid":{worker},'
      f'"args":{{"examples":{examples}}}}}'
    )

  def rates(self, time: float, rates: Sequence[Mapping[str, Any]]) -> None:
    """Adds counters of the links' rates to the timeline.

    Args:
      time: Time from which the rates hold, seconds.
      rates: Mappings with `src`, `dst`, `Bps` and `planned_Bps`, one per link.
    """
    if not self.timeline:
      return
    name = {'name': 'process_name', 'ph': 'M', 'args': {'name': 'links'}}
    self._files['trace.json'].write(f',\n{_dumps(name | {"pid": 1})}')
    for row in rates:
      shown = {'measured': row.get('Bps'), 'planned': row['planned_Bps']}
      counter = {
        'name': f'worker {row["src"]} to {row["dst"]}, MB/s',
        'ph': 'C',
        'ts': time * 1e6,
        'pid': 1,
        'args': {
          name: Bps / 1e6 for name, Bps in shown.items() if Bps is not None
        },
      }
      self._files['trace.json'].write(f',\n{_dumps(counter)}')

  def close(self, summary: Mapping[str, Any]) -> None:
    """Ends a run's files: writes summary.json and releases the folder.

    Also called after an error, which the summary names.  metrics.jsonl,
    events.jsonl and trace.json are flushed to the disk before the summary is
    written, so that they are complete in a folder with a summary, even if this
    process is killed meanwhile.  TensorBoard's file is completed only after it.

    Args:
      summary: Content of summary.json.

    Raises:
      OSError: If a file cannot be written; the folder is released nevertheless.
    """
    try:
      if self.timeline:
        self._files['trace.json'].write('\n]\n')
      self.state()
      if not self.is_superseded:
        _write(self.workdir / 'summary.json', summary)
        if self._tracker is not None:
          self._tracker.close(tracking.status_of(summary))
    finally:
      with contextlib.ExitStack() as stack:
        stack.callback(self.release)
        for file in self._files.values():
          stack.callback(file.close)
        if self.board:
          stack.callback(self._board.close)

  def release(self) -> None:
    """Releases the lock of the folder, so that other runs can use it."""
    if self._lock is not None:
      self._lock.release()
      self._lock = None

  def _check_known(self, run: str, own: str) -> None:
    """Checks that a folder whose manifest cannot be read is this run's.

    The folder is this run's if the lock has its fingerprint, or if the lock has
    none and the folder has no other files of a run.

    Args:
      run: Fingerprint of the folder's run, by its lock; '' if unknown.
      own: Fingerprint of this run.

    Raises:
      ValueError: If the folder is another run's, or may be.
    """
    found = [
      path
      for name in (*_APPENDED, 'summary.json', 'checkpoints')
      if (path := self.workdir / name).is_dir() or _size(path)
    ]
    if run != own and (run or found):
      left = run or f'unknown, with {", ".join(path.name for path in found)}'
      raise ValueError(
        f'workdir: {self.workdir}/manifest.json cannot be read.  Expected a '
        f'folder of this run, {own}, got that of run {left}; name a new folder.'
      )
    logging.warning('%s/manifest.json is rewritten.', self.workdir)

  def _check_free(self) -> None:
    for pattern in (*_APPENDED, 'summary.json', 'checkpoints', _BOARD):
      for path in self.workdir.glob(pattern):
        raise ValueError(
          'workdir: expected a new folder, or one that holds a run, but there '
          f'is {path} and no manifest.json.'
        )

  def _plot(self, row: Mapping[str, Any]) -> None:
    for field, value in row.items() if self.board else ():
      if tracking.is_plotted(field) and value is not None:
        self._board.plot(field, value, row['examples'])
    if self.board and row['kind'] == 'evaluation':
      self._board.flush()


def describe_kinds(kinds: Sequence[str]) -> str:
  """Returns kinds of devices as text, such as '2 x NVIDIA A100, cpu'."""
  numbers = collections.Counter(kinds)
  each = [f'{n} x {kind}' if n > 1 else kind for kind, n in numbers.items()]
  return ', '.join(each) or 'no device'


def _all_differences(
  before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, str]]:
  """Returns the parts of a run's identity that differ, each with a message.

  Args:
    before: Manifest of the folder.
    now: Manifest of this run.
  """
  read = before.get('files', {}), now['files']  # Earlier versions had none.
  moved = inputs.identified_fields(read[0]) & inputs.identified_fields(read[1])
  differing = [
    (field, line)
    for part in ('config', 'own', 'random')
    for field, line in _differences(before.get(part, {}), now[part], part)
    if field not in moved
  ]
  return differing + inputs.find_changes(*read)


def _differences(before: Any, now: Any, path: str) -> list[tuple[str, str]]:
  """Returns the fields that differ, each with a message."""
  if path in DISPLAY:
    return []
  if not (isinstance(before, dict) and isinstance(now, dict)):
    line = f'{path}: expected {before!r}, got {now!r}.'
    if before is None and not path.startswith('own.'):
      line = f'{path}: younger than the run, which has none; got {now!r}.'
    return [] if before == now else [(path, line)]
  return [
    difference
    for field in sorted(before.keys() | now.keys())
    for difference in _differences(
      before.get(field), now.get(field), f'{path}.{field}'
    )
  ]


def _write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  atomic.write(path, json.dumps(content, indent=2, allow_nan=False) + '\n')


def _size(path: pathlib.Path) -> int:
  return path.stat().st_size if path.exists() else 0


_dumps = json.JSONEncoder(allow_nan=False, separators=(',', ':')).encode
_EVALUATION = _dumps({'kind': 'evaluation'})[:-1]  # Start of its row.
