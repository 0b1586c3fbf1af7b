"""A worker of a reduced run: a replica of the learner, which all keep alike.

All begin with the state of one of them.  What each applies is the same sum, so
that they stay equal on like processors; on unlike ones they drift by rounding,
and compare their states from time to time (`reduced.checking`).

It computes what the coordinator has dealt, adds its gradient to those of the others,
and applies the sum.  What it needs for the next iteration has come before this
one ends, so that it waits for nobody but the others' gradients.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
from cluster.allreduce.step_statistics import Books, Entry
from cluster.allreduce.sums.memory import Memory, Nothing
from cluster.allreduce.sums.summing import Summing
from cluster.membership import handover
from cluster.membership.process import Settings
from cluster.membership.session import Session, exit_on_error
from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.network.heartbeat import BEATS
from cluster.probing import traffic
from cluster.probing.measurer import Measurer
from cluster.process.deadlines import Pace
from cluster.process.faults import Faults, Kind, Phase, flipped
from cluster.process.host import Host
from cluster.speed.speed import Speed
from learning import compilations, drift
from learning.digest import digest
from learning.learning import Gradient, Learner

# Steps of who forms a generation and has the learner: who has not holds it up.
_FETCHED = 2**40
# Beats that the executor may not come to: less than 2 timeouts.
_HANGS = round(1.8 * BEATS)


class Replica:
  """A worker that holds a copy of the learner, from compilation to the end.

  Attributes:
    index: Which worker.
    learner: What it learns.
  """

  def __init__(
    self,
    index: int,
    *,
    gradient: Gradient,
    learner: Learner,
    summing: Summing,
    books: Books,
    batching: Batching,
    speed: Speed | None,
    faults: Faults,
    settings: Settings,
    hung: Callable[[str], None],
    completed: Callable[[IterationCompleted | ResidualsCollected], None],
  ):
    """Connects to nobody yet.

    Args:
      index: Which worker.
      gradient: Computes.
      learner: Applies; at the initial version, or one that was restored.
      summing: Sums what workers have computed.
      books: Of all workers, at the end of the pool.
      batching: How many examples iterations have.
      speed: How long iterations take at least; None for as long as they take.
      faults: What goes wrong on purpose.
      settings: What all processes agree on.
      hung: Called from another thread with what the coordinator has said, if this
        worker does not heed it: 'left', 'lost', 'over'; or 'executor'.
      completed: Told of each iteration once it is applied.
    """
    self.index = index
    self.learner = learner
    self._gradient, self._summing = gradient, summing
    self._books, self._factors = books, books.factors
    self._batching = batching
    self._host = Host(index, batching, speed)
    self._faults = faults
    self._coordinator, self._settings = '', settings
    self._hung, self._completed = hung, completed
    self._warm = False
    self._fresh = True  # What it holds may be another version than it says.
    self._preparing: threading.Thread | None = None
    self._pace = Pace()
    self._inbox = Inbox()
    self._measurer = Measurer(index, settings.address, settings.timeout_s)
    self._generation = self._stopped = -1
    self._together = False  # It may wait for others.
    self._last: list[float] = []  # Books of the iteration before.
    self._took_s = 0.0  # The last computation, without any delay.
    self._compiled: int | None = None
    # Version and digest of the state, if it has been digested.
    self._digested: tuple[int, str] | None = None
    self._digesting = threading.Lock()

  def warm_up(self) -> None:
    """Compiles everything that iterations need."""
    batching, own = self._batching, handover.copied(self._shared())
    # As one that is fetched.
    self.learner.restore(self._summing.placed(own['learner']))
    changing = batching.changes
    self._summing.warm_up(self.learner, batching.largest, changing=changing)

  @property
  def memory(self) -> Memory | Nothing:
    """The worker's codec state: residuals and replicated parts."""
    return self._summing.memory

  def __call__(self, coordinator: str) -> bool:
    """Takes part in the run until it is over.

    Args:
      coordinator: HOST:PORT of the coordinator.

    Returns:
      Whether it has finished; else it goes on from a checkpoint one day.

    Raises:
      SystemExit: With LOST if the coordinator is lost for too long, with 1 if it
        refuses this worker.
    """
    self._coordinator = coordinator
    with exit_on_error(self.index), self._host:
      while (end := self._session()).kind != 'over':
        logging.info('Worker %d joins again.', self.index)
    return end.is_finished

  def _session(self) -> messages.SessionEnd:
    """Works until the coordinator ends it, or is lost; returns what it has said."""
    self._pace, self._inbox, self._fresh = Pace(), Inbox(), True
    self._generation = self._stopped = -1
    with (
      Session[messages.ToReplica](
        self._coordinator,
        self.index,
        self._settings,
        schema=messages.TO_REPLICA,
        progress=self._progress,
        receive=self._take,
        hung=self._hung,
        on_end=self._end,
        is_blocked=lambda: self._together and not self._summing.heeds,
      ) as life,
      life.suppress_errors(self._faults),
    ):
      self._prepare(life)
      while not life.heartbeat.ended.is_set():
        self._heed(life, self._inbox.take())
    return life.heartbeat.end

  def _prepare(self, life: Session[messages.ToReplica]) -> None:
    """Gets ready for a new life."""
    if not self._warm:
      life.send(messages.Activity('compiling'))
      self.warm_up()
      self._warm = True
    settings = self._settings
    giving = handover.Handover(
      settings.address, settings.security, self._state_of
    )
    life.stack.callback(giving.close)
    address = self._summing.open()
    life.stack.callback(self._summing.close)
    if settings.adapt:
      telling = traffic.Telling(self._summing.traffic, life.send)
      life.stack.enter_context(telling)
    life.stack.callback(self._measurer.close)
    self._faults.happen(
      self._faults.due(self.index, life.incarnation, Phase.START)
    )
    life.send(
      messages.ReplicaReady(
        executor=address or giving.address,
        handover=giving.address,
        devices=settings.devices,
      )
    )

  def _take(self, message: messages.ToReplica) -> None:
    """Takes in what the coordinator says; in a thread of the heartbeat."""
    if isinstance(message, messages.StopEpoch) and not message.completes:
      self._stopped = message.epoch
      self._summing.abandon(before=message.epoch)
    self._inbox.put(message)

  def _end(self) -> None:
    """Wakes all waits of this session; runs in a thread of the heartbeat."""
    self._inbox.put(None)
    # What hangs must not keep the heartbeat from ending this process.
    threading.Thread(target=self._summing.abandon, daemon=True).start()

  def _progress(self) -> messages.Progress:
    # Others cannot tell who it is that holds up a sum.
    if self._summing.unanswered() > _HANGS:
      self._hung('executor')
    self._pace.follow(lambda: self._summing.steps)
    return self._pace.told()

  def _heed(
    self,
    life: Session[messages.ToReplica],
    message: messages.ToReplica | None,
  ) -> None:
    """Does what the coordinator has said."""
    match message:
      case messages.ConnectMembers():
        self._form(life, message)
      case messages.Assignment():
        # What was dealt ahead is of no use after an iteration that has failed.
        at = self._generation, self.learner.version
        current = at == (message.epoch, message.version)
        if current and at[0] >= self._stopped:
          self._iterate(life, message)
      case messages.ProbeOrder():
        life.send(self._measurer(message))
      case messages.CheckState():
        if message.epoch == self._generation >= self._stopped:
          life.send(messages.StateDigest(*self._digest_report()))
      case messages.CompareState():
        self._compare(life, message)
      case messages.CollectResiduals():
        self._collect(life, message.epoch)
      case messages.StopEpoch():
        self._stopped = message.epoch
        self._summing.abandon(before=message.epoch)
        # What it has brought from elsewhere is not of this run's line.
        life.send(
          messages.EpochStopped(
            epoch=message.epoch,
            version=0 if self._fresh else self.learner.version,
            statistics=[] if self._fresh else self._last,
          )
        )

  def _form(
    self,
    life: Session[messages.ToReplica],
    order: messages.ConnectMembers,
  ) -> None:
    """Connects to the others of a generation, with the learner of its version.

    Everybody checks the forest: it has come over the network.
    """
    settings, generation = self._settings, order.epoch
    self._generation = generation
    self._pace.begin(order.version)
    self._pace.transfer()
    with self._telling(life, generation):
      if order.source:
        self._fetch(life, order.version, *order.source)
      self._fresh = False
      self._pace.reach(_FETCHED)
      self._summing.form(order, max(settings.start_s, settings.timeout_s))
      life.send(messages.Connected(*self._digest_report()))

  def _fetch(
    self,
    life: Session[messages.ToReplica],
    version: int,
    worker: int,
    address: str,
  ) -> None:
    """Takes over the state of another worker, unless it has the same.

    A process that has just joined may hold another state of the same version:
    of an earlier coordinator, or the one that its own processor initialises.

    Raises:
      PeerLost: If it cannot be had.
    """
    if self.learner.version == version and not self._fresh:
      return
    same = self.learner.version == version
    state = self._fetched(
      life, version, worker, address, known=self._digest() if same else ''
    )
    if state is None:
      return
    if same:
      apart = _apart(self._shared(), state)
      logging.info(
        'Worker %d begins with the state of worker %d at version %d: its own '
        'differed by %.3g of its norm.',
        *(self.index, worker, version, apart),
      )
    self._take_over(version, state)
    self._last = []

  def _fetched(
    self,
    life: Session[messages.ToReplica],
    version: int,
    worker: int,
    address: str,
    known: str = '',
  ) -> Any:
    """Returns another worker's state of a version; None if it is known.

    Args:
      life: Whose coordinator is told.
      version: Which one.
      worker: Whose state.
      address: Where it can be fetched.
      known: Digest of the state that this worker has.

    Raises:
      PeerLost: If it cannot be had whole.
    """
    text = f'fetching version {version} from {address}'
    life.send(messages.Activity(text))
    settings = self._settings
    try:
      state, expected = handover.fetch(
        address,
        version,
        settings.security,
        settings.timeout_s,
        step=self._pace.step,
        known=known,
      )
    except TransportError as error:
      raise PeerLost(worker, str(error)) from error
    if state is None:
      return None
    state['learner'] = self._summing.placed(state['learner'])
    if (got := digest(state)) != expected:
      raise PeerLost(
        worker, f'expected a state of digest {expected}, got {got}'
      )
    return state

  def _take_over(self, version: int, state: Any) -> None:
    """Goes on with a state that was fetched."""
    with self._digesting:
      self.learner.restore(state['learner'])
      self.memory.recall(version, state['common'])
      self._digested = None

  def _compare(
    self,
    life: Session[messages.ToReplica],
    order: messages.CompareState,
  ) -> None:
    """Compares its state with the reference, and takes that over.

    Args:
      life: Whose coordinator is told.
      order: The order of the coordinator.
    """
    generation, version = order.epoch, order.version
    if generation != self._generation or generation < self._stopped:
      return
    self._pace.transfer()
    with self._telling(life, generation):
      state = self._fetched(life, version, *order.source)
      apart = _apart(self._shared(), state)
      if order.replaces:
        self.memory.forget()
      if order.replaces or apart <= drift.BOUND:
        self._take_over(version, state)
      life.send(
        messages.StateCompared(
          epoch=generation,
          version=version,
          digest=self._digest(),
          difference=apart if math.isfinite(apart) else None,
        )
      )

  @contextlib.contextmanager
  def _telling(
    self, life: Session[messages.ToReplica], generation: int
  ) -> Iterator[None]:
    """Tells the coordinator if what others take part in fails; nothing follows."""
    self._together = True
    with contextlib.suppress(Abandoned):
      try:
        yield
      except TransportError as error:
        peer = None
        if isinstance(error, PeerLost | Damaged | ExecutorFailed):
          peer = error.worker
        life.send(messages.ConnectionLost(generation, peer, str(error)[:200]))
    self._together = False

  def _iterate(
    self, life: Session[messages.ToReplica], deal: messages.Assignment
  ) -> None:
    """Takes part in one iteration."""
    if self._compiled is None:
      self._compiled = compilations.count()
    with self._telling(life, deal.epoch):
      self._compute(life, deal)
      if following := self._inbox.next_deal():
        self._preparing = threading.Thread(
          target=self._gradient.prepare, args=[following.ranges], daemon=True
        )
        self._preparing.start()
      self._last = self._books.marked(*self._summing.total())
      self._apply(deal)

  def _collect(
    self, life: Session[messages.ToReplica], generation: int
  ) -> None:
    """Sums what all keep, for a checkpoint."""
    if generation != self._generation or generation < self._stopped:
      return
    version = self.learner.version
    with self._telling(life, generation):
      self._summing.collect(version)
      self._completed(ResidualsCollected(version=version))

  def _digest_report(self) -> tuple[int, int, str, messages.Traffic]:
    """Returns epoch, version and digest of its state, and its traffic."""
    sent = traffic.rows(self._summing.traffic())
    return self._generation, self.learner.version, self._digest(), sent

  def _compute(
    self, life: Session[messages.ToReplica], deal: messages.Assignment
  ) -> None:
    """Computes a gradient, parts of which may travel at once."""
    iteration = deal.iteration
    coordinator_time = life.heartbeat.coordinator_time
    self._pace.begin(deal.version)
    self._pace.compute()
    if not self._summing.travels:
      self._faults.happen(self._faults.due(self.index, iteration, Phase.PULL))
    began = time.monotonic()
    ranges = deal.ranges
    if self._preparing:  # Perhaps something else, of what was dealt ahead.
      self._preparing.join()
    self._gradient.prepare(ranges)
    start = time.monotonic()
    examples, before = deal.examples, self._gradient.computed
    least_s = self._host.least_s(iteration, examples)
    if not self._summing.paced:
      # What a config adds comes before the computation, as far as is known.
      time.sleep(max(least_s - self._took_s, 0.0))
    own = time.monotonic()
    fault = self._faults.due(self.index, iteration)
    self._faults.happen(fault)
    if fault and fault.kind == Kind.FLIP:
      self._flip()
    loss, finite = self._summing.compute(
      deal.version,
      self.learner,
      ranges,
      worker=self.index,
      iteration=iteration,
      stage=deal.stage,
      fault=fault,
      least_s=least_s,
    )
    self._took_s = time.monotonic() - own
    self._host.delay(iteration, examples, start)
    end = time.monotonic()
    entry = Entry(
      began=coordinator_time(began) - deal.assigned_at,
      computed=coordinator_time(end) - deal.assigned_at,
      compute_s=end - start,
      examples=self._gradient.computed - before,
      compilations=compilations.count() - self._compiled,
      loss=math.nan if loss is None else loss,
      finite=int(finite and (loss is None or math.isfinite(loss))),
    )
    numbers = np.zeros(self._books.size, np.float32)
    self._books.write(numbers, self.index, entry, self._host.factors(iteration))
    self._pace.transfer()
    self._summing.finish(numbers)

  def _apply(self, deal: messages.Assignment) -> None:
    """Makes the next version of the sum, or skips what is not finite."""
    if self._books.are_finite(self._last, deal.members):
      self._summing.apply(
        self.learner, examples=deal.total, pushes=len(deal.members)
      )
    else:
      self.learner.skip()
      self.memory.note(self.learner.version)
    self._completed(
      IterationCompleted(
        at=time.monotonic(), version=deal.version, statistics=self._last
      )
    )

  def _flip(self) -> None:
    """Changes a bit of the parameters, as damaged memory would."""
    state = self.learner.state()
    state |= {'params': self._summing.placed(flipped(state['params']))}
    with self._digesting:
      self.learner.restore(state)
      self._digested = None

  def _digest(self) -> str:
    """Returns the digest of the state, which is computed once."""
    return self._snapshot()[1]

  def _snapshot(self) -> tuple[dict[str, Any], str]:
    """Returns the state and its digest; from any thread."""
    with self._digesting:
      before, state = self._digested, self._shared()
      version = state['learner']['version']
      if before is not None and before[0] == version:
        return state, before[1]
      self._digested = version, digest(state)
      return state, self._digested[1]

  def _state_of(self, version: int) -> tuple[Any, str]:
    """Returns state and digest of a version; in a thread of the handover."""
    state, found = self._snapshot()
    if (has := state['learner']['version']) != version:
      raise LookupError(f'expected to have version {version}, got {has}')
    return state, found

  def _shared(self) -> dict[str, Any]:
    """Returns all that no other replica has otherwise."""
    common = self.memory.common
    return {'learner': self.learner.state(), 'common': common}


def _apart(state: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
  """Returns the relative difference of what two replicas hold."""
  own, its = (
    {**each['learner'], 'codec': each['common']} for each in (state, reference)
  )
  return drift.relative_difference(own, its)
