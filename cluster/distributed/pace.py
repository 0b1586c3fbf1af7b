"""Whether a process goes on, not only lives, and when it should have.

Beats come from a thread of their own: they tell that a process lives, not that
it does what it is there for.  With every beat it therefore tells its pace: what
it is doing, and a count that grows with each chunk and each phase.  The lead
gives up whose count stands still for too long:

  transferring    2 timeouts without a chunk, from when the servers have obeyed
                  the order to let it go on
  computing       2 timeouts and 4 times the longest of its last iterations,
                  per example if batches change; in the first one of a life,
                  the time that a start may take
  obeying         2 timeouts and 4 times the longest order of that name so far;
                  at the first one, the time that a start may take

What the lead has others do meanwhile, evaluations and checkpoints, may take as
long as a start, and if that is more 2 timeouts and 4 times the longest so far:
nobody stands still for it, and disks have bad days.  After that, or if the lead
itself takes no events for as long as a start, its process ends itself: starting
again may help.

With pipelined routes a worker can send no more than the others have sent:
there the one that has come least far is given up, and only if nobody computes.
"""

import collections
import dataclasses
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import logging

from cluster.transport.heart import LOST

_TIMEOUTS, _LONGEST = 2, 4
_KEPT = 10  # Iterations.


class Pace:
  """How far a worker has come; its threads change it, its beats tell it.

  Within an iteration the count never falls, whatever its sources do: a count
  that fell and grew again would show no progress until it was past its maximum.
  """

  def __init__(self) -> None:
    """Starts with no progress recorded."""
    self._doing, self._iteration, self._steps = 'transfer', -1, 0
    self._lock = threading.Lock()

  def compute(self) -> None:
    """It computes from here on."""
    self._doing = 'compute'

  def transfer(self) -> None:
    """It sends or receives from here on, or waits to be let go on."""
    self._doing = 'transfer'

  def begin(self, iteration: int) -> None:
    """Another iteration begins."""
    with self._lock:
      self._iteration, self._steps = iteration, 0

  def step(self) -> None:
    """A chunk has come or gone."""
    self._steps += 1  # Threads may count one chunk for two; it still grows.

  def reach(self, steps: int) -> None:
    """So many chunks have come or gone in this iteration."""
    with self._lock:
      self._steps = max(self._steps, steps)

  def follow(self, count: Callable[[], int]) -> None:
    """Records what a source counts, for one thread beside that of `begin`.

    Args:
      count: Returns how many chunks have come or gone in this iteration, of all
        its sums; 0 before `begin` is called.
    """
    with self._lock:  # A count of the iteration before is not for this one.
      self._steps = max(self._steps, count())

  def told(self) -> dict[str, Any]:
    """Returns what beats say of it."""
    return {'pace': [self._doing, self._iteration, self._steps]}


@dataclasses.dataclass
class Seen:
  """A worker's pace, as the lead sees it.

  Attributes:
    pace: As told last.
    moved: When it was another one, or when the worker was released; monotonic
      seconds.
    after: Orders that servers have to obey before it can go on.
    computed: Seconds and examples of its last iterations in this life.
  """

  pace: Sequence[Any] = ('transfer', -1, 0)
  moved: float = 0.0
  after: int = 0
  computed: collections.deque[tuple[float, int]] = dataclasses.field(
    default_factory=lambda: collections.deque(maxlen=_KEPT)
  )

  def tell(self, pace: Sequence[Any], now: float) -> None:
    """Takes in what a beat says."""
    if tuple(pace) != tuple(self.pace):
      self.pace, self.moved = tuple(pace), now

  @property
  def computes(self) -> bool:
    """Whether it computes, or else transfers."""
    return self.pace[0] == 'compute'

  @property
  def far(self) -> tuple[int, int]:
    """Iteration and steps."""
    return self.pace[1], self.pace[2]


