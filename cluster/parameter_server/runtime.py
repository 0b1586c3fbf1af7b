"""The distributed runtime, as its coordinator runs it.

The coordinator has server 0 in its process.  One thread takes what happens out of the
queue of the reception, tells the scheme, and orders all servers to do what the
scheme says.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from absl import logging

from cluster.coordinator import Coordinator
from cluster.membership.event_loop import EventLoop
from cluster.membership.events import Event, WorkerJoined, WorkerLost
from cluster.membership.process import Settings
from cluster.network.messages import Pull
from cluster.parameter_server.admission import (
  ParameterServerReception,
  PushReceived,
)
from cluster.parameter_server.residuals import Since, shared
from cluster.parameter_server.server import Report, Server
from cluster.parameter_server.servers import Orders
from cluster.process.deadlines import Deadlines
from cluster.process.exits import Unmendable
from learning.scaling import factor, of

_MOST = 64  # Events whose orders wait for one another.


class ParameterServerRuntime(EventLoop):
  """Real workers and servers.

  Attributes:
    time: Seconds since the start, of this process and those before it.
    coordinator: Asks the scheme.
  """

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    orders: Orders,
    reception: ParameterServerReception,
    server: Callable[[Report, tuple[int, int] | None], Server],
    num_servers: int,
    kept: Callable[[], tuple[int, list[int]] | None],
    settings: Settings,
    deadlines: Deadlines,
    local: Callable[[str], Callable[[], object]] | None,
  ):
    """Listens to nobody yet.

    Args:
      coordinator: Asks the scheme.
      orders: For all servers; the coordinator's store.
      reception: Talks to workers and servers.
      server: Creates server 0, given the function for its reports and the
        checkpoint to resume from.
      num_servers: Number of servers.
      kept: Returns, if the run goes on from a checkpoint, its number and the
        workers who have parts in it.
      settings: As of `EventLoop`.
      deadlines: As of `EventLoop`.
      local: As of `EventLoop`.
    """
    super().__init__(
      coordinator=coordinator,
      reception=reception,
      settings=settings,
      deadlines=deadlines,
      local=local,
    )
    self._orders = orders
    self._reception: ParameterServerReception = reception
    self._server = server
    self._num_servers = num_servers
    self._kept = kept
    self._keepers: list[int] = []  # Who is to have parts in it.
    count = len(coordinator.workers)
    self._since = [Since()] * count  # Before an iteration has counted.
    self._wake: float | None = None
    self._alone_since = math.inf
    coordinator.attach(release=self._release, wake_at=self._wake_at)

  def warm_up(self) -> None:
    """Waits until all servers and workers have compiled and connected.

    Raises:
      Unmendable: If one does not; says what is known of it.
    """
    self._wait(
      self._reception.open(self._server),
      done=self._reception.begin,
      missing=self._reception.missing,
    )
    self._orders.attach(self._reception.begin(), self._save)

  def start(self) -> None:
    """Releases the first iterations."""
    super().start()
    self._orders.flush()

  def resume(self) -> None:
    """Goes on from a checkpoint as from a barrier, with today's workers."""
    self.coordinator.rejoin(self._before, self.time)
    if (found := self._kept()) and self._orders.keeps:
      step, workers = found
      self._since = shared(step, workers, len(self._members))
      for index in sorted(set(self._keepers) - set(workers)):
        self.coordinator.recorder.forgot(index, self.time, None)
    for update in self._orders.pending:
      self._orders.commit(update)
      self.coordinator.recorder.committed(update, self.time)
    self.start()

  def step(self) -> None:
    """Waits for events, at most for a beat, and does what follows.

    Raises:
      Unmendable: If a server is lost, or if no worker has been there for long.
      FloatingPointError: If a loss or a gradient is not finite.
    """
    wait_s = self._check_at - time.monotonic()
    if self._wake is not None:
      wait_s = min(wait_s, self._wake - self._now())
    for _ in range(_MOST):
      if event := self._next(wait_s):
        self._react(event)
      # What has happened meanwhile, too: its orders go out in one message.
      if self._reception.events.empty() or self._due or self._over:
        break
      wait_s = 0.0
    if self._due:
      self._wake = None
      self.time = max(self.time, self._now())
      self.coordinator.wake(self.time)
    self._check_progress()
    self._orders.flush()

  def pause(self) -> bool:
    """Returns True: pushes under way are lost, and their examples are not."""
    return True

  def state(self) -> dict[str, Any]:
    """Returns what the coordinator has to keep; the servers save the rest."""
    return {
      'time': self.time,
      'coordinator': self.coordinator.state(),
      'servers': self._orders.state(),
      'keepers': self._living() if self._orders.keeps else [],
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken, with other workers perhaps."""
    self.time = state['time']
    self._before = state['coordinator']
    self._orders.restore(state['servers'])
    self._keepers = state['keepers']

  @property
  def _due(self) -> bool:
    """True if the time at which the scheme asked to be woken has come."""
    return self._wake is not None and self._now() >= self._wake

  def _handle(self, event: Event) -> None:
    match event:
      case WorkerJoined():
        self._ready(event)
      case PushReceived():
        self._arrived(event)
      case WorkerLost():
        self._failed(event)

  def _ready(self, event: WorkerJoined) -> None:
    if not self._admit(event):
      return
    index, member = event.worker, self._members[event.worker]
    self._orders.lives[index] = event.incarnation
    member.arrived = 0
    if self._started:
      logging.info('Worker %d is back.', index)
      self.coordinator.join(index, self.time)

  def _arrived(self, event: PushReceived) -> None:
    index, member = event.worker, self._members[event.worker]
    report = event.report
    member.arrived += 1
    if member.arrived < self._num_servers:
      return
    member.arrived = 0
    loss, finite = report.loss, report.is_finite
    self.coordinator.check(index, finite=finite, loss=loss)
    member.compilations[event.incarnation] = report.compilations
    if report.has_recalled and self._orders.keeps:
      self.coordinator.recorder.recalled(index, self.time)
    member.counted = report.iteration
    examples = self.coordinator.workers[index].examples
    member.pace.computed.append((report.compute_s, examples))
    stage = self.coordinator.workers[index].stage
    self.coordinator.carried(self._orders.sizes_bytes[stage])
    since = self.coordinator.workers[index].since
    moments = ('compute', report.pulled_at), ('push', report.computed_at)
    for phase, at in moments:
      # Clocks are compared to within a round trip.
      since = min(max(since, at - (self._began or 0.0)), self.time)
      self.coordinator.enter(index, phase, since)
    self.coordinator.push(
      index,
      self.time,
      compute_s=report.compute_s,
      factors=report.factors,
      computed=report.computed,
      loss=loss,
      finite=finite,
    )

  def _failed(self, event: WorkerLost) -> None:
    index, member = event.worker, self._members[event.worker]
    if event.incarnation != member.incarnation:
      self._orders.end(index, event.incarnation)  # Servers may wait for it.
    elif member.stream is not None:
      self._lose(index, event.reason)

  def _lose(self, index: int, reason: str) -> None:
    """A worker is gone, or as good as gone."""
    member = self._members[index]
    logging.warning('Worker %d is lost: %s', index, reason)
    stream, member.stream = member.stream, None
    self._reception.evict(index, stream, reason)
    self._orders.end(index, member.incarnation)
    if self._started:
      if self._orders.keeps and self._remembers(index).any:
        self.coordinator.recorder.forgot(index, self.time, None)
      self.coordinator.leave(index, self.time, reason)

  def _check_processes(self) -> None:
    """Gives up who is silent or does not go on, and if nobody is left."""
    self._lose_silent()
    self._lose_overdue()
    now = time.monotonic()
    if any(member.stream for member in self._members):
      self._alone_since = math.inf
      return
    self._alone_since = min(self._alone_since, now)
    if now - self._alone_since > self._start_s:
      raise Unmendable('No worker has come back.')

  def _lose_overdue(self) -> None:
    workers = self.coordinator.workers
    running = [
      (index, member.pace, workers[index].examples)
      for index, member in enumerate(self._members)
      if member.stream and workers[index].phase not in (None, 'wait')
    ]
    overdue = self._deadlines.overdue(
      running, now=time.monotonic(), obeyed=self._reception.obeyed
    )
    for index, reason in overdue:
      self._lose(index, reason)

  def _release(self, index: int) -> None:
    worker, pace = self.coordinator.workers[index], self._members[index].pace
    pace.moved, pace.after = time.monotonic(), self._orders.sequence + 1
    self._orders.release(
      index,
      Pull(
        iteration=worker.iteration,
        ranges=worker.ranges,
        examples=worker.examples,
        scale=factor(of(self._orders.scalings, index)),
        upcoming=self.coordinator.upcoming(index),
        stage=worker.stage,
        residual=self._remembers(index),
      ),
    )

  def _remembers(self, index: int) -> Since:
    """Returns what a worker is to remember when it goes on."""
    counted = self._members[index].counted
    return self._since[index] if counted is None else Since(counted)

  def _living(self) -> list[int]:
    return [k for k, member in enumerate(self._members) if member.stream]

  def _save(self, step: int) -> list[Future]:
    """Asks the workers to write their codec states into a checkpoint.

    Returns:
      A future of each part: see `ParameterServerReception.save`.
    """
    return [
      self._reception.save(index, step, self._remembers(index))
      for index in (self._living() if self._orders.keeps else [])
    ]

  def _wake_at(self, time: float | None) -> None:
    self._wake = time
