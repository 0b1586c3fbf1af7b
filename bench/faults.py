"""Injects every kind of fault in every phase: python -m bench.faults.

  python -m bench.faults [--runs=bsp,pipelined,ssp,elastic,r2sp,servers,
    ring,forest,sparse,lowrank,half,tls,deaths,succession,links,default,native]
    [--out=DIR]

Needs root, to cut links in a lab with six workers and a dedicated server.  In
each run five of the workers die, hang, are slow and lose their links for 5 and
30 s (config.cluster.faults), in every phase of an iteration, at the start of a
session and at the end of the run; the first worker sends corrupt pushes.
Checkpoints and evaluations run all the time.  In the run `servers`, of
ElasticBSP, the coordinator and another server have faults during checkpoints
and evaluations.  The runs from `ring` to `links` have no server; their phases
are those of the allreduce, in which workers send each other chunks.  `sparse`,
`lowrank` and `half` are rings with these codecs, `tls` is a ring whose
connections are encrypted.

In `deaths`, a ring, two workers die in one iteration, two in their next start,
the coordinator together with another worker, and packets of a worker are lost
without an error.  In `succession` the faults are those of coordinators: it
dies, then its successor hangs, and then the next one is cut off.  In `links`,
a ring of four, the network fails and not the processes: two hosts are separated
from two, then the coordinator's host from three; packets in one direction of
one pair are lost; and a host has 1 % of its rate.

In `default`, which has a server in each worker, and in `native` no process
survives the death of another: all restart from the newest checkpoint.  These
runs have fewer faults, and a limit for each pause: 3 timeouts to notice the
fault, as elsewhere; then the duration of the first start of all processes,
which compiles everything; the time until a cut link is up again; and
config.cluster.start_s for a start that hangs.

A cell of the table has the number of faults that happened over the number of
faults that were planned; the checks of the run follow.  The exit code is 1 if a
check fails.  A run takes about 3 minutes, that of servers 5.
"""

import argparse
import collections
import itertools
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from bench import clusters
from bench.accounts import Check, accounts, check_parameters
from bench.link_faults import LinkFaults
from bench.run_processes import RunProcesses
from cluster.process.faults import SLOWER
from tools.reading import records

_WORKERS = 6  # The first one has no faults but corrupt pushes.
_KINDS = ('die', 'hang', 'slow', 'cut:5', 'cut:30')
# Iteration of a fault by phase; for the start, the number of the session.
_PHASES = {'compute': 20, 'first': 40, 'start': 1, 'pull': 60, 'last': 80}
# Iterations of the first worker, which continues while all others are away.
_CORRUPT = {'compute': 30, 'first': 350, 'last': 400}
_APART = 3  # Iterations between the workers' faults.
# Numbers of checkpoints, and of evaluations in a session, of servers.
_SERVER_PHASES = {'checkpoint': range(40, 90, 10), 'evaluation': range(2, 7)}
_Entry = tuple[int | str, int, str, str]
_STANDSTILL = 3.0  # Longest time without a push, in timeouts.
# Where all processes restart: phases, and iterations between the workers'
# faults, some of which must reach a checkpoint.
_RESTART_PHASES, _RESTART_APART = ('start', 'pull', 'compute', 'end'), 10
_BACKOFF_S = 0.5  # Pause of the launcher before a restart.
_LIMIT_S, _POLL_S, _TIMEOUT_S = 900.0, 0.05, 2.0
# Steps of `links`: name, methods of `LinkFaults` that begin and end it, and
# their arguments.
_LINK_STEPS = (
  ('2 + 2', 'partition', 'heal', ((0, 1), (2, 3))),
  ('1 + 3', 'partition', 'heal', ((1, 2, 3), (0,))),
  ('one way', 'black_hole', 'restore', (1, 2)),
)
_FAULT_S, _REST_S = (
  12.0,
  30.0,
)  # Duration of a step, and limit until all rejoin.
_RATE, _SLOW_RATE = 10**9, 10**7  # bit/s.
_FIELDS = {
  'model.name': 'mlp',
  'epochs': 70.0,
  'eval_every': 0.5,
  'log_every': 1000,
  'batching.worker_batch': 32,
  'checkpoint.every_examples': 500,
  'cluster.timeout_s': _TIMEOUT_S,
  'cluster.start_s': 60.0,
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': 0.1,
  'cluster.speed.per_example_s': 0.0,
  'cluster.speed.slowdown': '(1.0,)',
}


