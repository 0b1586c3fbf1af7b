"""Weights of a network and of plain averages, by their past errors.

Four experts predict a worker's next speed: the last speed, two exponential
averages, and the network.  The prediction is their mean with the weights

  w_i = prior_i E_i^(-N/2) / sum_j prior_j E_j^(-N/2)

where E is the exponentially weighted mean of squared errors and N the effective
number of errors in it: the likelihood of N normal errors of that variance.  So
weights have no unit, an expert with twice the error soon gets almost none, and
similar experts share.  Aggregation of experts: Vovk, 'Aggregating strategies',
1990; if the best expert changes: Herbster and Warmuth, 'Tracking the best
expert', 1998.

Two additions of this project are for workers whose speed jumps.  Errors are
counted separately while the last speed is far from the slow average, as it is
not yet known whether the jump will last; in that time the priors favor the last
speed and the quick average.  And an expert whose error recently exceeded that
of the best expert by more than E gets this excess as its E: driving factors may
lose their effect.
"""

import dataclasses

import numpy as np

from predict import ema

EXPERTS = 4  # The last speed, a quick and a slow average, the network.
_PRIORS = np.array([[0.25, 0.25, 0.25, 0.25], [0.3, 0.6, 0.05, 0.05]])
_FAR = 2.0  # Distance in root mean square errors of the best expert.
_REGRET = 0.2  # Weight of the newest regret: about five observations.
_EXACT = 1e-8  # Errors below this share of the speed count as equal.


@dataclasses.dataclass
class Gate:
  """Predictions and errors of the experts.

  Attributes:
    smoothings: Float64 [3, 1], weights of the newest speed in the averages;
      the first is 1, which gives the last speed.
    discount: Weight of the newest squared error after the first ones.
    averages: Float64 [3, n], averages of speeds; NaN before the first.
    experts: Float64 [4, n], last prediction of each expert; NaN before one.
    errors: Float64 [2, 4, n], mean squared errors, while the averages are near
      each other and while they are apart.
    counts: Float64 [2, n], effective numbers of errors in these means.
    regrets: Float64 [4, n], average excess of recent squared errors over those
      of the best expert.
  """

  is_state = True  # Plain data: checkpoints hold it.

  smoothings: np.ndarray
  discount: float
  averages: np.ndarray
  experts: np.ndarray
  errors: np.ndarray
  counts: np.ndarray
  regrets: np.ndarray

  @property
  def apart(self) -> np.ndarray:
    """Bool [n], True where the last speed is far from the slow average."""
    usual = np.sqrt(self.errors[0].min(axis=0))
    distance = np.abs(self.averages[0] - self.averages[-1])
    apart: np.ndarray = distance > _FAR * usual
    return apart

  @property
  def weights(self) -> np.ndarray:
    """Float64 [4, n], weights of the experts, whose sum is 1."""
    apart = self.apart
    errors = np.maximum(np.where(apart, *self.errors[::-1]), self.regrets)
    errors += (_EXACT * np.nan_to_num(self.averages[0], nan=1.0)) ** 2
    counts = np.where(apart, *self.counts[::-1])
    priors = np.where(apart, *_PRIORS[::-1, :, None])
    logs = np.log(priors) - 0.5 * counts * np.log(errors)
    weights: np.ndarray = np.exp(logs - logs.max(axis=0))
    weights /= weights.sum(axis=0)
    return weights

  def observe(self, speeds: np.ndarray) -> None:
    """Updates averages and errors by observed speeds, [n]; NaN: unobserved."""
    missed = (self.experts - speeds) ** 2
    known = ~np.isnan(missed[0])
    for kind, here in enumerate((known & ~self.apart, known & self.apart)):
      counts = self.counts[kind]
      counts[:] = np.where(here, (1 - self.discount) * counts + 1, counts)
      share = np.where(here, 1 / np.maximum(counts, 1), 0)
      change = np.where(here, missed - self.errors[kind], 0)
      self.errors[kind] += share * change
    regrets = missed - missed.min(axis=0)
    change = np.where(known, regrets - self.regrets, 0)
    self.regrets += _REGRET * change
    self.averages = ema.update_average(self.averages, speeds, self.smoothings)

  def mix(self, network: np.ndarray) -> np.ndarray:
    """Returns the weighted mean of all experts' predictions, float64 [n].

    Stores the predictions in `experts`, so that the next `observe` can compare
    them with the observed speeds.

    Args:
      network: Float64 [n], the network's prediction of each worker's speed,
        examples per second.
    """
    self.experts = np.vstack([self.averages, network])
    mean: np.ndarray = (self.weights * self.experts).sum(axis=0)
    return mean

  def reset(self, worker: int) -> None:
    """Deletes a worker's averages and errors."""
    self.averages[:, worker] = self.experts[:, worker] = np.nan
    self.errors[..., worker] = self.regrets[:, worker] = 0
    self.counts[:, worker] = 0


def make(
  *, num_workers: int, quick: float, slow: float, discount: float
) -> Gate:
  """Returns a gate without observations.

  Args:
    quick: Weight of the newest speed in the quick average, above 0, at most 1.
    slow: Weight of the newest speed in the slow average, which the network
      corrects, above 0, at most 1.
    discount: Smoothing factor of the squared errors of the experts, above 0, at
      most 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  return Gate(
    smoothings=np.array([[1.0], [quick], [slow]]),
    discount=discount,
    averages=np.full((EXPERTS - 1, num_workers), np.nan),
    experts=np.full((EXPERTS, num_workers), np.nan),
    errors=np.zeros((2, EXPERTS, num_workers)),
    counts=np.zeros((2, num_workers)),
    regrets=np.zeros((EXPERTS, num_workers)),
  )
