"""The runtime of parameter servers on real hosts, in the coordinator's process.

Server 0 is in the same process.  One thread takes events from the queue of the
reception, passes them to the scheme, and gives all servers the orders that
carry out the scheme's decisions.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

from absl import logging

from cluster.coordinator import Coordinator
from cluster.membership import worker_states
from cluster.membership.event_loop import DRAINED, EventLoop
from cluster.membership.events import Event, WorkerJoined, WorkerLost
from cluster.membership.process import Settings
from cluster.membership.worker_states import ResidualId, assign_residuals
from cluster.network.messages import Pull
from cluster.parameter_server.admission import (
  ParameterServerReception,
  PushReceived,
)
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import Report
from cluster.process.deadlines import Deadlines
from cluster.process.exits import Unmendable
from learning.scaling import factor, worker_scaling

_MAX_EVENTS = 64  # Whose orders are sent together.


class ParameterServerRuntime(EventLoop):
  """Event loop of a run with parameter servers: see `EventLoop`."""

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    store: ShardedParameterStore,
    reception: ParameterServerReception,
    make_server: Callable[[Report, tuple[int, int] | None], Server],
    num_servers: int,
    find_residuals: Callable[[], tuple[int, list[int]] | None],
    settings: Settings,
    deadlines: Deadlines,
    make_local_worker: Callable[[str], Callable[[], object]] | None,
  ):
    """Creates the runtime; the reception does not listen yet.

    Args:
      coordinator: Coordinator, which asks the scheme.
      store: Parameter store of the coordinator, which gives the orders.
      reception: Control streams to workers and servers.
      make_server: Creates server 0, given the function for its reports and the
        checkpoint to resume from.
      num_servers: Number of servers.
      find_residuals: Returns the number of the checkpoint to resume from, and
        the workers whose residuals are in it; None to start from scratch.
      settings: As of `EventLoop`.
      deadlines: As of `EventLoop`.
      make_local_worker: As of `EventLoop`.
    """
    super().__init__(
      coordinator=coordinator,
      reception=reception,
      settings=settings,
      deadlines=deadlines,
      make_local_worker=make_local_worker,
    )
    self._store = store
    self._reception: ParameterServerReception = reception
    self._make_server = make_server
    self._num_servers = num_servers
    self._find_residuals = find_residuals
    # Workers whose residuals the checkpoint should have.
    self._with_residuals: list[int] = []
    count = len(coordinator.workers)
    # Residuals before the first iteration that counts, by worker.
    self._initial = [ResidualId()] * count
    self._wake: float | None = None
    self._drained: set[int] = set()  # Workers that leave after their push.
    self._alone_since = math.inf
    coordinator.attach(release=self._release, wake_at=self._wake_at)

  def warm_up(self) -> None:
    """Waits until all servers and enough workers are ready and connected.

    Raises:
      Unmendable: If one does not in time; carries their last activities.
    """
    self._wait_for_processes(
      self._reception.open(self._make_server),
      done=self._reception.begin,
      missing=self._reception.missing,
      transfer_s=self._reception.transfer_s,
    )
    self._store.attach(self._reception.begin(), self._save_residuals)

  def start(self) -> None:
    """Releases the first iterations."""
    super().start()
    self._store.flush()

  def resume(self) -> None:
    """Continues after `restore`, with the workers that are connected."""
    self.coordinator.rejoin(self._before, self.time)
    if (found := self._find_residuals()) and self._store.has_worker_states:
      step, workers = found
      self._initial = assign_residuals(step, workers, len(self._members))
      recorder = self.coordinator.recorder
      unsaved = sorted(set(self._with_residuals) - set(workers))
      for index in unsaved:
        recorder.record_lost_residual(index, self.time, None)
      if self._store.has_inner_optimizer:
        recorder.accounting.lost_states += worker_states.lost_at_restart(
          workers, unsaved, len(self._members), self.time
        )
    for update in self._store.pending:
      self._store.commit(update)
      self.coordinator.recorder.record_update(update, self.time)
    self.start()

  def step(self) -> None:
    """Handles events, after waiting for the first for at most a heartbeat.

    Raises:
      Unmendable: If a server is lost, or if there was no worker for `start_s`.
      FloatingPointError: If a loss or a gradient is not finite.
    """
    wait_s = self._check_at - time.monotonic()
    if self._wake is not None:
      wait_s = min(wait_s, self._wake - self._now())
    for _ in range(_MAX_EVENTS):
      if event := self._take_event(wait_s):
        self._dispatch(event)
      # The orders of all events so far are sent in one message.
      if (
        self._reception.events.empty() or self._is_wake_due or self._is_finished
      ):
        break
      wait_s = 0.0
    if self._is_wake_due:
      self._wake = None
      self.time = max(self.time, self._now())
      self.coordinator.wake(self.time)
    self._check_progress()
    self._store.flush()

  def pause(self) -> bool:
    """Returns True: pushes under way are lost, and their examples are not."""
    return True

  @property
  def has_successor(self) -> bool:
    """False: no other process can coordinate the run."""
    return False

  def is_ended_by(self, number: int) -> bool:
    """Returns True: no other process can coordinate the run."""
    return True

  def state(self) -> dict[str, Any]:
    """Returns the coordinator's state; the servers save theirs."""
    return {
      'time': self.time,
      'coordinator': self.coordinator.state(),
      'servers': self._store.state(),
      'keepers': self._live_workers() if self._store.has_worker_states else [],
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Restores a state; the number of workers may have changed."""
    self.time = state['time']
    self._before = state['coordinator']
    self._store.restore(state['servers'])
    self._with_residuals = state['keepers']

  @property
  def _is_wake_due(self) -> bool:
    """True if the time at which the scheme asked to be woken has come."""
    return self._wake is not None and self._now() >= self._wake

  def _handle(self, event: Event) -> None:
    match event:
      case WorkerJoined():
        self._handle_joined(event)
      case PushReceived():
        self._handle_push(event)
      case WorkerLost():
        self._handle_lost(event)

  def _handle_joined(self, event: WorkerJoined) -> None:
    if not self._admit(event):
      return
    index, member = event.worker, self._members[event.worker]
    self._store.incarnations[index] = event.incarnation
    member.arrived = 0
    if self._started:
      member.is_late = True
      self._log_joined(event)
      self.coordinator.join(index, self.time)

  def _handle_push(self, event: PushReceived) -> None:
    index, member = event.worker, self._members[event.worker]
    report = event.report
    member.arrived += 1
    if member.arrived < self._num_servers:
      return
    member.arrived = 0
    loss, finite = report.loss, report.is_finite
    self.coordinator.check(index, finite=finite, loss=loss)
    member.compilations[event.incarnation] = report.compilations
    if report.has_recalled and self._store.has_worker_states:
      self.coordinator.recorder.record_recovered_residual(index, self.time)
    if self._store.has_inner_optimizer:
      worker_states.settle(
        self.coordinator.recorder,
        member,
        index,
        self.time,
        recalled=report.has_recalled,
      )
    member.counted = report.iteration
    examples = self.coordinator.workers[index].examples
    member.progress.compute_times.append((report.compute_s, examples))
    stage = self.coordinator.workers[index].stage
    self.coordinator.recorder.record_transfer(self._store.sizes_bytes[stage])
    began = self._began or 0.0
    starts = (
      ('compute', report.pulled_at - began),
      ('push', report.computed_at - began),
    )
    self.coordinator.enter_each(index, starts, self.time)
    self.coordinator.push(
      index,
      self.time,
      compute_s=report.compute_s,
      factors=report.factors,
      computed=report.computed,
      loss=loss,
      finite=finite,
    )
    if index in self._drained:
      self._lose(index, DRAINED, kind='drained')

  def _drain(self, index: int) -> None:
    """Lets a worker leave at once if it waits, else after its push."""
    self._drained.add(index)
    if self.coordinator.workers[index].phase == 'wait':
      self._lose(index, DRAINED, kind='drained')

  def _handle_lost(self, event: WorkerLost) -> None:
    index, member = event.worker, self._members[event.worker]
    if event.incarnation != member.incarnation:
      self._store.end(index, event.incarnation)  # Servers may wait for it.
    elif member.stream is not None:
      self._lose(index, event.reason)

  def _lose(
    self,
    index: int,
    reason: str,
    kind: Literal['left', 'drained'] = 'left',
  ) -> None:
    member = self._members[index]
    self._drained.discard(index)
    if kind == 'drained':
      logging.info('Worker %d has left: %s', index, reason)
    else:
      logging.warning('Worker %d is lost: %s', index, reason)
    stream, member.stream = member.stream, None
    if stream is not None:
      self._reception.evict(index, stream, reason, kind)
    self._store.end(index, member.incarnation)
    if self._started:
      if (
        self._store.has_worker_states
        and self._residual(index).can_differ_from_zero
      ):
        recorder = self.coordinator.recorder
        recorder.record_lost_residual(index, self.time, None)
        if self._store.has_inner_optimizer:
          worker_states.record_loss(recorder, member, index, self.time, reason)
      self.coordinator.leave(index, self.time, reason)

  def _check_processes(self) -> None:
    """Evicts workers that are silent or make no progress.

    Raises:
      Unmendable: If there was no worker for `start_s`.
    """
    self._lose_silent()
    self._lose_overdue()
    now = time.monotonic()
    if any(member.stream for member in self._members):
      self._alone_since = math.inf
      return
    self._alone_since = min(self._alone_since, now)
    if now - self._alone_since > self._start_s:
      raise Unmendable('No worker has rejoined.')

  def _lose_overdue(self) -> None:
    workers = self.coordinator.workers
    running = [
      (index, member.progress, workers[index].examples)
      for index, member in enumerate(self._members)
      if member.stream and workers[index].phase not in (None, 'wait')
    ]
    overdue = self._deadlines.overdue(
      running, now=time.monotonic(), executed_orders=self._reception.executed
    )
    for index, reason in overdue:
      self._lose(index, reason)

  def _release(self, index: int) -> None:
    worker = self.coordinator.workers[index]
    progress = self._members[index].progress
    progress.last_change = time.monotonic()
    progress.orders_before = self._store.sequence + 1
    self._store.release(
      index,
      Pull(
        iteration=worker.iteration,
        ranges=worker.ranges,
        examples=worker.examples,
        scale=factor(worker_scaling(self._store.scalings, index)),
        upcoming=self.coordinator.upcoming(index),
        stage=worker.stage,
        residual=self._residual(index),
        rate=self._store.learning_rate,
      ),
    )

  def _residual(self, index: int) -> ResidualId:
    """Returns the residual with which a worker continues."""
    counted = self._members[index].counted
    return self._initial[index] if counted is None else ResidualId(counted)

  def _live_workers(self) -> list[int]:
    return [k for k, member in enumerate(self._members) if member.stream]

  def _save_residuals(self, step: int) -> list[Future[bool]]:
    """Requests the workers' codec states, which they write to a checkpoint.

    Returns:
      A future of each part: see `ParameterServerReception.save_residual`.
    """
    return [
      self._reception.save_residual(index, step, self._residual(index))
      for index in (
        self._live_workers() if self._store.has_worker_states else []
      )
    ]

  def _wake_at(self, time: float | None) -> None:
    self._wake = time
