"""Simulated allreduce runs with a real coordinator and simulated members.

All steps run in one thread, in an order that a test chooses: messages are
delayed, members die and rejoin between any two steps.  The state of a member is
the list of its applied updates.
"""

import functools
import types
from unittest import mock

import numpy as np

import data.stream
from batching import fixed
from cluster import coordinator
from cluster.allreduce.admission import IterationCompleted
from cluster.allreduce.rendezvous import Rendezvous
from cluster.allreduce.runtime import AllreduceRuntime
from cluster.allreduce.step_statistics import StatisticsLayout, StepStatistics
from cluster.allreduce.store import ReplicaStore
from cluster.allreduce.sums.codec_state import NoCodecState
from cluster.membership.events import Event
from cluster.membership.process import Settings
from cluster.milestones import Intervals, Milestones
from cluster.network.errors import InvalidMessage
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.probing.link_manager import LinkManager
from cluster.probing.surveyor import Surveyor
from cluster.process.deadlines import Deadlines
from learning.learning import Overlap
from outputs.console import Console
from outputs.recorder import Recorder
from route import links, ring
from sync import bsp
from tests.support import members, unwritten

BATCH = 8


class _Succession:
  """Terms of a simulated run, without files or a port."""

  def __init__(self):
    self.terms, self._taken = self, []

  @property
  def newest(self):
    return max(self._taken, default=0)

  def take(self, term, worker):
    del worker
    is_free = term not in self._taken
    self._taken.append(term)
    return is_free

  def lead(self, *membership):
    del membership

  def close(self):
    pass


