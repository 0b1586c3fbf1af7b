"""Simulated workers of the allreduce runs of `replicas`, for tests."""

import hashlib

from cluster.allreduce.admission import AllreduceReception
from cluster.allreduce.replication import Standby
from cluster.membership.process import Settings
from cluster.membership.quorum import Quorum
from cluster.network import messages
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.process.deadlines import Deadlines, Jobs
from learning import drift

BATCH = 8


class Reception(AllreduceReception):
  """Real reception without a listener, whose streams are sessions."""

  def __init__(self, workers, min_workers=0):
    deadlines = Deadlines(timeout_s=1e6, start_s=1e6, windows=True)
    super().__init__(
      num_workers=workers,
      settings=Settings(Port('127.0.0.1', 0, Security()), '', 1e6, 1e6, ''),
      jobs=Jobs(deadlines),
    )
    self.quorum = Quorum(
      num_workers=workers, min_workers=min_workers, grace_s=0.0
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
  """Simulated stream of a member to the coordinator, from admission to end.

  Attributes:
    process: Identity of the member's process.
    incarnation: Incarnation in the reception; None if it was rejected.
    to_member: Messages of the coordinator that have not arrived.
    to_coordinator: Messages to the coordinator that have not arrived.
    index: Index of the worker.
    version: Number of applied updates.
    learned: Applied updates, each as version and examples by worker.
    doing: Present activity.
    bits: Difference of the parameters from exact ones.
    standby: State that the member retains to succeed the coordinator.
    due: Version of a state to retain; None for none.
    state_version: Version of a retained state; None for none.
    recorded: Version from which updates are retained; None if none are.
  """

  def __init__(self, world, index, process, learned):
    self.world, self.index, self.process = world, index, process
    self.peer = f'{process} of {index}'
    self.to_member, self.to_coordinator, self.inbox = [], [], []
    self.learned, self.bits = learned, world.rounding.get(index, 0.0)
    self.is_fresh, self.last = True, []
    self.membership_epoch = self.stopped = -1
    self.is_alive, self.standby = True, Standby()
    self.doing, self.assignment, self.connect_message = 'nothing', None, None
    self.due = self.state_version = self.recorded = None
    hello = messages.WorkerHello(index, process, '')
    self.incarnation = world.reception.admit(self, hello)
    if self.incarnation is None:
      self.is_alive = False
      return
    self.number = self.incarnation.number
    self.address = f'{index}/{self.number}'
    self.send_to_coordinator(messages.ReplicaReady(self.address))

  def send(self, message):
    self.to_member.append(message)

  @property
  def version(self):
    return len(self.learned)

  @property
  def digest(self):
    state = str((self.learned, self.bits))
    return hashlib.sha256(state.encode()).hexdigest()

  # Attributes of the learner that the store uses.
  params = stats = ()

  def state(self):
    return list(self.learned)

  def send_to_coordinator(self, message):
    self.to_coordinator.append(message)

  def end(self):
    """Ends the member's process or its stream."""
    if self.is_alive:
      self.is_alive, self.doing = False, 'nothing'
      self.send_to_coordinator('the stream has ended')

  def arrive(self):
    """Receives the next message of the coordinator."""
    message = self.to_member.pop(0)
    if isinstance(message, messages.SessionEnd):
      self.end()
      return
    if isinstance(message, messages.CoordinatorState):
      self.standby.take_state(message)
      return
    if isinstance(message, messages.StopEpoch) and not message.completes:
      self.stopped = max(self.stopped, message.membership_epoch)
    self.inbox.append(message)

  def actions(self):
    """Yields the functions that the member's main thread may call now."""
    if self.doing == 'nothing':
      if self.inbox:
        yield self.handle
    elif self.doing == 'fetching':
      yield self.fetch
    elif self.doing == 'comparing':
      yield self.compare
    elif self.doing == 'catching up':
      yield self.catch_up
    elif self.doing == 'forming':
      peers = self.world.peers(self.connect_message)
      if self.stopped > self.membership_epoch:
        yield self.give_up
      elif self.unreachable_peer() is not None:
        yield self.lose_unreachable
      elif all(self.membership_epoch in peer.joined for peer in peers):
        yield self.connect
      elif any(
        not p.is_alive or p.stopped > self.membership_epoch for p in peers
      ):
        yield self.lose
    elif self.doing == 'computing':
      yield self.compute
    elif self.doing == 'waiting':
      peers = self.world.peers(self.connect_message)
      parts = self.world.parts[self.membership_epoch, self.assignment.version]
      lost = any(
        not p.is_alive or p.stopped > self.membership_epoch for p in peers
      )
      if len(parts) == len(peers) and self.stopped <= self.membership_epoch:
        yield self.apply
      if self.stopped > self.membership_epoch:
        yield self.give_up
      elif lost:
        yield self.lose

  @property
  def joined(self):
    return self.world.joined[self.address]

  def handle(self):
    message = self.inbox.pop(0)
    match message:
      case messages.ConnectMembers():
        self.connect_message, self.membership_epoch = (
          message,
          message.membership_epoch,
        )
        if message.members:
          addresses = message.members.addresses
          self.standby.note_formed(message.membership_epoch, addresses)
        if message.sources and (
          self.version != message.version or self.is_fresh
        ):
          self.doing = 'fetching'
        else:
          self.join()
      case messages.Assignment():
        if self.world.accepts(self, message):
          self.doing, self.assignment = 'computing', message
          self.standby.take_assignment(message)
      case messages.CheckState():
        self.send_to_coordinator(
          messages.StateDigest(message.membership_epoch, *self.report)
        )
      case messages.CompareState():
        if message.membership_epoch == self.membership_epoch >= self.stopped:
          self.doing, self.comparison = 'comparing', message
      case messages.RetainState():
        self.due = message.version
        self.retain_if_due()
      case messages.ReleaseState():
        if message.before is None:
          self.due = self.state_version = self.recorded = None
        elif self.recorded is not None:
          self.recorded = max(self.recorded, message.before)
          if (self.state_version or 0) < message.before:
            self.state_version = None
      case messages.CatchUp():
        self.doing, self.order = 'catching up', message
      case messages.StopEpoch():
        self.stopped = max(self.stopped, message.membership_epoch)
        version, last = self.version, self.last
        if self.is_fresh:
          version, last = 0, []
        self.send_to_coordinator(
          messages.EpochStopped(message.membership_epoch, version, last)
        )

  @property
  def report(self):
    return self.version, self.digest, []

  def join(self):
    self.is_fresh, self.doing = False, 'forming'
    self.joined.add(self.membership_epoch)

  def fetch(self):
    source = self.world.sessions[self.connect_message.sources[0][1]]
    cut = {self.index, source.index} in self.world.cut
    has_state = (
      source.is_alive and source.version == self.connect_message.version
    )
    if has_state and not cut:
      self.learned, self.last = list(source.learned), []
      self.due = self.state_version = self.recorded = None
      self.standby.forget()
      self.bits = source.bits
      self.join()
    else:
      self.lose(source.index)

  def retain_if_due(self):
    if self.due == self.version:
      self.state_version, self.due = self.version, None
      if self.recorded is None:
        self.recorded = self.version

  def catch_up(self):
    """Fetches what the first source has that is alive and retains it."""
    self.doing, order = 'nothing', self.order
    for _, address in order.sources:
      source = self.world.sessions[address]
      has_state = (
        source.state_version == order.version
        if order.since is None
        else None not in (source.recorded, order.since)
        and source.recorded <= order.since == self.version
        and order.version <= source.version
      )
      cut = {self.index, source.index} in self.world.cut
      if source.is_alive and has_state and not cut:
        start = order.since or 0
        self.learned[start:] = source.learned[start : order.version]
        self.bits = source.bits if order.since is None else self.bits
        self.is_fresh, self.last = False, []
        self.standby.forget()
        self.send_to_coordinator(messages.CaughtUp(order.version))
        return
    self.send_to_coordinator(messages.CaughtUp(order.version, 'failed'))

  def connect(self):
    self.doing = 'nothing'
    self.send_to_coordinator(
      messages.Connected(self.membership_epoch, *self.report)
    )

  def give_up(self):
    self.doing = 'nothing'

  def lose(self, peer=-1):
    self.doing = 'nothing'
    if peer == -1:
      lost = [
        p.index
        for p in self.world.peers(self.connect_message)
        if not p.is_alive
      ]
      if not lost:  # The peers have left without a death.
        return
      peer = lost[0]
    self.send_to_coordinator(
      messages.ConnectionLost(self.membership_epoch, peer, 'has left')
    )

  def unreachable_peer(self):
    """Returns a peer that is cut off in the forest; None without one."""
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

  def lose_unreachable(self):
    self.lose(self.unreachable_peer())

  def compare(self):
    self.doing = 'nothing'
    source = self.world.sessions[self.comparison.sources[0][1]]
    cut = {self.index, source.index} in self.world.cut
    if not source.is_alive or source.version != self.comparison.version or cut:
      self.lose(source.index)
      return
    difference = abs(self.bits - source.bits)
    if self.comparison.replaces or difference <= drift.BOUND:
      self.bits = source.bits
    self.send_to_coordinator(
      messages.StateCompared(
        self.membership_epoch, self.version, self.digest, difference
      )
    )

  def compute(self):
    parts = self.world.parts.setdefault(
      (self.membership_epoch, self.assignment.version), {}
    )
    parts[self.index] = self.assignment.ranges
    self.doing = 'waiting'

  def apply(self):
    version = self.assignment.version
    if version != self.version:
      raise AssertionError(f'{version} applied to {self.version}')
    parts = self.world.parts[self.membership_epoch, version]
    self.learned.append((version, tuple(sorted(parts.items()))))
    self.bits += self.world.rounding.get(self.index, 0.0)
    numbers = sum(
      self.world.write_statistics(index, ranges)
      for index, ranges in parts.items()
    )
    self.last = numbers.tolist()
    self.standby.take_statistics(version, self.last)
    self.retain_if_due()
    self.doing = 'nothing'
    if self.index == self.world.local:
      self.world.complete(version, self.last)
