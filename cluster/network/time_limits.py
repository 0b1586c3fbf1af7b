"""Time limits of calls: one thread for all limits of this process."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator

from absl import logging

from system import clock, processes, threads


class TimeLimits:
  """Limits that are running, watched by a thread that starts when needed."""

  def __init__(self) -> None:
    """Starts without limits and without a thread."""
    self._changed = threads.Condition()
    self._numbers = itertools.count()
    # Monotonic time of each limit, and what is called then.
    self._running: dict[int, tuple[float, Callable[[], object]]] = {}
    self._next_s = -math.inf  # When the thread looks next; -inf without one.

  @contextlib.contextmanager
  def limit(
    self, limit_s: float, expire: Callable[[], object]
  ) -> Iterator[None]:
    """Calls a function if the body takes longer than a limit.

    Args:
      limit_s: The limit, seconds.
      expire: Called in another thread, which it must not block.
    """
    end_s, number = clock.monotonic() + limit_s, next(self._numbers)
    with self._changed:
      if self._next_s == -math.inf:
        threads.Thread(
          target=self._watch, name='time-limits', daemon=True
        ).start()
        self._next_s = math.inf
      self._running[number] = end_s, expire
      if end_s < self._next_s:
        self._changed.notify()
    try:
      yield
    finally:
      with self._changed:
        self._running.pop(number, None)

  def _watch(self) -> None:
    while True:
      with self._changed:
        now = clock.monotonic()
        expired = [n for n, (end_s, _) in self._running.items() if end_s <= now]
        functions = [self._running.pop(number)[1] for number in expired]
        if not functions:
          ends = (end_s for end_s, _ in self._running.values())
          self._next_s = min(ends, default=math.inf)
          wait_s = min(self._next_s - now, threads.TIMEOUT_MAX)
          self._changed.wait(wait_s)
      for function in functions:
        try:
          function()
        # Later limits need the thread.
        except Exception:
          logging.exception('A function of a time limit failed.')


_LIMITS = processes.Own(TimeLimits)


def limit(
  limit_s: float, expire: Callable[[], object]
) -> contextlib.AbstractContextManager[None]:
  """Limits the time of a body, in this process: see `TimeLimits.limit`."""
  return _LIMITS.get().limit(limit_s, expire)
