"""Kills many processes of one run: python -m tests.soak.soak, or `make soak`.

  python -m tests.soak.soak [--route=server] [--kills=200] [--servers=0.1]
    [--mean_s=1.5] [--seed=0] [--scheme=elastic] [--local_steps=1] [--ahead=2]
    [--slowdown='(1.0, 1.5, 2.0, 3.0)'] [--out=DIR]

With --route=server the run is ElasticBSP on this machine, with four workers and
two dedicated servers, one of which is the coordinator.  After its start a
random live process receives SIGKILL at random times, on average --mean_s apart,
also during a restart.  The process is a worker, or with probability --servers a
server or the coordinator, after which all continue from a mirror, that is taken
every second, or, if two were killed at once, resume from a checkpoint.  Pauses
are longer while all processes restart.

--scheme, --local_steps and --slowdown change the scheme of such a run, the
steps of an iteration, each as long as an iteration of one step, and the
workers' speeds.  --ahead is config.data.ahead.

With --route=server_in_workers each worker has a server, the default placement.
Any worker is killed, and all others continue from the mirror of its server, or,
if the process with the mirror was killed at the same time, start again from a
checkpoint.  Pauses are longer until the run has continued.

With --route=ring the run is BSP with four workers and no server, and any worker
is killed, the coordinator's process too.  Nobody else may restart.

A process that has died several times in a row soon after its start is not
killed again until it is older, because the launcher would end the run.  The
goodput is the rate at which examples are pushed, and not lost afterwards, from
the first kill to the last, over the rate in the 20 s before the first.

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
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from analysis import records
from bench import clusters
from tests.support.accounts import Check, accounts, check_parameters
from tests.support.run_processes import RunProcesses, listening_ports

_WORKERS = 4
_EPOCH = 1437 / 16  # Pushes of an epoch of digits.
_ITERATION_S = 0.05
_FIELDS = {
  'model.name': 'mlp',
  'eval_every': 10.0,
  'log_every': 1000,
  'checkpoint.every_examples': 1000,
  'cluster.timeout_s': 10.0,
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': _ITERATION_S,
  'cluster.speed.per_example_s': 0.0,
}


class _Kind(NamedTuple):
  """Kind of run.

  Attributes:
    config: Config file; {scheme} is replaced.
    fields: Changed fields.
    servers: Number of dedicated servers; 0 without servers.
    share: Share of the workers' time in which they push, at least: the run
      outlasts the kills a little.
  """

  config: str
  fields: Mapping[str, Any]
  servers: int
  share: float


_KINDS = {
  'server': _Kind(
    'configs/vgg16_{scheme}.py', {'route.server.mirror_s': 1.0}, 2, 0.375
  ),
  'server_in_workers': _Kind(
    'configs/vgg16_{scheme}.py', {'route.server.mirror_s': 1.0}, 0, 0.15
  ),
  'ring': _Kind(
    'configs/default.py',
    {
      'sync.name': 'bsp',
      'route.name': 'ring',
      'cluster.timeout_s': 2.0,
      'cluster.speed.slowdown': '(1.0,)',
    },
    0,
    0.35,
  ),
}
_SCHEMES = ('bsp', 'ssp', 'elastic', 'quorum')
_BASELINE_S = 20.0  # Before the first kill.
_LIMIT_S = 6.0  # Seconds of the run per kill.
_STANDSTILL_S = 90.0  # Without a push for this long, the run hangs.
_RESTART_FACTOR = 4  # Pauses are this much longer until all continue.
_ACCURACY = 0.96
_MAX_GROWTH = 64.0, 16  # MiB and open files of a process after warm-up.
_POLL_S, _MEASURE_S = 0.05, 2.0


def main(argv: list[str] | None = None) -> None:
  """Executes the run and prints its checks."""
  parser = argparse.ArgumentParser(
    prog='tests.soak.soak', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--route', choices=_KINDS, default='server')
  parser.add_argument('--kills', type=int, default=200)
  parser.add_argument('--servers', type=float, default=0.1)
  parser.add_argument('--mean_s', type=float, default=1.5)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--scheme', choices=_SCHEMES, default='elastic')
  parser.add_argument('--local_steps', type=int, default=1)
  parser.add_argument('--ahead', type=int, default=2, help='config.data.ahead')
  parser.add_argument('--slowdown', help='config.cluster.speed.slowdown')
  parser.add_argument('--out', help='folder of the run; a new one by default')
  flags = parser.parse_args(argv)
  changed = (flags.scheme, flags.local_steps, flags.ahead, flags.slowdown)
  if flags.route == 'ring' and changed != ('elastic', 1, 2, None):
    parser.error('--route=ring: expected no option of a run with servers')
  out = pathlib.Path(flags.out or tempfile.mkdtemp()).resolve()
  print(f'the run is in {out}', flush=True)
  start, kind = time.monotonic(), _KINDS[flags.route]
  words = clusters.command(
    out / 'run',
    kind.config.format(scheme=flags.scheme),
    {
      **_FIELDS,
      **kind.fields,
      'epochs': _num_pushes(flags) * flags.local_steps / _EPOCH,
      'batching.local_steps': flags.local_steps,
      'data.ahead': flags.ahead,
      'cluster.speed.fixed_s': flags.local_steps * _ITERATION_S,
      **({'cluster.speed.slowdown': flags.slowdown} if flags.slowdown else {}),
    },
    workers=_WORKERS,
    servers=kind.servers,
    dedicated=kind.servers > 0,
    restarts=flags.kills,
  )
  run = clusters.start(words, out / 'run.log')
  processes = RunProcesses(out / 'run')
  try:
    killer = Killer(run, processes, flags)
    kills = killer.run()
    per_kill_s = max(_LIMIT_S, 2 * flags.mean_s)
    limit_s = max(start + per_kill_s * flags.kills - time.monotonic(), 60.0)
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
  print(
    f'goodput {killer.goodput:.1%}; at most {killer.longest_s:.1f} s without a '
    'push'
  )
  checks = [
    Check(
      'all kills happened', kills.total() == flags.kills, f'{kills.total()}'
    ),
    *checks_of(out / 'run', processes),
    *check_parameters(out / 'run'),
  ]
  if flags.route == 'ring':
    checks.append(
      Check(
        'nobody else restarts',
        processes.starts
        == _WORKERS + kills.total()
        == _WORKERS + processes.deaths,
        f'{processes.starts} starts',
      )
    )
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
  sys.exit(0 if all(check.holds for check in checks) else 1)


def _num_pushes(flags: argparse.Namespace) -> float:
  """Returns the pushes of the run, which outlasts the kills a little."""
  rate = _WORKERS / (flags.local_steps * _ITERATION_S)
  kills_s = flags.kills * flags.mean_s
  return rate * (_BASELINE_S + _KINDS[flags.route].share * kills_s)


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
    events['join'] > 0 or events['start'] > 1,
    f'{events["leave"]} departures, {events["join"]} rejoins, '
    f'{events["start"]} starts with all',
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
    f'by at most {growth}; at most {max(processes.peak.values(), default=0)} '
    'files open',
  )


class Killer:
  """Killer of random processes of a run, at random times.

  Attributes:
    goodput: Rate of pushes from the first kill to the last, over that before.
    longest_s: Longest time without a push, seconds.
  """

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
    self._num_pushes = _num_pushes(flags)
    self._has_servers = _KINDS[flags.route].servers > 0
    self.goodput = self.longest_s = 0.0

  def run(self) -> Counter[str]:
    """Kills processes until all kills are done or the run has ended.

    Returns:
      The number of kills by kind: coordinator, server, worker.

    Raises:
      RuntimeError: If the run hangs.
    """
    flags, processes = self._flags, self._processes
    start = pushed_at = measured_at = time.monotonic()
    due, pause_s, pushes, restart = math.inf, 0.0, 0, -1
    marks: list[tuple[float, int]] = []  # Times, and numbers of pushes.
    while self._kills.total() < flags.kills and self._run.poll() is None:
      time.sleep(_POLL_S)
      processes.update()
      now = time.monotonic()
      if now - measured_at > _MEASURE_S:
        measured_at = now
        processes.measure()
      if processes.pushes > pushes:
        if pushes:
          self.longest_s = max(self.longest_s, now - pushed_at)
        if pushes == restart:  # The run has continued.
          due = min(due, now + pause_s)
        pushed_at, pushes = now, processes.pushes
      if now - pushed_at > _STANDSTILL_S:
        raise RuntimeError(f'No push for {now - pushed_at:.0f} s.')
      # Before the first push, the run waits for a worker that is missing.
      if pushes and due == math.inf:
        marks.append((now, processes.count_pushes()))
        due = now + _BASELINE_S
      if now < due:
        continue
      if not self._kills:
        marks.append((now, processes.count_pushes()))
      if role := self._kill():
        print(f'{now - start:6.1f} s: kill {self._kills.total()}, {role}')
        sys.stdout.flush()
        if role.startswith('server') or flags.route == 'server_in_workers':
          restart = pushes
        pause_s = self._pause_s()
        factor = _RESTART_FACTOR if pushes == restart else 1
        due = now + pause_s * factor
    marks.append((time.monotonic(), processes.count_pushes()))
    if len(marks) == 3:
      (first_s, first), (second_s, second), (third_s, third) = marks
      usual = (second - first) / (second_s - first_s)
      self.goodput = (third - second) / max(third_s - second_s, 1e-9) / usual
    return self._kills

  def _kill(self) -> str:
    """Kills a process; returns its role, or '' if there is none to kill."""
    kinds = ['server', 'worker']
    if not self._has_servers or self._rng.random() >= self._flags.servers:
      kinds.reverse()
    for kind in kinds:
      if victims := self._processes.victims(kind):
        victim = self._rng.choice(victims)
        if self._processes.kill(victim):
          leads = victim == self._processes.coordinator
          self._kills['coordinator' if leads else kind] += 1
          return victim
        return ''
    return ''

  def _pause_s(self) -> float:
    """Returns seconds to the next kill, fewer if the run would end before."""
    flags = self._flags
    run_left = max(1 - self._processes.pushes / self._num_pushes, 0.1)
    kills_left = 1 - self._kills.total() / flags.kills
    return (
      self._rng.expovariate(1 / (flags.mean_s * min(run_left / kills_left, 1)))
      if kills_left
      else 0.0
    )


if __name__ == '__main__':
  main()