class SimulatedRun:
  """Allreduce run whose members a test controls.

  Attributes:
    runtime: The real runtime, with the real coordinator.
    rendezvous: The runtime's rendezvous.
    members: Current session of each worker.
    rivals: Processes, as worker and identity, that rejoin whenever they have no
      session.
    cut: Sets of two workers that cannot communicate, or of one whose executor
      fails.
    rounding: Rounding error of each update, by worker.
    local: Worker in the process of the coordinator.
  """

  def __init__(
    self,
    workers,
    *,
    batching=None,
    eval_every=40,
    is_timed=False,
    target=10**6,
    timeout_s=1e6,
    tolerates_loss=True,
    rounding=None,
    failed=None,
    build=ring.build_in_order,
    planner=None,
    files=None,
    min_workers=0,
  ):
    self.workers, self.local = workers, 0
    self._min_workers = min_workers
    self.sessions, self.joined, self.parts = {}, {}, {}
    self.members, self.rivals, self.cut = {}, [], []
    self.rounding = rounding or {}
    self._clock, self._moved = 0, {}
    self.layout = StatisticsLayout(workers, 0)
    self._succession = _Succession() if tolerates_loss else None
    self._make = functools.partial(
      self._make_runtime,
      batching=batching or fixed.make(num_workers=workers, worker_batch=BATCH),
      eval_every=eval_every,
      is_timed=is_timed,
      target=target,
      timeout_s=timeout_s,
      tolerates_loss=tolerates_loss,
      failed=failed,
      build=build,
      planner=planner,
      files=files,
    )
    self._make()
    for index in range(min_workers or workers):
      self.join(index)

  def _make_runtime(
    self,
    *,
    batching,
    eval_every,
    is_timed,
    target,
    timeout_s,
    tolerates_loss,
    failed,
    build,
    planner,
    files,
  ):
    """Creates the runtime and all that belongs to it."""
    workers = self.workers
    self.reception = members.Reception(workers, self._min_workers)
    replica = types.SimpleNamespace(learner=None, codec_state=NoCodecState())
    self._replica = replica
    store = ReplicaStore(replica, None)
    evaluate = mock.Mock(return_value={'accuracy': 0.5})
    evaluate.is_finite.return_value = True
    if files is None:
      files = unwritten.files()
    recorder = Recorder(
      epoch=10**6,
      files=files,
      console=Console(target=10**6, clock='real'),
    )
    milestones = Milestones(
      intervals=Intervals(target, eval_every, 10**6, is_timed),
      recorder=recorder,
      store=store,
      evaluate=evaluate,
      plans_ahead=True,
    )
    self.accounting, self.files = recorder.accounting, files
    self.stream = data.stream.Stream(num_examples=10**6, seed=0, ahead=0)
    self.coordinator = coordinator.Coordinator(
      scheme=bsp.make(num_workers=workers),
      batching=batching,
      store=store,
      stream=self.stream,
      recorder=recorder,
      milestones=milestones,
      num_workers=workers,
      ahead=True,
    )
    self.rendezvous = Rendezvous(
      links.read_cluster('', workers) if tolerates_loss else None,
      build if tolerates_loss else None,
      size_bytes=1000,
      failed=failed,
      planner=planner,
      local=self.local,
    )
    surveyor = mock.create_autospec(Surveyor, instance=True, busy=False)
    self.runtime = AllreduceRuntime(
      coordinator=self.coordinator,
      store=store,
      reception=self.reception,
      rendezvous=self.rendezvous,
      links=LinkManager(self.rendezvous, surveyor, None, workers=workers),
      layout=self.layout,
      overlap=Overlap.BACKWARD,
      settings=Settings(
        Port('127.0.0.1', 0, Security()), '', timeout_s, timeout_s, ''
      ),
      deadlines=Deadlines(timeout_s=timeout_s, start_s=timeout_s, windows=True),
      make_local_worker=None,
      succession=self._succession,
      iteration_bytes=lambda count, stage: count,
    )
    self.store = store

  def replace_coordinator(self):
    """Ends the coordinator's process, and elects a member in its place.

    Returns:
      False if no member can succeed it.
    """
    alive = [each for each in self.members.values() if each.is_alive]
    alive = [each for each in alive if each.index != self.local]
    newest = max((each.standby.membership[:2] for each in alive), default=None)
    electors = [
      each
      for each in alive
      if each.standby.membership[:2] == newest and not each.is_fresh
    ]
    able = [each for each in electors if each.standby.can_succeed(each.version)]
    if not able or 2 * len(electors) < len(
      able[0].standby.membership.addresses
    ):
      return False
    elected = max(able, key=lambda each: (each.version, -each.index))
    inheritance = elected.standby.inherit(
      elected.version, [each.index for each in electors]
    )
    self.local = elected.index
    self._make()
    self.coordinator.milestones.restore(inheritance.state['milestones'])
    self.coordinator.recorder.restore(inheritance.state['recorder'])
    self.runtime.take_over(inheritance, lambda: None)
    self.accounting = self.coordinator.recorder.accounting
    self.stream = self.coordinator.state()['_stream']
    self.sessions, self.members = {}, {}
    for each in alive:
      self.join(each.index, keeps_of=each, is_member=each in electors)
    return True

  def join(
    self, index, *, keeps=False, process='one', keeps_of=None, is_member=False
  ):
    """Makes a process join as a worker, or rejoin.

    Args:
      index: Index of the worker.
      keeps: True if the process has the state of its last session.
      process: Identity of the process.
      keeps_of: Session before, whose state the process has; None for none.
      is_member: Whether the coordinator knows that state to be the run's.

    Returns:
      True if the process was admitted; another process may have the rank.
    """
    before = keeps_of or self.members.get(index)
    learned = list(before.learned) if keeps or keeps_of else []
    session = members.Session(self, index, process, learned)
    if session.incarnation is None:
      return False
    if keeps_of:
      session.standby, session.bits = keeps_of.standby, keeps_of.bits
    if is_member:
      session.last, session.is_fresh = keeps_of.last, False
    self.joined[session.address] = set()
    self.members[index] = self.sessions[session.address] = session
    if index == self.local:
      self._replica.learner = session
    return True

  @property
  def terms(self):
    """Terms that coordinators of the run have taken."""
    return self._succession

  @property
  def agreed_version(self):
    """Last version at which all members had the same state."""
    return self.runtime.epochs.check.agreement.agreed

  def peers(self, group):
    """Returns the sessions of a membership's workers."""
    if group.members is None:  # The route `native`.
      return [*self.members.values()]
    return [self.sessions[each] for each in group.members.addresses.values()]

  def accepts(self, session, assignment):
    """Returns whether a member accepts an assignment."""
    return (
      assignment.membership_epoch == session.membership_epoch >= session.stopped
      and assignment.version == session.version
    )

  def write_statistics(self, index, ranges):
    """Returns the step statistics of a worker that has computed ranges."""
    numbers = np.empty(self.layout.size, np.float32)
    count = sum(end - start for start, end in ranges)
    statistics = StepStatistics(0.0, 0.0, 1.0 + index, count, count, 0, 1.0, 1)
    self.layout.write(numbers, index, statistics, ())
    return numbers

  def complete(self, version, statistics):
    """Makes the coordinator's replica report an iteration."""
    event = IterationCompleted(at=0.0, version=version, statistics=statistics)
    self.members[self.local].to_coordinator.append(event)

  def begin(self, choose=None):
    """Runs until all members are connected, and starts the run."""
    self.run_until(lambda: self.runtime.epochs.is_running, choose)
    self.runtime.start()

  def moves(self):
    """Returns all possible next steps: actor, name and function."""
    steps = []
    for session in self.sessions.values():
      name = session.address
      if session.to_coordinator:
        steps.append(
          (name, 'deliver', functools.partial(self.deliver, session))
        )
      if session.is_alive:
        if session.to_member:
          steps.append((name, 'arrive', session.arrive))
        steps += [(name, each.__name__, each) for each in session.actions()]
    alive = {(x.index, x.process) for x in self.sessions.values() if x.is_alive}
    for index, process in self.rivals:
      if (index, process) not in alive:
        join = functools.partial(self.join, index, process=process)
        steps.append((f'{index}: {process}', 'join', join))
    if not self.reception.events.empty():
      steps.append(('coordinator', 'take', self.take))
    if self._has_absent:
      give_up = self.runtime.epochs.give_up_absent
      steps.append(('coordinator', 'give_up', give_up))
    return steps

  @property
  def _has_absent(self):
    """True if a successor waits for a member that has died."""
    return self.reception.succeeded is not None and any(
      not self.members[k].is_alive if k in self.members else True
      for k in self.rendezvous.living
      if self.reception.members[k].stream is None
    )

  def deliver(self, session):
    """Delivers the next message of a member to the coordinator."""
    message = session.to_coordinator.pop(0)
    if isinstance(message, str):
      self.reception.lose(session.incarnation, message)
    elif isinstance(message, Event):
      self.reception.events.put(message)
    else:
      try:
        self.reception.handle(session.incarnation, message)
      except InvalidMessage as error:  # The listener ends the stream.
        session.is_alive = False
        session.to_coordinator.clear()
        self.reception.lose(session.incarnation, str(error))
    if not self.reception.events.empty():
      self.take()

  def take(self):
    """Makes the coordinator handle the next event."""
    if self.runtime._began is None:
      self.runtime._handle_next(0.0)
    else:
      self.runtime.step()

  def check_deadlines(self):
    """Makes the coordinator check its deadlines, by an event without effect."""
    self.reception.events.put(Event())
    self.runtime.step()

  def step(self, choose=None, but=()):
    """Executes one step; returns False if none is possible.

    Args:
      choose: Returns one of a list of steps; None to choose the actor that has
        waited longest.
      but: Excluded steps, as session, such as '1/0', and name of the step.
    """
    moves = [move for move in self.moves() if move[:2] not in but]
    if not moves:
      return self.runtime.begin_delayed()
    self._clock += 1
    if choose is None:
      move = min(moves, key=lambda each: self._moved.get(each[0], 0))
    else:
      move = choose(moves)
    self._moved[move[0]] = self._clock
    move[2]()
    return True

  def run_until(self, condition, choose=None, but=(), limit=20000):
    """Executes steps until a condition holds; arguments are those of `step`."""
    for _ in range(limit):
      if condition():
        return
      if not self.step(choose, but):
        break
    states = {
      session.address: (
        session.doing,
        session.membership_epoch,
        session.stopped,
        session.version,
      )
      for session in self.members.values()
    }
    raise AssertionError(
      f'The condition does not hold: {states}, epoch '
      f'{self.rendezvous.membership_epoch} {self.rendezvous._phase}, version '
      f'{self.store.version}, members {self.rendezvous.members}'
    )

  def run_without(self, but):
    """Executes steps, except some, until none is possible."""
    while self.step(but=but):
      pass

  def reach(self, version, choose=None, but=()):
    """Runs until the coordinator has recorded a number of updates."""
    self.run_until(lambda: self.store.version >= version, choose, but)

  def gather(self, choose=None):
    """Runs until all workers are members."""
    every = tuple(range(self.workers))
    self.run_until(
      lambda: (
        self.runtime.epochs.is_running and self.rendezvous.members == every
      ),
      choose,
    )

  def check(self):
    """Checks that all members have applied each example once."""
    learned = self.members[self.local].learned[: self.store.version]
    if len(learned) != self.store.version:
      raise AssertionError(
        'The coordinator has recorded updates that it has not applied.'
      )
    for session in self.members.values():
      if session.is_alive and not session.is_fresh:
        both = min(session.version, len(learned))
        if session.learned[:both] != learned[:both]:
          raise AssertionError(f'{session.address} has other updates.')
    positions = [
      position
      for _, parts in learned
      for _, ranges in parts
      for start, stop in ranges
      for position in range(start, stop)
    ]
    if len(positions) != len({*positions}):
      raise AssertionError('Examples were used twice.')
    if not len(positions) == self.accounting.examples == self.stream.used:
      raise AssertionError(
        f'{len(positions)} applied, {self.accounting.examples} recorded, '
        f'{self.stream.used} used'
      )
