"""The runtime of parameter servers on real hosts, in the coordinator's process.

Server 0 is in the same process.  One thread takes events from the queue of the
reception, passes them to the scheme, and gives all servers the orders that
carry out the scheme's decisions.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import msgspec
from absl import logging

from cluster.coordinator import Coordinator
from cluster.membership import election, worker_states
from cluster.membership.checks import LEAST_S, check_traffic
from cluster.membership.event_loop import DRAINED, EventLoop
from cluster.membership.events import (
  Event,
  WorkerEvent,
  WorkerJoined,
  WorkerLost,
  WorkerMessage,
)
from cluster.membership.process import Settings
from cluster.membership.succession import Succession
from cluster.membership.worker_states import ResidualId, assign_residuals
from cluster.network import messages
from cluster.network.errors import expect
from cluster.network.messages import Pull
from cluster.parameter_server.admission import (
  ParameterServerReception,
  PushReceived,
  ServerLost,
  ShareRetained,
)
from cluster.parameter_server.links import ServerLinkLog
from cluster.parameter_server.mirroring import Mirror, Mirroring
from cluster.parameter_server.mirrors import (
  COORDINATOR,
  MirrorStore,
  share_part,
)
from cluster.parameter_server.recovery import Recovery
from cluster.parameter_server.server import Server
from cluster.parameter_server.standby import Inheritance, MirrorStandby
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import Report
from cluster.process.deadlines import Deadlines
from cluster.process.exits import Relinquished, Unmendable
from learning.scaling import factor, worker_scaling
from outputs import serialization
from outputs.accounting import Rollback
from outputs.checkpoints import Abandoned
from system import clock, threads

_MAX_EVENTS = 64  # Most events per step; their orders go in one message.
_POLL_S = 0.05  # Between two looks at a recovery.


class ParameterServerRuntime(EventLoop):
  """Event loop of a run with parameter servers: see `EventLoop`."""

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    store: ShardedParameterStore,
    reception: ParameterServerReception,
    make_server: Callable[[Report, tuple[int, int] | None], Server] | None,
    num_servers: int,
    num_factors: int,
    find_residuals: Callable[[], tuple[int, list[int]] | None],
    settings: Settings,
    deadlines: Deadlines,
    make_local_worker: Callable[[str], Callable[[], object]] | None,
    mirroring: Mirroring | None = None,
    mirrors: MirrorStore | None = None,
    newest_checkpoint: Callable[[], int] = lambda: -1,
    drop_checkpoints: Callable[[int], None] = lambda newest: None,
    succession: Succession[MirrorStandby] | None = None,
    index: int = 0,
    is_superseded: Callable[[], bool] = lambda: False,
  ):
    """Creates the runtime; the reception does not listen yet.

    Args:
      coordinator: Coordinator, which asks the scheme.
      store: Parameter store of the coordinator, which gives the orders.
      reception: Control streams to workers and servers.
      make_server: Creates server 0, given the function for its reports and the
        checkpoint to resume from; None if this process succeeds another one.
      num_servers: Number of servers.
      num_factors: Number of driving factors that a worker reports.
      find_residuals: Returns the number of the checkpoint to resume from, and
        the workers whose residuals are in it; None to start from scratch.
      settings: As of `EventLoop`.
      deadlines: As of `EventLoop`.
      make_local_worker: As of `EventLoop`.
      mirroring: Schedule of mirrors; None for a run without mirrors.
      mirrors: Parts of mirrors that this process holds; None for a run
        without mirrors.
      newest_checkpoint: Returns the number of the newest complete checkpoint;
        -1 for none.
      drop_checkpoints: Removes checkpoints after a number.
      succession: Part of this process in elections of a coordinator; None for a
        run without mirrors.
      index: Rank of this process among the members of elections.
      is_superseded: Returns whether another process has taken the run over.
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
    self._num_servers, self._num_factors = num_servers, num_factors
    self._find_residuals = find_residuals
    # Workers whose residuals the checkpoint should have.
    self._with_residuals: list[int] = []
    count = len(coordinator.workers)
    # Residuals before the first iteration that counts, by worker.
    self._initial = [ResidualId()] * count
    self._wake: float | None = None
    self._drained: set[int] = set()  # Workers that leave after their push.
    self._alone_since = math.inf
    self._mirroring = mirroring or Mirroring(every_s=0.0, limit_s=0.0)
    self._mirror_store = mirrors
    self._newest_checkpoint = newest_checkpoint
    self._mirrored_checkpoint = -1  # Newest one when the last mirror began.
    self._succession, self._index = succession, index
    self._is_superseded = is_superseded
    self._term = 0
    self._inheritance: Inheritance | None = None
    self._publish: Callable[[], None] = lambda: None
    self._resumed: Mapping[str, Any] = {}
    self._rewind: Callable[[], None] = lambda: None
    self._drop_checkpoints = drop_checkpoints
    self._recovery: Recovery | None = None
    # Reason of the move that begins once the current mirror is complete, '' for
    # none; and the pushes since then, which count if the move is given up.
    self._move = ''
    self._delayed: list[PushReceived] = []
    self._is_handing_over = False  # The move is this coordinator's own leave.
    self._links = ServerLinkLog(
      coordinator.recorder,
      num_workers=count,
      num_servers=num_servers,
      find_hosts=self._find_hosts,
    )
    coordinator.attach(release=self._release, wake_at=self._wake_at)

  def warm_up(self) -> None:
    """Waits until all servers and enough workers are ready and connected.

    Raises:
      Unmendable: If one does not in time; carries their last activities.
      Relinquished: If another process succeeds the coordinator.
    """
    if self._inheritance:
      self._gather(self._inheritance)
      return
    if self._make_server is None:
      raise RuntimeError('Expected server 0 to be in this process.')
    self._wait_for_processes(
      self._reception.open(self._make_server),
      done=self._reception.begin,
      missing=self._reception.missing,
      transfer_s=self._reception.transfer_s,
    )
    self._store.attach(self._reception.begin(), self._save_residuals)

  def start(self) -> None:
    """Releases the first iterations."""
    if self._succession and not self._term:
      self._take_term(self._succession.terms.newest)
    super().start()
    self._store.flush()

  def _take_term(self, newest: int) -> None:
    """Takes the term after the newest one.

    Raises:
      Relinquished: If another process has it.
    """
    if self._succession is None:
      return
    terms, term = self._succession.terms, newest + 1
    if terms.newest > newest or not terms.take(term, self._index):
      raise Relinquished(f'Another coordinator has term {term}.')
    logging.info('This process coordinates the run in term %d.', term)
    self._term = term

  def resume(self) -> None:
    """Continues after `restore`, with the workers that are connected."""
    if self._inheritance and self._recovery:
      self._inheritance = None
      self._continue(self._recovery)
      return
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
    self._commit_pending()
    self.start()

  def _commit_pending(self) -> None:
    """Commits updates that had pushes when the state was saved."""
    for update in self._store.pending:
      self._store.commit(update)
      self.coordinator.recorder.record_update(update, self.time)

  def step(self) -> None:
    """Handles events, after waiting for the first for at most a heartbeat.

    Raises:
      Unmendable: If a server is lost, or if there was no worker for `start_s`.
      FloatingPointError: If a loss or a gradient is not finite.
    """
    try:
      self._step()
    except Abandoned as error:  # Its event is still to come.
      self._recover(str(error))

  def _step(self) -> None:
    wait_s = self._check_at - clock.monotonic()
    if self._recovery:
      wait_s = min(wait_s, _POLL_S)
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
    if self._recovery:
      self._try_continue(self._recovery)
    elif self._mirroring.is_due(clock.monotonic()) and not self._is_finished:
      self._take_mirror()
    self._store.flush()

  def pause(self) -> bool:
    """Returns whether all servers are there.

    Pushes under way are lost then, and their examples are not.
    """
    return self._recovery is None and not self._store.has_failed

  @property
  def has_successor(self) -> bool:
    """True if another process can continue the run from a mirror."""
    if self._succession is None or not self._mirroring.complete:
      return False
    own = self._reception.own_place.process
    places = self._reception.worker_places().values()
    return any(each.process != own for each in places)

  def _hand_over(self) -> None:
    """Takes a new mirror, from which another process continues."""
    if not self._recovery and not self._move:
      self._begin_move('The coordinator leaves.')
      self._is_handing_over = True

  def take_over(
    self, inheritance: Inheritance, publish: Callable[[], None]
  ) -> None:
    """Continues from another coordinator that is lost; `warm_up` follows.

    Args:
      inheritance: State to continue from.
      publish: Called once this process has the next term, before anything is
        recorded.
    """
    state = inheritance.state['runtime']
    self._inheritance, self._publish = inheritance, publish
    self.restore(state)
    # The run's clock continues as well while there is no coordinator.
    self.time += inheritance.age_s
    self._resumed = state
    sources = inheritance.state['sources']
    mirror = Mirror(inheritance.number, sources, frozenset())
    self._mirroring.complete = mirror
    self._mirroring.skip_to(inheritance.number)
    self._reception.take_over(mirror, state['admissions'])

  def _gather(self, inheritance: Inheritance) -> None:
    """Waits until servers and enough workers have joined this coordinator.

    Raises:
      Relinquished: If another process has the next term.
      Unmendable: If too few have joined in time.
    """
    began, membership = clock.monotonic(), inheritance.membership
    address = self._reception.listen()
    recovery = self._recovery = Recovery(
      self._reception,
      Mirror(inheritance.number, inheritance.state['sources'], frozenset()),
      workers=inheritance.supporters,
      lost=inheritance.state['own_servers'],
      timeout_s=self._timeout_s,
      limit_s=self._start_s,
      is_enough=functools.partial(election.may_succeed, membership.addresses),
    )
    self._wait_for_processes(
      address,
      done=lambda: recovery.is_ready(self._live_workers()),
      missing=self._reception.missing,
    )
    self._take_term(membership.term)
    self._publish()
    self.time += clock.monotonic() - began
    left, store = self._reception.find_left(), self._store
    rollback = Rollback(
      time=self.time,
      updates=max(left[0] - store.version, 0) if left else None,
      examples=max(left[1] - store.examples, 0) if left else None,
      reason='The coordinator was lost.',
    )
    self.coordinator.recorder.record_rollback(rollback)

  def close(self) -> None:
    """Ends the run for all processes, also after an error."""
    super().close()
    for each in (self._succession, self._mirror_store):
      if each:
        each.close()

  def summary(self) -> dict[str, Any]:
    """Returns the entries of summary.json that only this runtime has."""
    work = self._store.work
    own = {'server_work': msgspec.structs.asdict(work) if work else None}
    return super().summary() | own

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
      case WorkerMessage(message=messages.MirrorFetched() as answer):
        self._handle_fetched(event.worker, answer)
      case WorkerMessage(message=messages.TrafficReport() as report):
        if event.incarnation == self._members[event.worker].incarnation:
          self._links.take(event.worker, report)
      case ShareRetained():
        self._handle_retained(event)
      case ServerLost():
        self._handle_server_lost(event)

  def _check(self, event: WorkerEvent) -> None:
    match event:
      case PushReceived():
        report = event.report
        worker = self.coordinator.workers[event.worker]
        is_current = report.iteration == worker.iteration
        check_report(
          report,
          num_factors=self._num_factors,
          examples=worker.examples if is_current else None,
        )
      case WorkerMessage(message=messages.TrafficReport() as report):
        check_traffic(report.sent, range(self._num_servers))

  def _handle_joined(self, event: WorkerJoined) -> None:
    if not self._admit(event):
      return
    index, member = event.worker, self._members[event.worker]
    self._store.incarnations[index] = event.incarnation
    member.arrived.clear()
    self._links.clear()
    if self._started:
      member.is_late = True
      self._log_joined(event)
      self.coordinator.join(index, self.time)

  def _handle_push(self, event: PushReceived) -> None:
    index, member = event.worker, self._members[event.worker]
    report = event.report
    if self._move:
      self._delayed.append(event)
      return
    worker = self.coordinator.workers[index]
    is_awaited = worker.is_iterating and report.iteration == worker.iteration
    if not is_awaited or event.server in member.arrived:
      # A server has checked it, unless the server is faulty.
      self._reception.evict_server(
        event.server, f'It has reported a push of worker {index} too many.'
      )
      return
    member.arrived.add(event.server)
    if len(member.arrived) < self._num_servers:
      return
    member.arrived.clear()
    loss, finite = report.loss, report.is_finite
    self.coordinator.check(index, finite=finite, loss=loss)
    member.compilations[event.incarnation] = report.compilations
    if member.awaits_state and not report.has_recalled:
      self._record_lost_state(
        index, 'It no longer has the state of the mirror.'
      )
    member.awaits_state = False
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
    self.coordinator.recorder.accounting.bytes += self._store.sizes_bytes[stage]
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
      weight=report.weight,
      loss=loss,
      finite=finite,
    )
    self._links.push(self.time, self._live_workers())
    if index in self._drained:
      self._lose(index, DRAINED, kind='drained')

  def _find_hosts(self) -> tuple[list[str], list[str]]:
    """Returns the host of each worker and of each server; '' if unknown."""
    places = self._reception.server_places()
    return [each.host for each in self._members], [each.host for each in places]

  def _drain(self, index: int) -> None:
    """Lets a worker leave at once if it waits, else after its push.

    Servers in its process move to others first.
    """
    self._drained.add(index)
    if self._recovery or self._move:
      return
    holder = self._members[index].holder
    places = self._reception.server_places()
    if holder and any(each.process == holder.process for each in places):
      self._begin_move(f'Worker {index} leaves, and its servers move.')
      return
    if self.coordinator.workers[index].phase == 'wait':
      self._lose(index, DRAINED, kind='drained')

  def _handle_lost(self, event: WorkerLost) -> None:
    index, member = event.worker, self._members[event.worker]
    if event.incarnation != member.incarnation:
      if not self._recovery:
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
    self._links.clear()
    self._lose_mirrors(index)
    if not self._recovery:
      self._store.end(index, member.incarnation)
    if self._started:
      self._record_lost_state(index, reason)
      self.coordinator.leave(index, self.time, reason)

  def _record_lost_state(self, index: int, reason: str) -> None:
    """Lists a worker's state as lost, if it has one other than zero."""
    member, recorder = self._members[index], self.coordinator.recorder
    member.awaits_state = False
    if not self._store.has_worker_states:
      return
    if self._residual(index).can_differ_from_zero:
      recorder.record_lost_residual(index, self.time, None)
      if self._store.has_inner_optimizer:
        worker_states.record_loss(recorder, member, index, self.time, reason)

  def _check_processes(self) -> None:
    """Evicts workers that are silent or make no progress.

    Raises:
      Unmendable: If there was no worker for `start_s`.
      Relinquished: If another process coordinates the run.
    """
    self._lose_silent()
    if not self._recovery:
      self._lose_overdue()
    self._mirroring.check(clock.monotonic())
    if self._newest_checkpoint() > self._mirrored_checkpoint:
      self._mirroring.follow_checkpoint()
    self._check_moves()
    if self._succession and self._is_superseded():
      raise Relinquished('Another process coordinates the run.')
    now = clock.monotonic()
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
      running, now=clock.monotonic(), executed_orders=self._reception.executed
    )
    for index, reason in overdue:
      self._lose(index, reason)

  def _release(self, index: int) -> None:
    worker = self.coordinator.workers[index]
    progress = self._members[index].progress
    progress.last_change = clock.monotonic()
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

  def _save_residuals(self, step: int) -> list[threads.Future[bool]]:
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

  @property
  def _mirrors(self) -> MirrorStore:
    """Parts of mirrors that this process holds.

    Raises:
      RuntimeError: If the run has no mirrors.
    """
    if self._mirror_store is None:
      raise RuntimeError('Expected a run with mirrors.')
    return self._mirror_store

  def _take_mirror(self) -> None:
    """Begins a mirror: all servers retain their states between two events."""
    places = self._reception.server_places()
    self._mirrored_checkpoint = self._newest_checkpoint()
    pending = self._mirroring.begin(
      clock.monotonic(),
      own=self._reception.own_place,
      servers=places,
      workers=self._reception.worker_places(),
    )
    if pending is None:
      logging.log_every_n_seconds(
        logging.INFO, 'No other process can hold a mirror of the servers.', 60
      )
      self._end_move()
      return
    number, recorder = pending.number, self.coordinator.recorder
    self._store.mirror(number)
    if self._store.has_worker_states:
      for index in self._live_workers():
        residual = self._residual(index)
        retain = messages.RetainResidual(number, residual)
        self._reception.send_to_worker(index, retain)
    holders = [each.holder for each in self._members]
    state = {
      'runtime': self.state()
      | {
        'counted': [member.counted for member in self._members],
        'initial': self._initial,
        'processes': [each.process if each else '' for each in holders],
        'admissions': [member.admissions for member in self._members],
      },
      'milestones': self.coordinator.milestones.successor_state(
        with_versions=True
      ),
      'recorder': recorder.state(),
      'files': recorder.rows.state(is_durable=False),
      'checkpoint': self._mirrored_checkpoint,
      'sources': dict(pending.sources),
      'own_servers': [
        server
        for server, place in enumerate(places)
        if place.process == self._reception.own_place.process
      ],
    }
    tree = serialization.freeze(state)()
    address = self._mirrors.put(number, COORDINATOR, tree)
    for worker, part in pending.fetches:
      if part == COORDINATOR:
        fetch = messages.FetchMirror(number, part, address)
        self._reception.send_to_worker(worker, fetch)

  def _begin_move(self, reason: str) -> None:
    """Takes a mirror, from which all continue, without an update in between.

    Args:
      reason: Text for logs and accounts.
    """
    self._move = reason
    self._mirroring.abort('servers move')
    self._mirroring.hurry()

  def _handle_retained(self, event: ShareRetained) -> None:
    """Lets workers fetch a server's part of a mirror."""
    part = share_part(event.server)
    fetch = messages.FetchMirror(event.number, part, event.address)
    for worker in self._mirroring.holders(event.number, part):
      self.coordinator.recorder.accounting.mirror_bytes += event.size_bytes
      self._reception.send_to_worker(worker, fetch)

  def _handle_fetched(
    self, worker: int, answer: messages.MirrorFetched
  ) -> None:
    """Records that a worker holds a part; the mirror may be complete now."""
    if not self._mirroring.answer(
      clock.monotonic(), worker, answer.number, answer.part, answer.error
    ):
      return
    number = answer.number
    self._store.drop_mirrors(number)
    self._mirrors.drop_before(number)
    self._reception.allow_restarts()
    places = self._reception.worker_places()
    members = {k: each.address for k, each in places.items()}
    members[self._index] = self._reception.own_place.address
    if self._succession:
      self._succession.lead(self._term, number, members)
    completed = messages.MirrorCompleted(self._term, number, members)
    for index in self._live_workers():
      self._reception.send_to_worker(index, completed)
    if self._is_handing_over and self._is_ending:
      self._end_move()
    elif self._is_handing_over:
      self._has_handed_over = True
    elif self._move:
      self._recover(self._move)

  def _lose_mirrors(self, worker: int) -> None:
    """Records that a worker's process is lost, with its parts of mirrors."""
    had_pending = self._mirroring.pending is not None
    self._mirroring.lose(worker)
    if had_pending and self._mirroring.pending is None:
      self._end_move()

  def _end_move(self) -> None:
    """Continues without the move, as the mirror for it was given up."""
    delayed, self._delayed, self._move = self._delayed, [], ''
    self._is_handing_over = False
    for event in delayed:
      if self._is_valid(event):
        self._handle_push(event)

  def _check_moves(self) -> None:
    """Begins to move servers back to their own processes."""
    if self._move and self._mirroring.pending is None:
      self._end_move()
    for index in [*self._drained]:
      self._drain(index)
    is_busy = self._recovery or self._move or self._is_finished
    if self._mirroring.complete and not is_busy:
      displaced = self._reception.find_displaced()
      if displaced:
        self._begin_move(f'Servers {displaced} return to their own processes.')

  def _handle_server_lost(self, event: ServerLost) -> None:
    """Continues from a mirror without the process of a server."""
    if self._recovery:
      self._recovery.lose_server(event.server)
    elif event.restarts == self._reception.restarts:
      self._recover(event.reason, lost=[event.server])

  def _recover(self, reason: str, lost: Collection[int] = ()) -> None:
    """Makes all processes continue from the newest mirror.

    Args:
      reason: Text for logs and accounts.
      lost: Servers whose processes are lost.

    Raises:
      Unmendable: If there is no mirror.
    """
    mirror = self._mirroring.complete
    if mirror is None or self._recovery:
      raise Unmendable(reason)
    logging.warning('%s', reason)
    is_move, self._move, self._delayed = bool(self._move), '', []
    self._is_handing_over = False
    self._mirroring.abort('servers continue from the last one')
    before = self._store.version, self._store.examples
    workers = self._live_workers()
    leaving = [k for k in workers if is_move and k in self._drained]
    holders = [self._members[index].holder for index in leaving]
    self._started, self._wake = False, None
    text = f'Servers continue from mirror {mirror.number}.'
    self._store.fail(Abandoned(text))  # A checkpoint may be under way.
    self._store.detach()
    # Before workers rejoin, who would connect to the servers as they were.
    absent = self._reception.restart(
      mirror, text, leaving=[each.process for each in holders if each]
    )
    for index in workers:
      member = self._members[index]
      stream, member.stream = member.stream, None
      if stream is not None and index in leaving:
        self._reception.evict(index, stream, DRAINED, 'drained')
      elif stream is not None:
        self._reception.evict(index, stream, text)
    self._drained -= {*leaving}
    self._recovery = Recovery(
      self._reception,
      mirror,
      workers={*workers} - {*leaving},
      lost=[*lost, *absent],
      timeout_s=self._timeout_s,
      limit_s=self._start_s,
    )
    state = serialization.thaw(self._mirrors.get(mirror.number, COORDINATOR))
    now = self.time
    self.restore(state['runtime'])
    self.time = now
    rollback = Rollback(
      time=now,
      updates=before[0] - self._store.version,
      examples=before[1] - self._store.examples,
      reason=reason,
    )
    logging.warning('%s  Lost: %d updates, %d examples.', text, *rollback[1:3])
    self._resumed = state['runtime']
    self._rewind = functools.partial(self._rewind_records, state, rollback)

  def _rewind_records(
    self, state: Mapping[str, Any], rollback: Rollback
  ) -> None:
    """Takes files, accounts and checkpoints back to a mirror.

    Only once its parts are there: else the newest checkpoint is needed.
    """
    self.coordinator.recorder.rewind(
      state['recorder'], state['files'], rollback
    )
    self.coordinator.milestones.restore(state['milestones'])
    self._drop_checkpoints(state['checkpoint'])

  def _try_continue(self, recovery: Recovery) -> None:
    """Continues the run from a mirror once the processes have rejoined."""
    if recovery.is_ready(self._live_workers()):
      self._continue(recovery)

  def _continue(self, recovery: Recovery) -> None:
    self._rewind()
    self._rewind = lambda: None
    self._store.attach(self._reception.try_continue(), self._save_residuals)
    self._recovery = None
    reason = 'Servers have continued from a mirror.'
    self.coordinator.rejoin(self._before, self.time, reason)
    self._restore_residuals(self._resumed)
    self._commit_pending()
    self._mirroring.hurry()
    logging.info(
      'The run continues from mirror %d with %d workers.',
      recovery.mirror.number,
      len(self._live_workers()),
    )
    self.start()

  def _restore_residuals(self, state: Mapping[str, Any]) -> None:
    """Returns to the residuals of a mirror; records those that are lost."""
    self._initial = [ResidualId(*each) for each in state['initial']]
    for index, member in enumerate(self._members):
      member.counted = state['counted'][index]
      holder, before = member.holder, state['processes'][index]
      is_same = holder is not None and holder.process == before
      if is_same and member.stream is not None:
        member.awaits_state = self._residual(index).can_differ_from_zero
        continue
      self._record_lost_state(index, 'Its process is lost.')
      if member.stream is not None:  # Another process has its rank.
        self._initial[index], member.counted = ResidualId(), None
        member.is_late = True


def check_report(
  report: messages.PushReport, *, num_factors: int, examples: int | None
) -> None:
  """Checks a worker's report on an iteration.

  Args:
    report: The report.
    num_factors: Number of driving factors.
    examples: Examples of the iteration; None if it is not the current one.

  Raises:
    InvalidMessage: If it cannot be true.
  """
  compute_s, count = report.compute_s, len(report.factors)
  valid = compute_s >= LEAST_S
  expect(valid, 'compute_s', f'at least {LEAST_S:g} s', compute_s)
  valid = count == num_factors
  expect(valid, 'factors', f'{num_factors} numbers', count)
  valid = examples is None or report.weight <= examples
  expect(valid, 'weight', f'at most {examples}', report.weight)
