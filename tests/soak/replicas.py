"""Runs many real replicas on this machine, and loses some of them.

Each replica is a process of `tools.launch` that moves real bytes, a gradient of
256 KiB, without a model.  After some iterations some replicas get SIGKILL at
once; their launcher starts them again, and the run takes them in.  Ten
iterations later SIGTERM ends the run.

Columns of the table: seconds from the start of the launcher to the first
iteration, the median time of an iteration before the losses, the longest time
between two iterations, seconds from the losses until all replicas take part
again, seconds in all, and CPU time of an iteration and memory (the share of
each process, PSS) of the coordinator and the median of the others.
"""

import itertools
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from analysis import printing, runs
from bench import clusters
from cluster.process.exits import STOPPED
from configs import timing
from launch.processes import Group
from tests.support.accounts import Check, accounts
from tests.support.run_processes import RunProcesses

_BATCH = 16
_ENDLESS = 1e6  # Epochs.
_MORE = 10  # Iterations after all replicas take part again.
_LIMIT_S, _POLL_S = 300.0, 0.2
_FIELDS = {
  'sync.name': 'bsp',
  'epochs': _ENDLESS,
  'eval_every': _ENDLESS,
  'log_every': 10**9,
  'cluster.timeout_s': 20.0,
  'outputs.timeline': False,
  'outputs.board': False,
}


class Row(NamedTuple):
  """Measurements of a run.

  Attributes:
    ready_s: Seconds until the first iteration has ended.
    iteration_s: Median time of an iteration before the losses, seconds.
    pause_s: Longest time between two iterations, seconds.
    rejoin_s: Seconds from the losses to the last return.
    whole_s: Seconds of the whole run.
    cpu_s: CPU time of an iteration before the losses, seconds: that of the
      coordinator, and the median of the others.
    memory_MiB: Memory of the coordinator, and the median of the others.
    checks: Checks of the accounts.
  """

  ready_s: float
  iteration_s: float
  pause_s: float
  rejoin_s: float
  whole_s: float
  cpu_s: tuple[float, float]
  memory_MiB: tuple[float, float]
  checks: list[Check]


def describe(name: str, row: Row) -> str:
  """Returns a table of a run's measurements."""
  head = ('route', 'ready, s', 'iteration, ms', 'longest pause, s')
  head += ('all back, s', 'whole, s')
  head += ('CPU, ms: coordinator, replica', 'MiB: coordinator, replica')
  cells = (
    name,
    f'{row.ready_s:.1f}',
    f'{1e3 * row.iteration_s:.0f}',
    f'{row.pause_s:.2f}',
    f'{row.rejoin_s:.1f}',
    f'{row.whole_s:.1f}',
    ', '.join(f'{1e3 * each:.1f}' for each in row.cpu_s),
    ', '.join(f'{each:.0f}' for each in row.memory_MiB),
  )
  return printing.markdown([head, cells])


def measure(
  folder: pathlib.Path,
  route: str,
  *,
  replicas: int,
  iterations: int,
  losses: int,
) -> Row:
  """Executes a run and returns its measurements.

  Args:
    folder: New folder of the run; its output goes to a file beside it.
    route: Name of an allreduce route among hosts.
    replicas: Number of replicas.
    iterations: Iterations before the losses.
    losses: Number of replicas that are killed; the first one is not among them.

  Raises:
    RuntimeError: If the run ends or stands still; has the end of its output.
  """
  start = time.monotonic()
  fields: dict[str, Any] = {
    **timing.fields(
      workers=replicas, iterations=10, size_bytes=1 << 18, batch=_BATCH
    ),
    **_FIELDS,
    'route.name': route,
  }
  words = clusters.command(
    folder,
    'configs/default.py',
    fields,
    workers=replicas,
    servers=0,
    dedicated=False,
  )
  processes = RunProcesses(folder)
  with clusters.start(words, folder) as run:
    _until(lambda: processes.pushes >= replicas, run, processes)
    ready_s = time.monotonic() - start
    began, cpu_s = processes.pushes, _of_each(processes, _cpu_s)
    target = began + replicas * iterations
    _until(lambda: processes.pushes >= target, run, processes)
    passed = (processes.pushes - began) / replicas
    for role, used_s in _of_each(processes, _cpu_s).items():
      cpu_s[role] = (used_s - cpu_s[role]) / passed
    memory_MiB = _of_each(processes, _memory_MiB)
    lost = [
      f'worker:{replicas * n // (losses + 1)}' for n in range(1, losses + 1)
    ]
    lost_at = time.monotonic()
    for role in lost:
      processes.kill(role)
    _until(lambda: _count(folder, 'join') >= losses, run, processes)
    rejoin_s = time.monotonic() - lost_at
    target = processes.pushes + replicas * _MORE
    _until(lambda: processes.pushes >= target, run, processes)
    code = run.end()[folder.name]
  whole_s = time.monotonic() - start
  processes.update()
  ends = sorted(
    {e['time'] for e in runs.read_events(folder) if e['event'] == 'push'}
  )
  gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
  return Row(
    ready_s,
    statistics.median(gaps[1:iterations]),
    max(gaps),
    rejoin_s,
    whole_s,
    _split(cpu_s, processes.coordinator),
    _split(memory_MiB, processes.coordinator),
    [
      *accounts(folder),
      Check(
        'the launcher ends as after SIGTERM',
        code == STOPPED,
        f'code {code}',
      ),
      Check(
        'the lost replicas alone have left and rejoined',
        _count(folder, 'leave') == _count(folder, 'join') == losses
        and processes.starts == replicas + losses,
        f'{_count(folder, "leave")} departures, {_count(folder, "join")} '
        f'returns, {processes.starts} starts, {len(ends)} iterations',
      ),
    ],
  )


def _until(
  condition: Callable[[], bool],
  run: Group,
  processes: RunProcesses,
) -> None:
  """Waits for a condition; raises RuntimeError if the run ends before."""
  deadline = time.monotonic() + _LIMIT_S
  while not condition():
    run.next_ends(_POLL_S)
    if not run.names() or time.monotonic() > deadline:
      tail = run.tail(processes.workdir.name)
      raise RuntimeError(f'The run does not continue:\n{tail}')
    processes.update()


def _count(folder: pathlib.Path, event: str) -> int:
  """Returns the number of events of a kind so far."""
  text = (folder / 'events.jsonl').read_text()
  return text.count(f'"event":"{event}"')


def _of_each(
  processes: RunProcesses, measure_one: Callable[[int], float]
) -> dict[str, float]:
  """Returns a measurement of each live process, by role."""
  return {role: measure_one(pid) for role, (pid, _) in processes.alive.items()}


def _split(values: dict[str, float], coordinator: str) -> tuple[float, float]:
  """Returns the coordinator's value, and the median of the others."""
  others = [value for role, value in values.items() if role != coordinator]
  return values[coordinator], statistics.median(others)


def _cpu_s(pid: int) -> float:
  """Returns the CPU time of a process, seconds."""
  text = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
  user, system = text.split()[11:13]
  return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def _memory_MiB(pid: int) -> float:
  """Returns the proportional share of memory of a process."""
  lines = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
  (share,) = [line for line in lines if line.startswith('Pss:')]
  return int(share.split()[1]) / 1024
