"""Simulated workers of allreduce runs, for tests: see `replicas`."""

from cluster.membership import admission
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.process.deadlines import Deadlines, Jobs
from learning import drift

BATCH = 8


class Reception(admission.Reception):
  """The real reception, without a listener: sessions are the streams."""

  def __init__(self, workers):
    deadlines = Deadlines(timeout_s=1e6, start_s=1e6, windows=True)
    super().__init__(
      num_workers=workers,
      settings=Settings(Port('127.0.0.1', 0, Security()), '', 1e6, 1e6, ''),
      jobs=Jobs(deadlines),
    )

  def send(self, stream, message):
    stream.send(message)

  def missing(self):
    return ''

  def listen(self):
    return ''

  def close(self, *, finished):
    del finished


class Session:
  """A member's stream to the coordinator, from admission to end.

  Attributes:
    process: Identity of its process.
    visit: Its incarnation, as the reception has it; None if it was refused.
    wire: Messages of the coordinator that have not arrived.
    says: Its messages that have not arrived.
    index: Of the worker.
    version: Number of updates that it has applied.
    learned: Its updates, each as version and examples by worker.
    doing: Its present activity.
    bits: Difference of its parameters from exact ones.
  """

  def __init__(self, world, index, process, learned):
    self.world, self.index, self.process = world, index, process
    self.peer = f'{process} of {index}'
    self.wire, self.says, self.inbox = [], [], []
    self.learned, self.bits = learned, world.rounding.get(index, 0.0)
    self.fresh, self.last = True, []
    self.generation = self.stopped = -1
    self.living = True
    self.doing, self.deal, self.group = 'nothing', None, None
    hello = messages.WorkerHello(index, process, '')
    self.visit = world.reception.admit(self, hello)
    if self.visit is None:
      self.living = False
      return
    self.number = self.visit.number
    self.address = f'{index}/{self.number}'
    self.say(messages.ReplicaReady(self.address))

  def send(self, message):
    self.wire.append(message)

  @property
  def version(self):
    return len(self.learned)

  @property
  def digest(self):
    return str((self.learned, self.bits))

  # The learner, as the store sees it.
  params = stats = ()

  def state(self):
    return list(self.learned)

  def say(self, message):
    self.says.append(message)

  def end(self):
    """Ends its process or its stream."""
    if self.living:
      self.living, self.doing = False, 'nothing'
      self.say('the stream has ended')

  def arrive(self):
    """Receives the next message of the coordinator."""
    told = self.wire.pop(0)
    if isinstance(told, messages.SessionEnd):
      self.end()
      return
    if isinstance(told, messages.StopEpoch) and not told.completes:
      self.stopped = max(self.stopped, told.membership_epoch)
    self.inbox.append(told)

  def actions(self):
    """Yields the functions that its main thread may call now."""
    if self.doing == 'nothing':
      if self.inbox:
        yield self.heed
    elif self.doing == 'fetching':
      yield self.fetch
    elif self.doing == 'comparing':
      yield self.compare
    elif self.doing == 'forming':
      peers = self.world.peers(self.group)
      if self.stopped > self.generation:
        yield self.give_up
      elif self.cut_off() is not None:
        yield self.lose_cut
      elif all(self.generation in peer.joined for peer in peers):
        yield self.connect
      elif any(not p.living or p.stopped > self.generation for p in peers):
        yield self.lose
    elif self.doing == 'computing':
      yield self.compute
    elif self.doing == 'waiting':
      peers = self.world.peers(self.group)
      parts = self.world.parts[self.generation, self.deal.version]
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
    match told:
      case messages.ConnectMembers():
        self.group, self.generation = told, told.membership_epoch
        if told.source and (self.version != told.version or self.fresh):
          self.doing = 'fetching'
        else:
          self.join()
      case messages.Assignment():
        if self.world.replica_takes(self, told):
          self.doing, self.deal = 'computing', told
      case messages.CheckState():
        self.say(messages.StateDigest(told.membership_epoch, *self.report))
      case messages.CompareState():
        if told.membership_epoch == self.generation >= self.stopped:
          self.doing, self.order = 'comparing', told
      case messages.StopEpoch():
        self.stopped = max(self.stopped, told.membership_epoch)
        version, last = self.version, self.last
        if self.fresh:
          version, last = 0, []
        self.say(messages.EpochStopped(told.membership_epoch, version, last))

  @property
  def report(self):
    return self.version, self.digest, []

  def join(self):
    self.fresh, self.doing = False, 'forming'
    self.joined.add(self.generation)

  def fetch(self):
    source = self.world.lives[self.group.source[1]]
    cut = {self.index, source.index} in self.world.cut
    given = source.living and source.version == self.group.version
    if given and not cut:
      self.learned, self.last = list(source.learned), []
      self.bits = source.bits
      self.join()
    else:
      self.lose(source.index)

  def connect(self):
    self.doing = 'nothing'
    self.say(messages.Connected(self.generation, *self.report))

  def give_up(self):
    self.doing = 'nothing'

  def lose(self, peer=-1):
    self.doing = 'nothing'
    if peer == -1:
      lost = [p.index for p in self.world.peers(self.group) if not p.living]
      if not lost:  # They have left: no death.
        return
      peer = lost[0]
    self.say(messages.ConnectionLost(self.generation, peer, 'gone'))

  def cut_off(self):
    """Returns a peer that it cannot reach over the forest; None for none."""
    if {self.index} in self.world.cut:
      return self.index
    packed = self.world.rendezvous.packed
    if packed is None:
      return None
    workers = packed.cluster.workers
    for tree in packed.forest.trees:
      for hop in (*tree.up, *tree.down):
        ends = [workers.index(hop[0]), workers.index(hop[-1])]
        if self.index in ends and {*ends} in self.world.cut:
          return sum(ends) - self.index
    return None

  def lose_cut(self):
    self.lose(self.cut_off())

  def compare(self):
    self.doing = 'nothing'
    source = self.world.lives[self.order.source[1]]
    cut = {self.index, source.index} in self.world.cut
    if not source.living or source.version != self.order.version or cut:
      self.lose(source.index)
      return
    apart = abs(self.bits - source.bits)
    if self.order.replaces or apart <= drift.BOUND:
      self.bits = source.bits
    self.say(
      messages.StateCompared(self.generation, self.version, self.digest, apart)
    )

  def compute(self):
    parts = self.world.parts.setdefault(
      (self.generation, self.deal.version), {}
    )
    parts[self.index] = self.deal.ranges
    self.doing = 'waiting'

  def apply(self):
    version = self.deal.version
    if version != self.version:
      raise AssertionError(f'{version} applied to {self.version}')
    parts = self.world.parts[self.generation, version]
    self.learned.append((version, tuple(sorted(parts.items()))))
    self.bits += self.world.rounding.get(self.index, 0.0)
    numbers = sum(self.world.written(index) for index in parts)
    self.last = numbers.tolist()
    self.doing = 'nothing'
    if self.index == 0:
      self.world.completed(version, self.last)
