"""Progress deadlines: detect processes that are alive but make no progress.

Heartbeats come from a thread of their own.  They show that a process is alive,
not that it makes progress.  Every heartbeat therefore carries the progress: the
current phase, and a count that grows with each chunk.  The coordinator
evicts a process whose progress does not change before a deadline:

  transferring    2 timeouts without a chunk, counted from when the servers have
                  executed the order that releases the worker
  computing       2 timeouts plus 4 times the longest of its recent iterations,
                  per example if batches change; `start_s` in the first
                  iteration of an incarnation
  executing       servers: 2 timeouts plus 4 times the longest earlier order of
                  the same name; `start_s` for the first of a name

Evaluations and checkpoints run beside the training, and disks can be slow for a
while.  Such a job may take `start_s`, or 2 timeouts plus 4 times the longest
earlier one if that is more.  If a job takes longer, or if the coordinator
handles no events for `start_s`, its process exits with a code that asks for a
restart.

A state that workers fetch, or that servers read from a checkpoint, may be
large.  Each chunk of it is progress, and so
is each part of a digest.  The limits of those that wait for such a worker grow
with the bytes: by the time at a rate that only a hang falls below.

On pipelined routes a worker can send only as much as the others have sent, so
one stuck worker stops them all.  There only the worker with the least progress
is evicted, and none while another one computes.
"""

import collections
import dataclasses
import faulthandler
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn

from absl import logging

from cluster.network.messages import Progress
from cluster.process.exits import LOST, Reason, end
from system import clock, threads

_TIMEOUTS, _LONGEST = 2, 4
_RECENT = 10  # Iterations.
# Least rates of a source's link, shared by all that fetch, and of a digest.
_TRANSFER_Bps, _DIGEST_Bps = 1e7, 2e8


def transfer_s(size_bytes: int, receivers: int) -> float:
  """Returns how long the transfer of a state may take, seconds.

  Args:
    size_bytes: Size of the state.
    receivers: Number of processes that may fetch it from the same source.
  """
  return size_bytes * (receivers / _TRANSFER_Bps + 2 / _DIGEST_Bps)


def digest_s(size_bytes: int) -> float:
  """Returns how long the digest of a state may take, seconds."""
  return size_bytes / _DIGEST_Bps


class ProgressCounter:
  """Progress of a worker: written by its threads, sent with its heartbeats.

  Within an iteration the count never falls, whatever its sources do: a count
  that fell and grew again would show no progress until it was past its maximum.
  """

  def __init__(self) -> None:
    """Starts with no progress recorded."""
    self._phase: Literal['transfer', 'compute'] = 'transfer'
    self._iteration, self._steps = -1, 0
    self._lock = threads.Lock()

  def enter_compute(self) -> None:
    """Enters the phase in which the worker computes a gradient."""
    self._phase = 'compute'

  def enter_transfer(self) -> None:
    """Enters the phase in which the worker sends, receives or waits.

    In this phase each chunk that is received or sent is progress.  The
    coordinator may evict a worker that makes none for twice
    `config.cluster.timeout_s`, unless the worker waits to be released.
    """
    self._phase = 'transfer'

  def begin_iteration(self, iteration: int) -> None:
    """Begins an iteration, with no chunk transferred yet."""
    with self._lock:
      self._iteration, self._steps = iteration, 0

  def count_chunk(self) -> None:
    """Counts a chunk that was received or sent."""
    self._steps += 1  # Threads may count one chunk for two; it still grows.

  def reach(self, steps: int) -> None:
    """Raises the count of this iteration's chunks to `steps`, if it is less."""
    with self._lock:
      self._steps = max(self._steps, steps)

  def follow(self, count: Callable[[], int]) -> None:
    """Raises the count to that of a source; for one thread beside the worker's.

    Args:
      count: Returns the number of chunks that were received or sent in this
        iteration, of all its sums; 0 before `begin_iteration`.
    """
    with self._lock:  # No iteration may begin between count and record.
      self._steps = max(self._steps, count())

  def read(self) -> Progress:
    """Returns phase, iteration and chunk count, which a heartbeat carries."""
    return self._phase, self._iteration, self._steps


@dataclasses.dataclass
class ReceivedProgress:
  """A worker's progress, as the coordinator has received it.

  Attributes:
    latest: Phase, iteration and chunk count of the last heartbeat.
    last_change: Time of the last change, or of the worker's release; monotonic
      seconds.
    orders_before: Number of orders that the servers have to execute before the
      worker can continue.
    compute_times: Seconds and examples of its last iterations in this
      incarnation.
  """

  latest: Sequence[Any] = ('transfer', -1, 0)
  last_change: float = 0.0
  orders_before: int = 0
  compute_times: collections.deque[tuple[float, int]] = dataclasses.field(
    default_factory=lambda: collections.deque(maxlen=_RECENT)
  )

  def update(self, progress: Sequence[Any], now: float) -> None:
    """Records the progress that a heartbeat carries."""
    if tuple(progress) != tuple(self.latest):
      self.latest, self.last_change = tuple(progress), now

  @property
  def is_computing(self) -> bool:
    """True if the worker computes, False if it transfers or waits."""
    return bool(self.latest[0] == 'compute')

  @property
  def position(self) -> tuple[int, int]:
    """Iteration and number of its chunks, comparable between workers."""
    return self.latest[1], self.latest[2]


