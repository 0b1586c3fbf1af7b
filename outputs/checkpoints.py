"""Checkpoints of a run: folders of parts, written while the run continues.

Each checkpoint is a folder named by its number.  The processes of a run write
parts into it, one folder each: the coordinator always, servers and workers with
codec state if the run has them.  The coordinator's part comes last, so that a
folder that has it is complete, whichever process dies when.  A run in one
process has this part only.

  checkpoints/7/coordinator/   state of the run, and which parts it requires
  checkpoints/7/server0/       state of a server's shard
  checkpoints/7/worker2/       residual of a worker, and its inner optimizer

A part is a state from `outputs.serialization`, whose arrays Orbax writes.  It
is written under a hidden name, flushed to the disk and renamed.  Each process
reads its own parts when a run resumes, after the coordinator has compared the
checksums of all.
"""

import contextlib
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from outputs import arrays, atomic, serialization
from outputs.serialization import Tree
from system import threads

COORDINATOR = 'coordinator'  # Part that makes a checkpoint complete.


class Abandoned(Exception):
  """Raised by a part of a checkpoint that is not to be completed."""


class Checkpoints:
  """Writer and reader of a run's checkpoints, in the coordinator's process.

  event       state before   state after   on the disk
  restore     new            idle          incomplete checkpoints are removed
  take_over   new            idle          later ones do not count any more
  save        idle, writing  writing       parts under hidden names
  (written)   writing        idle          a new checkpoint; old ones removed
  (failed)    writing        failed        the checkpoints before it
  close       any            closed        as after the last save

  A failure is raised by the next call of `save`, `is_writing` or `close`.

  Args:
    directory: Folder of the run's checkpoints, which all processes share.
    keep: Number of the newest complete checkpoints that are kept.
    required: Names of the parts of other processes without which a checkpoint
      is of no use.
    save_others: Function that has other processes write their parts of a
      checkpoint; returns futures that end once these are on the disk.
    job: Function that returns a context in which a checkpoint is written.
    waits: Whether a save waits for the one before it; if not, it must not begin
      while `is_writing` is true.
    may_write: Returns whether the run's folder is this process's; if not,
      nothing is written.

  Attributes:
    restored: Number and parts of the checkpoint that the run continues from;
      None if it starts from scratch.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    keep: int,
    required: Sequence[str] = (),
    save_others: Callable[
      [int], Sequence[threads.Future[Any]]
    ] = lambda number: (),
    job: Callable[
      [], contextlib.AbstractContextManager[None]
    ] = contextlib.nullcontext,
    waits: bool = True,
    may_write: Callable[[], bool] = lambda: True,
  ):
    self.restored: tuple[int, Sequence[str]] | None = None
    self._directory = directory
    self._keep = keep
    self._required = required
    self._save_others = save_others
    self._job = job
    self._waits, self._may_write = waits, may_write
    # Number of the newest checkpoint, even an incomplete one.
    self._number = -1
    self._pool = threads.ThreadPoolExecutor(1, 'checkpoints')
    self._writing: threads.Future[None] | None = None

  def restore(self) -> Any:
    """Returns the coordinator's state of the newest readable checkpoint.

    A checkpoint that cannot be read is logged and left where it is.  Incomplete
    ones are removed, and their numbers are not used again.

    Returns:
      The state; None if there is no checkpoint yet.

    Raises:
      ValueError: If there are checkpoints and none can be read.
    """
    self._number = max(_numbers(self._directory), default=-1)
    complete, reason = steps(self._directory), ''
    remove_all_but(self._directory, complete)
    for number in complete:
      _remove_hidden(self._directory / str(number), '*')
    for number in reversed(complete):
      try:
        own, names = _read_own(self._directory, number)
        for name in names:  # Their processes read them.
          arrays.verify(self._directory / str(number) / name)
      # What damaged files make Orbax raise is not documented.
      except Exception as error:
        text = str(error).partition('\n')[0]
        logging.warning(
          'Checkpoint %s cannot be read; it is left as it is, and the one '
          'before it is tried.  %s: %s',
          self._directory / str(number),
          type(error).__name__,
          text,
        )
        reason = reason or text
      else:
        folder = self._directory / str(number)
        logging.info('Resuming from checkpoint %s', folder)
        self.restored = number, sorted([COORDINATOR, *names])
        return own
    if complete:
      raise ValueError(
        f'workdir: expected a checkpoint that can be read, got {complete} in '
        f'{self._directory}; move that folder away to start from scratch.  '
        f'{reason}'
      )
    return None

  @property
  def newest(self) -> int:
    """Number of the newest checkpoint, complete or not; -1 before the first."""
    return self._number

  def take_over(self, newest: int) -> None:
    """Continues after another process, whose last checkpoint is `newest`.

    Later ones do not count any more: the run continues from before them, with
    files that differ.  They are removed at the next save, as others may still
    write parts of them.  The next number is skipped: the other process, which
    may only be stopped, may be about to write a checkpoint of that number.

    Raises:
      OSError: If a later checkpoint cannot be renamed.
    """
    if self._writing:
      threads.wait([self._writing])  # It may just complete a later one.
    earlier = _numbers(self._directory)
    self._number = max(earlier, default=-1) + 1
    for number in earlier:
      if number > newest:
        _hide(self._directory / str(number) / COORDINATOR)

  def is_writing(self) -> bool:
    """Returns whether a save has to be put off until the last one has ended.

    Raises:
      OSError: If the last checkpoint could not be written.
      Exception: As other processes fail to write their parts.
    """
    if self._waits:
      return False
    if self._writing and not self._writing.done():
      return True
    self._finish()
    return False

  def save(self, state: Any) -> None:
    """Captures the coordinator's state; writes it while the run continues.

    Waits for the checkpoint before, and removes incomplete ones.  Once this one
    is complete, all but the newest `keep` are removed.

    Args:
      state: Plain data and JAX arrays, which may change after the call.

    Raises:
      OSError: If the checkpoint before could not be written.
      Exception: As other processes fail to write their parts.
    """
    self._finish()
    self._number = max(self._number, *_numbers(self._directory), -1) + 1
    remove_all_but(self._directory, steps(self._directory))
    tree = serialization.freeze({'parts': [*self._required], 'state': state})
    try:
      others = self._save_others(self._number)
    except Abandoned as error:
      logging.warning('Checkpoint %d is not begun: %s', self._number, error)
      return
    self._writing = self._pool.submit(self._write, self._number, tree, others)

  def close(self) -> None:
    """Waits for the checkpoint that is being written; raises as `save`."""
    try:
      self._finish()
    finally:
      self._pool.shutdown()

  def _finish(self) -> None:
    writing, self._writing = self._writing, None
    if writing:
      writing.result()

  def _write(
    self,
    number: int,
    tree: Callable[[], Tree],
    others: Sequence[threads.Future[Any]],
  ) -> None:
    """Writes the coordinator's part once all others are on the disk."""
    try:
      with self._job():
        threads.wait(others)
        for other in others:
          other.result()
        if self._may_write():
          write(self._directory, number, COORDINATOR, tree())
    except Abandoned as error:  # Others may still write parts of it.
      logging.warning('Checkpoint %d is not completed: %s', number, error)
      return
    except OSError as error:
      if not self._may_write():  # The other process removes checkpoints, too.
        logging.warning('Another process continues the run: %s', error)
        return
      remove_all_but(self._directory, steps(self._directory))
      reason = str(error).partition('\n')[0]
      raise OSError(
        f'Checkpoint {number} in {self._directory} could not be written; those '
        'before it are as they were, and the same command resumes from the '
        f'newest.  {type(error).__name__}: {reason}'
      ) from error
    if self._may_write():
      remove_all_but(self._directory, steps(self._directory)[-self._keep :])


