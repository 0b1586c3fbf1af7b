"""Real allreduce runs in a lab whose links change during the run.

`measure_throttling` slows the last host from 200 to 50 Mbit/s in both
directions, 12 s after the first iteration.  It compares a run that repacks its
forest with one that does not, and with one whose links are slow from the start.
`run_with_noise` draws new rates of every host each second, from 90 to 110 % of
200 Mbit/s.  Workers compute nothing, so an iteration is one allreduce.  Labs
need root.

This module also runs inside the lab, as a command that changes links beside
the run: `python -m tests.support.changing_links CHANGE RUN COMMAND ...`.
"""

import itertools
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import analysis
from analysis import runs
from bench import clusters
from configs import timing
from launch import hosts as lab_hosts

_RATE, _SLOW = 200_000_000, 50_000_000  # Bits per second.
_AFTER_S = 12.0
_LAST = 20  # Iterations whose median is reported.
_LIMIT_S = 600.0
_HOSTS = 4
_SIZE_BYTES = 5_000_000


class Throttling(NamedTuple):
  """Median seconds of an iteration after a link has become slow.

  Attributes:
    before_s: With fast links.
    fixed_s: With the forest for fast links.
    adapted_s: With a repacked forest.
    fresh_s: With a forest packed for slow links at the start.
  """

  before_s: float
  fixed_s: float
  adapted_s: float
  fresh_s: float


def measure_throttling(out: pathlib.Path, iterations: int) -> Throttling:
  """Slows a link in the middle of two runs, and from the start of a third.

  Args:
    out: Folder of the runs.
    iterations: Iterations of the run that adapts.

  Raises:
    RuntimeError: If a run fails.
  """
  fresh = _iterations_s(_run(out, 'fresh', 'slow', _LAST + 10, False))
  fixed = _iterations_s(_run(out, 'fixed', 'throttle', _LAST + 50, False))
  adapted = _iterations_s(_run(out, 'adapted', 'throttle', iterations, True))
  last = (statistics.median(each[-_LAST:]) for each in (fixed, adapted, fresh))
  return Throttling(statistics.median(adapted[3:13]), *last)


def run_with_noise(out: pathlib.Path, iterations: int) -> list[str]:
  """Returns the decisions of a run that adapts to noise of 10 %.

  Args:
    out: Folder of the run.
    iterations: Iterations of the run.

  Raises:
    RuntimeError: If the run fails.
  """
  path = _run(out, 'noise', 'noise', iterations, True)
  return [row['did'] for row in analysis.read(path).link_rows]


def _iterations_s(path: pathlib.Path) -> list[float]:
  """Returns the seconds of each iteration but the first."""
  ends = sorted(
    {row['time'] for row in runs.read_events(path) if row['event'] == 'push'}
  )
  return [b - a for a, b in itertools.pairwise(ends)]


def _run(
  out: pathlib.Path, name: str, change: str, iterations: int, adapt: bool
) -> pathlib.Path:
  """Runs iterations in a lab while its links change; returns the folder."""
  # Links are cached beside a run, and labs have the same host names.
  path = out / name / 'run'
  path.parent.mkdir(parents=True)
  fields = {
    **timing.fields(
      workers=_HOSTS, iterations=iterations, size_bytes=_SIZE_BYTES, batch=16
    ),
    'sync.name': 'bsp',
    'route.name': 'forest',
    'route.forest.adapt': adapt,
  }
  words = clusters.command(
    path,
    'configs/default.py',
    fields,
    workers=_HOSTS,
    servers=0,
    dedicated=False,
  )
  lab = [sys.executable, '-m', 'tools.lab', f'--hosts={_HOSTS}']
  lab += [f'--link={_RATE // 10**6}mbit', '--']
  changer = [sys.executable, '-m', 'tests.support.changing_links']
  changer += [change, str(path)]
  return clusters.execute([*lab, *changer, *words], path, _LIMIT_S)


def _main(change: str, run: str, *words: str) -> int:
  """Runs a command inside the lab while links change."""
  changes = {'slow': _slow, 'throttle': _throttle, 'noise': _noise}
  steps = changes[change](pathlib.Path(run))
  if change == 'slow':
    next(steps)  # Before the command starts.
  else:
    threading.Thread(target=lambda: [*steps], daemon=True).start()
  return subprocess.call(words)


def _slow(run: pathlib.Path) -> Iterator[None]:
  del run
  _change(_names()[-1], _SLOW)
  yield


def _throttle(run: pathlib.Path) -> Iterator[None]:
  _wait_for_links(run)
  time.sleep(_AFTER_S)
  _change(_names()[-1], _SLOW)
  yield


def _noise(run: pathlib.Path) -> Iterator[None]:
  rng = random.Random(0)
  _wait_for_links(run)
  while True:
    for host in _names():
      _change(host, round(_RATE * rng.uniform(0.9, 1.1)))
    time.sleep(1.0)
    yield


def _wait_for_links(run: pathlib.Path) -> None:
  """Waits until links have been measured."""
  while not (run / 'cluster.json').exists():
    time.sleep(0.1)


def _change(host: str, rate: int) -> None:
  for words in lab_hosts.change_commands(
    os.environ['SYNCOPATE_LAB'], host, rate
  ):
    subprocess.run(words.split(), check=True)


def _names() -> list[str]:
  return os.environ['SYNCOPATE_HOSTS'].split(',')


if __name__ == '__main__':
  sys.exit(_main(*sys.argv[1:]))
