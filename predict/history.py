"""The last observations of every worker, and its running scale.

What is learnt from is standardised by each worker's own mean and deviation, so
that one network serves workers of any speed.  Both are running ones, of what
has been seen so far and mainly of the last REMEMBERED observations: nothing
that comes later is in them.
"""

import dataclasses

import numpy as np

from predict import ema, predictor

REMEMBERED = 2000  # Observations, by the running scale.
_FARTHEST = 5.0  # Deviations; what is farther out counts as this far.


@dataclasses.dataclass
class History:
  """A ring of rows per worker, by the number of the observation.

  Attributes:
    smoothing: Weight of the newest speed in the exponential average.
    rows: Float64 [n, kept, F + 2]: speed, factors read after it, and the
      average after it; NaN where there is none.
    count: Int64 [n], observations since the start or the last reset.
    average: Float64 [n], exponential average of the speeds, NaN at first.
    known: Int64 [n, F + 1], how many speeds and factors were not NaN.
    mean: Float64 [n, F + 1], running.
    variance: Float64 [n, F + 1], running.
    lowest: Float64 [n], the smallest speed; infinity at first.
    highest: Float64 [n], the largest speed; 0 at first.
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
    """Takes an observation in, where the speed is not NaN.

    Args:
      speeds: Float64 [n].
      factors: Float64 [n, F].

    Returns:
      Int64 [k], the workers that it is of.

    Raises:
      ValueError: If a shape or a value is not as in `Predictor.observe`.
    """
    speeds, factors = predictor.checked(
      speeds,
      factors,
      num_workers=len(self.count),
      num_factors=self.mean.shape[1] - 1,
    )
    new = np.flatnonzero(~np.isnan(speeds))
    self.average = ema.average(self.average, speeds, self.smoothing)
    values = np.column_stack([speeds, factors])[new]
    self.rows[new, self.count[new] % self.rows.shape[1]] = np.column_stack(
      [values, self.average[new]]
    )
    self.count[new] += 1
    self.lowest[new] = np.minimum(self.lowest[new], speeds[new])
    self.highest[new] = np.maximum(self.highest[new], speeds[new])
    self._move_scale(new, values)
    return new

  def _move_scale(self, new: np.ndarray, values: np.ndarray) -> None:
    """Equal weights at first, exponential ones later."""
    known = ~np.isnan(values)
    self.known[new] += known
    weight = 1 / np.clip(self.known[new], 1, REMEMBERED)
    weight = np.where(known, weight, 0)
    change = np.where(known, values - self.mean[new], 0)
    self.mean[new] += weight * change
    spread = self.variance[new] + weight * change**2
    self.variance[new] = (1 - weight) * spread

  def latest(self, length: int) -> np.ndarray:
    """Returns each worker's newest rows, standardised: [n, length, F + 2].

    Oldest first, float32; what is missing is 0, the mean.
    """
    workers = np.arange(len(self.count))
    return self._standardised(workers, self._gather(workers, 0, length))

  def samples(
    self, draws: np.random.Generator, size: int, length: int
  ) -> tuple[np.ndarray, np.ndarray] | None:
    """Draws windows and the speeds that came after them.

    All that are kept are equally likely, whoever's they are.

    Args:
      draws: Draws them, with replacement.
      size: How many.
      length: Rows of a window.

    Returns:
      Float32 [size, length, F + 2], standardised windows, and float32 [size],
      how far the next speed was above the average at that time, in deviations.
      None if nobody has a window and a speed after it.
    """
    kept = np.minimum(self.count, self.rows.shape[1])
    ends = np.cumsum(np.maximum(kept - length, 0))
    if not ends[-1]:
      return None
    drawn = draws.integers(ends[-1], size=size)
    workers = np.searchsorted(ends, drawn, side='right')
    rows = self._gather(workers, ends[workers] - 1 - drawn, length + 1)
    gain = (rows[:, -1, 0] - rows[:, -2, -1]) / self.deviation()[workers]
    gain = np.clip(gain, -_FARTHEST, _FARTHEST)
    windows = self._standardised(workers, rows[:, :-1])
    return windows, gain.astype(np.float32)

  def speeds(self, worker: int) -> np.ndarray:
    """Returns a worker's speeds that are kept, oldest first, float64."""
    kept = int(min(self.count[worker], self.rows.shape[1]))
    return self._gather(np.array([worker]), 0, kept)[0, :, 0]

  def deviation(self) -> np.ndarray:
    """Returns the speeds' running standard deviations, float64 [n]; never 0."""
    return self._scale()[:, 0]

  def within(self, speeds: np.ndarray) -> np.ndarray:
    """Returns speeds no farther out than the worker's own have ever been."""
    return np.clip(speeds, self.lowest, self.highest)

  def reset(self, worker: int) -> None:
    """Forgets a worker."""
    predictor.check_worker(worker, len(self.count))
    self.rows[worker] = self.average[worker] = np.nan
    self.count[worker] = self.known[worker] = 0
    self.mean[worker] = self.variance[worker] = self.highest[worker] = 0
    self.lowest[worker] = np.inf

  def _gather(
    self, workers: np.ndarray, before: np.ndarray | int, length: int
  ) -> np.ndarray:
    """Rows [k, length, F + 2] up to the one `before` the newest."""
    newest = self.count[workers] - 1 - before
    numbers = newest[:, None] + np.arange(1 - length, 1)
    # A number below zero meets a row that has not been written: NaN.
    return self.rows[workers[:, None], numbers % self.rows.shape[1]]

  def _scale(self) -> np.ndarray:
    deviation = np.sqrt(self.variance)
    # What has never changed is 0 when standardised, whatever it is divided by.
    return np.where(deviation > 0, deviation, 1)

  def _standardised(self, workers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    # The average is measured as the speeds are.
    columns = [*range(self.mean.shape[1]), 0]
    mean, scale = self.mean[:, columns], self._scale()[:, columns]
    rows = (rows - mean[workers, None]) / scale[workers, None]
    rows = np.clip(np.nan_to_num(rows, copy=False), -_FARTHEST, _FARTHEST)
    return rows.astype(np.float32)


def make(
  *, num_workers: int, num_factors: int, kept: int, smoothing: float
) -> History:
  """Returns an empty history.

  Args:
    num_workers: Number of workers, n.
    num_factors: Number of driving factors, F.
    kept: Observations per worker.
    smoothing: Weight of the newest speed in the average, above 0, at most 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_integer('kept', kept, at_least=2)
  predictor.check_share('smoothing', smoothing)
  shape = (num_workers, num_factors + 1)
  return History(
    smoothing=smoothing,
    rows=np.full((num_workers, kept, num_factors + 2), np.nan),
    count=np.zeros(num_workers, np.int64),
    average=np.full(num_workers, np.nan),
    known=np.zeros(shape, np.int64),
    mean=np.zeros(shape),
    variance=np.zeros(shape),
    lowest=np.full(num_workers, np.inf),
    highest=np.zeros(num_workers),
  )
