"""Prediction of the last speed: the baseline of all predictors."""

import dataclasses
from typing import ClassVar

import numpy as np

from predict import predictor


@dataclasses.dataclass
class Last:
  """State of the predictor of the last speed.

  Attributes:
    num_fallback: Always 0.
    num_factors: Number of driving factors, which have no effect.
    speeds: Float64 [n], last speed of each worker; NaN before the first.
  """

  is_state = True  # Plain data: checkpoints hold it.

  num_fallback: ClassVar[int] = 0

  num_factors: int
  speeds: np.ndarray

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    speeds, _ = predictor.validate_observation(
      speeds,
      factors,
      num_workers=len(self.speeds),
      num_factors=self.num_factors,
    )
    self.speeds = np.where(np.isnan(speeds), self.speeds, speeds)

  def predict(self) -> np.ndarray:
    return self.speeds.copy()

  def reset(self, worker: int) -> None:
    predictor.check_worker(worker, len(self.speeds))
    self.speeds[worker] = np.nan


def make(*, num_workers: int, num_factors: int, seed: int) -> Last:
  """Returns the predictor of the last speed.

  Driving factors and `seed` have no effect.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  return Last(num_factors, np.full(num_workers, np.nan))
