"""Logs what strangers can cause, so that they cannot fill the disk."""

import logging as log
import threading
import time
from collections.abc import Callable

from absl import logging
from absl.logging import converter

_APART_S = 1.0


class Sayings:
  """Writes a line in a while at most, and how many it has not written."""

  def __init__(
    self,
    clock: Callable[[], float] = time.monotonic,
    *,
    apart_s: float = _APART_S,
  ):
    """Has said nothing yet.

    Args:
      clock: Seconds.
      apart_s: Seconds between two lines.
    """
    self._clock, self._apart_s = clock, apart_s
    self._lock = threading.Lock()
    self._next = -float('inf')
    self._unsaid = 0

  def say(
    self, text: str, *, level: int = log.WARNING, error: Exception | None = None
  ) -> None:
    """Writes a line, or counts it.

    Args:
      text: Of the line.
      level: Of logging.
      error: Its traceback is written below; None for none.
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
    """Writes how many lines have not been written."""
    with self._lock:
      unsaid, self._unsaid = self._unsaid, 0
    if unsaid:
      logging.warning('%d more of these since the last line', unsaid)
