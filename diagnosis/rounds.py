"""Iterations of workers, grouped by time so that they can be compared.

At one time, workers of an asynchronous scheme are in different iterations.  A
round ends once it has as many pushes as there are workers: with barriers it is
an iteration of each; otherwise a fast worker may have several pushes in it and
a slow one none.
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
    """Begins an empty round of these workers; drops the pushes so far."""
    self.active = set(workers)
    self.seconds, self.pushes = {}, 0

  def add(self, worker: int, seconds: float) -> np.ndarray | None:
    """Adds a push; returns the round that it completes, if any.

    A round is complete with as many pushes as there are active workers, of
    whichever workers they are.  The next round is empty then.

    Args:
      worker: Index of the worker, which is active from now on.
      seconds: Duration of the push's iteration.

    Returns:
      Float [num_workers], means of a worker's pushes, NaN without one; or None.
    """
    self.active.add(worker)
    self.seconds.setdefault(worker, []).append(seconds)
    self.pushes += 1
    return self._end_if_complete()

  def leave(self, worker: int) -> None:
    """Removes a worker that no longer takes part.

    Its pushes stay in the round, which only the next push can complete.
    """
    self.active.discard(worker)

  def _end_if_complete(self) -> np.ndarray | None:
    if self.pushes < len(self.active):
      return None
    row = np.full(self.num_workers, np.nan)
    for worker, seconds in self.seconds.items():
      row[worker] = sum(seconds) / len(seconds)
    self.seconds, self.pushes = {}, 0
    return row
