"""The last observations of every worker, standardised by running statistics.

Observations are standardised by each worker's own mean and deviation, so that
one network serves workers of any speed.  Both are running statistics of the
observations so far, mainly of the last SCALE_WINDOW: they depend on nothing
that comes later.
"""

import dataclasses

import numpy as np

from configs import checks
from predict import ema, predictor

SCALE_WINDOW = 2000  # Observations that the running statistics weigh.
_FARTHEST = 5.0  # Deviations to which standardised values are clipped.


@dataclasses.dataclass
class History:
  """A ring buffer of observations per worker, and running statistics.

  Attributes:
    smoothing: Weight of the newest speed in the exponential average.
    rows: Float64 [n, capacity, F + 2]: speed, factors read after it, and the
      average after it; NaN where there is none.
    count: Int64 [n], observations since the start or the last reset.
    average: Float64 [n], exponential average of the speeds; NaN at first.
    known: Int64 [n, F + 1], numbers of speeds and factors that were not NaN.
    mean: Float64 [n, F + 1], running means of speeds and factors.
    variance: Float64 [n, F + 1], running variances of speeds and factors.
    lowest: Float64 [n], smallest speed; infinity at first.
    highest: Float64 [n], largest speed; 0 at first.
  """

  is_state = True  # Plain data: checkpoints hold it.

  smoothing: float
  rows: np.ndarray
  count: np.ndarray
  average: np.ndarray
  known: np.ndarray
  mean: np.ndarray
  variance: np.ndarray
  lowest: np.ndarray
  highest: np.ndarray

  def add(self, speeds: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Records an observation of the workers whose speed is not NaN.

    Args:
      speeds: Float64 [n], examples per second.
      factors: Float64 [n, F], driving factors.

    Returns:
      Int64 [k], the workers whose speed is not NaN.

    Raises:
      ValueError: If a shape or a value is not as in `Predictor.observe`.
    """
    speeds, factors = predictor.validate_observation(
      speeds,
      factors,
      num_workers=len(self.count),
      num_factors=self.mean.shape[1] - 1,
    )
    new = np.flatnonzero(~np.isnan(speeds))
    self.average = ema.update_average(self.average, speeds, self.smoothing)
    values = np.column_stack([speeds, factors])[new]
    self.rows[new, self.count[new] % self.rows.shape[1]] = np.column_stack(
      [values, self.average[new]]
    )
    self.count[new] += 1
    self.lowest[new] = np.minimum(self.lowest[new], speeds[new])
    self.highest[new] = np.maximum(self.highest[new], speeds[new])
    self._update_scale(new, values)
    return new

  def _update_scale(self, new: np.ndarray, values: np.ndarray) -> None:
    """Updates mean and variance: equal weights at first, exponential later."""
    known = ~np.isnan(values)
    self.known[new] += known
    weight = 1 / np.clip(self.known[new], 1, SCALE_WINDOW)
    weight = np.where(known, weight, 0)
    change = np.where(known, values - self.mean[new], 0)
    self.mean[new] += weight * change
    spread = self.variance[new] + weight * change**2
    self.variance[new] = (1 - weight) * spread

  def latest(self, length: int) -> np.ndarray:
    """Returns each worker's newest rows, standardised: [n, length, F + 2].

    Float32, oldest first; missing values are 0, the mean.
    """
    workers = np.arange(len(self.count))
    return self._standardise(workers, self._gather(workers, 0, length))

  def samples(
    self, draws: np.random.Generator, size: int, length: int
  ) -> tuple[np.ndarray, np.ndarray] | None:
    """Draws windows of observations, and the speeds that followed them.

    All windows of all workers are equally likely.

    Args:
      draws: Random generator; draws with replacement.
      length: Rows of a window.

    Returns:
      Float32 [size, length, F + 2], standardised windows, and float32 [size],
      the next speed minus the average at that time, in deviations.  None if no
      worker has a window and a speed after it.
    """
    stored = np.minimum(self.count, self.rows.shape[1])
    ends = np.cumsum(np.maximum(stored - length, 0))
    if not ends[-1]:
      return None
    drawn = draws.integers(ends[-1], size=size)
    workers = np.searchsorted(ends, drawn, side='right')
    rows = self._gather(workers, ends[workers] - 1 - drawn, length + 1)
    gain = (rows[:, -1, 0] - rows[:, -2, -1]) / self.deviation()[workers]
    gain = np.clip(gain, -_FARTHEST, _FARTHEST)
    windows = self._standardise(workers, rows[:, :-1])
    return windows, gain.astype(np.float32)

  def speeds(self, worker: int) -> np.ndarray:
    """Returns the stored speeds of a worker, oldest first, float64."""
    stored = int(min(self.count[worker], self.rows.shape[1]))
    speeds: np.ndarray = self._gather(np.array([worker]), 0, stored)[0, :, 0]
    return speeds

  def deviation(self) -> np.ndarray:
    """Returns the speeds' running standard deviations, float64 [n]; never 0."""
    deviation: np.ndarray = self._scale()[:, 0]
    return deviation

  def clip(self, speeds: np.ndarray) -> np.ndarray:
    """Returns speeds clipped to the range of each worker's past speeds."""
    clipped: np.ndarray = np.clip(speeds, self.lowest, self.highest)
    return clipped

  def reset(self, worker: int) -> None:
    """Deletes a worker's observations and statistics."""
    predictor.check_worker(worker, len(self.count))
    self.rows[worker] = self.average[worker] = np.nan
    self.count[worker] = self.known[worker] = 0
    self.mean[worker] = self.variance[worker] = self.highest[worker] = 0
    self.lowest[worker] = np.inf

  def _gather(
    self, workers: np.ndarray, before: np.ndarray | int, length: int
  ) -> np.ndarray:
    """Returns rows, [k, length, F + 2], up to the one `before` the newest."""
    newest = self.count[workers] - 1 - before
    numbers = newest[:, None] + np.arange(1 - length, 1)
    # A number below zero leads to a row that has not been written: NaN.
    rows: np.ndarray = self.rows[workers[:, None], numbers % self.rows.shape[1]]
    return rows

  def _scale(self) -> np.ndarray:
    deviation = np.sqrt(self.variance)
    # Constant values are 0 when standardised, whatever the divisor.
    return np.where(deviation > 0, deviation, 1)

  def _standardise(self, workers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    # The average has the scale of the speeds.
    columns = [*range(self.mean.shape[1]), 0]
    mean, scale = self.mean[:, columns], self._scale()[:, columns]
    rows = (rows - mean[workers, None]) / scale[workers, None]
    rows = np.clip(np.nan_to_num(rows, copy=False), -_FARTHEST, _FARTHEST)
    return rows.astype(np.float32)


def make(
  *, num_workers: int, num_factors: int, capacity: int, smoothing: float
) -> History:
  """Returns an empty history.

  Args:
    capacity: Number of observations that are stored per worker.
    smoothing: Weight of the newest speed in the average, above 0, at most 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  checks.check_integer('capacity', capacity, at_least=2)
  shape = (num_workers, num_factors + 1)
  return History(
    smoothing=smoothing,
    rows=np.full((num_workers, capacity, num_factors + 2), np.nan),
    count=np.zeros(num_workers, np.int64),
    average=np.full(num_workers, np.nan),
    known=np.zeros(shape, np.int64),
    mean=np.zeros(shape),
    variance=np.zeros(shape),
    lowest=np.full(num_workers, np.inf),
    highest=np.zeros(num_workers),
  )
