"""Runs of a sweep as jobs of SLURM, an array of them, through submitit."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from configs.checks import require
from sweeps import child, pool
from sweeps.folder import Folder
from sweeps.plan import Run
from sweeps.pool import Follower

_LOOK_S = {'local': 0.2, 'slurm': 10.0}


def parameters(words: Sequence[str]) -> dict[str, Any]:
  """Returns what submitit is to be told, of words such as timeout_min=60.

  Raises:
    ValueError: If a word is of another form.
  """
  found: dict[str, Any] = {}
  for word in words:
    name, equals, value = word.partition('=')
    require(bool(name and equals), '--submit_with', 'NAME=VALUE', word)
    found[name] = int(value) if value.isdecimal() else value
  return found


def require_submitit() -> Any:
  """Returns the module.

  Raises:
    ValueError: If it is not installed.
  """
  try:
    import submitit
  except ImportError as error:
    raise ValueError(
      '--submit: expected submitit to be installed: '
      f'{sys.executable} -m pip install submitit ({error}).'
    ) from error
  return submitit


def execute(
  runs: Sequence[Run],
  folder: Folder,
  follower: Follower,
  *,
  cluster: str,
  jobs: int,
  learn: bool,
  given: Mapping[str, Any],
) -> None:
  """Submits runs and waits until all of them have ended.

  If it is interrupted they go on.  Submitted again, a run waits for the one of
  before, which then is over.

  Args:
    runs: In their order.
    folder: Of the sweep, which all hosts have.
    follower: Is told what happens.
    cluster: 'slurm' or 'local'.
    jobs: Most that run at a time; 0 for what SLURM allows.
    learn: Whether any has a model; others leave GPUs alone.
    given: Parameters of submitit.
  """
  submitit = require_submitit()
  logs = folder.file('submitit').absolute()
  executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
  more = {'slurm_array_parallelism': jobs} if jobs else {}
  executor.update_parameters(name='sweep', **more, **given)
  began = {run.name: folder.log_size(run) for run in runs}
  task = submitit.helpers.CommandFunction
  with executor.batch():
    left = [
      (run, executor.submit(task([*command, *run.arguments(folder.out)])))
      for run, command in zip(
        runs, _commands(len(runs), cluster, learn=learn), strict=True
      )
    ]
  for run, _ in left:
    follower.started(run)
  while left:
    for run, job in [each for each in left if each[1].done()]:
      left.remove((run, job))
      code = 0 if job.exception() is None else 1
      follower.ended(run, folder.ended(run, code, began[run.name]))
    follower.look()
    time.sleep(_LOOK_S[cluster] if left else 0)


def _commands(count: int, cluster: str, *, learn: bool) -> list[list[str]]:
  """Returns the commands of jobs, without the flags of their runs.

  Jobs of this host all start at once, without a GPU unless they are given one;
  SLURM gives its own.
  """
  words = [f'PYTHONPATH={child.python_path()}']
  if not learn and 'JAX_PLATFORMS' not in os.environ:
    words.append('JAX_PLATFORMS=cpu')
  each: list[list[str]] = [[]] * count
  if cluster == 'local':
    given = pool.slots(count, learn=learn)
    each = [[f'{k}={v}' for k, v in slot.environ.items()] for slot in given]
  module = [sys.executable, '-m', child.__name__]
  return [['env', *words, *own, *module] for own in each]
