"""Rate-limited log, so that unknown peers cannot fill the disk."""

import logging as log
from collections.abc import Callable

from absl import logging

from system import clock, threads

_INTERVAL_S = 1.0


class RateLimitedLog:
  """A log that writes at most one line per interval, and counts the others."""

  def __init__(
    self,
    clock: Callable[[], float] = clock.monotonic,
    *,
    interval_s: float = _INTERVAL_S,
  ):
    """Creates the log.

    Args:
      clock: Returns seconds.
      interval_s: Shortest time between two lines, seconds.
    """
    self._clock, self._interval_s = clock, interval_s
    self._lock = threads.Lock()
    self._next = -float('inf')
    self._suppressed = 0

  def write(
    self, text: str, *, level: int = log.WARNING, error: Exception | None = None
  ) -> None:
    """Writes a line, or only counts it if the last one is too recent.

    Args:
      text: Text of the line.
      level: Level of the `logging` package.
      error: Exception whose traceback is written below the line; None for none.
    """
    with self._lock:
      if self._clock() < self._next:
        self._suppressed += 1
        return
      self._next = self._clock() + self._interval_s
      count, self._suppressed = self._suppressed, 0
    more = f' ({count} more of these since the last line)' if count else ''
    logging.get_absl_logger().log(level, '%s%s', text, more, exc_info=error)

  def close(self) -> None:
    """Writes the number of lines that were only counted since the last one."""
    with self._lock:
      count, self._suppressed = self._suppressed, 0
    if count:
      logging.warning('%d more of these since the last line', count)
