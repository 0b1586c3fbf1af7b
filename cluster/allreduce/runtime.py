"""The runtime of reduced routes, as its coordinator runs it.

The coordinator has the worker of its process tell what has been summed, and deals each
iteration while the one before it is computed: nobody waits for it, but where
the run is looked at (evaluations, checkpoints) or workers come and go.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from cluster.allreduce.admission import (
  AllreduceReception,
  IterationCompleted,
  ResidualsCollected,
)
from cluster.allreduce.formation import Formation
from cluster.allreduce.memberships import Generations
from cluster.allreduce.step_statistics import Booking, Books
from cluster.allreduce.store import ReplicaStore
from cluster.coordinator import Coordinator
from cluster.membership.events import (
  Event,
  WorkerJoined,
  WorkerLost,
  WorkerMessage,
)
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.messages import ToReplica
from cluster.probing.events import ForestPacked, LinksMeasured
from cluster.probing.link_manager import Linking
from cluster.probing.traffic_log import Carrying
from cluster.process.deadlines import Deadlines
from cluster.process.exits import Unmendable
from cluster.traffic import Traffic
from learning.learning import Overlap


class AllreduceRuntime(Generations):
  """Replicas of the learner.

  Attributes:
    time: Seconds since the start, of this process and those before it.
    coordinator: Asks the scheme.
  """

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    reception: AllreduceReception,
    books: Books,
    overlap: Overlap,
    iteration_bytes: Callable[[int, int], int],
    store: ReplicaStore,
    formation: Formation,
    linking: Callable[[Callable[[int, ToReplica], None]], Linking],
    settings: Settings,
    deadlines: Deadlines,
    local: Callable[[str], Callable[[], object]] | None,
  ):
    """Listens to nobody yet.

    Args:
      coordinator: Asks the scheme.
      reception: Talks to the workers.
      books: Of iterations.
      overlap: What sending gradients overlaps with in the coordinator's process.
      iteration_bytes: As of `Booking`.
      store: Parameter store, of the coordinator's replica.
      formation: Membership epochs.
      linking: Creates the link manager, given the function that sends a message
        to a worker.
      settings: As of `EventLoop`.
      deadlines: As of `EventLoop`.
      local: As of `EventLoop`.
    """
    super().__init__(
      coordinator=coordinator,
      reception=reception,
      store=store,
      formation=formation,
      linking=linking,
      settings=settings,
      deadlines=deadlines,
      local=local,
    )
    self._carrying = Carrying(self._formation, Traffic(coordinator.recorder))
    self._booking = Booking(
      coordinator, books, reception.members, iteration_bytes
    )
    self._pausing, self._overlap = False, overlap
    # Who keeps some of its gradients says it before a checkpoint: at which
    # version all have, and in which generation they were asked, and when.
    self._collected = 0
    self._asked: tuple[int, float] | None = None
    # Traffic of members, as of the last check.
    self._sent: list[tuple[int, int, messages.StateDigest]] = []
    coordinator.attach(release=self._released, wake_at=lambda time: None)

  def warm_up(self) -> None:
    """Waits until all workers have compiled and are connected.

    Raises:
      Unmendable: If one does not; says what is known of it.
    """
    self._wait(
      self._reception.listen(),
      done=self._is_connected,
      missing=lambda: self._reception.missing() or self._linking.waits,
    )

  def start(self) -> None:
    """Releases the first iterations."""
    super().start()
    self._deal()

  def resume(self) -> None:
    """Goes on from a checkpoint as from a barrier, with today's workers."""
    self.coordinator.rejoin(self._before, self.time)
    self.start()

  def pause(self) -> bool:
    """Returns whether nothing is under way; if not, it soon is so.

    The next step goes on.
    """
    self._pausing = True
    if self._check.is_running or not self._still:
      return False
    if self._check.agreement.agreed < self._store.version:
      self._sent.clear()
      self._check.begin(self._store.version, lambda: None)
      return False
    version, generation = self._store.version, self._formation.generation
    if self._store.keeps and self._collected < version:
      if self._asked is None or self._asked[0] < generation:
        self._asked = generation, time.monotonic()
        for index in self._formation.members:
          self._say(index, messages.CollectResiduals(generation))
      return False
    self._pausing, self._asked = False, None
    return True

  def step(self) -> None:
    """Waits for an event, at most for a beat, and does what follows.

    Raises:
      Unmendable: If the run cannot go on.
      FloatingPointError: If a loss or a gradient is not finite.
    """
    if not self._pausing and self._still:
      self._deal()  # After a pause.
    self._take(max(self._check_at - time.monotonic(), 0.0))
    self._check_progress()
    if self._asked and time.monotonic() - self._asked[1] > self._start_s:
      raise Unmendable('Workers do not say what they keep of gradients.')

  def state(self) -> dict[str, Any]:
    """Returns all that a run goes on from, between two iterations."""
    return {
      'time': self.time,
      'coordinator': self.coordinator.state(),
      'store': self._store.state(),
      'lives': [member.admissions for member in self._members],
      'drift': self._check.agreement.totals,
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken, with other workers perhaps."""
    self.time = state['time']
    self._before = state['coordinator']
    self._store.restore(state['store'])
    for member, lives in zip(self._members, state['lives'], strict=False):
      member.admissions = lives
    self._collected = self._store.version
    self._check.agreement.totals |= state.get('drift', {})

  def summary(self) -> dict[str, Any]:
    """Returns what summary.json says of this runtime alone."""
    own = {
      'generations': self._formation.generation + 1,
      'overlap': self._overlap,
      'drift': self._check.agreement.totals,
    }
    return super().summary() | own

  def _released(self, index: int) -> None:
    """Enters the phase `push`: replicas receive sums, and never pull."""
    self.coordinator.workers[index].phase = 'push'

  def _handle(self, event: Event) -> None:
    match event:
      case WorkerJoined():
        self._ready(event)
      case WorkerLost():
        self._failed(event)
      case WorkerMessage():
        self._take_message(event.worker, event.message)
      case IterationCompleted():
        self._completed(event)
      case ResidualsCollected():
        self._collected = event.version
      case LinksMeasured():
        self._measured(event)
      case ForestPacked():
        self._linking.packed(event, self.time)

  def _take_message(
    self, index: int, message: messages.FromWorker | messages.FromReplica
  ) -> None:
    match message:
      case messages.Connected():
        self._formed(index, message)
      case messages.ConnectionLost():
        self._broken(index, message)
      case messages.EpochStopped():
        self._stopped(index, message)
      case messages.StateDigest():
        self._checked(index, message)
      case messages.StateCompared():
        self._compared(index, message)
      case messages.ProbeAnswer():
        self._linking.answered(index, message)
      case messages.TrafficReport():
        self._linking.traffic(index, message)

  def _ready(self, event: WorkerJoined) -> None:
    if not self._admit(event):
      return
    index, ready = event.worker, event.ready
    if isinstance(ready, messages.ReplicaReady):
      self._formation.came(index, ready.executor, ready.handover)
    if not self._started:
      if self._formation.waits:
        self._form()
      return
    logging.info('Worker %d is back.', index)
    if self._still:  # Nobody would take it in.
      self._deal()

  def _formed(self, index: int, message: messages.Connected) -> None:
    if not self._is_current(index, message):
      return
    self._carrying.forming(index, self._members[index].incarnation, message)
    if self._formation.formed(index, message.digest):
      self._check.begin(
        message.version, self._begin_generation, self._formation.digests
      )

  def _begin_generation(self) -> None:
    """Begins to sum: all members are connected, and hold the same state."""
    version = self._check.agreement.agreed
    self._settle()
    self._running = True
    self._linking.formed()
    self._dealing.begin(self._store.version)
    if self._started:
      self._deal()
    self._carrying.formed(self.time, version, self._why)

  def _settle(self) -> None:
    """Books what could not be before all members had the newest version."""
    if self._owed:
      owed, self._owed = self._owed, None
      self._book(*owed)
    left, self._left = self._left, {}
    for index in sorted(left):
      if self._store.keeps:
        self.coordinator.recorder.forgot(index, self.time, None)
      self.coordinator.leave(index, self.time, left[index])

  def _checked(self, index: int, message: messages.StateDigest) -> None:
    """Takes in what a member holds, and has sent."""
    if self._is_current(index, message):
      self._sent.append((index, self._members[index].incarnation, message))
      self._check.add_digest(index, message.version, message.digest)

  def _compared(self, index: int, message: messages.StateCompared) -> None:
    """Takes in how far a member's state was from the reference."""
    if self._is_current(index, message):
      self._check.add_difference(
        index, message.version, message.difference, message.digest
      )

  def _completed(self, event: IterationCompleted) -> None:
    """An iteration has been summed, and applied.

    Before it is evaluated, or is the last one, replicas are compared: what is
    looked at, all have.
    """
    version, members = self._store.version, self._formation.members
    if event.version != version:
      return
    self._formation.summed()
    if self._looks(sum(self.coordinator.workers[k].examples for k in members)):
      if not self._running:
        return  # The generation ends: it is booked when the next has formed.
      self._sent.clear()
      self._check.begin(version + 1, lambda: self._agreed(event.statistics))
    else:
      self._book(event.statistics, members)
      self._deal()

  def _agreed(self, numbers: Sequence[float]) -> None:
    """Goes on with an iteration after which all hold the same state."""
    self._book(numbers, self._formation.members)
    for index, incarnation, message in self._sent:
      self._carrying.checked(index, incarnation, message, self.time)
    self._deal()

  def _book(self, numbers: Sequence[float], members: Sequence[int]) -> None:
    """Tells the scheme of an iteration that has been ended.

    Args:
      numbers: The books.
      members: Who took part.

    Raises:
      FloatingPointError: If a loss or a gradient is not finite.
    """
    version = self._store.version
    # Others compute what is dealt ahead; who is lost is not yet gone.
    ahead = self._dealing.newest > version
    began, stage = self._dealing.at(version)
    joining = [k for k in self._newcomers if not (ahead or self._in_lead(k))]
    self._booking(
      numbers,
      members,
      joining,
      dealt_at=began - (self._began or 0.0),
      stage=stage,
      time=self.time,
    )
    self._linking.iterated(self.time, self._booking.exposed_s)

  def _deal(self) -> None:
    """Deals what can be dealt of this iteration and of the next."""
    if not self._running or self._over or self._check.is_running:
      return
    version, members = self._store.version, self._formation.members
    if self._dealing.newest < version:
      # Others have come too late for the iteration that has been begun.
      if any(map(self._in_lead, self._newcomers)):
        self._stop('somebody has come', ends=True)
        return
      if why := self._turns:
        self._stop(why, ends=True)
        return
      if self._pausing:
        return
      for index in members:
        self._members[index].pace.moved = time.monotonic()
      self._dealing.send(self._formation.generation, version, members)
    examples = sum(
      self.coordinator.workers[index].examples for index in members
    )
    still = self._pausing or self._looks(examples) or self._newcomers
    still = still or self._turns
    if self._dealing.newest == version and not still:
      self._dealing.send(self._formation.generation, version + 1, members)

  def _looks(self, examples: int) -> bool:
    """Returns whether the run is looked at after so many examples more."""
    recorder = self.coordinator.recorder
    return recorder.looks(recorder.accounting.examples + examples)
