"""The runtime of reduced routes, as its lead runs it.

The lead has the worker of its process tell what has been summed, and deals each
iteration while the one before it is computed: nobody waits for it, but where
the run is looked at (evaluations, checkpoints) or workers come and go.

Workers take part in *generations*: a set of them, and a forest.  When one is
lost, or a link, the lead stops the generation.  All who live say which version
they have.  They differ by one at most, as nobody ends an iteration without the
parts of all.  If somebody has ended it, all the others get the learner from
there, and then it is booked; if not, it is repeated by those who live.  Who
comes back waits for the end of an iteration, and gets the learner likewise.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from cluster.distributed.leading import Leading
from cluster.distributed.links.linking import Linking
from cluster.distributed.reduced.booking import Booking
from cluster.distributed.reduced.books import Books
from cluster.distributed.reduced.dealing import Dealing
from cluster.distributed.reduced.formation import Cut, Formation
from cluster.distributed.reduced.holder import ReplicaHolder
from cluster.distributed.reduced.reception import ReducedReception
from cluster.lead import Lead
from cluster.transport.heart import BEATS, Unmendable


class ReducedRuntime(Leading):
  """Replicas of the learner.

  Attributes:
    time: Seconds since the start, of this process and those before it.
    lead: Asks the scheme.
  """

  def __init__(
    self,
    *,
    lead: Lead,
    holder: ReplicaHolder,
    reception: ReducedReception,
    formation: Formation,
    linking: Callable[[Callable[[int, dict[str, Any]], None]], Linking],
    books: Books,
    iteration_bytes: Callable[[int], int],
    **of_leading: Any,
  ):
    """Listens to nobody yet.

    Args:
      lead: Asks the scheme.
      holder: Of the learner; the lead's.
      reception: Talks to the workers.
      formation: Makes groups.
      linking: Makes what knows the links, given what sends to a worker.
      books: Of iterations.
      iteration_bytes: Returns what crosses the network in an iteration of so
        many workers.
      **of_leading: As of `Leading`.
    """
    super().__init__(lead=lead, reception=reception, **of_leading)
    self._holder = holder
    self._reception = reception
    self._formation = formation
    self._linking = linking(self._say)
    self._booking = Booking(lead, books, reception.members, iteration_bytes)
    self._running = self._started = False
    self._pausing = False
    self._gently = False  # Whether members were told to end an iteration first.
    # Books of an iteration that the lead's replica has not ended, but another;
    # and who took part in it.
    self._owed: tuple[list[float], tuple[int, ...]] | None = None
    self._left: dict[int, str] = {}  # Lost workers that the lead still counts.
    self._dealing = Dealing(lead, self._say)
    self._reactions = {
      'ready': self._ready,
      'failed': self._failed,
      'unmendable': self._unmendable,
      'formed': self._formed,
      'broken': self._broken,
      'stopped': self._stopped,
      'checked': self._checked,
      'completed': self._completed,
      'answered': self._linking.answered,
      'measured': self._measured,
      'traffic': self._linking.traffic,
      'packed': lambda event: self._linking.packed(event, self.time),
    }
    lead.attach(release=lambda index: None, wake_at=lambda time: None)

  def warm_up(self) -> None:
    """Waits until all workers have compiled and are connected.

    Raises:
      Unmendable: If one does not; says what is known of it.
    """
    self._wait(
      self._reception.listen(),
      done=lambda: self._running,
      missing=lambda: self._reception.missing() or self._linking.waits,
    )

  def start(self) -> None:
    """Releases the first iterations."""
    self._began = time.monotonic() - self.time
    self._started = True
    self.lead.start(self.time)
    self._deal()

  def resume(self) -> None:
    """Goes on from a checkpoint as from a barrier, with today's workers."""
    self.lead.rejoin(self._before, self.time)
    self.start()

  def pause(self) -> bool:
    """Returns whether nothing is under way; if not, it soon is so.

    The next step goes on.
    """
    self._pausing = not self._still
    return self._still

  def step(self) -> None:
    """Waits for an event, at most for a beat, and does what follows.

    Raises:
      Unmendable: If the run cannot go on.
      FloatingPointError: If a loss or a gradient is not finite.
      RuntimeError: If replicas differ.
    """
    if not self._pausing and self._still:
      self._deal()  # After a pause.
    self._take(max(self._look_at - time.monotonic(), 0.0))
    if time.monotonic() >= self._look_at:
      self._lose_silent()
      self._lose_overdue()
      self._look_at = time.monotonic() + self._timeout_s / BEATS
    over = self.lead.journal.finished
    self._reception.looked = math.inf if over else time.monotonic()

  def state(self) -> dict[str, Any]:
    """Returns all that a run goes on from, between two iterations."""
    return {
      'time': self.time,
      'lead': self.lead.state(),
      'holder': self._holder.state(),
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken, with other workers perhaps."""
    self.time = state['time']
    self._before = state['lead']
    self._holder.restore(state['holder'])

  def close(self) -> None:
    """Ends the run for all workers, however it went."""
    self._reception.looked = math.inf
    self.lead.close(self.time)
    self._started = False
    self._reception.close(finished=self.lead.journal.finished)

  def summary(self) -> dict[str, Any]:
    """Returns what summary.json says of this runtime alone."""
    return {
      'virtual_s': None,
      'lives': [member.lives for member in self._members],
      'generations': self._formation.generation + 1,
      'late_compilations': sum(
        sum(member.compilations.values()) for member in self._members
      ),
    }

  @property
  def _still(self) -> bool:
    """Whether no iteration is under way that has been dealt."""
    return self._running and self._dealing.newest < self._holder.version

  def _ready(self, event: dict[str, Any]) -> None:
    if not self._admits(event):
      return
    index = event['worker']
    self._formation.came(index, event['executor'], event['handover'])
    if not self._started:
      if self._formation.waits:
        self._form()
      return
    logging.info('Worker %d is back.', index)
    if self._still:  # Nobody would take it in.
      self._deal()

  def _formed(self, event: dict[str, Any]) -> None:
    if not self._is_current(event):
      return
    if self._formation.formed(event['worker'], event['digest']):
      self._formation.compare(event['version'])
      self._settle()
      self._running = True
      self._linking.formed()
      self._dealing.begin(self._holder.version)
      if self._started:
        self._deal()

  def _agree(self) -> None:
    """Compares what all members hold in the end, if they tell in time.

    Raises:
      RuntimeError: If some differ; names them.
    """
    formation, version = self._formation, self._holder.version
    for index in formation.living:
      self._say(index, {'check': formation.generation})
    deadline = time.monotonic() + self._timeout_s
    while self._running and formation.agreed < version:
      if time.monotonic() >= deadline:
        logging.warning('Not all have told what they hold in the end.')
        return
      self._take(deadline - time.monotonic())

  def _settle(self) -> None:
    """Books what could not be before all members had the newest version."""
    if self._owed:
      owed, self._owed = self._owed, None
      self._book(*owed)
    left, self._left = self._left, {}
    for index in sorted(left):
      self.lead.leave(index, self.time, left[index])

  def _completed(self, event: dict[str, Any]) -> None:
    """An iteration has been summed, and applied."""
    if event['version'] == self._holder.version:
      self._formation.summed()
      self._book(event['books'], self._formation.members)
      if self.lead.journal.finished:
        self._agree()
      self._deal()

  def _book(self, numbers: list[float], members: Sequence[int]) -> None:
    """Tells the scheme of an iteration that has been ended.

    Args:
      numbers: The books.
      members: Who took part.

    Raises:
      FloatingPointError: If a loss or a gradient is not finite.
    """
    version = self._holder.version
    looks = self._looks(sum(self.lead.workers[k].examples for k in members))
    self._dealing.check = (
      looks or self._dealing.check
    )  # What is looked at, all have.
    # Others compute what is dealt ahead; who is lost is not yet gone.
    ahead = self._dealing.newest > version
    joining = [k for k in self._newcomers if not (ahead or self._in_lead(k))]
    self._booking(
      numbers,
      members,
      joining,
      dealt_at=self._dealing.at(version) - (self._began or 0.0),
      time=self.time,
    )
    self._linking.iterated(self.time, self._booking.exposed_s)

  def _deal(self) -> None:
    """Deals what can be dealt of this iteration and of the next."""
    if not self._running or self.lead.journal.finished:
      return
    version, members = self._holder.version, self._formation.members
    if self._dealing.newest < version:
      # Others have come too late for the iteration that has been begun.
      if any(map(self._in_lead, self._newcomers)):
        self._stop('somebody has come', ends=True)
        return
      if why := self._linking.turns:
        self._stop(why, ends=True)
        return
      if self._pausing:
        return
      for index in members:
        self._members[index].pace.moved = time.monotonic()
      self._dealing.send(self._formation.generation, version, members)
    examples = sum(self.lead.workers[index].examples for index in members)
    still = self._pausing or self._looks(examples) or self._newcomers
    still = still or self._linking.turns
    if self._dealing.newest == version and not still:
      self._dealing.send(self._formation.generation, version + 1, members)

  def _looks(self, examples: int) -> bool:
    """Returns whether the run is looked at after so many examples more."""
    journal = self.lead.journal
    return journal.looks(journal.ledger.examples + examples)

  def _say(self, index: int, header: Mapping[str, Any]) -> None:
    if stream := self._members[index].stream:
      self._reception.send(stream, dict(header))

  @property
  def _newcomers(self) -> list[int]:
    """Workers that are ready, and of no generation yet."""
    return [
      index
      for index, member in enumerate(self._members)
      if member.stream and index not in self._formation.members
    ]

  def _in_lead(self, index: int) -> bool:
    """Returns whether a worker is one for the scheme."""
    return self.lead.workers[index].phase is not None

  def _failed(self, event: dict[str, Any]) -> None:
    index, member = event['worker'], self._members[event['worker']]
    if event['life'] == member.life and member.stream is not None:
      self._lose(index, event['reason'])

  def _lose(self, index: int, reason: str) -> None:
    """A worker is gone, or as good as gone."""
    member = self._members[index]
    if member.stream is None:  # With another.
      return
    if index == 0:
      raise Unmendable(f'The worker of the lead is lost: {reason}')
    if self._started and not self._formation.mends:
      raise Unmendable(f'Worker {index} is lost, and XLA needs all: {reason}')
    logging.warning('Worker %d is lost: %s', index, reason)
    stream, member.stream = member.stream, None
    self._reception.send(stream, {'end': 'left', 'reason': reason})
    self._linking.lose(index, reason)
    if index in self._formation.members:
      self._formation.gone(index, reason)
      self._stop(f'worker {index} is lost')
    elif self._started and self._in_lead(index) and index not in self._left:
      self.lead.leave(index, self.time, reason)  # It was to come in.

  def _stop(self, why: str, *, ends: bool = False) -> None:
    """Ends the generation, if that has not been done yet.

    Args:
      why: For the log.
      ends: Whether members end the iteration first that they are in.
    """
    begins = self._formation.stop()
    if begins:
      logging.info('Generation %d begins: %s.', self._formation.generation, why)
      self._running = False
    if begins or (self._gently and not ends):
      self._gently = ends
      self._ask({'stop': self._formation.generation, 'ends': ends})
    self._go_on()

  def _ask(self, header: Mapping[str, Any]) -> None:
    """Tells all members something that they are to answer from now on."""
    for index in self._formation.awaited:
      pace = self._members[index].pace
      if not pace.computes:
        pace.moved = time.monotonic()
      self._say(index, header)

  def _stopped(self, event: dict[str, Any]) -> None:
    if self._is_current(event):
      self._formation.stopped(event['worker'], event['version'], event['books'])
      self._go_on()

  def _go_on(self) -> None:
    """Begins the next generation, once all who live have ended the last."""
    ended = self._formation.ended()
    if ended is None:
      return
    version, books = ended
    if version <= self._holder.version:
      self._owed = None  # Whoever had it is lost, too.
    elif self._owed is None:
      self._owed = books, self._formation.members
    self._bury()
    self._form()

  def _bury(self) -> None:
    """Notes who is lost; the lead counts them until all is booked."""
    buried = self._formation.buried()
    if self._started:
      self._left = buried | self._left

  def _form(self) -> None:
    """Lets all who take part connect, over a forest of them."""
    members = [
      index
      for index, member in enumerate(self._members)
      if member.stream
      and (not self._started or self._in_lead(index))
      and index not in self._left
    ]
    if not self._started and len(members) < len(self._members):
      self._formation.wait()
      return
    if self._linking.measures(members):
      return
    try:
      version = self._holder.version + (self._owed is not None)
      groups = self._formation.form(members, version)
    except Cut as cut:
      self._lose(cut.worker, str(cut))
      return
    for index, said in groups:
      self._members[index].pace.moved = time.monotonic()
      self._say(index, {'group': said})

  def _measured(self, event: dict[str, Any]) -> None:
    """Goes on with what is known of the links now."""
    self._linking.measured(event, self.time)
    self._bury()
    self._form()

  def _broken(self, event: dict[str, Any]) -> None:
    if not self._is_current(event):
      return
    logging.warning(
      'Worker %d has lost worker %s: %s',
      event['worker'],
      event['peer'],
      event['reason'],
    )
    self._formation.suspect(event['worker'], event['peer'])
    self._stop('a connection is lost')

  def _checked(self, event: dict[str, Any]) -> None:
    """Compares what replicas hold, once all have told.

    Raises:
      RuntimeError: If some differ; names them.
    """
    if self._is_current(event):
      self._formation.digest(event['version'], event['worker'], event['digest'])

  def _is_current(self, event: dict[str, Any]) -> bool:
    """Returns whether it is of a member of this generation, that lives."""
    index = event['worker']
    return (
      event['generation'] == self._formation.generation
      and event['life'] == self._members[index].life
      and self._members[index].stream is not None
    )

  def _lose_overdue(self) -> None:
    """Gives up who holds up an iteration, or the next generation."""
    if self._still:
      return
    formation, workers = self._formation, self.lead.workers
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
