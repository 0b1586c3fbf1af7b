"""Shows diagnosis and tuning on a slow cluster: make demo.

  python -m tools.demo [--out=DIR] [--run_s=20]

Builds a lab (tools/lab.py) of four hosts of which one has a slow link, trains a
small model with BSP and a slow worker, says what is slow (tools/diagnose.py),
finds a faster config (tools/tune) and writes a page that compares both runs
(tools/report.py).  Needs root, Linux and iproute2, and some minutes.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from absl import app, flags

import analysis
from analysis import diagnosing, report
from configs import paths
from configs.checks import require
from launch import lab, processes
from sweeps import child

_HOSTS = 4
_LINK, _SLOW = '200mbit', '20mbit'
_LINKS = {'hosts': {'host1': {'up': _SLOW, 'down': _SLOW}}}
_INTRODUCTION = (
  f'A lab of {_HOSTS} hosts with links of {_LINK}, one of {_SLOW} (host1).  '
  'Worker 3 computes three times as long\nas the others.  BSP trains first, '
  'then three candidates; this takes some minutes.'
)


def main(argv: list[str]) -> None:
  """Runs the demonstration."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  folder = pathlib.Path(flags.FLAGS.out or f'runs/demo-{now}')
  try:
    lab.check_machine()
    expected = 'a folder that does not exist'
    require(not folder.exists(), '--out', expected, str(folder))
    folder.mkdir(parents=True)
    print(f'{_INTRODUCTION}\n', flush=True)
    print(conclude(folder, tune(folder, flags.FLAGS.run_s)))
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def tune(folder: pathlib.Path, run_s: float) -> str:
  """Tunes configs/demo.py in a lab; returns what tools.tune has printed.

  Args:
    run_s: Length of each run.

  Raises:
    SystemExit: If tools.tune fails, with its exit code.
    OSError: If a file cannot be written.
  """
  links = folder / 'links.json'
  links.write_text(json.dumps(_LINKS))
  root = pathlib.Path(__file__).parents[1]
  words = [
    *(f'--hosts={_HOSTS}', f'--link={_LINK}', f'--links={links}', '--'),
    *(sys.executable, '-m', 'tools.tune', f'--workers={_HOSTS}'),
    f'--config={root / "configs/demo.py"}',
    '--config.cluster.speed.injected=True',
    *(f'--run_s={run_s}', f'--workdir={folder / "runs"}'),
    f'--out={folder / "faster.py"}',
  ]
  done = subprocess.run(
    child.bound_command('tools.lab', *words),
    env=os.environ | {'PYTHONPATH': processes.python_path()},
    stdout=subprocess.PIPE,
    text=True,
    check=False,
  )
  if done.returncode:
    sys.exit(done.returncode)
  return done.stdout


def conclude(folder: pathlib.Path, tuning: str) -> str:
  """Returns diagnosis, tuning and comparison as text, and writes the page.

  Args:
    folder: Folder of the demonstration, with the files of tools.tune.
    tuning: Output of tools.tune.

  Raises:
    ValueError: If a file is broken.
    OSError: If a file cannot be read or written.
  """
  content = json.loads((folder / 'faster.json').read_text())
  before = pathlib.Path(content['present']['measured'][0]['folder'])
  found = diagnosing.diagnose_run(analysis.read(before))
  slow = [each.sentence for each in found]
  after = _winner(content)
  lines = ['What is slow (tools.diagnose):', *slow, '']
  lines += ['What is faster (tools.tune):', tuning.rstrip(), '']
  runs = {'before': before}
  if after is not None:
    runs['after'] = pathlib.Path(after['folder'])
    measured = (content['present']['measured'][0], after)
    lines += [
      _pace(name, path, each)
      for (name, path), each in zip(runs.items(), measured, strict=True)
    ]
  written = report.write_page(report.read(runs.values()), folder)
  return '\n'.join([*lines, f'Page: {pathlib.Path(written).resolve()}'])


def _winner(content: dict[str, Any]) -> dict[str, Any] | None:
  """Returns the measurements of the winner; None without one."""
  for row in content['candidates']:
    if row['name'] == content['winner']:
      measured: dict[str, Any] = row['measured']
      return measured
  return None


def _pace(name: str, path: pathlib.Path, measured: dict[str, Any]) -> str:
  summary = analysis.read(path).summary or {}
  return (
    f'{name.capitalize():7}{measured["iteration_s"]["value"]:.3f} s an '
    f'iteration, workers wait {summary["waiting_share"]:.0%} of the time'
  )


if __name__ == '__main__':
  paths.define_path('out', 'Folder; by default a new one under runs/.')
  flags.DEFINE_float('run_s', 20.0, 'Seconds of each run.')
  app.run(main)
