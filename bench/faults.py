"""Injects every kind of fault in every phase: python -m bench.faults.

  python -m bench.faults [--runs=bsp,pipelined,ssp,elastic,r2sp,servers,
    ring,forest,native] [--out=DIR]

Needs root, for links that are cut: hosts of a lab, six workers and a dedicated
server.  In each run five of the workers die, hang, are slow and lose their
links for 5 and 30 s (config.cluster.faults), in every phase of an iteration, at
the start of a session and at the end of the run, and send corrupt pushes;
checkpoints and evaluations run all the time.  In the run `servers`, of
ElasticBSP, the coordinator and another server have faults during checkpoints
and evaluations.  In `ring` and `forest` there is no server, and phases are
those of the allreduce: chunks that workers send each other.  In `native` nobody
survives another's death: all begin again from the newest checkpoint, so that it
has fewer faults, and limits of its own: 3 timeouts to notice, as elsewhere, and
then as long as the first start of all took, which had everything to compile;
nobody begins before a link that is cut is up again, and a start that hangs has
config.cluster.start_s.  A cell is how often
the fault happened, of how often it was to; below it stands what must hold of
the run.  The exit code is 1 if anything does not.  About 3 minutes a run, 5
that of servers.
"""

import argparse
import collections
import itertools
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench import clusters
from bench.accounts import Check, accounts, check_parameters
from bench.launched import Launched
from cluster.process.faults import SLOWER
from tools.reading import records

