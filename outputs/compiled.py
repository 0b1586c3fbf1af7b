"""Folders in which processes share the programs that JAX compiles.

JAX's persistent compilation cache needs no lock: a program that is cut short or
read while it is written is compiled again, with a warning.  Its keys name the
program, the flags and the kind of device, but on CPUs neither the host nor the
number of cores, on which the last bits of results depend.
"""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

_FOLDER = 'JAX_COMPILATION_CACHE_DIR'


def variables(
  environ: Mapping[str, str], folder: pathlib.Path
) -> dict[str, str]:
  """Returns environment variables that make a folder the compilation cache.

  JAX reads them when it is imported, and creates the folder.  There are none if
  `environ` has a cache folder.
  """
  if environ.get(_FOLDER):
    return {}
  return {
    _FOLDER: str(folder.absolute()),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }


def use(folder: pathlib.Path, *, everything: bool) -> None:
  """Sets the compilation cache of this process to a folder, unless it has one.

  Args:
    everything: Whether to cache also programs that compile in less than a
      second.
  """
  import jax  # Launchers do without it.

  if jax.config.values['jax_compilation_cache_dir']:
    return
  set_option: Callable[[str, Any], None] = jax.config.update
  set_option('jax_compilation_cache_dir', str(folder.absolute()))
  if everything:
    set_option('jax_persistent_cache_min_compile_time_secs', 0)
    set_option('jax_persistent_cache_min_entry_size_bytes', -1)


def here(folder: pathlib.Path) -> pathlib.Path:
  """Returns the subfolder, for hosts like this one, of one that hosts share."""
  cores = len(os.sched_getaffinity(0))
  return folder / f'{os.uname().nodename}-{cores}'
