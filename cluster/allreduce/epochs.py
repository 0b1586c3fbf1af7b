"""Transitions between the membership epochs of an allreduce run.

In each epoch a set of workers sums over a forest.  When a worker or a
connection is lost, the coordinator stops the epoch.  All living members report
their version of the learner.  The versions differ by one at most, as an
iteration cannot end without the contributions of all.  If some member has ended
the last iteration, the others fetch its state, and the iteration is recorded;
if none has, those that live repeat it.  A worker that joins catches up with the
members (`catching_up`), and is one from the end of an iteration on.

Members compare their states when they have connected, and before an iteration
is recorded after which the run is evaluated, saved or over: see `checking`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from absl import logging

from cluster.allreduce.catching_up import CatchingUp
from cluster.allreduce.checking import StateCheck
from cluster.allreduce.rendezvous import Rendezvous, Unreachable
from cluster.allreduce.replication import Inheritance
from cluster.allreduce.store import ReplicaStore
from cluster.coordinator import Coordinator
from cluster.membership import worker_states
from cluster.membership.admission import Reception
from cluster.membership.event_loop import DRAINED
from cluster.network.messages import (
  CaughtUp,
  Connected,
  ConnectionLost,
  EpochStopped,
  StateCompared,
  StateDigest,
  StopEpoch,
  ToReplica,
)
from cluster.probing.events import ForestPlanned, LinksMeasured
from cluster.probing.link_manager import LinkManager
from cluster.process.deadlines import Deadlines
from cluster.process.exits import Relinquished, Unmendable
from system import clock


class MembershipEpochs:
  """Begins and ends the membership epochs of a run.

  Attributes:
    rendezvous: Members of the current epoch, and their forest.
    check: Comparison of the members' states.
    links: Knowledge of the links.
    catching_up: Workers that catch up with the members.
    is_running: True while the members can sum: all are connected and have the
      same state.
    reason: Reason for which the current epoch has begun, for the log.
    agreed: Members of the last epoch that has begun; empty before the first.
    present: Those of them that have not been lost since.
  """

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    store: ReplicaStore,
    reception: Reception,
    rendezvous: Rendezvous,
    links: LinkManager,
    deadlines: Deadlines,
    check_s: float,
    now: Callable[[], float],
  ):
    """Creates the state before the first epoch.

    Args:
      coordinator: Asks the scheme.
      store: The learner of the coordinator.
      reception: Streams to the workers.
      rendezvous: Members of epochs, and their forests.
      links: Link manager of the run.
      deadlines: Progress deadlines of the workers.
      check_s: Seconds that a member may take to compare its state.
      now: Returns the time of the run, seconds.
    """
    self.rendezvous = rendezvous
    self.links = links
    self.check = StateCheck(
      rendezvous,
      send=reception.send_to_worker,
      evict=self.lose,
      record=self._record_drift,
      forget=self._record_forgotten,
      limit_s=check_s,
    )
    self.catching_up = CatchingUp(
      rendezvous,
      send=reception.send_to_worker,
      now=clock.monotonic,
      limit_s=check_s,
    )
    self.is_running = False
    self.reason = 'all are there'
    self._stopped_at = 0.0  # When the last epoch was stopped, monotonic s.
    self._coordinator, self._store = coordinator, store
    self._reception, self._members = reception, reception.members
    self._deadlines, self._now = deadlines, now
    self.agreed: Collection[int] = ()
    self.present: set[int] = set()
    self._has_started = False
    # Whether members may end their iteration before they stop.
    self._ends_iteration = False
    # Step statistics and members of the iterations that replicas have ended,
    # but the coordinator has not recorded: one at most, or up to three if the
    # coordinator succeeds another.
    self._unrecorded: list[tuple[Sequence[float], Sequence[int]]] = []
    self._inheritance: Inheritance | None = None
    # Lost workers that the scheme still counts, with the reasons.
    self._departed: dict[int, str] = {}
    self._draining: set[int] = set()  # Members that leave after this epoch.

  def start(self) -> None:
    """Marks the start of the run: lost workers leave the scheme from here."""
    self._has_started = True

  def take_over(self, inheritance: Inheritance) -> None:
    """Ends the last epoch of the coordinator before, of a run that has started.

    Its members stop once they have joined; see `give_up_absent`.

    Args:
      inheritance: State and iterations that this coordinator continues from.
    """
    membership = inheritance.membership
    self.agreed = tuple(sorted(membership.addresses))
    self._has_started, self._inheritance = True, inheritance
    self.rendezvous.take_over(membership.number, self.agreed)
    for index in self.agreed:
      if index not in inheritance.supporters:
        self.rendezvous.mark_lost(index, 'It was lost with the coordinator.')
    self.stop('a coordinator is replaced')

  def give_up_absent(self) -> None:
    """Marks the members as lost that have not joined this coordinator.

    Raises:
      Relinquished: If the worker of this process is one of them.
    """
    if self._inheritance is None:
      return
    local = self.rendezvous.local
    if local in self.rendezvous.living and not self._members[local].stream:
      raise Relinquished('The worker of the coordinator has not joined it.')
    for index in self.rendezvous.living:
      if self._members[index].stream is None:
        self.rendezvous.mark_lost(index, 'It was lost with the coordinator.')
    self._proceed()

  def is_current(
    self,
    index: int,
    message: Connected
    | ConnectionLost
    | EpochStopped
    | StateCompared
    | StateDigest,
  ) -> bool:
    """Returns whether a message is of a living member of the current epoch."""
    is_living = self._members[index].stream is not None
    is_member = is_living and index in self.rendezvous.members
    number = self.rendezvous.membership_epoch
    return is_member and message.membership_epoch == number

  def in_scheme(self, index: int) -> bool:
    """Returns whether the scheme counts a worker."""
    return self._coordinator.workers[index].phase is not None

  @property
  def newcomers(self) -> list[int]:
    """Workers that can be members of the next epoch, but are not members."""
    members = {*self.rendezvous.members}
    return [
      index
      for index, member in enumerate(self._members)
      if member.stream
      and index not in members
      and self.rendezvous.admits(index)
      and not self.catching_up.delays(index)
    ]

  @property
  def end_reason(self) -> str:
    """Reason to end the epoch after this iteration; '' for none."""
    if leaving := self._draining.intersection(self.rendezvous.living):
      return f'worker {min(leaving)} leaves'
    return self.links.interruption or self.rendezvous.retry_reason

  def try_connect(self) -> bool:
    """Forms the first epoch if it can be formed; returns whether one runs.

    The grace period for further workers may have passed, or a failed link may
    be due again, for which a member had to wait.
    """
    if self.rendezvous.is_waiting:
      self._form()
    return self.is_running

  def add(self, index: int, address: str, cores: int) -> None:
    """Adds a worker that is ready: see `Rendezvous.add`.

    It catches up, unless the run has yet to start, or the worker continues as a
    member with a coordinator that succeeds another.
    """
    self.rendezvous.add(index, address, cores)
    is_member = index in self.rendezvous.living
    if self._has_started and self.rendezvous.tolerates_loss and not is_member:
      self.catching_up.add(index)
    if self._inheritance and index in self.rendezvous.awaited:
      number = self.rendezvous.membership_epoch
      stop = StopEpoch(membership_epoch=number, completes=False)
      self._members[index].progress.last_change = clock.monotonic()
      self._reception.send_to_worker(index, stop)
    if not self._has_started and self.rendezvous.is_waiting:
      self._form()

  def begin(self) -> None:
    """Begins to sum: all members are connected, and have the same state.

    Lost workers leave the scheme: all that they took part in is recorded.
    """
    departed, self._departed = self._departed, {}
    for index in sorted(departed):
      self._record_forgotten(index)
      self._record_lost_state(index, departed[index])
      self._coordinator.leave(index, self._now(), departed[index])
    self.agreed, self._inheritance = self.rendezvous.members, None
    self.present = {*self.agreed}
    self.is_running = True
    self.catching_up.settle(self.agreed)
    if self._stopped_at:
      number = self.rendezvous.membership_epoch
      waited_s = clock.monotonic() - self._stopped_at
      logging.info('Membership epoch %d runs after %.2f s.', number, waited_s)
    self.links.begin_epoch()

  def take_unrecorded(self) -> list[tuple[Sequence[float], Sequence[int]]]:
    """Returns iterations to record before `begin`, once, in order.

    Returns:
      Step statistics of each, and the members that took part in it.
    """
    unrecorded, self._unrecorded = self._unrecorded, []
    return unrecorded

  def lose(
    self,
    index: int,
    reason: str,
    kind: Literal['left', 'drained'] = 'left',
  ) -> None:
    """Evicts a worker that is lost, makes no progress, or wants to leave.

    Args:
      index: The worker.
      reason: Text for logs.
      kind: Kind of the end of its session.

    Raises:
      Unmendable: If the run cannot continue without it.
    """
    member = self._members[index]
    if member.stream is None:  # It was lost together with another one.
      return
    self.present.discard(index)
    if index == self.rendezvous.local:
      text = f'The worker of the coordinator is lost: {reason}'
      if self.can_be_succeeded:
        raise Relinquished(text)
      raise Unmendable(text)
    if not (self.rendezvous.tolerates_loss or self.rendezvous.is_waiting):
      raise Unmendable(f'Worker {index} is lost, and XLA needs all: {reason}')
    if kind == 'drained':
      logging.info('Worker %d has left: %s', index, reason)
    else:
      logging.warning('Worker %d is lost: %s', index, reason)
    stream, member.stream = member.stream, None
    self.catching_up.remove(index)
    self._reception.evict(index, stream, reason, kind)
    self.links.lose(index, reason)
    self._draining.discard(index)
    if index in self.rendezvous.members:
      self.rendezvous.mark_lost(index, reason)
      self.stop(f'worker {index} is lost')
    elif (
      self._has_started
      and self.in_scheme(index)
      and index not in self._departed
    ):
      # It had joined the scheme, and was to be a member of the next epoch.
      self._coordinator.leave(index, self._now(), reason)

  @property
  def can_be_succeeded(self) -> bool:
    """True if other members may continue without this coordinator."""
    return self.rendezvous.tolerates_loss and len(self.present) > 1

  def drain(self, index: int) -> None:
    """Lets a worker leave, a member at the end of the epoch."""
    if index in self.rendezvous.members:
      self._draining.add(index)
    else:
      self.lose(index, DRAINED, kind='drained')

  def stop(self, reason: str, *, ends: bool = False) -> None:
    """Ends the epoch, unless that has been done before.

    Args:
      reason: Reason, for the log.
      ends: Whether members end the iteration first that they are in.
    """
    is_first = self.rendezvous.stop()
    if is_first:
      self.check.cancel()
      number = self.rendezvous.membership_epoch
      logging.info('Membership epoch %d begins: %s.', number, reason)
      self.is_running, self.reason = False, reason
      self._stopped_at = clock.monotonic()
    if is_first or (self._ends_iteration and not ends):
      self._ends_iteration = ends
      number = self.rendezvous.membership_epoch
      self._request(StopEpoch(membership_epoch=number, completes=ends))
    self._proceed()

  def add_stopped(self, index: int, message: EpochStopped) -> None:
    """Handles the report of a member that has stopped."""
    if self.is_current(index, message):
      self.rendezvous.add_stopped(index, message.version, message.statistics)
      self._proceed()

  def handle_measured(self, event: LinksMeasured) -> None:
    """Forms an epoch after its links were measured."""
    self.links.take_survey(event, self._now())
    self._remove_lost()
    self._form()

  def handle_planned(self, event: ForestPlanned) -> None:
    """Records a forest that was packed; forms the first epoch if it waits.

    Another epoch ends after the iteration, and the next uses the forest.
    """
    is_awaited = self.rendezvous.take_plan(event.key, event.forest)
    did, why = 'packed', 'a forest has been packed for the members'
    if event.forest is None:
      did = 'not packed'
      why = f'a simple forest is used, as packing has failed: {event.problem}'
    logging.info('Forest: %s.', why)
    row = {'time': self._now(), 'did': did, 'why': why}
    self._coordinator.recorder.record_links(row)
    if is_awaited:
      self._form()

  def handle_connection_lost(self, index: int, message: ConnectionLost) -> None:
    """Handles the report of a member that has lost a connection.

    Raises:
      Unmendable: If XLA sums.
    """
    if not self.is_current(index, message):
      return
    logging.warning(
      'Worker %d has lost worker %s: %s', index, message.peer, message.reason
    )
    if not self.rendezvous.tolerates_loss:
      raise Unmendable(f'Worker {index}: {message.reason}')
    self.rendezvous.suspect(index, message.peer)
    self.stop('a connection is lost')

  def take_caught_up(self, index: int, message: CaughtUp) -> None:
    """Handles the report of a worker that catches up."""
    self.catching_up.take_report(index, message, self._store.version)

  def evict_overdue(self, *, is_idle: bool) -> None:
    """Evicts members that delay an iteration, a check or the next epoch.

    Workers that catch up are evicted, too, if they make no progress.

    Args:
      is_idle: Whether no iteration that was assigned is running.
    """
    moved_at = lambda k: self._members[k].progress.last_change  # noqa: E731
    for index in self.catching_up.find_overdue(moved_at):
      self.lose(index, 'It made no progress at catching up.')
    if self.check.is_running:
      moved = [member.progress.last_change for member in self._members]
      for index in self.check.overdue(moved.__getitem__):
        self.lose(index, 'It did not compare its state in time.')
      return
    if is_idle:
      return
    rendezvous, workers = self.rendezvous, self._coordinator.workers
    active = [
      (index, self._members[index].progress, workers[index].examples)
      for index in (
        rendezvous.living if self.is_running else rendezvous.awaited
      )
      if self._members[index].stream  # A successor waits for others to join.
    ]
    now = clock.monotonic()
    overdue = self._deadlines.overdue(active, now=now, executed_orders=0)
    local = rendezvous.local
    is_computing = any(
      progress.is_computing for index, progress, _ in active if index == local
    )
    if [index for index, _ in overdue] == [local] and not is_computing:
      # If in doubt, evict a worker that can rejoin.
      others = [each for each in active if each[0] != local]
      overdue = (
        self._deadlines.overdue(others, now=now, executed_orders=0) or overdue
      )
    for index, reason in overdue:
      self.lose(index, reason)

  def _request(self, message: ToReplica) -> None:
    """Sends all members a message that they have to answer from now on."""
    for index in self.rendezvous.awaited:
      progress = self._members[index].progress
      if not progress.is_computing:
        progress.last_change = clock.monotonic()
      self._reception.send_to_worker(index, message)

  def _proceed(self) -> None:
    """Forms the next epoch once all living members have stopped."""
    newest = self.rendezvous.find_newest()
    if newest is None:
      return
    version, statistics = newest
    if self._inheritance:
      # A process that has just started has version 0.
      present = [
        k for k, each in self.rendezvous.answers.items() if each >= version - 1
      ]
      self.present = {*present} & {*self.rendezvous.living}
    if version <= self._store.version:
      self._unrecorded = []  # All that had ended the iteration are lost.
    elif self._inheritance:
      self._unrecorded = self._inherit_iterations(version, statistics)
    elif not self._unrecorded:
      self._unrecorded = [(statistics, self.rendezvous.members)]
    for index in sorted(self._draining):
      if self.rendezvous.dismiss(index):
        self.lose(index, DRAINED, kind='drained')
    self._remove_lost()
    self._form()

  def _inherit_iterations(
    self, version: int, statistics: Sequence[float]
  ) -> list[tuple[Sequence[float], Sequence[int]]]:
    """Returns the iterations that the coordinator before has not recorded.

    Args:
      version: Newest version of the members.
      statistics: Step statistics of its iteration.

    Raises:
      Relinquished: If one is not known.
    """
    found = []
    known = self._inheritance.iterations if self._inheritance else {}
    for each in range(self._store.version, version):
      iteration = known.get(each)
      numbers = iteration.statistics if iteration else None
      if each == version - 1 and numbers is None:
        numbers = statistics
      if iteration is None or not numbers:
        raise Relinquished(f'The statistics of version {each} are not known.')
      found.append((numbers, iteration.assignment.members))
    return found

  def _remove_lost(self) -> None:
    """Removes lost members; the scheme counts them until `begin`."""
    lost = self.rendezvous.remove_lost()
    if self._has_started:
      self._departed = lost | self._departed

  def _form(self) -> None:
    """Orders all members to connect over a forest that is packed for them."""
    members = [
      index
      for index, member in enumerate(self._members)
      if member.stream
      and (not self._has_started or self.in_scheme(index))
      and index not in self._departed
      and self.rendezvous.admits(index)
    ]
    if not self._has_started and not (
      self.rendezvous.local in members
      and self._reception.quorum.is_reached(members)
    ):
      self.rendezvous.reset_to_first_epoch()
      return
    if self.links.begin_survey(members) or self.rendezvous.begin_plan(members):
      return
    try:
      version = self._store.version + len(self._unrecorded)
      orders = self.rendezvous.form(members, version)
    except Unreachable as error:
      self.lose(error.worker, str(error))
      return
    self.catching_up.complete(members, version)
    for index, order in orders:
      self._members[index].progress.last_change = clock.monotonic()
      self._reception.send_to_worker(index, order)

  def _record_drift(self, row: Mapping[str, Any]) -> None:
    self._coordinator.recorder.rows.event(
      {'event': 'drift', 'time': self._now(), **row}
    )

  def _record_lost_state(self, index: int, reason: str) -> None:
    """Lists the state of a worker's inner optimizer as lost, if it had one."""
    member, recorder = self._members[index], self._coordinator.recorder
    if self._store.has_inner_optimizer and member.counted is not None:
      if not self._store.has_residuals:  # Else it has been recorded.
        recorder.record_lost_residual(index, self._now(), None)
      worker_states.record_loss(recorder, member, index, self._now(), reason)

  def _record_forgotten(self, index: int) -> None:
    """Records that a worker's residual is lost, if it had one."""
    if self._store.has_residuals:
      self._coordinator.recorder.record_lost_residual(index, self._now(), None)
