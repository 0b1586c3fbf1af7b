"""Folder of a sweep: its lock, the names of its runs and their outcomes."""

import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from configs.checks import require
from outputs import atomic, transient
from sweeps import outcomes
from sweeps.outcomes import Outcome
from sweeps.plan import PlannedRun

LOG = 'log.txt'  # Output of a run, in its folder.
CACHE = 'compiled'  # Compiled programs that runs share.
_SWEEP = 'sweep.json'
_FORMAT = 1
_LINES = 5  # Last lines of a log to show.
_END = 4096  # Bytes at the end of a log to read for them.


class SweepFolder:
  """Folder of a sweep, which `claim` creates and locks until this process ends.

  Args:
    may_omit_runs: True if a plan may lack runs that the folder has.

  Raises:
    ValueError: If `out` is empty.
  """

  def __init__(self, out: str, *, may_omit_runs: bool = False):
    require(bool(out), '--out', 'the path of a folder', out)
    self.out = out.rstrip('/') or '/'
    self._path = pathlib.Path(out)
    self._may_omit_runs = may_omit_runs

  def check(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Checks that the folder is this sweep's; returns the runs with its names.

    The sweep may have more runs than the folder.

    Does not create or change anything.

    Raises:
      ValueError: If the folder holds another sweep, or other files.
    """
    names = self._read_names(runs)
    if names is None:
      return list(runs)
    self._check_files(runs)
    omitted = names.keys() - {run.resolved.identity for run in runs}
    examples = sorted(names[identity] for identity in omitted)[:3]
    require(
      not omitted or self._may_omit_runs,
      '--out',
      f'all {len(names)} runs of the sweep in {self.out} to be in this one',
      f'a sweep without {examples}',
    )
    identities = {name: identity for identity, name in names.items()}
    for run in runs:
      identity = identities.get(run.name, run.resolved.identity)
      require(
        identity == run.resolved.identity,
        '--out',
        f'the run of this config in {self.out}/{run.name}',
        'a run of another config',
      )
    return [
      run._replace(name=names.get(run.resolved.identity, run.name))
      for run in runs
    ]

  def _check_files(self, runs: Sequence[PlannedRun]) -> None:
    """Raises ValueError if a file has changed since the sweep has read it."""
    before = self._read_digests()
    for field, path, digest in _files_of(runs):
      expected = f'{path} as the runs of the sweep in {self.out} have read it'
      same = before.get(path, digest) == digest
      require(same, field, expected, 'a file of another content')

  def _read_digests(self) -> dict[str, Any]:
    """Returns the digests of files that runs of the sweep read, by path."""
    sweep = atomic.read_object(self._path / _SWEEP) or {}
    return dict(sweep.get('files', {}))

  def read_run_names(self) -> list[str]:
    """Returns the names of all runs that sweep.json lists.

    Raises:
      ValueError: If there is no sweep.json, or an incomplete one.
    """
    found = atomic.read_object(self._path / _SWEEP)
    if found is None:
      raise ValueError(
        f'{self.out}: expected a sweep with sweep.json, got none.'
      )
    return list(found['runs'].values())

  def _read_names(self, runs: Sequence[PlannedRun]) -> Mapping[str, str] | None:
    """Returns names of folders by identity of the run; None without any."""
    # If sweep.json is left of an interrupted write, the names are those of the
    # folders: of the planned runs, and of others that end in an identity.
    path = self._path / _SWEEP
    if not path.exists():
      found = [p.name for p in self._path.glob('*') if p.name[0] != '.']
      expected = 'a new folder, or that of a sweep'
      require(not found, '--out', expected, f'{self.out} with {found[:3]}')
      return None
    sweep = atomic.read_object(path)
    if sweep is None:
      logging.warning('%s is rewritten from the folders of the runs.', path)
      planned = {run.name: run.resolved.identity for run in runs}
      return {
        planned.get(name, name.rpartition('-')[2]): name
        for name in self._names_of_folders()
      }
    require(
      sweep.get('format') == _FORMAT,
      '--out',
      f'a sweep of format {_FORMAT}',
      sweep.get('format'),
    )
    names: Mapping[str, str] = sweep['runs']
    return names

  def _names_of_folders(self) -> list[str]:
    """Returns the names of the folders of runs that have started."""
    found = {
      path.parent.name
      for name in (LOG, 'manifest.json')
      for path in self._path.glob(f'*/{name}')
    }
    return sorted(found)

  def claim(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Creates and locks the folder; returns the runs as `check` does.

    The lock is held until the process ends.

    Raises:
      OSError: If the folder cannot be created.
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
    names = dict(self._read_names(runs) or {})
    names |= {run.resolved.identity: run.name for run in runs}
    files = {path: digest for _, path, digest in _files_of(runs)}
    sweep = {
      'format': _FORMAT,
      'command': sys.argv,
      'runs': names,
      'files': self._read_digests() | files,
    }
    atomic.write_object(self._path / _SWEEP, sweep)
    return runs

  def file(self, *parts: str) -> pathlib.Path:
    """Returns the path of a file below the folder of the sweep."""
    return self._path.joinpath(*parts)

  def read(self, name: str, file: str) -> dict[str, Any] | None:
    """Returns the object in a JSON file of the run `name`, or None without one.

    Also returns None, and logs it, if the file is left of an interrupted write:
    such a run has not ended.
    """
    return atomic.read_object(self.file(name, file))

  def outcome(self, name: str) -> Outcome:
    """Returns the outcome so far of the run with this name."""
    return outcomes.read_outcome(self.file(name))

  def outcome_of_process(self, name: str, code: int, began: int) -> Outcome:
    """Returns the outcome of a run whose process has ended.

    Args:
      code: Exit code of the process; the negative number of a signal.
      began: Bytes of the run's log when the process started.
    """
    outcome = self.outcome(name)
    if outcome.is_final or code == 0:
      return outcome
    lines = self.last_lines(name, began)
    cause = f'killed by signal {-code}' if code < 0 else f'exit code {code}'
    return Outcome('failed', '\n'.join([cause, *lines]))

  def last_lines(self, name: str, began: int) -> list[str]:
    """Returns the last lines of a run's log, from byte `began` on.

    At most 5 lines that are not empty, of the last 4 KiB.
    """
    path = self.file(name, LOG)
    if not path.exists():
      return []
    with path.open('rb') as log:
      size = log.seek(0, os.SEEK_END)
      log.seek(max(began, size - _END))
      text = log.read().decode(errors='replace')
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-_LINES:]

  def log_size(self, name: str) -> int:
    """Returns the size of a run's log, bytes."""
    path = self.file(name, LOG)
    return path.stat().st_size if path.exists() else 0


def _files_of(
  runs: Sequence[PlannedRun],
) -> Iterator[tuple[str, str, str | None]]:
  """Yields field, path and digest of each file that runs read."""
  for run in runs:
    for field, file in run.resolved.files.items():
      yield field, file['path'], file['digest']
