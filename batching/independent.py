"""Batches that are assigned to each worker without a common sum.

R2SP's rules tune the batch of each worker by itself: there is no global batch
that they divide, as `batching.division` does for LB-BSP.
"""

import dataclasses
from collections.abc import Sequence

from batching import batching
from sync import scheme


@dataclasses.dataclass
class IndependentBatches:
  """State of batchings whose workers have batches of their own.

  Attributes:
    worker_batch: Examples of an iteration at first.
    most: Int [num_workers], the most examples of each worker; [] for no bound.
    members: The workers, and which of them are alive.
    sizes: Int [num_workers], examples of an iteration now.
  """

  worker_batch: int
  most: list[int]
  members: scheme.Members
  sizes: list[int]

  @property
  def largest(self) -> int | None:
    """The most examples that are ever assigned; None if there is no bound."""
    return max(self.most, default=None)

  @property
  def living(self) -> list[int]:
    """Workers that are alive, ascending."""
    states = enumerate(self.members.state)
    return [worker for worker, state in states if state != scheme.ABSENT]

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the batch of each of some workers, which must be alive."""
    for worker in workers:
      batching.check_living(self.members, worker)
    return {worker: self.sizes[worker] for worker in workers}

  def report(self) -> dict[str, float]:
    """Returns the sum, the least and the largest batch of living workers."""
    return batching.summed([self.sizes[worker] for worker in self.living])
