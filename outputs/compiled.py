"""A folder in which processes share the programs that JAX compiles for them.

JAX's persistent compilation cache needs no lock: a program that is cut short or
read while it is written is compiled anew, with a warning.  Its keys name the
program, the flags and the kind of device, but on CPUs neither the host nor the
number of cores, on which the last bits of results depend.
"""

import os
import pathlib
from collections.abc import Mapping

_FOLDER = 'JAX_COMPILATION_CACHE_DIR'


def variables(
  environ: Mapping[str, str], folder: pathlib.Path
) -> dict[str, str]:
  """Returns variables with which JAX keeps in a folder all that it compiles.

  JAX reads them when it is imported.

  Args:
    environ: The environment; if it names another folder, there are none.
    folder: Made if it does not exist.
  """
  if environ.get(_FOLDER):
    return {}
  return {
    _FOLDER: str(folder.absolute()),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }


def use(folder: pathlib.Path, *, everything: bool) -> None:
  """Keeps in a folder what JAX compiles in this process from now on.

  Does nothing if JAX has another folder already.

  Args:
    folder: Made if it does not exist.
    everything: Whether programs are kept, too, that JAX by itself does not
      keep, because they take less than a second to compile.
  """
  import jax  # Launchers do without it.

  if jax.config.values['jax_compilation_cache_dir']:
    return
  jax.config.update('jax_compilation_cache_dir', str(folder.absolute()))
  if everything:
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def here(folder: pathlib.Path) -> pathlib.Path:
  """Returns the part of a folder for processes of this host, of as many cores.

  Args:
    folder: Shared by hosts.
  """
  cores = len(os.sched_getaffinity(0))
  return folder / f'{os.uname().nodename}-{cores}'
