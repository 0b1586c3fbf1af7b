"""Follows, for each worker, the predictor that was best lately.

`last`, `ema` and `narx` all predict, and a worker's prediction is that of the
one whose squared errors, averaged with exponentially falling weights, are the
smallest for it.  All three are told everything, whoever is followed.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from predict import ema, last, predictor
from predict.online import Online


@dataclasses.dataclass
class Auto:
  """State: the predictors and how wrong they were.

  Attributes:
    discount: Weight of the newest error.
    last: Predictor.
    ema: Predictor.
    narx: Predictor.
    errors: Float64 [3, n], averages of squared errors, in the order above.
  """

  is_state = True  # Plain data: checkpoints hold it.

  discount: float
  last: last.Last
  ema: ema.Ema
  narx: Online
  errors: np.ndarray

  @property
  def followed(self) -> np.ndarray:
    """Int64 [n]: 0 for `last`, 1 for `ema`, 2 for `narx`."""
    return np.argmin(self.errors, axis=0)

  @property
  def fallback(self) -> int:
    """For how many workers `narx` is followed and has too little history."""
    return int((self.narx.falls_back & (self.followed == 2)).sum())

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Notes how wrong each predictor was, then tells all."""
    speeds, factors = predictor.checked(
      speeds,
      factors,
      num_workers=self.errors.shape[1],
      num_factors=self.last.num_factors,
    )
    missed = (self._predictions() - speeds) ** 2
    change = self.discount * (missed - self.errors)
    self.errors += np.where(np.isnan(change), 0, change)
    for member in self._members():
      member.observe(speeds, factors)

  def predict(self) -> np.ndarray:
    """Returns the next speeds, float64 [n]; NaN if never observed."""
    workers = np.arange(self.errors.shape[1])
    return self._predictions()[self.followed, workers]

  def reset(self, worker: int) -> None:
    """Forgets a worker's history and errors."""
    for member in self._members():
      member.reset(worker)
    self.errors[:, worker] = 0

  def _predictions(self) -> np.ndarray:
    return np.stack([member.predict() for member in self._members()])

  def _members(self) -> tuple[predictor.Predictor, ...]:
    return self.last, self.ema, self.narx


def make(
  *,
  num_workers: int,
  num_factors: int,
  seed: int,
  discount: float,
  ema: Mapping[str, Any],
  narx: Mapping[str, Any],
) -> Auto:
  """Returns what follows the best of three predictors.

  Args:
    num_workers: Number of workers.
    num_factors: Number of driving factors; may be 0.
    seed: Of `narx`.
    discount: Weight of the newest squared error, above 0, at most 1.
    ema: Arguments of `ema.make`, beside the first three.
    narx: Arguments of `narx.make`, beside the first three.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  predictor.check_share('discount', discount)
  members = {
    name: importlib.import_module(f'predict.{name}').make(
      num_workers=num_workers, num_factors=num_factors, seed=seed, **own
    )
    for name, own in (('last', {}), ('ema', ema), ('narx', narx))
  }
  return Auto(
    discount=discount,
    errors=np.zeros((len(members), num_workers)),
    **members,
  )
