"""A run of a sweep in a process of its own, which is main.py's.

python -m sweeps.child FLAGS_OF_MAIN --workdir=DIR
"""

import ctypes
import multiprocessing
import os
import pathlib
import runpy
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence

from sweeps.folder import LOG

_BOUND = """
import runpy, sys
from sweeps.child import die_with_parent
die_with_parent()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""
_PDEATHSIG = 1  # PR_SET_PDEATHSIG, in <sys/prctl.h>.
_ROOT = pathlib.Path(__file__).parents[1]


def python_path() -> str:
  """Returns PYTHONPATH with which other processes find these modules."""
  return os.pathsep.join(
    filter(None, [str(_ROOT), os.environ.get('PYTHONPATH')])
  )


def die_with_parent() -> None:
  """Lets the kernel kill this process when its parent ends.  Needs Linux."""
  ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def bound_command(module: str, *words: str) -> list[str]:
  """Returns a command that runs a module, and dies with this process.

  Forking by Python's own hand is not for a process that has loaded JAX.

  Args:
    module: To be found in `python_path()`.
    *words: Its arguments.
  """
  return [sys.executable, '-c', _BOUND, module, *words]


def bound() -> None:
  """Lets this process die with the sweep, and with it alone.

  The sweep's end ends the process that has forked this one, see
  `sweeps.server`, and that one's end this one.
  """
  die_with_parent()
  parent = multiprocessing.parent_process()
  if parent is not None and not parent.is_alive():
    os._exit(1)  # Before the kernel knew.
  os.setsid()  # Signals of the terminal are the sweep's.


def run(
  arguments: Sequence[str],
  folder: str,
  cores: Iterable[int],
  environ: Mapping[str, str],
) -> None:
  """Runs main.py in this process.

  Args:
    arguments: Its flags.
    folder: Of the run.
    cores: That it may use.
    environ: To be added to that of this process.
  """
  bound()
  os.sched_setaffinity(0, cores)
  os.environ.update(environ)
  _main(arguments, pathlib.Path(folder))


def _main(arguments: Sequence[str], folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / LOG).open('ab') as log:
    for stream in (1, 2):
      os.dup2(log.fileno(), stream)
  script = _ROOT / 'main.py'
  sys.argv = [os.path.relpath(script), *arguments]
  runpy.run_path(str(script), run_name='__main__')


if __name__ == '__main__':
  *_, _own = sys.argv
  _main(sys.argv[1:], pathlib.Path(_own.removeprefix('--workdir=')))
