"""What puts the trees of checkpoints on the disk, and takes them from there."""

import os
import pathlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import orbax.checkpoint as ocp

from outputs import arrays

UNFINISHED = '.orbax-checkpoint-tmp'  # Ends the names of unfinished folders.


class Orbax:
  """Writes trees with Orbax; only in process 0 of jax.distributed."""

  def __init__(self) -> None:
    """Lets Orbax wait for no other process."""
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


class Npz:
  """Writes flat trees with NumPy, in any process.

  Orbax writes arrays of one host in process 0 only.
  """

  def __init__(self) -> None:
    """Has nothing to write yet."""
    self._pool = ThreadPoolExecutor(1)
    self._saving: Future | None = None

  def save(self, path: pathlib.Path, tree: Mapping[str, np.ndarray]) -> None:
    """Starts to write a folder, which appears when it is whole."""
    self._saving = self._pool.submit(self._save, path, tree)

  def wait(self) -> None:
    """Returns once it is written; raises what went wrong."""
    if self._saving is not None:
      self._saving.result()

  def restore(self, path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the tree of a folder."""
    return arrays.read(path / 'arrays.npz')

  def close(self) -> None:
    """Ends the thread that writes."""
    self._pool.shutdown()

  def _save(self, path: pathlib.Path, tree: Mapping[str, np.ndarray]) -> None:
    new = path.with_name(f'{path.name}{UNFINISHED}')
    new.mkdir()
    with (new / 'arrays.npz').open('wb') as file:
      np.savez(file, **tree)
      file.flush()
      os.fsync(file.fileno())
    new.rename(path)
