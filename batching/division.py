"""How the examples of a superstep are divided, whatever decides it."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from batching import batching
from sync import scheme


@dataclasses.dataclass
class Division:
  """How the examples of a superstep, X, are divided among the living workers.

  X stays the same when workers leave, unless all that the living may compute is
  less: then they compute that.

  Attributes:
    total: X.
    least: Fewest examples of a worker.
    most: Int [num_workers], the most examples of each, at most X.
    members: Who lives.
    sizes: Examples by worker, as last assigned; without workers that left.
    changed: Whether workers have left since then.

  Raises:
    ValueError: If all workers together may not compute X.
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
        f'most: expected room for {self.total} examples, worker_batch times '
        f'the number of workers, got {self.most}.'
      )

  def living(self, workers: Iterable[int]) -> list[int]:
    """Returns workers, ascending, all of which have to live."""
    for worker in workers:
      batching.check_living(self.members, worker)
    return sorted(workers)

  def is_for(self, workers: Iterable[int]) -> bool:
    """Returns whether the last sizes are a division among these workers."""
    return not self.changed and set(workers) == self.sizes.keys()

  def room(self, workers: Sequence[int]) -> tuple[int, list[int]]:
    """Returns what these workers compute together, and each one's most."""
    most = [self.most[worker] for worker in workers]
    return min(self.total, sum(most)), most

  def change(
    self,
    sizes: dict[int, int],
    seconds: Callable[[int, int], float],
    threshold: float,
  ) -> dict[int, int]:
    """Returns what is assigned: `sizes` if that pays, else the same as before.

    Args:
      sizes: Examples by worker, proposed.
      seconds: Predicts the time of (worker, examples).
      threshold: A change pays if the last worker is predicted to end earlier by
        more than this share of the time; and if the workers are others.
    """
    if sizes and self.is_for(sizes):
      old_s, new_s = (
        max(seconds(worker, count) for worker, count in each.items())
        for each in (self.sizes, sizes)
      )
      if new_s >= (1 - threshold) * old_s:
        return dict(self.sizes)
    self.sizes, self.changed = sizes, False
    return dict(sizes)

  def leave(self, worker: int) -> None:
    """Leaves the worker's part to the others, from the next barrier on."""
    self.members.leave(worker)
    self.sizes.pop(worker, None)
    self.changed = True

  def join(self, worker: int) -> None:
    """Gives the worker a part, from the next barrier on."""
    self.members.join(worker)


def divide(
  *, num_workers: int, worker_batch: int, least: int, most: Sequence[int]
) -> Division:
  """Returns a division of num_workers * worker_batch examples.

  Args:
    num_workers: Number of workers.
    worker_batch: Examples of a worker in the mean.
    least: Fewest examples of a worker, at least 1.
    most: The most examples of a worker: one number for all workers, or one
      each; () for no bound.

  Raises:
    ValueError: If an argument is out of range, or if the workers may not
      compute that many examples.
  """
  members = scheme.make_members(num_workers)
  scheme.check_integer('least', least, at_least=1)
  scheme.check_integer('worker_batch', worker_batch, at_least=least)
  total = num_workers * worker_batch
  bounds = batching.caps(most, num_workers=num_workers, least=least)
  bounds = [min(bound, total) for bound in bounds] or [total] * num_workers
  return Division(total=total, least=least, most=bounds, members=members)
