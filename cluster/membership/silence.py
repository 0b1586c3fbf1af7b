"""Silence of other processes, as far as this process was running."""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

_LATE = 2.0  # Intervals from one measurement to the next that count, at most.

T = TypeVar('T', bound=Hashable)


class Silence(Generic[T]):
  """Measurement of how long processes have been silent, at an interval.

  A process that is stopped, or gets no processor for some time, finds that all
  others have been silent meanwhile.  From one measurement to the next at most
  two intervals count, therefore: what they have sent can be read before any of
  them is lost.
  """

  def __init__(self, interval_s: float):
    """Creates the measurement.

    Args:
      interval_s: Seconds from one measurement to the next, if none is late.
    """
    self._longest_s = _LATE * interval_s
    self._measured_at: float | None = None
    self._found: dict[T, tuple[float, float]] = {}  # Last message, silence.

  def measure(self, now: float, heard: Mapping[T, float]) -> dict[T, float]:
    """Returns how long each process has been silent, seconds.

    Args:
      now: Monotonic time, seconds.
      heard: Monotonic time of the last message of each process, seconds.
    """
    before_s = now if self._measured_at is None else self._measured_at
    passed_s = min(now - before_s, self._longest_s)
    found = {}
    for key, at in heard.items():
      before, silence_s = self._found.get(key, (None, 0.0))
      silence_s = silence_s + passed_s if before == at else self._longest_s
      found[key] = at, min(silence_s, now - at)
    self._measured_at, self._found = now, found
    return {key: silence_s for key, (_, silence_s) in found.items()}
