"""Processes that a job starts: they end with it, and write to logs of its own.

Those that share the GPU have shares of its memory, of which JAX takes three
quarters when it starts: here for processes of one virtual run each, by
config.cluster.workers_per_gpu for real runs.
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
    folder: Folder of its runs and logs, a new one.
    deadline: When it is killed, on the clock of time.monotonic.
    is_dry: True for the tiny sizes of a dry run.
    report: Takes the values of its rows.
  """

  folder: pathlib.Path
  deadline: float
  is_dry: bool
  report: Report


def environ(sharing: int = 1, **own: str) -> dict[str, str]:
  """Returns the environment of a process.

  Args:
    sharing: Processes that use the GPU at the same time.
    **own: Further variables.
  """
  share = devices.memory(os.environ, sharing)
  path = {'PYTHONPATH': child.python_path()}
  return {**os.environ, **path, **share, **own}


def start(
  words: Sequence[str], log: pathlib.Path, env: Mapping[str, str], **own: Any
) -> subprocess.Popen:
  """Starts `python -m WORDS`, whose output goes to a log."""
  with log.open('ab') as file:
    given = {'stdin': subprocess.DEVNULL, 'stdout': file, **own}
    return subprocess.Popen(
      child.bound_command(*words), env=env, stderr=file, **given
    )


def finish(process: subprocess.Popen, log: pathlib.Path) -> None:
  """Waits for the end of a process; the job's limit bounds the wait.

  Raises:
    RuntimeError: If it fails; with the end of its log.
  """
  if code := process.wait():
    raise RuntimeError(f'exit code {code}: {tail(log)}')


def run(
  words: Sequence[str], log: pathlib.Path, env: Mapping[str, str]
) -> None:
  """Runs `python -m WORDS` to its end; errors are those of `finish`."""
  finish(start(words, log, env), log)


def tail(log: pathlib.Path) -> str:
  """Returns the last lines of a log as one."""
  lines = log.read_text(errors='replace').splitlines()
  return ' | '.join(filter(None, map(str.strip, lines[-_TAIL:])))


def launched(
  context: Context,
  name: str,
  fields: Mapping[str, Any],
  *,
  workers: int,
  servers: int = 0,
  dedicated: bool = False,
) -> pathlib.Path:
  """Runs real processes on this machine; returns the folder of the run.

  Their reports, as of `bench.gpu.training`, are in the folder NAME.reports.

  Args:
    context: Context of the job.
    name: Name of the run.
    fields: Fields of its config.
    workers: Processes that train, which share the GPU.
    servers: Shards of the parameters.
    dedicated: True if servers have processes of their own.

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
  # Runs of one job have the same programs.
  cache = {'JAX_COMPILATION_CACHE_DIR': str(context.folder / 'compiled')}
  run(words, folder.with_suffix('.log'), environ(**cache))
  return folder


def reports(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the reports of a run's processes."""
  paths = sorted(folder.with_name(f'{folder.name}.reports').glob('*.json'))
  return [json.loads(path.read_text()) for path in paths]


class Stepper:
  """A process of `bench.gpu.stepping`, which performs steps on request."""

  def __init__(
    self,
    context: Context,
    name: str,
    fields: Mapping[str, Any],
    env: Mapping[str, str],
  ):
    """Starts the process; the first answer comes once it has compiled."""
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

  def ask(self, order: str, value: Any) -> float:
    """Returns the answer to an order, seconds.

    Raises:
      RuntimeError: If the process has ended, with the end of its log.
    """
    try:
      print(order, value, file=self._process.stdin, flush=True)
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ''
    if not answer:
      finish(self._process, self._log)
      raise RuntimeError(f'no answer to {order!r}: {tail(self._log)}')
    return json.loads(answer)

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.stdout.close()
    self._process.wait()
