"""Quorum of a start: the workers that a run on real hosts waits for."""

from collections.abc import Callable, Collection

from system import clock


class Quorum:
  """Condition on the workers that are ready, for a run to start.

  A run starts at once when all workers are ready.  With fewer, but at least
  the minimum, it waits for a grace period, so that processes that were started
  together begin together.
  """

  def __init__(
    self,
    *,
    num_workers: int,
    min_workers: int,
    grace_s: float,
    clock: Callable[[], float] = clock.monotonic,
  ):
    """Creates the condition, for no ready worker yet.

    Args:
      num_workers: Number of workers of the run.
      min_workers: Fewest workers with which the run starts; 0 for all.
      grace_s: Seconds from the time at which the minimum was ready, after which
        the run starts without the others.
      clock: Returns seconds.
    """
    self._num_workers = num_workers
    self._min_workers = min_workers or num_workers
    self._grace_s, self._clock = grace_s, clock
    self._since: float | None = None

  def is_reached(self, ready: Collection[int]) -> bool:
    """Returns whether the run may start; called again while it may not.

    Args:
      ready: Workers that are ready.
    """
    if len(ready) < self._min_workers:
      self._since = None
      return False
    now = self._clock()
    if self._since is None:
      self._since = now
    is_complete = len(ready) >= self._num_workers
    return is_complete or now >= self._since + self._grace_s
