"""Child processes: one for each run of a plan, and others that run modules.

  python -m sweeps.child FLAGS_OF_MAIN --workdir=DIR

runs main.py with its output in the log of the run.  The kernel kills a child
when the process that started it ends.
"""

import ctypes
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from cluster.process import devices
from launch import processes
from outputs import compiled, transient
from sweeps.folder import CACHE, LOG

_BOUND = """
import runpy, sys
from sweeps.child import die_with_parent
die_with_parent()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""
_PDEATHSIG = 1  # PR_SET_PDEATHSIG, in <sys/prctl.h>.
_ROOT = pathlib.Path(__file__).parents[1]


def die_with_parent() -> None:
  """Makes the kernel kill this process when the thread that started it ends.

  A parent that has ended before the call is not noticed.  Linux only.

  Raises:
    AttributeError: If the system has no prctl.
  """
  ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def bound_command(module: str, *words: str) -> list[str]:
  """Returns a command that runs a module, and dies with this process.

  A new command is needed because a process that has loaded JAX must not fork.

  Args:
    module: Name of a module in `processes.python_path()`.
  """
  return [sys.executable, '-c', _BOUND, module, *words]


def run_module(
  module: str, *words: str, capture_output: bool = False
) -> subprocess.CompletedProcess[str]:
  """Runs a module in a process that dies with this one, and waits for it.

  Args:
    module: Name of a module in `processes.python_path()`.
    *words: Arguments of the module.
    capture_output: True to return its output as text instead of showing it.
  """
  return subprocess.run(
    bound_command(module, *words),
    env=os.environ | {'PYTHONPATH': processes.python_path()},
    capture_output=capture_output,
    text=True,
    check=False,
  )


def bind_to_sweep() -> None:
  """Binds this process to the sweep, and detaches it from terminal signals.

  When the sweep ends, the kernel kills the server that forked this process (see
  `sweeps.server`), and then this process.
  """
  die_with_parent()
  parent = multiprocessing.parent_process()
  if parent is not None and not parent.is_alive():
    os._exit(1)  # The parent ended before the call above.
  os.setsid()  # Only the sweep receives the terminal's signals.


def run(
  arguments: Sequence[str],
  folder: str,
  cores: Iterable[int],
  environ: Mapping[str, str],
) -> None:
  """Runs main.py in this process.

  Binds the process to the sweep, and redirects its output to the log of the
  run.

  Args:
    arguments: Flags of main.py.
    folder: Folder of the run, created if it is missing.
    cores: Indices of the CPU cores that the run may use.
    environ: Environment variables to add to those of this process.
  """
  bind_to_sweep()
  os.sched_setaffinity(0, cores)
  os.environ.update(environ)
  _main(arguments, pathlib.Path(folder))


def _main(arguments: Sequence[str], folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / LOG).open('ab') as log:
    for stream in (1, 2):
      os.dup2(log.fileno(), stream)
  _share_programs(folder.parent)
  script = _ROOT / 'main.py'
  sys.argv = [os.path.relpath(script), *arguments]
  runpy.run_path(str(script), run_name='__main__')


def _share_programs(out: pathlib.Path) -> None:
  """Shares compiled programs with other runs on this host, if it has GPUs."""
  # Keys of programs for CPUs lack the number of cores: see `outputs.compiled`.
  # GPU runs also have programs for the CPU; most of these compile in less than
  # a second, and are not stored.
  try:
    has_gpus = bool(devices.gpus(os.environ))
  except (OSError, ValueError) as error:
    transient.leave(error)
  if has_gpus:
    compiled.use(compiled.here(out / CACHE), everything=False)


if __name__ == '__main__':
  *_, _workdir = sys.argv
  _main(sys.argv[1:], pathlib.Path(_workdir.removeprefix('--workdir=')))
