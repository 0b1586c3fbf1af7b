"""Folders of named arrays, written and read by Orbax.

Every part of a checkpoint is such a folder: an Orbax checkpoint of one flat
dictionary of NumPy arrays, which `orbax.checkpoint.PyTreeCheckpointer` reads.
Orbax is imported by the first call, as that takes a third of a second.
"""

import functools
import logging as log
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from configs.checks import require


def write(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays into a new folder; does not flush it to the disk.

  Several threads may write at once.  Orbax writes only in a process whose
  `jax.process_index()` is 0: in each process on its own, and in the first one
  of those that XLA has joined.

  Args:
    folder: Path of the folder, which must not exist.
    arrays: Arrays by name; none of them empty.

  Raises:
    OSError: If Orbax cannot write; parts of the folder may be left.
  """
  import orbax.checkpoint as ocp

  arguments = ocp.args.PyTreeSave(dict(arrays))
  try:
    _checkpointer().save(folder.absolute(), args=arguments)
  # The errors of Orbax and TensorStore on a full disk are not documented.
  except Exception as error:
    raise OSError(f'{folder}: {error}') from error


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of a folder by name.

  Raises:
    ValueError: If there is anything but arrays of NumPy.
    OSError: If files are missing.
    Exception: From Orbax, if files are damaged.
  """
  import orbax.checkpoint as ocp

  arguments = ocp.args.PyTreeRestore()
  found = _checkpointer().restore(folder.absolute(), args=arguments)
  is_flat = isinstance(found, dict) and all(
    isinstance(array, np.ndarray) for array in found.values()
  )
  require(is_flat, str(folder), 'arrays by name', type(found).__name__)
  return dict(found)


@functools.cache
def _checkpointer() -> Any:
  """Returns a checkpointer that waits for no other process.

  It does not compress: that doubles the time of a save and makes random numbers
  8 % smaller.
  """
  import orbax.checkpoint as ocp

  logging.get_absl_logger().addFilter(_is_of_interest)
  options = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}
  )
  handler = ocp.PyTreeCheckpointHandler(
    multiprocessing_options=options, use_compression=False
  )
  return ocp.Checkpointer(handler, multiprocessing_options=options)


def _is_of_interest(record: log.LogRecord) -> bool:
  """Returns False for Orbax's messages about each of its steps."""
  parts = pathlib.PurePath(record.pathname).parts
  return record.levelno >= log.WARNING or 'orbax' not in parts
