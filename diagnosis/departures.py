"""Cost of departures: a run's pace while no worker was missing, over its own.

A departure costs more than the share of its worker: others wait until it is
noticed, its iteration is lost, and its return interrupts them.  The pace while
all workers were there has no such losses.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from diagnosis import costs
from diagnosis.costs import Estimate

_BLOCKS = (
  10  # Parts of the times with all workers, of which an interval is made.
)
_LEAST = 20  # Iterations of each worker in these times.


class Departures(NamedTuple):
  """Departures in a run, and what they cost.

  Attributes:
    counts: Number of departures of each worker that has left.
    restarts: Number of restarts of all workers.
    away_s: Median seconds of the absences that have ended; None if none has.
    share: Share of its time that the run would take without departures; None if
      all workers were together too briefly.
  """

  counts: Mapping[int, int]
  restarts: int
  away_s: float | None
  share: Estimate | None


def measure(events: Sequence[Mapping[str, Any]], count: int) -> Departures:
  """Returns the departures of a run.

  Args:
    events: Rows of events.jsonl, in order.
    count: Number of workers.
  """
  pushes = [row for row in events if row['event'] == 'push']
  if not pushes:
    return Departures({}, 0, None, None)
  end = pushes[-1]['time']
  counts, since, absences = Counter[int](), dict[int, float](), list[float]()
  begun = pushed_at = 0.0
  together = list[tuple[float, float]]()
  for row in events:
    event, time = row['event'], row.get('time', 0.0)
    if event == 'push':
      pushed_at = time
    if event not in ('start', 'leave', 'join') or time > end:
      continue  # At the end of a run all leave.
    if not since:  # Others wait until a departure is noticed.
      together.append((begun, pushed_at))
    if event == 'start':  # Those who are not released come later.
      released = row['decision'].get('release', range(count))
      since = {w: time for w in range(count) if w not in released}
    elif event == 'leave':
      counts[row['worker']] += 1
      since[row['worker']] = time
    elif row['worker'] in since:
      away_s = time - since.pop(row['worker'])
      absences += [away_s] if row['worker'] in counts else []
    begun = time
  if not since:
    together.append((begun, end))
  starts = sum(row['event'] == 'start' for row in events)
  return Departures(
    dict(sorted(counts.items())),
    max(starts - 1, 0),
    statistics.median(absences) if absences else None,
    _share(pushes, together, count),
  )


def _share(
  pushes: Sequence[Mapping[str, Any]],
  together: Sequence[tuple[float, float]],
  count: int,
) -> Estimate | None:
  """Returns seconds per example with all workers, over those of the run."""
  times = np.array([push['time'] for push in pushes])
  examples = np.array([push['examples'] for push in pushes], float)
  spans = np.array([span for span in together if span[1] > span[0]])
  if not len(spans):
    return None
  place = np.searchsorted(spans[:, 0], times) - 1  # The last one begun before.
  is_in = (place >= 0) & (times <= spans[np.maximum(place, 0), 1])
  if is_in.sum() < _LEAST * count or times[-1] <= 0:
    return None
  before_s = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])
  inside = place[is_in]
  clock = before_s[inside] + times[is_in] - spans[inside, 0]
  overall = times[-1] / examples.sum()
  done = np.cumsum(examples[is_in])
  edges = np.linspace(0, len(clock) - 1, _BLOCKS + 1).round().astype(int)
  parts = np.diff(clock[edges]) / np.diff(done[edges]) / overall
  value = float(before_s[-1] / done[-1] / overall)
  return costs.interval(parts, value)
