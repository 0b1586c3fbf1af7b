"""Measures the cost of checkpoints, and the time to resume a killed run.

  python -m bench.checkpoint [--pairs=3] [--epochs=6]

Cost: the same run with a checkpoint every second and with none, in turns; what
one checkpoint adds, over 30 s, is the share of wall time that one per 30 s
takes.  Resume: main.py is killed, started again, and timed from the start of
the process to the first row of a new iteration.  VGG16 (1/8) on digits.
"""

import argparse
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from configs import vgg16_elastic
from outputs import checkpoints
from sweeps import scratch

_EVERY_S = 30


def main(argv: list[str] | None = None) -> None:
  """Prints the cost of checkpoints and the time to resume."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pairs', type=int, default=3)
  parser.add_argument('--epochs', type=float, default=6.0)
  arguments = parser.parse_args(argv)
  print('checkpoints, VGG16 (1/8) on digits with ElasticBSP')
  costs_s = [_cost_s(pair, arguments.epochs) for pair in range(arguments.pairs)]
  share = statistics.median(costs_s) / _EVERY_S
  print(f'  one per {_EVERY_S} s: {share:.2%} of wall time (aim: at most 3 %)')
  print(f'  resume: {_resume_s():.1f} s to a new iteration (aim: at most 10 s)')


def _cost_s(pair: int, epochs: float) -> float:
  without_s, _ = _timed(epochs, float('inf'))
  with_s, saved = _timed(epochs, 1.0)
  cost_s = (with_s - without_s) / saved
  print(
    f'  pair {pair}: {with_s:.2f} s with {saved} checkpoints, '
    f'{without_s:.2f} s with none: {cost_s:.3f} s each'
  )
  return cost_s


def _timed(epochs: float, every_s: float) -> tuple[float, int]:
  """Returns the wall time of a run and its number of checkpoints."""
  config = vgg16_elastic.get_config()
  config.epochs = epochs
  config.checkpoint.every_s = every_s
  with scratch.trained(config) as run:
    saved = run.folder.glob('checkpoints/*')
    numbers = [int(path.name) for path in saved if path.name.isdecimal()]
  return run.summary['wall_s'], max(numbers, default=-1) + 1


def _resume_s() -> float:
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, 'main.py', '--config=configs/vgg16_elastic.py']
    command += [f'--workdir={folder}/run', '--config.log_every=1']
    command += ['--config.checkpoint.every_s=2']
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    directory = pathlib.Path(folder, 'run', 'checkpoints')
    while 1 not in checkpoints.steps(directory):
      time.sleep(0.1)
    _kill(first)
    metrics = pathlib.Path(folder, 'run', 'metrics.jsonl')
    start, size = time.perf_counter(), metrics.stat().st_size
    again = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    # The file is cut to the checkpoint first, and then grows.
    while metrics.stat().st_size <= size:
      size = metrics.stat().st_size
      time.sleep(0.01)
    took_s = time.perf_counter() - start
    _kill(again)
  return took_s


def _kill(process: subprocess.Popen) -> None:
  process.send_signal(signal.SIGKILL)
  process.wait()


if __name__ == '__main__':
  main()
