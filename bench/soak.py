"""Kills many processes of one run: python -m bench.soak, or `make soak`.

  python -m bench.soak [--kills=200] [--servers=0.1] [--mean_s=1.5] [--seed=0]
    [--out=DIR]

The run is ElasticBSP on this machine, with four workers and two dedicated
servers, one of which is the coordinator.  After its start a random live process
receives SIGKILL at random times, on average --mean_s apart, also during a
restart.  The process is a worker, or with probability --servers a server or the
coordinator, after which all processes resume from a checkpoint.  A process that
has died several times in a row soon after its start is not killed again until
it is older, because the launcher would end the run.  Pauses are longer while
all processes restart.

The benchmark prints the checks of the run; the exit code is 1 if one fails.
"""

import argparse
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

from bench import clusters
from bench.accounts import Check, accounts, check_parameters
from bench.run_processes import RunProcesses, listening_ports
from tools.reading import records

_WORKERS, _SERVERS = 4, 2
_PUSHES = 45  # Pushes per kill, so that the run outlasts the kills a little.
_EPOCH = 1437 / 16  # Pushes of an epoch of digits.
_FIELDS = {
  'model.name': 'mlp',
  'eval_every': 10.0,
  'log_every': 1000,
  'checkpoint.every_examples': 1000,
  'cluster.timeout_s': 10.0,
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': 0.05,
  'cluster.speed.per_example_s': 0.0,
}
_LIMIT_S = 6.0  # Seconds of the run per kill.
_STANDSTILL_S = 90.0  # Without a push for this long, the run hangs.
_RESTART_FACTOR = 4  # Pauses are this much longer while all restart.
_ACCURACY = 0.96
_MAX_GROWTH = 64.0, 16  # MiB and open files of a process after warm-up.
_POLL_S, _MEASURE_S = 0.05, 2.0


def main(argv: list[str] | None = None) -> None:
  """Executes the run and prints its checks."""
  parser = argparse.ArgumentParser(
    prog='bench.soak', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--kills', type=int, default=200)
  parser.add_argument('--servers', type=float, default=0.1)
  parser.add_argument('--mean_s', type=float, default=1.5)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--out', help='folder of the run; a new one by default')
  flags = parser.parse_args(argv)
  out = pathlib.Path(flags.out or tempfile.mkdtemp()).resolve()
  print(f'the run is in {out}', flush=True)
  start = time.monotonic()
  words = clusters.command(
    out / 'run',
    'configs/vgg16_elastic.py',
    _FIELDS | {'epochs': _PUSHES * flags.kills / _EPOCH},
    workers=_WORKERS,
    servers=_SERVERS,
    restarts=flags.kills,
  )
  run = clusters.start(words, out / 'run.log')
  processes = RunProcesses(out / 'run')
  try:
    kills = Killer(run, processes, flags).run()
    limit_s = max(start + _LIMIT_S * flags.kills - time.monotonic(), 60.0)
    clusters.finish(run, out / 'run.log', limit_s)
  finally:
    clusters.end(run)
  processes.update()
  kinds = ', '.join(f'{count} of {kind}' for kind, count in kills.items())
  print(
    f'{kills.total()} kills ({kinds}), {processes.deaths} deaths, '
    f'{processes.starts} '
    f'starts, {time.monotonic() - start:.0f} s'
  )
  checks = [
    Check(
      'all kills happened', kills.total() == flags.kills, f'{kills.total()}'
    ),
    *checks_of(out / 'run', processes),
    *check_parameters(out / 'run'),
  ]
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
  sys.exit(0 if all(check.holds for check in checks) else 1)


def checks_of(
  path: pathlib.Path, processes: RunProcesses, *, least: float = _ACCURACY
) -> Iterator[Check]:
  """Yields the checks of a run with kills.

  Args:
    path: Folder of the run.
    processes: Processes of the run.
    least: Smallest acceptable final accuracy.
  """
  accuracy = records.read_summary(path)['final_accuracy']
  name = f'accuracy of at least {least:.0%}'
  yield Check(name, accuracy >= least, f'{accuracy:.2%}')
  yield from accounts(path)
  events = Counter(event['event'] for event in records.read_events(path))
  yield Check(
    'workers have rejoined',
    events['join'] > 0,
    f'{events["leave"]} departures, {events["join"]} rejoins, '
    f'{events["start"]} restarts of all',
  )
  ports = sorted(processes.ports & listening_ports())
  yield Check(
    'no port is left',
    not ports,
    f'{ports} of {len(processes.ports)} have a listening socket',
  )
  growth = {
    role: f'{memory:.0f} MiB and {files} files'
    for role, (memory, files) in sorted(processes.growth.items())
  }
  yield Check(
    'no process grows',
    all(
      memory <= _MAX_GROWTH[0] and n <= _MAX_GROWTH[1]
      for memory, n in processes.growth.values()
    ),
    f'by at most {growth}',
  )


class Killer:
  """Killer of random processes of a run, at random times."""

  def __init__(
    self,
    run: subprocess.Popen,
    processes: RunProcesses,
    flags: argparse.Namespace,
  ):
    """Initializes the object without kills.

    Args:
      run: Process of the launcher.
      processes: Processes that the launcher has started.
      flags: Parsed flags of the command line.
    """
    self._run, self._processes, self._flags = run, processes, flags
    self._rng = random.Random(flags.seed)
    self._kills: Counter[str] = Counter()

  def run(self) -> Counter[str]:
    """Kills processes until all kills are done or the run has ended.

    Returns:
      The number of kills by kind: coordinator, server, worker.

    Raises:
      RuntimeError: If the run hangs.
    """
    flags, processes = self._flags, self._processes
    start = pushed_at = measured_at = time.monotonic()
    due, pushes, restart = math.inf, 0, -1
    while self._kills.total() < flags.kills and self._run.poll() is None:
      time.sleep(_POLL_S)
      processes.update()
      now = time.monotonic()
      if now - measured_at > _MEASURE_S:
        measured_at = now
        processes.measure()
      if processes.pushes > pushes:
        pushed_at, pushes = now, processes.pushes
      if now - pushed_at > _STANDSTILL_S:
        raise RuntimeError(f'No push for {now - pushed_at:.0f} s.')
      # Before the first push, the run waits for a worker that is missing.
      if pushes and due == math.inf:
        due = now + self._pause_s()
      if now < due:
        continue
      if role := self._kill():
        print(f'{now - start:6.1f} s: kill {self._kills.total()}, {role}')
        sys.stdout.flush()
        if role.startswith('server'):
          restart = pushes
        factor = _RESTART_FACTOR if pushes == restart else 1
        due = now + self._pause_s() * factor
    return self._kills

  def _kill(self) -> str:
    """Kills a process; returns its role, or '' if there is none to kill."""
    kinds = ['server', 'worker']
    if self._rng.random() >= self._flags.servers:
      kinds.reverse()
    for kind in kinds:
      if victims := self._processes.victims(kind):
        victim = self._rng.choice(victims)
        if self._processes.kill(victim):
          coordinator = 'coordinator' if victim == 'server:0' else kind
          self._kills[coordinator] += 1
          return victim
        return ''
    return ''

  def _pause_s(self) -> float:
    """Returns seconds to the next kill, fewer if the run would end before."""
    flags = self._flags
    run_left = max(1 - self._processes.pushes / (_PUSHES * flags.kills), 0.1)
    kills_left = 1 - self._kills.total() / flags.kills
    return (
      self._rng.expovariate(1 / (flags.mean_s * min(run_left / kills_left, 1)))
      if kills_left
      else 0.0
    )


if __name__ == '__main__':
  main()
