"""Models of compute times: a cost per batch times a factor that varies.

The config names a function of this module, which returns the model of the
factors.  A factor depends on the seed, the worker and the iteration only, never
on earlier calls: random ones come from Philox, a counter-based generator
(Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).  So a model
has no state that a checkpoint must hold.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cluster.speed import traces
from cluster.speed.islands import IslandLinks
from configs import declared
from configs.checks import require

_BLOCK = 256  # Draws at a time, to spread the cost of a generator.


class Model(Protocol):
  """Model of the factors of all workers' compute times.

  Attributes:
    num_workers: Number of workers.
    num_driving: Number of driving factors.
  """

  num_workers: int
  num_driving: int = 0

  def factor(self, worker: int, iteration: int) -> float:
    """Returns the factor of an iteration, numbered from 0."""

  def driving(self, worker: int, iteration: int) -> tuple[float, ...]:
    """Returns the driving factors that are read after an iteration."""
    return ()


@dataclasses.dataclass
class Speed:
  """Compute times of all workers.

  Attributes:
    fixed_s: Seconds of an iteration that do not depend on its batch.
    per_example_s: Seconds of each example.
    slowdown: Float [num_workers], constant factor of each worker of the model.
    least_s: Least seconds of an iteration before factors: a small batch does
      not fill a GPU.
    model: Model of the factors that vary from iteration to iteration.
    hosts: Number of the model's workers that form one worker of the run, an
      island.  They divide its batch evenly, and the last one to end sets the
      time.
    links: Links inside islands, whose transfers add to the time; None without
      islands.

  Raises:
    ValueError: If a time is negative or not finite or both are 0, or if
      `slowdown` is not one positive number for each worker of the model.
  """

  fixed_s: float
  per_example_s: float
  slowdown: Sequence[float]
  model: Model
  least_s: float = 0.0
  hosts: int = 1
  links: IslandLinks | None = None

  def __post_init__(self) -> None:
    declared.check(
      'cluster.speed',
      fixed_s=self.fixed_s,
      per_example_s=self.per_example_s,
      least_s=self.least_s,
      slowdown=list(self.slowdown),
    )
    total = self.fixed_s + self.per_example_s
    require(total > 0, 'fixed_s + per_example_s', 'seconds > 0', total)
    workers = self.model.num_workers
    require(
      len(self.slowdown) == workers,
      'slowdown',
      f'{workers} numbers, one for each worker',
      self.slowdown,
    )
    self.slowdown = [float(value) for value in self.slowdown]

  def seconds(self, worker: int, iteration: int, batch: int) -> float:
    """Returns the seconds that a worker computes in one iteration.

    Those of an island include the transfers inside it.

    Args:
      worker: Index of the worker.
      iteration: Number of the iteration, from 0.
      batch: Number of examples in it.

    Raises:
      ValueError: If an argument is out of its range.
    """
    workers = len(self.slowdown) // self.hosts
    if not (0 <= worker < workers and iteration >= 0 and batch >= 0):
      raise ValueError(
        f'Expected worker from 0 to {workers - 1}, iteration >= 0 '
        f'and batch >= 0, got {worker}, {iteration} and {batch}.'
      )
    share = -(-batch // self.hosts)
    base_s = max(self.least_s, self.fixed_s + self.per_example_s * share)
    first = worker * self.hosts
    slowest_s = max(
      base_s * self.slowdown[k] * self.model.factor(k, iteration)
      for k in range(first, first + self.hosts)
    )
    inside_s = self.links.seconds(worker, batch) if self.links else 0.0
    return slowest_s + inside_s

  def driving(self, worker: int, iteration: int) -> tuple[float, ...]:
    """Returns the driving factors that a worker reads after an iteration.

    Those of an island are its leader's.
    """
    return self.model.driving(worker * self.hosts, iteration)


def constant(*, num_workers: int, seed: int) -> Model:
  """Returns a model whose factor is always 1.

  Args:
    num_workers: Number of workers.
    seed: Has no effect: nothing is random.

  Raises:
    ValueError: If an argument is out of its range.
  """
  _check(num_workers, seed)
  return _Constant(num_workers)


@declared.check_arguments('cluster.speed.lognormal')
def lognormal(*, num_workers: int, seed: int, sigma: float) -> Model:
  """Returns a model of independent lognormal factors of mean 1.

  A factor is exp(sigma z - sigma^2 / 2) with z standard normal.

  Args:
    num_workers: Number of workers.
    seed: Seed of the draws, from 0 to 2^64 - 1.
    sigma: Standard deviation of the logarithm of a factor; may be 0.

  Raises:
    ValueError: If an argument is out of its range.
  """
  _check(num_workers, seed)
  return _Lognormal(num_workers, sigma, _Draws(seed, 'standard_normal'))


@declared.check_arguments('cluster.speed.regime')
def regime(
  *,
  num_workers: int,
  seed: int,
  factors: Sequence[float],
  stay: float,
  sigma: float = 0.0,
  noise: float = 0.0,
) -> Model:
  """Returns a model in which workers change between fast and slow stretches.

  Each worker follows a Markov chain over `factors` of its own, from the first
  of them on: it keeps its factor for the next iteration with probability
  `stay`, and otherwise takes one of the others, all equally likely.  A stretch
  lasts 1 / (1 - stay) iterations on average, and if stay < 1 each factor holds
  equally often in the long run.  The driving factor is the share of a processor
  that the next iteration has: one over its factor, as measured.

  Args:
    num_workers: Number of workers.
    seed: Seed of the draws, from 0 to 2^64 - 1.
    factors: At least two factors.
    stay: Probability from 0 to 1.
    sigma: Sigma of a lognormal factor within a stretch, as in `lognormal`.
    noise: Standard deviation of the driving factor's logarithm.

  Raises:
    ValueError: If an argument is out of its range.
  """
  _check(num_workers, seed)
  require(len(factors) >= 2, 'factors', 'at least two', factors)
  values = [float(value) for value in factors]
  chains = _Draws(seed, 'random')
  return _Regime(
    num_workers,
    values,
    stay,
    chains,
    sigma=sigma,
    noise=noise,
    jitter=_Draws(seed, 'standard_normal', stream=1),
    readings=_Draws(seed, 'standard_normal', stream=2),
  )


def trace(
  *,
  num_workers: int,
  seed: int,
  path: str,
  worker_column: str,
  order_column: str,
  value_column: str,
  driving_columns: str = '',
) -> Model:
  """Returns a model that replays times measured on a real cluster.

  A factor is a recorded value divided by the mean of all of them.  Worker i
  replays the i-th worker of the file, in the order of first appearance; workers
  beyond the last begin with the first one again, and so does each series with
  its first value.

  Args:
    num_workers: Number of workers.
    seed: Has no effect: nothing is random.
    path: CSV file with a header.
    worker_column: Column that identifies the worker.
    order_column: Column of numbers by which a worker's rows are sorted.
    value_column: Column of the times, in any unit.
    driving_columns: Columns of the driving factors, read after the iteration,
      with commas between them.

  Raises:
    ValueError: If the file cannot be read, lacks a column or has no rows, if a
      number in it is none or not finite or a time is not positive, or if
      another argument is out of its range.
  """
  _check(num_workers, seed)
  names = driving_columns.split(',') if driving_columns else []
  rows = traces.rows(
    path,
    names,
    worker_column=worker_column,
    order_column=order_column,
    value_column=value_column,
  )
  mean = math.fsum(row.value for row in rows) / len(rows)
  series: dict[str, list[float]] = {row.worker: [] for row in rows}
  driving: dict[str, list[tuple[float, ...]]] = {row.worker: [] for row in rows}
  for row in sorted(rows, key=lambda row: row.order):
    series[row.worker].append(row.value / mean)
    driving[row.worker].append(row.driving)
  return _Trace(
    num_workers, [*series.values()], [*driving.values()], num_driving=len(names)
  )


@dataclasses.dataclass
class _Constant(Model):
  num_workers: int

  def factor(self, worker: int, iteration: int) -> float:
    del worker, iteration
    return 1.0


@dataclasses.dataclass
class _Lognormal(Model):
  num_workers: int
  sigma: float
  draws: '_Draws'

  def factor(self, worker: int, iteration: int) -> float:
    return _jitter(self.sigma, self.draws.draw(worker, iteration))


@dataclasses.dataclass
class _Regime(Model):
  num_workers: int
  factors: list[float]
  stay: float
  draws: '_Draws'
  sigma: float
  noise: float
  jitter: '_Draws'
  readings: '_Draws'
  num_driving: int = 1
  # States of each worker's chain so far, as indices of `factors`.
  chains: dict[int, list[int]] = dataclasses.field(default_factory=dict)

  def factor(self, worker: int, iteration: int) -> float:
    factor = self._stretch(worker, iteration)
    if not self.sigma:
      return factor
    return factor * _jitter(self.sigma, self.jitter.draw(worker, iteration))

  def driving(self, worker: int, iteration: int) -> tuple[float, ...]:
    share = 1 / self._stretch(worker, iteration + 1)
    z = self.readings.draw(worker, iteration)
    return (share * math.exp(self.noise * z),)

  def _stretch(self, worker: int, iteration: int) -> float:
    chain = self.chains.setdefault(worker, [0])
    while len(chain) <= iteration:
      chain.append(self._next(chain[-1], self.draws.draw(worker, len(chain))))
    return self.factors[chain[iteration]]

  def _next(self, state: int, draw: float) -> int:
    if draw < self.stay:
      return state
    others = len(self.factors) - 1
    # The rest of the unit interval, in equal parts for the other states.
    step = int((draw - self.stay) / (1 - self.stay) * others)
    return (state + 1 + min(step, others - 1)) % len(self.factors)


@dataclasses.dataclass
class _Trace(Model):
  num_workers: int
  series: list[list[float]]
  read: list[list[tuple[float, ...]]]  # After each of the iterations.
  num_driving: int = 0

  def factor(self, worker: int, iteration: int) -> float:
    values = self.series[worker % len(self.series)]
    return values[iteration % len(values)]

  def driving(self, worker: int, iteration: int) -> tuple[float, ...]:
    read = self.read[worker % len(self.read)]
    return read[iteration % len(read)]


@dataclasses.dataclass
class _Draws:
  """Random numbers, with a cache of the newest block of each worker.

  Attributes:
    seed: First half of the generator's key; the worker is the second.
    method: Method of `numpy.random.Generator` that draws them.
    stream: Number that tells independent draws of a worker apart.
    blocks: Number and draws of the newest block of each worker.
  """

  seed: int
  method: str
  stream: int = 0
  blocks: dict[int, tuple[int, list[float]]] = dataclasses.field(
    default_factory=dict
  )

  def draw(self, worker: int, index: int) -> float:
    number, place = divmod(index, _BLOCK)
    if worker not in self.blocks or self.blocks[worker][0] != number:
      self.blocks[worker] = number, self._block(worker, number)
    return self.blocks[worker][1][place]

  def _block(self, worker: int, number: int) -> list[float]:
    # Draws advance the first word of the counter, so blocks never overlap.
    philox = np.random.Philox(
      key=np.array([self.seed, worker], np.uint64),
      counter=np.array([0, number, self.stream, 0], np.uint64),
    )
    draw = getattr(np.random.Generator(philox), self.method)
    return [float(value) for value in draw(_BLOCK)]


def _jitter(sigma: float, z: float) -> float:
  """Returns a lognormal factor of mean 1."""
  return math.exp(sigma * z - sigma * sigma / 2)


def _check(num_workers: int, seed: int) -> None:
  require(num_workers >= 1, 'num_workers', 'at least 1', num_workers)
  require(0 <= seed < 2**64, 'seed', '0 <= seed < 2^64', seed)
