"""Driver of a scheme, whose workers have compute times but no model.

The driver records workers, pushes and updates independently of the scheme, and
fails on any decision that no runtime could carry out: it is the oracle for the
invariants of every scheme.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sync import record
from sync.scheme import Decision, Scheme

_LEAVE, _JOIN, _PUSH, _WAKE = range(4)


class Step(NamedTuple):
  """Event, its fields, and the decision of the scheme."""

  kind: str
  event: dict[str, Any]
  decision: Decision


class Driver:
  """Runs a scheme under a clock and checks its decisions.

  Attributes:
    steps: Events and decisions so far.
    finished: Number of pushes, by worker.
    living: Workers that are alive.
    running: Workers that compute.
    applied: Number of times that each push was applied, by its id.
    dropped: Ids of the pushes that the scheme has dropped.
  """

  def __init__(self, scheme: Scheme, num_workers: int):
    self.scheme = scheme
    self.steps: list[Step] = []
    self.finished = [0] * num_workers
    self.living = set(range(num_workers))
    self.running: set[int] = set()
    self.applied: dict[int, int] = {}
    self.dropped: list[int] = []
    self._into: dict[int, list[int]] = {}
    self._committed: set[int] = set()
    self._incarnation = [0] * num_workers
    self._started: list[float] = [0.0] * num_workers
    self._events: list[tuple[float, int, int, int]] = []
    self._wake_at: float | None = None

  def run(
    self,
    seconds: Callable[[int, int], float],
    *,
    pushes: int,
    faults: Sequence[tuple[float, str, int]] = (),
    check: Callable[['Driver', Step], None] = lambda driver, step: None,
  ) -> list[Step]:
    """Runs until `pushes` pushes have arrived, or until no worker is alive.

    Args:
      seconds: Function of (worker, its finished iterations) that returns the
        seconds of the next iteration.
      pushes: Number of pushes.
      faults: (time, 'leave' or 'join', worker); impossible ones are skipped.
      check: Function that is called after every step.
    """
    kinds = {'leave': _LEAVE, 'join': _JOIN}
    for time, kind, worker in faults:
      if worker < len(self.finished):
        heapq.heappush(self._events, (time, kinds[kind], worker, -1))
    self._apply(seconds, check, 'start', time=0.0)
    while sum(self.finished) < pushes and not self._idle:
      self._next(seconds, check)
    return self.steps

  def _next(self, seconds, check) -> None:
    wake = (math.inf if self._wake_at is None else self._wake_at, _WAKE)
    if not self._events or wake < self._events[0][:2]:
      self._apply(seconds, check, 'wake', time=wake[0])
      return
    time, kind, worker, incarnation = heapq.heappop(self._events)
    if kind == _LEAVE and worker in self.living:
      self.living.remove(worker)
      self.running.discard(worker)
      self._incarnation[worker] += 1
      self._apply(seconds, check, 'leave', worker=worker, time=time)
    elif kind == _JOIN and worker not in self.living:
      self.living.add(worker)
      self._apply(seconds, check, 'join', worker=worker, time=time)
    elif kind == _PUSH and incarnation == self._incarnation[worker]:
      self.running.remove(worker)
      self.finished[worker] += 1
      self._apply(
        seconds,
        check,
        'push',
        id=len(self.applied),
        worker=worker,
        time=time,
        compute_s=time - self._started[worker],
        examples=1,
      )

  def _apply(self, seconds, check, kind: str, **event) -> None:
    decision = record.apply_event(self.scheme, kind, **event)
    self._account(kind, event, decision)
    for worker in decision.release:
      if worker not in self.living or worker in self.running:
        raise AssertionError(f'released {worker}: {kind} {event} {decision}')
      self.running.add(worker)
      self._started[worker] = event['time']
      end = event['time'] + seconds(worker, self.finished[worker])
      entry = (end, _PUSH, worker, self._incarnation[worker])
      heapq.heappush(self._events, entry)
    self._wake_at = decision.wake_at
    if self.living and not self.running and self._wake_at is None:
      raise AssertionError(f'no worker can continue: {kind} {event} {decision}')
    step = Step(kind, event, decision)
    self.steps.append(step)
    check(self, step)

  def _account(self, kind, event, decision) -> None:
    if kind != 'push' and decision.into is not None:
      raise AssertionError(f'`into` belongs to a push: {kind} {decision}')
    if kind == 'push':
      self.applied[event['id']] = 0
    if kind == 'push' and decision.into is None:
      self.dropped.append(event['id'])
    elif kind == 'push':
      self._into.setdefault(decision.into, []).append(event['id'])
    for update in decision.commit:
      if update in self._committed:
        raise AssertionError(f'update {update} applied twice')
      self._committed.add(update)
      for push in self._into[update]:
        self.applied[push] += 1
    if decision.into in self._committed - set(decision.commit):
      raise AssertionError(f'a push into an update applied before: {decision}')
    if tuple(sorted(decision.release)) != decision.release:
      raise AssertionError(f'releases must ascend: {decision}')

  @property
  def _idle(self) -> bool:
    return not self._events and self._wake_at is None

  @property
  def releases(self) -> list[tuple[float, tuple[int, ...]]]:
    """Pairs (time, workers) of the decisions that released workers."""
    return [
      (step.event['time'], step.decision.release)
      for step in self.steps
      if step.decision.release
    ]
