"""LB-BSP for GPUs, whose time does not grow with a batch that is small.

With the curve of every worker (see curves.py) all end a superstep together by
these; without, batching/windowed.py finds out by trying.  Chen et al.,
SoCC 2018 (curves) and 'Semi-Dynamic Load Balancing', SoCC 2020 (windows).

A curve comes from one measurement of an idle device, so it is scaled by how
long iterations take, relative to what it says: an exponential average.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from batching import allocation, batching
from batching.batching import Done
from batching.curves import Curve, check_curve
from batching.division import Division, divide
from batching.windowed import Windowed
from sync import scheme


@dataclasses.dataclass
class LbBspGpu:
  """State of LB-BSP with curves.

  Attributes:
    threshold: Share of the time that a change must save.
    smoothing: Weight of the newest iteration in a scale.
    curves: Of the workers, as measured.
    division: How X is divided.
    scales: Float [num_workers], times over those of the curve; NaN before a
      worker's first iteration.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barrier: ClassVar[bool] = True
  changes: ClassVar[bool] = True

  threshold: float
  smoothing: float
  curves: list[Curve]
  division: Division
  scales: list[float]

  @property
  def largest(self) -> int:
    """The most examples that are ever assigned."""
    return max(self.division.most)

  def observe(self, done: Done) -> None:
    """Scales the worker's curve."""
    batching.check_done(self.division.members, done)
    scale = self.scales[done.worker]
    newest = done.compute_s / self.curves[done.worker].seconds(done.examples)
    if math.isnan(scale):
      scale = newest
    self.scales[done.worker] = scale + self.smoothing * (newest - scale)

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns sizes of equal times, or the last ones if they do."""
    workers = self.division.living(workers)
    scales = [self.scales[worker] for worker in workers]
    known = [scale for scale in scales if not math.isnan(scale)]
    mean = math.fsum(known) / len(known) if known else 1.0
    total, most = self.division.room(workers)
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
    """Returns the sum, the least and the largest batch."""
    return batching.summed(self.division.sizes.values())

  def leave(self, worker: int) -> None:
    """Forgets the worker's scale."""
    self.division.leave(worker)
    self.scales[worker] = math.nan

  def join(self, worker: int) -> None:
    """Gives the worker a part from the next barrier on."""
    self.division.join(worker)


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
    num_workers: Number of workers.
    worker_batch: X / num_workers, examples.
    curves: One for all workers, or one each; () for none.
    smoothing: With curves: weight of the newest iteration in a curve's scale,
      above 0, at most 1.
    window: Without curves: supersteps that times are averaged over, at first.
    step: Without curves: examples that a worker hands to another, at first.
    threshold: Share of the time of a superstep that a change of sizes must
      save, 0..1; without curves, that the last worker ends later than the
      first.
    least: Fewest examples of a worker, at least 1.
    most: The most that fit into memory: one number for all workers, or one
      each; () for no bound.  A curve's own bound holds, too.

  Raises:
    ValueError: If an argument is out of range, or if X does not fit.
  """
  scheme.check_fraction('threshold', threshold)
  scheme.check_fraction('smoothing', smoothing)
  if not smoothing:
    raise ValueError('smoothing: expected more than 0, or scales never change.')
  scheme.check_integer('window', window, at_least=1)
  scheme.check_integer('step', step, at_least=1)
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
  own = _each(curves, num_workers=num_workers, least=least)
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


def _each(
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
      scheme.check_integer('most', curve.most, at_least=least)
  return list(curves) * (num_workers // len(curves))
