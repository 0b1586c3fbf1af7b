"""Measures how long a worker that joins holds the others up.

  python -m bench.joining [--mb=200] [--mbit=200] [--modes=member,catching_up]

Three workers train over a ring, on hosts of a lab (root only) with links of
`--mbit`, an MLP whose state with AdamW takes `--mb`.  Then a fourth one joins.
In the mode `member` it fetches the whole state as a member of the next epoch;
in the mode `catching_up`, as always, while the others train.  The table has a
superstep before, the longest one until it has taken part in one, the time in
which the members had no sum as the epoch began, and a superstep of all four.
"""

import itertools
import math
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

import analysis
from analysis import printing
from bench import flag_lists
from launch import lab, processes
from launch.processes import Command

_LIMIT_S, _POLL_S = 240.0, 0.1
_BEFORE, _AFTER = 4, 4  # Supersteps.
_MODES = {
  'member': """
from cluster.allreduce import catching_up
catching_up.CatchingUp.add = lambda self, index: None
""",
  'catching_up': '',
}
_CONFIG = """
from configs import default
{code}

def get_config():
  return default.get_config()
"""
Rows = list[dict[str, Any]]
_WORKERS, _STATES = 4, 3  # Parameters, and two moments of AdamW.
_BATCH, _PIXELS = 8, 4


def main(argv: list[str]) -> None:
  """Measures and prints the table."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  if not values.hosts:
    words = [sys.executable, '-m', 'tools.lab', f'--hosts={_WORKERS}']
    words += [f'--link={values.mbit}mbit', '--', sys.executable, '-m']
    words += ['bench.joining', '--hosts', *sys.argv[1:]]
    subprocess.run(words, check=True)
    return
  rows = [('mode', 'superstep s', 'longest s', 'without sums s', 'with all s')]
  rows += [(mode, *_measure(mode, values.mb)) for mode in values.modes]
  print(printing.markdown(rows), flush=True)


def _measure(mode: str, mb: int) -> tuple[str, ...]:
  """Returns the cells of one run."""
  folder = pathlib.Path(tempfile.mkdtemp())
  config = folder / 'config.py'
  config.write_text(_CONFIG.format(code=_MODES[mode]))
  workers = [_worker(rank, config, folder, mb) for rank in range(_WORKERS)]
  with processes.start(workers[:-1], folder) as group:
    _await(folder, lambda rows: len(_times(rows)) > _BEFORE)
    group.start(workers[-1])
    _await(folder, lambda rows: len(_times(rows, after='join')) > _AFTER)
    for worker in workers:
      group.signal(worker.name, signal.SIGTERM)
    group.wait(_LIMIT_S)
  rows = _read(folder)
  times = _times(rows)
  usual = [b - a for a, b in itertools.pairwise(times)][1 : _BEFORE - 1]
  until = _times(rows, after='join')[1]
  near = [time_ for time_ in times if time_ <= until]
  durations = [b - a for a, b in itertools.pairwise(near)][_BEFORE:]
  after = [b - a for a, b in itertools.pairwise(_times(rows, after='join'))]
  log = (folder / 'worker0.log').read_text().splitlines()
  print(*(line for line in log if 'Worker 3' in line), sep='\n', flush=True)
  waited = next(line for line in log if ' runs after ' in line).split()
  return (
    f'{statistics.median(usual):.2f}',
    f'{max(durations):.2f}',
    waited[-2],
    f'{statistics.median(after):.2f}',
  )


def _worker(
  rank: int, config: pathlib.Path, folder: pathlib.Path, mb: int
) -> Command:
  """Returns the process of a worker on its host."""
  width = round(math.sqrt(mb * 1e6 / 4 / _STATES))
  fields = {
    'epochs': 1000.0,
    'eval_every': 1000.0,
    'log_every': 10**6,
    'model.name': 'mlp',
    'model.mlp.hidden': f'({width},{width})',
    'data.name': 'synthetic',
    'data.synthetic.num_train': 10 * _BATCH * _WORKERS,
    'data.synthetic.num_test': _BATCH,
    'data.synthetic.pixels': _PIXELS,
    'data.synthetic.channels': 1,
    'batching.worker_batch': _BATCH,
    'optimizer.name': 'adamw',
    'route.name': 'ring',
    'checkpoint.every_s': 'inf',
    'cluster.runtime': 'distributed',
    'cluster.workers': _WORKERS,
    'cluster.min_workers': _WORKERS - 1,
    'cluster.timeout_s': 10.0,
    'cluster.interface': 'eth0',
  }
  words = [sys.executable, 'main.py', f'--config={config}']
  words += [f'--config.{name}={value}' for name, value in fields.items()]
  words += [f'--workdir={folder / "run"}', f'--role=worker:{rank}']
  words += ['--coordinator=host0:61500']
  argv = lab.command(f'host{rank}', words)
  return Command(f'worker{rank}', argv, {'JAX_PLATFORMS': 'cpu'})


def _await(folder: pathlib.Path, is_reached: Callable[[Rows], bool]) -> None:
  """Waits until the events of the run fulfil a condition."""
  deadline = time.monotonic() + _LIMIT_S
  while not is_reached(_read(folder)):
    if time.monotonic() > deadline:
      raise TimeoutError((folder / 'worker0.log').read_text())
    time.sleep(_POLL_S)


def _read(folder: pathlib.Path) -> Rows:
  """Returns the whole rows of events.jsonl so far."""
  path = folder / 'run'
  if not (path / 'events.jsonl').exists():
    return []
  return analysis.read(path).read_event_rows()


def _times(rows: Rows, after: str = '') -> list[float]:
  """Returns the ends of supersteps, those after an event if one is named."""
  names = [row['event'] for row in rows]
  if after and after not in names:
    return []
  rows = rows[names.index(after) :] if after else rows
  return [
    row['time'] for row in rows if row['event'] == 'push' and row['worker'] == 0
  ]


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer('mb', 200, 'Size of the state, MB.', lower_bound=1)
  flags.DEFINE_integer('mbit', 200, 'Rate of all links, Mbit/s.', lower_bound=1)
  flag_lists.define_choices('modes', [*_MODES], 'Modes, a row of each.')
  flags.DEFINE_bool('hosts', False, 'For itself: it runs in the lab.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
