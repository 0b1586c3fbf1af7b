"""What puts the trees of checkpoints on the disk, and takes them from there.

A folder of checkpoints holds one folder for each, named by its number.  It
appears there whole and goes as a whole: until then, and from then on, its name
has an ending.
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
  """Writes trees with Orbax."""

  def __init__(self) -> None:
    """Lets Orbax wait for no other process."""
    import orbax.checkpoint as ocp  # Slow, and only for who leads.

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
  """Writes a flat tree with NumPy, in any process, in the place of any other.

  Orbax writes arrays of one host in process 0 only.

  Raises:
    OSError: If it cannot be written; nothing of it is left then.
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
    shutil.rmtree(new, ignore_errors=True)  # It may hold what a disk lacks.
    raise


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the tree that `write` has written.

  Raises:
    ValueError: If the file has been damaged; says where.
    Exception: Of zipfile, the same.
    OSError: If it cannot be read.
  """
  return arrays.read(path / 'arrays.npz')


def steps(directory: pathlib.Path) -> list[int]:
  """Returns the numbers of the folders that are whole, ascending."""
  return sorted(int(p.name) for p in folders(directory) if p.name.isdecimal())


def folders(directory: pathlib.Path) -> list[pathlib.Path]:
  """Returns the folders of checkpoints, and what is left of unfinished ones."""
  try:
    found = list(directory.iterdir())
  except FileNotFoundError:
    return []
  return [path for path in found if number(path) >= 0 and path.is_dir()]


def number(path: pathlib.Path) -> int:
  """Returns the number of a folder, whole or not; -1 if it is another one."""
  name = path.name.partition(UNFINISHED)[0]
  return int(name) if name.isdecimal() else -1


def remove_all_but(directory: pathlib.Path, kept: Sequence[int]) -> None:
  """Removes what is not whole or has another number than these.

  What cannot be removed is named in the log.
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
