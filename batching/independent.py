"""Batches that each worker has of its own, without a global batch.

R2SP's rules tune the batch of each worker by itself: there is no global batch
that they divide, as `batching.division` does for LB-BSP.
"""

import dataclasses
from collections.abc import Sequence

from batching import batching
from sync import scheme


@dataclasses.dataclass
class IndependentBatches:
  """State that batchings without a global batch share.

  They report the sum, the smallest and the largest batch of the living workers.

  Attributes:
    worker_batch: Initial batch of each worker, examples.
    most: Int [num_workers], largest batch of each worker; [] for no bound.
    members: State of each worker.
    sizes: Int [num_workers], current batch of each worker, examples.
  """

  worker_batch: int
  most: list[int]
  members: scheme.Members
  sizes: list[int]

  @property
  def max_batch(self) -> int | None:
    return max(self.most, default=None)

  @property
  def living(self) -> list[int]:
    """Indices of the workers that are alive, ascending."""
    states = enumerate(self.members.state)
    return [worker for worker, state in states if state != scheme.ABSENT]

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    for worker in workers:
      batching.check_living(self.members, worker)
    return {worker: self.sizes[worker] for worker in workers}

  def report(self) -> dict[str, float]:
    return batching.summarize_sizes(
      [self.sizes[worker] for worker in self.living]
    )
