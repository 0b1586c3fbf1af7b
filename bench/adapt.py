"""Forests that follow their links: real runs in a lab whose links change.

  python -m bench.adapt [--parts=throttle,noise] [--out=DIR] [--hosts=4]
    [--iterations=100] [--noise=500] [--megabytes=5]

Needs root, for network namespaces (tools.lab).  Workers compute nothing, so
that an iteration is a sum of 5 MB over links of 200 Mbit/s.

throttle: 12 s after the first iteration the last host sends and receives at 50
Mbit/s.  Beside a run that adapts: one that does not, and one whose links were
so from the start, with a forest packed for them.  Times are medians of the last
20 iterations.
noise: every second each host's rates are drawn anew, from 90 to 110 % of 200
Mbit/s; how often is the forest changed?
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

from bench import clusters
from tools.launching import hosts as lab_hosts
from tools.reading import records

_RATE, _SLOW = 200_000_000, 50_000_000
_AFTER_S = 12.0
_LAST = 20
_LIMIT_S = 600.0
_PARTS = ('throttle', 'noise')


def main(argv: list[str] | None = None) -> None:
  """Makes the runs of every part and prints what they show."""
  parser = argparse.ArgumentParser(
    prog='bench.adapt', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--parts', default=','.join(_PARTS))
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--hosts', type=int, default=4)
  parser.add_argument('--iterations', type=int, default=100)
  parser.add_argument('--noise', type=int, default=500, help='iterations of it')
  parser.add_argument('--megabytes', type=float, default=5.0)
  parser.add_argument('--inside', help='for itself')
  parser.add_argument('words', nargs='*', help='for itself')
  given = parser.parse_args(argv)
  if given.inside:
    sys.exit(_inside(given.inside, given.words))
  out = pathlib.Path(given.out or tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  sizes = given.hosts, given.megabytes
  for part in given.parts.split(','):
    if part == 'throttle':
      print_throttle(out, given.iterations, *sizes)
    elif part == 'noise':
      print_noise(out, given.noise, *sizes)
    else:
      parser.error(f'--parts: expected some of {_PARTS}, got {part!r}.')


def print_throttle(
  out: pathlib.Path, iterations: int, hosts: int, megabytes: float
) -> float:
  """Prints how long iterations take after a link has become slow.

  Returns:
    How long with adaptation, over that of a forest packed fresh.
  """
  sizes = hosts, megabytes
  fresh = _run(out, 'fresh', 'slow', _LAST + 10, False, *sizes)
  still = _run(out, 'still', 'throttle', _LAST + 50, False, *sizes)
  adapts = _run(out, 'adapts', 'throttle', iterations, True, *sizes)
  fresh_s = statistics.median(_iterations_s(fresh)[-_LAST:])
  rows = [('', 'before s', 'after s', 'over a fresh forest')]
  for name, path in (('fresh', fresh), ('no', still), ('adapt', adapts)):
    each = _iterations_s(path)
    before = f'{statistics.median(each[3:13]):.3f}' if name != 'fresh' else ''
    after_s = statistics.median(each[-_LAST:])
    rows.append((name, before, f'{after_s:.3f}', f'{after_s / fresh_s:.3f}'))
  print(f'\nThrottled in the middle:\n\n{clusters.table(*rows)}\n')
  _print_decisions(adapts)
  return statistics.median(_iterations_s(adapts)[-_LAST:]) / fresh_s


def print_noise(
  out: pathlib.Path, iterations: int, hosts: int, megabytes: float
) -> int:
  """Prints what follows from rates that vary by 10 %; returns switches."""
  path = _run(out, 'noise', 'noise', iterations, True, hosts, megabytes)
  each = _iterations_s(path)
  did = [row['did'] for row in records.links(path)]
  print(
    f'\n10 % noise: {len(each) + 1} iterations, median '
    f'{statistics.median(each):.3f} s; {did.count("measure")} measurings, '
    f'{did.count("switch")} switches\n'
  )
  _print_decisions(path)
  return did.count('switch')


def _print_decisions(path: pathlib.Path) -> None:
  for row in records.links(path):
    numbers = [
      f'{key} {row[key]:.3f}'
      for key in ('old_s', 'new_s', 'gain_s', 'gained_s')
      if key in row
    ]
    print(f'  {row["time"]:6.1f} s  {row["did"]}: {row["why"]}', *numbers)


def _iterations_s(path: pathlib.Path) -> list[float]:
  """Returns what each iteration but the first has taken."""
  ends = sorted(
    {row['time'] for row in records.events(path) if row['told'] == 'push'}
  )
  return [b - a for a, b in itertools.pairwise(ends)]


def _run(
  out: pathlib.Path,
  name: str,
  inside: str,
  iterations: int,
  adapt: bool,
  hosts: int,
  megabytes: float,
) -> pathlib.Path:
  """Makes a run and returns its folder."""
  # In folders of their own: labs have the same hosts, and other links.
  path = out / name / 'run'
  path.parent.mkdir(parents=True)
  fields = {
    'sync.name': 'bsp',
    'route.name': 'forest',
    'route.forest.adapt': adapt,
    'model.name': 'none',
    'model.none.size_bytes': round(megabytes * 1e6),
    'model.none.num_train': 16 * hosts * iterations,
    'epochs': 1.0,
    'checkpoint.every_s': 'inf',
  }
  given = path, 'configs/default.py', fields
  words = clusters.command(*given, workers=hosts, servers=0, dedicated=False)
  begun = json.dumps({'do': inside, 'run': str(path)})
  own = [sys.executable, '-m', 'bench.adapt', f'--inside={begun}', '--']
  lab = [sys.executable, '-m', 'tools.lab', f'--hosts={hosts}']
  lab += [f'--link={_RATE // 10**6}mbit', '--']
  log = path.parent / 'log'
  clusters.finish(clusters.start([*lab, *own, *words], log), log, _LIMIT_S)
  return path


def _inside(text: str, words: Sequence[str]) -> int:
  """Runs a command while links change; in the lab."""
  given = json.loads(text)
  changes = {'slow': _slow, 'throttle': _throttle, 'noise': _noise}
  each = changes[given['do']](pathlib.Path(given['run']))
  if given['do'] == 'slow':
    next(each)
  else:
    threading.Thread(target=lambda: [*each], daemon=True).start()
  return subprocess.call(words)


def _slow(run: pathlib.Path) -> Iterator[None]:
  del run
  _change(_names()[-1], _SLOW)
  yield


def _throttle(run: pathlib.Path) -> Iterator[None]:
  _begun(run)
  time.sleep(_AFTER_S)
  _change(_names()[-1], _SLOW)
  yield


def _noise(run: pathlib.Path) -> Iterator[None]:
  rng = random.Random(0)
  _begun(run)
  while True:
    for host in _names():
      _change(host, round(_RATE * rng.uniform(0.9, 1.1)))
    time.sleep(1.0)
    yield


def _begun(run: pathlib.Path) -> None:
  """Waits until links have been measured."""
  while not (run / 'cluster.json').exists():
    time.sleep(0.1)


def _change(host: str, rate: int) -> None:
  for words in lab_hosts.changed(os.environ['SYNCOPATE_LAB'], host, rate):
    subprocess.run(words.split(), check=True)


def _names() -> list[str]:
  return os.environ['SYNCOPATE_HOSTS'].split(',')


if __name__ == '__main__':
  main()
