"""Pool of child processes on this machine, each of which trains one run.

They are forked from a server process that has imported the modules of a run and
done nothing else: imports take a second, as long as a small run, and a fork
20 ms.  Each run has its own process, so a crash ends no other run.
"""

import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple, Protocol

from cluster.process import devices
from cluster.process.stops import catch_stop_signals
from configs.checks import require
from sweeps import child
from sweeps.folder import SweepFolder
from sweeps.outcomes import Outcome
from sweeps.plan import PlannedRun, ResolvedConfig

_PRELOADED = (
  *('sweeps.server', 'sweeps.checking', 'cluster.virtual.site'),
  *('learning.tasks', 'orbax.checkpoint', 'tensorboardX'),
)
_BATCH = 8  # Configs that a process checks at once.
_POLL_S = 0.5  # Interval of looking at the time and at signals.
GRACE_S = 60.0  # Time to save a checkpoint.
_THREADS = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


class Slot(NamedTuple):
  """Part of this machine that one run at a time may use.

  Attributes:
    cores: Indices of CPU cores.
    environ: Environment variables that select a GPU and a part of its memory.
  """

  cores: tuple[int, ...]
  environ: Mapping[str, str]


class _Child(NamedTuple):
  run: PlannedRun
  slot: Slot
  process: ForkServerProcess
  log_size: int


class Observer(Protocol):
  """Observer of the progress of runs; see `sweeps.display`."""

  def run_started(self, run: PlannedRun) -> None:
    """Notes that a run has started."""

  def run_ended(self, run: PlannedRun, outcome: Outcome) -> None:
    """Notes that a run has ended."""

  def refresh(self) -> None:
    """Shows the time that has passed; called between events."""

  def print_line(self, text: str) -> None:
    """Prints a line."""


def count_jobs(runs: int, jobs: int, *, uses_model: bool) -> int:
  """Returns the number of runs that this machine trains at a time.

  Args:
    jobs: Number that the user wants; 0 for one on each GPU, or one on each core
      of a machine without GPUs.
  """
  require(jobs >= 0, '--jobs', 'at least 0', jobs)
  available = len(_gpus(uses_model)) or len(os.sched_getaffinity(0))
  return max(min(runs, jobs or available), 1)


