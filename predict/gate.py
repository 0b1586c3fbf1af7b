"""Weighs a network against plain averages of the last speeds, by its errors.

Four experts predict a worker's next speed: the last one, two exponential
averages, and the network.  What is predicted is their mean, with weights

  w_i = prior_i E_i^(-N/2) / sum_j prior_j E_j^(-N/2)

E being the mean of the squared errors of the last observations, of older ones
exponentially less, and N how many these count for: the likelihood of N normal
errors whose variance is as measured.  So weights have no unit, whoever is twice
as bad is soon out, and those who are alike share.  Aggregation of experts:
Vovk, 'Aggregating strategies', 1990; of ones that take turns in being the best:
Herbster and Warmuth, 'Tracking the best expert', 1998.

Two things are this project's, for workers whose speed jumps.  Errors are
counted apart while the last speed is far from the slow average: whether a jump
is to stay is a question of its own, and until it is answered the last speed and
the quick average are trusted.  And who was lately worse than the best of the
time, by more than E, is taken to be as bad as that: factors may stop to tell.
"""

import dataclasses

import numpy as np

from predict import ema, predictor

EXPERTS = 4  # The last speed, a quick and a slow average, the network.
_PRIORS = np.array([[0.25, 0.25, 0.25, 0.25], [0.3, 0.6, 0.05, 0.05]])
_FAR = 2.0  # Root mean square errors of the best; the averages are apart then.
_LATELY = 0.2  # Weight of the newest regret: about five observations.
_EXACT = 1e-8  # Errors of less than this share of the speed are alike.


@dataclasses.dataclass
class Gate:
  """State: what the experts say and how wrong they were.

  Attributes:
    smoothings: Float64 [3, 1], weights of the newest speed in the averages;
      the first is 1, which is the last speed.
    discount: Weight of the newest squared error, once there are enough.
    averages: Float64 [3, n]; NaN where there is none yet.
    experts: Float64 [4, n], what each has predicted; NaN if nothing.
    errors: Float64 [2, 4, n], mean squares, while the averages are near each
      other and while they are apart.
    counts: Float64 [2, n], how many errors these are of, discounted.
    regrets: Float64 [4, n], how much larger squared errors were lately than
      the best expert's of the time.
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
    """Bool [n], whose last speed is far from the slow average."""
    usual = np.sqrt(self.errors[0].min(axis=0))
    return np.abs(self.averages[0] - self.averages[-1]) > _FAR * usual

  @property
  def weights(self) -> np.ndarray:
    """Float64 [4, n], of the experts; they sum to 1."""
    apart = self.apart
    errors = np.maximum(np.where(apart, *self.errors[::-1]), self.regrets)
    errors += (_EXACT * np.nan_to_num(self.averages[0], nan=1.0)) ** 2
    counts = np.where(apart, *self.counts[::-1])
    priors = np.where(apart, *_PRIORS[::-1, :, None])
    logs = np.log(priors) - 0.5 * counts * np.log(errors)
    weights = np.exp(logs - logs.max(axis=0))
    return weights / weights.sum(axis=0)

  def observe(self, speeds: np.ndarray) -> None:
    """Notes how wrong each expert was; NaN is no observation."""
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
    self.regrets += _LATELY * change
    self.averages = ema.average(self.averages, speeds, self.smoothings)

  def mix(self, network: np.ndarray) -> np.ndarray:
    """Returns the weighted mean of all experts, float64 [n].

    Args:
      network: Float64 [n], what the last of them predicts.
    """
    self.experts = np.vstack([self.averages, network])
    return (self.weights * self.experts).sum(axis=0)

  def reset(self, worker: int) -> None:
    """Forgets a worker."""
    self.averages[:, worker] = self.experts[:, worker] = np.nan
    self.errors[..., worker] = self.regrets[:, worker] = 0
    self.counts[:, worker] = 0


def make(
  *, num_workers: int, quick: float, slow: float, discount: float
) -> Gate:
  """Returns a gate that has seen nothing.

  Args:
    num_workers: Number of workers, n.
    quick: Weight of the newest speed in one average, above 0, at most 1.
    slow: The same of the other, which the network corrects.
    discount: Weight of the newest squared error, above 0, at most 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_share('quick', quick)
  predictor.check_share('smoothing', slow)
  predictor.check_share('discount', discount)
  return Gate(
    smoothings=np.array([[1.0], [quick], [slow]]),
    discount=discount,
    averages=np.full((EXPERTS - 1, num_workers), np.nan),
    experts=np.full((EXPERTS, num_workers), np.nan),
    errors=np.zeros((2, EXPERTS, num_workers)),
    counts=np.zeros((2, num_workers)),
    regrets=np.zeros((EXPERTS, num_workers)),
  )