class Deadlines:
  """The progress deadlines of a run.

  Attributes:
    start_s: Seconds that the start of a run may take.
  """

  def __init__(self, *, timeout_s: float, start_s: float, windows: bool):
    """Creates the deadlines.

    Args:
      timeout_s: Silence after which a process counts as lost.
      start_s: Seconds that the start of a run may take.
      windows: Whether workers wait for one another's chunks.
    """
    self._timeout_s, self.start_s = timeout_s, start_s
    self._windows = windows

  def overdue(
    self,
    running: Iterable[tuple[int, ReceivedProgress, int]],
    *,
    now: float,
    executed_orders: int,
  ) -> list[tuple[int, str]]:
    """Returns the workers to evict, each with the reason.

    Args:
      running: Workers that were released and have not pushed, with their
        progress and the number of examples of their iterations.
      now: Monotonic seconds.
      executed_orders: Number of orders that all servers have executed.
    """
    running = list(running)
    for _, progress, _ in running:
      if executed_orders < progress.orders_before:
        progress.last_change = now
    found = [
      (index, self._reason(progress, now - progress.last_change), progress)
      for index, progress, examples in running
      if now - progress.last_change > self._limit_s(progress, examples)
    ]
    if self._windows:
      found = self._first(found, [progress for _, progress, _ in running])
    return [(index, reason) for index, reason, _ in found]

  def explain_server(
    self, order: str, still_s: float, usual_s: float | None
  ) -> str:
    """Returns why a server has missed its deadline; '' if it has not.

    Args:
      order: Name of the order that it executes.
      still_s: Seconds for which it has been executing it.
      usual_s: Longest earlier order of that name, seconds; None at first.
    """
    if still_s <= self._limit(usual_s):
      return ''
    return f'It has been at the order {order!r} for {still_s:.1f} s.'

  def is_job_overdue(self, still_s: float, longest_s: float) -> bool:
    """Returns whether an evaluation or a checkpoint has missed its deadline.

    Args:
      still_s: Seconds since its start.
      longest_s: Longest earlier one, seconds; 0 at first.
    """
    return still_s > max(self.start_s, self._limit(longest_s))

  def evaluation_s(self, longest_s: float | None) -> float:
    """Returns how long a worker's evaluation may take, seconds.

    Half of what a job may, so that another process can do it in time.

    Args:
      longest_s: Longest earlier one, seconds; None at first, when the run has
        not begun.
    """
    if longest_s is None:
      return self._limit(None)
    return max(self.start_s, self._limit(longest_s)) / 2

  def _first(
    self,
    found: list[tuple[int, str, ReceivedProgress]],
    running: Sequence[ReceivedProgress],
  ) -> list[tuple[int, str, ReceivedProgress]]:
    """Returns the overdue workers for which the others wait."""
    alone = [each for each in found if each[2].is_computing]
    if alone or any(progress.is_computing for progress in running):
      return alone
    least = min((progress.position for progress in running), default=None)
    return [each for each in found if each[2].position == least]

  def _limit_s(self, progress: ReceivedProgress, examples: int) -> float:
    if not progress.is_computing:
      return _TIMEOUTS * self._timeout_s
    expected_s = [
      max(seconds, seconds / count * examples)
      for seconds, count in progress.compute_times
    ]
    return self._limit(max(expected_s, default=None))

  def _limit(self, usual_s: float | None) -> float:
    if usual_s is None:
      return max(self.start_s, _TIMEOUTS * self._timeout_s)
    return _TIMEOUTS * self._timeout_s + _LONGEST * usual_s

  def _reason(self, progress: ReceivedProgress, still_s: float) -> str:
    activity = 'computed' if progress.is_computing else 'moved no byte'
    return f'It has {activity} for {still_s:.1f} s, too long.'


class Jobs:
  """Jobs that run beside the coordinator's event loop; for any thread."""

  def __init__(self, deadlines: Deadlines):
    """Creates an empty record of jobs.

    Args:
      deadlines: Tell when a job hangs.
    """
    self._deadlines = deadlines
    self._begun: dict[str, float] = {}
    self._longest: dict[str, float] = {}

  def begin(self, name: str) -> None:
    """Records the start of a job; one of each name can run at a time."""
    self._begun[name] = clock.monotonic()

  def end(self, name: str) -> None:
    """Records the end of a job."""
    took_s = clock.monotonic() - self._begun.pop(name)
    self._longest[name] = max(took_s, self._longest.get(name, 0.0))

  def overdue(self) -> tuple[str, float] | None:
    """Returns a job that hangs, and its age in seconds; None if none does."""
    for name, begun in list(self._begun.items()):
      still_s = clock.monotonic() - begun
      if self._deadlines.is_job_overdue(still_s, self._longest.get(name, 0.0)):
        return name, still_s
    return None

  def __bool__(self) -> bool:
    """Returns whether a job is running."""
    return bool(self._begun)


def exit_hung(activity: str, still_s: float) -> NoReturn:
  """Exits a coordinator's process that hangs, with the code LOST.

  Args:
    activity: The activity that hangs, for the log.
    still_s: Its duration so far, seconds.
  """
  logging.error(
    'The coordinator has been at %s for %.1f s, in:', activity, still_s
  )
  faulthandler.dump_traceback()
  end(LOST, Reason.HUNG, f'{activity} has taken {still_s:.1f} s.')
