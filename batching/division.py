"""Division of a superstep's examples among workers, as state of a batching.

LB-BSP's three rules (predicted speeds, curves, windows) propose divisions; this
state holds the last one, its bounds, and the workers that are alive.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from batching import batching
from configs import checks, declared
from sync import scheme


@dataclasses.dataclass
class Division:
  """Division of the global batch, X examples, among the living workers.

  X stays the same when workers leave, unless the bounds of the living workers
  add up to less: then they compute that sum.  A worker's leave or join takes
  effect at the next barrier.

  Attributes:
    total: Global batch X, examples of a superstep.
    least: Fewest examples of a worker.
    most: Int [num_workers], largest batch of each worker, at most X.
    members: State of each worker.
    sizes: Examples last assigned, by worker, without workers that have left.
    changed: True if a worker has left since then.

  Raises:
    ValueError: If the bounds of all workers add up to less than X.
  """

  is_state = True  # Plain data: checkpoints hold it.

  total: int
  least: int
  most: list[int]
  members: scheme.Members
  sizes: dict[int, int] = dataclasses.field(default_factory=dict)
  changed: bool = False

  def __post_init__(self) -> None:
    if sum(self.most) < self.total:
      raise ValueError(
        f'most: expected a sum of at least {self.total}, worker_batch times '
        f'the number of workers, got {self.most}.'
      )

  def sort_living(self, workers: Iterable[int]) -> list[int]:
    """Returns the workers, ascending; raises ValueError if one is not alive."""
    for worker in workers:
      batching.check_living(self.members, worker)
    return sorted(workers)

  def is_among(self, workers: Iterable[int]) -> bool:
    """Returns whether the last sizes divide X among exactly these workers."""
    return not self.changed and set(workers) == self.sizes.keys()

  def bounds(self, workers: Sequence[int]) -> tuple[int, list[int]]:
    """Returns the examples that workers divide, and the bound of each."""
    most = [self.most[worker] for worker in workers]
    return min(self.total, sum(most)), most

  def change(
    self,
    sizes: dict[int, int],
    seconds: Callable[[int, int], float],
    threshold: float,
  ) -> dict[int, int]:
    """Adopts proposed sizes if they save enough time; returns the current ones.

    Args:
      sizes: Proposed examples, by worker.
      seconds: Function of (worker, examples) that predicts seconds.
      threshold: Share of the predicted time that a change must save at the last
        worker to finish.  A change of workers is always adopted.
    """
    if sizes and self.is_among(sizes):
      old_s, new_s = (
        max(seconds(worker, count) for worker, count in each.items())
        for each in (self.sizes, sizes)
      )
      if new_s >= (1 - threshold) * old_s:
        return dict(self.sizes)
    self.sizes, self.changed = sizes, False
    return dict(sizes)

  def leave(self, worker: int) -> None:
    """Divides the worker's share among the others from the next barrier."""
    self.members.leave(worker)
    self.sizes.pop(worker, None)
    self.changed = True

  def join(self, worker: int) -> None:
    """Assigns the worker a share of the batch from the next barrier."""
    self.members.join(worker)


def divide(
  *, num_workers: int, worker_batch: int, least: int, most: Sequence[int]
) -> Division:
  """Returns a division of num_workers * worker_batch examples.

  Args:
    worker_batch: Mean examples of a worker.
    least: Fewest examples of a worker, at least 1.
    most: Largest batch of a worker: one number for all workers, or one each;
      () for no bound.

  Raises:
    ValueError: If an argument is out of range, or if the bounds of the workers
      add up to less.
  """
  members = scheme.make_members(num_workers)
  declared.check('batching', worker_batch=worker_batch)
  expected = f'at most {worker_batch}, the mean of the workers'
  checks.require(least <= worker_batch, 'least', expected, least)
  total = num_workers * worker_batch
  bounds = batching.expand_bounds(most, num_workers=num_workers, least=least)
  bounds = [min(bound, total) for bound in bounds] or [total] * num_workers
  return Division(total=total, least=least, most=bounds, members=members)
