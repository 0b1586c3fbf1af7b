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

from cluster.gradient import Gradient
from cluster.journal import Journal
from cluster.network import Network
from cluster.server import Server
from cluster.speed import Speed
from data.stream import Ranges, Stream
from sync import record
from sync.scheme import Push, Scheme, Verdict

# Simultaneous events happen in this order, and then by worker.
_COMPUTED, _LEAVE, _JOIN, _PUSH, _WAKE = range(5)

# Attributes of a cluster that change while it runs.
_STATE = ('time', '_scheme', '_stream', '_network', '_workers', '_flows')
_STATE += ('_pushes', '_wake', '_events')


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
  """A worker's iteration in flight."""

  life: int = 0  # Events of an earlier life are dropped.
  iteration: int = -1
  phase: str | None = None  # One of ledger.PHASES; None before start and gone.
  since: float = 0.0
  flows: set[int] = dataclasses.field(default_factory=set)
  version: int = 0
  params: Any = None
  ranges: Ranges = ()
  examples: int = 0
  compute_s: float = 0.0


class VirtualCluster:
  """Workers and servers under a virtual clock.

  Attributes:
    time: Seconds since the start.
    num_workers: Number of workers.
    server: Holds the parameters.
    gradient: Computes the pushes.
  """

  def __init__(
    self,
    *,
    scheme: Scheme,
    server: Server,
    gradient: Gradient,
    stream: Stream,
    speed: Speed,
    network: Network,
    num_workers: int,
    num_servers: int,
    worker_batch: int,
    script: Sequence[Sequence[Any]],
    journal: Journal,
  ):
    """Sets the cluster up at time 0.

    Args:
      scheme: Says when a worker may go on.
      server: Holds the parameters, in equal shards on all servers.
      gradient: Computes pushes.
      stream: Which examples an iteration uses.
      speed: How long workers compute.
      network: Its hosts are the workers and then the servers.
      num_workers: Number of workers.
      num_servers: Number of servers.
      worker_batch: Examples of an iteration.
      script: Deaths and returns of workers, as Scripted has them.
      journal: Follows the run and says when it has finished.

    Raises:
      ValueError: If the script names no such worker, a time before 0, or lets a
        worker die or return twice in a row.
    """
    self.time = 0.0
    self.num_workers = num_workers
    self.server = server
    self.gradient = gradient
    self._scheme = scheme
    self._stream = stream
    self._speed = speed
    self._network = network
    self._batch = worker_batch
    self._journal = journal
    self._workers = [_Worker() for _ in range(num_workers)]
    self._shards = _shards(server.size_bytes, num_servers)
    self._flows: dict[int, tuple[int, int]] = {}  # To (worker, bytes).
    self._pushes = 0
    self._wake = 0  # Which wake is pending: later ones replace earlier ones.
    # (time, kind, worker or wake, life of the worker).
    kinds = {'leave': _LEAVE, 'join': _JOIN}
    self._events = [
      (s.time, kinds[s.event], s.worker, -1)
      for s in _script(script, num_workers)
    ]
    heapq.heapify(self._events)

  def warm_up(self) -> None:
    """Compiles everything that `run` will need."""
    self.gradient.warm_up(self.server.params, self._batch)
    self.server.warm_up()

  def start(self) -> None:
    """Releases the first iterations; once, and not after `restore`.

    Raises:
      ValueError: If the scheme is not one for these workers.
    """
    verdict = record.tell(self._scheme, 'start', time=self.time)
    if verdict.release != tuple(range(self.num_workers)):
      raise ValueError(
        f'scheme: expected the start to release all {self.num_workers} '
        f'workers, got {verdict.release}.'
      )
    self._carry_out('start', {'time': self.time}, verdict)

  def step(self) -> None:
    """Goes on to the next event and carries out all that follows from it.

    Raises:
      RuntimeError: If nothing can happen any more.
      FloatingPointError: If a loss is not finite.
    """
    while self._events and self._is_stale(*self._events[0][1:]):
      heapq.heappop(self._events)
    arrival = self._network.next_time()
    event = self._events[0][0] if self._events else math.inf
    if arrival == event == math.inf:
      raise RuntimeError(self._stuck())
    self.time = min(arrival, event)
    if arrival <= event:
      for flow in self._network.advance(arrival):
        self._arrived(flow)
    else:
      self._happened(*heapq.heappop(self._events)[1:])

  def state(self) -> dict[str, Any]:
    """Returns all that a step changes, here, in the server and below."""
    return {
      **{name: getattr(self, name) for name in _STATE},
      'server': self.server.state(),
      'gradient': self.gradient.state(),
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the cluster's from now on."""
    for name in _STATE:
      setattr(self, name, state[name])
    self.server.restore(state['server'])
    self.gradient.restore(state['gradient'])

  def close(self) -> None:
    """Ends what every worker is in the middle of, for the accounts."""
    for index in range(len(self._workers)):
      self._enter(index, None)

  @property
  def issued(self) -> int:
    """How many positions of the stream were ever issued."""
    return self._stream.cursor

  @property
  def script_unreached(self) -> list[tuple[float, str, int]]:
    """Entries of the script that the run ended before."""
    names = {_LEAVE: 'leave', _JOIN: 'join'}
    return [
      (time, names[kind], worker)
      for time, kind, worker, _ in sorted(self._events)
      if kind in names
    ]

  @property
  def outstanding(self) -> list[tuple[int, int]]:
    """Positions of the stream that were issued and not pushed, as ranges."""
    return [
      (int(start), int(stop)) for start, stop in self._stream.outstanding()
    ]

  def _is_stale(self, kind: int, number: int, life: int) -> bool:
    if kind == _WAKE:
      return number != self._wake
    return kind in (_COMPUTED, _PUSH) and life != self._workers[number].life

  def _happened(self, kind: int, number: int, _: int) -> None:
    if kind == _COMPUTED:
      self._transfer(number, 'push')
    elif kind == _PUSH:
      self._push(number)
    elif kind == _WAKE:
      self._tell('wake', time=self.time)
    elif kind == _LEAVE:
      self._leave(number)
    else:
      self._enter(number, 'wait')
      self._tell('join', worker=number, time=self.time)

  def _tell(self, told: str, **event: Any) -> None:
    """Tells the scheme of an event that carries no gradient and obeys it."""
    self._carry_out(told, event, record.tell(self._scheme, told, **event))

  def _carry_out(
    self, told: str, event: dict[str, Any], verdict: Verdict
  ) -> None:
    self._journal.told(told, event, verdict)
    self._obey(verdict)

  def _push(self, index: int) -> None:
    """Computes the gradient of a push that has arrived; obeys the verdict."""
    worker = self._workers[index]
    payload, loss = self.gradient(
      worker.params,
      worker.ranges,
      worker=index,
      iteration=worker.iteration,
    )
    worker.params = None
    push = Push(
      id=self._pushes,
      worker=index,
      time=self.time,
      compute_s=worker.compute_s,
      examples=worker.examples,
    )
    self._pushes += 1
    self._stream.done(index)
    self._enter(index, 'wait')
    verdict = self._scheme.push(push)
    self._journal.told('push', push._asdict(), verdict)
    self.server.add(verdict.into, payload, push.examples)
    self._journal.pushed(
      verdict.into,
      push,
      iteration=worker.iteration,
      pulled=worker.version,
      loss=loss,
    )
    self._obey(verdict)

  def _obey(self, verdict: Verdict) -> None:
    self._wake += 1
    if verdict.wake_at is not None:
      event = (max(verdict.wake_at, self.time), _WAKE, self._wake, -1)
      heapq.heappush(self._events, event)
    for update in verdict.commit:
      self.server.commit(update)
      self._journal.committed(update)
    self._journal.reached(self.time, barrier=verdict.barrier)
    if not self._journal.finished:
      for worker in verdict.release:
        self._start_iteration(worker)

  def _start_iteration(self, index: int) -> None:
    worker = self._workers[index]
    worker.iteration += 1
    worker.version = self.server.version
    worker.params = self.server.params
    worker.ranges = self._stream.take(index, self._batch)
    worker.examples = self._batch
    self._transfer(index, 'pull')

  def _transfer(self, index: int, phase: str) -> None:
    """Starts a flow from or to every server."""
    self._enter(index, phase)
    for server, size in enumerate(self._shards, start=len(self._workers)):
      ends = (server, index) if phase == 'pull' else (index, server)
      flow = self._network.start(self.time, *ends, size)
      self._workers[index].flows.add(flow)
      self._flows[flow] = index, size

  def _arrived(self, flow: int) -> None:
    index, size = self._flows.pop(flow)
    worker = self._workers[index]
    worker.flows.remove(flow)
    self._journal.ledger.bytes += size
    if worker.flows:
      return
    if worker.phase == 'push':
      self._schedule(self.time, _PUSH, index)
      return
    self._enter(index, 'compute')
    worker.compute_s = self._speed.seconds(
      index, worker.iteration, worker.examples
    )
    self._schedule(self.time + worker.compute_s, _COMPUTED, index)

  def _leave(self, index: int) -> None:
    worker = self._workers[index]
    for flow in sorted(worker.flows):
      self._network.cancel(self.time, flow)
      del self._flows[flow]
    worker.flows.clear()
    worker.life += 1
    worker.params = None
    self._enter(index, None)
    self._stream.leave(index)
    self._tell('leave', worker=index, time=self.time)

  def _enter(self, index: int, phase: str | None) -> None:
    """Ends a worker's phase and starts another."""
    worker = self._workers[index]
    if worker.phase is not None:
      self._journal.span(index, worker.phase, worker.since, self.time)
    worker.phase = phase
    worker.since = self.time

  def _schedule(self, time: float, kind: int, index: int) -> None:
    life = self._workers[index].life
    heapq.heappush(self._events, (time, kind, index, life))

  def _stuck(self) -> str:
    phases = [worker.phase or 'gone' for worker in self._workers]
    return (
      f'Nothing can happen after {self.time} s: the workers are {phases}.  A '
      'run whose workers all leave needs a join in config.cluster.script.'
    )


def _shards(size_bytes: int, num_servers: int) -> list[int]:
  """Splits the bytes as evenly as possible."""
  each, rest = divmod(size_bytes, num_servers)
  return [each + (server < rest) for server in range(num_servers)]


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
