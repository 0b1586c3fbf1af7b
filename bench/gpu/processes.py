"""Starts the processes of a job, which end with it and write to its logs.

JAX allocates three quarters of a GPU's memory when it starts.  Processes that
share the GPU therefore receive shares of its memory: from this module for
virtual runs, and from config.cluster.workers_per_gpu for real runs.
"""

import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.gpu.running import Report
from cluster.process import devices
from launch.processes import Group, module_command

_TAIL = 4  # Lines of a log in an error.


class Context(NamedTuple):
  """Context of a job.

  Attributes:
    folder: New folder of the runs and logs of the job.
    group: Processes of the job, whose logs are in the folder.
    deadline: Time at which the job is killed, on the clock of time.monotonic.
    is_dry: True for the tiny sizes of a dry run.
    report: Receiver of the values of its rows.
  """

  folder: pathlib.Path
  group: Group
  deadline: float
  is_dry: bool
  report: Report

  @property
  def left_s(self) -> float:
    """Seconds until the job's deadline."""
    return max(self.deadline - time.monotonic(), 0.0)

  def finish(self, *names: str) -> None:
    """Waits until processes have ended, all with exit code 0.

    Args:
      *names: Processes; all by default.

    Raises:
      ProcessError: If one fails, or some run at the deadline.
    """
    self.group.finish(self.left_s, *names)

  def tail(self, name: str) -> str:
    """Returns the last lines of a log as one line."""
    lines = self.group.tail(name, _TAIL).splitlines()
    return ' | '.join(filter(None, map(str.strip, lines)))


def environ(sharing: int = 1, **variables: str) -> dict[str, str]:
  """Returns environment variables of a process, `variables` among them.

  Args:
    sharing: Number of processes that use the GPU at the same time.
  """
  return {**devices.memory(os.environ, sharing), **variables}


def run(
  context: Context, name: str, words: Sequence[str], env: Mapping[str, str]
) -> None:
  """Runs `python -m WORDS` to its end, with its output in NAME.log.

  Args:
    context: Files and processes of the job.
    name: Name of the process, and of its log.
    words: Module and its arguments.
    env: Environment variables that are added to those of this process.

  Raises:
    ProcessError: If it fails, or runs at the end of the job.
  """
  context.group.start(module_command(name, *words, env=env))
  context.finish(name)


def launch(
  context: Context,
  name: str,
  fields: Mapping[str, Any],
  *,
  workers: int,
) -> pathlib.Path:
  """Executes a run of real processes on this machine; returns its folder.

  Args:
    name: Name of the launcher, of its log and of the run's folder.
    fields: Fields of the config by dotted name.
    workers: Number of processes that train and share the GPU.

  Raises:
    ProcessError: If the run fails.
  """
  folder = context.folder / name
  words = ['tools.launch', f'--workers={workers}', '--restarts=0']
  if devices.gpus(os.environ):
    words.append(f'--workers_per_gpu={workers}')
  words += [f'--workdir={folder}', '--', '--config=configs/default.py']
  words += flags(fields)
  # Runs of one job compile the same programs.
  cache = {'JAX_COMPILATION_CACHE_DIR': str(context.folder / 'compiled')}
  run(context, name, words, environ(**cache))
  return folder


def flags(fields: Mapping[str, Any]) -> list[str]:
  """Returns the command-line flags that set fields of a config."""
  return [f'--config.{name}={value}' for name, value in fields.items()]


class Stepper:
  """Process of `bench.gpu.stepping`, which performs steps on request.

  It compiles before its first answer.
  """

  def __init__(
    self,
    context: Context,
    name: str,
    fields: Mapping[str, Any],
    env: Mapping[str, str],
  ):
    self._context, self._name = context, name
    words = ['bench.gpu.stepping', f'--workdir={context.folder / name}']
    words += flags(fields)
    context.group.start(module_command(name, *words, env=env, answers=True))

  def ask(self, request: str, value: Any) -> float:
    """Returns the answer to a request, seconds.

    Raises:
      ProcessError: If the process has ended, or does not answer in time.
    """
    self._context.group.send(self._name, f'{request} {value}')
    answer = self._context.group.receive(self._name, self._context.left_s)
    return float(json.loads(answer))

  def close(self) -> None:
    """Ends the process that performs the steps."""
    self._context.group.kill(self._name)
