"""Runs of tools.launch of limited length, and what they measured.

A run trains until it has lasted some seconds and every worker has some
iterations; the launcher then gets SIGTERM, as from a user.
"""

import copy
import dataclasses
import math
import pathlib
import shlex
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

import analysis
from configs.checks import require
from diagnosis.costs import Estimate
from launch import processes
from tuning import writing

LEAST = 20  # Iterations of each worker, if there is time for them.
LONGEST = 4  # Multiple of its seconds after which a run is ended anyway.
_START_S = 300.0  # Time until the first push.
_END_S = 60.0  # Time to end after SIGTERM.
_LEAST_MEASURED = 10  # Iterations of an interval.
_POLL_S = 0.25
_LINES = 5  # Last lines of a log that an error shows.


class RunError(Exception):
  """Raised if a run fails; the message has its last lines."""


class Launcher(NamedTuple):
  """Way to start runs.

  Attributes:
    workers: Number of workers.
    servers: Value of --servers of tools.launch, for routes with servers.
    dedicated: True if servers are processes of their own.
    command: Command that takes the flags of tools.launch, as a shell reads it;
      '' for tools.launch on this machine, or in this lab.
  """

  workers: int
  servers: int = 0
  dedicated: bool = False
  command: str = ''

  def words(
    self, config: ConfigDict, file: str, workdir: str = ''
  ) -> list[str]:
    """Returns the flags of tools.launch for a config.

    Args:
      config: Config, whose route decides whether there are servers.
      file: Path of the config's file.
      workdir: Folder of the run; '' to leave it open.
    """
    words = [f'--workers={self.workers}']
    if config.route.name == 'server':
      words.append(f'--servers={self.servers}')
      words += ['--dedicated'] if self.dedicated else []
    words += [f'--workdir={workdir}'] if workdir else []
    return [*words, '--', f'--config={file}']


class LossPoint(NamedTuple):
  """Mean training loss of some iterations.

  Attributes:
    time_s: Their end, seconds of the run.
    loss: Mean loss of an example.
  """

  time_s: float
  loss: float


class Measurement(NamedTuple):
  """Measured pace and losses of a run.

  Attributes:
    folder: Folder of the run.
    iteration_s: Seconds in which all workers together compute as many examples
      as in an iteration of BSP with equal batches, with the 95 % interval.
    iterations: Number of these iterations that were measured.
    losses: Training losses.
  """

  folder: str
  iteration_s: Estimate
  iterations: int
  losses: Sequence[LossPoint] = ()


def run(
  launcher: Launcher, config: ConfigDict, folder: pathlib.Path, seconds: float
) -> Measurement:
  """Runs a config for some seconds, and returns what was measured.

  Args:
    folder: New folder, for the run and its files.
    seconds: Length of the run from its first push on.

  Raises:
    RunError: If the run fails.
    ValueError: If the run is too short.
    OSError: If a file cannot be written or read.
  """
  folder.mkdir(parents=True)
  file, workdir = folder / 'config.py', folder / 'run'
  measured = _prepare(config, launcher.workers)
  writing.write_config(file, measured, 'A run that tools.tune measures.')
  words = launcher.words(measured, str(file), str(workdir))
  command = processes.module_command('launcher', 'tools.launch', *words)
  if launcher.command:
    argv = [*shlex.split(launcher.command), *words]
    command = dataclasses.replace(command, argv=argv)
  with processes.start([command], folder, grace_s=_END_S) as group:
    _wait(group, workdir, launcher.workers, seconds)
    code = group.end()['launcher']
  if records_missing(workdir, code):
    log, last = group.log_path('launcher'), group.tail('launcher', _LINES)
    raise RunError(f'exit code {code}; {log} ends:\n{last}')
  return measure(workdir, launcher.workers * config.batching.worker_batch)


def records_missing(workdir: pathlib.Path, code: int) -> bool:
  """Returns whether a run has failed, by its exit code or lack of summary."""
  ended_well = code in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
  return not (ended_well and (workdir / 'summary.json').exists())


def measure(path: pathlib.Path, batch: int) -> Measurement:
  """Returns the pace and the losses of a run.

  Args:
    path: Folder of the run.
    batch: Examples of an iteration of all workers.

  Raises:
    ValueError: If there are too few iterations; names the folder.
    OSError: If a file cannot be read.
  """
  run = analysis.read(path)
  losses = [
    LossPoint(row['time'], row['loss'])
    for row in run.rows
    if row['kind'] == 'log' and row.get('loss') is not None
  ]
  pace = analysis.pace(run, examples=batch)
  expected = f'at least {_LEAST_MEASURED} to measure'
  is_long = pace.iterations >= _LEAST_MEASURED
  require(is_long, f'{path}: iterations', expected, pace.iterations)
  return Measurement(str(path), pace.mean_s, pace.iterations, losses)


def _prepare(config: ConfigDict, workers: int) -> ConfigDict:
  """Returns a config with the outputs that are needed, and no others."""
  config = copy.deepcopy(config)
  config.eval_every = config.epochs
  config.log_every = workers
  config.checkpoint.every_s, config.checkpoint.every_examples = math.inf, 0
  config.outputs.events = config.outputs.timeline = True
  config.outputs.board = False
  return config


def _wait(
  group: processes.Group,
  workdir: pathlib.Path,
  workers: int,
  seconds: float,
) -> None:
  """Waits until a run has ended, or is long enough to be ended."""
  begin, first = time.monotonic(), math.inf
  while not group.next_ends(_POLL_S):
    now = time.monotonic()
    if first == math.inf:
      if now - begin > _START_S:
        raise RunError(f'no push within {_START_S:g} s of the start')
      first = now if _least_pushes(workdir, workers) else math.inf
    elif now - first > seconds:
      enough = _least_pushes(workdir, workers) >= LEAST
      if enough or now - first > LONGEST * seconds:
        return


def _least_pushes(workdir: pathlib.Path, workers: int) -> int:
  """Returns the pushes so far of the worker that has the fewest."""
  if not (workdir / 'events.jsonl').exists():
    return 0
  events = analysis.read(workdir).events
  pushed = events['worker'][events['event'] == 'push']
  return int(np.bincount(pushed, minlength=workers).min())
