"""Prediction of the exponential moving average of past speeds."""

import dataclasses
from typing import ClassVar

import numpy as np

from configs import declared
from predict import predictor


@dataclasses.dataclass
class Ema:
  """State of the exponential averages.

  Attributes:
    num_fallback: Always 0.
    num_factors: Number of driving factors, which have no effect.
    smoothing: Weight of the newest speed.
    speeds: Float64 [n], average speed of each worker; NaN before the first.
  """

  is_state = True  # Plain data: checkpoints hold it.

  num_fallback: ClassVar[int] = 0

  num_factors: int
  smoothing: float
  speeds: np.ndarray

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    speeds, _ = predictor.validate_observation(
      speeds,
      factors,
      num_workers=len(self.speeds),
      num_factors=self.num_factors,
    )
    self.speeds = update_average(self.speeds, speeds, self.smoothing)

  def predict(self) -> np.ndarray:
    return self.speeds.copy()

  def reset(self, worker: int) -> None:
    predictor.check_worker(worker, len(self.speeds))
    self.speeds[worker] = np.nan


def update_average(
  old: np.ndarray, speeds: np.ndarray, smoothing: float | np.ndarray
) -> np.ndarray:
  """Returns exponential averages after one more observation.

  Args:
    old: Averages before, [..., n]; NaN before the first speed.
    speeds: New speeds, [n]; NaN where there is none, which leaves the average.
    smoothing: Weight of the new speeds; the first speed has weight 1.
  """
  old = np.where(np.isnan(old), speeds, old)
  return np.where(np.isnan(speeds), old, old + smoothing * (speeds - old))


@declared.check_arguments('batching.lb_bsp.predictor.ema')
def make(
  *, num_workers: int, num_factors: int, seed: int, smoothing: float
) -> Ema:
  """Returns exponential averages of all workers' speeds.

  Driving factors and `seed` have no effect.

  Args:
    smoothing: Weight of the newest speed, above 0, at most 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  return Ema(num_factors, smoothing, np.full(num_workers, np.nan))