def divide_machine(jobs: int, *, uses_model: bool) -> list[Slot]:
  """Returns the parts of this machine for runs at the same time.

  Runs that share a GPU get equal parts of its memory.  The largest number of
  runs on a GPU sets the part on all, so that a run is the same on each GPU.

  Args:
    uses_model: True if any run has a model; without one GPUs are not used.
  """
  cores, gpus = sorted(os.sched_getaffinity(0)), _gpus(uses_model)
  share = -(-jobs // max(len(gpus), 1))
  each = max(len(cores) // jobs, 1)
  slots = []
  for index in range(jobs):
    first = index * each % len(cores)
    environ: dict[str, str] = {}
    if gpus:
      environ = devices.mask(os.environ, [gpus[index % len(gpus)]])
      environ |= devices.memory(os.environ, share)
    slots.append(Slot(tuple(cores[first : first + each]), environ))
  return slots


def describe_slots(slots: Sequence[Slot]) -> str:
  """Returns the division of this machine in words."""
  cores = len(slots[0].cores)
  text = f'{len(slots)} at a time, {cores} core{"" if cores == 1 else "s"} each'
  runs = Counter(slot.environ.get(devices.MASK) for slot in slots)  # By GPU.
  if None in runs:
    return text
  text += f', on {len(runs)} GPU{"" if len(runs) == 1 else "s"}'
  most = max(runs.values())
  fraction = slots[0].environ.get(devices.FRACTION)
  share = f' with {float(fraction):.0%} of its memory each' if fraction else ''
  return f'{text}, {most} on each{share}' if most > 1 else text


def shared_environment(
  slots: Sequence[Slot], *, uses_model: bool
) -> dict[str, str]:
  """Returns environment variables that libraries of all runs read when loaded.

  Args:
    uses_model: True if any run has a model; without one GPUs are not used.
  """
  threads = dict.fromkeys(_THREADS, str(len(slots[0].cores)))
  return threads if uses_model else {**threads, 'JAX_PLATFORMS': 'cpu'}


def resolve_all(lines: Sequence[tuple[str, ...]]) -> list[ResolvedConfig]:
  """Returns the checked configs of runs, which processes check in parallel.

  Args:
    lines: Flags of main.py for each run.

  Raises:
    ValueError: If a config is refused.
  """
  jobs = min(len(os.sched_getaffinity(0)), -(-len(lines) // _BATCH))
  with ProcessPoolExecutor(
    jobs, mp_context=_server(), initializer=_begin_checking
  ) as pool:
    return list(pool.map(_resolve, lines, chunksize=_BATCH))


def execute(
  runs: Sequence[PlannedRun],
  folder: SweepFolder,
  slots: Sequence[Slot],
  observer: Observer,
) -> int:
  """Trains runs, and returns the signal that stopped them, or 0.

  After a signal the runs save checkpoints and end; a second one other than
  SIGHUP kills them.

  Args:
    runs: Runs without a final outcome, in their order.
    slots: Parts of the machine, one for each run at a time.
  """
  waiting, free = deque(runs), list(slots)
  children: dict[Any, _Child] = {}
  handled, limit_s = 0, float('inf')
  with (
    catch_stop_signals(only_first=False) as signals,
    _kill_at_exit(children),
  ):
    while children or (waiting and not signals):
      while waiting and free and not signals:
        new = _start(waiting.popleft(), folder, free.pop(0))
        children[new.process.sentinel] = new
        observer.run_started(new.run)
      for sentinel in multiprocessing.connection.wait([*children], _POLL_S):
        ended = children.pop(sentinel)
        free.append(ended.slot)
        outcome = _outcome(ended, folder, is_stopped=bool(signals))
        observer.run_ended(ended.run, outcome)
      if len(signals) > handled:
        name = signal.Signals(signals[-1]).name
        observer.print_line(f'{name}: the runs end')
        handled, limit_s = len(signals), time.monotonic() + GRACE_S
        for each in children.values():
          each.process.terminate()
      if handled > 1 or time.monotonic() > limit_s:
        break
      observer.refresh()
  return signals[0] if signals else 0


def _outcome(
  ended: _Child, folder: SweepFolder, *, is_stopped: bool
) -> Outcome:
  """Returns the outcome of a run whose process has ended."""
  ended.process.join()
  if is_stopped:
    return folder.outcome(ended.run.name)
  return folder.outcome_of_process(
    ended.run.name, ended.process.exitcode or 0, ended.log_size
  )


@contextmanager
def _kill_at_exit(children: Mapping[Any, _Child]) -> Iterator[None]:
  """Kills the children that are left at the end of the context."""
  try:
    yield
  finally:
    for each in children.values():
      each.process.kill()
    for each in children.values():
      each.process.join()


def _start(run: PlannedRun, folder: SweepFolder, slot: Slot) -> _Child:
  path = str(folder.file(run.name))
  process = _server().Process(
    target=child.run,
    args=(run.arguments(folder.out), path, slot.cores, slot.environ),
  )
  size = folder.log_size(run.name)
  process.start()
  return _Child(run, slot, process, size)


def _server() -> multiprocessing.context.ForkServerContext:
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(list(_PRELOADED))
  # The server ends with the thread that starts it: this one lasts.
  multiprocessing.forkserver.ensure_running()
  return context


def _begin_checking() -> None:
  child.bind_to_sweep()
  from learning import placement

  placement.use_cpu_only()


def _resolve(line: tuple[str, ...]) -> ResolvedConfig:
  from sweeps import checking

  return checking.resolve(line)


def _gpus(uses_model: bool) -> list[str]:
  return devices.gpus(os.environ) if uses_model else []
