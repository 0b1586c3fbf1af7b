"""Interface of speed predictors, and the checks that they share.

The number of examples that a worker should compute depends on its speed in the
next iteration, so that a predictor forecasts speeds one iteration ahead.  It is
a dataclass of plain data for all workers at once, created by `make(...)` of the
module that the config names; its methods change it in place.  It reads no clock
and does no I/O.  A prediction depends on earlier observations alone.
"""

from typing import Protocol

import numpy as np

from configs import checks

# Speeds and factors beyond these could overflow when squared.
_SMALLEST, _LARGEST = 1e-100, 1e100


class Predictor(Protocol):
  """Predictor of the speed of each worker's next iteration."""

  @property
  def num_fallback(self) -> int:
    """Number of workers that averages alone predict, for lack of history."""

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Records an iteration of each worker.

    Args:
      speeds: Float64 [n], examples per second; NaN for a worker that has not
        finished another iteration, whose factors are then ignored.
      factors: Float64 [n, F], driving factors read after that iteration, which
        are current in the next one.  NaN where none was read.

    Raises:
      ValueError: If a shape or a value is not as described.
    """

  def predict(self) -> np.ndarray:
    """Returns each worker's predicted speed in its next iteration, float64 [n].

    In examples per second, above 0; NaN for a worker that was never observed.
    """

  def reset(self, worker: int) -> None:
    """Deletes a worker's history: it may rejoin on another machine."""


def validate_observation(
  speeds: np.ndarray,
  factors: np.ndarray,
  *,
  num_workers: int,
  num_factors: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the arguments of `Predictor.observe` as float64 arrays.

  Arrays of that dtype are returned as they are, not copied.

  Raises:
    ValueError: If a shape or a value is not as `Predictor.observe` expects.
  """
  speeds = np.asarray(speeds, np.float64)
  factors = np.asarray(factors, np.float64)
  for name, array, shape in (
    ('speeds', speeds, (num_workers,)),
    ('factors', factors, (num_workers, num_factors)),
  ):
    if array.shape != shape:
      raise ValueError(
        f'{name}: expected the shape {shape}, got {array.shape}.'
      )
  good = np.isnan(speeds) | ((speeds >= _SMALLEST) & (speeds <= _LARGEST))
  if not good.all():
    worker = int(np.argmin(good))
    raise ValueError(
      f'speeds: expected {_SMALLEST} to {_LARGEST} or NaN, got '
      f'{speeds[worker]} for worker {worker}.'
    )
  good = (np.isnan(factors) | (np.abs(factors) <= _LARGEST)).all(axis=1)
  if not good.all():
    worker = int(np.argmin(good))
    raise ValueError(
      f'factors: expected {-_LARGEST} to {_LARGEST} or NaN, got '
      f'{factors[worker].tolist()} for worker {worker}.'
    )
  return speeds, factors


def check_sizes(num_workers: int, num_factors: int, seed: int) -> None:
  """Raises ValueError unless the arguments of every `make` are in range."""
  checks.check_integer('num_workers', num_workers, at_least=1)
  checks.check_integer('num_factors', num_factors, at_least=0)
  checks.check_integer('seed', seed, at_least=0)
  if seed >= 2**64:
    raise ValueError(f'seed: expected less than 2^64, got {seed}.')


def check_worker(worker: int, num_workers: int) -> None:
  """Raises ValueError unless `worker` is in 0..num_workers - 1."""
  if not 0 <= worker < num_workers:
    raise ValueError(f'worker: expected 0 to {num_workers - 1}, got {worker}.')
