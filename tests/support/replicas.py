"""Members of a reduced run that are played, around the real lead and runtime.

Everything happens in one thread, one small thing at a time, in an order that a
test chooses: messages come late, members die and come back between any two.
What a member has learned is the list of all that it has applied.
"""

import functools
import queue
import types
from unittest import mock

import numpy as np

import data.stream
from batching import fixed
from cluster import lead
from cluster.distributed.links.linking import Linking
from cluster.distributed.links.surveyor import Surveyor
from cluster.distributed.members import Member
from cluster.distributed.pace import Deadlines
from cluster.distributed.reduced.books import Books, Entry
from cluster.distributed.reduced.formation import Formation
from cluster.distributed.reduced.holder import ReplicaHolder
from cluster.distributed.reduced.runtime import ReducedRuntime
from outputs.console import Console
from outputs.files import RunFiles
from outputs.journal import Journal, Milestones
from route import links, ring
from sync import bsp

BATCH = 8


class _Reception:
  """What the runtime sees of members."""

  def __init__(self, workers):
    self.events = queue.SimpleQueue()
    self.members = [Member() for _ in range(workers)]
    self.looked = 0.0

  def send(self, stream, header):
    stream.wire.append(header)

  def missing(self):
    return ''

  def listen(self):
    return ''

  def close(self, *, finished):
    del finished


class Life:
  """A member's stream to the lead, from its first word to its last.

  Attributes:
    wire: What the lead has said and has not arrived.
    says: What it has said and has not arrived.
    index: Of the worker.
    version: Updates that it has applied.
    learned: They, each as version and who computed which examples.
    doing: What it is at.
  """

  def __init__(self, world, index, number, learned):
    self.world, self.index, self.number = world, index, number
    self.wire, self.says, self.inbox = [], [], []
    self.learned = learned
    self.fresh, self.last = True, []
    self.generation = self.stopped = -1
    self.living = True
    self.doing, self.deal, self.group = 'nothing', None, None
    self.address = f'{index}/{number}'
    self.say(
      told='ready', executor=self.address, handover=self.address, stream=self
    )

  @property
  def version(self):
    return len(self.learned)

  # The learner, as the holder sees it.
  params = stats = ()

  def state(self):
    return list(self.learned)

  def say(self, **said):
    self.says.append({'worker': self.index, 'life': self.number} | said)

  def end(self):
    """Its process dies, or its stream ends."""
    if self.living:
      self.living, self.doing = False, 'nothing'
      self.say(told='failed', reason='the stream has ended')

  def arrive(self):
    """Takes in the next thing that the lead has said, as its heart does."""
    told = self.wire.pop(0)
    if 'end' in told:
      self.end()
      return
    if 'stop' in told and not told['ends']:
      self.stopped = max(self.stopped, told['stop'])
    self.inbox.append(told)

  def actions(self):
    """Yields what its main thread may do now."""
    if self.doing == 'nothing':
      if self.inbox:
        yield self.heed
    elif self.doing == 'fetching':
      yield self.fetch
    elif self.doing == 'forming':
      peers = self.world.peers(self.group)
      if self.stopped > self.generation:
        yield self.give_up
      elif all(self.generation in peer.joined for peer in peers):
        yield self.connect
      elif any(not p.living or p.stopped > self.generation for p in peers):
        yield self.lose
    elif self.doing == 'computing':
      yield self.compute
    elif self.doing == 'waiting':
      peers = self.world.peers(self.group)
      parts = self.world.parts[self.generation, self.deal['version']]
      lost = any(not p.living or p.stopped > self.generation for p in peers)
      if len(parts) == len(peers) and self.stopped <= self.generation:
        yield self.apply
      if self.stopped > self.generation:
        yield self.give_up
      elif lost:
        yield self.lose

  @property
  def joined(self):
    return self.world.joined[self.address]

  def heed(self):
    told = self.inbox.pop(0)
    if 'group' in told:
      self.group, self.generation = told['group'], told['group']['generation']
      source, version = self.group['source'], self.group['version']
      if source and (self.fresh or self.version != version):
        self.doing = 'fetching'
      else:
        self.join()
    elif 'deal' in told:
      deal = told['deal']
      if self.world.replica_takes(self, deal):
        self.doing, self.deal = 'computing', deal
    elif 'check' in told:
      self.check(told['check'])
    elif 'stop' in told:
      self.stopped = max(self.stopped, told['stop'])
      version, last = self.version, self.last
      if self.fresh:
        version, last = 0, []
      self.say(
        told='stopped', generation=told['stop'], version=version, books=last
      )

  def join(self):
    self.fresh, self.doing = False, 'forming'
    self.joined.add(self.generation)

  def fetch(self):
    source = self.world.lives[self.group['source']]
    if source.living and source.version == self.group['version']:
      self.learned, self.last = list(source.learned), []
      self.join()
    else:
      self.lose(None)

  def connect(self):
    self.doing = 'nothing'
    digest = str(self.learned)
    self.say(
      told='formed',
      generation=self.generation,
      version=self.version,
      digest=digest,
    )

  def give_up(self):
    self.doing = 'nothing'

  def lose(self, peer=-1):
    self.doing = 'nothing'
    if peer == -1:
      lost = [p.index for p in self.world.peers(self.group) if not p.living]
      if not lost:  # They have left: no death.
        return
      peer = lost[0]
    self.say(
      told='broken', generation=self.generation, peer=peer, reason='gone'
    )

  def check(self, generation):
    self.say(
      told='checked',
      generation=generation,
      version=self.version,
      digest=str(self.learned),
    )

  def compute(self):
    if self.deal['check']:
      self.check(self.generation)
    parts = self.world.parts.setdefault(
      (self.generation, self.deal['version']), {}
    )
    parts[self.index] = self.deal['ranges']
    self.doing = 'waiting'

  def apply(self):
    version = self.deal['version']
    if version != self.version:
      raise AssertionError(f'{version} applied to {self.version}')
    parts = self.world.parts[self.generation, version]
    self.learned.append((version, tuple(sorted(parts.items()))))
    numbers = sum(self.world.written(index) for index in parts)
    self.last = numbers.tolist()
    self.doing = 'nothing'
    if self.index == 0:
      self.world.completed(version, self.last)


