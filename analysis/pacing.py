"""How fast a run goes, and what its workers wait for."""

import collections
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from analysis.runs import Run
from configs.checks import require
from diagnosis import costs
from diagnosis.costs import Estimate

SKIPPED = 0.2  # Share of the pushes at a run's start that `pace` leaves out.
_BLOCKS = 10  # Parts of a run of which an interval is made.
_PRESENCE = ('start', 'leave', 'join')


class Pace(NamedTuple):
  """Pace of a run after its start: see `pace`.

  Attributes:
    mean_s: Mean seconds of an iteration, with the interval of 95 %.
    median_s: Median seconds of an iteration.
    iterations: Number of iterations that were measured.
    examples_per_s: Examples of all workers per second.
    start: Time from which on was measured, seconds on the run's clock.
    end: Time up to which was measured.
  """

  mean_s: Estimate
  median_s: float
  iterations: int
  examples_per_s: float
  start: float
  end: float


def pace(
  run: Run, *, skipped: float = SKIPPED, examples: int | None = None
) -> Pace:
  """Returns the seconds of an iteration of a run, and examples per second.

  This is the only definition of these words:

  - An iteration is as many consecutive pushes as the run has workers: with
    barriers, one of each.  Its seconds are those between its last push and the
    last push of the iteration before.
  - The first fifth of the pushes is left out: pipelines fill, batchings and
    predictors find their values.  Pushes after the last whole iteration are
    left out, too.
  - While workers are absent, seconds count by the share of the workers that are
    present: half of the workers have half of the pushes.
  - The mean is over all of these seconds.  Ten blocks of consecutive iterations
    give its interval, since within a block iterations depend on each other.

  Args:
    run: Run with events.
    skipped: Share of the pushes that is left out at the start, 0 to 1.
    examples: Number of examples that count as an iteration, for comparisons of
      runs with other batches; absences then count as lost time.  None for the
      definition above.

  Raises:
    ValueError: If no whole iteration is left; names the folder.
    OSError: If a file cannot be read.
  """
  pushes = run.events.select(run.events['event'] == 'push')
  times, each = pushes['time'], pushes['examples']
  workers = run.config['cluster']['workers']
  clock, size = times, examples or workers
  if examples is None:
    clock = times - absent_s(run, times) / workers
  done = np.cumsum(np.ones_like(each) if examples is None else each)
  first = int(len(times) * skipped)
  whole = int((done[-1] - done[first]) // size) if len(times) else 0
  expected = 'at least 1 after the start'
  require(whole > 0, f'{run.path}: iterations', expected, whole)
  # Workers push at the same moment at barriers: the last of them counts.
  places = np.searchsorted(done, done[first] + size * np.arange(whole + 1))
  took_s = np.diff(clock[places])
  edges = np.linspace(0, whole, min(_BLOCKS, whole) + 1).round().astype(int)
  start, end = times[places[[0, -1]]].tolist()
  computed = each[first + 1 : places[-1] + 1].sum()
  return Pace(
    costs.interval(
      np.diff(clock[places[edges]]) / np.diff(edges),
      float((clock[places[-1]] - clock[first]) / whole),
    ),
    float(np.median(took_s)),
    whole,
    float(computed / (end - start)),
    start,
    end,
  )


def whole_pace_s(time_s: float, iterations: int, workers: int) -> float:
  """Returns the mean seconds of an iteration of a whole run.

  Unlike `pace`, it leaves nothing out: neither start and end nor absences.
  Published tables use it.

  Args:
    time_s: Value of summary.json.
    iterations: Value of summary.json: pushes of all workers.
    workers: Number of workers.
  """
  return time_s * workers / iterations


def absent_s(run: Run, until: np.ndarray) -> np.ndarray:
  """Returns the seconds that workers were absent up to some times, summed.

  Args:
    run: Run with events.
    until: Float, seconds on the run's clock.
  """
  total = np.zeros(len(until))
  for start, end in _absences(run):
    total += np.clip(until, start, end) - start
  return total


def gaps(run: Run) -> np.ndarray:
  """Returns the seconds between applied pushes, Float [applied pushes - 1].

  Pushes of one update are applied at the same time, with gaps of zero.
  """
  return np.diff(run.events['time'][_applied(run)[:, 1]])


def release_gaps(run: Run) -> np.ndarray:
  """Returns the seconds between releases of workers, Float [releases - 1]."""
  return np.diff(run.events['time'][run.releases['event']])


def leads(run: Run) -> np.ndarray:
  """Returns how far each push was ahead of the slowest worker, Int [pushes].

  Ahead by iterations since the last barrier, among all workers of the run.
  """
  events, workers = run.events, run.config['cluster']['workers']
  found, pushed = [], [0] * workers
  for event, worker, barrier in zip(
    events['event'].tolist(),
    events['worker'].tolist(),
    events['barrier'].tolist(),
    strict=True,
  ):
    if event == 'push':
      pushed[worker] += 1
      found.append(pushed[worker] - min(pushed))
    if barrier:
      pushed = [0] * workers
  return np.array(found, int)


def staleness(run: Run) -> np.ndarray:
  """Returns the staleness of applied pushes, versions, Int [applied pushes].

  Staleness is the number of updates that were applied between the release of
  the worker and the update of its push.
  """
  pushed_at, _, update = _applied(run).T
  workers = run.events['worker'][pushed_at]
  pulled = np.zeros(len(pushed_at), int)
  for worker in np.unique(workers):
    released = run.releases['event'][run.releases['worker'] == worker]
    mine = workers == worker
    place = np.searchsorted(released, pushed_at[mine], 'left') - 1
    pulled[mine] = np.searchsorted(
      run.commits['event'], released[place], 'right'
    )
  found: np.ndarray = update - pulled
  return found


def waiting_share(run: Run, start: float, end: float) -> float:
  """Returns the share of the workers' time that they waited, 0 to 1.

  Args:
    run: Run with a timeline.
    start: Time from which spans count, seconds on the run's clock.
    end: Time up to which they count.
  """
  spans = run.spans
  within = np.minimum(spans['end'], end) - np.maximum(spans['start'], start)
  seconds = np.maximum(within, 0.0)
  return float(seconds[spans['phase'] == 'wait'].sum() / seconds.sum())


def _applied(run: Run) -> np.ndarray:
  """Returns the applied pushes in the order of their updates.

  Returns:
    Int [applied pushes, 3]: places in `run.events` of push and decision that
    applied it, and place in `run.commits` of the update.
  """
  events, commits = run.events, run.commits
  pending = collections.defaultdict[int, list[int]](list)
  updates = collections.deque(enumerate(commits['update'].tolist()))
  ends = collections.deque(commits['event'].tolist())
  found = []
  for place, (event, into) in enumerate(
    zip(events['event'].tolist(), events['into'].tolist(), strict=True)
  ):
    if event == 'start':  # Pushes of an earlier start are lost.
      pending.clear()
    if into >= 0:
      pending[into].append(place)
    while ends and ends[0] == place:
      ends.popleft()
      number, update = updates.popleft()
      found += [(push, place, number) for push in pending.pop(update, ())]
  return np.array(found, int).reshape(-1, 3)


def _absences(run: Run) -> Iterator[tuple[float, float]]:
  """Yields start and end of each absence of a worker; infinity for no end."""
  events, releases = run.events, run.releases
  since: dict[int, float] = {}
  everybody = range(run.config['cluster']['workers'])
  for place in np.flatnonzero(np.isin(events['event'], _PRESENCE)):
    event, time = events['event'][place], float(events['time'][place])
    back = [int(events['worker'][place])] if event == 'join' else []
    if event == 'leave':
      since[int(events['worker'][place])] = time
    elif (
      event == 'start'
    ):  # Perhaps with another number of workers than before.
      back = releases['worker'][releases['event'] == place].tolist()
      for worker in {*everybody} - {*back}:
        since.setdefault(worker, time)
    for worker in back:
      if worker in since:
        yield since.pop(worker), time
  yield from ((start, math.inf) for start in since.values())
