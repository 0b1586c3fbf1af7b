"""LB-BSP for CPUs: every worker computes in proportion to its next speed.

All end a superstep together, and it still has X examples.  Chen et al.,
'Fast Distributed Deep Learning via Worker-adaptive Batch Sizing', SoCC 2018;
'Semi-Dynamic Load Balancing', SoCC 2020.

An iteration that has a part of fixed length, a + b * x, looks slower the fewer
examples it has.  Dividing by such speeds again and again still comes to equal
times, and without swinging: each time, the logarithms of the sizes keep the
share a / (a + b * x) of their distance from there.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from batching import allocation, batching
from batching.batching import Done
from batching.division import Division, divide
from sync import scheme


class Predictor(Protocol):
  """What is needed of one of predict/."""

  fallback: int

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Takes note of speeds, [n], and factors, [n, F]; NaN where unknown."""

  def predict(self) -> np.ndarray:
    """Returns the next speeds, [n]; NaN of workers never observed."""

  def reset(self, worker: int) -> None:
    """Forgets a worker."""


@dataclasses.dataclass
class LbBsp:
  """State of LB-BSP.

  Attributes:
    threshold: Share of the time that a change must save.
    division: How X is divided.
    predictor: Of the speeds, examples per second.
    seen: By worker, what it did since the last barrier: examples, the seconds
      they took, and the last factors.
    told: Living workers that the predictor knows.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barrier: ClassVar[bool] = True
  changes: ClassVar[bool] = True

  threshold: float
  division: Division
  predictor: Predictor
  seen: dict[int, tuple[int, float, tuple[float, ...]]] = dataclasses.field(
    default_factory=dict
  )
  told: set[int] = dataclasses.field(default_factory=set)

  @property
  def largest(self) -> int:
    """The most examples that are ever assigned."""
    return max(self.division.most)

  def observe(self, done: Done) -> None:
    """Counts an iteration in; the predictor is told at the barrier."""
    batching.check_done(self.division.members, done)
    examples, compute_s, _ = self.seen.get(done.worker, (0, 0.0, ()))
    self.seen[done.worker] = (
      examples + done.examples,
      compute_s + done.compute_s,
      done.factors,
    )

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns sizes by the predicted speeds, or the last ones if they do."""
    workers = self.division.living(workers)
    self._tell()
    speeds = self._speeds(workers)
    total, most = self.division.room(workers)
    sizes = allocation.proportional(
      total, list(speeds.values()), self.division.least, most
    )
    return self.division.change(
      dict(zip(workers, sizes, strict=True)),
      lambda worker, examples: examples / speeds[worker],
      self.threshold,
    )

  def report(self) -> dict[str, float]:
    """Returns what batches are, and how many workers lack history."""
    return batching.summed(self.division.sizes.values()) | {
      'predictor_fallback': self.predictor.fallback
    }

  def leave(self, worker: int) -> None:
    """Forgets the worker."""
    self.division.leave(worker)
    self.seen.pop(worker, None)
    self.told.discard(worker)
    self.predictor.reset(worker)

  def join(self, worker: int) -> None:
    """Gives the worker a part from the next barrier on."""
    self.division.join(worker)

  def _tell(self) -> None:
    """Tells the predictor what was seen, if anything was."""
    if not self.seen:
      return
    widths = {len(factors) for *_, factors in self.seen.values() if factors}
    if len(widths) > 1:
      raise ValueError(
        f'factors: expected as many of every worker, got {sorted(widths)}.'
      )
    count = len(self.division.most)
    speeds = np.full(count, np.nan)
    factors = np.full((count, max(widths, default=0)), np.nan)
    for worker, (examples, compute_s, read) in self.seen.items():
      speeds[worker] = examples / compute_s
      if read:
        factors[worker] = read
    self.told |= self.seen.keys()
    self.seen = {}
    self.predictor.observe(speeds, factors)

  def _speeds(self, workers: Sequence[int]) -> dict[int, float]:
    """Returns predicted speeds; of new workers, the mean of the others'."""
    predicted = np.asarray(self.predictor.predict(), np.float64)
    if predicted.shape != (len(self.division.most),):
      raise ValueError(
        f'predictor: expected {len(self.division.most)} speeds, got an array '
        f'of shape {predicted.shape}.'
      )
    speeds = {worker: float(predicted[worker]) for worker in workers}
    known = [
      speed
      for worker, speed in speeds.items()
      if worker in self.told or not math.isnan(speed)
    ]
    if not all(0 < speed < math.inf for speed in known):
      raise ValueError(f'predictor: expected speeds above 0, got {known}.')
    mean = math.fsum(known) / len(known) if known else 1.0
    return {w: mean if math.isnan(v) else v for w, v in speeds.items()}


def make(
  *,
  num_workers: int,
  worker_batch: int,
  predictor: Predictor,
  threshold: float,
  least: int,
  most: Sequence[int],
) -> LbBsp:
  """Returns LB-BSP.

  Args:
    num_workers: Number of workers.
    worker_batch: X / num_workers, examples.
    predictor: Of the speeds of these workers; it becomes part of the state.
    threshold: Share of the predicted time of a superstep that a change of sizes
      must save, 0..1.
    least: Fewest examples of a worker, at least 1.
    most: The most that fit into memory: one number for all workers, or one
      each; () for no bound.

  Raises:
    ValueError: If an argument is out of range, or if X does not fit.
  """
  scheme.check_fraction('threshold', threshold)
  return LbBsp(
    threshold=threshold,
    division=divide(
      num_workers=num_workers, worker_batch=worker_batch, least=least, most=most
    ),
    predictor=predictor,
  )
