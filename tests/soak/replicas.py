"""Runs many real replicas on this machine, and loses some of them.

  python -m tests.soak.replicas [--replicas=64] [--routes=ring,forest]
    [--iterations=50] [--losses=3] [--out=DIR]

Each replica is a process of `tools.launch` that moves real bytes, a gradient of
256 KiB, without a model.  After --iterations some replicas get SIGKILL at once;
their launcher starts them again, and the run takes them in.  Ten iterations
later SIGTERM ends the run.

Columns: seconds from the start of the launcher to the first iteration, the
median time of an iteration before the losses, the longest time between two
iterations, seconds from the losses until all replicas take part again, seconds
in all, and CPU time of an iteration and memory (the share of each process, PSS)
of the coordinator and the median of the others.  The exit code is 1 if a check
of the accounts fails.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from analysis import records
from bench import clusters
from cluster.process.exits import STOPPED
from configs import timing
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


def main(argv: list[str] | None = None) -> None:
  """Executes a run on each route, and prints the table and the checks."""
  parser = argparse.ArgumentParser(
    prog='tests.soak.replicas', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--replicas', type=int, default=64)
  parser.add_argument('--routes', default='ring,forest')
  parser.add_argument('--iterations', type=int, default=50)
  parser.add_argument('--losses', type=int, default=3)
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  flags = parser.parse_args(argv)
  out = pathlib.Path(flags.out or tempfile.mkdtemp()).resolve()
  print(f'the runs are in {out}', flush=True)
  rows = {
    route: measure(
      out / route,
      route,
      replicas=flags.replicas,
      iterations=flags.iterations,
      losses=flags.losses,
    )
    for route in flags.routes.split(',')
  }
  head = ('route', 'ready, s', 'iteration, ms', 'longest pause, s')
  head += ('all back, s', 'whole, s')
  head += ('CPU, ms: coordinator, replica', 'MiB: coordinator, replica')
  cells = [
    (
      route,
      f'{row.ready_s:.1f}',
      f'{1e3 * row.iteration_s:.0f}',
      f'{row.pause_s:.2f}',
      f'{row.rejoin_s:.1f}',
      f'{row.whole_s:.1f}',
      ', '.join(f'{1e3 * each:.1f}' for each in row.cpu_s),
      ', '.join(f'{each:.0f}' for each in row.memory_MiB),
    )
    for route, row in rows.items()
  ]
  print(clusters.table(head, *cells))
  checks = [(name, each) for name, row in rows.items() for each in row.checks]
  for name, check in checks:
    result = 'ok  ' if check.holds else 'FAIL'
    print(f'{result}  {name}: {check.name}: {check.detail}')
  sys.exit(0 if all(check.holds for _, check in checks) else 1)


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
  start, log = time.monotonic(), folder.with_name(f'{folder.name}.log')
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
  run = clusters.start(words, log)
  processes = RunProcesses(folder)
  try:
    _until(lambda: processes.pushes >= replicas, run, processes, log)
    ready_s = time.monotonic() - start
    began, cpu_s = processes.pushes, _of_each(processes, _cpu_s)
    target = began + replicas * iterations
    _until(lambda: processes.pushes >= target, run, processes, log)
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
    _until(lambda: _count(folder, 'join') >= losses, run, processes, log)
    rejoin_s = time.monotonic() - lost_at
    target = processes.pushes + replicas * _MORE
    _until(lambda: processes.pushes >= target, run, processes, log)
  finally:
    clusters.end(run)
  whole_s = time.monotonic() - start
  processes.update()
  ends = sorted(
    {e['time'] for e in records.read_events(folder) if e['event'] == 'push'}
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
        run.returncode == STOPPED,
        f'code {run.returncode}',
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
  run: subprocess.Popen,
  processes: RunProcesses,
  log: pathlib.Path,
) -> None:
  """Waits for a condition; raises RuntimeError if the run ends before."""
  deadline = time.monotonic() + _LIMIT_S
  while not condition():
    if run.poll() is not None or time.monotonic() > deadline:
      lines = log.read_text(errors='replace').splitlines()[-20:]
      raise RuntimeError('\n'.join(['The run does not continue:', *lines]))
    time.sleep(_POLL_S)
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


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  main()
