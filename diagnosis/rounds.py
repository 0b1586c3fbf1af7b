"""Iterations of workers, arranged so that those of one time can be compared.

Workers of an asynchronous scheme are at different iterations at one time.  A
round ends once there are as many pushes as workers take part: with barriers it
is an iteration of each; otherwise a fast worker may have several pushes in it
and a slow one none.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np


@dataclasses.dataclass
class Rounds:
  """Collector of the current round; plain data.

  Attributes:
    num_workers: Number of workers that may take part.
    active: Workers that take part.
    seconds: Seconds of the pushes of the round, by worker.
    pushes: Number of pushes in the round.
  """

  is_state = True  # Plain data: checkpoints hold it.

  num_workers: int
  active: set[int] = dataclasses.field(default_factory=set)
  seconds: dict[int, list[float]] = dataclasses.field(default_factory=dict)
  pushes: int = 0

  def start(self, workers: Iterable[int]) -> None:
    """Begins with these workers, and an empty round."""
    self.active = set(workers)
    self.seconds, self.pushes = {}, 0

  def add(self, worker: int, seconds: float) -> np.ndarray | None:
    """Adds a push; returns the round that it completes, if any.

    Args:
      worker: Index of the worker.
      seconds: Seconds of its iteration.

    Returns:
      Float [num_workers], means of a worker's pushes, NaN without one; or None.
    """
    self.active.add(worker)
    self.seconds.setdefault(worker, []).append(seconds)
    self.pushes += 1
    return self._end_if_complete()

  def leave(self, worker: int) -> None:
    """Removes a worker that takes part no longer."""
    self.active.discard(worker)

  def _end_if_complete(self) -> np.ndarray | None:
    if self.pushes < len(self.active):
      return None
    row = np.full(self.num_workers, np.nan)
    for worker, seconds in self.seconds.items():
      row[worker] = sum(seconds) / len(seconds)
    self.seconds, self.pushes = {}, 0
    return row
