"""Transitions between the generations (membership epochs) of an allreduce run.

Workers take part in *generations*: a set of them, and a forest.  When one is
lost, or a link, the coordinator stops the generation.  All who live say which version
they have.  They differ by one at most, as nobody ends an iteration without the
parts of all.  If somebody has ended it, all the others get the learner from
there, and then it is booked; if not, it is repeated by those who live.  Who
comes back waits for the end of an iteration, and gets the learner likewise.

Members compare their states when a generation has formed, and before an
iteration is booked after which the run is evaluated, saved or over.  Those that
differ from the reference are repaired: see `checking`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from cluster.allreduce.admission import AllreduceReception
from cluster.allreduce.assignment import Dealing
from cluster.allreduce.checking import StateCheck
from cluster.allreduce.formation import Cut, Formation
from cluster.allreduce.store import ReplicaStore
from cluster.coordinator import Coordinator
from cluster.membership.event_loop import EventLoop
from cluster.membership.events import WorkerLost
from cluster.membership.process import Settings
from cluster.network.messages import (
  Connected,
  ConnectionLost,
  EpochStopped,
  StateCompared,
  StateDigest,
  StopEpoch,
  ToReplica,
)
from cluster.probing.events import LinksMeasured
from cluster.probing.link_manager import Linking
from cluster.process.deadlines import Deadlines
from cluster.process.exits import Unmendable


class Generations(EventLoop):
  """The part of a `AllreduceRuntime` that begins and ends generations."""

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    store: ReplicaStore,
    reception: AllreduceReception,
    formation: Formation,
    linking: Callable[[Callable[[int, ToReplica], None]], Linking],
    settings: Settings,
    deadlines: Deadlines,
    local: Callable[[str], Callable[[], object]] | None,
  ):
    """There is none yet; arguments as of `AllreduceRuntime`."""
    super().__init__(
      coordinator=coordinator,
      reception=reception,
      settings=settings,
      deadlines=deadlines,
      local=local,
    )
    self._store = store
    self._formation = formation
    self._linking = linking(self._say)
    self._check = StateCheck(
      formation,
      say=self._say,
      lose=self._lose,
      record=self._record_drift,
      forget=self._forget,
      limit_s=max(self._start_s, 2 * self._timeout_s),
    )
    self._dealing = Dealing(coordinator, self._say)
    self._running = False
    self._why = 'all are there'  # The generation has begun.
    self._gently = False  # Whether members were told to end an iteration first.
    # Books of an iteration that the coordinator's replica has not ended, but another;
    # and who took part in it.
    self._owed: tuple[Sequence[float], tuple[int, ...]] | None = None
    self._left: dict[
      int, str
    ] = {}  # Lost workers that the coordinator still counts.

  @property
  def _still(self) -> bool:
    """True if no iteration that was assigned is still running."""
    return self._running and self._dealing.newest < self._store.version

  def _say(self, index: int, message: ToReplica) -> None:
    if stream := self._members[index].stream:
      self._reception.send(stream, message)

  @property
  def _newcomers(self) -> list[int]:
    """Workers that are ready and admitted, and of no generation yet."""
    return [
      index
      for index, member in enumerate(self._members)
      if member.stream
      and index not in self._formation.members
      and self._formation.admits(index)
    ]

  @property
  def _turns(self) -> str:
    """Reason to end the generation after this iteration; '' for none."""
    return self._linking.turns or self._formation.retries

  def _is_connected(self) -> bool:
    """Returns whether the first members are connected.

    One of them may have had to wait until a failed link is tried again.
    """
    if self._formation.waits:
      self._form()
    return self._running

  def _in_lead(self, index: int) -> bool:
    """Returns whether a worker is one for the scheme."""
    return self.coordinator.workers[index].phase is not None

  def _failed(self, event: WorkerLost) -> None:
    index, member = event.worker, self._members[event.worker]
    is_newest = event.incarnation == member.incarnation
    if is_newest and member.stream is not None:
      self._lose(index, event.reason)

  def _lose(self, index: int, reason: str) -> None:
    """A worker is gone, or as good as gone."""
    member = self._members[index]
    if member.stream is None:  # With another.
      return
    if index == 0:
      raise Unmendable(f'The worker of the coordinator is lost: {reason}')
    if not (self._formation.mends or self._formation.waits):
      raise Unmendable(f'Worker {index} is lost, and XLA needs all: {reason}')
    logging.warning('Worker %d is lost: %s', index, reason)
    stream, member.stream = member.stream, None
    self._reception.evict(index, stream, reason)
    self._linking.lose(index, reason)
    if index in self._formation.members:
      self._formation.gone(index, reason)
      self._stop(f'worker {index} is lost')
    elif self._started and self._in_lead(index) and index not in self._left:
      self.coordinator.leave(index, self.time, reason)  # It was to come in.

  def _stop(self, why: str, *, ends: bool = False) -> None:
    """Ends the generation, if that has not been done yet.

    Args:
      why: For the log.
      ends: Whether members end the iteration first that they are in.
    """
    begins = self._formation.stop()
    if begins:
      self._check.cancel()
      logging.info('Generation %d begins: %s.', self._formation.generation, why)
      self._running, self._why = False, why
    if begins or (self._gently and not ends):
      self._gently = ends
      self._ask(StopEpoch(self._formation.generation, ends))
    self._go_on()

  def _ask(self, message: ToReplica) -> None:
    """Tells all members something that they are to answer from now on."""
    for index in self._formation.awaited:
      pace = self._members[index].pace
      if not pace.computes:
        pace.moved = time.monotonic()
      self._say(index, message)

  def _stopped(self, index: int, message: EpochStopped) -> None:
    if self._is_current(index, message):
      self._formation.stopped(index, message.version, message.statistics)
      self._go_on()

  def _go_on(self) -> None:
    """Begins the next generation, once all who live have ended the last."""
    ended = self._formation.ended()
    if ended is None:
      return
    version, books = ended
    if version <= self._store.version:
      self._owed = None  # Whoever had it is lost, too.
    elif self._owed is None:
      self._owed = books, self._formation.members
    self._bury()
    self._form()

  def _bury(self) -> None:
    """Notes who is lost; the coordinator counts them until all is booked."""
    buried = self._formation.buried()
    if self._started:
      self._left = buried | self._left

  def _form(self) -> None:
    """Tells all members to connect over a forest that is packed for them."""
    members = [
      index
      for index, member in enumerate(self._members)
      if member.stream
      and (not self._started or self._in_lead(index))
      and index not in self._left
      and self._formation.admits(index)
    ]
    if not self._started and len(members) < len(self._members):
      self._formation.wait()
      return
    if self._linking.measures(members):
      return
    try:
      version = self._store.version + (self._owed is not None)
      groups = self._formation.form(members, version)
    except Cut as cut:
      self._lose(cut.worker, str(cut))
      return
    for index, message in groups:
      self._members[index].pace.moved = time.monotonic()
      self._say(index, message)

  def _measured(self, event: LinksMeasured) -> None:
    """Goes on with what is known of the links now."""
    self._linking.measured(event, self.time)
    self._bury()
    self._form()

  def _broken(self, index: int, message: ConnectionLost) -> None:
    if not self._is_current(index, message):
      return
    logging.warning(
      'Worker %d has lost worker %s: %s', index, message.peer, message.reason
    )
    if not self._formation.mends:
      raise Unmendable(f'Worker {index}: {message.reason}')
    self._formation.suspect(index, message.peer)
    self._stop('a connection is lost')

  def _is_current(
    self,
    index: int,
    message: Connected
    | ConnectionLost
    | EpochStopped
    | StateCompared
    | StateDigest,
  ) -> bool:
    """Returns whether a message is of this generation and a living member."""
    is_living = self._members[index].stream is not None
    return is_living and message.epoch == self._formation.generation

  def _record_drift(self, row: Mapping[str, Any]) -> None:
    self.coordinator.recorder.drift({'time': self.time, **row})

  def _forget(self, index: int) -> None:
    """Records that what a worker kept of gradients is lost, if it kept any."""
    if self._store.keeps:
      self.coordinator.recorder.forgot(index, self.time, None)

  def _check_processes(self) -> None:
    self._lose_silent()
    self._lose_overdue()

  def _lose_overdue(self) -> None:
    """Gives up who holds up an iteration, or the next generation."""
    if self._check.is_running:
      moved = [member.pace.moved for member in self._members]
      for index in self._check.overdue(moved.__getitem__):
        self._lose(index, 'It did not compare its state in time.')
      return
    if self._still:
      return
    formation, workers = self._formation, self.coordinator.workers
    running = [
      (index, self._members[index].pace, workers[index].examples)
      for index in (formation.living if self._running else formation.awaited)
    ]
    now = time.monotonic()
    overdue = self._deadlines.overdue(running, now=now, obeyed=0)
    if [index for index, _ in overdue] == [0] and not running[0][1].computes:
      # If in doubt, one of those who can come back.
      others = [each for each in running if each[0]]
      overdue = self._deadlines.overdue(others, now=now, obeyed=0) or overdue
    for index, reason in overdue:
      self._lose(index, reason)