def main(argv: list[str] | None = None) -> None:
  """Executes the runs and prints their tables and checks."""
  parser = argparse.ArgumentParser(
    prog='bench.faults', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--runs', default=','.join(_RUNS))
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  flags = parser.parse_args(argv)
  out = pathlib.Path(flags.out or tempfile.mkdtemp()).resolve()
  print(f'runs are in {out}', flush=True)
  holds = [
    _run_links(out / name) if name == 'links' else _run(out / name, _RUNS[name])
    for name in flags.runs.split(',')
  ]
  sys.exit(0 if all(holds) else 1)


class Pause(NamedTuple):
  """Time without a push in a run whose processes all restart.

  Attributes:
    seconds: Length of the pause.
    faults: Names of the faults in this time.
    starts: Number of restarts of all processes.
    cut_s: Seconds for which links were cut.
  """

  seconds: float
  faults: tuple[str, ...]
  starts: int
  cut_s: float

  def limit_s(self, timeout_s: float, start_s: float, first_s: float) -> float:
    """Returns the longest acceptable pause, seconds.

    Args:
      timeout_s: config.cluster.timeout_s of the run.
      start_s: config.cluster.start_s of the run.
      first_s: Seconds from the first start to the first push.
    """
    hung, slow = (
      sum(name.endswith(f'-{kind}-start') for name in self.faults)
      for kind in ('hang', 'slow')
    )
    return (
      _STANDSTILL * timeout_s * max(self.starts, 1)
      + (first_s + _BACKOFF_S) * self.starts
      + self.cut_s
      + start_s * hung
      + SLOWER * timeout_s * slow
    )


def _entries() -> list[_Entry]:
  """Returns faults such that every worker has each kind and each phase."""
  cells = [
    (
      worker,
      number if phase == 'start' else number + (worker - 1) * _APART,
      _KINDS[(worker + shift) % len(_KINDS)],
      phase,
    )
    for worker in range(1, _WORKERS)
    for shift, (phase, number) in enumerate(_PHASES.items())
  ]
  ends = [
    (worker, 0, _KINDS[worker % len(_KINDS)], 'end')
    for worker in range(1, _WORKERS)
  ]
  corrupt = [
    (0, number, 'corrupt', phase) for phase, number in _CORRUPT.items()
  ]
  return [*cells, *ends, *corrupt]


def _native_entries() -> list[_Entry]:
  """Returns faults such that each causes a separate pause.

  Faults at the start hit a different session of each worker, because all
  workers have the same number of sessions.
  """
  places = {
    phase: first
    for first, phase in zip(
      itertools.count(20, 60), _RESTART_PHASES, strict=False
    )
  }
  return [
    (
      worker,
      worker
      if phase == 'start'
      else places[phase] + (worker - 1) * _RESTART_APART,
      kind,
      phase,
    )
    for worker, _, kind, phase in _entries()
    if phase in _RESTART_PHASES and kind != 'corrupt'
  ]


def _coordinator_entries() -> list[_Entry]:
  """Returns faults of coordinators: the lowest rank is elected each time."""
  return [
    (0, 40, 'die', 'compute'),
    (1, 120, 'hang', 'compute'),
    (0, 200, 'cut:5', 'compute'),
  ]


def _server_entries() -> list[_Entry]:
  """Returns faults of each kind during checkpoints and evaluations."""
  return [
    (f'server:{server}', number + server, kind, phase)
    for phase, numbers in _SERVER_PHASES.items()
    for server in range(2 if phase == 'checkpoint' else 1)
    for kind, number in zip(_KINDS, numbers, strict=False)
  ]


def _death_entries() -> list[_Entry]:
  """Returns deaths at the same time, and links that are half open."""
  return [
    *((worker, 20, 'die', 'compute') for worker in (1, 2)),
    *((worker, 1, 'die', 'start') for worker in (1, 2)),
    (3, 80, 'die', 'first'),
    (4, 80, 'die', 'last'),
    *((worker, 120, 'die', 'compute') for worker in (0, 5)),
    (3, 200, 'drop:5', 'compute'),
    (4, 260, 'drop:30', 'pull'),
  ]


class _Run(NamedTuple):
  """A run of the benchmark.

  Attributes:
    fields: Changed fields of the config.
    entries: Returns the faults.
    servers: Number of dedicated servers; 0 without.
    all_restart: Whether all processes restart after a death.
  """

  fields: Mapping[str, object]
  entries: Callable[[], list[_Entry]] = _entries
  servers: int = 1
  all_restart: bool = False


def _ring(
  entries: Callable[[], list[_Entry]] = _entries, **fields: object
) -> _Run:
  """Returns a ring; the names of fields have '__' in place of dots."""
  changed = {name.replace('__', '.'): value for name, value in fields.items()}
  ring = {'sync.name': 'bsp', 'route.name': 'ring'}
  return _Run(ring | changed, entries, servers=0)


_RUNS = {
  'bsp': _Run({'sync.name': 'bsp'}),
  'pipelined': _Run(
    {
      'sync.name': 'bsp',
      'route.server.pipelined': True,
      'model.mlp.hidden': '(1024,)',  # Pushed in several pieces.
    }
  ),
  'ssp': _Run({'sync.name': 'ssp'}),
  'elastic': _Run({'sync.name': 'elastic'}),
  'r2sp': _Run({'sync.name': 'r2sp'}),
  'servers': _Run(
    {
      'sync.name': 'elastic',
      'cluster.timeout_s': 10.0,
      'cluster.start_s': 30.0,
    },
    _server_entries,
    servers=2,
  ),
  'ring': _ring(),
  'forest': _ring(route__name='forest'),
  'sparse': _ring(wire__name='sparse', wire__sparse__chunk=256),
  'lowrank': _ring(wire__name='lowrank'),
  'half': _ring(wire__dense__dtype='bfloat16'),
  'tls': _ring(cluster__tls_name='syncopate'),
  'deaths': _ring(_death_entries, epochs=45.0),
  'succession': _ring(_coordinator_entries, epochs=35.0),
  'links': _ring(list, epochs=10.0**4),
  'default': _Run(
    {'sync.name': 'bsp'}, _native_entries, servers=0, all_restart=True
  ),
  'native': _Run(
    {'sync.name': 'bsp', 'route.name': 'native'},
    _native_entries,
    servers=0,
    all_restart=True,
  ),
}


def _run(path: pathlib.Path, planned: _Run) -> bool:
  """Executes a run and prints table and checks; returns whether all hold."""
  fields = {**_FIELDS, **planned.fields, 'cluster.interface': 'eth0'}
  if 'cluster.tls_name' in fields:
    fields |= _make_certificate(path, str(fields['cluster.tls_name']))
  entries, has_server = planned.entries(), 'route.name' not in planned.fields
  words = clusters.command(
    path,
    'configs/default.py',
    fields | {'cluster.faults': repr(tuple(entries))},
    workers=_WORKERS,
    servers=planned.servers,
    dedicated=planned.servers > 0,
    link='1gbit',
    restarts=len(entries),
  )
  timeout_s, start_s = (
    float(fields[f'cluster.{name}']) for name in ('timeout_s', 'start_s')
  )
  limit_s, pauses = _STANDSTILL * timeout_s, []
  if planned.all_restart:
    first_s, pauses = _pauses(path, words)
    limits_s = [each.limit_s(timeout_s, start_s, first_s) for each in pauses]
    still_s, limit_s = max(
      (
        (each.seconds, allowed_s)
        for each, allowed_s in zip(pauses, limits_s, strict=True)
      ),
      key=lambda pair: pair[0] / pair[1],
    )
    print(_pause_table(first_s, pauses, limits_s))
  else:
    still_s = max(_restart_pause_s(path, words), longest_pause_s(path))
  injected = {file.name for file in (path / 'faults').iterdir()}
  counts = collections.defaultdict(lambda: [0, 0])
  for target, number, kind, phase in entries:
    name = f'{target}-{-1 if phase == "end" else number}-{kind.split(":")[0]}'
    name += f'-{phase}' * (phase != 'compute')
    counts[phase, kind][0] += name in injected
    counts[phase, kind][1] += 1
  kinds = dict.fromkeys([*_KINDS, *(kind for _, _, kind, _ in entries)])
  rows = [(path.name, *kinds)]
  for phase in dict.fromkeys(phase for _, _, _, phase in entries):
    cells = [counts.get((phase, kind)) for kind in kinds]
    rows.append((phase, *('{}/{}'.format(*c) if c else '-' for c in cells)))
  print(f'\n{clusters.table(*rows)}\n')
  return _print_checks(
    _checks(path, counts, still_s, limit_s, has_server=has_server)
  )


def _print_checks(checks: Iterable[Check]) -> bool:
  """Prints checks; returns whether all hold."""
  holds = True
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
    sys.stdout.flush()
    holds &= check.holds
  return holds


def _make_certificate(path: pathlib.Path, name: str) -> dict[str, object]:
  """Returns the fields of a certificate that is created beside a run."""
  certificate, key = (path.with_suffix(f'.{kind}') for kind in ('crt', 'key'))
  path.parent.mkdir(parents=True, exist_ok=True)
  words = f'req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name}'.split()
  words += ['-addext', f'subjectAltName=DNS:{name}']
  words += ['-out', str(certificate), '-keyout', str(key)]
  subprocess.run(['openssl', *words], check=True, capture_output=True)
  return {
    'cluster.certificate_file': str(certificate),
    'cluster.key_file': str(key),
  }


def _run_links(path: pathlib.Path) -> bool:
  """Executes the run whose links fail, and prints its checks."""
  words = clusters.command(
    path,
    'configs/default.py',
    {**_FIELDS, **_RUNS['links'].fields, 'cluster.interface': 'eth0'},
    workers=4,
    servers=0,
    dedicated=False,
    link='1gbit',
    restarts=len(_LINK_STEPS) + 1,
  )
  log = path.with_name(f'{path.name}.log')
  run, processes = clusters.start(words, log), RunProcesses(path)
  rows = [('links', 'departures', 'pause, s', 'all are back after, s')]
  checks, limit_s = [], _STANDSTILL * _TIMEOUT_S
  try:
    links, watch = LinkFaults(log, 4), _Watch(processes)
    watch.wait(_LIMIT_S, lambda: processes.pushes > 200)
    steps = [
      (name, *(partial(getattr(links, method), *args) for method in methods))
      for name, *methods, args in _LINK_STEPS
    ]
    slow, usual = (partial(links.limit, 3, r) for r in (_SLOW_RATE, _RATE))
    for name, begin, end in (*steps, ('1 %', slow, usual)):
      watch.longest_s, (before, _) = 0.0, _membership(path)
      begin()
      watch.wait(_FAULT_S, lambda: False)
      end()
      back_s = watch.wait(_REST_S, lambda: _membership(path)[1] == 0)
      still_s, left = watch.longest_s, _membership(path)[0] - before
      rows.append((name, f'{left}', f'{still_s:.1f}', f'{back_s:.1f}'))
      detail = f'{still_s:.1f} s without a push, {limit_s:g} s at most'
      checks.append(Check(f'{name}: continues', still_s <= limit_s, detail))
      detail = f'after {back_s:.1f} s, {_REST_S:g} s at most'
      checks.append(Check(f'{name}: all are back', back_s < _REST_S, detail))
    for pid, _ in processes.alive.values():
      os.kill(pid, signal.SIGTERM)
    run.wait(_REST_S)
  finally:
    clusters.end(run)
  print(f'\n{clusters.table(*rows)}\n')
  metrics = records.read_rows(path / 'metrics.jsonl')
  versions = [row['updates'] for row in metrics if row['kind'] == 'barrier']
  is_line = versions == list(range(1, len(versions) + 1))
  checks.append(
    Check('one line of history', is_line, f'{len(versions)} updates')
  )
  return _print_checks(
    itertools.chain(checks, accounts(path), check_parameters(path))
  )


class _Watch:
  """Watcher of the pushes of a run.

  Attributes:
    longest_s: Longest time without a push, seconds.
  """

  def __init__(self, processes: RunProcesses):
    self.longest_s = 0.0
    self._processes = processes
    self._pushed_at, self._pushes = time.monotonic(), 0

  def wait(self, limit_s: float, is_over: Callable[[], bool]) -> float:
    """Waits until a condition holds, for at most some seconds.

    Returns:
      The seconds that it has waited.
    """
    start = time.monotonic()
    while (now := time.monotonic()) - start < limit_s and not is_over():
      self._processes.update()
      if self._processes.pushes > self._pushes:
        self._pushed_at, self._pushes = now, self._processes.pushes
      self.longest_s = max(self.longest_s, now - self._pushed_at)
      time.sleep(_POLL_S)
    return time.monotonic() - start


def _membership(path: pathlib.Path) -> tuple[int, int]:
  """Returns the numbers of departures so far, and of workers that are away."""
  events = [event['event'] for event in records.read_events(path)]
  left = events.count('leave')
  return left, left - events.count('join')


def _pushes(
  path: pathlib.Path, words: list[str]
) -> Iterator[tuple[float, RunProcesses]]:
  """Executes a run and yields at each new push.

  Yields:
    Seconds since the push before, or since the start of the first worker, and
    the processes of the run.
  """
  log = path.with_name(f'{path.name}.log')
  run, processes = clusters.start(words, log), RunProcesses(path)
  start, pushed_at, pushes = time.monotonic(), 0.0, 0
  try:
    while run.poll() is None and time.monotonic() - start < _LIMIT_S:
      time.sleep(_POLL_S)
      processes.update()
      now = time.time()
      if processes.pushes > pushes:
        since = pushed_at or processes.alive['worker:0'][1]
        yield now - since, processes
        pushed_at, pushes = now, processes.pushes
  finally:
    clusters.finish(run, log, 1.0)


def _restart_pause_s(path: pathlib.Path, words: list[str]) -> float:
  """Executes a run; returns its longest pause with a restart of all, seconds.

  The time for which links of servers are cut does not count, because no worker
  can push then.
  """
  longest_s, before = 0.0, {}
  for still_s, processes in _pushes(path, words):
    # Without servers, worker 0 is the coordinator.
    servers = {
      role: process
      for role, process in processes.alive.items()
      if role[0] == 's' or role == 'worker:0'
    }
    if before and servers != before:
      cut_s = sum(_cuts_s(_recent_faults(path, still_s, 'server*')))
      longest_s = max(longest_s, still_s - cut_s)
    before = servers
  return longest_s


def _pauses(path: pathlib.Path, words: list[str]) -> tuple[float, list[Pause]]:
  """Executes a run; returns the seconds of its first start, and its pauses."""
  first_s, starts, pauses = None, _WORKERS, []
  for still_s, processes in _pushes(path, words):
    if first_s is None:
      first_s = still_s
      continue
    files = _recent_faults(path, still_s, '*')
    restarts = (processes.starts - starts) // _WORKERS
    starts = processes.starts
    names = tuple(file.name for file in files)
    pauses.append(Pause(still_s, names, restarts, sum(_cuts_s(files))))
  if first_s is None:
    raise RuntimeError(f'{path}: expected pushes, got none.')
  return first_s, pauses


def _pause_table(
  first_s: float, pauses: list[Pause], limits_s: list[float]
) -> str:
  """Returns a table of the pauses with faults or restarts."""
  rows = [('faults', 'restarts', 'pause, s', 'links cut, s', 'limit, s')]
  rows += [
    (
      ', '.join(pause.faults) or '-',
      f'{pause.starts}',
      f'{pause.seconds:.1f}',
      f'{pause.cut_s:g}',
      f'{limit_s:.1f}',
    )
    for pause, limit_s in zip(pauses, limits_s, strict=True)
    if pause.faults or pause.starts
  ]
  return f'\nfirst start: {first_s:.1f} s\n\n{clusters.table(*rows)}'


def longest_pause_s(path: pathlib.Path) -> float:
  """Returns the longest time between two pushes without a restart, seconds."""
  longest_s, last = 0.0, math.inf
  for event in records.read_events(path):
    if event['event'] == 'start':
      last = math.inf
    if event['event'] == 'push':
      longest_s = max(longest_s, event['time'] - last)
      last = event['time']
  return longest_s


def _recent_faults(
  path: pathlib.Path, last_s: float, pattern: str
) -> list[pathlib.Path]:
  """Returns the files of the faults of the last seconds, in order."""
  since = time.time() - last_s - _POLL_S
  files = (path / 'faults').glob(pattern)
  dated = sorted((file.stat().st_mtime, file) for file in files)
  return [file for injected_at, file in dated if injected_at > since]


def _cuts_s(files: list[pathlib.Path]) -> list[float]:
  """Returns the seconds of each cut among the files of faults."""
  return [float(file.read_text()) for file in files if '-cut' in file.name]


def _checks(
  path: pathlib.Path,
  counts: dict,
  still_s: float,
  limit_s: float,
  *,
  has_server: bool,
) -> Iterator[Check]:
  summary = records.read_summary(path)
  missing = [
    cell for cell, (count, planned) in counts.items() if count < planned
  ]
  yield Check('all faults happened', not missing, f'all but {missing}')
  yield Check('ended', summary['ended'] == 'finished', summary['ended'])
  detail = f'{still_s:.1f} s between two pushes, {limit_s:g} s at most'
  yield Check('continues after faults', still_s <= limit_s, detail)
  yield from accounts(path)
  if has_server:  # Replicas compare their own states.
    yield from check_parameters(path)


if __name__ == '__main__':
  main()
