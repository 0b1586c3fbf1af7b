"""Checkpoints of a run, written while the run goes on.

A run's state is plain data and arrays.  The plain data is pickled; each array
that it refers to, however often, is one leaf of a tree that Orbax writes.
Reading checks every byte, and runs no code but ours: see `outputs.plain`.
"""

import logging as log
import math
import pathlib
import pickle
import shutil
import time
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from configs.checks import require
from outputs import plain
from outputs.stores import UNFINISHED, Npz, Orbax

_FORMAT = 4


class Checkpoints:
  """Writes, keeps and reads the checkpoints of one run."""

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    every_s: float,
    every_examples: int,
    keep: int,
    store: type[Orbax] | type[Npz] = Orbax,
  ):
    """Creates nothing yet.

    Args:
      directory: Of the run's checkpoints.
      every_s: Seconds of wall time between checkpoints; inf for none.
      every_examples: Examples between checkpoints; 0 for none.
      keep: How many of the newest are kept.
      store: Writes them.

    Raises:
      ValueError: If an argument is out of range.
    """
    require(every_s > 0, 'every_s', 'more than 0 seconds', every_s)
    require(every_examples >= 0, 'every_examples', 'at least 0', every_examples)
    require(keep >= 1, 'keep', 'at least 1', keep)
    self._directory = directory.absolute()  # As Orbax wants it.
    self._every_s = every_s
    self._every_examples = every_examples or math.inf
    self._keep = keep
    self.begin(0)
    logging.get_absl_logger().addFilter(_is_of_interest)
    self._store = store()
    self._saving = False

  @property
  def wanted(self) -> bool:
    """Whether the run is to leave any checkpoints."""
    return min(self._every_s, self._every_examples) < math.inf

  def check(self, name: str, value: Any) -> None:
    """Checks that a checkpoint could hold a value, if there are to be any.

    Raises:
      ValueError: If it is not plain data; names it.
    """
    if not self.wanted:
      return
    try:
      data, arrays = plain.write(value)
      plain.read(data, arrays)
    # Pickle has many ways to say that it cannot.
    except (AttributeError, TypeError, pickle.PickleError) as error:
      raise ValueError(
        f'{name}: expected plain data that a checkpoint can hold: {error}'
      ) from error
    if not all(array.size for array in arrays):
      raise ValueError(f'{name}: expected arrays that are not empty.')

  def restore(self) -> Any:
    """Returns the newest state that can be read; None if there is none yet.

    What cannot be read is named in the log and left where it is.

    Raises:
      ValueError: If there are checkpoints and none can be read.
    """
    steps, reason = self.steps(), ''
    for step in reversed(steps):
      try:
        state = self.read(step)
      # What damaged files make Orbax and its layers raise is not documented.
      except Exception as error:
        logging.warning(
          'Checkpoint %s cannot be read; it is left as it is, and the one '
          'before it is tried.  %s: %s',
          self._directory / str(step),
          type(error).__name__,
          str(error).partition('\n')[0],
        )
        reason = reason or str(error).partition('\n')[0]
      else:
        logging.info('Going on from checkpoint %s', self._directory / str(step))
        return state
    if steps:
      raise ValueError(
        f'workdir: expected a checkpoint that can be read, got {steps} in '
        f'{self._directory}; move that folder away to start anew.  {reason}'
      )
    return None

  def read(self, step: int) -> Any:
    """Returns the state of one checkpoint.

    Raises:
      Exception: Of Orbax or others, if it cannot be read.
    """
    return _unpacked(self._store.restore(self._directory / str(step)))

  def steps(self) -> list[int]:
    """Returns the numbers of the checkpoints that there are, ascending."""
    if not self._directory.exists():
      return []
    names = [path.name for path in self._directory.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())

  def begin(self, examples: int) -> None:
    """Starts counting time, and examples beyond these."""
    self._next_examples = examples + self._every_examples
    self._next_s = time.monotonic() + self._every_s

  def due(self, examples: int) -> bool:
    """Returns whether it is time for a checkpoint."""
    return examples >= self._next_examples or time.monotonic() >= self._next_s

  def save(self, state: Any, *, examples: int, step: int | None = None) -> None:
    """Copies the state and writes it while the run goes on.

    Args:
      state: Anything that pickles, and arrays of JAX.
      examples: In it.
      step: Its number; None for the next one.

    Raises:
      Exception: Of Orbax, if the checkpoint before could not be written.
    """
    self.wait()
    if step is None:
      step = max(self.steps(), default=-1) + 1
    self._directory.mkdir(parents=True, exist_ok=True)
    for path in self._directory.glob(f'*{UNFINISHED}*'):
      shutil.rmtree(path)  # What a process left that was killed.
    self._store.save(self._directory / str(step), _packed(state))
    self._saving = True
    self.begin(examples)

  def wait(self) -> None:
    """Returns once the checkpoint that is being written is safe.

    Raises:
      Exception: Of Orbax, if it could not be written.
    """
    if self._saving:
      self._store.wait()
      self._saving = False
      for step in self.steps()[: -self._keep]:
        shutil.rmtree(self._directory / str(step))

  def close(self) -> None:
    """Finishes what is being written."""
    self.wait()
    self._store.close()


def _is_of_interest(record: log.LogRecord) -> bool:
  """Orbax tells of every thread that it starts and ends."""
  parts = pathlib.PurePath(record.pathname).parts
  return record.levelno >= log.WARNING or 'orbax' not in parts


def _packed(state: Any) -> dict[str, np.ndarray]:
  """Returns the state as a tree of arrays that share no memory with it."""
  data, arrays = plain.write(state)
  tree = {
    f'array{number}': np.array(array)
    for number, array in enumerate(jax.device_get(arrays))
  }
  tree['plain'] = np.frombuffer(data, np.uint8)
  tree['format'] = np.array([_FORMAT, _checksum(tree)], np.uint32)
  return tree


def _unpacked(tree: dict[str, np.ndarray]) -> Any:
  form = tree.pop('format', np.zeros(0))
  if form.shape != (2,) or 'plain' not in tree:
    raise ValueError(f'Expected the arrays of a state, got {sorted(tree)}.')
  written, checksum = form
  if written != _FORMAT:
    raise ValueError(
      f'format: expected {_FORMAT}, got {written}; it was written by another '
      'version of Syncopate.'
    )
  if checksum != _checksum(tree):
    raise ValueError('Expected the bytes that were written, got others.')
  data = tree.pop('plain')
  arrays = [jnp.array(tree[f'array{number}']) for number in range(len(tree))]
  return plain.read(data.tobytes(), arrays)


def _checksum(tree: Mapping[str, np.ndarray]) -> int:
  checksum = 0
  for name in sorted(tree):
    leaf = np.ascontiguousarray(tree[name])
    header = f'{name} {leaf.dtype} {leaf.shape}'.encode()
    checksum = zlib.crc32(header, checksum)
    checksum = zlib.crc32(leaf.reshape(-1).view(np.uint8), checksum)
  return checksum
