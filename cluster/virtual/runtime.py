"""The virtual runtime: a cluster as discrete events in one process.

Time is simulated, the gradients are real.  A released worker pulls the version
of that moment, computes for as long as its speed says, and pushes; the bytes
share links as `cluster.network` says.  Its gradient is computed when the push
arrives, from the very version that was pulled: until then an iteration in
flight is only a version, a slice of the data and some times.
"""

import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from cluster.lead import Lead
from cluster.speed.speed import Speed
from cluster.virtual.network import Network
from cluster.virtual.transfers import Delivered, Pipelined, Transfers
from learning.gradient import Gradient
from wire.dense import Wire
from wire.flat import even

# Simultaneous events happen in this order, and then by worker.
_COMPUTED, _LEAVE, _JOIN, _PUSH, _WAKE = range(5)

# Attributes of a cluster that change while it runs.
_STATE = ('time', '_workers', '_transfers', '_wake', '_events')


class Scripted(NamedTuple):
  """A worker's death or return.

  Attributes:
    time: Seconds.
    event: 'leave' or 'join'.
    worker: Which one.
  """

  time: float
  event: str
  worker: int


@dataclasses.dataclass
class _Worker:
  """A worker's iteration in flight, beside what the lead knows of it."""

  life: int = 0  # Events of an earlier life are dropped.
  params: Any = None
  compute_s: float = 0.0


