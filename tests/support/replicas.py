"""Members of a reduced run that are played, around the real coordinator and runtime.

Everything happens in one thread, one small thing at a time, in an order that a
test chooses: messages come late, members die and come back between any two.
What a member has learned is the list of all that it has applied.
"""

import functools
import types
from unittest import mock

import numpy as np

import data.stream
from batching import fixed
from cluster import coordinator
from cluster.allreduce.admission import IterationCompleted
from cluster.allreduce.formation import Formation
from cluster.allreduce.runtime import AllreduceRuntime
from cluster.allreduce.step_statistics import Books, Entry
from cluster.allreduce.store import ReplicaStore
from cluster.allreduce.sums.memory import Nothing
from cluster.membership.events import Event
from cluster.membership.process import Settings
from cluster.network.streams import Security
from cluster.probing.link_manager import Linking
from cluster.probing.surveyor import Surveyor
from cluster.process.deadlines import Deadlines
from learning.learning import Overlap
from outputs.console import Console
from outputs.files import RunFiles
from outputs.recorder import Milestones, Recorder
from route import links, ring
from sync import bsp
from tests.support import lives

BATCH = 8


class World:
  """A run.

  Attributes:
    runtime: The real one, with the real coordinator.
    members: The life that each worker has now.
    rivals: Processes, as worker and identity, that come whenever they have no
      life, again and again.
    cut: Sets of two workers who cannot talk; of one whose executor fails.
    rounding: What each update of a worker is off by, as its processor rounds.
  """

  def __init__(
    self,
    workers,
    *,
    batching=None,
    eval_every=40,
    target=10**6,
    timeout_s=1e6,
    mends=True,
    rounding=None,
    failed=None,
  ):
    self.workers = workers
    self.lives, self.joined, self.parts = {}, {}, {}
    self.members, self.rivals, self.cut = {}, [], []
    self.rounding = rounding or {}
    self._clock, self._moved = 0, {}
    self.books = Books(workers, 0)
    self.reception = lives.Reception(workers)
    replica = types.SimpleNamespace(learner=None, memory=Nothing())
    self._replica = replica
    store = ReplicaStore(replica, None)
    evaluate = mock.Mock(return_value={'accuracy': 0.5})
    evaluate.is_finite.return_value = True
    recorder = Recorder(
      milestones=Milestones(target, 10**6, eval_every, 10**6, ()),
      store=store,
      evaluate=evaluate,
      files=mock.create_autospec(RunFiles, instance=True),
      console=Console(target=10**6, clock='real'),
    )
    self.accounting, self.drift = recorder.accounting, mock.Mock()
    recorder.drift = self.drift
    self.stream = data.stream.Stream(num_examples=10**6, seed=0, ahead=0)
    self.coordinator = coordinator.Coordinator(
      scheme=bsp.make(num_workers=workers),
      batching=batching or fixed.make(num_workers=workers, worker_batch=BATCH),
      store=store,
      stream=self.stream,
      recorder=recorder,
      num_workers=workers,
      ahead=True,
    )
    self.formation = Formation(
      links.believed('', workers) if mends else None,
      ring.in_order if mends else None,
      size_bytes=1000,
      failed=failed,
    )
    surveyor = mock.create_autospec(Surveyor, instance=True, busy=False)
    self.runtime = AllreduceRuntime(
      coordinator=self.coordinator,
      store=store,
      reception=self.reception,
      formation=self.formation,
      linking=lambda say: Linking(
        self.formation, surveyor, None, workers=workers
      ),
      books=self.books,
      overlap=Overlap.BACKWARD,
      settings=Settings('', '', Security(), timeout_s, timeout_s, ''),
      deadlines=Deadlines(timeout_s=timeout_s, start_s=timeout_s, windows=True),
      local=None,
      iteration_bytes=lambda count, stage: count,
    )
    self.store = store
    for index in range(workers):
      self.come(index)

  def come(self, index, *, keeps=False, process='one'):
    """A worker comes, or comes back, as a process.

    Args:
      index: Of the worker.
      keeps: Whether it brings what its last life has learned.
      process: Identity.

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
    return self.runtime._check.agreement.agreed

  def peers(self, group):
    """Returns the lives of a group, as they were when it was made."""
    if group.members is None:  # XLA sums.
      return [*self.members.values()]
    return [self.lives[each] for each in group.members.addresses.values()]

  def replica_takes(self, life, deal):
    """Returns whether a replica takes part in what is dealt."""
    return (
      deal.epoch == life.generation >= life.stopped
      and deal.version == life.version
    )

  def written(self, index):
    """Returns the books with what a worker writes."""
    numbers = np.empty(self.books.size, np.float32)
    entry = Entry(0.0, 0.0, 1.0 + index, BATCH, 0, 1.0, 1)
    self.books.write(numbers, index, entry, ())
    return numbers

  def completed(self, version, books):
    """The coordinator's own replica tells without a message."""
    self.members[0].says.append(
      IterationCompleted(at=0.0, version=version, statistics=books)
    )

  def begin(self, choose=None):
    """Lets all come, connect and begin."""
    self.until(lambda: self.runtime._running, choose)
    self.runtime.start()

  def moves(self):
    """Returns all that can happen next."""
    found = []
    for life in self.lives.values():
      name = life.address
      if life.says:
        found.append((name, 'say', functools.partial(self.hear, life)))
      if life.living:
        if life.wire:
          found.append((name, 'arrive', life.arrive))
        found += [(name, each.__name__, each) for each in life.actions()]
    living = {(x.index, x.process) for x in self.lives.values() if x.living}
    for index, process in self.rivals:
      if (index, process) not in living:
        come = functools.partial(self.come, index, process=process)
        found.append((f'{index}: {process}', 'come', come))
    if not self.reception.events.empty():
      found.append(('coordinator', 'take', self.take))
    return found

  def hear(self, life):
    """The coordinator hears the next thing of a member."""
    said = life.says.pop(0)
    if isinstance(said, str):
      self.reception.lose(life.visit, said)
    elif isinstance(said, Event):
      self.reception.events.put(said)
    else:
      self.reception.handle(life.visit, said)
    if not self.reception.events.empty():
      self.take()

  def take(self):
    """The coordinator takes the next event."""
    if self.runtime._began is None:
      self.runtime._take(0.0)
    else:
      self.runtime.step()

  def pass_by(self):
    """Lets the coordinator look around: what it hears is of long ago."""
    self.reception.events.put(Event())
    self.runtime.step()

  def go(self, choose=None, but=()):
    """Lets one thing happen; returns False if nothing can.

    Args:
      choose: Returns one of a list; None for whoever has waited longest.
      but: What does not happen: a worker's life, as '1/0', and what it does.
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

  def until(self, happened, choose=None, but=(), limit=20000):
    """Lets things happen until something has; the others as of `go`."""
    for _ in range(limit):
      if happened():
        return
      if not self.go(choose, but):
        break
    states = {
      life.address: (life.doing, life.generation, life.stopped, life.version)
      for life in self.members.values()
    }
    raise AssertionError(
      f'It has not happened: {states}, generation '
      f'{self.formation.generation} {self.formation._state}, version '
      f'{self.store.version}, members {self.formation.members}'
    )

  def rest(self, but):
    """Lets happen what happens without some things."""
    while self.go(but=but):
      pass

  def reach(self, version, choose=None, but=()):
    """Lets things happen until so many updates are booked."""
    self.until(lambda: self.store.version >= version, choose, but)

  def gather(self, choose=None):
    """Lets things happen until all workers take part."""
    every = tuple(range(self.workers))
    self.until(
      lambda: self.runtime._running and self.formation.members == every, choose
    )

  def check(self):
    """Checks that each example was applied once, the same by all."""
    learned = self.members[0].learned[: self.store.version]
    if len(learned) != self.store.version:
      raise AssertionError(
        'The coordinator has booked what it has not applied.'
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
        f'{len(positions)} applied, {self.accounting.examples} booked, '
        f'{self.stream.used} used'
      )
