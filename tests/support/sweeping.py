"""Starts sweep.py as users do, and reads the files that it writes."""

import json
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]


def command(out: pathlib.Path, grid: str, *more: str) -> list[str]:
  """Returns the command of a sweep of short timing-only runs."""
  flags = (
    *('--config=configs/vgg16_bsp.py', '--config.model.name=none'),
    *('--config.cluster.workers=2', '--config.cluster.speed.slowdown=(1.0,)'),
    *('--config.model.none.num_train=3200', '--config.epochs=1.0'),
  )
  return [
    *(sys.executable, 'sweep.py', f'--grid={grid}', f'--out={out}'),
    *(*flags, *more),
  ]


def start(words: list[str]) -> subprocess.Popen:
  """Starts a sweep in the background."""
  return subprocess.Popen(
    words,
    cwd=ROOT,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )


def finished_runs(out: pathlib.Path) -> dict[str, int]:
  """Returns finished runs, with the times of their summaries, ns."""
  return {
    path.parent.name: path.stat().st_mtime_ns
    for path in out.glob('*/summary.json')
    if json.loads(path.read_text())['ended'] == 'finished'
  }


def wait_for(condition, limit_s: float = 60.0) -> None:
  """Waits until a condition holds."""
  deadline = time.monotonic() + limit_s
  while not condition():
    if time.monotonic() > deadline:
      raise TimeoutError('The condition does not hold in time.')
    time.sleep(0.01)


def processes_of(out: pathlib.Path) -> list[int]:
  """Returns the processes that have a file open below a folder."""
  processes = []
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      names = [str(path.readlink()) for path in (process / 'fd').iterdir()]
    except OSError:  # The process has ended.
      continue
    if any(name.startswith(f'{out}/') for name in names):
      processes.append(int(process.name))
  return processes


def starts(out: pathlib.Path) -> dict[str, int]:
  """Returns how often each run started to compile, according to its log."""
  return {
    path.parent.name: path.read_text().count('Compiling ...')
    for path in out.glob('*/log.txt')
  }


def kill(sweep: subprocess.Popen) -> None:
  """Kills only the process of a sweep, not its children."""
  sweep.send_signal(signal.SIGKILL)
  sweep.communicate(timeout=10.0)  # Its children end, too.
