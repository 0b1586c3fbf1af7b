"""Deaths and returns of virtual workers, from config.cluster.script."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class ScriptEntry(NamedTuple):
  """A worker's death or return.

  Attributes:
    time: Seconds.
    event: 'leave' or 'join'.
    worker: Index of the worker.
  """

  time: float
  event: str
  worker: int


def parse(
  entries: Sequence[Sequence[Any]], num_workers: int
) -> list[ScriptEntry]:
  """Returns the entries of a script, once they have been checked.

  Args:
    entries: Fields of each entry.
    num_workers: Number of workers.

  Raises:
    ValueError: If an entry has an unknown worker or a time before 0, or if a
      worker dies or returns twice in a row.
  """
  if not isinstance(entries, tuple):
    raise ValueError(f'script: expected a tuple of tuples, got {entries!r}.')
  for entry in entries:
    if not _is_entry(entry, num_workers):
      raise ValueError(
        "script: expected (seconds >= 0, 'leave' or 'join', worker below "
        f'{num_workers}), got {entry!r}.'
      )
  script = [ScriptEntry(*entry) for entry in entries]
  absent: set[int] = set()
  for entry in sorted(script, key=lambda s: (s.time, s.event == 'join')):
    if (entry.event == 'join') != (entry.worker in absent):
      state = 'absent' if entry.worker in absent else 'alive'
      raise ValueError(
        f'script: worker {entry.worker} is {state} at {entry.time} s, '
        f'got {tuple(entry)}.'
      )
    (absent.remove if entry.event == 'join' else absent.add)(entry.worker)
  return script


def _is_entry(entry: Any, num_workers: int) -> bool:
  if not isinstance(entry, tuple) or len(entry) != len(ScriptEntry._fields):
    return False
  time, event, worker = entry
  return (
    type(time) in (int, float)
    and 0 <= time < math.inf
    and event in ('leave', 'join')
    and type(worker) is int
    and 0 <= worker < num_workers
  )
