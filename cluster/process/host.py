"""The speed of a worker's host: real, or slowed down as a config says."""

from collections.abc import Sequence
from typing import Any, Self

from batching.batching import Batching
from cluster.speed.driving import Driving
from cluster.speed.speed import Speed
from system import clock


class HostSpeed:
  """The speed of a worker's host; a context manager.

  Within the context the driving factors of the speed (processor and memory
  usage) are sampled, if batches change.
  """

  def __init__(self, index: int, batching: Batching, speed: Speed | None):
    """Samples nothing yet.

    Args:
      index: Rank of the worker.
      batching: Batch sizes of the run.
      speed: Model of the least time of iterations; None for their real time.
    """
    self._index = index
    self._speed = speed
    # Constant batches make no use of driving factors.
    self._driving = (
      Driving() if batching.is_adaptive and speed is None else None
    )

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
    """Returns the simulated computing time of an iteration, seconds.

    A faster host waits for the rest of it; 0 without a simulated speed.
    """
    if self._speed is None:
      return 0.0
    return self._speed.seconds(self._index, iteration, examples)

  def delay(self, iteration: int, examples: int, start: float) -> None:
    """Waits until an iteration has computed for its least time.

    Args:
      iteration: Number of the iteration.
      examples: Number of its examples.
      start: Monotonic seconds at which it began.
    """
    end = start + self.least_s(iteration, examples)
    rest_s = end - clock.monotonic()
    if rest_s > 0:
      clock.sleep(rest_s)