class Deadlines:
  """Says who has stood still for too long.

  Attributes:
    start_s: That a start may take.
  """

  def __init__(self, *, timeout_s: float, start_s: float, windows: bool):
    """Knows nobody.

    Args:
      timeout_s: Silence after which a process counts as lost.
      start_s: That a start may take.
      windows: Whether workers wait for one another's chunks.
    """
    self._timeout_s, self.start_s = timeout_s, start_s
    self._windows = windows

  def overdue(
    self,
    running: Iterable[tuple[int, Seen, int]],
    *,
    now: float,
    obeyed: int,
  ) -> list[tuple[int, str]]:
    """Returns which workers to give up, and why.

    Args:
      running: Workers that were released and have not pushed, what is seen of
        them, and the examples of their iterations.
      now: Monotonic seconds.
      obeyed: Orders that all servers have obeyed.
    """
    running = list(running)
    for _, seen, _ in running:
      if obeyed < seen.after:
        seen.moved = now
    found = [
      (index, self._reason(seen, now - seen.moved), seen)
      for index, seen, examples in running
      if now - seen.moved > self._limit_s(seen, examples)
    ]
    if self._windows:
      found = self._first(found, [seen for _, seen, _ in running])
    return [(index, reason) for index, reason, _ in found]

  def server(self, obeying: str, still_s: float, usual_s: float | None) -> str:
    """Returns why a server is to be given up, '' if it is not.

    Args:
      obeying: The order.
      still_s: How long it has been obeying it.
      usual_s: The longest that it took before; None at first.
    """
    if still_s <= self._limit(usual_s):
      return ''
    return f'It has been at the order {obeying!r} for {still_s:.1f} s.'

  def job(self, still_s: float, longest_s: float) -> bool:
    """Returns whether what nobody waits for hangs.

    Args:
      still_s: For how long it has been done.
      longest_s: That it took before.
    """
    return still_s > max(self.start_s, self._limit(longest_s))

  def _first(
    self, found: list[tuple[int, str, Seen]], running: Sequence[Seen]
  ) -> list[tuple[int, str, Seen]]:
    """Returns who holds the others up."""
    alone = [each for each in found if each[2].computes]
    if alone or any(seen.computes for seen in running):
      return alone
    least = min((seen.far for seen in running), default=None)
    return [each for each in found if each[2].far == least]

  def _limit_s(self, seen: Seen, examples: int) -> float:
    if not seen.computes:
      return _TIMEOUTS * self._timeout_s
    each = [
      max(seconds, seconds / of * examples) for seconds, of in seen.computed
    ]
    return self._limit(max(each, default=None))

  def _limit(self, usual_s: float | None) -> float:
    if usual_s is None:
      return max(self.start_s, _TIMEOUTS * self._timeout_s)
    return _TIMEOUTS * self._timeout_s + _LONGEST * usual_s

  def _reason(self, seen: Seen, still_s: float) -> str:
    doing = 'computed' if seen.computes else 'moved no byte'
    return f'It has {doing} for {still_s:.1f} s, too long.'


class Jobs:
  """What the lead has others do while it goes on; from any thread."""

  def __init__(self, deadlines: Deadlines):
    """There are none yet.

    Args:
      deadlines: After which one hangs.
    """
    self._deadlines = deadlines
    self._begun: dict[str, float] = {}
    self._longest: dict[str, float] = {}

  def begin(self, name: str) -> None:
    """One begins, of which there is one at a time."""
    self._begun[name] = time.monotonic()

  def end(self, name: str) -> None:
    """It has ended."""
    took_s = time.monotonic() - self._begun.pop(name)
    self._longest[name] = max(took_s, self._longest.get(name, 0.0))

  def overdue(self) -> tuple[str, float] | None:
    """Returns one that hangs, and for how many seconds; None if none does."""
    for name, begun in list(self._begun.items()):
      still_s = time.monotonic() - begun
      if self._deadlines.job(still_s, self._longest.get(name, 0.0)):
        return name, still_s
    return None

  def __bool__(self) -> bool:
    """Whether there are any."""
    return bool(self._begun)


def exit_hung(doing: str, still_s: float) -> None:
  """Ends a process whose lead hangs: starting again may help.

  Args:
    doing: At what.
    still_s: For how many seconds.
  """
  logging.error('The lead has been at %s for %.1f s, in:', doing, still_s)
  faulthandler.dump_traceback()
  os._exit(LOST)
