"""Runs a sweep, from its flags to its results."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from configs.checks import require
from outputs import atomic
from sweeps import child, grid, plan, pool, submit
from sweeps.display import Display
from sweeps.folder import Folder
from sweeps.plan import Run
from sweeps.results import Results

_FAILED = 1  # Exit code if any run did not finish.


class Wanted(NamedTuple):
  """Flags of a sweep, other than those of the config.

  Attributes:
    grid: Fields and values; None for those of the config's file.
    out: Folder of the sweep.
    jobs: Number of concurrent runs; 0 for as many as fit.
    dry: True to print the runs and run nothing.
    listed: File to which the commands of the runs that are left are written,
      to run nothing; or None.
    submit: Executor of submitit, 'slurm' or 'local'; None to run here.
    submit_with: Parameters of submitit, NAME=VALUE.
  """

  grid: str | None
  out: str
  jobs: int
  dry: bool
  listed: str | None
  submit: str | None
  submit_with: Sequence[str]


def sweep(values: flags.FlagValues, wanted: Wanted) -> int:
  """Runs a sweep; returns the exit code.

  Args:
    values: Flags, of which those of the config are read.
    wanted: The other flags.

  Raises:
    ValueError: If anything is wrong, before anything runs.
    OSError: If a file cannot be written.
  """
  base = plan.base(values)
  text = plan.grid_of(base.file) if wanted.grid is None else wanted.grid
  points = grid.points(text)
  learn = values.config.model.name != 'none' or 'model.name' in points[0]
  return swept(base, points, wanted, learn=learn)


def swept(
  base: plan.Base,
  points: Sequence[grid.Point],
  wanted: Wanted,
  *,
  learn: bool,
) -> int:
  """Runs the points of a grid; returns the exit code.

  Args:
    base: Config that the runs share.
    points: Fields and values of each run.
    wanted: Flags; `grid` is not read.
    learn: True if any run has a model.

  Raises:
    ValueError: If anything is wrong, before anything runs.
    OSError: If a file cannot be written.
  """
  parameters = submit.parameters(wanted.submit_with)
  if wanted.submit:
    submit.require_submitit()
  elif parameters:
    require(False, '--submit_with', 'nothing without --submit', parameters)
  folder = Folder(wanted.out)
  given = _divided(wanted, len(points), learn)
  runs = plan.planned(base, points, pool.checked)
  if wanted.dry:
    return _show(folder.check(runs), folder)
  runs = folder.claim(runs)
  results = Results(runs, folder)
  states = {run.name: folder.state(run) for run in runs}
  left = [run for run in runs if not states[run.name].over]
  if wanted.listed is not None:
    return _list(wanted.listed, left, folder, results)
  display = Display(runs, len(left), folder, results)
  display.failed += [
    (run, states[run.name])
    for run in runs
    if states[run.name].status == 'diverged'
  ]
  if len(left) < len(runs):
    display.say(f'{len(runs) - len(left)} of {len(runs)} runs are over already')
  try:
    code = _execute(wanted, left, folder, display, given, learn=learn)
  finally:
    results.write()
    display.close()
  print(f'Results are in {folder.file("results.csv")}')
  return code or (_FAILED if display.failed else 0)


def _divided(wanted: Wanted, runs: int, learn: bool) -> list[pool.Slot]:
  """Returns the slots of runs here, and sets the environment of processes.

  The slots do not depend on the number of runs that are left, because the last
  bits of results depend on the cores of a run.
  """
  if wanted.submit:  # Other hosts have other cores and GPUs.
    require(wanted.jobs >= 0, '--jobs', 'at least 0', wanted.jobs)
    return []
  jobs = pool.jobs_here(runs, wanted.jobs, learn=learn)
  given = pool.slots(jobs, learn=learn)
  own = dict(os.environ)  # The user's variables have precedence.
  path = {'PYTHONPATH': child.python_path()}
  os.environ.update(pool.environ(given, learn=learn) | own | path)
  return given


def _execute(
  wanted: Wanted,
  left: list[Run],
  folder: Folder,
  display: Display,
  given: Sequence[pool.Slot],
  *,
  learn: bool,
) -> int:
  """Runs the runs that are left; returns the exit code of a signal, or 0."""
  if not left:
    return 0
  if wanted.submit:
    submit.execute(
      left,
      folder,
      display,
      cluster=wanted.submit,
      jobs=wanted.jobs,
      learn=learn,
      given=submit.parameters(wanted.submit_with),
    )
    return 0
  display.say(f'{len(left)} runs, {pool.division(given)}')
  stop = pool.execute(left, folder, given, display)
  if stop:
    display.say('Stopped; the same command goes on.')
  return stop and 128 + stop


def _show(runs: list[Run], folder: Folder) -> int:
  """Prints the outcome so far and the command of each run."""
  for run in runs:
    print(
      f'{run.name}  {folder.state(run).status}\n  {run.command(folder.out)}'
    )
  print(f'{len(runs)} runs')
  return 0


def _list(path: str, left: list[Run], folder: Folder, results: Results) -> int:
  """Writes the commands of the runs that are left, and the results so far."""
  lines = [f'{run.command(folder.out)}\n' for run in left]
  atomic.write(path, ''.join(lines))
  results.write()
  print(f'{len(left)} commands are in {path}')
  return 0
