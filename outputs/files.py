"""Folder of a run: its lock, its identity, and its summary.

  event       state before   state after   written to the folder
  hold        new            held          .lock names this process
  claim       new, held      claimed       .lock names the run; manifest.json
  begin       claimed        writing       this start in manifest.json; cut rows
  copy        new            copying       hidden copies of the rows
  take_over   copying        writing       a new .lock; the copies replace rows
  close       writing        closed        the end of the rows, summary.json
  abandon     any            closed        nothing
  release     any            closed        nothing

`take_over` in another process puts a process that is writing into the state
`lost`: it may only have been stopped, and writes into files that have no name
any more.  Its `close` changes nothing in the folder.  There is a summary.json
only between an end and the next `begin` or `take_over`.

`outputs.rows` writes the files that grow, and `outputs.checkpoints` the
checkpoints.  `outputs.starts` compares manifests.
"""

import contextlib
import datetime
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from outputs import atomic, formats, manifests, rows, starts
from outputs.manifests import LOCAL, fingerprint
from outputs.transient import LIVE_S, FolderLock, start_limit_s
from system import processes


class RunFiles:
  """Folder of one run, in a process that writes to it.

  Args:
    workdir: New folder, or the folder of a run to resume; None for a new folder
      under runs/, named by the time.

  Attributes:
    workdir: Path of the folder.
    has_given_folder: True if the caller chose the folder.
    rows: Writer of the files that grow.

  Raises:
    ValueError: If `workdir` is empty.
  """

  def __init__(self, workdir: str | None):
    if workdir == '':
      raise ValueError("workdir: expected the path of a folder, got ''.")
    self.has_given_folder = workdir is not None
    if workdir is None:
      now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')
      workdir = f'runs/{now}-{processes.getpid()}'
    self.workdir = pathlib.Path(workdir)
    self.rows = rows.Rows(
      self.workdir, may_write=lambda: not self.is_superseded
    )
    self._lock: FolderLock | None = None
    self._manifest: dict[str, Any] = {}  # Content of manifest.json.

  def hold(
    self, cluster: Mapping[str, Any], *, limit_s: float = math.inf
  ) -> FolderLock:
    """Creates the folder, and holds its lock until `close` or `release`.

    If another process holds the lock, this one waits, as that process may be
    ending: for `start_limit_s` at most, or, in a virtual run, for `LIVE_S` if
    the holder is a live process of this host.

    Args:
      limit_s: Another limit, seconds, if it is lower.

    Raises:
      OSError: If the folder cannot be made.
      ValueError: If there is a file at its path or above.
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
    """Makes a run of the folder, or checks that it has this run; see `hold`.

    Raises:
      OSError: If the folder cannot be made.
      Busy: If another process holds the lock of the folder for too long.
      ValueError: If it holds a run of another config; names the fields.
    """
    lock = self.hold(manifest['config']['cluster'])
    with self.release_on_error():
      path = self.workdir / 'manifest.json'
      before = atomic.read_object(path)
      if before is None:
        if path.exists():
          self._check_known(lock.run, fingerprint(manifest))
        else:
          self._check_free()
        changed: Sequence[str] = ()
      else:
        changed = self._check_same(before, manifest)
      self._add_start(before or manifest, manifest, changed)
      lock.record(fingerprint(manifest))
    self.rows.configure(manifest['config']['outputs'])

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

  def begin(
    self,
    *,
    num_workers: int,
    sizes: Mapping[str, int] | None = None,
    examples: int = 0,
  ) -> None:
    """Opens the files that grow, and records this start in the manifest.

    A summary of an earlier start is removed.

    Args:
      num_workers: Number of workers, which a new timeline names.
      sizes: Bytes of each file at the checkpoint to resume from; None for a new
        run.
      examples: Examples applied until then.
    """
    self._manifest['starts'][-1]['examples'] = examples
    self._write_manifest()
    self._remove_summary()
    self.rows.open(
      sizes or {}, num_workers=num_workers, manifest=self._manifest
    )

  def copy(self, manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Copies the files of another process, up to `sizes`, bytes of each.

    Args:
      manifest: Manifest of the run, whose config says which files there are.
      sizes: Bytes to copy of each file, by name.

    Raises:
      OSError: If the files cannot be copied.
      ValueError: If a file is shorter.
    """
    self.rows.configure(manifest['config']['outputs'])
    self.rows.copy(sizes)

  def take_over(self, manifest: Mapping[str, Any]) -> None:
    """Takes the folder from the other process: its lock, and all files.

    Raises:
      OSError: If a file cannot be replaced.
      ValueError: If the folder has no readable manifest.
    """
    self._lock = FolderLock(self.workdir, busy='', limit_s=0.0, seizes=True)
    self._lock.record(fingerprint(manifest))
    before = atomic.read_object(self.workdir / 'manifest.json')
    if before is None or not before.get('starts'):
      raise ValueError(f'workdir: {self.workdir} has no manifest of the run.')
    self._manifest = before
    self._remove_summary()
    self.rows.publish(before)

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
          starts.describe_kinds(kinds),
          starts.describe_kinds(before[-1]),
        )
      known[str(worker)] = list(kinds)
    self._write_manifest()

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

  @property
  def is_superseded(self) -> bool:
    """True if another process has taken the folder over."""
    return self._lock is not None and not self._lock.is_held()

  def close(self, summary: Mapping[str, Any]) -> None:
    """Ends the run: completes the rows, writes summary.json, and releases.

    Also called after an error, which the summary names.  The rows are on the
    disk before the summary is written, so that they are complete in a folder
    with a summary, even if this process is killed meanwhile.  TensorBoard's
    file is completed only after it.

    Raises:
      OSError: If a file cannot be written; the folder is released nevertheless.
    """
    try:
      self.rows.finish()
      if not self.is_superseded:
        atomic.write_object(self.workdir / 'summary.json', summary)
        self.rows.report_end(summary)
    finally:
      self.abandon()

  def abandon(self) -> None:
    """Closes the files of a run that another process continues."""
    try:
      self.rows.close()
    finally:
      self.release()

  def release(self) -> None:
    """Releases the lock of the folder, so that other runs can use it."""
    if self._lock is not None:
      self._lock.release()
      self._lock = None

  def _check_same(
    self, before: dict[str, Any], manifest: Mapping[str, Any]
  ) -> Sequence[str]:
    """Checks that it is the folder's run, or longer; returns changed fields."""
    formats.check_run_folder(before, f'workdir: {self.workdir}')
    found = starts.compare(before, manifest)
    if found.is_longer:
      self._check_extension(before['config'])
    if found.refused:
      raise ValueError(
        f'workdir: {self.workdir} holds a run of another config.  '
        + '  '.join(found.refused)
      )
    for warning in found.warnings:
      logging.warning('%s', warning)
    if found.is_longer:
      epochs = manifest['config']['epochs']
      logging.info(
        'The run becomes longer: config.epochs is %s, and was %s.',
        *(epochs, before['config']['epochs']),
      )
      # Other processes take a run that has a summary for finished.
      self._remove_summary()
      before['config']['epochs'] = epochs
      atomic.write_object(self.workdir / 'manifest.json', before)
    return found.changed

  def _check_extension(self, config: Mapping[str, Any]) -> None:
    """Checks that a run of a recorded config can get more epochs."""
    reason = ''
    if config['schedule']['name'] == 'cosine' and (
      config['model']['name'] != 'none'
    ):
      reason = "config.schedule.name 'cosine' reaches its end there"
    elif self.read_summary() and not any(
      (self.workdir / 'checkpoints').glob('*/coordinator')
    ):
      reason = 'the run has finished without a checkpoint'
    if reason:
      raise ValueError(
        f'config.epochs: expected {config["epochs"]}, as in {self.workdir}, '
        f'because {reason}; start another run with config.model.init.'
      )

  def _check_known(self, run: str, own: str) -> None:
    """Checks, by fingerprints, a folder whose manifest cannot be read."""
    left = [
      path.name
      for name in (*rows.NAMES, 'summary.json', 'checkpoints')
      if (path := self.workdir / name).is_dir()
      or (path.exists() and path.stat().st_size)
    ]
    if run != own and (run or left):
      got = run or f'unknown, with {", ".join(left)}'
      raise ValueError(
        f'workdir: {self.workdir}/manifest.json cannot be read.  Expected a '
        f'folder of this run, {own}, got that of run {got}; name a new folder.'
      )
    logging.warning('%s/manifest.json is rewritten.', self.workdir)

  def _check_free(self) -> None:
    for pattern in (*rows.NAMES, 'summary.json', 'checkpoints', rows.BOARD):
      for path in self.workdir.glob(pattern):
        raise ValueError(
          'workdir: expected a new folder, or one that holds a run, but there '
          f'is {path} and no manifest.json.'
        )

  def _add_start(
    self,
    known: Mapping[str, Any],
    manifest: Mapping[str, Any],
    changed: Sequence[str],
  ) -> None:
    """Adds this start to the `known` manifest; `begin` writes it."""
    earlier = known.get('starts', [])  # A run may end before it begins.
    if not earlier:
      atomic.write_object(self.workdir / 'manifest.json', known)
    start = manifests.start_of(manifest)
    start['changed'] = {
      field: manifests.read_field(manifest, field)
      for field in changed
      if field not in LOCAL
    }
    self._manifest = {**known, 'starts': [*earlier, start]}

  def _write_manifest(self) -> None:
    if not self.is_superseded:
      atomic.write_object(self.workdir / 'manifest.json', self._manifest)

  def _remove_summary(self) -> None:
    (self.workdir / 'summary.json').unlink(missing_ok=True)
