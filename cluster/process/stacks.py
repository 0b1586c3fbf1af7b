"""Python stacks of a process on request: SIGUSR2 writes them to a file."""

import faulthandler
import os
import pathlib

from system import processes, threads

FOLDER = 'stacks'  # In the folder of the run.
SIGNAL = processes.SIGUSR2
# Of the newest file, which the handler of the process writes to.
_descriptors = processes.Own[list[int]](list)


def dump_on_signal(workdir: pathlib.Path, name: str) -> None:
  """Writes the stacks of all threads to a file at each SIGNAL, from now on.

  The handler needs no Python code, so that it works in a process that hangs in
  a compiled program.  A process that SIGSTOP has stopped writes after SIGCONT.
  Only the main thread can do this; in others, as in tests, nothing is done.

  Args:
    workdir: Folder of the run.
    name: Name of the process, such as 'worker-2'.

  Raises:
    OSError: If the file cannot be made.
  """
  if threads.current_thread() is not threads.main_thread():
    return
  folder = workdir / FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
  descriptor = os.open(folder / f'{name}.txt', flags, 0o644)
  faulthandler.register(SIGNAL, file=descriptor, all_threads=True)
  before = _descriptors.get()
  while before:
    os.close(before.pop())
  before.append(descriptor)
