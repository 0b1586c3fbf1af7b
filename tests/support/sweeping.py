"""Starts sweep.py as users do, and looks at what it has left."""

import json
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]


def command(out: pathlib.Path, grid: str, *more: str) -> list[str]:
  """A sweep of runs of two workers without a model, a moment each."""
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
  """A sweep that goes on by itself."""
  return subprocess.Popen(
    words,
    cwd=ROOT,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )


def finished(out: pathlib.Path) -> dict[str, int]:
  """Runs that have finished, and when their summaries were written, ns."""
  return {
    path.parent.name: path.stat().st_mtime_ns
    for path in out.glob('*/summary.json')
    if json.loads(path.read_text())['ended'] == 'finished'
  }


def wait_for(condition, limit_s: float = 60.0) -> None:
  """Returns once a condition holds."""
  deadline = time.monotonic() + limit_s
  while not condition():
    if time.monotonic() > deadline:
      raise TimeoutError('Expected it to come about.')
    time.sleep(0.01)


def of_folder(out: pathlib.Path) -> list[int]:
  """Processes that have a file open below a folder."""
  found = []
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      names = [str(path.readlink()) for path in (process / 'fd').iterdir()]
    except OSError:  # It has ended.
      continue
    if any(name.startswith(f'{out}/') for name in names):
      found.append(int(process.name))
  return found


def starts(out: pathlib.Path) -> dict[str, int]:
  """How often each run began to compile, by its log."""
  return {
    path.parent.name: path.read_text().count('Compiling ...')
    for path in out.glob('*/log.txt')
  }


def kill(sweep: subprocess.Popen) -> None:
  """Kills a sweep, and nothing that it has started."""
  sweep.send_signal(signal.SIGKILL)
  sweep.communicate(timeout=10.0)  # All that it has started ends, too.
