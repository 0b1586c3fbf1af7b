"""Folder of a sweep: its lock, the names of its runs and their outcomes."""

import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from configs.checks import require
from outputs import atomic, transient
from sweeps.plan import Run

LOG = 'log.txt'  # Of a run.
CACHE = 'compiled'  # Of programs that runs share.
_SWEEP = 'sweep.json'
_FORMAT = 1
_DIVERGED = 'FloatingPointError'  # How `ended` begins.
_LINES = 5  # Last lines of a log to show.
_END = 4096  # Bytes at the end of a log to read for them.


class State(NamedTuple):
  """Outcome of a run so far.

  Attributes:
    status: 'finished', 'diverged', 'failed', or 'unfinished'.
    error: Error that ended the run; '' without one.
  """

  status: str
  error: str = ''

  @property
  def over(self) -> bool:
    """True if the run would end in the same way again."""
    return self.status in ('finished', 'diverged')


class Folder:
  """Folder of a sweep, which this process locks until it ends."""

  def __init__(self, out: str):
    """Creates the object, but no folder.

    Raises:
      ValueError: If `out` is empty.
    """
    require(bool(out), '--out', 'the path of a folder', out)
    self.out = out.rstrip('/') or '/'
    self._path = pathlib.Path(out)

  def check(self, runs: Sequence[Run]) -> list[Run]:
    """Checks that the folder is this sweep's; returns the runs as named in it.

    A sweep may have more runs than the folder, but not fewer.

    Raises:
      ValueError: If the folder is of another sweep, or of none.
    """
    path = self._path / _SWEEP
    if not path.exists():
      found = [p.name for p in self._path.glob('*') if p.name[0] != '.']
      expected = 'a new folder, or that of a sweep'
      require(not found, '--out', expected, f'{self.out} with {found[:3]}')
      return list(runs)
    before = atomic.read_object(path)
    if before is None:
      logging.warning('%s is written anew, of the folders of runs.', path)
      before = {'format': _FORMAT, 'runs': self._names()}
    require(
      before.get('format') == _FORMAT,
      '--out',
      f'a sweep of format {_FORMAT}',
      before.get('format'),
    )
    names: Mapping[str, str] = before['runs']
    lost = names.keys() - {run.checked.identity for run in runs}
    raise_for = sorted(names[identity] for identity in lost)[:3]
    require(
      not lost,
      '--out',
      f'all {len(names)} runs of the sweep in {self.out} to be in this one',
      f'a sweep without {raise_for}',
    )
    return [
      run._replace(name=names.get(run.checked.identity, run.name))
      for run in runs
    ]

  def _names(self) -> dict[str, str]:
    """Returns the names of runs' folders by identity, which is their suffix."""
    found = {
      path.parent.name
      for name in (LOG, 'manifest.json')
      for path in self._path.glob(f'*/{name}')
    }
    return {name.rpartition('-')[2]: name for name in sorted(found)}

  def claim(self, runs: Sequence[Run]) -> list[Run]:
    """Makes and locks the folder; returns the runs as `check` does.

    Raises:
      OSError: If the folder cannot be made.
      Busy: If another process holds the lock for too long; see `FolderLock`.
      ValueError: As `check`.
    """
    self._path.mkdir(parents=True, exist_ok=True)
    # Held until the process ends.
    self._lock = transient.FolderLock(
      self._path,
      busy=f'--out: another process sweeps in {self.out} at this moment',
      limit_s=transient.WAIT_S,
      live_s=transient.LIVE_S,
    )
    runs = self.check(runs)
    names = {run.checked.identity: run.name for run in runs}
    whole = {'format': _FORMAT, 'command': sys.argv, 'runs': names}
    atomic.write(self._path / _SWEEP, json.dumps(whole, indent=2) + '\n')
    return runs

  def file(self, *parts: str) -> pathlib.Path:
    """Returns the path of a file."""
    return self._path.joinpath(*parts)

  def read(self, run: Run, name: str) -> dict[str, Any] | None:
    """Returns the object in a JSON file of a run, or None without one.

    Also returns None, and logs it, if the file is the rest of an interrupted
    write: such a run has not ended.
    """
    return atomic.read_object(self.file(run.name, name))

  def state(self, run: Run) -> State:
    """Returns the outcome of a run, from its files."""
    summary = self.read(run, 'summary.json')
    if summary is None or summary.get('ended', 'interrupted') == 'interrupted':
      return State('unfinished')
    ended = summary['ended']
    if ended == 'finished':
      return State('finished')
    status = 'diverged' if ended.startswith(_DIVERGED) else 'failed'
    return State(status, ended)

  def ended(self, run: Run, code: int, began: int) -> State:
    """Returns the outcome of a run whose process has ended.

    Args:
      run: The run.
      code: Exit code of the process; the negative number of a signal.
      began: Bytes of the run's log when the process started.
    """
    state = self.state(run)
    if state.over or code == 0:
      return state
    last = self.last_lines(run, began)
    how = f'killed by signal {-code}' if code < 0 else f'exit code {code}'
    return State('failed', '\n'.join([how, *last]))

  def last_lines(self, run: Run, began: int) -> list[str]:
    """Returns the last lines of a run's log, from byte `began` on."""
    path = self.file(run.name, LOG)
    if not path.exists():
      return []
    with path.open('rb') as log:
      size = log.seek(0, os.SEEK_END)
      log.seek(max(began, size - _END))
      text = log.read().decode(errors='replace')
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-_LINES:]

  def log_size(self, run: Run) -> int:
    """Returns the size of a run's log, bytes."""
    path = self.file(run.name, LOG)
    return path.stat().st_size if path.exists() else 0
