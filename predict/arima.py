"""An ARIMA(p, d, q) model per worker, by statsmodels.

With w the speeds, differenced d times (0 or 1) and less their mean if d = 0:

  w[k] = sum_i phi_i w[k-i] + e[k] + sum_j theta_j e[k-j]

Parameters are estimated by maximum likelihood, which takes tens of
milliseconds.  Each observation therefore fits at most one worker, the one whose
last fit is oldest, to its last speeds.  In between, predictions and their
errors e follow from the equation, for all workers at once.  So a cluster of n
workers fits each of them every max(refit, n) observations.  Box and Jenkins,
'Time series analysis', 1970.  Driving factors have no effect.
"""

import dataclasses
import warnings

import numpy as np
from scipy import signal
from statsmodels.tsa.arima import model as statsmodels

from configs import checks, declared
from predict import history, predictor


@dataclasses.dataclass
class Arima:
  """State of the models of all workers.

  Before a worker's first fit, its exponential average is predicted.
  Predictions are clipped to the range of the worker's past speeds.

  Attributes:
    order: Orders p, d and q of the models.
    refit: Number of observations of a worker between its fits.
    needed: Number of observations of a worker before its first fit.
    history: Past observations.
    fitted_at: Int64 [n], number of observations at the last attempt to fit.
    has_model: Bool [n], True for workers with a model.
    mean: Float64 [n], mean of the fitted speeds if d = 0, else 0.
    phi: Float64 [n, p], autoregressive coefficients.
    theta: Float64 [n, q], moving-average coefficients.
    values: Float64 [n, p], past w, newest first.
    errors: Float64 [n, q], past e, newest first.
    last: Float64 [n], last speed; NaN before the first.
  """

  is_state = True  # Plain data: checkpoints hold it.

  order: tuple[int, int, int]
  refit: int
  needed: int
  history: history.History
  fitted_at: np.ndarray
  has_model: np.ndarray
  mean: np.ndarray
  phi: np.ndarray
  theta: np.ndarray
  values: np.ndarray
  errors: np.ndarray
  last: np.ndarray

  @property
  def num_fallback(self) -> int:
    return int(((self.history.count > 0) & ~self.has_model).sum())

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    new = self.history.add(speeds, factors)
    if not len(new):
      return
    speeds = np.asarray(speeds, np.float64)[new]
    base = self._base()[new]
    values = np.where(np.isnan(base), 0.0, speeds - base)
    errors = values - self._predict_values()[new]
    self.values[new] = _shift(self.values[new], values)
    self.errors[new] = _shift(self.errors[new], errors)
    self.last[new] = speeds
    age = self.history.count - self.fitted_at
    due = np.where(self.fitted_at == 0, self.needed, self.refit)
    if (age >= due).any():
      self._fit(int(np.argmax(np.where(age >= due, age, -1))))

  def predict(self) -> np.ndarray:
    speeds = self.history.clip(self._base() + self._predict_values())
    return np.where(self.has_model, speeds, self.history.average)

  def reset(self, worker: int) -> None:
    self.history.reset(worker)
    self.fitted_at[worker] = self.mean[worker] = 0
    self.has_model[worker] = False
    for array in (self.phi, self.theta, self.values, self.errors):
      array[worker] = 0
    self.last[worker] = np.nan

  def _base(self) -> np.ndarray:
    """Returns the speeds from which w is measured, float64 [n]."""
    return self.last if self.order[1] else self.mean

  def _predict_values(self) -> np.ndarray:
    """Returns the predicted next w, float64 [n]."""
    values: np.ndarray = (self.phi * self.values).sum(axis=1) + (
      self.theta * self.errors
    ).sum(axis=1)
    return values

  def _fit(self, worker: int) -> None:
    p, d, q = self.order
    speeds = self.history.speeds(worker)
    self.fitted_at[worker] = self.history.count[worker]
    mean = 0.0 if d else float(speeds.mean())
    values = np.diff(speeds) if d else speeds - mean
    scale = float(values.std())
    if scale <= 1e-9 * float(speeds.mean()):
      return  # Constant speeds: there is nothing to estimate.
    phi, theta = _estimate(values / scale, p, q)
    errors = signal.lfilter(np.r_[1, -phi], np.r_[1, theta], values)
    self.has_model[worker] = True
    self.mean[worker] = mean
    self.phi[worker], self.theta[worker] = phi, theta
    self.values[worker] = values[::-1][:p]
    self.errors[worker] = errors[::-1][:q]


@declared.check_arguments('batching.lb_bsp.predictor.arima')
def make(
  *,
  num_workers: int,
  num_factors: int,
  seed: int,
  p: int,
  d: int,
  q: int,
  kept: int,
  needed: int,
  refit: int,
  smoothing: float,
) -> Arima:
  """Returns an ARIMA model per worker.

  Args:
    num_factors: Number of driving factors, which have no effect.
    seed: Has no effect: nothing is random.
    p: Number of past values in the model.
    d: 1 to model differences of speeds, else 0.
    q: Number of past errors in the model.
    kept: Number of speeds of a worker that are fitted, the newest.
    needed: Number of observations of a worker before its first fit.
    refit: Number of observations of a worker between its fits.
    smoothing: Weight of the newest speed in the average that is predicted
      before the first fit.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  least = 4 * (p + d + q) + 4
  checks.require(needed >= least, 'needed', f'at least {least}', needed)
  checks.require(kept >= least, 'kept', f'at least {least}', kept)
  return Arima(
    order=(p, d, q),
    refit=refit,
    needed=needed,
    history=history.make(
      num_workers=num_workers,
      num_factors=num_factors,
      capacity=kept,
      smoothing=smoothing,
    ),
    fitted_at=np.zeros(num_workers, np.int64),
    has_model=np.zeros(num_workers, bool),
    mean=np.zeros(num_workers),
    phi=np.zeros((num_workers, p)),
    theta=np.zeros((num_workers, q)),
    values=np.zeros((num_workers, p)),
    errors=np.zeros((num_workers, q)),
    last=np.full(num_workers, np.nan),
  )


def _estimate(
  values: np.ndarray, p: int, q: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns maximum likelihood estimates of phi, [p], and theta, [q]."""
  with warnings.catch_warnings():
    # Warnings of replaced starting values and of a search that ends early: the
    # estimate is then less likely, but stationary and invertible.
    warnings.simplefilter('ignore')
    params = statsmodels.ARIMA(values, order=(p, 0, q), trend='n').fit(
      return_params=True, method_kwargs={'maxiter': 50}
    )
  return params[:p], params[p : p + q]


def _shift(old: np.ndarray, newest: np.ndarray) -> np.ndarray:
  """Returns rows with the newest value in front, without the oldest one."""
  return np.column_stack([newest, old])[:, : old.shape[1]]
