"""What a scheme is told, what it answers, and what all schemes share.

A scheme decides when a worker may go on.  It is a small dataclass of plain
data, made by `make(num_workers=..., ...)` of the module that the config names;
its methods change it in place and return a Decision.  It reads no clock and does
no I/O: time is an argument, so that a checkpoint can hold a scheme whole and a
recorded run can be replayed by telling it the same events.
"""

import dataclasses
import heapq
import numbers
from collections.abc import Iterable
from typing import NamedTuple, Protocol, cast

GONE, WAITING, RUNNING = range(3)


class Push(NamedTuple):
  """A gradient that has arrived whole.

  Attributes:
    id: Increasing over the run.
    worker: Who computed it.
    time: Seconds, clock of the run.
    compute_s: Seconds of computing alone: no waiting, no transfer.
    examples: How many examples the gradient was computed from.
  """

  id: int
  worker: int
  time: float
  compute_s: float
  examples: int


class Decision(NamedTuple):
  """What the runtime must do, in this order.

  Attributes:
    into: The update that this push is summed into; None if there was no push.
    commit: Updates applied now, in order; each makes the version one higher.
    release: Workers that may pull and go on, ascending.  They pull the version
      after the commits.
    barrier: Whether a superstep ends here; never if nobody is alive.
    wake_at: When to call `wake`, seconds.  Replaces a pending wake; None
      cancels it.
  """

  into: int | None = None
  commit: tuple[int, ...] = ()
  release: tuple[int, ...] = ()
  barrier: bool = False
  wake_at: float | None = None


class Scheme(Protocol):
  """When may a worker go on?

  `start` is told first, with all workers alive.  Simultaneous events are told
  in the order leave, join, push, wake, and then by worker.  Late and spurious
  wakes are legal.  A push of a worker that was not released, a second leave or
  a join of a living worker is a ValueError.

  Class attributes say what others may ask of a scheme; one that lacks them
  promises nothing.  `has_barriers = True`: supersteps end at barriers, which
  batchings need that divide examples.  `is_synchronous = True`: whoever is released
  is released with all others alive, at a barrier after one update, which
  pipelined servers need.
  """

  def start(self, time: float) -> Decision:
    """Releases the first iteration of every worker."""

  def push(self, push: Push) -> Decision:
    """Takes a gradient in."""

  def wake(self, time: float) -> Decision:
    """Is called at `wake_at`, or later, or for nothing."""

  def leave(self, worker: int, time: float) -> Decision:
    """A worker died.  What it pushed before still counts."""

  def join(self, worker: int, time: float) -> Decision:
    """A worker that had left is back."""


@dataclasses.dataclass
class Members:
  """Who is gone, waiting or running.

  Attributes:
    state: Int [num_workers]: GONE, WAITING (for a release) or RUNNING.
    running: How many workers run.
  """

  is_state = True  # Plain data: checkpoints hold it.

  state: list[int]
  running: int = 0

  def release(self, workers: Iterable[int]) -> tuple[int, ...]:
    """Lets waiting workers run and returns them, ascending.  O(k log k)."""
    released = tuple(sorted(workers))
    for worker in released:
      self._move(worker, WAITING, RUNNING)
    self.running += len(released)
    return released

  def release_all(self) -> tuple[int, ...]:
    """Lets every waiting worker run.  O(num_workers)."""
    return self.release(w for w, s in enumerate(self.state) if s == WAITING)

  def stop(self, worker: int) -> None:
    """A running worker has pushed and now waits."""
    self._move(worker, RUNNING, WAITING)
    self.running -= 1

  def leave(self, worker: int) -> bool:
    """Removes a living worker and returns whether it was running."""
    self._check(worker)
    was = self.state[worker]
    if was == GONE:
      raise ValueError(f'Expected a living worker to leave, got {worker}.')
    self.state[worker] = GONE
    self.running -= was == RUNNING
    return was == RUNNING

  def join(self, worker: int) -> None:
    """A worker that was gone now waits."""
    self._move(worker, GONE, WAITING)

  def _move(self, worker: int, old: int, new: int) -> None:
    self._check(worker)
    if self.state[worker] != old:
      names = ('gone', 'waiting', 'running')
      raise ValueError(
        f'Expected worker {worker} to be {names[old]}, '
        f'it is {names[self.state[worker]]}.'
      )
    self.state[worker] = new

  def _check(self, worker: int) -> None:
    if not 0 <= worker < len(self.state):
      raise ValueError(
        f'Expected a worker in 0..{len(self.state) - 1}, got {worker}.'
      )


def members(num_workers: int) -> Members:
  """Returns `num_workers` workers that all wait for their first release."""
  check_integer('num_workers', num_workers, at_least=1)
  return Members(state=[WAITING] * num_workers)


@dataclasses.dataclass
class Clocks:
  """Finished iterations of the living workers, and the slowest of them.

  Every living worker has one entry in a heap, which may be behind its clock
  and is brought up to date when it comes to the top: O(log n) amortised.

  Attributes:
    finished: Int [num_workers], iterations.
    heap: (iterations, worker) of each living worker, a lower bound.
  """

  is_state = True  # Plain data: checkpoints hold it.

  finished: list[int]
  heap: list[tuple[int, int]]

  def tick(self, worker: int) -> int:
    """Counts one more iteration of `worker` and returns its lead."""
    self.finished[worker] += 1
    return self.finished[worker] - self.slowest()[0]

  def slowest(self) -> tuple[int, int]:
    """Returns (iterations, worker) of the slowest; ties: the lowest worker."""
    while self.heap[0][0] != self.finished[self.heap[0][1]]:
      worker = self.heap[0][1]
      heapq.heapreplace(self.heap, (self.finished[worker], worker))
    return self.heap[0]

  def leave(self, worker: int) -> None:
    """Removes a worker.  O(n)."""
    self.heap = [entry for entry in self.heap if entry[1] != worker]
    heapq.heapify(self.heap)

  def join(self, worker: int) -> None:
    """Adds a worker, with the smallest living clock if any worker lives."""
    if self.heap:
      self.finished[worker] = self.slowest()[0]
    heapq.heappush(self.heap, (self.finished[worker], worker))


def clocks(num_workers: int) -> Clocks:
  """Returns the clocks of `num_workers` living workers, all at zero."""
  return Clocks(
    finished=[0] * num_workers, heap=[(0, w) for w in range(num_workers)]
  )


def pop_within(waiting: list[tuple[int, int]], highest: float) -> list[int]:
  """Removes and returns the workers of a heap whose clock is <= `highest`."""
  workers = []
  while waiting and waiting[0][0] <= highest:
    workers.append(heapq.heappop(waiting)[1])
  return workers


def check_integer(name: str, value: object, *, at_least: int) -> None:
  """Raises ValueError unless `value` is an integer that is large enough."""
  integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not integral or cast(int, value) < at_least:
    raise ValueError(
      f'{name}: expected an integer of at least {at_least}, got {value!r}.'
    )


def check_fraction(name: str, value: object) -> None:
  """Raises ValueError unless `value` is a real number in 0..1."""
  real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  if not real or not 0 <= cast(float, value) <= 1:
    raise ValueError(f'{name}: expected a number in 0..1, got {value!r}.')
