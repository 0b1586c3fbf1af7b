"""Checkpoints of a run, written while the run goes on.

A run's state is plain data and arrays.  The plain data is pickled; each array
that it refers to, however often, is one leaf of a tree that is written.
Reading checks every byte, and runs no code but ours: see `outputs.plain`.
"""

import contextlib
import functools
import logging as log
import math
import pathlib
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from configs.checks import require
from outputs import plain, stores

Tree = dict[str, np.ndarray]

_FORMAT = 7


class Rhythm:
  """When a run leaves checkpoints.

  Attributes:
    wanted: Whether there are to be any.
  """

  def __init__(self, *, every_s: float, every_examples: int):
    """Begins now, at no examples.

    Args:
      every_s: Seconds of wall time between checkpoints; inf for none.
      every_examples: Examples between checkpoints; 0 for none.

    Raises:
      ValueError: If an argument is out of range.
    """
    require(every_s > 0, 'every_s', 'more than 0 seconds', every_s)
    require(every_examples >= 0, 'every_examples', 'at least 0', every_examples)
    self._every_s = every_s
    self._every_examples = every_examples or math.inf
    self.wanted = min(self._every_s, self._every_examples) < math.inf
    self.begin(0)

  def begin(self, examples: int) -> None:
    """Starts counting time, and examples beyond these."""
    self._next_examples = examples + self._every_examples
    self._next_s = time.monotonic() + self._every_s

  def due(self, examples: int) -> bool:
    """Returns whether it is time for a checkpoint."""
    return examples >= self._next_examples or time.monotonic() >= self._next_s

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


class Checkpoints:
  """Writes, keeps and reads the checkpoints of a run in one process.

  Attributes:
    wanted: As of `Rhythm`, and so are `check`, `begin` and `due`.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    every_s: float,
    every_examples: int,
    keep: int,
  ):
    """Creates nothing yet.

    Args:
      directory: Of the run's checkpoints.
      every_s: As of `Rhythm`.
      every_examples: The same.
      keep: How many of the newest are kept.

    Raises:
      ValueError: If an argument is out of range.
    """
    rhythm = Rhythm(every_s=every_s, every_examples=every_examples)
    self.wanted, self.check = rhythm.wanted, rhythm.check
    self.begin, self.due = rhythm.begin, rhythm.due
    require(keep >= 1, 'keep', 'at least 1', keep)
    self._directory = directory.absolute()  # As Orbax wants it.
    self._keep = keep
    logging.get_absl_logger().addFilter(_is_of_interest)
    self._store = stores.Orbax()
    self._saving: int | None = None

  def restore(self) -> Any:
    """Returns the newest state that can be read; None if there is none yet.

    What cannot be read is named in the log and left where it is.

    Raises:
      ValueError: If there are checkpoints and none can be read.
    """
    return newest(self._directory, stores.steps(self._directory), self._read)

  def save(self, state: Any, *, examples: int) -> None:
    """Copies the state and writes it while the run goes on.

    Args:
      state: Anything that pickles, and arrays of JAX.
      examples: In it.

    Raises:
      OSError: If the checkpoint before could not be written.
    """
    self._wait()
    left = stores.folders(self._directory)
    step = max(map(stores.number, left), default=-1) + 1
    self._directory.mkdir(parents=True, exist_ok=True)
    stores.remove_all_but(self._directory, stores.steps(self._directory))
    self._saving = step
    with self._explained(step):
      self._store.save(self._directory / str(step), frozen(state)())
    self.begin(examples)

  def close(self) -> None:
    """Finishes what is being written.

    Raises:
      OSError: If it could not be written.
    """
    self._wait()
    self._store.close()

  def _read(self, step: int) -> Any:
    return thawed(self._store.restore(self._directory / str(step)))

  def _wait(self) -> None:
    """Returns once the checkpoint that is being written is safe."""
    step, self._saving = self._saving, None
    if step is None:
      return
    with self._explained(step):
      self._store.wait()
    kept = stores.steps(self._directory)[-self._keep :]
    stores.remove_all_but(self._directory, kept)

  @contextlib.contextmanager
  def _explained(self, step: int) -> Iterator[None]:
    """Says which checkpoint could not be written, and leaves nothing of it."""
    try:
      yield
    # What full disks make Orbax and its layers raise is not documented.
    except Exception as error:
      self._saving = None
      stores.remove_all_but(self._directory, stores.steps(self._directory))
      raise not_written(self._directory, step, error) from error


def newest(
  directory: pathlib.Path, steps: Sequence[int], read: Callable[[int], Any]
) -> Any:
  """Returns what can be read of the newest checkpoint; None if there is none.

  What cannot be read is named in the log and left where it is.

  Args:
    directory: Of the run's checkpoints.
    steps: Their numbers, ascending.
    read: Returns one of them, or raises.

  Raises:
    ValueError: If there are checkpoints and none can be read.
  """
  reason = ''
  for step in reversed(steps):
    try:
      state = read(step)
    # What damaged files make Orbax and its layers raise is not documented.
    except Exception as error:
      logging.warning(
        'Checkpoint %s cannot be read; it is left as it is, and the one '
        'before it is tried.  %s: %s',
        directory / str(step),
        type(error).__name__,
        str(error).partition('\n')[0],
      )
      reason = reason or str(error).partition('\n')[0]
    else:
      logging.info('Going on from checkpoint %s', directory / str(step))
      return state
  if steps:
    raise ValueError(
      f'workdir: expected a checkpoint that can be read, got {steps} in '
      f'{directory}; move that folder away to start anew.  {reason}'
    )
  return None


def not_written(
  directory: pathlib.Path, step: int, error: Exception
) -> OSError:
  """Returns what to raise if a checkpoint could not be written."""
  reason = str(error).partition('\n')[0]
  return OSError(
    f'Checkpoint {step} in {directory} could not be written; those before it '
    'are as they were, and the same command goes on from the newest.  '
    f'{type(error).__name__}: {reason}'
  )


def frozen(state: Any) -> Callable[[], Tree]:
  """Takes hold of a state; returns what makes a tree of it, in any thread.

  Plain data is copied here and now.  Arrays are only referred to: XLA uses no
  memory again for which there is a view of NumPy.

  Args:
    state: Anything that pickles, and arrays of JAX.
  """
  data, arrays = plain.write(state)
  return functools.partial(_tree, data, jax.device_get(arrays))


def thawed(tree: Tree) -> Any:
  """Returns the state that a tree was made of.

  Raises:
    ValueError: If it is of another format or has another checksum.
    Exception: Of pickle, if it holds anything but data.
  """
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


def _is_of_interest(record: log.LogRecord) -> bool:
  """Orbax tells of every thread that it starts and ends."""
  parts = pathlib.PurePath(record.pathname).parts
  return record.levelno >= log.WARNING or 'orbax' not in parts


def _tree(data: bytes, arrays: Sequence[np.ndarray]) -> Tree:
  tree = {f'array{number}': array for number, array in enumerate(arrays)}
  tree['plain'] = np.frombuffer(data, np.uint8)
  tree['format'] = np.array([_FORMAT, _checksum(tree)], np.uint32)
  return tree


def _checksum(tree: Mapping[str, np.ndarray]) -> int:
  checksum = 0
  for name in sorted(tree):
    leaf = np.ascontiguousarray(tree[name])
    header = f'{name} {leaf.dtype} {leaf.shape}'.encode()
    checksum = zlib.crc32(header, checksum)
    checksum = zlib.crc32(leaf.reshape(-1).view(np.uint8), checksum)
  return checksum
