"""Runs of a sweep as an array of SLURM jobs, through submitit."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from configs.checks import require
from launch import processes
from sweeps import child, pool
from sweeps.folder import SweepFolder
from sweeps.plan import PlannedRun
from sweeps.pool import Observer

_POLL_S = {'local': 0.2, 'slurm': 10.0}


def parse_parameters(words: Sequence[str]) -> dict[str, Any]:
  """Returns parameters of submitit, or options of Ray's tasks, by name.

  Args:
    words: Parameters as text such as 'timeout_min=60' or 'num_gpus=0.5'.

  Raises:
    ValueError: If a word has another form.
  """
  found: dict[str, Any] = {}
  for word in words:
    name, equals, value = word.partition('=')
    require(bool(name and equals), '--submit_with', 'NAME=VALUE', word)
    found[name] = _parse_value(value)
  return found


def _parse_value(text: str) -> int | float | str:
  if text.isdecimal():
    return int(text)
  whole, point, part = text.partition('.')
  is_float = bool(point) and whole.isdecimal() and part.isdecimal()
  return float(text) if is_float else text


def require_submitit() -> Any:
  """Returns the module submitit; a ValueError says how to install it."""
  try:
    import submitit
  except ImportError as error:
    raise ValueError(
      '--submit: expected submitit to be installed: '
      f'{sys.executable} -m pip install submitit ({error}).'
    ) from error
  return submitit


def execute(
  runs: Sequence[PlannedRun],
  folder: SweepFolder,
  observer: Observer,
  *,
  cluster: str,
  jobs: int,
  uses_model: bool,
  parameters: Mapping[str, Any],
) -> None:
  """Submits runs and waits until all of them have ended.

  An interrupt leaves the jobs running.  If a run is then submitted again, the
  new job waits until the earlier one has ended, and finds the run finished.

  Args:
    runs: Runs without a final outcome, in their order.
    folder: Folder of the sweep, on a file system that all hosts share.
    observer: Observer of the progress.
    cluster: 'slurm' or 'local'.
    jobs: Largest number of jobs at a time; 0 for no limit but SLURM's.
    uses_model: True if any run has a model; without one GPUs are not used.
    parameters: Parameters of submitit's executor by name (--submit_with).

  Raises:
    ValueError: If submitit is not installed.
  """
  submitit = require_submitit()
  logs = folder.file('submitit').absolute()
  executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
  more = {'slurm_array_parallelism': jobs} if jobs else {}
  executor.update_parameters(name='sweep', **more, **parameters)
  began = {run.name: folder.log_size(run.name) for run in runs}
  task = submitit.helpers.CommandFunction
  with executor.batch():
    left = [
      (run, executor.submit(task([*command, *run.arguments(folder.out)])))
      for run, command in zip(
        runs, _commands(len(runs), cluster, uses_model=uses_model), strict=True
      )
    ]
  for run, _ in left:
    observer.run_started(run)
  while left:
    for run, job in [each for each in left if each[1].done()]:
      left.remove((run, job))
      code = 0 if job.exception() is None else 1
      outcome = folder.outcome_of_process(run.name, code, began[run.name])
      observer.run_ended(run, outcome)
    observer.refresh()
    time.sleep(_POLL_S[cluster] if left else 0)


def _commands(count: int, cluster: str, *, uses_model: bool) -> list[list[str]]:
  """Returns the commands of jobs, without the flags of their runs."""
  # Local jobs all start at once, and get no GPU from submitit, so that they are
  # assigned here; SLURM assigns the GPUs of its jobs.
  words = [f'PYTHONPATH={processes.python_path()}']
  if not uses_model and 'JAX_PLATFORMS' not in os.environ:
    words.append('JAX_PLATFORMS=cpu')
  each: list[list[str]] = [[]] * count
  if cluster == 'local':
    slots = pool.divide_machine(count, uses_model=uses_model)
    each = [[f'{k}={v}' for k, v in slot.environ.items()] for slot in slots]
  module = [sys.executable, '-m', child.__name__]
  return [['env', *words, *own, *module] for own in each]
