"""Measures false alarms and missed stragglers of the rule of diagnosis.

  python -m bench.diagnosis [--runs=1000] [--iterations=200] [--jitter=0.1]
    [--slowdown=1.2] [--seed=0]

For 4, 16 and 64 workers, runs are simulated whose compute times have lognormal
jitter.  The first table row of each size has equal workers: the share of runs
in which any worker is blamed.  The second has one that is slower: the shares of
runs in which it is found, and in which another one is blamed.
"""

import itertools
import sys
import time

import numpy as np
from absl import app, flags

from configs.checks import require
from diagnosis import rule

_SIZES = (4, 16, 64)


def blamed(
  *,
  runs: int,
  workers: int,
  iterations: int,
  jitter: float,
  slowdown: float,
  seed: int,
) -> np.ndarray:
  """Returns which workers of simulated runs are blamed at any time.

  Args:
    runs: Number of runs.
    workers: Number of workers.
    iterations: Iterations of a run.
    jitter: Standard deviation of the logarithm of a compute time.
    slowdown: Factor of the compute times of worker 0.
    seed: Seed of the draws.

  Returns:
    Bool [runs, workers].
  """
  draws = np.random.default_rng([seed, workers])
  detector = rule.make((runs, workers))
  found = np.zeros((runs, workers), bool)
  for _ in range(iterations):
    seconds = np.exp(jitter * draws.standard_normal((runs, workers)))
    seconds[:, 0] *= slowdown
    for changed in detector.update(seconds):
      found |= changed
  return found


def show(
  *,
  runs: int = 1000,
  iterations: int = 200,
  jitter: float = 0.1,
  slowdown: float = 1.2,
  seed: int = 0,
) -> None:
  """Prints the table; arguments are those of `blamed`, defaults the page's.

  Raises:
    ValueError: If an argument is out of its range.
  """
  require(runs > 0, '--runs', '> 0', runs)
  require(iterations > 0, '--iterations', '> 0', iterations)
  require(jitter >= 0, '--jitter', '>= 0', jitter)
  require(slowdown >= 1, '--slowdown', '>= 1', slowdown)
  print('| workers | slowdown | found | another blamed | seconds |')
  print('| --- | --- | --- | --- | --- |')
  for workers, factor in itertools.product(_SIZES, (1.0, slowdown)):
    start = time.perf_counter()
    found = blamed(
      runs=runs,
      workers=workers,
      iterations=iterations,
      jitter=jitter,
      slowdown=factor,
      seed=seed,
    )
    took_s = time.perf_counter() - start
    others = found if factor == 1 else found[:, 1:]
    hit = '-' if factor == 1 else f'{found[:, 0].mean():.1%}'
    false = others.any(axis=1).mean()
    print(f'| {workers} | {factor:g} | {hit} | {false:.1%} | {took_s:.1f} |')


def main(argv: list[str]) -> None:
  """Prints the table by the flags."""
  del argv
  values = flags.FLAGS
  try:
    show(
      runs=values.runs,
      iterations=values.iterations,
      jitter=values.jitter,
      slowdown=values.slowdown,
      seed=values.seed,
    )
  except ValueError as error:
    sys.exit(f'Refused: {error}')


if __name__ == '__main__':
  flags.DEFINE_integer('runs', 1000, 'Runs of each row.')
  flags.DEFINE_integer('iterations', 200, 'Iterations of a run.')
  flags.DEFINE_float('jitter', 0.1, 'Standard deviation of a logarithm.')
  flags.DEFINE_float('slowdown', 1.2, 'Factor of the slower worker.')
  flags.DEFINE_integer('seed', 0, 'Seed.')
  app.run(main)
