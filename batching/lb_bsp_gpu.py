"""LB-BSP for GPUs, where the time of a small batch does not depend on its size.

With a measured curve of every worker (see curves.py), the curves give batches
that finish together; without curves, batching/windowed.py finds them by trial.
Chen et al., SoCC 2018 (curves) and 'Semi-Dynamic Load Balancing', SoCC 2020
(windows).

A curve comes from one measurement of an idle device.  It is therefore scaled by
an exponential average of measured time over predicted time.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from batching import allocation, batching
from batching.batching import Measurement
from batching.curves import Curve, check_curve
from batching.division import Division, divide
from batching.windowed import Windowed
from configs import checks, declared


@dataclasses.dataclass
class LbBspGpu:
  """State of LB-BSP with curves.

  Batches stay as they are unless those of equal predicted times would save at
  least the share `threshold` of the superstep's predicted time.

  Attributes:
    threshold: Share of the time that a change must save.
    smoothing: Weight of the newest iteration in a scale.
    curves: Measured curve of each worker.
    division: Division of the global batch among the workers.
    scales: Float [num_workers], average of measured over predicted time; NaN
      before a worker's first iteration, and again after it has left.
  """

  is_state = True  # Plain data: checkpoints hold it.

  needs_barriers: ClassVar[bool] = True
  is_adaptive: ClassVar[bool] = True

  threshold: float
  smoothing: float
  curves: list[Curve]
  division: Division
  scales: list[float]

  @property
  def max_batch(self) -> int:
    return max(self.division.most)

  def observe(self, measurement: Measurement) -> None:
    batching.check_measurement(self.division.members, measurement)
    worker = measurement.worker
    scale, curve = self.scales[worker], self.curves[worker]
    newest = measurement.compute_s / curve.seconds(measurement.examples)
    if math.isnan(scale):
      scale = newest
    self.scales[worker] = scale + self.smoothing * (newest - scale)

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    workers = self.division.sort_living(workers)
    scales = [self.scales[worker] for worker in workers]
    known = [scale for scale in scales if not math.isnan(scale)]
    mean = math.fsum(known) / len(known) if known else 1.0
    total, most = self.division.bounds(workers)
    scaled = {
      worker: self.curves[worker]
      .scaled(mean if math.isnan(scale) else scale)
      ._replace(most=bound)
      for worker, scale, bound in zip(workers, scales, most, strict=True)
    }
    sizes = allocation.equal_time(
      total, list(scaled.values()), self.division.least
    )
    return self.division.change(
      dict(zip(workers, sizes, strict=True)),
      lambda worker, examples: scaled[worker].seconds(examples),
      self.threshold,
    )

  def report(self) -> dict[str, float]:
    return batching.summarize_sizes(self.division.sizes.values())

  def leave(self, worker: int) -> None:
    self.division.leave(worker)
    self.scales[worker] = math.nan

  def join(self, worker: int) -> None:
    self.division.join(worker)


@declared.check_arguments('batching.lb_bsp_gpu')
def make(
  *,
  num_workers: int,
  worker_batch: int,
  curves: Sequence[Curve],
  smoothing: float,
  window: int,
  step: int,
  threshold: float,
  least: int,
  most: Sequence[int],
) -> LbBspGpu | Windowed:
  """Returns LB-BSP with curves, or with windows if there are no curves.

  Args:
    worker_batch: X / num_workers, examples.
    curves: One for all workers, or one each; () for none.
    smoothing: With curves: weight of the newest iteration in a curve's scale,
      above 0, at most 1.
    window: Without curves: initial number of supersteps that are averaged.
    step: Without curves: initial number of examples that move to another
      worker.
    threshold: With curves: share of a superstep's predicted time that a change
      must save, 0..1.  Without: share of the slowest worker's time by which
      another must be faster.
    least: Fewest examples of a worker, at least 1.
    most: Largest batch that fits into memory: one number for all workers, or
      one each; () for no bound.  A curve's own bound holds as well.

  Raises:
    ValueError: If an argument is out of range, or if the workers may not
      compute X.
  """
  division = divide(
    num_workers=num_workers, worker_batch=worker_batch, least=least, most=most
  )
  if not curves:
    return Windowed(
      threshold=threshold,
      first_window=window,
      first_step=step,
      division=division,
    )
  own = _expand_curves(curves, num_workers=num_workers, least=least)
  bounds = [
    bound if curve.most is None else min(bound, curve.most)
    for bound, curve in zip(division.most, own, strict=True)
  ]
  return LbBspGpu(
    threshold=threshold,
    smoothing=smoothing,
    curves=own,
    division=dataclasses.replace(division, most=bounds),
    scales=[math.nan] * num_workers,
  )


def _expand_curves(
  curves: Sequence[Curve], *, num_workers: int, least: int
) -> list[Curve]:
  """Returns one curve for each worker."""
  if len(curves) not in (1, num_workers):
    raise ValueError(
      f'curves: expected no, one or {num_workers} curves, got {len(curves)}.'
    )
  for curve in curves:
    check_curve(curve)
    if curve.most is not None:
      checks.check_integer('most', curve.most, at_least=least)
  return list(curves) * (num_workers // len(curves))
