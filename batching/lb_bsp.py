"""LB-BSP for CPUs: batches in proportion to the workers' predicted speeds.

All workers finish a superstep together, and it still has X examples.  Chen et
al., 'Fast Distributed Deep Learning via Worker-adaptive Batch Sizing', SoCC
2018; 'Semi-Dynamic Load Balancing', SoCC 2020.

If an iteration has a fixed cost, a + b * x seconds, its measured speed is lower
the fewer examples it has.  Repeated division by measured speeds still converges
to equal times, without oscillation: in each step, the logarithms of the sizes
keep the share a / (a + b * x) of their distance from the limit.

With local steps the unit of the division can be a whole step: faster workers
then take more steps of the same batch.  Liu et al., 'Asynchronous Local-SGD
training for language modeling' (dynamic local updates), arXiv 2401.09135.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from batching import allocation, batching
from batching.batching import Measurement
from batching.division import Division, divide
from configs import declared
from predict.predictor import Predictor


@dataclasses.dataclass
class LbBsp:
  """State of LB-BSP.

  Batches stay as they are unless those in proportion to the predicted speeds
  would save at least the share `threshold` of the superstep's predicted time.

  Attributes:
    threshold: Share of the time that a change must save.
    division: Division of the global batch among the workers, in units.
    predictor: Predictor of speeds, examples per second.  It observes a
      superstep's iterations at the barrier.
    pending: By worker, its iterations since the last barrier: examples,
      seconds, and the last driving factors.
    observed: Living workers of which the predictor has observations.
    unit_examples: Examples of a unit of the division: 1, or those of a step.
  """

  is_state = True  # Plain data: checkpoints hold it.

  needs_barriers: ClassVar[bool] = True
  is_adaptive: ClassVar[bool] = True

  threshold: float
  division: Division
  predictor: Predictor
  pending: dict[int, tuple[int, float, tuple[float, ...]]] = dataclasses.field(
    default_factory=dict
  )
  observed: set[int] = dataclasses.field(default_factory=set)
  unit_examples: int = 1

  @property
  def max_batch(self) -> int:
    return max(self.division.most) * self.unit_examples

  def observe(self, measurement: Measurement) -> None:
    batching.check_measurement(self.division.members, measurement)
    examples, compute_s, _ = self.pending.get(measurement.worker, (0, 0.0, ()))
    self.pending[measurement.worker] = (
      examples + measurement.examples,
      compute_s + measurement.compute_s,
      measurement.factors,
    )

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    workers = self.division.sort_living(workers)
    self._update_predictor()
    speeds = self._predict_speeds(workers)
    total, most = self.division.bounds(workers)
    sizes = allocation.proportional(
      total, list(speeds.values()), self.division.least, most
    )
    divided = self.division.change(
      dict(zip(workers, sizes, strict=True)),
      lambda worker, units: units / speeds[worker],
      self.threshold,
    )
    unit = self.unit_examples
    return {worker: units * unit for worker, units in divided.items()}

  def report(self) -> dict[str, float]:
    sizes = [n * self.unit_examples for n in self.division.sizes.values()]
    return batching.summarize_sizes(sizes) | {
      'predictor_fallback': self.predictor.num_fallback
    }

  def leave(self, worker: int) -> None:
    self.division.leave(worker)
    self.pending.pop(worker, None)
    self.observed.discard(worker)
    self.predictor.reset(worker)

  def join(self, worker: int) -> None:
    self.division.join(worker)

  def _update_predictor(self) -> None:
    """Passes pending measurements to the predictor."""
    if not self.pending:
      return
    widths = {len(factors) for *_, factors in self.pending.values() if factors}
    if len(widths) > 1:
      raise ValueError(
        'factors: expected the same number for every worker, got '
        f'{sorted(widths)}.'
      )
    count = len(self.division.most)
    speeds = np.full(count, np.nan)
    factors = np.full((count, max(widths, default=0)), np.nan)
    for worker, (examples, compute_s, read) in self.pending.items():
      speeds[worker] = examples / compute_s
      if read:
        factors[worker] = read
    self.observed |= self.pending.keys()
    self.pending = {}
    self.predictor.observe(speeds, factors)

  def _predict_speeds(self, workers: Sequence[int]) -> dict[int, float]:
    """Returns predicted speeds; for new workers, the mean of the others'."""
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
      if worker in self.observed or not math.isnan(speed)
    ]
    if not all(0 < speed < math.inf for speed in known):
      raise ValueError(f'predictor: expected speeds above 0, got {known}.')
    mean = math.fsum(known) / len(known) if known else 1.0
    return {w: mean if math.isnan(v) else v for w, v in speeds.items()}


@declared.check_arguments('batching.lb_bsp')
def make(
  *,
  num_workers: int,
  worker_batch: int,
  predictor: Predictor,
  threshold: float,
  least: int,
  most: Sequence[int],
  unit: str = 'examples',
  step_examples: int = 1,
) -> LbBsp:
  """Returns LB-BSP.

  Args:
    worker_batch: X / num_workers, examples.
    predictor: Predictor of these workers' speeds; becomes part of the state.
    threshold: Share of the predicted time of a superstep that a change of sizes
      must save, 0..1.
    least: Fewest units of a worker, at least 1.
    most: Largest number of units of a worker, for example what its memory
      holds: one number for all workers, or one each; () for no bound.
    unit: 'examples', or 'steps' to divide whole local steps.
    step_examples: Examples of a local step; `worker_batch` is a multiple.

  Raises:
    ValueError: If an argument is out of range, or if the workers may not
      compute X.
  """
  units = {'examples': 1, 'steps': step_examples}
  unit_examples = units[unit]
  return LbBsp(
    threshold=threshold,
    division=divide(
      num_workers=num_workers,
      worker_batch=worker_batch // unit_examples,
      least=least,
      most=most,
    ),
    predictor=predictor,
    unit_examples=unit_examples,
  )
