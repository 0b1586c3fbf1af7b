"""Drives a scheme with workers that only take time: no network, no gradients.

It keeps books of its own and fails on any decision that no runtime could carry
out: this is the oracle for what every scheme must hold.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sync import record
from sync.scheme import Decision, Scheme

_LEAVE, _JOIN, _PUSH, _WAKE = range(4)


class Step(NamedTuple):
  """One event and its decision."""

  told: str
  event: dict[str, Any]
  decision: Decision


class Driver:
  """Runs a scheme under a clock and checks its decisions.

  Attributes:
    steps: Everything told and said so far.
    finished: Pushes per worker.
    living: Who lives.
    running: Who computes.
    applied: How often each push was applied, by its id.
  """

  def __init__(self, scheme: Scheme, num_workers: int):
    self.scheme = scheme
    self.steps: list[Step] = []
    self.finished = [0] * num_workers
    self.living = set(range(num_workers))
    self.running: set[int] = set()
    self.applied: dict[int, int] = {}
    self._into: dict[int, list[int]] = {}
    self._committed: set[int] = set()
    self._life = [0] * num_workers
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
    """Runs until `pushes` pushes were told, or until nobody lives.

    Args:
      seconds: (worker, its finished iterations) -> seconds of the next one.
      pushes: How many to tell.
      faults: (time, 'leave' or 'join', worker); impossible ones are skipped.
      check: Called after every step.
    """
    kinds = {'leave': _LEAVE, 'join': _JOIN}
    for time, told, worker in faults:
      heapq.heappush(self._events, (time, kinds[told], worker, -1))
    self._tell(seconds, check, 'start', time=0.0)
    while sum(self.finished) < pushes and not self._idle:
      self._next(seconds, check)
    return self.steps

  def _next(self, seconds, check) -> None:
    wake = (math.inf if self._wake_at is None else self._wake_at, _WAKE)
    if not self._events or wake < self._events[0][:2]:
      self._tell(seconds, check, 'wake', time=wake[0])
      return
    time, kind, worker, life = heapq.heappop(self._events)
    if kind == _LEAVE and worker in self.living:
      self.living.remove(worker)
      self.running.discard(worker)
      self._life[worker] += 1
      self._tell(seconds, check, 'leave', worker=worker, time=time)
    elif kind == _JOIN and worker not in self.living:
      self.living.add(worker)
      self._tell(seconds, check, 'join', worker=worker, time=time)
    elif kind == _PUSH and life == self._life[worker]:
      self.running.remove(worker)
      self.finished[worker] += 1
      self._tell(
        seconds,
        check,
        'push',
        id=len(self.applied),
        worker=worker,
        time=time,
        compute_s=time - self._started[worker],
        examples=1,
      )

  def _tell(self, seconds, check, told: str, **event) -> None:
    decision = record.tell(self.scheme, told, **event)
    self._account(told, event, decision)
    for worker in decision.release:
      if worker not in self.living or worker in self.running:
        raise AssertionError(f'released {worker}: {told} {event} {decision}')
      self.running.add(worker)
      self._started[worker] = event['time']
      end = event['time'] + seconds(worker, self.finished[worker])
      entry = (end, _PUSH, worker, self._life[worker])
      heapq.heappush(self._events, entry)
    self._wake_at = decision.wake_at
    if self.living and not self.running and self._wake_at is None:
      raise AssertionError(f'nobody can go on: {told} {event} {decision}')
    step = Step(told, event, decision)
    self.steps.append(step)
    check(self, step)

  def _account(self, told, event, decision) -> None:
    if (told == 'push') != (decision.into is not None):
      raise AssertionError(f'a sum for a push only: {told} {decision}')
    if told == 'push':
      self.applied[event['id']] = 0
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
    """(time, workers) of every decision that released anyone."""
    return [
      (step.event['time'], step.decision.release)
      for step in self.steps
      if step.decision.release
    ]
