"""The next iteration will be as fast as the last ones: exponential average."""

import dataclasses
from typing import ClassVar

import numpy as np

from predict import predictor


@dataclasses.dataclass
class Ema:
  """State: the averages.

  Attributes:
    num_factors: How many there are; they have no effect.
    smoothing: Weight of the newest speed.
    speeds: Float64 [n]; NaN where there is none yet.
  """

  is_state = True  # Plain data: checkpoints hold it.

  fallback: ClassVar[int] = 0

  num_factors: int
  smoothing: float
  speeds: np.ndarray

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Moves the averages towards the new speeds."""
    speeds, _ = predictor.checked(
      speeds,
      factors,
      num_workers=len(self.speeds),
      num_factors=self.num_factors,
    )
    self.speeds = average(self.speeds, speeds, self.smoothing)

  def predict(self) -> np.ndarray:
    """Returns the averages, float64 [n]; NaN where there is none yet."""
    return self.speeds.copy()

  def reset(self, worker: int) -> None:
    """Forgets a worker's average."""
    predictor.check_worker(worker, len(self.speeds))
    self.speeds[worker] = np.nan


def average(
  old: np.ndarray, speeds: np.ndarray, smoothing: float
) -> np.ndarray:
  """Returns averages moved by `smoothing` of the way to the speeds.

  The first speed is the average of one; where there is no new speed the
  average stays.  Both are NaN where there is none.
  """
  old = np.where(np.isnan(old), speeds, old)
  return np.where(np.isnan(speeds), old, old + smoothing * (speeds - old))


def make(
  *, num_workers: int, num_factors: int, seed: int, smoothing: float
) -> Ema:
  """Returns exponential averages.

  Args:
    num_workers: Number of workers.
    num_factors: Number of driving factors, which have no effect.
    seed: Has no effect: nothing is random.
    smoothing: Weight of the newest speed, above 0, at most 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  predictor.check_share('smoothing', smoothing)
  return Ema(num_factors, smoothing, np.full(num_workers, np.nan))
