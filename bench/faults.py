"""What every kind of fault does in every phase: python -m bench.faults.

  python -m bench.faults [--runs=bsp,pipelined,ssp,elastic,r2sp] [--out=DIR]

Needs root, for links that are cut: seven hosts of a lab, six workers and a
dedicated server.  In each run five of the workers die, hang, are slow and lose
their links for 5 and 30 s (config.cluster.faults), in every phase of an
iteration, at the start of a life and at the end of the run, and a push is
corrupt; checkpoints are saved and evaluations made all the time.  Several
workers are in trouble at once.  A cell is how often the fault happened, of how
often it was to; below it stands what must hold of the run.  The exit code is 1
if anything does not.  About 3 minutes a run.
"""

import argparse
import collections
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Iterator

from bench import clusters
from bench.accounts import Check, accounts, kept
from tools.reading import records

_RUNS = {
  'bsp': {'sync.name': 'bsp'},
  'pipelined': {'sync.name': 'bsp', 'route.server.pipelined': True},
  'ssp': {'sync.name': 'ssp'},
  'elastic': {'sync.name': 'elastic'},
  'r2sp': {'sync.name': 'r2sp'},
}
_WORKERS = 6  # The first one is spared.
_KINDS = ('die', 'hang', 'slow', 'cut:5', 'cut:30')
# And which iteration; of the start, which life.
_PHASES = {'compute': 20, 'first': 40, 'start': 1, 'pull': 60, 'last': 80}
_TIMEOUT_S = 2.0
_STANDSTILL = 3.0  # Timeouts.
_LIMIT_S = 500.0
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


def _entries() -> list[tuple[int, int, str, str]]:
  """Returns faults such that every worker meets each kind and each phase."""
  cells = [
    (worker, number, _KINDS[(worker + shift) % len(_KINDS)], phase)
    for worker in range(1, _WORKERS)
    for shift, (phase, number) in enumerate(_PHASES.items())
  ]
  ends = [
    (worker, 0, _KINDS[worker % len(_KINDS)], 'end')
    for worker in range(1, _WORKERS)
  ]
  return [*cells, *ends, (0, 30, 'corrupt', 'compute')]


def _run(path: pathlib.Path, fields: dict[str, object]) -> bool:
  """Makes a run and prints what came of it; returns whether all holds."""
  entries = _entries()
  faults = {
    'cluster.faults': repr(tuple(entries)),
    'cluster.interface': 'eth0',
  }
  words = clusters.command(
    path,
    'configs/default.py',
    _FIELDS | fields | faults,
    workers=_WORKERS,
    link='1gbit',
  )
  log = path.with_name(f'{path.name}.log')
  clusters.finish(clusters.start(words, log), log, _LIMIT_S)
  happened = {file.name for file in (path / 'faults').iterdir()}
  counts = collections.defaultdict(lambda: [0, 0])
  for worker, number, kind, phase in entries:
    name = f'{worker}-{-1 if phase == "end" else number}-{kind.split(":")[0]}'
    name += f'-{phase}' * (phase != 'compute')
    counts[phase, kind][0] += name in happened
    counts[phase, kind][1] += 1
  rows = [(path.name, *_KINDS, 'corrupt')]
  for phase in ('start', 'pull', 'compute', 'first', 'last', 'end'):
    cells = [counts.get((phase, kind)) for kind in rows[0][1:]]
    rows.append((phase, *('{}/{}'.format(*c) if c else '-' for c in cells)))
  print(f'\n{clusters.table(*rows)}\n')
  checks = list(_judged(path, counts))
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
  sys.stdout.flush()
  return all(check.holds for check in checks)


def _judged(path: pathlib.Path, counts: dict) -> Iterator[Check]:
  summary = records.read_summary(path)
  missing = [cell for cell, (was, due) in counts.items() if was < due]
  yield Check('all faults happened', not missing, f'all but {missing}')
  yield Check('ended', summary['ended'] == 'finished', summary['ended'])
  times = [e['time'] for e in records.events(path) if e['told'] == 'push']
  still = max(b - a for a, b in itertools.pairwise(times)) / _TIMEOUT_S
  detail = f'{still:.1f} timeouts between two pushes at most'
  yield Check('goes on', still <= _STANDSTILL, detail)
  yield from accounts(path)
  yield from kept(path)


if __name__ == '__main__':
  main()
