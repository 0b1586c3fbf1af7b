"""Throughput of bulk-synchronous supersteps with equal and balanced batches."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import analysis
import train
from batching import allocation, lb_bsp
from batching.batching import Batching, Measurement
from bench import clusters
from bench.predictors import errors
from cluster.speed import speed as speeds
from configs import default, timing
from outputs import console

WORKERS = 4  # Of measured runs.
BATCH = 32  # Examples of a worker's iteration.
EXAMPLE_S = 0.004
_SUPERSTEPS = 60
_SKIPPED = 0.25  # Share of a run in which LB-BSP and R2SP find batches.


class Rule(Protocol):
  """Part of a `Batching` that simulated supersteps need."""

  def observe(self, measurement: Measurement) -> None:
    """Takes the measurement of a worker's iteration."""

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the batch of each worker for the next superstep."""


def simulate(
  batching: Rule, speed: speeds.Speed, supersteps: int, start: int = 0
) -> float:
  """Returns the examples per second of simulated BSP supersteps.

  Args:
    speed: Compute times of workers; transfers take no time.
    start: Iteration of the speeds with which the first superstep begins.
  """
  workers = range(speed.model.num_workers)
  time, examples = 0.0, 0
  for iteration in range(start, start + supersteps):
    sizes = batching.assign(workers)
    took = [speed.seconds(w, iteration, sizes[w]) for w in workers]
    time += max(took)
    examples += sum(sizes.values())
    for worker in workers:
      batching.observe(
        Measurement(
          worker=worker,
          time=time,
          compute_s=took[worker],
          transfer_s=0.0,
          waited_s=max(took) - took[worker],
          examples=sizes[worker],
          factors=speed.driving(worker, iteration),
        )
      )
  return examples / time


@dataclasses.dataclass
class Oracle:
  """Batching with the true speeds of the next iterations: it divides by them.

  Attributes:
    speed: Speeds of the workers.
    total: Examples of a superstep.
    iteration: The next iteration.
  """

  speed: speeds.Speed
  total: int
  iteration: int = 0

  def observe(self, measurement: Measurement) -> None:
    del measurement

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    next_speeds = [
      1 / self.speed.seconds(worker, self.iteration, 1) for worker in workers
    ]
    self.iteration += 1
    most = [self.total] * len(workers)
    sizes = allocation.proportional(self.total, next_speeds, 1, most)
    return dict(zip(workers, map(int, sizes), strict=True))


def make_lb_bsp(name: str, speed: speeds.Speed, seed: int = 0) -> Batching:
  """Returns LB-BSP with a predictor, both with default settings.

  Args:
    name: Module of predict/.
  """
  section = default.get_config().batching.lb_bsp.to_dict()
  workers, factors = speed.model.num_workers, speed.model.num_driving
  section['predictor'] = errors.make(
    name, num_workers=workers, num_factors=factors, seed=seed
  )
  return lb_bsp.make(num_workers=workers, worker_batch=BATCH, **section)


def read_speeds(
  path: pathlib.Path, value: str, order: str, driving: str
) -> tuple[speeds.Speed, int]:
  """Returns recorded speeds, and the iterations that every worker has.

  Args:
    path: CSV file with a column `worker`.
    value: Column of the times.
    order: Column by which a worker's rows are sorted.
    driving: Columns of the driving factors, with commas between them.
  """
  columns = {'worker_column': 'worker', 'order_column': order}
  columns |= {'value_column': value, 'driving_columns': driving}
  with path.open(encoding='utf-8-sig') as file:
    place = file.readline().strip().split(',').index('worker')
    workers = [line.split(',')[place] for line in file]
  counts = [workers.count(worker) for worker in dict.fromkeys(workers)]
  model = speeds.trace(
    num_workers=len(counts), seed=0, path=str(path), **columns
  )
  speed = speeds.Speed(
    fixed_s=0.0,
    per_example_s=EXAMPLE_S,
    slowdown=[1.0] * len(counts),
    model=model,
  )
  return speed, min(counts)


def solo_rate(speed: speeds.Speed, supersteps: int) -> float:
  """Returns the mean sum of the workers' solo speeds, examples per second.

  Args:
    supersteps: Number of iterations, from the first one.
  """
  workers = range(speed.model.num_workers)
  took = [[speed.seconds(w, k, 1) for w in workers] for k in range(supersteps)]
  return float(np.mean(np.sum(1 / np.array(took), axis=1)))


def measure_rates(
  out: pathlib.Path,
  sync: str,
  batching: str,
  slowdown: Sequence[float],
  *,
  lab: bool,
) -> tuple[float, float | None]:
  """Returns the examples/s of a virtual run, and with `lab` of a real one.

  Args:
    out: Folder of the runs.
    sync: Name of a scheme.
    batching: Name of a batching.
    slowdown: Slowdown of each of `WORKERS` workers.
    lab: Whether to measure real processes in a lab, too.

  Returns:
    Both rates; None for that of the real run without `lab`.
  """
  fields = {
    **timing.fields(
      workers=WORKERS,
      iterations=_SUPERSTEPS,
      size_bytes=100_000,
      batch=BATCH,
      compute_s=0.0,
    ),
    'sync.name': sync,
    'batching.name': batching,
    'cluster.speed.per_example_s': EXAMPLE_S,
    'cluster.speed.slowdown': tuple(slowdown),
  }
  path = out / f'{sync}_{batching}'
  virtual = _examples_per_s(_run(path / 'virtual', fields))
  if not lab:
    return virtual, None
  real = clusters.run(
    path / 'real',
    'configs/default.py',
    fields | {'cluster.speed.injected': True, 'route.server.mirror_s': 0.0},
    workers=WORKERS,
    link='1gbit',
  )
  return virtual, _examples_per_s(real)


def _run(path: pathlib.Path, fields: Mapping[str, Any]) -> pathlib.Path:
  with console.hidden():
    train.build(timing.config(fields), workdir=str(path))()
  return path


def _examples_per_s(path: pathlib.Path) -> float:
  """Returns the examples/s of a run after its start."""
  return analysis.pace(analysis.read(path), skipped=_SKIPPED).examples_per_s
