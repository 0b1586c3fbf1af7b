"""Runs of the product in a simulated world, with faults from a script.

Every process is what `train.build` makes.  A launcher starts it again half a
second after an end that a restart may mend.
"""

import contextlib
import dataclasses
import io
import os
import pathlib
import random
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import train
from configs import timing
from system.simulated.processes import Process
from system.simulated.world import World

PORT = 5000
LOST, DRAINED = os.EX_TEMPFAIL, 79  # Exit codes: see docs/clusters.md.
LIMIT_S = 200.0  # Of a run, in its own seconds.
TIMEOUT_S = 2.0
ITERATION_S = 0.05
_BACKOFF_S = 0.5


@dataclasses.dataclass(frozen=True)
class Setting:
  """A run to simulate: workers, iterations and config.

  Attributes:
    workers: Number of workers.
    iterations: Iterations of each worker.
    fields: Fields of the config by dotted name.
    restarts: Whether processes that a restart may mend are started again.
  """

  workers: int = 3
  iterations: int = 12
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  restarts: bool = True


class Fault(NamedTuple):
  """A fault of a script.

  Attributes:
    when: Seconds since the start.
    kind: 'kill', 'power_off', 'stop', 'drain', 'cut' or 'one_way'.
    rank: Worker that it hits.
    other: Worker at the other end of a cut.
    lasts_s: Seconds until it is over: of 'stop' and cuts.
  """

  when: float
  kind: str
  rank: int
  other: int = -1
  lasts_s: float = 0.0


class Outcome(NamedTuple):
  """The end of a simulated run, and its folder.

  Attributes:
    end: Reason for the end of the simulation.
    codes: Exit codes of the newest process of each rank.
    starts: Number of processes that were started.
    time_s: Seconds of the run.
    folder: Folder of the run.
    printed: What its processes have printed.
  """

  end: str
  codes: Mapping[str, int | None]
  starts: int
  time_s: float
  folder: pathlib.Path
  printed: str


@contextlib.contextmanager
def simulate(
  setting: Setting, faults: Sequence[Fault], seed: int
) -> Iterator[Outcome]:
  """Runs a setting under faults; yields what has become of it."""
  with tempfile.TemporaryDirectory() as folder:
    simulation = Simulation(setting, faults, seed, pathlib.Path(folder))
    try:
      yield simulation.run()
    finally:
      simulation.world.close()


class Simulation:
  """A run in a world of its own."""

  def __init__(
    self,
    setting: Setting,
    faults: Sequence[Fault],
    seed: int,
    folder: pathlib.Path,
  ):
    self.world = World(seed)
    self._setting, self._folder = setting, folder
    self._config = timing.config(
      timing.fields(
        workers=setting.workers,
        iterations=setting.iterations,
        size_bytes=400,
        batch=8,
        compute_s=ITERATION_S,
      ),
      timing.FEW_OUTPUTS,
      {
        'outputs.events': True,
        'cluster.runtime': 'distributed',
        'cluster.interface': 'eth0',
        'cluster.speed.injected': True,
        'cluster.timeout_s': TIMEOUT_S,
        'cluster.start_s': 10 * TIMEOUT_S,
      },
      setting.fields,
    )
    self._starts = 0
    self.world.on_end = self._restart
    for rank in range(setting.workers):
      self._start(rank)
    for fault in faults:
      self.world.at(fault.when, lambda fault=fault: self._inject(fault))

  def run(self) -> Outcome:
    """Runs until all processes have ended."""
    printed = io.StringIO()
    with (
      contextlib.redirect_stdout(printed),
      contextlib.redirect_stderr(printed),
    ):
      end = self.world.run(LIMIT_S)
    return Outcome(
      end,
      {name: each.code for name, each in self.world.processes.items()},
      self._starts,
      self.world.now,
      self._folder,
      printed.getvalue(),
    )

  def _start(self, rank: int, delay_s: float = 0.0) -> None:
    name = _name(rank)
    process = {'role': name, 'coordinator': f'{_host(0)}:{PORT}'}
    self._starts += 1
    self.world.start_later(
      delay_s,
      name,
      _host(rank),
      lambda: train.run_process(
        self._config, workdir=str(self._folder), process=process
      ),
    )

  def _restart(self, process: Process) -> None:
    """Starts a process again that was killed, or ended to be restarted."""
    is_mended = process.code in (LOST, -signal.SIGKILL)
    if self._setting.restarts and is_mended:
      self._start(int(process.name.partition(':')[2]), _BACKOFF_S)

  def _inject(self, fault: Fault) -> None:
    world, name = self.world, _name(fault.rank)
    after = world.now + fault.lasts_s
    match fault.kind:
      case 'kill':
        world.kill(name)
      case 'power_off':
        world.power_off(name)
      case 'drain':
        world.send(name, signal.SIGTERM)
      case 'stop':
        world.send(name, signal.SIGSTOP)
        world.at(after, lambda: world.send(name, signal.SIGCONT))
      case 'cut' | 'one_way':
        ends = [(name, _name(fault.other))]
        if fault.kind == 'cut':
          ends.append(ends[0][::-1])
        for pair in ends:
          world.cut(*pair)
          world.at(after, lambda pair=pair: world.heal(*pair))
      case _:
        raise ValueError(f'kind: expected one of a script, got {fault.kind!r}.')


def draw_faults(
  seed: int, workers: int, *, until_s: float, most: int = 3
) -> list[Fault]:
  """Returns a script of faults, a function of the seed."""
  rng = random.Random(seed)
  faults = []
  for _ in range(rng.randint(1, most)):
    kind = rng.choice(('kill', 'kill', 'power_off', 'stop', 'cut', 'one_way'))
    rank, other = rng.sample(range(workers), 2)
    lasts_s = rng.choice((0.1, 0.5, 1.5 * TIMEOUT_S, 4 * TIMEOUT_S))
    faults.append(
      Fault(round(rng.uniform(0.0, until_s), 3), kind, rank, other, lasts_s)
    )
  return sorted(faults)


def shrink(faults: Sequence[Fault], fails: Any) -> list[Fault]:
  """Returns a part of a script with which a run still fails."""
  left = [*faults]
  for fault in faults:
    rest = [each for each in left if each is not fault]
    if fails(rest):
      left = rest
  return left


def _name(rank: int) -> str:
  return f'worker:{rank}'


def _host(rank: int) -> str:
  return f'10.0.0.{rank + 1}'