def read(
  directory: pathlib.Path, number: int, parts: Sequence[str] | None = None
) -> dict[str, Any]:
  """Returns states of a complete checkpoint, by part.

  Args:
    parts: Names of the parts to read; None for all.

  Raises:
    ValueError: If a part is damaged, or has another format.
    OSError: If a part is missing or cannot be read.
    Exception: From Orbax, if a part is damaged.
  """
  if parts is not None:
    return {name: _read(directory, number, name) for name in parts}
  own, names = _read_own(directory, number)
  return {COORDINATOR: own} | read(directory, number, names)


def write(directory: pathlib.Path, number: int, part: str, tree: Tree) -> None:
  """Writes a part of a checkpoint, and replaces it if it is there.

  A kill at any moment leaves either the whole part or none.

  Args:
    tree: State of the part, from `serialization.freeze`.

  Raises:
    OSError: If it cannot be written; nothing of it is left then.
  """
  folder = directory / str(number)
  folder.mkdir(parents=True, exist_ok=True)
  atomic.sync_folder(directory)
  path, new = folder / part, folder / f'.{part}.new'
  try:
    _remove_hidden(folder, part)  # A process may have died here.
    arrays.write(new, tree)
    atomic.sync_tree(new)
    _hide(path)
    new.rename(path)
    atomic.sync_folder(folder)
    _remove_hidden(folder, part)
  except OSError:  # The disk may be full.
    with contextlib.suppress(OSError):
      _hide(path)
    _remove_hidden(folder, part)
    raise