_RUNS = {
  'bsp': {'sync.name': 'bsp'},
  'pipelined': {
    'sync.name': 'bsp',
    'route.server.pipelined': True,
    'model.mlp.hidden': '(1024,)',  # Of several pieces.
  },
  'ssp': {'sync.name': 'ssp'},
  'elastic': {'sync.name': 'elastic'},
  'r2sp': {'sync.name': 'r2sp'},
  'servers': {
    'sync.name': 'elastic',
    'cluster.timeout_s': 10.0,
    'cluster.start_s': 30.0,
  },
  'ring': {'sync.name': 'bsp', 'route.name': 'ring'},
  'forest': {'sync.name': 'bsp', 'route.name': 'forest'},
  'native': {'sync.name': 'bsp', 'route.name': 'native'},
}
_WORKERS = 6  # The first one is spared.
_KINDS = ('die', 'hang', 'slow', 'cut:5', 'cut:30')
# And which iteration; of the start, which life.
_PHASES = {'compute': 20, 'first': 40, 'start': 1, 'pull': 60, 'last': 80}
# Of the first worker, which goes on while all others are away.
_CORRUPT = {'compute': 30, 'first': 350, 'last': 400}
_APART = 3  # Iterations between the workers' faults.
# Of servers: which checkpoint, and which evaluation of a life.
_SERVED = {'checkpoint': range(40, 90, 10), 'evaluation': range(2, 7)}
_Entry = tuple[int | str, int, str, str]
_STANDSTILL = 3.0  # Timeouts.
# Where all begin again: phases, and iterations between the workers' faults, of
# which some must be saved.
_ALL_AGAIN, _FURTHER = ('start', 'pull', 'compute', 'end'), 10
_BACKOFF_S = 0.5  # Of the launcher.
_LIMIT_S, _POLL_S, _TIMEOUT_S = 900.0, 0.05, 2.0
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
  """Makes the runs and prints their tables."""
  parser = argparse.ArgumentParser(
    prog='bench.faults', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--runs', default=','.join(_RUNS))
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  given = parser.parse_args(argv)
  out = pathlib.Path(given.out or tempfile.mkdtemp()).resolve()
  print(f'runs are in {out}', flush=True)
  holds = [_run(out / name, _RUNS[name]) for name in given.runs.split(',')]
  sys.exit(0 if all(holds) else 1)


class Pause(NamedTuple):
  """A time without a push, where all begin again.

  Attributes:
    seconds: Length of the run.
    faults: Faults of the run.
    starts: Number of starts of all processes.
    cut_s: Seconds of cut links.
  """

  seconds: float
  faults: tuple[str, ...]
  starts: int
  cut_s: float

  def limit_s(self, timeout_s: float, start_s: float, first_s: float) -> float:
    """Returns how long it may be.

    Args:
      timeout_s: Of the run.
      start_s: The same.
      first_s: That the first start took until the first push.
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
  """Returns faults such that every worker meets each kind and each phase."""
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


def _entries_of_native() -> list[_Entry]:
  """Returns faults such that each has a pause of its own.

  Those of a start are of another life of each worker, as all have as many.
  """
  places = {
    phase: first
    for first, phase in zip(itertools.count(20, 60), _ALL_AGAIN, strict=False)
  }
  return [
    (
      worker,
      worker if phase == 'start' else places[phase] + (worker - 1) * _FURTHER,
      kind,
      phase,
    )
    for worker, _, kind, phase in _entries()
    if phase in _ALL_AGAIN and kind != 'corrupt'
  ]


def _entries_of_servers() -> list[_Entry]:
  """Returns faults of each kind during checkpoints and evaluations."""
  return [
    (f'server:{server}', number + server, kind, phase)
    for phase, numbers in _SERVED.items()
    for server in range(2 if phase == 'checkpoint' else 1)
    for kind, number in zip(_KINDS, numbers, strict=False)
  ]


def _run(path: pathlib.Path, fields: dict[str, object]) -> bool:
  """Makes a run and prints what came of it; returns whether all holds."""
  in_trouble = path.name == 'servers'  # The servers.
  reduced = 'route.name' in fields
  entries = _entries_of_servers() if in_trouble else _entries()
  if all_again := path.name == 'native':
    entries = _entries_of_native()
  fields = _FIELDS | fields | {'cluster.interface': 'eth0'}
  words = clusters.command(
    path,
    'configs/default.py',
    fields | {'cluster.faults': repr(tuple(entries))},
    workers=_WORKERS,
    servers=0 if reduced else 1 + in_trouble,
    dedicated=not reduced,
    link='1gbit',
    restarts=len(entries),
  )
  timeout_s, start_s = (
    float(fields[f'cluster.{name}']) for name in ('timeout_s', 'start_s')
  )
  limit_s, pauses = _STANDSTILL * timeout_s, []
  if all_again:
    first_s, pauses = _pauses(path, words)
    limits_s = [each.limit_s(timeout_s, start_s, first_s) for each in pauses]
    still_s, limit_s = max(
      (
        (each.seconds, most)
        for each, most in zip(pauses, limits_s, strict=True)
      ),
      key=lambda pair: pair[0] / pair[1],
    )
    print(_shown(first_s, pauses, limits_s))
  else:
    still_s = max(_starting_s(path, words), within_s(path))
  happened = {file.name for file in (path / 'faults').iterdir()}
  counts = collections.defaultdict(lambda: [0, 0])
  for who, number, kind, phase in entries:
    name = f'{who}-{-1 if phase == "end" else number}-{kind.split(":")[0]}'
    name += f'-{phase}' * (phase != 'compute')
    counts[phase, kind][0] += name in happened
    counts[phase, kind][1] += 1
  rows = [(path.name, *_KINDS, 'corrupt')]
  for phase in dict.fromkeys(phase for _, _, _, phase in entries):
    cells = [counts.get((phase, kind)) for kind in rows[0][1:]]
    rows.append((phase, *('{}/{}'.format(*c) if c else '-' for c in cells)))
  print(f'\n{clusters.table(*rows)}\n')
  checks = list(_judged(path, counts, still_s, limit_s, reduced=reduced))
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
  sys.stdout.flush()
  return all(check.holds for check in checks)


def _moves(
  path: pathlib.Path, words: list[str]
) -> Iterator[tuple[float, Launched]]:
  """Makes a run; yields whenever it has pushed, after how long, and its state.

  At first since its processes were started.
  """
  log = path.with_name(f'{path.name}.log')
  run, seen = clusters.start(words, log), Launched(path)
  start, moved, pushes = time.monotonic(), 0.0, 0
  try:
    while run.poll() is None and time.monotonic() - start < _LIMIT_S:
      time.sleep(_POLL_S)
      seen.look()
      now = time.time()
      if seen.pushes > pushes:
        yield now - (moved or seen.living['worker:0'][1]), seen
        moved, pushes = now, seen.pushes
  finally:
    clusters.finish(run, log, 1.0)


def _starting_s(path: pathlib.Path, words: list[str]) -> float:
  """Makes a run; returns the longest time without a push in which all started.

  Less what the links of servers are cut for at that time: nobody can push.
  """
  starting_s, before = 0.0, {}
  for still_s, seen in _moves(path, words):
    # Or the coordinator among workers.
    servers = {
      role: process
      for role, process in seen.living.items()
      if role[0] == 's' or role == 'worker:0'
    }
    if before and servers != before:
      cut_s = sum(_of_cuts(_happened(path, still_s, 'server*')))
      starting_s = max(starting_s, still_s - cut_s)
    before = servers
  return starting_s


def _pauses(path: pathlib.Path, words: list[str]) -> tuple[float, list[Pause]]:
  """Makes a run; returns how long the first start took, and pauses after it."""
  first_s, starts, pauses = None, _WORKERS, []
  for still_s, seen in _moves(path, words):
    if first_s is None:
      first_s = still_s
      continue
    files = _happened(path, still_s, '*')
    again, starts = (seen.starts - starts) // _WORKERS, seen.starts
    names = tuple(file.name for file in files)
    pauses.append(Pause(still_s, names, again, sum(_of_cuts(files))))
  if first_s is None:
    raise RuntimeError(f'{path}: expected pushes, got none.')
  return first_s, pauses


def _shown(first_s: float, pauses: list[Pause], limits_s: list[float]) -> str:
  """Returns a table of the pauses in which something happened."""
  rows = [('what happened', 'starts', 's', 'links cut, s', 'at most, s')]
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


def within_s(path: pathlib.Path) -> float:
  """Returns the longest time between two pushes while nothing started again."""
  longest_s, last = 0.0, math.inf
  for event in records.read_events(path):
    if event['event'] == 'start':
      last = math.inf
    if event['event'] == 'push':
      longest_s = max(longest_s, event['time'] - last)
      last = event['time']
  return longest_s


def _happened(
  path: pathlib.Path, last_s: float, who: str
) -> list[pathlib.Path]:
  """Returns what has happened in these last seconds, in order."""
  since = time.time() - last_s - _POLL_S
  found = [(file.stat().st_mtime, file) for file in (path / 'faults').glob(who)]
  return [file for at, file in sorted(found) if at > since]


def _of_cuts(files: list[pathlib.Path]) -> list[float]:
  """Returns for how long links were cut, of what has happened."""
  return [float(file.read_text()) for file in files if '-cut' in file.name]


def _judged(
  path: pathlib.Path,
  counts: dict,
  still_s: float,
  limit_s: float,
  *,
  reduced: bool,
) -> Iterator[Check]:
  summary = records.read_summary(path)
  missing = [cell for cell, (was, due) in counts.items() if was < due]
  yield Check('all faults happened', not missing, f'all but {missing}')
  yield Check('ended', summary['ended'] == 'finished', summary['ended'])
  detail = f'{still_s:.1f} s between two pushes, {limit_s:g} s at most'
  yield Check('goes on', still_s <= limit_s, detail)
  yield from accounts(path)
  if not reduced:  # Replicas compare what they have by themselves.
    yield from check_parameters(path)


if __name__ == '__main__':
  main()
