"""ARIMA(p, d, q) for each worker alone, by statsmodels.

With w the speeds, differenced d times (0 or 1) and less their mean if d = 0:

  w[k] = sum_i phi_i w[k-i] + e[k] + sum_j theta_j e[k-j]

Parameters are estimated by maximum likelihood, which takes tens of
milliseconds: at most one worker's per observation, the one that has waited
longest, and of its last speeds only.  In between, predictions and their errors
e follow from the equation, for all workers at once.  So a cluster of n workers
fits each of them every max(refit, n) observations.  Box and Jenkins, 'Time
series analysis', 1970.  Driving factors have no effect.
"""

import dataclasses
import warnings

import numpy as np
from scipy import signal
from statsmodels.tsa.arima import model as statsmodels

from predict import history, predictor


@dataclasses.dataclass
class Arima:
  """State of all workers' models.

  Attributes:
    order: p, d and q.
    refit: Observations of a worker between its fits.
    needed: Observations of a worker before its first fit.
    history: What has been observed.
    fitted_at: Int64 [n], observations at the last try to fit.
    fitted: Bool [n], who has a model.
    mean: Float64 [n], of the speeds that were fitted if d = 0, else 0.
    phi: Float64 [n, p].
    theta: Float64 [n, q].
    values: Float64 [n, p], past w, newest first.
    errors: Float64 [n, q], past e, newest first.
    last: Float64 [n], the last speed; NaN if there is none.
  """

  is_state = True  # Plain data: checkpoints hold it.

  order: tuple[int, int, int]
  refit: int
  needed: int
  history: history.History
  fitted_at: np.ndarray
  fitted: np.ndarray
  mean: np.ndarray
  phi: np.ndarray
  theta: np.ndarray
  values: np.ndarray
  errors: np.ndarray
  last: np.ndarray

  @property
  def fallback(self) -> int:
    """How many workers have no model yet: their average is predicted."""
    return int(((self.history.count > 0) & ~self.fitted).sum())

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Takes an observation in, and fits one worker at most."""
    new = self.history.add(speeds, factors)
    if not len(new):
      return
    speeds = np.asarray(speeds, np.float64)[new]
    known = self._base()[new]
    values = np.where(np.isnan(known), 0.0, speeds - known)
    errors = values - self._expected()[new]
    self.values[new] = _pushed(self.values[new], values)
    self.errors[new] = _pushed(self.errors[new], errors)
    self.last[new] = speeds
    waited = self.history.count - self.fitted_at
    due = np.where(self.fitted_at == 0, self.needed, self.refit)
    if (waited >= due).any():
      self._fit(int(np.argmax(np.where(waited >= due, waited, -1))))

  def predict(self) -> np.ndarray:
    """Returns the next speeds, float64 [n]; NaN if never observed.

    They are never beyond the slowest and the fastest that the worker has been.
    """
    speeds = self.history.within(self._base() + self._expected())
    return np.where(self.fitted, speeds, self.history.average)

  def reset(self, worker: int) -> None:
    """Forgets a worker's history and model."""
    self.history.reset(worker)
    self.fitted_at[worker] = self.mean[worker] = 0
    self.fitted[worker] = False
    for array in (self.phi, self.theta, self.values, self.errors):
      array[worker] = 0
    self.last[worker] = np.nan

  def _base(self) -> np.ndarray:
    """What w is measured from."""
    return self.last if self.order[1] else self.mean

  def _expected(self) -> np.ndarray:
    """The next w."""
    return (self.phi * self.values).sum(axis=1) + (
      self.theta * self.errors
    ).sum(axis=1)

  def _fit(self, worker: int) -> None:
    p, d, q = self.order
    speeds = self.history.speeds(worker)
    self.fitted_at[worker] = self.history.count[worker]
    mean = 0.0 if d else float(speeds.mean())
    values = np.diff(speeds) if d else speeds - mean
    scale = float(values.std())
    if scale <= 1e-9 * float(speeds.mean()):
      return  # It never changes: nothing to estimate.
    phi, theta = _estimated(values / scale, p, q)
    errors = signal.lfilter(np.r_[1, -phi], np.r_[1, theta], values)
    self.fitted[worker] = True
    self.mean[worker] = mean
    self.phi[worker], self.theta[worker] = phi, theta
    self.values[worker] = values[::-1][:p]
    self.errors[worker] = errors[::-1][:q]


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
    num_workers: Number of workers.
    num_factors: Number of driving factors, which have no effect.
    seed: Has no effect: nothing is random.
    p: Past values.
    d: 1 to model differences of speeds, else 0.
    q: Past errors.
    kept: Speeds of a worker that are fitted, the newest.
    needed: Observations of a worker before its first fit.
    refit: Observations of a worker between its fits.
    smoothing: Weight of the newest speed in the average that is predicted
      before the first fit.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  for name, value in (('p', p), ('d', d), ('q', q)):
    predictor.check_integer(name, value, at_least=0)
  if d > 1:
    raise ValueError(f'd: expected 0 or 1, got {d}.')
  least = 4 * (p + d + q) + 4
  predictor.check_integer('needed', needed, at_least=least)
  predictor.check_integer('kept', kept, at_least=least)
  predictor.check_integer('refit', refit, at_least=1)
  return Arima(
    order=(p, d, q),
    refit=refit,
    needed=needed,
    history=history.make(
      num_workers=num_workers,
      num_factors=num_factors,
      kept=kept,
      smoothing=smoothing,
    ),
    fitted_at=np.zeros(num_workers, np.int64),
    fitted=np.zeros(num_workers, bool),
    mean=np.zeros(num_workers),
    phi=np.zeros((num_workers, p)),
    theta=np.zeros((num_workers, q)),
    values=np.zeros((num_workers, p)),
    errors=np.zeros((num_workers, q)),
    last=np.full(num_workers, np.nan),
  )


def _estimated(
  values: np.ndarray, p: int, q: int
) -> tuple[np.ndarray, np.ndarray]:
  """Maximum likelihood estimates of phi [p] and theta [q]."""
  with warnings.catch_warnings():
    # Of starting values that it replaces, and of a search that it ends early:
    # the estimate is then a worse one, but stationary and invertible.
    warnings.simplefilter('ignore')
    params = statsmodels.ARIMA(values, order=(p, 0, q), trend='n').fit(
      return_params=True, method_kwargs={'maxiter': 50}
    )
  return params[:p], params[p : p + q]


def _pushed(old: np.ndarray, newest: np.ndarray) -> np.ndarray:
  """Rows with one more value in front, and the oldest dropped."""
  return np.column_stack([newest, old])[:, : old.shape[1]]