def steps(directory: pathlib.Path) -> list[int]:
  """Returns the numbers of the complete checkpoints, ascending."""
  return [
    number
    for number in _numbers(directory)
    if (directory / str(number) / COORDINATOR).is_dir()
  ]


def part_names(directory: pathlib.Path, number: int) -> list[str]:
  """Returns the names of a checkpoint's parts that are there, ascending."""
  return sorted(p.name for p in (directory / str(number)).glob('[!.]*/'))


def remove_all_but(directory: pathlib.Path, kept: Sequence[int]) -> None:
  """Removes checkpoints with other numbers; logs those it cannot remove.

  Incomplete ones are removed, too.

  Args:
    kept: Numbers of the checkpoints that stay.
  """
  for number in _numbers(directory):
    if number in kept:
      continue
    folder = directory / str(number)
    with contextlib.suppress(OSError):  # `_remove` will fail, too.
      _hide(folder / COORDINATOR)  # First, as it makes the others count.
    _remove(folder)


def _hide(part: pathlib.Path) -> None:
  """Renames a part, if it is there, so that it can be removed in any order."""
  if part.exists():
    part.rename(part.with_name(f'.{part.name}.old'))


def _remove_hidden(folder: pathlib.Path, part: str) -> None:
  """Removes what is unfinished or hidden of a part; '*' stands for any."""
  for path in folder.glob(f'.{part}.*'):
    _remove(path)


def _remove(folder: pathlib.Path) -> None:
  """Removes a folder; logs it if that fails."""
  try:
    shutil.rmtree(folder)
  except OSError as error:
    logging.warning('%s could not be removed: %s', folder, error)


def _read(directory: pathlib.Path, number: int, part: str) -> Any:
  tree = arrays.read(directory / str(number) / part)
  return serialization.thaw(tree)


def _read_own(directory: pathlib.Path, number: int) -> tuple[Any, list[str]]:
  """Returns the coordinator's state, and the names of all other parts."""
  own = _read(directory, number, COORDINATOR)
  names = {*own['parts'], *part_names(directory, number)} - {COORDINATOR}
  return own['state'], sorted(names)


def _numbers(directory: pathlib.Path) -> list[int]:
  """Returns the numbers of all checkpoints, complete or not, ascending."""
  try:
    found = list(directory.iterdir())
  except FileNotFoundError:
    return []
  return sorted(
    int(path.name) for path in found if path.name.isdecimal() and path.is_dir()
  )
