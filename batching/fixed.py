"""Fixed batches: the same number of examples for every worker, always."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from batching.batching import Measurement
from configs import checks, declared


@dataclasses.dataclass
class Fixed:
  """State of the fixed batching.

  Attributes:
    worker_batch: Examples of an iteration.
  """

  is_state = True  # Plain data: checkpoints hold it.

  needs_barriers: ClassVar[bool] = False
  is_adaptive: ClassVar[bool] = False

  worker_batch: int

  @property
  def max_batch(self) -> int:
    return self.worker_batch

  def observe(self, measurement: Measurement) -> None:
    """Ignores the iteration."""

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    return dict.fromkeys(workers, self.worker_batch)

  def report(self) -> dict[str, float]:
    return {}

  def leave(self, worker: int) -> None:
    """Ignores the worker: there is no state of workers."""

  def join(self, worker: int) -> None:
    """Ignores the worker: there is no state of workers."""


def make(*, num_workers: int, worker_batch: int) -> Fixed:
  """Returns the fixed batching.

  Args:
    worker_batch: Examples of an iteration.

  Raises:
    ValueError: If an argument is out of range.
  """
  checks.check_integer('num_workers', num_workers, at_least=1)
  declared.check('batching', worker_batch=worker_batch)
  return Fixed(worker_batch=worker_batch)