class VirtualCluster:
  """Workers and servers under a virtual clock.

  Attributes:
    time: Seconds since the start.
    lead: Asks the scheme.
    gradient: Computes the pushes.
  """

  def __init__(
    self,
    *,
    lead: Lead,
    gradient: Gradient,
    wire: Wire,
    speed: Speed,
    network: Network,
    num_servers: int,
    pipelined: bool,
    script: Sequence[Sequence[Any]],
  ):
    """Sets the cluster up at time 0.

    Args:
      lead: Asks the scheme; its server's parameters are in equal shards on all
        servers.
      gradient: Computes pushes.
      wire: What becomes of pushes and pulls on their way.
      speed: How long workers compute.
      network: Its hosts are the workers and then the servers.
      num_servers: Number of servers.
      pipelined: Whether pushes and pulls overlap, as `transfers` says.
      script: Deaths and returns of workers, as Scripted has them.

    Raises:
      ValueError: If the script names no such worker, a time before 0, or lets a
        worker die or return twice in a row.
    """
    self.time = 0.0
    self.lead = lead
    self.gradient = gradient
    self._speed = speed
    self._workers = [_Worker() for _ in lead.workers]
    self._wire = wire
    size_bytes = wire.size_bytes((lead.server.params, lead.server.stats))
    self._transfers = (Pipelined if pipelined else Transfers)(
      network,
      num_workers=len(lead.workers),
      shards=even(size_bytes, num_servers),
    )
    self._wake = 0  # Which wake is pending: later ones replace earlier ones.
    # (time, kind, worker or wake, life of the worker).
    kinds = {'leave': _LEAVE, 'join': _JOIN}
    self._events = [
      (s.time, kinds[s.event], s.worker, -1)
      for s in _script(script, len(lead.workers))
    ]
    heapq.heapify(self._events)
    lead.attach(release=self._pull, wake_at=self._wake_at)

  def warm_up(self) -> None:
    """Compiles everything that the run will need."""
    server, wire = self.lead.server, self._wire
    server.restore(self.gradient.placed(server.state()))
    wire.warm_up(server.params, server.stats)
    self.gradient.warm_up(
      wire.pulled(server.params),
      self.lead.batching.largest,
      changing=self.lead.batching.changes,
    )
    server.warm_up()

  def start(self) -> None:
    """Releases the first iterations; once, and not after `restore`.

    Raises:
      ValueError: If the scheme is not one for these workers.
    """
    self.lead.start(self.time)

  def resume(self) -> None:
    """Goes on after `restore`: nothing to do."""

  def step(self) -> None:
    """Goes on to the next event and carries out all that follows from it.

    Raises:
      RuntimeError: If nothing can happen any more.
      FloatingPointError: If a loss is not finite.
    """
    while self._events and self._is_stale(*self._events[0][1:]):
      heapq.heappop(self._events)
    arrival = self._transfers.network.next_time()
    event = self._events[0][0] if self._events else math.inf
    if arrival == event == math.inf:
      raise RuntimeError(self._stuck())
    self.time = min(arrival, event)
    if arrival <= event:
      self._delivered(self._transfers.advance(arrival))
    else:
      self._happened(*heapq.heappop(self._events)[1:])

  def state(self) -> dict[str, Any]:
    """Returns all that a step changes, here, in the server and below."""
    return {
      **{name: getattr(self, name) for name in _STATE},
      'lead': self.lead.state(),
      'server': self.lead.server.state(),
      'gradient': self.gradient.state(),
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the cluster's from now on."""
    for name in _STATE:
      setattr(self, name, state[name])
    self.lead.restore(state['lead'])
    self.lead.server.restore(state['server'])
    self.gradient.restore(state['gradient'])

  def close(self) -> None:
    """Ends what every worker is in the middle of, for the accounts."""
    self.lead.close(self.time)

  def summary(self) -> dict[str, Any]:
    """Returns what summary.json says of this runtime alone.

    It names the entries of the script that the run ended before.
    """
    names = {_LEAVE: 'leave', _JOIN: 'join'}
    return {
      'virtual_s': self.time,
      'padding_share': self.gradient.padding_share,
      'script_unreached': [
        (time, names[kind], worker)
        for time, kind, worker, _ in sorted(self._events)
        if kind in names
      ],
    }

  def _is_stale(self, kind: int, number: int, life: int) -> bool:
    if kind == _WAKE:
      return number != self._wake
    return kind in (_COMPUTED, _PUSH) and life != self._workers[number].life

  def _happened(self, kind: int, number: int, _: int) -> None:
    if kind == _COMPUTED:
      self.lead.enter(number, 'push', self.time)
      self._transfers.push(self.time, number)
    elif kind == _PUSH:
      self._push(number)
    elif kind == _WAKE:
      self.lead.wake(self.time)
    elif kind == _LEAVE:
      self._leave(number)
    else:
      self.lead.join(number, self.time)

  def _wake_at(self, time: float | None) -> None:
    self._wake += 1
    if time is not None:
      event = (max(time, self.time), _WAKE, self._wake, -1)
      heapq.heappush(self._events, event)

  def _pull(self, index: int) -> None:
    self._workers[index].params = self._wire.pulled(self.lead.server.params)
    self._delivered(self._transfers.pull(self.time, index))

  def _push(self, index: int) -> None:
    """Computes the gradient of a push that has arrived."""
    worker, known = self._workers[index], self.lead.workers[index]
    payload, loss = self.gradient(
      worker.params, known.ranges, worker=index, iteration=known.iteration
    )
    worker.params = None
    self.lead.push(
      index,
      self.time,
      compute_s=worker.compute_s,
      factors=self._speed.driving(index, known.iteration),
      payload=self._wire.pushed(payload),
      loss=loss,
    )

  def _delivered(self, delivered: Delivered) -> None:
    self.lead.journal.ledger.bytes += delivered.size_bytes
    for index in delivered.ended:
      known = self.lead.workers[index]
      if known.phase == 'push':
        self._schedule(self.time, _PUSH, index)
        continue
      self.lead.enter(index, 'compute', self.time)
      seconds = self._speed.seconds(index, known.iteration, known.examples)
      self._workers[index].compute_s = seconds
      self._schedule(self.time + seconds, _COMPUTED, index)

  def _leave(self, index: int) -> None:
    worker = self._workers[index]
    lost = self.lead.workers[index].phase != 'wait'
    self._transfers.leave(self.time, index, lost=lost)
    worker.life += 1
    worker.params = None
    self.lead.leave(index, self.time, 'config.cluster.script')

  def _schedule(self, time: float, kind: int, index: int) -> None:
    life = self._workers[index].life
    heapq.heappush(self._events, (time, kind, index, life))

  def _stuck(self) -> str:
    phases = [worker.phase or 'gone' for worker in self.lead.workers]
    return (
      f'Nothing can happen after {self.time} s: the workers are {phases}.  A '
      'run whose workers all leave needs a join in config.cluster.script.'
    )


def _script(
  entries: Sequence[Sequence[Any]], num_workers: int
) -> list[Scripted]:
  """Returns the entries once they have been checked."""
  if not isinstance(entries, tuple):
    raise ValueError(f'script: expected a tuple of tuples, got {entries!r}.')
  for entry in entries:
    if not _is_scripted(entry, num_workers):
      raise ValueError(
        "script: expected (seconds >= 0, 'leave' or 'join', worker below "
        f'{num_workers}), got {entry!r}.'
      )
  script = [Scripted(*entry) for entry in entries]
  gone: set[int] = set()
  for entry in sorted(script, key=lambda s: (s.time, s.event == 'join')):
    if (entry.event == 'join') != (entry.worker in gone):
      state = 'gone' if entry.worker in gone else 'alive'
      raise ValueError(
        f'script: worker {entry.worker} is {state} at {entry.time} s, '
        f'got {tuple(entry)}.'
      )
    (gone.remove if entry.event == 'join' else gone.add)(entry.worker)
  return script


def _is_scripted(entry: Any, num_workers: int) -> bool:
  if not isinstance(entry, tuple) or len(entry) != len(Scripted._fields):
    return False
  time, event, worker = entry
  return (
    type(time) in (int, float)
    and 0 <= time < math.inf
    and event in ('leave', 'join')
    and type(worker) is int
    and 0 <= worker < num_workers
  )
