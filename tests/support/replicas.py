"""Simulated allreduce runs: real coordinator and runtime, simulated members.

Everything happens in one thread, step by step, in an order that a test chooses:
messages are delayed, members die and rejoin between any two steps.  The state
of a member is the list of all updates that it has applied.
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
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.probing.link_manager import LinkManager
from cluster.probing.surveyor import Surveyor
from cluster.process.deadlines import Deadlines
from learning.learning import Overlap
from outputs.console import Console
from outputs.files import RunFiles
from outputs.recorder import Recorder
from route import links, ring
from sync import bsp
from tests.support import lives

BATCH = 8


class SimulatedRun:
  """A run whose members a test controls.

  Attributes:
    runtime: The real runtime, with the real coordinator.
    rendezvous: The runtime's rendezvous.
    members: Current session of each worker.
    rivals: Processes, as worker and identity, that rejoin whenever they have no
      session.
    cut: Sets of two workers that cannot communicate, or of one whose executor
      fails.
    rounding: Rounding error of each update, by worker.
  """

  def __init__(
    self,
    workers,
    *,
    batching=None,
    eval_every=40,
    target=10**6,
    timeout_s=1e6,
    tolerates_loss=True,
    rounding=None,
    failed=None,
  ):
    self.workers = workers
    self.lives, self.joined, self.parts = {}, {}, {}
    self.members, self.rivals, self.cut = {}, [], []
    self.rounding = rounding or {}
    self._clock, self._moved = 0, {}
    self.layout = StatisticsLayout(workers, 0)
    self.reception = lives.Reception(workers)
    replica = types.SimpleNamespace(learner=None, codec_state=NoCodecState())
    self._replica = replica
    store = ReplicaStore(replica, None)
    evaluate = mock.Mock(return_value={'accuracy': 0.5})
    evaluate.is_finite.return_value = True
    recorder = Recorder(
      epoch=10**6,
      files=mock.create_autospec(RunFiles, instance=True),
      console=Console(target=10**6, clock='real'),
    )
    milestones = Milestones(
      intervals=Intervals(target, eval_every, 10**6),
      recorder=recorder,
      store=store,
      evaluate=evaluate,
    )
    self.accounting, self.drift = recorder.accounting, mock.Mock()
    recorder.record_drift = self.drift
    self.stream = data.stream.Stream(num_examples=10**6, seed=0, ahead=0)
    self.coordinator = coordinator.Coordinator(
      scheme=bsp.make(num_workers=workers),
      batching=batching or fixed.make(num_workers=workers, worker_batch=BATCH),
      store=store,
      stream=self.stream,
      recorder=recorder,
      milestones=milestones,
      num_workers=workers,
      ahead=True,
    )
    self.rendezvous = Rendezvous(
      links.read_cluster('', workers) if tolerates_loss else None,
      ring.build_in_order if tolerates_loss else None,
      size_bytes=1000,
      failed=failed,
    )
    surveyor = mock.create_autospec(Surveyor, instance=True, busy=False)
    self.runtime = AllreduceRuntime(
      coordinator=self.coordinator,
      store=store,
      reception=self.reception,
      rendezvous=self.rendezvous,
      links=lambda send: LinkManager(
        self.rendezvous, surveyor, None, workers=workers
      ),
      layout=self.layout,
      overlap=Overlap.BACKWARD,
      settings=Settings(
        Port('127.0.0.1', 0, Security()), '', timeout_s, timeout_s, ''
      ),
      deadlines=Deadlines(timeout_s=timeout_s, start_s=timeout_s, windows=True),
      local=None,
      iteration_bytes=lambda count, stage: count,
    )
    self.store = store
    for index in range(workers):
      self.join(index)

  def join(self, index, *, keeps=False, process='one'):
    """Has a process join as a worker, or rejoin.

    Args:
      index: Index of the worker.
      keeps: Whether it has the state of its last session.
      process: Identity of the process.

    Returns:
      Whether it was admitted: another process may hold the rank.
    """
    before = self.members.get(index)
    learned = list(before.learned) if keeps else []
    life = lives.Session(self, index, process, learned)
    if life.visit is None:
      return False
    self.joined[life.address] = set()
    self.members[index] = self.lives[life.address] = life
    if index == 0:
      self._replica.learner = life
    return True

  @property
  def agreed(self):
    """The last version at which all members had the same state."""
    return self.runtime.epochs.check.agreement.agreed

  def peers(self, group):
    """Returns the sessions of a membership's workers."""
    if group.members is None:  # XLA sums.
      return [*self.members.values()]
    return [self.lives[each] for each in group.members.addresses.values()]

  def replica_takes(self, life, deal):
    """Returns whether a replica accepts an assignment."""
    return (
      deal.membership_epoch == life.generation >= life.stopped
      and deal.version == life.version
    )

  def written(self, index):
    """Returns the step statistics that a worker writes."""
    numbers = np.empty(self.layout.size, np.float32)
    statistics = StepStatistics(0.0, 0.0, 1.0 + index, BATCH, 0, 1.0, 1)
    self.layout.write(numbers, index, statistics, ())
    return numbers

  def completed(self, version, statistics):
    """Has the coordinator's own replica report an iteration."""
    event = IterationCompleted(at=0.0, version=version, statistics=statistics)
    self.members[0].says.append(event)

  def begin(self, choose=None):
    """Runs until all members are connected, and starts the run."""
    self.run_until(lambda: self.runtime.epochs.is_running, choose)
    self.runtime.start()

  def moves(self):
    """Returns all possible next steps: actor, name and function."""
    steps = []
    for life in self.lives.values():
      name = life.address
      if life.says:
        steps.append((name, 'say', functools.partial(self.deliver, life)))
      if life.living:
        if life.wire:
          steps.append((name, 'arrive', life.arrive))
        steps += [(name, each.__name__, each) for each in life.actions()]
    living = {(x.index, x.process) for x in self.lives.values() if x.living}
    for index, process in self.rivals:
      if (index, process) not in living:
        join = functools.partial(self.join, index, process=process)
        steps.append((f'{index}: {process}', 'join', join))
    if not self.reception.events.empty():
      steps.append(('coordinator', 'take', self.take))
    return steps

  def deliver(self, life):
    """Delivers the next message of a member to the coordinator."""
    message = life.says.pop(0)
    if isinstance(message, str):
      self.reception.lose(life.visit, message)
    elif isinstance(message, Event):
      self.reception.events.put(message)
    else:
      self.reception.handle(life.visit, message)
    if not self.reception.events.empty():
      self.take()

  def take(self):
    """Has the coordinator handle the next event."""
    if self.runtime._began is None:
      self.runtime._take(0.0)
    else:
      self.runtime.step()

  def check_deadlines(self):
    """Has the coordinator check its deadlines, by an event without effect."""
    self.reception.events.put(Event())
    self.runtime.step()

  def step(self, choose=None, but=()):
    """Executes one step; returns False if none is possible.

    Args:
      choose: Returns one of a list of steps; None to choose the actor that has
        waited longest.
      but: Steps that are excluded: a session, as '1/0', and the step's name.
    """
    moves = [move for move in self.moves() if move[:2] not in but]
    if not moves:
      return False
    self._clock += 1
    if choose is None:
      move = min(moves, key=lambda each: self._moved.get(each[0], 0))
    else:
      move = choose(moves)
    self._moved[move[0]] = self._clock
    move[2]()
    return True

  def run_until(self, condition, choose=None, but=(), limit=20000):
    """Executes steps until a condition holds; arguments as of `step`."""
    for _ in range(limit):
      if condition():
        return
      if not self.step(choose, but):
        break
    states = {
      life.address: (life.doing, life.generation, life.stopped, life.version)
      for life in self.members.values()
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
    learned = self.members[0].learned[: self.store.version]
    if len(learned) != self.store.version:
      raise AssertionError(
        'The coordinator has recorded updates that it has not applied.'
      )
    for life in self.members.values():
      if life.living and not life.fresh:
        both = min(life.version, len(learned))
        if life.learned[:both] != learned[:both]:
          raise AssertionError(f'{life.address} has learned something else.')
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
