"""The same number of examples for every worker, always."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from batching.batching import Done
from sync import scheme


@dataclasses.dataclass
class Fixed:
  """State of the fixed batching.

  Attributes:
    worker_batch: Examples of an iteration.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barrier: ClassVar[bool] = False
  changes: ClassVar[bool] = False

  worker_batch: int

  @property
  def largest(self) -> int:
    """The most examples that are ever assigned."""
    return self.worker_batch

  def observe(self, done: Done) -> None:
    """Nothing to do."""

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the same for each worker."""
    return dict.fromkeys(workers, self.worker_batch)

  def report(self) -> dict[str, float]:
    """Returns nothing: it is all in the config."""
    return {}

  def leave(self, worker: int) -> None:
    """Nothing to do."""

  def join(self, worker: int) -> None:
    """Nothing to do."""


def make(*, num_workers: int, worker_batch: int) -> Fixed:
  """Returns the fixed batching.

  Args:
    num_workers: Number of workers.
    worker_batch: Examples of an iteration.

  Raises:
    ValueError: If an argument is out of range.
  """
  scheme.check_integer('num_workers', num_workers, at_least=1)
  scheme.check_integer('worker_batch', worker_batch, at_least=1)
  return Fixed(worker_batch=worker_batch)
