"""Records the times of training steps under the changing load of a host.

  python -m tools.record --out=FILE.csv [--minutes=20] [--workers=4]
    [--config=configs/vgg16_bsp.py] [--batch=64] [--seed=0]

A training step of the config's model is repeated on this host.  Meanwhile
programs run, on and off at random, that compute (two), copy memory (one) and
compile Python's standard library (one).  FILE gets a row per step: worker,
iteration, time (of its end, seconds), compute_s, and the driving factors of
cluster/speed/driving.py after it.  The workers are recorded
one after another, each for its share of the minutes.

The file is a trace for config.cluster.speed.trace and for bench.predictors.
"""

import contextlib
import csv
import itertools
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

import jax
from absl import app, flags, logging

from cluster.speed import driving
from configs import config_file, paths
from configs.checks import require
from learning import build as learning
from learning.iteration import Iteration

_MARK = '# A load of tools.record.\n'
_COMPUTES = 'while True: pass'
_COPIES = """
import numpy as np
source = np.ones({size_bytes} // 8)
target = np.empty_like(source)
while True:
  np.copyto(target, source)
"""
_COMPILES = """
import compileall, os
while True:
  compileall.compile_dir(os.path.dirname(os.__file__), force=True, quiet=2)
"""
_HOG_BYTES = 2**30  # Each of the two arrays.
# Seconds that each program is off and on, on average: exponential.
_LOADS = (
  (_COMPUTES, 8.0, 4.0),
  (_COMPUTES, 15.0, 10.0),
  (_COPIES.format(size_bytes=_HOG_BYTES), 20.0, 6.0),
  (_COMPILES, 25.0, 5.0),
)
_COLUMNS = ('worker', 'iteration', 'time', 'compute_s', *driving.NAMES)
_GRACE_S = 5.0


def main(argv: list[str]) -> None:
  """Records to the file that the flags name."""
  del argv
  values = flags.FLAGS
  try:
    require(values.minutes > 0, '--minutes', 'more than 0', values.minutes)
    require(values.workers > 0, '--workers', 'more than 0', values.workers)
    require(values.batch > 0, '--batch', 'more than 0', values.batch)
    share_s = 60 * values.minutes / values.workers
    path = pathlib.Path(values.out)
    with path.open('x', newline='', encoding='utf-8') as file:
      step = _step(values.batch)
      with _loads(values.seed):
        record(file, step, [share_s] * values.workers)
  except (ValueError, OSError) as error:
    sys.exit(f'Refused: {error}')


def record(
  file: TextIO, step: Callable[[], None], shares_s: Sequence[float]
) -> None:
  """Writes a row for each step of each worker.

  Args:
    step: Performs one step and waits for its end.
    shares_s: Seconds of the record of each worker.
  """
  writer = csv.writer(file)
  writer.writerow(_COLUMNS)
  start = time.monotonic()
  with driving.Driving() as host:
    for worker, share_s in enumerate(shares_s):
      until = time.monotonic() + share_s
      for iteration in itertools.count():
        before = time.monotonic()
        step()
        after = time.monotonic()
        measured = (after - start, after - before, *host.read())
        writer.writerow(
          (worker, iteration, *(f'{value:.5g}' for value in measured))
        )
        if after >= until:
          print(f'worker {worker}: {iteration + 1} steps', flush=True)
          break


def _step(batch: int) -> Callable[[], None]:
  """Returns a function that performs a training step of the config's model."""
  learned = learning.from_config(flags.FLAGS.config)
  learner = learned.make_learner(learned.params, learned.stats)
  numbers = itertools.count()

  def step() -> None:
    number = next(numbers)
    ranges = ((number * batch, (number + 1) * batch),)
    payload, _ = learned.gradient(
      learner.params, Iteration(ranges, worker=0, number=number)
    )
    learner.add(number, payload, batch)
    learner.commit(number)
    jax.block_until_ready(learner.params)

  for _ in range(2):  # Compiles.
    step()
  return step


@contextlib.contextmanager
def _loads(seed: int) -> Iterator[None]:
  """Starts and stops programs at random; ends them with the context."""
  over = threading.Event()
  with tempfile.TemporaryDirectory() as folder:
    threads = [
      threading.Thread(
        target=_come_and_go,
        args=(over, random.Random(f'{seed} {i}'), folder, *load),
      )
      for i, load in enumerate(_LOADS)
    ]
    for thread in threads:
      thread.start()
    try:
      yield
    finally:
      over.set()
      for thread in threads:
        thread.join()


def _come_and_go(
  over: threading.Event,
  draws: random.Random,
  folder: str,
  code: str,
  off_s: float,
  on_s: float,
) -> None:
  """Runs a program on and off until it is over."""
  environment = os.environ | {
    'PYTHONPYCACHEPREFIX': folder,
    'OMP_NUM_THREADS': '1',
  }
  while not over.wait(draws.expovariate(1 / off_s)):
    with subprocess.Popen(
      [sys.executable, '-c', _MARK + code], env=environment
    ) as load:
      try:
        over.wait(draws.expovariate(1 / on_s))
      finally:
        if load.poll() is not None:
          logging.warning('A load has ended by itself: %s', code)
        load.terminate()
        try:
          load.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
          load.kill()


def _parse(argv: list[str]) -> list[str]:
  config_file.define_flag('configs/vgg16_bsp.py', 'Whose step is recorded.')
  paths.define_path('out', 'The file, a new one.', required=True)
  flags.DEFINE_float('minutes', 20.0, 'How long to record, in all.')
  flags.DEFINE_integer('workers', 4, 'How many to record, in turn.')
  flags.DEFINE_integer('batch', 64, 'Examples of a step.')
  flags.DEFINE_integer('seed', 0, 'Of when programs come and go.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
