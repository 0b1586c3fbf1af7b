"""Rate-limited log, so that unknown peers cannot fill the disk."""

import logging as log
import threading
import time
from collections.abc import Callable

from absl import logging
from absl.logging import converter

_APART_S = 1.0


class Sayings:
  """A log that writes at most one line per interval, and counts the others."""

  def __init__(
    self,
    clock: Callable[[], float] = time.monotonic,
    *,
    apart_s: float = _APART_S,
  ):
    """Creates the log.

    Args:
      clock: Returns seconds.
      apart_s: Least time between two lines, seconds.
    """
    self._clock, self._apart_s = clock, apart_s
    self._lock = threading.Lock()
    self._next = -float('inf')
    self._unsaid = 0

  def say(
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
        self._unsaid += 1
        return
      self._next = self._clock() + self._apart_s
      unsaid, self._unsaid = self._unsaid, 0
    more = f' ({unsaid} more of these since the last line)' if unsaid else ''
    logging.log(
      converter.standard_to_absl(level),
      '%s%s',
      text,
      more,
      exc_info=error,
    )

  def close(self) -> None:
    """Writes the number of lines that were only counted since the last one."""
    with self._lock:
      unsaid, self._unsaid = self._unsaid, 0
    if unsaid:
      logging.warning('%d more of these since the last line', unsaid)
