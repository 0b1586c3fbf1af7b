"""Progress of a run's workers, from the rows of its events."""

import collections
import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

_RECENT = 16  # Iterations that speeds and shares are of.
STARTING, COMPUTING, WAITING, LEFT = 'starting', 'computing', 'waiting', 'left'


@dataclasses.dataclass
class Iteration:
  """An iteration whose push was received.

  Attributes:
    seconds: From the release of the worker to the push.
    compute_s: Seconds of computing alone.
    waited_s: Seconds that the worker waited for the release before it.
    examples: Batch.
  """

  seconds: float
  compute_s: float
  waited_s: float
  examples: int


class Worker:
  """A worker, as the events show it.

  Attributes:
    phase: 'starting', 'computing' (with its transfers), 'waiting' or 'left'.
    since: Time at which the phase began, seconds.
    pushes: Number of its pushes.
    staleness: Staleness of its last push that was applied, versions; None
      before the first.
  """

  def __init__(self) -> None:
    """Creates a worker that has not been released."""
    self.phase, self.since = STARTING, 0.0
    self.pushes = 0
    self.staleness: int | None = None
    self.pulled = 0  # Version with which it began its iteration.
    self._waited_s = 0.0
    self._recent: collections.deque[Iteration] = collections.deque(
      maxlen=_RECENT
    )

  @property
  def batch(self) -> int | None:
    """Examples of its last iteration; None before the first."""
    return self._recent[-1].examples if self._recent else None

  @property
  def compute_s(self) -> float | None:
    """Median seconds of computing, of its last iterations; None without any."""
    if not self._recent:
      return None
    return statistics.median(each.compute_s for each in self._recent)

  @property
  def last_compute_s(self) -> float:
    """Seconds of computing of its last iteration; 0 before the first."""
    return self._recent[-1].compute_s if self._recent else 0.0

  @property
  def speed(self) -> float | None:
    """Examples per second of computing, of its last iterations."""
    seconds = sum(each.compute_s for each in self._recent)
    examples = sum(each.examples for each in self._recent)
    return examples / seconds if seconds else None

  @property
  def shares(self) -> tuple[float, float] | None:
    """Shares of its last iterations that are transfers, and waiting.

    None without any iteration.
    """
    whole_s = sum(each.seconds + each.waited_s for each in self._recent)
    if not whole_s:
      return None
    moved_s = sum(each.seconds - each.compute_s for each in self._recent)
    waited_s = sum(each.waited_s for each in self._recent)
    return max(moved_s, 0.0) / whole_s, waited_s / whole_s

  def release(self, now: float, version: int) -> None:
    """Records that the worker begins an iteration, with a version.

    Args:
      now: Time, seconds, clock of the run.
      version: Version that the worker pulls.
    """
    self._waited_s = now - self.since if self.phase == WAITING else 0.0
    self.phase, self.since, self.pulled = COMPUTING, now, version

  def wait_for_slowest(self, compute_s: float) -> None:
    """Counts as waiting the time until the slowest worker has computed.

    Args:
      compute_s: Seconds of computing of the slowest worker.
    """
    if self._recent:
      last = self._recent[-1]
      waited_s = min(compute_s - last.compute_s, last.seconds - last.compute_s)
      waited_s = max(waited_s, 0.0)
      last.waited_s += waited_s
      last.seconds -= waited_s

  def push(self, now: float, compute_s: float, examples: int) -> None:
    """Records a push of the worker.

    Args:
      now: Time, seconds, clock of the run.
      compute_s: Seconds of computing of the iteration.
      examples: Its examples.
    """
    self._recent.append(
      Iteration(now - self.since, compute_s, self._waited_s, examples)
    )
    self.pushes += 1
    self.phase, self.since = WAITING, now

  def leave(self, now: float) -> None:
    """Records that the worker has left, or is lost.

    Args:
      now: Time, seconds, clock of the run.
    """
    self.phase, self.since = LEFT, now


class Progress:
  """Progress of a run.

  Attributes:
    time: Time of the last event, seconds on the run's clock.
    version: Number of updates that were applied.
    workers: Workers by rank.
    link_rates: Newest measured rates of links, as in rows of events.jsonl.
    staleness: Number of applied pushes by staleness, versions.
    stragglers: Workers and links that are slow now, as text, with the time
      since which they are.
    dropped: Number of pushes that the scheme put into no update.
    lost: Number of iterations that ended with their worker.
  """

  def __init__(self, is_allreduce: bool):
    """Creates the progress of a run without events.

    Args:
      is_allreduce: Whether workers push by an allreduce, which ends for all at
        once.
    """
    self._is_allreduce = is_allreduce
    self.time, self.version = 0.0, 0
    self.workers: dict[int, Worker] = {}
    self.link_rates: list[Mapping[str, Any]] = []
    self.staleness: collections.Counter[int] = collections.Counter()
    self.stragglers: dict[str, float] = {}
    self.dropped = self.lost = 0
    self._pending: dict[int, list[tuple[int, int]]] = {}

  def lead(self, rank: int) -> int:
    """Returns the pushes of a worker beyond the fewest of a present one."""
    present = [each for each in self.workers.values() if each.phase != LEFT]
    least = min((each.pushes for each in present), default=0)
    return self.workers[rank].pushes - least

  def take(self, row: Mapping[str, Any]) -> None:
    """Takes a row of events.jsonl; those of other kinds change nothing."""
    self.time = max(self.time, row.get('time') or 0.0)
    if row.get('rates') and row.get('did') == 'traffic':
      self.link_rates = row['rates']
    if row.get('event') == 'straggler':
      name = _name_straggler(row)
      self.stragglers.pop(name, None)
      if row['did'] == 'appears':
        self.stragglers[name] = row['since']
    decision = row.get('decision')
    if not isinstance(decision, dict):
      return
    now = row['time']
    if row['event'] == 'start':
      self._pending, self.workers = {}, {}
    worker = self._worker(row['worker']) if 'worker' in row else None
    if worker and row['event'] == 'push':
      pulled = worker.pulled
      worker.push(now, row['compute_s'], row['examples'])
      if 'into' in decision:
        pushes = self._pending.setdefault(decision['into'], [])
        pushes.append((row['worker'], pulled))
      else:
        self.dropped += 1
    elif worker and row['event'] == 'leave':
      # Workers that are absent at the start leave at once.
      self.lost += worker.phase == COMPUTING and now > worker.since
      worker.leave(now)
    for update in decision.get('commit', ()):
      self._commit(update)
    for rank in decision.get('release', ()):
      self._worker(rank).release(now, self.version)

  def _worker(self, rank: int) -> Worker:
    return self.workers.setdefault(rank, Worker())

  def _commit(self, update: int) -> None:
    """Applies an update: the staleness of its pushes is known now."""
    pushes = self._pending.pop(update, ())
    if self._is_allreduce:
      times_s = [self._worker(rank).last_compute_s for rank, _ in pushes]
      for rank, _ in pushes:
        self._worker(rank).wait_for_slowest(max(times_s))
    for rank, pulled in pushes:
      staleness = self.version - pulled
      self.staleness[staleness] += 1
      self._worker(rank).staleness = staleness
    self.version += 1


def _name_straggler(row: Mapping[str, Any]) -> str:
  if 'src' in row:
    return f'link from worker {row["src"]} to {row["dst"]}'
  if 'host' in row:
    return f'link of host {row["host"]}'
  kind = 'link of worker' if row['of'] == 'link' else 'worker'
  return f'{kind} {row["worker"]}'
