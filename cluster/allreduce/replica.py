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
from cluster.membership.session import Session, explained
from cluster.network.errors import TransportError
from cluster.network.heartbeat import BEATS
from cluster.probing import traffic
from cluster.probing.measurer import Measurer
from cluster.process.deadlines import Pace
from cluster.process.host import Host
from cluster.speed.speed import Speed
from data.stream import Ranges
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
    settings: Settings,
    hung: Callable[[str], None],
    completed: Callable[[dict[str, Any]], None],
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
    with explained(self.index), self._host:
      while (verdict := self._session())['end'] != 'over':
        logging.info('Worker %d joins again.', self.index)
    return verdict['finished']

  def _session(self) -> dict[str, Any]:
    """Works until the coordinator ends it, or is lost; returns what it has said."""
    self._pace, self._inbox, self._fresh = Pace(), Inbox(), True
    self._generation = self._stopped = -1
    with Session(
      self._coordinator,
      self.index,
      self._settings,
      with_beats=self._with_beats,
      hung=self._hung,
      told=self._told,
      ending=self._end,
      deaf=lambda: self._together and not self._summing.heeds,
    ) as life:
      with life.lived():
        self._prepare(life)
        while not life.heart.ended.is_set():
          self._heed(life, self._inbox.take())
      self._note_end(life)
    return life.heart.verdict

  def _prepare(self, life: Session) -> None:
    """Gets ready for a new life."""
    if not self._warm:
      life.say({'doing': 'compiling'})
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
      telling = traffic.TrafficReporter(self._summing.traffic, life.say)
      life.stack.enter_context(telling)
    life.stack.callback(self._measurer.close)
    self._report_ready(life, address or giving.address, giving.address)

  def _report_ready(self, life: Session, executor: str, handover_: str) -> None:
    """Reports to the coordinator that this worker can join an allreduce."""
    life.say(
      {
        'ready': True,
        'devices': list(self._settings.devices),
        'executor': executor,
        'handover': handover_,
      }
    )

  def _note_end(self, life: Session) -> None:
    """Logs why the coordinator has ended a session."""
    logging.info('Worker %d: %s', self.index, life.heart.verdict)

  def _told(self, told: dict[str, Any]) -> None:
    """Takes in what the coordinator says; in a thread of the heart."""
    if 'stop' in told and not told['ends']:
      self._stopped = told['stop']
      self._summing.abandon(before=told['stop'])
    self._inbox.put(told)

  def _end(self) -> None:
    """Wakes all waits of this session; runs in a thread of the heartbeat."""
    self._inbox.put({})
    # What hangs must not keep the heart from ending this process.
    threading.Thread(target=self._summing.abandon, daemon=True).start()

  def _with_beats(self) -> dict[str, Any]:
    # Others cannot tell who it is that holds up a sum.
    if self._summing.unanswered() > _HANGS:
      self._hung('executor')
    self._pace.follow(lambda: self._summing.steps)
    return self._pace.told()

  def _heed(self, life: Session, told: dict[str, Any]) -> None:
    """Does what the coordinator has said."""
    if 'group' in told:
      self._form(life, told['group'])
    elif 'deal' in told:
      deal = told['deal']
      # What was dealt ahead is of no use after an iteration that has failed.
      at = self._generation, self.learner.version
      if at == (deal['generation'], deal['version']) and at[0] >= self._stopped:
        self._iterate(life, deal)
    elif 'measure' in told:
      life.say(self._measurer(told['measure']))
    elif 'check' in told:
      if told['check'] == self._generation >= self._stopped:
        self._tell_digest(life, told['check'])
    elif 'compare' in told:
      self._compare(life, told['compare'])
    elif 'collect' in told:
      self._collect(life, told['collect'])
    elif 'stop' in told:
      self._stopped = told['stop']
      self._summing.abandon(before=told['stop'])
      # What it has brought from elsewhere is not of this run's line.
      life.say(
        {
          'event': 'stopped',
          'generation': told['stop'],
          'version': 0 if self._fresh else self.learner.version,
          'books': [] if self._fresh else self._last,
        }
      )

  def _form(self, life: Session, said: Mapping[str, Any]) -> None:
    """Connects to the others of a generation, with the learner of its version.

    Everybody checks the forest: it has come over the network.
    """
    settings, generation = self._settings, said['generation']
    self._generation = generation
    self._pace.begin(said['version'])
    self._pace.transfer()
    with self._telling(life, generation):
      if said['source']:
        self._fetch(life, said['version'], *said['source'])
      self._fresh = False
      self._pace.reach(_FETCHED)
      self._summing.form(said, max(settings.start_s, settings.timeout_s))
      self._tell_digest(life, generation, 'formed')

  def _fetch(
    self, life: Session, version: int, worker: int, address: str
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
    life: Session,
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
    life.say({'doing': f'fetching version {version} from {address}'})
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

  def _compare(self, life: Session, order: Mapping[str, Any]) -> None:
    """Compares its state with the reference, and takes that over.

    Args:
      life: Whose coordinator is told.
      order: Generation and version; rank and address of the source; and whether
        the state is replaced even if it differs by more than rounding.
    """
    generation, version = order['generation'], order['version']
    if generation != self._generation or generation < self._stopped:
      return
    self._pace.transfer()
    with self._telling(life, generation):
      state = self._fetched(life, version, *order['source'])
      apart = _apart(self._shared(), state)
      if order['replace']:
        self.memory.forget()
      if order['replace'] or apart <= drift.BOUND:
        self._take_over(version, state)
      life.say(
        {
          'event': 'compared',
          'generation': generation,
          'version': version,
          'digest': self._digest(),
          'difference': apart if math.isfinite(apart) else None,
        }
      )

  @contextlib.contextmanager
  def _telling(self, life: Session, generation: int) -> Iterator[None]:
    """Tells the coordinator if what others take part in fails; nothing follows."""
    self._together = True
    with contextlib.suppress(Abandoned):
      try:
        yield
      except TransportError as error:
        peer = None
        if isinstance(error, PeerLost | Damaged | ExecutorFailed):
          peer = error.worker
        told = {'event': 'broken', 'generation': generation}
        life.say(told | {'peer': peer, 'reason': str(error)[:200]})
    self._together = False

  def _iterate(self, life: Session, deal: Mapping[str, Any]) -> None:
    """Takes part in one iteration."""
    if self._compiled is None:
      self._compiled = compilations.count()
    with self._telling(life, deal['generation']):
      self._compute(life, deal)
      if following := self._inbox.next_deal():
        ranges = tuple(map(tuple, following['ranges']))
        self._preparing = threading.Thread(
          target=self._gradient.prepare, args=[ranges], daemon=True
        )
        self._preparing.start()
      self._last = self._books.marked(*self._summing.total())
      self._apply(deal)

  def _collect(self, life: Session, generation: int) -> None:
    """Sums what all keep, for a checkpoint."""
    if generation != self._generation or generation < self._stopped:
      return
    version = self.learner.version
    with self._telling(life, generation):
      self._summing.collect(version)
      self._completed({'event': 'collected', 'version': version})

  def _tell_digest(
    self, life: Session, generation: int, told: str = 'checked'
  ) -> None:
    """Tells the digest of its state, and what it has sent."""
    life.say(
      {
        'event': told,
        'generation': generation,
        'version': self.learner.version,
        'digest': self._digest(),
        'sent': traffic.rows(self._summing.traffic()),
      }
    )

  def _compute(self, life: Session, deal: Mapping[str, Any]) -> None:
    """Computes a gradient, parts of which may travel at once."""
    iteration, lead_time = deal['iteration'], life.heart.lead_time
    self._begin(deal)
    began = time.monotonic()
    ranges = tuple(map(tuple, deal['ranges']))
    if self._preparing:  # Perhaps something else, of what was dealt ahead.
      self._preparing.join()
    self._gradient.prepare(ranges)
    start = time.monotonic()
    examples, before = deal['examples'], self._gradient.computed
    least_s = self._host.least_s(iteration, examples)
    if not self._summing.paced:
      # What a config adds comes before the computation, as far as is known.
      time.sleep(max(least_s - self._took_s, 0.0))
    own = time.monotonic()
    loss, finite = self._compute_gradient(deal, ranges, least_s)
    self._took_s = time.monotonic() - own
    self._host.delay(iteration, examples, start)
    end = time.monotonic()
    entry = Entry(
      began=lead_time(began) - deal['at'],
      computed=lead_time(end) - deal['at'],
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

  def _begin(self, deal: Mapping[str, Any]) -> None:
    """Begins an iteration: from here on its progress has a deadline."""
    self._pace.begin(deal['version'])
    self._pace.compute()

  def _compute_gradient(
    self, deal: Mapping[str, Any], ranges: Ranges, least_s: float
  ) -> tuple[float | None, bool]:
    """Returns the loss and whether the gradient is finite: see `Summing`."""
    return self._summing.compute(
      deal['version'],
      self.learner,
      ranges,
      worker=self.index,
      iteration=deal['iteration'],
      stage=deal['stage'],
      least_s=least_s,
    )

  def _apply(self, deal: Mapping[str, Any]) -> None:
    """Makes the next version of the sum, or skips what is not finite."""
    if self._books.are_finite(self._last, deal['members']):
      self._summing.apply(
        self.learner, examples=deal['total'], pushes=len(deal['members'])
      )
    else:
      self.learner.skip()
      self.memory.note(self.learner.version)
    told = {'event': 'completed', 'version': deal['version']}
    self._completed(told | {'books': self._last, 'at': time.monotonic()})

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
