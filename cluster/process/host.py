"""What a worker has of its host: how fast it is."""

import time
from collections.abc import Sequence
from typing import Any, Self

from batching.batching import Batching
from cluster.speed.driving import Driving
from cluster.speed.speed import Speed


class Host:
  """How fast a worker's host is: as it really is, or as a config says.

  A context manager, within which the factors that drive its speed are read, if
  batches change.
  """

  def __init__(self, index: int, batching: Batching, speed: Speed | None):
    """Reads nothing yet.

    Args:
      index: Which worker.
      batching: How many examples iterations have.
      speed: How long iterations take at least; None for as long as they take.
    """
    self._index = index
    self._speed = speed
    # What never changes makes no use of what drives a host's speed.
    self._driving = Driving() if batching.is_adaptive and speed is None else None

  def __enter__(self) -> Self:
    if self._driving:
      self._driving.__enter__()
    return self

  def __exit__(self, *exception: Any) -> None:
    if self._driving:
      self._driving.__exit__(*exception)

  def factors(self, iteration: int) -> Sequence[float]:
    """Returns the driving factors after an iteration."""
    if self._speed is not None:
      return self._speed.driving(self._index, iteration)
    return self._driving.read() if self._driving else ()

  def least_s(self, iteration: int, examples: int) -> float:
    """Returns how many seconds an iteration computes at least."""
    if self._speed is None:
      return 0.0
    return self._speed.seconds(self._index, iteration, examples)

  def delay(self, iteration: int, examples: int, start: float) -> None:
    """Waits until an iteration that began at `start` may have ended."""
    end = start + self.least_s(iteration, examples)
    rest_s = end - time.monotonic()
    if rest_s > 0:
      time.sleep(rest_s)
