"""A worker of an allreduce run: a replica of the learner.

All replicas begin with the state of one of them, and apply the same sums, so
that they stay equal on like processors.  On unlike ones they drift by rounding,
and compare their states from time to time (`allreduce.checking`).

A replica computes the gradient of the examples that the coordinator assigns,
adds it to those of the others, and applies the sum.  The next assignment
arrives before an iteration ends, so that a replica waits only for the gradients
of the others.

A worker that joins while the others train first catches up with them, without
being a member: it fetches a state that some of them retain, and applies the
sums of the updates since (`retention`).
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from batching.batching import Batching
from cluster.allreduce.admission import IterationCompleted, ResidualsCollected
from cluster.allreduce.executor.errors import (
  Abandoned,
  Damaged,
  ExecutorFailed,
  PeerLost,
)
from cluster.allreduce.inbox import Inbox
from cluster.allreduce.local_steps import ReplicaSteps
from cluster.allreduce.replication import Standby
from cluster.allreduce.retention import Retention, Update
from cluster.allreduce.step_statistics import StatisticsLayout, StepStatistics
from cluster.allreduce.sums.codec_state import CodecState, NoCodecState
from cluster.allreduce.sums.reducer import Reducer
from cluster.membership import handover
from cluster.membership.checks import check_iteration
from cluster.membership.process import Settings
from cluster.membership.session import Session, exit_on_error
from cluster.membership.succession import Succession
from cluster.membership.worker_states import ResidualHistory, ResidualId
from cluster.network import messages
from cluster.network.errors import InvalidMessage, TransportError, expect
from cluster.network.frames import MAX_EPOCH
from cluster.network.heartbeat import BEATS
from cluster.probing import rates
from cluster.probing.measurer import Measurer
from cluster.process.cores import count_cores
from cluster.process.deadlines import (
  ProgressCounter,
  digest_s,
  transfer_s,
)
from cluster.process.exits import DRAINED, Exit, Reason
from cluster.process.host import HostSpeed
from cluster.speed.speed import Speed
from learning import compilations, drift
from learning.digest import digest
from learning.iteration import Iteration
from learning.learning import Computation, Learner
from learning.scaling import factor
from learning.schedule import Schedule
from system import clock, threads

# Progress of a replica that connects and has the state: one that has yet to
# fetch it has less, and delays the others.
_FETCHED = 2**40
# Pings that the executor may leave unanswered: less than 2 timeouts.
_MAX_UNANSWERED = round(1.8 * BEATS)

Completed = Callable[[IterationCompleted | ResidualsCollected], None]


class Replica:
  """A worker with a copy of the learner, from compilation to the end.

  Attributes:
    index: Index of the worker.
    learner: The copy of the learner.
  """

  def __init__(
    self,
    index: int,
    *,
    gradient: Computation,
    learner: Learner,
    reducer: Reducer,
    layout: StatisticsLayout,
    stages: int,
    batching: Batching,
    speed: Speed | None,
    settings: Settings,
    on_hang: Callable[[str], None],
    succession: Succession[Standby] | None = None,
    local_steps: ReplicaSteps | None = None,
    states: ResidualHistory | None = None,
    schedule: Schedule | None = None,
  ):
    """Creates a replica without connections.

    Args:
      index: Index of the worker.
      gradient: Computes gradients.
      learner: Learner at the initial version, or one that was restored.
      reducer: Sums the gradients of all workers.
      layout: Layout of step statistics at the end of the gradient buffer.
      stages: Number of stages of the wire.
      batching: Batch sizes of the iterations.
      speed: Least duration of iterations; None for the actual one.
      settings: Settings of all processes of the run.
      on_hang: Called from another thread if this worker does not react: with
        'left', 'lost' or 'over', as the session has ended, or with 'executor'.
      succession: Part of this process in elections of a coordinator; None if
        the run ends with its coordinator.
      local_steps: Computation of `gradient` if that is of local steps.
      states: States of their inner optimizer after recent iterations.
      schedule: Schedule of their learning rate.
    """
    self._local_steps, self._states = local_steps, states
    self._schedule = schedule
    # Sends messages to the coordinator in a session.
    self._send: Callable[[messages.ResidualSaved], None] | None = None
    self.index = index
    self.learner = learner
    self._gradient, self._reducer = gradient, reducer
    self._layout, self._stages = layout, stages
    self._batching = batching
    self._host_speed = HostSpeed(index, batching, speed)
    self._coordinator, self._settings = '', settings
    self._on_hang, self._succession = on_hang, succession
    self._completed: Completed = _ignore
    self._is_compiled = False
    # Whether its state may be of another run's version of the same number.
    self._is_new = True
    self._preparation: threads.Thread | None = None
    self._progress = ProgressCounter()
    self._inbox = Inbox()
    self._measurer = Measurer(index, settings.port, settings.timeout_s)
    # Numbers of the current membership epoch, and of the last that is to stop.
    self._epoch = self._stop_epoch = -1
    self._may_wait_for_others = False
    self._statistics: list[float] = []  # Sums of the last iteration.
    self._took_s = 0.0  # The last computation, without any delay.
    self._warm_compilations: int | None = None
    # Version and digest of the state, if it has been digested.
    self._known_digest: tuple[int, str] | None = None
    self._state_lock = threads.Lock()  # Other threads read the state.
    # For workers that catch up: others may be ahead of this one for a while.
    self._retention = Retention(wait_s=settings.timeout_s / 2)

  def warm_up(self) -> None:
    """Compiles all functions of an iteration."""
    batching, copy = self._batching, handover.copy_state(self._shared_state())
    # The state is placed as a fetched one will be.
    self.learner.restore(self._reducer.place(copy['learner']))
    changing = batching.is_adaptive
    self._reducer.warm_up(self.learner, batching.max_batch, changing=changing)
    if self._states:
      jax.block_until_ready(self._reducer.place(self._states.init().optimizer))

  @property
  def codec_state(self) -> CodecState | NoCodecState:
    """The worker's codec state: residuals and replicated parts."""
    return self._reducer.codec_state

  @property
  def state_bytes(self) -> int:
    """Size of the state that all replicas share, bytes."""
    leaves = jax.tree.leaves(self._shared_state())
    return sum(getattr(leaf, 'nbytes', 0) for leaf in leaves)

  def __call__(
    self, coordinator: str, *, completed: Completed | None = None
  ) -> bool | None:
    """Takes part in the run until it is over, or this process leads it.

    Args:
      coordinator: HOST:PORT of the coordinator.
      completed: Called with an event after each iteration is applied; None
        except in the coordinator's process.

    Returns:
      Whether the run has finished; if not, it may resume from a checkpoint.
      None if the coordinator is lost and this process is to replace it.

    Raises:
      Exit: With LOST if the coordinator is lost for too long, with 1 if
        it refuses this worker or sends a message that cannot be true, with
        DRAINED if the worker has left the run.
    """
    self._coordinator = coordinator
    self._completed = completed or _ignore
    succession = self._succession
    with (
      exit_on_error(self.index, self._settings.is_draining),
      self._host_speed,
    ):
      while (end := self._run_session()).kind not in ('over', 'drained'):
        is_lost = end.kind == 'lost' and completed is None
        if is_lost and succession and succession.is_member:
          found = succession.find_coordinator()
          if found is None:
            return None
          self._coordinator = found
        logging.info('Worker %d rejoins.', self.index)
    if end.kind == 'drained':
      raise Exit(DRAINED, Reason.DRAINED, 'This worker has left after SIGTERM.')
    return end.is_finished

  def _locate(self) -> str:
    """Returns the address of the coordinator, for an attempt to join it."""
    is_local = self._completed is not _ignore
    if self._succession and not is_local:
      return self._succession.locate(self._coordinator)
    return self._coordinator

  def _run_session(self) -> messages.SessionEnd:
    """Works until the session ends; returns how it has ended."""
    self._progress, self._inbox, self._is_new = ProgressCounter(), Inbox(), True
    self._epoch = self._stop_epoch = -1
    if self._states:
      self._states.begin()
    with Session[messages.ToReplica](
      self._locate,
      self.index,
      self._settings,
      schema=messages.TO_REPLICA,
      progress=self._report_progress,
      receive=self._receive,
      on_hang=self._on_hang,
      on_end=self._end,
      is_blocked=self._is_blocked,
      patience_s=self._patience_s,
    ) as session:
      self._send = session.send
      if succession := self._succession:
        succession.listen()
        succession.follow()
        # A successor continues from the states of its electors.
        term = succession.standby.membership.term
        self._is_new = session.succeeds != term
      with session.suppress_errors():
        self._prepare(session)
        while not session.heartbeat.ended.is_set():
          self._handle(session, self._inbox.take())
      self._log_end(session)
    return session.heartbeat.end

  def _is_blocked(self) -> bool:
    """Returns whether the replica waits for others, without a way out."""
    return self._may_wait_for_others and not self._reducer.can_abandon

  def _patience_s(self) -> float:
    """Returns how long a gradient may still be computed, seconds."""
    if self._succession is None or self._progress.read()[0] != 'compute':
      return 0.0
    timeout_s = self._settings.timeout_s
    if not self._took_s:  # The first iteration.
      return max(self._settings.start_s, timeout_s)
    return timeout_s + 4 * self._took_s

  def _prepare(self, session: Session[messages.ToReplica]) -> None:
    """Compiles, opens the executor, and reports that the replica is ready."""
    if not self._is_compiled:
      session.send(messages.Activity('compiling'))
      self.warm_up()
      self._is_compiled = True
    settings = self._settings
    source = handover.Handover(
      settings.port, self._state_of, settings.timeout_s
    )
    session.stack.callback(source.close)
    session.stack.callback(self._retention.clear)
    self._reducer.open()
    session.stack.callback(self._reducer.close)
    if settings.adapt:
      reports = rates.TrafficReporter(self._reducer.traffic, session.send)
      session.stack.enter_context(reports)
    session.stack.callback(self._measurer.close)
    self._report_ready(session, source.address)

  def _report_ready(
    self, session: Session[messages.ToReplica], address: str
  ) -> None:
    """Reports to the coordinator that this worker can join an allreduce."""
    session.send(
      messages.ReplicaReady(
        address, devices=self._settings.devices, cores=count_cores()
      )
    )

  def _log_end(self, session: Session[messages.ToReplica]) -> None:
    """Logs why the coordinator has ended a session."""
    end = session.heartbeat.end.describe()
    logging.info('Worker %d %s.', self.index, end)

  def _receive(self, message: messages.ToReplica) -> None:
    """Queues a message of the coordinator; called by the heartbeat's thread.

    Checkpoints are written meanwhile: the coordinator may wait for them.

    Raises:
      InvalidMessage: If it is an iteration that cannot be one of this run.
    """
    if isinstance(message, messages.Assignment):
      self._check_assignment(message)
    if isinstance(message, messages.SaveResidual):
      if self._states and self._send:
        arguments = message, self._send
        threads.Thread(target=self._states.answer, args=arguments).start()
      return
    if isinstance(message, messages.CoordinatorState):
      if self._succession:
        self._succession.standby.take_state(message)
      return
    if isinstance(message, messages.StopEpoch) and not message.completes:
      self._stop_epoch = message.membership_epoch
      self._reducer.abandon(before=message.membership_epoch)
    self._inbox.put(message)

  def _end(self) -> None:
    """Wakes all waits of this session; called by the heartbeat's thread."""
    self._reducer.abandon(before=MAX_EPOCH + 1)
    if self._succession:
      self._succession.lose()
    self._inbox.put(None)

  def _report_progress(self) -> messages.Progress:
    """Returns the progress, for a heartbeat."""
    # Other workers cannot tell which of them delays a sum.
    if self._reducer.count_unanswered() > _MAX_UNANSWERED:
      self._on_hang('executor')
    self._progress.follow(lambda: self._reducer.steps)
    return self._progress.read()

  def _handle(
    self,
    session: Session[messages.ToReplica],
    message: messages.ToReplica | None,
  ) -> None:
    """Executes a message of the coordinator; None has no effect."""
    match message:
      case messages.ConnectMembers():
        self._form(session, message)
      case messages.Assignment():
        # An assignment ahead of an iteration that has failed is void.
        if self._is_current(message.membership_epoch, message.version):
          self._iterate(session, message)
      case messages.ProbeOrder():
        session.send(self._measurer(message))
      case messages.CheckState():
        if self._is_current(message.membership_epoch):
          session.send(messages.StateDigest(*self._digest_report()))
      case messages.CompareState():
        if self._is_current(message.membership_epoch):
          self._compare(session, message)
      case messages.CollectResiduals():
        if self._is_current(message.membership_epoch):
          self._collect(session, message)
      case messages.RetainState():
        self._retention.plan(message.version)
        self._retain_if_due()
      case messages.ReleaseState():
        self._retention.release(message.before)
      case messages.CatchUp():
        self._catch_up(session, message)
      case messages.StopEpoch():
        self._stop_epoch = message.membership_epoch
        self._reducer.abandon(before=message.membership_epoch)
        # The state that a new process brings is not of this run.
        session.send(
          messages.EpochStopped(
            membership_epoch=message.membership_epoch,
            version=0 if self._is_new else self.learner.version,
            statistics=[] if self._is_new else self._statistics,
          )
        )

  def _check_assignment(self, assignment: messages.Assignment) -> None:
    """Checks an iteration of the coordinator.

    Raises:
      InvalidMessage: If it cannot be one of this run.
    """
    check_iteration(
      assignment,
      most=self._batching.max_batch,
      stages=self._stages,
    )
    examples, total = assignment.examples, assignment.total
    members = assignment.members
    expect(total >= examples, 'total', f'at least {examples}', total)
    workers = self._layout.workers
    valid = self.index in members and max(members) < workers
    expect(valid, 'members', f'worker {self.index} among {workers}', members)

  def _is_current(
    self, membership_epoch: int, version: int | None = None
  ) -> bool:
    """Returns whether an order is for the running epoch and this version."""
    if version is not None and version != self.learner.version:
      return False
    return membership_epoch == self._epoch >= self._stop_epoch

  def _form(
    self,
    session: Session[messages.ToReplica],
    order: messages.ConnectMembers,
  ) -> None:
    """Connects to the other members of an epoch, with the state of its version.

    Args:
      session: Session with the coordinator.
      order: Order of the coordinator: see `Rendezvous.form`.
    """
    settings, membership_epoch = self._settings, order.membership_epoch
    self._epoch = membership_epoch
    self._progress.begin_iteration(order.version)
    self._progress.enter_transfer()
    with self._reporting_loss(session, membership_epoch):
      if order.sources:
        self._update(session, order.version, order.sources)
      if order.drops_residual:
        self.codec_state.drop_residual()
      self._is_new = False
      self._progress.reach(_FETCHED)
      if self._succession and order.members:
        addresses = order.members.addresses
        self._succession.standby.note_formed(membership_epoch, addresses)
      # Others may have to fetch the state first.
      others = len(order.members.addresses) - 1 if order.members else 0
      self._reducer.form(
        order,
        max(settings.start_s, settings.timeout_s)
        + transfer_s(self.state_bytes, others),
      )
      session.send(messages.Connected(*self._digest_report()))

  def _update(
    self,
    session: Session[messages.ToReplica],
    version: int,
    sources: Sequence[messages.Source],
  ) -> None:
    """Adopts the state of other workers, unless this one has the same.

    A process that has just joined may have another state of the same version:
    of an earlier coordinator, or the one that its own processor initialises.

    Raises:
      PeerLost: If the state cannot be fetched.
    """
    if self.learner.version == version and not self._is_new:
      return
    has_version = self.learner.version == version
    known = self._digest() if has_version else ''
    state = self._fetch(session, version, sources, known=known)
    if state is None:
      return
    if has_version:
      logging.info(
        'Worker %d begins with the state of worker %d at version %d: its own '
        'differed by %.3g of its norm.',
        *(self.index, sources[0][0], version),
        _relative_difference(self._shared_state(), state),
      )
    self._adopt(version, state)
    self._statistics = []
    if self._succession:
      self._succession.standby.forget()

  def _fetch(
    self,
    session: Session[messages.ToReplica],
    version: int,
    sources: Sequence[messages.Source],
    *,
    known: str = '',
    is_retained: bool = False,
    since: int | None = None,
  ) -> Any:
    """Returns other workers' state of a version; None if it is known.

    Args:
      session: Session with the coordinator.
      version: Version of the state.
      sources: Workers with the state, and their addresses.
      known: Digest of the state that this worker has.
      is_retained: Whether they retain it while they continue.
      since: Version from which to return the updates that they retain; None to
        return the state.

    Raises:
      PeerLost: If it cannot be fetched completely.
    """
    addresses = ', '.join(address for _, address in sources)
    text = f'fetching version {version} from {addresses}'[:200]
    session.send(messages.Activity(text))
    settings = self._settings

    def step() -> None:
      self._progress.count_chunk()
      if session.heartbeat.ended.is_set():
        raise Abandoned('The session has ended.')

    try:
      state, expected = handover.fetch(
        sources,
        version,
        settings.security,
        settings.timeout_s,
        step=step,
        known=known,
        digest_s=digest_s(self.state_bytes),
        is_retained=is_retained,
        since=since,
      )
    except handover.SourceLost as error:
      raise PeerLost(error.worker, str(error)) from error
    if state is None:
      return None
    if since is None:
      state['learner'] = self._reducer.place(state['learner'])
    if (found := digest(state, self._progress.count_chunk)) != expected:
      raise PeerLost(
        sources[0][0], f'expected a state of digest {expected}, got {found}'
      )
    return state

  def _adopt(self, version: int, state: Any) -> None:
    """Replaces the state by one that was fetched."""
    with self._state_lock:
      self.learner.restore(state['learner'])
      self.codec_state.resume(version, state['replicated'])
      self._known_digest = None
    self._retention.clear()

  def _catch_up(
    self, session: Session[messages.ToReplica], order: messages.CatchUp
  ) -> None:
    """Comes closer to the members' state, while they continue.

    Args:
      session: Session with the coordinator.
      order: Order of the coordinator: see `catching_up`.
    """
    version, since, problem = order.version, order.since, ''
    self._progress.begin_iteration(version)
    self._progress.enter_transfer()
    try:
      if since is not None and since != self.learner.version:
        own = self.learner.version
        raise PeerLost(self.index, f'expected version {since}, got {own}')
      fetched = self._fetch(
        session, version, order.sources, is_retained=True, since=since
      )
      if since is None:
        self._adopt(version, fetched)
      else:
        self._replay(fetched)
    except TransportError as error:
      problem = str(error)[:200]
    else:
      self._is_new, self._statistics = False, []
      if self._succession:
        self._succession.standby.forget()
    session.send(messages.CaughtUp(version, problem))

  def _replay(self, updates: Sequence[Update]) -> None:
    """Applies the updates of other workers."""
    learner = self.learner
    with self._state_lock:
      for update in updates:
        if update.sums is None:
          learner.skip()
        else:
          self._reducer.apply_copy(
            learner,
            update.sums,
            examples=update.examples,
            weight=update.weight,
            pushes=update.pushes,
          )
        self._progress.count_chunk()
      self.codec_state.resume(learner.version, updates[-1].replicated)

  def _retain_if_due(self) -> None:
    """Retains the state of this version, if the coordinator has ordered it."""
    version = self.learner.version
    if self._retention.is_due(version):
      self._retention.retain(version, self._shared_state())

  def _compare(
    self, session: Session[messages.ToReplica], order: messages.CompareState
  ) -> None:
    """Compares the state with the reference, and adopts the reference.

    Args:
      session: Session with the coordinator.
      order: Order of the coordinator.
    """
    membership_epoch, version = order.membership_epoch, order.version
    self._progress.enter_transfer()
    with self._reporting_loss(session, membership_epoch):
      state = self._fetch(session, version, order.sources)
      difference = _relative_difference(self._shared_state(), state)
      if order.replaces:
        with self._state_lock:
          self.codec_state.reset()
      if order.replaces or difference <= drift.BOUND:
        self._adopt(version, state)
      session.send(
        messages.StateCompared(
          membership_epoch=membership_epoch,
          version=version,
          digest=self._digest(),
          difference=difference if math.isfinite(difference) else None,
        )
      )

  @contextlib.contextmanager
  def _reporting_loss(
    self, session: Session[messages.ToReplica], membership_epoch: int
  ) -> Iterator[None]:
    """Reports transport errors of a joint operation, and suppresses them.

    Raises:
      InvalidMessage: If the coordinator's order cannot be true.
    """
    self._may_wait_for_others = True
    with contextlib.suppress(Abandoned):
      try:
        yield
      except InvalidMessage:
        raise
      except TransportError as error:
        peer = None
        if isinstance(error, PeerLost | Damaged | ExecutorFailed):
          peer = error.worker
        reason = str(error)[:200]
        session.send(messages.ConnectionLost(membership_epoch, peer, reason))
    self._may_wait_for_others = False

  def _iterate(
    self, session: Session[messages.ToReplica], assignment: messages.Assignment
  ) -> None:
    """Computes a gradient, sums it with the others', and applies the sum."""
    if self._warm_compilations is None:
      self._warm_compilations = compilations.count()
    if self._succession:
      self._succession.standby.take_assignment(assignment)
    with self._reporting_loss(session, assignment.membership_epoch):
      self._compute(session, assignment, self._warm_compilations)
      if following := self._inbox.peek_assignment():
        self._preparation = threads.Thread(
          target=self._gradient.prepare, args=[following.ranges], daemon=True
        )
        self._preparation.start()
      self._statistics = self._layout.mark_sum(*self._reducer.total())
      self._apply(assignment)

  def _collect(
    self,
    session: Session[messages.ToReplica],
    order: messages.CollectResiduals,
  ) -> None:
    """Sums the residuals of all workers, for a checkpoint."""
    version = self.learner.version
    with self._reporting_loss(session, order.membership_epoch):
      self._reducer.collect(version)
      self._completed(ResidualsCollected(version=version))

  def _digest_report(self) -> tuple[int, int, str, messages.Traffic]:
    """Returns epoch, version, digest of the state, and traffic so far."""
    sent = rates.rows(self._reducer.traffic())
    return self._epoch, self.learner.version, self._digest(), sent

  def _compute(
    self,
    session: Session[messages.ToReplica],
    assignment: messages.Assignment,
    warm_compilations: int,
  ) -> None:
    """Computes a gradient, whose buckets may be sent meanwhile.

    Args:
      session: Session with the coordinator.
      assignment: Order of the coordinator: see `IterationAssigner`.
      warm_compilations: Number of XLA compilations up to the first iteration.
    """
    iteration = assignment.iteration
    coordinator_time = session.heartbeat.coordinator_time
    self._begin(assignment)
    began = clock.monotonic()
    if self._preparation:  # It may be for an assignment that is void now.
      self._preparation.join()
    self._gradient.prepare(assignment.ranges)
    weight = self._gradient.weigh(assignment.ranges)
    start = clock.monotonic()
    examples, before = assignment.examples, self._gradient.computed
    least_s = self._host_speed.least_s(iteration, examples)
    if not self._reducer.simulates_time:
      # The configured delay comes before the computation, as far as known; a
      # fragment is sent after its share of it.
      share = self._local_steps.ready if self._local_steps else 1.0
      clock.sleep(share * max(least_s - self._took_s, 0.0))
    computation_start = clock.monotonic()
    loss, finite = self._compute_gradient(assignment, least_s)
    self._took_s = clock.monotonic() - computation_start
    self._host_speed.delay(iteration, examples, start)
    end = clock.monotonic()
    statistics = StepStatistics(
      began=coordinator_time(began) - assignment.assigned_at,
      computed=coordinator_time(end) - assignment.assigned_at,
      compute_s=end - start,
      examples=self._gradient.computed - before,
      weight=weight,
      compilations=compilations.count() - warm_compilations,
      loss=math.nan if loss is None else loss,
      finite=int(finite and (loss is None or math.isfinite(loss))),
      recalled=int(self._states is not None and self._states.has_recalled),
    )
    numbers = np.zeros(self._layout.size, np.float32)
    factors = self._host_speed.factors(iteration)
    self._layout.write(numbers, self.index, statistics, factors)
    self._progress.enter_transfer()
    self._reducer.finish(numbers)

  def _begin(self, assignment: messages.Assignment) -> None:
    """Begins an iteration: from here on its progress has a deadline."""
    self._progress.begin_iteration(assignment.version)
    self._progress.enter_compute()

  def _compute_gradient(
    self, assignment: messages.Assignment, least_s: float
  ) -> tuple[float | None, bool]:
    """Returns the loss, and True if the gradient is finite: see `Reducer`."""
    before, rate, learner = None, None, self.learner
    if self._states and self._local_steps:
      before = self._states.recall(ResidualId(*assignment.state))
      self._local_steps.state = self._reducer.place(before.optimizer)
      if self._schedule:
        rate = self._schedule(
          examples=learner.examples, updates=learner.version
        )
    iteration = Iteration(
      assignment.ranges,
      worker=self.index,
      number=assignment.iteration,
      scale=factor(learner.scaling),
      rate=rate,
      version=assignment.version,
    )
    loss, finite = self._reducer.compute(
      learner, iteration, stage=assignment.stage, least_s=least_s
    )
    if before and self._states and self._local_steps:
      after = before._replace(optimizer=self._local_steps.state)
      self._states.record(assignment.iteration, after)
    return loss, finite

  def _apply(self, assignment: messages.Assignment) -> None:
    """Applies the sum to the learner, or skips one that is not finite."""
    members, sums = assignment.members, None
    counts: dict[str, Any] = {
      'examples': assignment.total,
      'weight': self._layout.total_weight(self._statistics, members),
      'pushes': len(members),
    }
    if self._layout.are_finite(self._statistics, members):
      with self._state_lock:
        self._reducer.apply(self.learner, **counts)
      if self._retention.is_recording:
        sums = self._reducer.copy_sum()
    else:
      with self._state_lock:
        self.learner.skip()
        self.codec_state.commit(self.learner.version)
    self._retention.record(
      assignment.version,
      Update(sums, **counts, replicated=self.codec_state.replicated),
    )
    self._retain_if_due()
    if self._succession:
      self._succession.standby.take_statistics(
        assignment.version, self._statistics
      )
    self._completed(
      IterationCompleted(
        at=clock.monotonic(),
        version=assignment.version,
        statistics=self._statistics,
      )
    )

  def _digest(self) -> str:
    """Returns the digest of the state, which is computed once."""
    return self._snapshot()[1]

  def _snapshot(self) -> tuple[dict[str, Any], str]:
    """Returns the state and its digest; from any thread."""
    with self._state_lock:
      known, state = self._known_digest, self._shared_state()
      version = state['learner']['version']
      if known is None or known[0] != version:
        step = self._progress.count_chunk
        known = self._known_digest = version, digest(state, step)
      return state, known[1]

  def _state_of(self, request: messages.StateRequest) -> tuple[Any, str]:
    """Returns what another worker requests, and its digest.

    Runs in the handover's thread.

    Raises:
      LookupError: If this worker does not have it.
    """
    if request.is_retained:
      return self._retention.find(request)
    version = request.version
    state, found = self._snapshot()
    if (current := state['learner']['version']) != version:
      raise LookupError(f'expected to have version {version}, got {current}')
    return state, found

  def _shared_state(self) -> dict[str, Any]:
    """Returns the state that all replicas share."""
    replicated = self.codec_state.replicated
    return {'learner': self.learner.state(), 'replicated': replicated}


def _ignore(event: IterationCompleted | ResidualsCollected) -> None:
  """Does nothing: the coordinator is in another process."""


def _relative_difference(
  state: Mapping[str, Any], reference: Mapping[str, Any]
) -> float:
  """Returns the relative difference of two replicas' states."""
  first, second = (
    {**each['learner'], 'codec': each['replicated']}
    for each in (state, reference)
  )
  return drift.relative_difference(first, second)
