"""Processes of this machine, a bounded number at a time, each for one run.

They are forked from a process that has imported what runs need, and nothing
else: importing takes a second, as long as a small run, and forking 20 ms.  Each
run has a process of its own, so that one that crashes takes no other with it.
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
from configs.checks import require
from sweeps import child
from sweeps.folder import Folder, State
from sweeps.plan import Checked, Run

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHARED = (
  *('sweeps.server', 'sweeps.checking', 'cluster.virtual.site'),
  'tensorboardX',
)
_TOGETHER = 8  # Runs that are checked together.
_LOOK_S = 0.5  # Between two looks at time and signals.
_GRACE_S = 60.0  # To save a checkpoint.
_THREADS = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


class Slot(NamedTuple):
  """What a run may use.

  Attributes:
    cores: Numbers of cores.
    environ: Variables that say which GPU, and how much of its memory.
  """

  cores: tuple[int, ...]
  environ: Mapping[str, str]


class _Child(NamedTuple):
  run: Run
  slot: Slot
  process: ForkServerProcess
  log_size: int


class Follower(Protocol):
  """Is told what happens; see `sweeps.display`."""

  def started(self, run: Run) -> None:
    """A run has started."""

  def ended(self, run: Run, state: State) -> None:
    """A run has ended."""

  def look(self) -> None:
    """Time has passed."""

  def say(self, text: str) -> None:
    """Shows a line."""


def jobs_here(runs: int, jobs: int, *, learn: bool) -> int:
  """Returns how many runs go on at a time.

  Args:
    runs: How many there are.
    jobs: As asked for; 0: one on each GPU, or on each core without any.
    learn: Whether any has a model.
  """
  require(jobs >= 0, '--jobs', 'at least 0', jobs)
  each = len(_gpus(learn)) or len(os.sched_getaffinity(0))
  return max(min(runs, jobs or each), 1)


def slots(jobs: int, *, learn: bool) -> list[Slot]:
  """Returns how cores and GPUs are divided.

  Runs that share a GPU have equal parts of its memory, as many as there are on
  the GPU with the most, so that a run is the same on each of them.

  Args:
    jobs: How many runs go on at a time.
    learn: Whether any has a model; others leave GPUs alone.
  """
  cores, gpus = sorted(os.sched_getaffinity(0)), _gpus(learn)
  share = -(-jobs // max(len(gpus), 1))
  each = max(len(cores) // jobs, 1)
  found = []
  for number in range(jobs):
    first = number * each % len(cores)
    own: dict[str, str] = {}
    if gpus:
      own = devices.mask(os.environ, [gpus[number % len(gpus)]])
      own |= devices.memory(os.environ, share)
    found.append(Slot(tuple(cores[first : first + each]), own))
  return found


def division(given: Sequence[Slot]) -> str:
  """Returns how cores and GPUs are divided, in words.

  Args:
    given: What the runs may use.
  """
  cores = len(given[0].cores)
  text = f'{len(given)} at a time, {cores} core{"" if cores == 1 else "s"} each'
  on = Counter(slot.environ.get(devices.MASK) for slot in given)
  if None in on:
    return text
  text += f', on {len(on)} GPU{"" if len(on) == 1 else "s"}'
  most = max(on.values())
  fraction = given[0].environ.get(devices.FRACTION)
  share = f' with {float(fraction):.0%} of its memory each' if fraction else ''
  return f'{text}, {most} on each{share}' if most > 1 else text


def environ(given: Sequence[Slot], *, learn: bool) -> dict[str, str]:
  """Returns variables for all runs, which libraries read when they are loaded.

  Args:
    given: What the runs may use.
    learn: Whether any has a model; others leave GPUs alone.
  """
  found = dict.fromkeys(_THREADS, str(len(given[0].cores)))
  return found if learn else {**found, 'JAX_PLATFORMS': 'cpu'}


def checked(lines: Sequence[tuple[str, ...]]) -> list[Checked]:
  """Returns what is known of runs that flags describe.

  Args:
    lines: The flags of each.

  Raises:
    ValueError: If one is refused.
  """
  jobs = min(len(os.sched_getaffinity(0)), -(-len(lines) // _TOGETHER))
  with ProcessPoolExecutor(
    jobs, mp_context=_server(), initializer=_begin_checking
  ) as pool:
    return list(pool.map(_checked, lines, chunksize=_TOGETHER))


def execute(
  runs: Sequence[Run],
  folder: Folder,
  given: Sequence[Slot],
  follower: Follower,
) -> int:
  """Runs what is not over; returns the signal that has stopped it, or 0.

  After a signal runs save checkpoints and end; a second one kills them.

  Args:
    runs: In their order.
    folder: Of the sweep.
    given: What the runs that go on at a time may use.
    follower: Is told what happens.
  """
  waiting, free = deque(runs), list(given)
  children: dict[Any, _Child] = {}
  asked, limit_s = 0, float('inf')
  with _stops() as stops, _killed(children):
    while children or (waiting and not stops):
      while waiting and free and not stops:
        new = _started(waiting.popleft(), folder, free.pop(0))
        children[new.process.sentinel] = new
        follower.started(new.run)
      for sentinel in multiprocessing.connection.wait([*children], _LOOK_S):
        old = children.pop(sentinel)
        free.append(old.slot)
        follower.ended(old.run, _state(old, folder, stopped=bool(stops)))
      if len(stops) > asked:
        follower.say(f'{signal.Signals(stops[-1]).name}: the runs end')
        asked, limit_s = len(stops), time.monotonic() + _GRACE_S
        for each in children.values():
          each.process.terminate()
      if asked > 1 or time.monotonic() > limit_s:
        break
      follower.look()
  return stops[0] if stops else 0


def _state(old: _Child, folder: Folder, *, stopped: bool) -> State:
  """Returns what the run of a child that has ended has come to."""
  old.process.join()
  if stopped:
    return folder.state(old.run)
  return folder.ended(old.run, old.process.exitcode or 0, old.log_size)


@contextmanager
def _killed(children: Mapping[Any, _Child]) -> Iterator[None]:
  """Lets none of the children live on after what is done within."""
  try:
    yield
  finally:
    for each in children.values():
      each.process.kill()
    for each in children.values():
      each.process.join()


def _started(run: Run, folder: Folder, slot: Slot) -> _Child:
  path = str(folder.file(run.name))
  process = _server().Process(
    target=child.run,
    args=(run.arguments(folder.out), path, slot.cores, slot.environ),
  )
  size = folder.log_size(run)
  process.start()
  return _Child(run, slot, process, size)


def _server() -> multiprocessing.context.ForkServerContext:
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(list(_SHARED))
  # By this thread, which lives as long as the sweep.
  multiprocessing.forkserver.ensure_running()
  return context


def _begin_checking() -> None:
  child.bound()
  from learning import placement

  placement.use_cpu_only()


def _checked(line: tuple[str, ...]) -> Checked:
  from sweeps import checking

  return checking.checked(line)


@contextmanager
def _stops() -> Iterator[list[int]]:
  """Yields a list that gets the signals which ask to stop."""
  stops: list[int] = []
  before = {
    number: signal.signal(number, lambda number, _: stops.append(number))
    for number in _STOPS
    if signal.getsignal(number) not in (None, signal.SIG_IGN)
  }
  try:
    yield stops
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _gpus(learn: bool) -> list[str]:
  return devices.gpus(os.environ) if learn else []
