"""Runtime of allreduce routes, in the coordinator's process.

The coordinator's own worker reports what was summed.  The coordinator assigns
the examples of each iteration while the one before it is computed, so that no
worker waits for it, except where the run is evaluated or saved, and where
workers join or leave.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

from absl import logging

from cluster.allreduce import replication
from cluster.allreduce.admission import (
  AllreduceReception,
  IterationCompleted,
  ResidualsCollected,
)
from cluster.allreduce.assignment import IterationAssigner
from cluster.allreduce.epochs import MembershipEpochs
from cluster.allreduce.rendezvous import Rendezvous
from cluster.allreduce.replication import Inheritance, Standby
from cluster.allreduce.step_statistics import (
  IterationRecorder,
  StatisticsLayout,
)
from cluster.allreduce.store import ReplicaStore
from cluster.coordinator import Coordinator
from cluster.membership import election
from cluster.membership.checks import check_traffic
from cluster.membership.event_loop import EventLoop
from cluster.membership.events import (
  Event,
  WorkerEvent,
  WorkerJoined,
  WorkerLost,
  WorkerMessage,
)
from cluster.membership.process import Settings
from cluster.membership.succession import Succession
from cluster.membership.worker_states import (
  ResidualId,
  assign_residuals,
  lost_at_restart,
)
from cluster.network import messages
from cluster.network.errors import expect
from cluster.probing.events import (
  ForestPacked,
  ForestPlanned,
  LinksMeasured,
)
from cluster.probing.link_manager import LinkManager
from cluster.probing.traffic import TrafficLog
from cluster.process.deadlines import Deadlines, transfer_s
from cluster.process.exits import Relinquished, Unmendable
from cluster.traffic import Traffic
from learning.learning import Overlap
from system import clock, threads

_MEASURES_S = 10.0  # Between two replications of distributions.
_OfEpoch = (
  messages.Connected
  | messages.ConnectionLost
  | messages.EpochStopped
  | messages.StateCompared
  | messages.StateDigest
)
_OF_EPOCH = get_args(_OfEpoch)


class AllreduceRuntime(EventLoop):
  """A `Runtime` whose workers are replicas of the learner.

  A membership epoch passes these steps.  `epochs` sends `ConnectMembers`; once
  all members have answered, `_handle_connected` begins a check of their states,
  and the end of the check calls `_begin_epoch`.  Then `_assign` sends examples,
  the replica of this process reports each iteration to `_handle_completed`, and
  `_record` passes it to the coordinator's scheme.  Before a version that is
  evaluated, saved or the last, a check of the states comes first, whose end
  calls `_record_agreed`.  `epochs.stop` ends the epoch; once all living members
  have stopped, `epochs` sends `ConnectMembers` again.

  Attributes:
    time: Seconds since the start, of this process and those before it.
    coordinator: Asks the scheme.
    epochs: Membership epochs: the workers that sum together.
  """

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    store: ReplicaStore,
    reception: AllreduceReception,
    rendezvous: Rendezvous,
    links: LinkManager,
    layout: StatisticsLayout,
    overlap: Overlap,
    iteration_bytes: Callable[[int, int], int],
    settings: Settings,
    deadlines: Deadlines,
    make_local_worker: Callable[[str], Callable[[], object]] | None,
    succession: Succession[Standby] | None = None,
    newest_checkpoint: Callable[[], int] = lambda: -1,
    find_states: Callable[[], tuple[int, list[int]] | None] = lambda: None,
  ):
    """Creates the runtime; it does not listen for workers yet.

    Args:
      coordinator: Asks the scheme.
      store: The learner of the coordinator.
      reception: Streams to the workers.
      rendezvous: Members of epochs, and their forests.
      links: Link manager of the run.
      layout: Layout of step statistics.
      overlap: Kind of overlap of communication and computation in the
        coordinator's process.
      iteration_bytes: Returns the bytes that cross the network in an iteration,
        given the number of workers and the stage of the codec.
      settings: Settings of the coordinator's process.
      deadlines: Progress deadlines of the workers.
      make_local_worker: Makes the worker of this process, to be called in a
        thread, given the address to connect to; None if it has none.
      succession: Part of this process in elections of a coordinator; None if
        the run ends with its coordinator.
      newest_checkpoint: Returns the number of the newest checkpoint.
      find_states: Returns the number of the checkpoint to resume from, and the
        workers whose inner optimizers' states are in it; None to start from
        scratch.
    """
    super().__init__(
      coordinator=coordinator,
      reception=reception,
      settings=settings,
      deadlines=deadlines,
      make_local_worker=make_local_worker,
    )
    self._store, self._rendezvous = store, rendezvous
    self._replicas = reception
    self.epochs = MembershipEpochs(
      coordinator=coordinator,
      store=store,
      reception=reception,
      rendezvous=rendezvous,
      links=links,
      deadlines=deadlines,
      check_s=max(settings.start_s, 2 * settings.timeout_s),
      now=lambda: self.time,
    )
    self._layout = layout
    self._links, self._checking = links, self.epochs.check
    self._traffic_log = TrafficLog(rendezvous, Traffic(coordinator.recorder))
    # States before the first iteration that counts, by worker.
    self._initial_states = [ResidualId()] * len(reception.members)
    self._find_states = find_states
    # Workers whose states the checkpoint should have.
    self._with_states: Sequence[int] = []
    self._assigner = IterationAssigner(
      coordinator, reception.send_to_worker, self._find_state
    )
    self._recorder = IterationRecorder(
      coordinator,
      layout,
      reception.members,
      iteration_bytes,
      has_inner_optimizer=store.has_inner_optimizer,
    )
    self._is_pausing, self._overlap = False, overlap
    self._succession, self._newest_checkpoint = succession, newest_checkpoint
    self._inheritance: Inheritance | None = None
    self._publish: Callable[[], None] = lambda: None
    # Membership epoch and time in which distributions were replicated last.
    self._measures_sent = -1, 0.0
    # An epoch that has to wait for its begin, and when it may.
    self._delayed: tuple[int, float] | None = None
    # Residuals are summed before a checkpoint: the version at which they were,
    # and the membership epoch and monotonic time of the request.
    self._collected_version = 0
    self._collection: tuple[int, float] | None = None
    # Members, their incarnations and digests with their traffic, as of the last
    # check.
    self._sent: list[tuple[int, int, messages.StateDigest]] = []
    coordinator.attach(release=self._release, wake_at=lambda time: None)

  @property
  def _membership_epoch(self) -> int:
    return self._rendezvous.membership_epoch

  def warm_up(self) -> None:
    """Waits until enough workers have compiled and are connected.

    Raises:
      Unmendable: If one does not in time; names it.
      Relinquished: If this is a successor whom too few members join.
    """
    if self._inheritance:
      self._gather()
      return
    self._wait_for_processes(
      self._reception.listen(),
      done=self.epochs.try_connect,
      missing=lambda: self._reception.missing() or self._links.awaited,
      transfer_s=self._find_transfer_s,
    )

  def take_over(
    self, inheritance: Inheritance, publish: Callable[[], None]
  ) -> None:
    """Continues from another coordinator that is lost; `warm_up` follows.

    Args:
      inheritance: State and iterations to continue from.
      publish: Called once this process has the next term, before anything is
        recorded.
    """
    state = inheritance.state['runtime']
    self._inheritance, self._publish = inheritance, publish
    self.time = state['time']
    # The run's clock continues as well while there is no coordinator.
    self._began = clock.monotonic() - self.time - inheritance.age_s
    self.coordinator.restore(state['coordinator'])
    self._store.take_over(state['store'])
    self._restore_counts(state)
    self._initial_states = [ResidualId(*each) for each in state['initial']]
    for member, counted in zip(self._members, state['counted'], strict=True):
      member.counted = counted
    for version, iteration in inheritance.iterations.items():
      order = iteration.assignment
      at = self._began + order.assigned_at - state['began']
      self._assigner.inherit(version, at, order.stage)
    self._links.take_over()
    membership = inheritance.membership
    self._replicas.succeeded = membership.term, membership.addresses.keys()
    self.epochs.take_over(inheritance)

  def _gather(self) -> None:
    """Waits until the members of the last epoch are connected, and begins one.

    Raises:
      Relinquished: If too few of them join, or another process has the term.
      Unmendable: If it takes too long.
    """
    give_up_at: float | None = clock.monotonic() + 2 * self._timeout_s

    def begin() -> bool:
      nonlocal give_up_at
      now = clock.monotonic()
      if give_up_at is not None and now >= give_up_at:
        give_up_at = None
        self.epochs.give_up_absent()
      self.epochs.evict_overdue(is_idle=False)
      return self.epochs.is_running

    self._wait_for_processes(
      self._reception.listen(), done=begin, missing=self._reception.missing
    )

  def _find_transfer_s(self) -> float:
    """Returns how much longer than `start_s` the start may take, seconds.

    As long as a member makes progress that fetches its state.
    """
    awaited = self._rendezvous.fetching.intersection(self._rendezvous.awaited)
    moved = [self._members[index].progress.last_change for index in awaited]
    now = clock.monotonic()
    if not moved or now - max(moved) > 2 * self._timeout_s:
      return 0.0
    return transfer_s(self._store.state_bytes, len(self._members) - 1)

  def start(self) -> None:
    """Releases the first iterations."""
    self.epochs.start()
    super().start()
    self._assign()

  def resume(self) -> None:
    """Continues from a checkpoint as from a barrier, with present workers."""
    if self._started:  # As a successor, without a checkpoint.
      return
    self.coordinator.rejoin(self._before, self.time)
    if (found := self._find_states()) and self._store.has_inner_optimizer:
      step, workers = found
      count = len(self._members)
      self._initial_states = assign_residuals(step, workers, count)
      unsaved = sorted(set(self._with_states) - set(workers))
      self.coordinator.recorder.accounting.lost_states += lost_at_restart(
        workers, unsaved, count, self.time
      )
    self.start()

  def pause(self) -> bool:
    """Pauses after the current iteration; returns whether nothing is running.

    The next step continues.
    """
    self._is_pausing = True
    if self._checking.is_running or not self._is_idle:
      return False
    if self._checking.agreement.agreed < self._store.version:
      self._sent.clear()
      self._checking.begin(self._store.version, lambda: None)
      return False
    version = self._store.version
    number = self._rendezvous.membership_epoch
    if self._store.has_residuals and self._collected_version < version:
      if self._collection is None or self._collection[0] < number:
        self._collection = number, clock.monotonic()
        for index in self._rendezvous.members:
          self._reception.send_to_worker(
            index, messages.CollectResiduals(number)
          )
      return False
    self._is_pausing, self._collection = False, None
    return True

  def step(self) -> None:
    """Waits for an event, at most for a heartbeat, and handles it.

    Raises:
      Unmendable: If the run cannot continue.
      FloatingPointError: If a loss or a gradient is not finite.
    """
    if not self._is_pausing and self._is_idle:
      self._assign()  # After a pause.
    self._handle_next(max(self._check_at - clock.monotonic(), 0.0))
    self._check_progress()
    if self._delayed and clock.monotonic() >= self._delayed[1]:
      self.begin_delayed()
    collection = self._collection
    if collection and clock.monotonic() - collection[1] > self._start_s:
      raise Unmendable('Workers do not report their residuals.')

  def begin_delayed(self) -> bool:
    """Begins an epoch that waits, as few members are left; False for none.

    Raises:
      Relinquished: If others have elected a coordinator meanwhile.
    """
    number = self._rendezvous.membership_epoch
    if is_delayed := self._delayed is not None and self._delayed[0] == number:
      self._begin_epoch()
    self._delayed = None
    return is_delayed

  @property
  def has_successor(self) -> bool:
    """True if there is another member, which can succeed the coordinator."""
    others = {*self._rendezvous.members} - {self._rendezvous.local}
    return self._succession is not None and bool(others)

  def _hand_over(self) -> None:
    """Sends the state to other members, after the iteration."""
    self._is_pausing = True
    if self._checking.is_running or not self._is_idle:
      return
    self.coordinator.milestones.record_evaluations(wait=True)
    self._replicate()
    self._has_handed_over = True

  def state(self) -> dict[str, Any]:
    """Returns the state of the run, between two iterations."""
    return {
      'time': self.time,
      'coordinator': self.coordinator.state(),
      'store': self._store.state(),
      'admissions': [member.admissions for member in self._members],
      'drift': self._checking.agreement.totals,
      'keepers': self._keepers,
    }

  def save_states(self, step: int) -> list[threads.Future[bool]]:
    """Requests the states of inner optimizers, as parts of a checkpoint.

    Args:
      step: Number of the checkpoint.

    Returns:
      A future of each part: see `PartRequests`.
    """
    return [
      self._replicas.save_state(index, step, self._find_state(index))
      for index in self._keepers
    ]

  @property
  def _keepers(self) -> Sequence[int]:
    """Members with states of inner optimizers that checkpoints hold."""
    if not self._store.has_inner_optimizer:
      return []
    return [*self._rendezvous.members]

  def _find_state(self, index: int) -> ResidualId:
    """Returns the state that a worker's local steps continue with."""
    counted = self._members[index].counted
    if counted is None:
      return self._initial_states[index]
    return ResidualId(counted)

  def restore(self, state: dict[str, Any]) -> None:
    """Restores the result of `state`; the workers may be others."""
    self.time = state['time']
    self._before = state['coordinator']
    self._store.restore(state['store'])
    self._restore_counts(state)
    self._with_states = state['keepers']
    self._collected_version = self._rendezvous.restored = self._store.version

  def _restore_counts(self, state: Mapping[str, Any]) -> None:
    """Restores admissions and totals of checks from a state."""
    for member, count in zip(self._members, state['admissions'], strict=False):
      member.admissions = count
    self._checking.agreement.totals |= state.get('drift', {})

  def close(self) -> None:
    """Ends the run for all processes, also after an error."""
    super().close()
    if self._succession:
      self._succession.close()

  def summary(self) -> dict[str, Any]:
    """Returns the entries of summary.json that only this runtime has."""
    own = {
      'membership_epochs': self._rendezvous.membership_epoch + 1,
      'overlap': self._overlap,
      'drift': self._checking.agreement.totals,
    }
    return super().summary() | own

  @property
  def _present(self) -> Collection[int]:
    """Members of the first epoch; others that are ready join its end."""
    return self._rendezvous.members

  @property
  def _is_idle(self) -> bool:
    """True if no iteration that was assigned is still running."""
    return (
      self.epochs.is_running and self._assigner.newest < self._store.version
    )

  def _release(self, index: int) -> None:
    """Enters the phase `push`: replicas receive sums, and never pull."""
    worker = self.coordinator.workers[index]
    self.coordinator.enter(index, 'push', worker.since)

  def _drain(self, index: int) -> None:
    """Lets a worker leave at the end of the iteration."""
    if not self._is_pausing:
      self.epochs.drain(index)
      if self._is_idle:
        self._assign()

  def _lose(self, index: int, reason: str) -> None:
    """Evicts a worker that is lost."""
    self.epochs.lose(index, reason)

  def _check_processes(self) -> None:
    """Evicts workers that are silent or delay the others."""
    self._lose_silent()
    self.epochs.evict_overdue(is_idle=self._is_idle)

  def _handle(self, event: Event) -> None:
    """Handles an event of the workers, of the links or of this process."""
    match event:
      case WorkerJoined():
        self._handle_joined(event)
      case WorkerLost():
        self._handle_lost(event)
      case WorkerMessage():
        self._handle_message(event.worker, event.message)
      case IterationCompleted():
        self._handle_completed(event)
      case ResidualsCollected():
        self._collected_version = event.version
      case LinksMeasured():
        self.epochs.handle_measured(event)
      case ForestPlanned():
        self.epochs.handle_planned(event)
      case ForestPacked():
        self._links.take_forest(event, self.time)

  def _check(self, event: WorkerEvent) -> None:
    if not isinstance(event, WorkerMessage):
      return
    index, message = event.worker, event.message
    workers = range(len(self._members))
    match message:
      case messages.TrafficReport():
        check_traffic(message.sent, workers)
      case messages.ProbeAnswer():
        self._links.check_answer(index, message)
      case messages.ConnectionLost(peer=int(peer)):
        expect(peer in workers, 'peer', f'one of {len(workers)} workers', peer)
    if isinstance(message, _OF_EPOCH) and self.epochs.is_current(
      index, message
    ):
      self._check_member(message)

  def _check_member(self, message: _OfEpoch) -> None:
    """Checks a message of a member of the current epoch.

    Raises:
      InvalidMessage: If it cannot be true.
    """
    match message:
      case messages.Connected(version=version, sent=sent):
        check_traffic(sent, range(len(self._members)))
        expected = self._rendezvous.version
        expect(version == expected, 'version', f'{expected}', version)
      case messages.StateDigest(sent=sent):
        check_traffic(sent, range(len(self._members)))
      case messages.StateCompared(difference=float(difference)):
        expect(difference >= 0.0, 'difference', 'at least 0', difference)
      case messages.EpochStopped(version=version, statistics=statistics):
        newest = self._newest_assigned + 1
        expect(version <= newest, 'version', f'up to {newest}', version)
        if statistics:
          self._layout.check(statistics)

  @property
  def _newest_assigned(self) -> int:
    """Highest version whose iteration members may have applied."""
    known = self._inheritance.iterations if self._inheritance else {}
    newest = max(self._assigner.newest, self._store.version - 1)
    return max([newest, *known])

  def _handle_message(
    self, index: int, message: messages.FromWorker | messages.FromReplica
  ) -> None:
    """Handles a message of a worker that takes part."""
    match message:
      case messages.Connected():
        self._handle_connected(index, message)
      case messages.ConnectionLost():
        self.epochs.handle_connection_lost(index, message)
      case messages.EpochStopped():
        self.epochs.add_stopped(index, message)
      case messages.StateDigest():
        self._handle_digest(index, message)
      case messages.StateCompared():
        self._handle_difference(index, message)
      case messages.CaughtUp():
        self.epochs.take_caught_up(index, message)
        if self._is_idle:  # It may be able to join now.
          self._assign()
      case messages.ProbeAnswer():
        self._links.take_answer(index, message)
      case messages.TrafficReport():
        self._links.take_traffic(index, message)

  def _handle_joined(self, event: WorkerJoined) -> None:
    if not self._admit(event):
      return
    index, ready = event.worker, event.ready
    if isinstance(ready, messages.ReplicaReady):
      self.epochs.add(index, ready.address, ready.cores)
    if self._started:
      self._members[index].is_late = True
      self.epochs.catching_up.advance(self._store.version)
      self._log_joined(event)
      if self._is_idle:  # No iteration ends that would let it join.
        self._assign()

  def _handle_lost(self, event: WorkerLost) -> None:
    index, member = event.worker, self._members[event.worker]
    is_newest = event.incarnation == member.incarnation
    if is_newest and member.stream is not None:
      self._lose(index, event.reason)

  def _handle_connected(self, index: int, message: messages.Connected) -> None:
    """Handles the report of a member that is connected to the others."""
    if not self.epochs.is_current(index, message):
      return
    incarnation = self._members[index].incarnation
    self._traffic_log.take_connected(index, incarnation, message)
    if self._rendezvous.add_connected(index, message.digest):
      self._checking.begin(
        message.version, self._begin_epoch, self._rendezvous.digests
      )

  def _begin_epoch(self) -> None:
    """Begins the epoch's iterations, as all members are connected and alike."""
    succeeds = self._inheritance is not None
    if not self._take_term():
      return
    version = self._checking.agreement.agreed
    unrecorded = self.epochs.take_unrecorded()
    # Only the last of them may have been assigned without the next.
    last = self._store.version + len(unrecorded) - 1
    self._assigner.newest = max(self._assigner.newest, last)
    for statistics, members in unrecorded:
      self._record(statistics, members)
    if succeeds:
      self.coordinator.milestones.repeat_evaluation()
    self.epochs.begin()
    self._assigner.begin(self._store.version)
    # Before the state of this epoch is sent to those that may succeed: it has
    # the sizes of the files.
    self._traffic_log.begin_epoch(self.time, version, self.epochs.reason)
    if self._started:
      self._assign()

  def _take_term(self) -> bool:
    """Takes the next term if this epoch needs one: see `membership.election`.

    Returns:
      Whether the epoch may begin; if not, this is called again later.

    Raises:
      Relinquished: If another process has the term, or too few members are
        left to succeed the coordinator before.
    """
    succession, epochs = self._succession, self.epochs
    if succession is None:
      return True
    terms, term = succession.terms, self._assigner.term
    newest = terms.newest
    if self._inheritance:
      term = self._inheritance.membership.term
      if not election.may_succeed(epochs.agreed, epochs.present):
        raise Relinquished('Too few members of the last epoch have joined.')
    elif not term:
      term = newest
    if newest > term:
      raise Relinquished(f'The run has a coordinator of term {newest}.')
    is_first = self._inheritance is not None or not self._assigner.term
    if is_first or election.needs_term(epochs.agreed, epochs.present):
      if not is_first and self._delayed is None and not self._has_half:
        # Members that are cut off, but are more, elect another coordinator.
        number = self._rendezvous.membership_epoch
        self._delayed = number, clock.monotonic() + self._timeout_s
        return False
      term += 1
      if not terms.take(term, self._rendezvous.local):
        raise Relinquished(f'Another coordinator has term {term}.')
      logging.info('This process coordinates the run in term %d.', term)
    self._assigner.term = term
    rendezvous = self._rendezvous
    addresses = {k: rendezvous.address(k) for k in rendezvous.members}
    if self._inheritance:
      self._inheritance = self._replicas.succeeded = None
      self._publish()
      self._started = True
      self._record_devices()
    succession.lead(term, rendezvous.membership_epoch, addresses)
    return True

  @property
  def _has_half(self) -> bool:
    """True if half of the last members have stayed with this coordinator."""
    return election.may_succeed(self.epochs.agreed, self.epochs.present)

  def _replicate(self) -> None:
    """Sends the coordinator's state to members that may succeed it."""
    rendezvous = self._rendezvous
    others = [k for k in rendezvous.members if k != rendezvous.local]
    if self._succession is None or not others:
      return
    recorder, now = self.coordinator.recorder, clock.monotonic()
    measured = rendezvous.membership_epoch, now
    # A new member, and each at times, gets the distributions, too.
    has_measures = self._measures_sent[0] != measured[0] or (
      now >= self._measures_sent[1] + _MEASURES_S
    )
    if has_measures:
      self._measures_sent = measured
    state = {
      'runtime': {
        'time': self.time,
        'began': self._began or 0.0,
        'coordinator': self.coordinator.state(),
        'store': self._store.counts(),
        'admissions': [member.admissions for member in self._members],
        'drift': self._checking.agreement.totals,
        'initial': self._initial_states,
        'counted': [member.counted for member in self._members],
      },
      'milestones': self.coordinator.milestones.successor_state(),
      'recorder': recorder.state(is_standby=True, with_measures=has_measures),
      'files': recorder.rows.state(is_durable=False),
      'checkpoint': self._newest_checkpoint(),
    }
    message = replication.encode(
      state,
      has_measures=has_measures,
      term=self._assigner.term,
      membership_epoch=rendezvous.membership_epoch,
      version=self._store.version,
    )
    for index in others[: replication.STANDBYS]:
      self._reception.send_to_worker(index, message)

  def _handle_digest(self, index: int, message: messages.StateDigest) -> None:
    """Handles a member's digest of its state, and its traffic."""
    if self.epochs.is_current(index, message):
      self._sent.append((index, self._members[index].incarnation, message))
      self._checking.add_digest(index, message.version, message.digest)

  def _handle_difference(
    self, index: int, message: messages.StateCompared
  ) -> None:
    """Handles the difference of a member's state from the reference."""
    if self.epochs.is_current(index, message):
      self._checking.add_difference(
        index, message.version, message.difference, message.digest
      )

  def _handle_completed(self, event: IterationCompleted) -> None:
    """Handles the end of an iteration at the coordinator's replica.

    Replicas are compared before a version that is evaluated, saved or the last:
    all of them have that state.
    """
    version, members = self._store.version, self._rendezvous.members
    if event.version != version:
      return
    self._rendezvous.mark_summed()
    if self._pauses_after(
      sum(self.coordinator.workers[k].examples for k in members)
    ):
      if not self.epochs.is_running:
        return  # The epoch ends: the iteration is recorded in the next.
      self._sent.clear()
      self._checking.begin(
        version + 1, lambda: self._record_agreed(event.statistics)
      )
    else:
      self._record(event.statistics, members)
      self._assign()

  def _record_agreed(self, statistics: Sequence[float]) -> None:
    """Records an iteration after which all members have the same state."""
    self._record(statistics, self._rendezvous.members)
    for index, incarnation, message in self._sent:
      self._traffic_log.take_compared(index, incarnation, message, self.time)
    self._assign()

  def _record(
    self, statistics: Sequence[float], members: Sequence[int]
  ) -> None:
    """Reports an iteration that has ended to the scheme.

    Args:
      statistics: Step statistics of all workers.
      members: Workers that took part.

    Raises:
      FloatingPointError: If a loss or a gradient is not finite.
    """
    version = self._store.version
    # No worker joins while the next iteration is assigned; lost workers have
    # not left yet.
    is_ahead = self._assigner.newest > version
    assigned_at, stage = self._assigner.pop_assigned(version)
    joining = [
      k
      for k in self.epochs.newcomers
      if not (is_ahead or self.epochs.in_scheme(k))
    ]
    invalid = self._recorder.record(
      statistics,
      members,
      joining,
      assigned_at=assigned_at - (self._began or 0.0),
      stage=stage,
      time=self.time,
    )
    for index in invalid:  # An event follows, after this iteration.
      if stream := self._members[index].stream:
        reason = f'Its statistics of version {version} cannot be true.'
        self._reception.evict(index, stream, reason)
    self._links.end_iteration(self.time, self._recorder.exposed_s)
    self.epochs.catching_up.advance(self._store.version)

  def _assign(self) -> None:
    """Assigns this iteration and the next, as far as possible."""
    epochs, number = self.epochs, self._rendezvous.membership_epoch
    if not epochs.is_running or self._is_finished or self._checking.is_running:
      return
    version, members = self._store.version, self._rendezvous.members
    is_replicated = False
    if self._assigner.newest < version:
      # Other newcomers were too late for the iteration that has begun.
      if any(map(epochs.in_scheme, epochs.newcomers)):
        epochs.stop('a worker joins', ends=True)
        return
      if reason := epochs.end_reason:
        epochs.stop(reason, ends=True)
        return
      if self._is_pausing:
        return
      for index in members:
        self._members[index].progress.last_change = clock.monotonic()
      self._replicate()
      is_replicated = True
      epochs.catching_up.retain(version)
      self._assigner.assign(number, version, members)
    examples = sum(
      self.coordinator.workers[index].examples for index in members
    )
    if self._assigner.newest == version:
      applied = self.coordinator.recorder.accounting.examples
      self.coordinator.milestones.plan_evaluation(applied + examples, self.time)
    waits = self._is_pausing or self._pauses_after(examples)
    waits = waits or bool(epochs.newcomers) or bool(epochs.end_reason)
    if self._assigner.newest == version and not waits:
      if not is_replicated:
        self._replicate()
      epochs.catching_up.retain(version + 1)
      self._assigner.assign(number, version + 1, members)

  def _pauses_after(self, examples: int) -> bool:
    """Returns whether the run pauses after a number of further examples.

    It does to be evaluated or saved, or at its end.
    """
    examples += self.coordinator.recorder.accounting.examples
    return self.coordinator.milestones.will_evaluate(examples)
