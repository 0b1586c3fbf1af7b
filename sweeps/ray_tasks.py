"""Runs of a sweep as tasks in a Ray cluster."""

import os
import pathlib
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.process import devices, ray_cluster
from cluster.process.stops import catch_stop_signals
from configs.checks import require
from launch import processes
from sweeps import child
from sweeps.folder import SweepFolder
from sweeps.plan import PlannedRun
from sweeps.pool import GRACE_S, Observer

_FLAG = '--submit=ray'
_POLL_S = 0.5
_WAIT_S = 300.0  # Time for nodes of the wanted size to join the cluster.
_RESOURCES = {'num_cpus': 'CPU', 'num_gpus': 'GPU'}  # Ray's own names.
# Options of tasks that the user may set.  A task that was lost with its node is
# run again, at most `max_retries` times, and resumes its run.
_OPTIONS = (*_RESOURCES, 'memory', 'max_retries', 'accelerator_type')


def check(options: Mapping[str, Any]) -> None:
  """Raises ValueError unless Ray is installed and has the options of tasks."""
  ray_cluster.require_ray(_FLAG)
  for name, value in options.items():
    require(name in _OPTIONS, '--submit_with', f'some of {_OPTIONS}', name)
    if name != 'accelerator_type':
      is_number = isinstance(value, int | float)
      require(is_number, f'--submit_with={name}', 'a number', value)


def execute(
  runs: Sequence[PlannedRun],
  folder: SweepFolder,
  observer: Observer,
  *,
  jobs: int,
  uses_model: bool,
  options: Mapping[str, Any],
) -> int:
  """Trains runs in the cluster, and returns the signal that stopped them, or 0.

  The tasks end with this process.  After a signal the runs save checkpoints and
  end; a second signal kills them.

  Args:
    runs: Runs without a final outcome, in their order.
    folder: Folder of the sweep, on a file system that all nodes share.
    jobs: Largest number of runs at a time; 0 for as many as the cluster has
      room for.
    uses_model: True if any run has a model; without one GPUs are not used.
    options: Ray's options of each task by name, as `check` allows them
      (--submit_with).  Without them a task has 1 CPU and no GPU.

  Raises:
    ValueError: If there is no cluster, or if a node does not see the folder.
      Also if no node has the resources of a run, at the earliest 300 s after
      the start: nodes may join until then.
  """
  ray = ray_cluster.connect(_FLAG)
  options = {'num_cpus': 1, 'num_gpus': 0} | dict(options)
  bundle = {own: float(options[name]) for name, own in _RESOURCES.items()}
  shared = ray_cluster.SharedFolder(folder.file())
  task = ray.remote(_train).options(**options)
  waiting, tasks = deque(runs), dict[Any, tuple[PlannedRun, int]]()
  began, has_warned = time.monotonic(), False
  handled, limit_s = 0, float('inf')
  try:
    with shared, catch_stop_signals(only_first=False) as signals:
      while tasks or (waiting and not signals):
        while waiting and not signals and (not jobs or len(tasks) < jobs):
          run = waiting.popleft()
          ref = task.remote(
            run.arguments(folder.out),
            str(folder.file(run.name)),
            os.getcwd(),
            _variables(options, uses_model=uses_model),
            shared.text,
          )
          tasks[ref] = run, folder.log_size(run.name)
          observer.run_started(run)
        ended, _ = ray.wait([*tasks], timeout=_POLL_S)
        for ref in ended:
          run, size = tasks.pop(ref)
          code = _code(ray, ref)
          if signals:
            outcome = folder.outcome(run.name)
          else:
            outcome = folder.outcome_of_process(run.name, code, size)
          observer.run_ended(run, outcome)
        if len(signals) > handled:
          name = signal.Signals(signals[-1]).name
          observer.print_line(f'{name}: the runs end')
          handled, limit_s = len(signals), time.monotonic() + GRACE_S
          for ref in tasks:
            ray.cancel(ref)
        if handled > 1 or time.monotonic() > limit_s:
          break
        observer.refresh()
        if lacks := ray_cluster.describe_shortage(ray.nodes(), [bundle]):
          if not has_warned:
            observer.print_line(f'The runs wait for resources of Ray: {lacks}')
          has_warned = True
          in_time = time.monotonic() < began + _WAIT_S
          expected = 'a cluster with a node for a run (--submit_with)'
          require(in_time, _FLAG, expected, lacks)
      return signals[0] if signals else 0
  finally:
    ray.shutdown()  # Kills the tasks that are left.


def _variables(
  options: Mapping[str, Any], *, uses_model: bool
) -> dict[str, str]:
  """Returns variables that select a run's devices."""
  gpus = float(options['num_gpus'])
  if not (gpus and uses_model):
    return {'JAX_PLATFORMS': 'cpu'}
  return devices.memory(os.environ, round(1 / gpus)) if gpus < 1 else {}


def _code(ray: Any, ref: Any) -> int:
  """Returns the exit code of the process of a task that has ended."""
  try:
    return int(ray.get(ref))
  except ray.exceptions.TaskCancelledError:
    return -signal.SIGTERM
  except ray.exceptions.RayTaskError as error:
    raise error.cause from error
  except ray.exceptions.RayError:  # Lost with its node, after all retries.
    return -signal.SIGKILL


def _train(
  arguments: Sequence[str],
  path: str,
  cwd: str,
  environ: Mapping[str, str],
  text: str,
) -> int:
  """Trains a run in a child process on this node; returns its exit code."""
  import ray

  node = ray.util.get_node_ip_address()
  has_code = pathlib.Path(cwd).is_dir()
  expected = 'a repository in the same folder on all nodes'
  absent = f'{cwd}, which node {node} does not have'
  require(has_code, _FLAG, expected, absent)
  os.chdir(cwd)
  out = str(pathlib.Path(path).absolute().parent)
  ray_cluster.require_shared(out, text, flag='--out', node=node)
  process = subprocess.Popen(
    child.bound_command(child.__name__, *arguments),
    env={**os.environ, **environ, 'PYTHONPATH': processes.python_path()},
  )
  try:
    while True:
      # Python sees a cancellation between two waits only.
      try:
        return process.wait(_POLL_S)
      except subprocess.TimeoutExpired:
        continue
  except KeyboardInterrupt:
    process.terminate()  # It saves a checkpoint.
    return process.wait(GRACE_S)
