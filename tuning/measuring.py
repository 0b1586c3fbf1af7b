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

from analysis import iterations, records
from diagnosis import costs
from diagnosis.costs import Estimate
from launch import processes
from tuning import writing

LEAST = 20  # Iterations of each worker, if there is time for them.
LONGEST = 4  # Multiple of its seconds after which a run is ended anyway.
_START_S = 300.0  # Time until the first push.
_END_S = 60.0  # Time to end after SIGTERM.
_SETTLED = 0.2  # Share of a run that is omitted at its start.
_BLOCKS = 10  # Parts of a run of which an interval is made.
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
  """Returns whether a run that ended with an exit code lacks its records."""
  ended_well = code in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
  return not (ended_well and (workdir / 'summary.json').exists())


def measure(path: pathlib.Path, batch: int) -> Measurement:
  """Returns the pace and the losses of a run.

  Args:
    batch: Examples of an iteration of all workers.

  Raises:
    ValueError: If there are too few iterations; names the folder.
    OSError: If a file cannot be read.
  """
  pushes, _ = iterations.read_run(path)
  losses = [
    LossPoint(row['time'], row['loss'])
    for row in records.load(path).rows
    if row['kind'] == 'log' and row.get('loss') is not None
  ]
  try:
    pace, count = pace_of(pushes.times, pushes.examples, batch)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return Measurement(str(path), pace, count, losses)


def pace_of(
  times: np.ndarray, examples: np.ndarray, batch: int
) -> tuple[Estimate, int]:
  """Returns the seconds of an iteration, and the number of iterations.

  The first fifth of the pushes is omitted.  The others are divided into ten
  blocks of consecutive iterations, whose spread gives the interval: within a
  block iterations may depend on each other.

  Args:
    times: Float [pushes], ends of the workers' iterations, seconds, ascending.
    examples: Int [pushes], their examples.
    batch: Examples of an iteration of all workers.

  Raises:
    ValueError: If there are fewer iterations than blocks.
  """
  done = np.cumsum(examples)
  first = int(len(times) * _SETTLED)
  whole = int((done[-1] - done[first]) // batch) if len(times) else 0
  if whole < _BLOCKS:
    raise ValueError(
      f'iterations: expected at least {_BLOCKS} to measure, got {whole}.'
    )
  edges = done[first] + batch * np.linspace(0, whole, _BLOCKS + 1).round()
  # Workers push at the same moment at barriers: the last of them counts.
  at = times[np.searchsorted(done, edges)]
  counts = np.diff(edges) / batch
  each = np.diff(at) / counts
  value = float((at[-1] - at[0]) / whole)
  return costs.interval(each, value), whole


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
  counts = [0] * workers
  for row in records.read_all_events(workdir):
    if row['event'] == 'push':
      counts[row['worker']] += 1
  return min(counts)
