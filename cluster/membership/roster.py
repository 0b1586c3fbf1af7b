"""What is known of the processes of a run while it starts.

A run starts once all are there.  Who is not is named, with what it did last.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

_SHOWN = 16  # Processes of a run of hundreds; the others are counted.


@dataclasses.dataclass
class _Known:
  life: int
  since: str
  doing: str
  at: float
  seen: float
  lost: bool = False


class Roster:
  """Notes what processes say of themselves; from any thread."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Knows of nobody.

    Args:
      clock: Returns seconds.
    """
    self._clock = clock
    self._known: dict[str, _Known] = {}
    self._lock = threading.Lock()

  def came(self, name: str, life: int, peer: str) -> None:
    """Notes a connection.

    Args:
      name: Whose.
      life: Which connection of it, ascending: of others nothing is noted.
      peer: Address it has come from.
    """
    since = f'connected from {peer} at {time.strftime("%X")}, life {life}'
    now = self._clock()
    with self._lock:
      self._known[name] = _Known(life, since, 'connecting', now, now)

  def seen(self, name: str, life: int, doing: str = '') -> None:
    """Notes a sign of life, and what the process does from now on."""
    with self._lock:
      known = self._known[name]
      if known.life == life:
        known.seen = self._clock()
        if doing:
          known.doing, known.at = doing, known.seen

  def lost(self, name: str, life: int, reason: str) -> None:
    """Notes that a connection has ended."""
    with self._lock:
      known = self._known[name]
      if known.life == life:
        known.lost, known.doing, known.at = True, reason, self._clock()

  def describe(self, names: Sequence[str], silence_s: float) -> str:
    """Returns a line for each process, as far as there are not too many.

    Args:
      names: Of the processes.
      silence_s: Seconds that one may give no sign of life without it being
        said.
    """
    lines = [self._line(name, silence_s) for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
      lines.append(f'and {len(names) - _SHOWN} others')
    return '\n'.join(f'  {line}' for line in lines)

  def _line(self, name: str, silence_s: float) -> str:
    with self._lock:
      known, now = self._known.get(name), self._clock()
      if known is None:
        return f'{name}: never seen'
      age = f'{now - known.at:.0f} s'
      if known.lost:
        return f'{name}: {known.since}; lost since {age}: {known.doing}'
      line = f'{name}: {known.since}; {known.doing} since {age}'
      if now - known.seen > silence_s:
        line += f'; silent for {now - known.seen:.0f} s'
      return line
