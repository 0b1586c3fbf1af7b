"""Starts the processes of a job, which end with it and write to its logs.

JAX allocates three quarters of a GPU's memory when it starts.  Processes that
share the GPU therefore receive shares of its memory: from this module for
virtual runs, and from config.cluster.workers_per_gpu for real runs.
"""

import json
import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.gpu import training
from bench.gpu.running import Report
from cluster.process import devices
from sweeps import child

_TAIL = 4  # Lines of a log in an error.


class Context(NamedTuple):
  """Context of a job.

  Attributes:
    folder: New folder of the runs and logs of the job.
    deadline: Time at which the job is killed, on the clock of time.monotonic.
    is_dry: True for the tiny sizes of a dry run.
    report: Receiver of the values of its rows.
  """

  folder: pathlib.Path
  deadline: float
  is_dry: bool
  report: Report


def environ(sharing: int = 1, **variables: str) -> dict[str, str]:
  """Returns the environment of a process.

  Args:
    sharing: Number of processes that use the GPU at the same time.
    **variables: Further variables.
  """
  share = devices.memory(os.environ, sharing)
  path = {'PYTHONPATH': child.python_path()}
  return {**os.environ, **path, **share, **variables}


def start(
  words: Sequence[str],
  log: pathlib.Path,
  env: Mapping[str, str],
  **options: Any,
) -> subprocess.Popen:
  """Starts `python -m WORDS` with its output in a log."""
  with log.open('ab') as file:
    options = {'stdin': subprocess.DEVNULL, 'stdout': file, **options}
    return subprocess.Popen(
      child.bound_command(*words), env=env, stderr=file, **options
    )


def finish(process: subprocess.Popen, log: pathlib.Path) -> None:
  """Waits for the end of a process; the job's limit bounds the wait.

  Raises:
    RuntimeError: If the process fails; has the end of its log.
  """
  if code := process.wait():
    raise RuntimeError(f'exit code {code}: {tail(log)}')


def run(
  words: Sequence[str], log: pathlib.Path, env: Mapping[str, str]
) -> None:
  """Runs `python -m WORDS` to its end; errors are those of `finish`."""
  finish(start(words, log, env), log)


def tail(log: pathlib.Path) -> str:
  """Returns the last lines of a log as one line."""
  lines = log.read_text(errors='replace').splitlines()
  return ' | '.join(filter(None, map(str.strip, lines[-_TAIL:])))


def launch(
  context: Context,
  name: str,
  fields: Mapping[str, Any],
  *,
  workers: int,
  servers: int = 0,
  dedicated: bool = False,
) -> pathlib.Path:
  """Executes a run of real processes on this machine; returns its folder.

  The reports of `bench.gpu.training` are in the folder NAME.reports.

  Args:
    context: Context of the job.
    name: Name of the run.
    fields: Fields of its config.
    workers: Number of processes that train and share the GPU.
    servers: Number of shards of the parameters.
    dedicated: True if servers have their own processes.

  Raises:
    RuntimeError: If the run fails.
  """
  folder = context.folder / name
  if workers > 1 and len(devices.gpus(os.environ)) == 1:
    fields = {**fields, 'cluster.workers_per_gpu': workers}
  words = ['tools.launch', f'--workers={workers}', f'--servers={servers}']
  words += [f'--{"" if dedicated else "no"}dedicated', '--restarts=0']
  words += [f'--workdir={folder}', '--module=bench.gpu.training', '--']
  words += [f'--report={folder}.reports', *training.flags(fields)]
  # Runs of one job compile the same programs.
  cache = {'JAX_COMPILATION_CACHE_DIR': str(context.folder / 'compiled')}
  run(words, folder.with_suffix('.log'), environ(**cache))
  return folder


def reports(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the reports of a run's processes."""
  paths = sorted(folder.with_name(f'{folder.name}.reports').glob('*.json'))
  return [json.loads(path.read_text()) for path in paths]


class Stepper:
  """Process of `bench.gpu.stepping`, which performs steps on request."""

  def __init__(
    self,
    context: Context,
    name: str,
    fields: Mapping[str, Any],
    env: Mapping[str, str],
  ):
    """Starts the process, which compiles before its first answer."""
    self._log = context.folder / f'{name}.log'
    words = ['bench.gpu.stepping', f'--workdir={context.folder / name}']
    self._process = start(
      [*words, *training.flags(fields)],
      self._log,
      env,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def ask(self, request: str, value: Any) -> float:
    """Returns the answer to a request, seconds.

    Raises:
      RuntimeError: If the process has ended; has the end of its log.
    """
    try:
      print(request, value, file=self._process.stdin, flush=True)
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ''
    if not answer:
      finish(self._process, self._log)
      raise RuntimeError(f'no answer to {request!r}: {tail(self._log)}')
    return json.loads(answer)

  def close(self) -> None:
    """Closes the streams of the process and waits for its end."""
    self._process.stdin.close()
    self._process.stdout.close()
    self._process.wait()
