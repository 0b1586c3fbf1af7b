"""Driver of many runs: from a plan, through processes, to outcomes and results.

sweep.py, reproduce.py and tools.compare run their plans by `run_points`.  The
folder of the runs makes them resumable: the same call trains only runs that
have no final outcome there.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from configs.checks import require
from launch import processes
from outputs import atomic, compiled, tracking
from sweeps import grid, plan, pool, ray_tasks, submit
from sweeps.display import Display
from sweeps.folder import SweepFolder
from sweeps.plan import PlannedRun, SharedConfig
from sweeps.results import ResultsTable

_FAILED = 1  # Exit code if any run did not finish.


class Options(NamedTuple):
  """Options of a sweep, as the flags of sweep.py set them.

  Attributes:
    out: Folder of the sweep.
    jobs: Number of runs at a time; 0 for as many as fit.
    is_dry: True to print the runs and train none.
    command_list: File to which the commands of the unfinished runs are written
      instead of training; None to train.
    submit: 'ray', or executor of submitit, 'slurm' or 'local'; None to train
      here.
    submit_with: Parameters of submitit, or options of Ray's tasks, NAME=VALUE.
  """

  out: str
  jobs: int = 0
  is_dry: bool = False
  command_list: str | None = None
  submit: str | None = None
  submit_with: Sequence[str] = ()


def run_sweep(
  values: flags.FlagValues, grid_text: str | None, options: Options
) -> int:
  """Runs a sweep; returns the exit code.

  Args:
    values: Parsed flags, of which those of the config are read.
    grid_text: Fields and values; None for GRID of the config file.

  Raises:
    ValueError: If anything is wrong, before anything runs.
    OSError: If a file cannot be written.
  """
  shared = plan.shared_config(values)
  text = plan.read_grid(shared.file) if grid_text is None else grid_text
  points = grid.points(text)
  has_model = values.config.model.name != 'none'
  uses_model = has_model or 'model.name' in points[0]
  return run_points(shared, points, options, uses_model=uses_model)


def run_points(
  shared: SharedConfig,
  points: Sequence[grid.Point],
  options: Options,
  *,
  uses_model: bool,
  names: Sequence[str] | None = None,
  programs: pathlib.Path | None = None,
) -> int:
  """Trains the runs of a plan; returns the exit code.

  Args:
    points: Fields and values of each run.
    uses_model: True if any run has a model; without one GPUs are not used.
    names: Names of the runs' folders, if a later plan for the same folder may
      lack some of them; None for names of values and identity.
    programs: Folder in which the runs share all compiled programs; None to
      share only those that take long to compile, on GPUs.

  Returns:
    0 if all runs have finished, 1 if one has failed or diverged, and
    128 + the number of the signal that stopped them.

  Raises:
    ValueError: If anything is wrong, before anything runs.
    OSError: If a file cannot be written.
  """
  parameters = submit.parse_parameters(options.submit_with)
  if options.submit == 'ray':
    ray_tasks.check(parameters)
  elif options.submit:
    submit.require_submitit()
  elif parameters:
    require(False, '--submit_with', 'nothing without --submit', parameters)
  folder = SweepFolder(options.out, may_omit_runs=names is not None)
  if programs is not None:
    os.environ.update(compiled.variables(os.environ, programs))
  slots = _divide_machine(options, len(points), uses_model)
  runs = plan.plan_runs(shared, points, pool.resolve_all, names)
  uri = runs[0].resolved.fields[plan.MLFLOW]
  tracking.check(uri)
  if options.is_dry:
    return _print_runs(folder.check(runs), folder)
  runs = folder.claim(runs)
  results = ResultsTable(runs, folder)
  outcomes = {run.name: folder.outcome(run.name) for run in runs}
  left = [run for run in runs if not outcomes[run.name].is_final]
  if options.command_list is not None:
    return _write_commands(options.command_list, left, folder, results)
  display = Display(runs, len(left), folder, results)
  display.failed += [
    (run, outcomes[run.name])
    for run in runs
    if outcomes[run.name].status == 'diverged'
  ]
  if len(left) < len(runs):
    over = len(runs) - len(left)
    display.print_line(f'{over} of {len(runs)} runs are over already')
  tracker = tracking.Tracker(folder.file(), uri, {}) if uri else None
  if tracker is not None:
    tracker.await_start()  # Its runs name it.
  status = 'FAILED'
  try:
    code = _execute(
      options, left, folder, display, slots, uses_model=uses_model
    )
    status = 'KILLED' if code else 'FINISHED'
  except KeyboardInterrupt:
    status = 'KILLED'
    raise
  finally:
    results.write()
    display.close()
    if tracker is not None:
      tracker.close('FAILED' if display.failed else status)
  print(f'Results are in {folder.file("results.csv")}')
  return code or (_FAILED if display.failed else 0)


def _divide_machine(
  options: Options, runs: int, uses_model: bool
) -> list[pool.Slot]:
  """Returns the slots of runs here, and sets the environment of processes."""
  # The slots do not depend on the number of runs that are left, because the
  # last bits of results depend on the cores of a run.
  if options.submit:  # Other hosts have other cores and GPUs.
    require(options.jobs >= 0, '--jobs', 'at least 0', options.jobs)
    return []
  jobs = pool.count_jobs(runs, options.jobs, uses_model=uses_model)
  slots = pool.divide_machine(jobs, uses_model=uses_model)
  of_user = dict(os.environ)  # Has precedence.
  path = {'PYTHONPATH': processes.python_path()}
  shared = pool.shared_environment(slots, uses_model=uses_model)
  os.environ.update(shared | of_user | path)
  return slots


def _execute(
  options: Options,
  left: list[PlannedRun],
  folder: SweepFolder,
  display: Display,
  slots: Sequence[pool.Slot],
  *,
  uses_model: bool,
) -> int:
  """Trains the runs that are left; returns the exit code of a signal, or 0."""
  if not left:
    return 0
  if options.submit == 'ray':
    stop = ray_tasks.execute(
      left,
      folder,
      display,
      jobs=options.jobs,
      uses_model=uses_model,
      options=submit.parse_parameters(options.submit_with),
    )
    return _stop_code(stop, display)
  if options.submit:
    submit.execute(
      left,
      folder,
      display,
      cluster=options.submit,
      jobs=options.jobs,
      uses_model=uses_model,
      parameters=submit.parse_parameters(options.submit_with),
    )
    return 0
  display.print_line(f'{len(left)} runs, {pool.describe_slots(slots)}')
  return _stop_code(pool.execute(left, folder, slots, display), display)


def _stop_code(stop: int, display: Display) -> int:
  """Returns the exit code of a signal; 0 for none, which stopped no run."""
  if stop:
    display.print_line('Stopped; the same command continues the sweep.')
  return stop and 128 + stop


def _print_runs(runs: list[PlannedRun], folder: SweepFolder) -> int:
  """Prints the outcome so far and the command of each run."""
  for run in runs:
    status = folder.outcome(run.name).status
    print(f'{run.name}  {status}\n  {run.command(folder.out)}')
  print(f'{len(runs)} runs')
  return 0


def _write_commands(
  path: str, left: list[PlannedRun], folder: SweepFolder, results: ResultsTable
) -> int:
  """Writes the commands of the runs that are left, and the results so far."""
  lines = [f'{run.command(folder.out)}\n' for run in left]
  atomic.write(path, ''.join(lines))
  results.write()
  print(f'{len(left)} commands are in {path}')
  return 0