class World:
  """A run.

  Attributes:
    runtime: The real one, with the real lead.
    members: The life that each worker has now.
  """

  def __init__(
    self,
    workers,
    *,
    batching=None,
    eval_every=40,
    target=10**6,
    timeout_s=1e6,
  ):
    self.workers = workers
    self.lives, self.joined, self.parts = {}, {}, {}
    self.members = {}
    self._clock, self._moved = 0, {}
    self.books = Books(workers, 0)
    self.reception = _Reception(workers)
    replica = types.SimpleNamespace(learner=None)
    self._replica = replica
    holder = ReplicaHolder(replica, None)
    evaluate = mock.Mock(return_value=0.5)
    evaluate.is_finite.return_value = True
    journal = Journal(
      milestones=Milestones(target, 10**6, eval_every, 10**6, ()),
      holder=holder,
      evaluate=evaluate,
      files=mock.create_autospec(RunFiles, instance=True),
      console=Console(target=10**6, clock='real'),
    )
    self.ledger = journal.ledger
    self.stream = data.stream.Stream(num_examples=10**6, seed=0, ahead=0)
    self.lead = lead.Lead(
      scheme=bsp.make(num_workers=workers),
      batching=batching or fixed.make(num_workers=workers, worker_batch=BATCH),
      holder=holder,
      stream=self.stream,
      journal=journal,
      num_workers=workers,
      ahead=True,
    )
    self.formation = Formation(
      links.believed('', workers),
      ring.in_order,
      size_bytes=1000,
    )
    surveyor = mock.create_autospec(Surveyor, instance=True, busy=False)
    self.runtime = ReducedRuntime(
      lead=self.lead,
      holder=holder,
      reception=self.reception,
      formation=self.formation,
      linking=lambda say: Linking(
        self.formation, surveyor, None, workers=workers
      ),
      books=self.books,
      timeout_s=timeout_s,
      start_s=timeout_s,
      deadlines=Deadlines(timeout_s=timeout_s, start_s=timeout_s, windows=True),
      local=None,
      iteration_bytes=lambda count: count,
    )
    self.holder = holder
    for index in range(workers):
      self.come(index)

  def come(self, index, *, keeps=False):
    """A worker comes, or comes back: as another process, or the same."""
    before = self.members.get(index)
    number = before.number + 1 if before else 0
    learned = list(before.learned) if keeps else []
    self.joined[f'{index}/{number}'] = set()
    life = Life(self, index, number, learned)
    self.members[index] = self.lives[life.address] = life
    if index == 0:
      self._replica.learner = life

  def peers(self, group):
    """Returns the lives of a group, as they were when it was made."""
    return [self.lives[address] for address in group['addresses'].values()]

  def replica_takes(self, life, deal):
    """Returns whether a replica takes part in what is dealt."""
    return (
      deal['generation'] == life.generation >= life.stopped
      and deal['version'] == life.version
    )

  def written(self, index):
    """Returns the books with what a worker writes."""
    numbers = np.empty(self.books.size, np.float32)
    entry = Entry(0.0, 0.0, 1.0 + index, BATCH, 0, 1.0, 1)
    self.books.write(numbers, index, entry, ())
    return numbers

  def completed(self, version, books):
    """The lead's own replica tells without a message."""
    said = {'told': 'completed', 'version': version, 'books': books, 'at': 0.0}
    self.members[0].says.append(said)

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
    return found

  def hear(self, life):
    """The lead hears the next thing of a member."""
    self.reception.events.put(life.says.pop(0))
    if self.runtime._began is None:
      self.runtime._take(0.0)
    else:
      self.runtime.step()

  def pass_by(self):
    """Lets the lead look around: what it hears is of long ago."""
    said = {'told': 'broken', 'worker': 0, 'life': -1, 'generation': -1}
    self.reception.events.put(said)
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
      f'{self.holder.version}, members {self.formation.members}'
    )

  def rest(self, but):
    """Lets happen what happens without some things."""
    while self.go(but=but):
      pass

  def reach(self, version, choose=None, but=()):
    """Lets things happen until so many updates are booked."""
    self.until(lambda: self.holder.version >= version, choose, but)

  def gather(self, choose=None):
    """Lets things happen until all workers take part."""
    every = tuple(range(self.workers))
    self.until(
      lambda: self.runtime._running and self.formation.members == every, choose
    )

  def check(self):
    """Checks that each example was applied once, the same by all."""
    learned = self.members[0].learned[: self.holder.version]
    if len(learned) != self.holder.version:
      raise AssertionError('The lead has booked what it has not applied.')
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
    if not len(positions) == self.ledger.examples == self.stream.used:
      raise AssertionError(
        f'{len(positions)} applied, {self.ledger.examples} booked, '
        f'{self.stream.used} used'
      )
