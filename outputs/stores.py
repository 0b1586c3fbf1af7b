"""Reads and writes checkpoint pytrees.

A folder of checkpoints holds one folder per checkpoint, named by its number.
While a checkpoint is written or removed, the name of its folder also has the
suffix `UNFINISHED`, so that a folder named by a number alone is complete.
"""

import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from outputs import arrays, atomic

UNFINISHED = '.orbax-checkpoint-tmp'  # Ends the names of unfinished folders.


class Orbax:
  """Checkpointer of pytrees that uses Orbax."""

  def __init__(self) -> None:
    """Creates a checkpointer that waits for no other process."""
    import orbax.checkpoint as ocp  # Slow; only the coordinator needs it.

    options = ocp.options.MultiprocessingOptions(
      primary_host=0, active_processes={0}
    )
    self._checkpointer = ocp.AsyncCheckpointer(
      ocp.PyTreeCheckpointHandler(multiprocessing_options=options),
      multiprocessing_options=options,
    )
    self.save = self._checkpointer.save
    self.wait = self._checkpointer.wait_until_finished
    self.restore = self._checkpointer.restore
    self.close = self._checkpointer.close


def write(path: pathlib.Path, tree: Mapping[str, np.ndarray]) -> None:
  """Writes a flat tree with NumPy, and replaces any earlier one of that path.

  Works in any process, unlike Orbax, which writes the arrays of one host only
  in process 0.

  Raises:
    OSError: If the tree cannot be written; no part of it is left then.
  """
  new = path.with_name(f'{path.name}{UNFINISHED}')
  path.parent.mkdir(parents=True, exist_ok=True)
  if new.exists():
    shutil.rmtree(new)
  try:
    new.mkdir()
    with (new / 'arrays.npz').open('wb') as file:
      np.savez(file, **tree)
      file.flush()
      os.fsync(file.fileno())
    atomic.sync_folder(new)
    if path.exists():
      shutil.rmtree(path)
    new.rename(path)
    atomic.sync_folder(path.parent)  # Before any other is removed.
  except OSError:
    shutil.rmtree(new, ignore_errors=True)  # The disk may be full.
    raise


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the tree that `write` has written.

  Raises:
    ValueError: If the file is damaged; says where.
    Exception: From zipfile, if the file is damaged.
    OSError: If the file cannot be read.
  """
  return arrays.read(path / 'arrays.npz')


def steps(directory: pathlib.Path) -> list[int]:
  """Returns the numbers of the complete checkpoints, ascending."""
  return sorted(int(p.name) for p in folders(directory) if p.name.isdecimal())


def folders(directory: pathlib.Path) -> list[pathlib.Path]:
  """Returns the folders of checkpoints, complete and unfinished."""
  try:
    found = list(directory.iterdir())
  except FileNotFoundError:
    return []
  return [path for path in found if number(path) >= 0 and path.is_dir()]


def number(path: pathlib.Path) -> int:
  """Returns a checkpoint folder's number; -1 if it is no checkpoint's."""
  name = path.name.partition(UNFINISHED)[0]
  return int(name) if name.isdecimal() else -1


def remove_all_but(directory: pathlib.Path, kept: Sequence[int]) -> None:
  """Removes unfinished checkpoints, and those with other numbers than these.

  Logs the folders that it cannot remove.
  """
  names = {str(step) for step in kept}
  for path in folders(directory):
    if path.name in names:
      continue
    doomed = path.with_name(f'{number(path)}{UNFINISHED}')
    try:
      if path != doomed:
        if doomed.exists():
          shutil.rmtree(doomed)
        path.rename(doomed)
      shutil.rmtree(doomed)
    except OSError as error:
      logging.warning('%s could not be removed: %s', path, error)
