"""Files of a run that grow with it: rows, curves of TensorBoard, MLflow.

  event     state before   state after   files
  open      new            open          cut to the sizes of a checkpoint
  copy      new            copied        hidden copies, cut to given sizes
  publish   copied         open          replaced by the copies
  rewind    open           open          cut to earlier sizes
  finish    open           open          complete, and flushed to the disk
  close     any            closed        hidden copies that are left are removed

Rows are metrics.jsonl, events.jsonl and trace.json (Chrome trace format).  An
unknown value is null, never NaN.  Writing a row in another state than 'open' or
'copied' is a ValueError or a KeyError.
"""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from outputs import tracking
from system import processes

if TYPE_CHECKING:
  from outputs.board import Board

NAMES = ('metrics.jsonl', 'events.jsonl', 'trace.json')
BOARD = 'events.out.tfevents.*'
_dumps = json.JSONEncoder(allow_nan=False, separators=(',', ':')).encode
_EVALUATION = _dumps({'kind': 'evaluation'})[:-1]  # Start of its row.


class Rows:
  """Writer of a run's rows; creates no file before `open` or `copy`.

  Args:
    folder: Folder of the run.
    may_write: Returns False once another process writes the run.

  Attributes:
    events: True if the run writes events.jsonl (config.outputs.events).
    timeline: True if the run writes trace.json (config.outputs.timeline).
  """

  events = timeline = True

  def __init__(self, folder: pathlib.Path, *, may_write: Callable[[], bool]):
    self._folder, self._may_write = folder, may_write
    self._has_board, self._mlflow = False, ''
    self._files: dict[str, TextIO] = {}
    self._board: Board | None = None
    self._tracker: tracking.Tracker | None = None

  def configure(self, outputs: Mapping[str, Any]) -> None:
    """Selects the files, by `config.outputs`."""
    self.events, self.timeline = outputs['events'], outputs['timeline']
    self._has_board, self._mlflow = outputs['board'], outputs['mlflow']

  def check(self, sizes: Mapping[str, int]) -> None:
    """Checks that the files have at least the bytes that `state` returned.

    Raises:
      ValueError: If a file has become shorter than it was.
    """
    for name, size in sizes.items():
      path = self._folder / name
      found = path.stat().st_size if path.exists() else 0
      if found < size:
        raise ValueError(
          f'workdir: expected {path} to have {size} bytes, as when the '
          f'checkpoint was made, got {found}.'
        )

  def open(
    self,
    sizes: Mapping[str, int],
    *,
    num_workers: int,
    manifest: Mapping[str, Any],
  ) -> None:
    """Opens the files, cut to `sizes`, which are empty for a new run.

    Args:
      sizes: Bytes of each file, by name: a result of `state`; {} for a new run.
        A file that is not among them is emptied.
      num_workers: Number of workers, which a new timeline names.
      manifest: Manifest of the run, for MLflow.

    Raises:
      OSError: If a file cannot be opened.
    """
    written = (True, self.events, self.timeline)
    for name, is_written in zip(NAMES, written, strict=True):
      if is_written:
        self._files[name] = (self._folder / name).open('a+')
        _cut(self._files[name], sizes.get(name, 0))
    self._open_displays(manifest)
    if not sizes:
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

  def copy(self, sizes: Mapping[str, int]) -> None:
    """Opens copies of the files, which another process may still write.

    The copies are hidden files beside them, which rows are appended to from now
    on; `publish` puts them in place, and `close` removes them otherwise.

    Args:
      sizes: Bytes to copy of each file, by name: a result of `state`.

    Raises:
      OSError: If the files cannot be copied.
      ValueError: If a file is shorter.
    """
    self.check(sizes)
    try:
      for name, size in sizes.items():
        self._files[name] = self._copy_of(name).open('a+')
        shutil.copyfile(self._folder / name, self._copy_of(name))
        _cut(self._files[name], size)
    except OSError:
      self.close()  # The disk may be full.
      raise

  def publish(self, manifest: Mapping[str, Any]) -> None:
    """Replaces the files by the copies, to which no other process writes.

    Args:
      manifest: Manifest of the run, for MLflow.

    Raises:
      OSError: If a file cannot be replaced.
    """
    for name in self._files:
      self._copy_of(name).replace(self._folder / name)
    self._open_displays(manifest)

  def rewind(self, sizes: Mapping[str, int]) -> None:
    """Goes back to earlier sizes of the files, in the process that writes.

    Args:
      sizes: Bytes of each open file, by name: an earlier result of `state`.
    """
    for name, file in self._files.items():
      _cut(file, sizes[name])
    self._open_board()

  def state(self, *, is_durable: bool = True) -> dict[str, int]:
    """Returns the bytes of each file, which other processes can read.

    Args:
      is_durable: Whether to flush them to the disk first.
    """
    for file in self._files.values():
      file.flush()
      if is_durable:
        os.fsync(file.fileno())
    return {name: file.tell() for name, file in self._files.items()}

  def finish(self) -> None:
    """Completes the files, and flushes them to the disk."""
    if self.timeline:
      self._files['trace.json'].write('\n]\n')
    self.state()

  def report_end(self, summary: Mapping[str, Any]) -> None:
    """Sends the end of the run and summary.json to MLflow, if it is used."""
    if self._tracker is not None:
      self._tracker.close(tracking.status_of(summary))

  def close(self) -> None:
    """Closes all files; sends nothing more to MLflow.

    Raises:
      OSError: If a file cannot be written; the others are closed nevertheless.
    """
    if self._tracker is not None:
      self._tracker.abandon()
    with contextlib.ExitStack() as stack:
      for name, file in self._files.items():
        stack.callback(self._copy_of(name).unlink, missing_ok=True)
        stack.callback(file.close)
      if self._board is not None:
        stack.callback(self._board.close)

  def metric(self, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics.jsonl, which others can read at once.

    It is also plotted against examples, and sent to MLflow, if they are used.
    """
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
    """Appends a row to events.jsonl, if the run has it."""
    if self.events:
      self._files['events.jsonl'].write(_dumps(row) + '\n')

  def span(
    self, worker: int, phase: str, start: float, end: float, examples: int
  ) -> None:
    """Adds a phase of a worker's iteration to the timeline; seconds.

    Args:
      start: Begin of the phase, seconds, clock of the run.
      end: End of the phase.
      examples: Examples of the iteration.
    """
    if not self.timeline:
      return
    # Formatted by hand: runs of thousands of workers have millions of spans.
    self._files['trace.json'].write(
      f',\n{{"name":"{phase}","ph":"X","ts":{start * 1e6!r},'
      f'"dur":{(end - start) * 1e6!r},"pid":0,"tid":{worker},'
      f'"args":{{"examples":{examples}}}}}'
    )

  def rates(self, time: float, rates: Sequence[Mapping[str, Any]]) -> None:
    """Adds counters of rates that links have from `time` on to the timeline.

    Each rate has `src`, `dst`, `Bps` and `planned_Bps`.
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

  def live(self, status: Mapping[str, Any]) -> None:
    """Replaces live.json, on which nothing depends: it is not flushed.

    The rows so far become readable as well.
    """
    if not self._may_write():
      return
    new = self._copy_of('live.json')
    new.write_text(_dumps(status) + '\n')
    new.replace(self._folder / 'live.json')
    self.state(is_durable=False)

  def _copy_of(self, name: str) -> pathlib.Path:
    """Returns the path of this process's copy of a file."""
    return self._folder / f'.{name}.{processes.getpid()}.new'

  def _open_displays(self, manifest: Mapping[str, Any]) -> None:
    """Opens TensorBoard's file, and a run in MLflow, if the run has them."""
    self._open_board()
    if self._mlflow:
      self._tracker = tracking.Tracker(
        self._folder, self._mlflow, manifest, may_write=self._may_write
      )

  def _open_board(self) -> None:
    """Plots the rows of metrics.jsonl anew, and those that follow."""
    if self._board is not None:
      self._board.close()
    for path in self._folder.glob(BOARD):
      path.unlink()
    if not self._has_board:
      return
    from outputs.board import Board  # Slow; only the coordinator needs it.

    self._board = Board(self._folder)
    for line in (self._folder / 'metrics.jsonl').read_text().splitlines():
      self._plot(json.loads(line))

  def _plot(self, row: Mapping[str, Any]) -> None:
    if self._board is None:
      return
    for field, value in row.items():
      if tracking.is_plotted(field) and value is not None:
        self._board.plot(field, value, row['examples'])
    if row['kind'] == 'evaluation':
      self._board.flush()


def _cut(file: TextIO, size: int) -> None:
  """Cuts a file to a size, where writing continues."""
  file.flush()
  file.truncate(size)
  file.seek(0, os.SEEK_END)  # Truncation leaves the position.
