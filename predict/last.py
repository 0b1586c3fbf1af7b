"""The next iteration will be as fast as the last: the yardstick."""

import dataclasses
from typing import ClassVar

import numpy as np

from predict import predictor


@dataclasses.dataclass
class Last:
  """State: what was seen last.

  Attributes:
    num_factors: How many there are; they have no effect.
    speeds: Float64 [n]; NaN where there is none yet.
  """

  is_state = True  # Plain data: checkpoints hold it.

  fallback: ClassVar[int] = 0

  num_factors: int
  speeds: np.ndarray

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Keeps the new speeds."""
    speeds, _ = predictor.checked(
      speeds,
      factors,
      num_workers=len(self.speeds),
      num_factors=self.num_factors,
    )
    self.speeds = np.where(np.isnan(speeds), self.speeds, speeds)

  def predict(self) -> np.ndarray:
    """Returns each worker's last speed, float64 [n]; NaN if there is none."""
    return self.speeds.copy()

  def reset(self, worker: int) -> None:
    """Forgets a worker's speed."""
    predictor.check_worker(worker, len(self.speeds))
    self.speeds[worker] = np.nan


def make(*, num_workers: int, num_factors: int, seed: int) -> Last:
  """Returns the memoryless predictor.

  Args:
    num_workers: Number of workers.
    num_factors: Number of driving factors, which have no effect.
    seed: Has no effect: nothing is random.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  return Last(num_factors, np.full(num_workers, np.nan))
