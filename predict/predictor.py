"""What a predictor of worker speeds is told, and what it answers.

How much a worker should compute depends on how fast it will be, so its speed
is predicted one iteration ahead.  A predictor is a dataclass of plain data for
all workers at once, made by `make(...)` of the module that the config names;
its methods change it in place.  It reads no clock and does no I/O, and what it
predicts depends on what it has been told before, on nothing that comes later.
"""

import numbers
from typing import Protocol

import numpy as np

# What is far outside could not be squared, and is no speed of any machine.
_SMALLEST, _LARGEST = 1e-100, 1e100


class Predictor(Protocol):
  """How fast will each worker's next iteration be?

  Attributes:
    fallback: How many workers' last prediction is one of averages alone, as
      there was too little history to do better.
  """

  fallback: int

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Takes in an iteration of each worker.

    Args:
      speeds: Float64 [n], examples per second; NaN for a worker that has not
        ended another iteration, of which nothing is taken in then.
      factors: Float64 [n, F], driving factors read after that iteration: they
        are the current ones of the next.  NaN where none was read.

    Raises:
      ValueError: If a shape or a value is not as described.
    """

  def predict(self) -> np.ndarray:
    """Returns the next speeds, float64 [n], above 0; NaN if never observed."""

  def reset(self, worker: int) -> None:
    """Forgets a worker's history: who comes back may be another machine."""


def checked(
  speeds: np.ndarray,
  factors: np.ndarray,
  *,
  num_workers: int,
  num_factors: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns an observation as float64 arrays.

  Raises:
    ValueError: If a shape or a value is not as `Predictor.observe` wants it.
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
      f'{speeds[worker]} of worker {worker}.'
    )
  good = (np.isnan(factors) | (np.abs(factors) <= _LARGEST)).all(axis=1)
  if not good.all():
    worker = int(np.argmin(good))
    raise ValueError(
      f'factors: expected {-_LARGEST} to {_LARGEST} or NaN, got '
      f'{factors[worker].tolist()} of worker {worker}.'
    )
  return speeds, factors


def check_sizes(num_workers: int, num_factors: int, seed: int) -> None:
  """Raises ValueError unless the arguments of every `make` are in range."""
  check_integer('num_workers', num_workers, at_least=1)
  check_integer('num_factors', num_factors, at_least=0)
  check_integer('seed', seed, at_least=0)
  if seed >= 2**64:
    raise ValueError(f'seed: expected less than 2^64, got {seed}.')


def check_worker(worker: int, num_workers: int) -> None:
  """Raises ValueError unless there is such a worker."""
  if not 0 <= worker < num_workers:
    raise ValueError(f'worker: expected 0 to {num_workers - 1}, got {worker}.')


def check_integer(name: str, value: object, *, at_least: int) -> None:
  """Raises ValueError unless `value` is an integer that is large enough."""
  integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not integral or value < at_least:
    raise ValueError(
      f'{name}: expected an integer of at least {at_least}, got {value!r}.'
    )


def check_share(name: str, value: object) -> None:
  """Raises ValueError unless `value` is a number above 0 and at most 1."""
  real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  if not real or not 0 < value <= 1:
    raise ValueError(
      f'{name}: expected a number above 0 and at most 1, got {value!r}.'
    )
