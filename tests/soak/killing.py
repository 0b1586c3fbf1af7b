"""Kills many processes of one run on this machine.

With a route of servers the run is of four workers; dedicated servers are two,
one of which is the coordinator.  After its start a random live process receives
SIGKILL at random times, also during a restart.  The process is a worker, or
with some probability a server or the coordinator, after which all continue from
a mirror, that is taken every second, or, if two were killed at once, resume
from a checkpoint.  Pauses are longer while all processes restart.

If each worker has a server, the default placement, any worker is killed, and
all others continue from the mirror of its server, or, if the process with the
mirror was killed at the same time, start again from a checkpoint.  Pauses are
longer until the run has continued.

On a ring the run is BSP without servers, and any worker is killed, the
coordinator's process too.  Nobody else may restart.

A process that has died several times in a row soon after its start is not
killed again until it is older, because the launcher would end the run.  The
goodput is the rate at which examples are pushed, and not lost afterwards, from
the first kill to the last, over the rate in the 20 s before the first.
"""

import math
import pathlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import analysis
from analysis import runs
from bench import clusters
from launch.processes import Group
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
_BASELINE_S = 20.0  # Before the first kill.
_LIMIT_S = 6.0  # Seconds of the run per kill.
_STANDSTILL_S = 90.0  # Without a push for this long, the run hangs.
_RESTART_FACTOR = 4  # Pauses are this much longer until all continue.
_ACCURACY = 0.96
_MAX_GROWTH = 64.0, 16  # MiB and open files of a process after warm-up.
_POLL_S, _MEASURE_S = 0.05, 2.0


class Kills(NamedTuple):
  """A run and its kills.

  Attributes:
    route: 'server' with dedicated servers, 'server_in_workers' or 'ring'.
    kills: Number of kills.
    mean_s: Mean time between two kills, seconds.
    servers: Probability that a dedicated server is killed.
    scheme: Scheme of a run with servers.
    local_steps: Steps of an iteration, each as long as one of one step.
    ahead: config.data.ahead.
    slowdown: config.cluster.speed.slowdown; '' for that of the config.
    seed: Seed of victims and times.
  """

  route: str
  kills: int
  mean_s: float = 1.5
  servers: float = 0.1
  scheme: str = 'elastic'
  local_steps: int = 1
  ahead: int = 2
  slowdown: str = ''
  seed: int = 0

  @property
  def num_pushes(self) -> float:
    """Pushes of the run, which outlasts the kills a little."""
    rate = _WORKERS / (self.local_steps * _ITERATION_S)
    kills_s = self.kills * self.mean_s
    return rate * (_BASELINE_S + _KINDS[self.route].share * kills_s)


def execute(path: pathlib.Path, planned: Kills) -> Iterator[Check]:
  """Executes a run with kills, prints figures, and yields its checks.

  Args:
    path: New folder of the run.
    planned: The run and its kills.

  Raises:
    RuntimeError: If the run fails or hangs.
  """
  start, kind = time.monotonic(), _KINDS[planned.route]
  slowdown = {'cluster.speed.slowdown': planned.slowdown}
  words = clusters.command(
    path,
    kind.config.format(scheme=planned.scheme),
    {
      **_FIELDS,
      **kind.fields,
      'epochs': planned.num_pushes * planned.local_steps / _EPOCH,
      'batching.local_steps': planned.local_steps,
      'data.ahead': planned.ahead,
      'cluster.speed.fixed_s': planned.local_steps * _ITERATION_S,
      **(slowdown if planned.slowdown else {}),
    },
    workers=_WORKERS,
    servers=kind.servers,
    dedicated=kind.servers > 0,
    restarts=planned.kills,
  )
  processes = RunProcesses(path)
  with clusters.start(words, path) as run:
    killer = Killer(run, processes, planned)
    kills = killer.run()
    per_kill_s = max(_LIMIT_S, 2 * planned.mean_s)
    limit_s = start + per_kill_s * planned.kills - time.monotonic()
    run.finish(max(limit_s, 60.0))
  processes.update()
  kinds = ', '.join(f'{count} of {kind}' for kind, count in kills.items())
  print(
    f'{kills.total()} kills ({kinds}), {processes.deaths} deaths, '
    f'{processes.starts} starts, {time.monotonic() - start:.0f} s'
  )
  print(
    f'goodput {killer.goodput:.1%}; at most {killer.longest_s:.1f} s without a '
    'push'
  )
  happened = kills.total() == planned.kills
  yield Check('all kills happened', happened, f'{kills.total()}')
  yield from checks_of(path, processes)
  yield from check_parameters(path)
  if planned.route == 'ring':
    expected = _WORKERS + kills.total()
    yield Check(
      'nobody else restarts',
      processes.starts == expected == _WORKERS + processes.deaths,
      f'{processes.starts} starts',
    )


def checks_of(
  path: pathlib.Path, processes: RunProcesses, *, least: float = _ACCURACY
) -> Iterator[Check]:
  """Yields the checks of a run with kills.

  Args:
    path: Folder of the run.
    processes: Processes of the run.
    least: Smallest acceptable final accuracy.
  """
  accuracy = analysis.read(path).summary['final_accuracy']
  name = f'accuracy of at least {least:.0%}'
  yield Check(name, accuracy >= least, f'{accuracy:.2%}')
  yield from accounts(path)
  events = Counter(event['event'] for event in runs.read_events(path))
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
    run: Group,
    processes: RunProcesses,
    planned: Kills,
  ):
    """Initializes the object without kills.

    Args:
      run: The launcher alone.
      processes: Processes that the launcher has started.
      planned: The run and its kills.
    """
    self._run, self._processes, self._planned = run, processes, planned
    self._rng = random.Random(planned.seed)
    self._kills: Counter[str] = Counter()
    self._has_servers = _KINDS[planned.route].servers > 0
    self.goodput = self.longest_s = 0.0

  def run(self) -> Counter[str]:
    """Kills processes until all kills are done or the run has ended.

    Returns:
      The number of kills by kind: coordinator, server, worker.

    Raises:
      RuntimeError: If the run hangs.
    """
    planned, processes = self._planned, self._processes
    start = pushed_at = measured_at = time.monotonic()
    due, pause_s, pushes, restart = math.inf, 0.0, 0, -1
    marks: list[tuple[float, int]] = []  # Times, and numbers of pushes.
    while self._kills.total() < planned.kills and self._run.names():
      self._run.next_ends(_POLL_S)
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
        if role.startswith('server') or planned.route == 'server_in_workers':
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
    if not self._has_servers or self._rng.random() >= self._planned.servers:
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
    planned = self._planned
    run_left = max(1 - self._processes.pushes / planned.num_pushes, 0.1)
    kills_left = 1 - self._kills.total() / planned.kills
    if not kills_left:
      return 0.0
    mean_s = planned.mean_s * min(run_left / kills_left, 1)
    return self._rng.expovariate(1 / mean_s)
