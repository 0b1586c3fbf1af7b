"""Interface of synchronisation schemes, and the state that all of them share.

A scheme decides when a worker may continue.  It is a small dataclass of plain
data, created by `make(num_workers=..., ...)` of the module that the config
names; its methods change it in place and return a Decision.  A scheme reads no
clock and does no I/O: time is an argument, so that a checkpoint holds the whole
scheme and a recorded run can be replayed from its events.
"""

import dataclasses
import heapq
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from configs import checks

ABSENT, WAITING, RUNNING = range(3)


class Push(NamedTuple):
  """A gradient that has arrived completely.

  Attributes:
    id: Number of the push; ids increase over the run.
    worker: Index of the worker that computed the gradient.
    time: Time of the arrival, seconds, clock of the run.
    compute_s: Seconds of computing alone: no waiting, no transfer.
    examples: Number of examples that the gradient was computed from.
    weight: Weight of the gradient in the mean of an update, in examples: one of
      which only a share of the targets counts weighs that share.  None if it is
      `examples`.
  """

  id: int
  worker: int
  time: float
  compute_s: float
  examples: int
  weight: float | None = None


class Decision(NamedTuple):
  """Steps that the runtime must take, in the order of the fields.

  Attributes:
    into: Id of the update that this push is summed into; None without a push,
      or if the push is dropped.
    commit: Ids of updates to apply now, in order; each increments the version.
    release: Workers that may pull and continue, ascending.  They pull the
      version after the commits.
    barrier: True if a superstep ends here; always False if no worker is alive.
    wake_at: Time at which to call `wake`, seconds.  Replaces a pending wake;
      None cancels it.
  """

  into: int | None = None
  commit: tuple[int, ...] = ()
  release: tuple[int, ...] = ()
  barrier: bool = False
  wake_at: float | None = None


class Scheme(Protocol):
  """Policy that decides when a worker may continue.

  `start` is the first call, with all workers alive.  Simultaneous events come
  in the order leave, join, push, wake, and then by worker.  Late and spurious
  wakes are legal.  A push of a worker that was not released, a second leave or
  a join of a living worker is a ValueError.

  Optional class attributes state guarantees, which count as False where a class
  lacks them.  `has_barriers`: supersteps end at barriers; batchings that divide
  a global batch need them.  `is_synchronous`: each release is of all living
  workers, at a barrier after one update; pipelined servers need it.
  """

  def start(self, time: float) -> Decision:
    """Releases the first iteration of every worker; called once.

    Args:
      time: Time of the start, seconds, clock of the run.
    """

  def push(self, push: Push) -> Decision:
    """Records a gradient that has arrived, and decides what it is summed into.

    The update may be applied now, which is `commit`, or after later pushes.
    """

  def wake(self, time: float) -> Decision:
    """Handles the timer of `Decision.wake_at`; it may be late or spurious.

    Args:
      time: Present time, seconds, clock of the run.
    """

  def leave(self, worker: int, time: float) -> Decision:
    """Records that a worker has left.  Its earlier pushes still count.

    The others are released if they only waited for it.

    Args:
      worker: Index of the worker.
      time: Present time, seconds, clock of the run.
    """

  def join(self, worker: int, time: float) -> Decision:
    """Records that a worker that had left has rejoined.

    It waits until a decision, of this or of a later call, releases it.

    Args:
      worker: Index of the worker.
      time: Present time, seconds, clock of the run.
    """


@dataclasses.dataclass
class Members:
  """State of each worker: absent, waiting or running.

  Attributes:
    state: Int [num_workers]: ABSENT, WAITING (for a release) or RUNNING.
    running: Number of running workers.
  """

  is_state = True  # Plain data: checkpoints hold it.

  state: list[int]
  running: int = 0

  def release(self, workers: Iterable[int]) -> tuple[int, ...]:
    """Marks waiting workers as running; returns them, sorted.  O(k log k).

    Raises:
      ValueError: If one is not waiting.
    """
    released = tuple(sorted(workers))
    for worker in released:
      self._move(worker, WAITING, RUNNING)
    self.running += len(released)
    return released

  def release_all(self) -> tuple[int, ...]:
    """Marks every waiting worker as running.  O(num_workers)."""
    return self.release(w for w, s in enumerate(self.state) if s == WAITING)

  def stop(self, worker: int) -> None:
    """Marks a running worker as waiting: it has pushed.

    Raises:
      ValueError: If it is not running.
    """
    self._move(worker, RUNNING, WAITING)
    self.running -= 1

  def leave(self, worker: int) -> bool:
    """Removes a living worker and returns whether it was running.

    Raises:
      ValueError: If it is absent.
    """
    self._check(worker)
    if self.state[worker] == ABSENT:
      raise ValueError(f'worker: expected a living worker, got {worker}.')
    was_running = self.state[worker] == RUNNING
    self.state[worker] = ABSENT
    self.running -= was_running
    return was_running

  def join(self, worker: int) -> None:
    """Marks an absent worker as waiting.

    Raises:
      ValueError: If it is not absent.
    """
    self._move(worker, ABSENT, WAITING)

  def _move(self, worker: int, old: int, new: int) -> None:
    self._check(worker)
    if self.state[worker] != old:
      names = ('absent', 'waiting', 'running')
      raise ValueError(
        f'worker: expected worker {worker} to be {names[old]}, got '
        f'{names[self.state[worker]]}.'
      )
    self.state[worker] = new

  def _check(self, worker: int) -> None:
    if not 0 <= worker < len(self.state):
      raise ValueError(
        f'worker: expected 0 to {len(self.state) - 1}, got {worker}.'
      )


def make_members(num_workers: int) -> Members:
  """Returns `num_workers` workers that all wait for their first release."""
  checks.check_integer('num_workers', num_workers, at_least=1)
  return Members(state=[WAITING] * num_workers)


@dataclasses.dataclass
class Clocks:
  """Numbers of iterations that the living workers have finished.

  A heap finds the slowest worker.  Every living worker has one entry, whose
  number may be too low and is corrected when the entry reaches the top:
  O(log n) amortised.

  Attributes:
    finished: Int [num_workers], finished iterations.
    heap: Pairs (lower bound of the finished iterations, worker), one for each
      living worker.
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
    """Removes a worker, which no longer counts as the slowest.  O(n)."""
    self.heap = [entry for entry in self.heap if entry[1] != worker]
    heapq.heapify(self.heap)

  def join(self, worker: int) -> None:
    """Adds a worker, with the count of the slowest if any worker is alive."""
    if self.heap:
      self.finished[worker] = self.slowest()[0]
    heapq.heappush(self.heap, (self.finished[worker], worker))


def make_clocks(num_workers: int) -> Clocks:
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
