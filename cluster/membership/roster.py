"""Startup roster: the last activity of each process while a run starts.

A run starts once all processes have joined.  Until then the log names those
that are missing, with their last activity.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

from system import clock, threads

_SHOWN = 16  # Processes of a run of hundreds; the others are counted.


@dataclasses.dataclass
class _Entry:
  """State of one process.

  Attributes:
    incarnation: Number of its last incarnation.
    since: Text on its last connection.
    activity: Its last activity; the reason of its loss if it is lost.
    at: Time of the last activity, seconds of the clock.
    last_message: Time of its last message, seconds of the clock.
    is_lost: Whether its connection has ended.
  """

  incarnation: int
  since: str
  activity: str
  at: float
  last_message: float
  is_lost: bool = False


class Roster:
  """Last activities of processes; for any thread."""

  def __init__(self, clock: Callable[[], float] = clock.monotonic):
    """Creates an empty roster.

    Args:
      clock: Returns seconds.
    """
    self._clock = clock
    self._entries: dict[str, _Entry] = {}
    self._lock = threads.Lock()

  def record_admission(self, name: str, incarnation: int, peer: str) -> None:
    """Records an admission.

    Args:
      name: Name of the process.
      incarnation: Number of its incarnation; later calls about earlier ones are
        ignored.
      peer: Address of the process.
    """
    when = time.strftime('%X')
    since = f'connected from {peer} at {when}, incarnation {incarnation}'
    now = self._clock()
    with self._lock:
      self._entries[name] = _Entry(incarnation, since, 'connecting', now, now)

  def record_message(
    self, name: str, incarnation: int, activity: str = ''
  ) -> None:
    """Records a message of a process.

    Args:
      name: Name of the process.
      incarnation: Number of its incarnation.
      activity: Its activity from now on; '' for the same as before.
    """
    with self._lock:
      entry = self._entries[name]
      if entry.incarnation == incarnation:
        entry.last_message = self._clock()
        if activity:
          entry.activity, entry.at = activity, entry.last_message

  def record_loss(self, name: str, incarnation: int, reason: str) -> None:
    """Records that the connection of a process has ended.

    Args:
      name: Name of the process.
      incarnation: Number of its incarnation.
      reason: Reason for the end.
    """
    with self._lock:
      entry = self._entries[name]
      if entry.incarnation == incarnation:
        entry.is_lost = True
        entry.activity, entry.at = reason, self._clock()

  def describe(self, names: Sequence[str], silence_s: float) -> str:
    """Returns a line for each process; the lines of hundreds are counted.

    Args:
      names: Names of the processes.
      silence_s: Seconds without a message after which the line says so.
    """
    lines = [self._line(name, silence_s) for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
      lines.append(f'and {len(names) - _SHOWN} others')
    return '\n'.join(f'  {line}' for line in lines)

  def _line(self, name: str, silence_s: float) -> str:
    with self._lock:
      entry, now = self._entries.get(name), self._clock()
      if entry is None:
        return f'{name}: never seen'
      age = f'{now - entry.at:.0f} s'
      if entry.is_lost:
        return f'{name}: {entry.since}; lost since {age}: {entry.activity}'
      line = f'{name}: {entry.since}; {entry.activity} since {age}'
      if now - entry.last_message > silence_s:
        line += f'; silent for {now - entry.last_message:.0f} s'
      return line
