"""Membership of a run with parameter servers: of workers and of servers.

the coordinator gets these events beside those of
`distributed.reception`:

  told 'here'     a server can be reached
  told 'ready'    a worker has connected to all servers
  told 'arrived'  a server has received a whole push: worker, life, server,
                  at (monotonic seconds), and the header of the push

A worker that was asked to write its part of a checkpoint answers:

  told 'kept'     step, number of the checkpoint; known: whether the worker has
                  the state that belongs into it; error: why the part could not
                  be written, or None

One that was asked for an evaluation answers:

  told 'evaluated'  number of the evaluation; figures, by name, or None; error:
                    why there are none, or None

Workers are sent the addresses of the servers once all servers can be reached.
Until the run begins, a server that is lost may rejoin.  From then on the loss
of a server ends the run, and no other process can take its rank.  If servers
run in the processes of workers, a process gets both ranks or neither.
"""

import functools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from cluster.membership import checked
from cluster.membership.admission import Reception
from cluster.membership.members import Incarnation, Rank, RemoteServer
from cluster.network.streams import Closed, Corrupt, Stream, TransportError
from cluster.parameter_server import evaluation
from cluster.parameter_server.answers import Answers
from cluster.parameter_server.keeping import Report
from cluster.parameter_server.residuals import Since
from cluster.parameter_server.server import Server
from cluster.parameter_server.servers import Key, Orders
from cluster.process.deadlines import Deadlines
from cluster.process.exits import Unmendable


class ParameterServerReception(Reception):
  """The coordinator's control streams to all workers and servers."""

  _words = checked.OF_WORKERS | {
    'event': {'event': lambda value: False},
    'ready': {
      **checked.OF_WORKERS['ready'],
      'accelerator': lambda value: value in (True, False, None),
    },
  }
  _told = {
    'kept': {
      'step': checked.is_count,
      'known': lambda value: type(value) is bool,
      'error': lambda value: value is None or checked.is_text(value),
    },
    'evaluated': {
      'number': checked.is_count,
      'figures': checked.is_figures,
      'error': lambda value: value is None or checked.is_text(value),
    },
  }

  def __init__(
    self,
    *,
    orders: Orders,
    num_servers: int,
    dedicated: bool,
    greeting: Callable[[], Mapping[str, Any]],
    deadlines: Deadlines,
    **of_workers: Any,
  ):
    """Creates the reception; it does not listen yet.

    Args:
      orders: Receives the servers' answers.
      num_servers: Number of servers.
      dedicated: Whether servers have processes of their own.
      greeting: Returns the first message to a server.
      deadlines: Progress deadlines, after which a server counts as lost.
      **of_workers: Arguments of `Reception`.
    """
    super().__init__(**of_workers)
    self._orders = orders
    self._answers = Answers(orders)
    self._num_servers = num_servers
    self._dedicated = dedicated
    self._greeting = greeting
    self._deadlines = deadlines
    self._own: Server | None = None
    self._remote: dict[int, RemoteServer] = {}
    self._addresses: dict[int, str] = {}  # That servers had last.
    self._server_ranks = [Rank() for _ in range(num_servers)]
    self._begun = False
    # By worker and life, and by checkpoint: whether its part is written.
    self._parts: dict[Key, dict[int, Future]] = {}
    self._evaluations: dict[Key, dict[int, Future]] = {}  # By number.
    self._ended: set[Key] = set()

  def open(self, make: Callable[[Report, Mapping[str, Any]], Server]) -> str:
    """Starts to listen, and creates server 0 in this process.

    Args:
      make: Creates the server, given the function for its reports and the first
        message to servers.

    Returns:
      The address of the listener.
    """
    greeting = self._greeting()
    # Servers that outlive a coordinator must not mistake the next one for it.
    self._first = {**greeting, 'coordinator': secrets.token_hex(8)}
    address = self.listen()
    own = make(functools.partial(self.told, 0), greeting)
    own.open(self._host, self._security)
    with self._lock:
      self._own = own
    self._came()
    return address

  def begin(self) -> list[Server | RemoteServer]:
    """Begins the run, if all workers and servers have joined.

    From then on the loss of a server ends the run.

    Returns:
      The servers, in the order of their shares; none if the run cannot begin
      yet.
    """
    with self._lock:
      servers = self._servers()
      if all(member.stream for member in self.members):
        self._begun = bool(servers)
        for rank in self._server_ranks:
          rank.final = self._begun
      return servers if self._begun else []

  def save(self, index: int, step: int, since: Since) -> Future:
    """Asks a worker to write its part of a checkpoint.

    Args:
      index: The worker.
      step: Number of the checkpoint.
      since: Iteration, or earlier checkpoint, from which the codec state
        (residuals) of the part comes.

    Returns:
      A future: True once the part is written; False if the worker lacks that
      state or is lost; an OSError if it could not write.
    """
    member, part = self.members[index], Future()
    key = index, member.life
    with self._lock:
      if key in self._ended:
        part.set_result(False)
        return part
      self._parts.setdefault(key, {})[step] = part
    self.send(member.stream, {'save': step, 'since': since})
    return part

  def ask(
    self, number: int, address: str, passed: set[Key]
  ) -> evaluation.Asked | None:
    """Asks the first worker that has an accelerator for an evaluation.

    Args:
      number: Number of the evaluation, under which its version is fetched.
      address: Address where it is fetched.
      passed: Workers and incarnations that are not asked.

    Returns:
      The question; None if there is no such worker.
    """
    with self._lock:
      able = (
        member.holder
        for member in self.members
        if member.holder and member.holder.ready and member.holder.accelerator
      )
      keys = ((visit, (visit.index, visit.life)) for visit in able)
      visit, key = next(
        (each for each in keys if each[1] not in passed | self._ended),
        (None, (-1, -1)),
      )
      if visit is None:
        return None
      answer: Future = Future()
      self._evaluations.setdefault(key, {})[number] = answer
    self.send(visit.stream, {'evaluate': number, 'address': address})
    return evaluation.Asked(*key, answer)

  def _take_ready(self, visit: Incarnation, event: dict[str, Any]) -> None:
    visit.accelerator = event.pop('accelerator', None) is True
    super()._take_ready(visit, event)

  def _tell(self, event: dict[str, Any]) -> None:
    key = event['worker'], event['life']
    if event['event'] == 'kept':
      part = self._asked(self._parts, key, event['step'])
      if event['error'] is None:
        part.set_result(event['known'])
      else:
        part.set_exception(OSError(f'Worker {key[0]}: {event["error"]}'))
    elif event['event'] == 'evaluated':
      answer = self._asked(self._evaluations, key, event['number'])
      if event['figures'] is None:
        answer.set_exception(evaluation.Lost(str(event['error'])))
      else:
        answer.set_result(event['figures'])
    else:
      super()._tell(event)

  def _asked(
    self, questions: dict[Key, dict[int, Future]], key: Key, number: int
  ) -> Future:
    """Returns a future that a worker was asked for, which is no longer open.

    Raises:
      Corrupt: If it was not asked.
    """
    with self._lock:
      future = questions.get(key, {}).pop(number, None)
    if future is None:
      raise Corrupt(f'Worker {key[0]} answers what it was not asked.')
    return future

  def _gone(self, index: int, life: int) -> None:
    key = index, life
    with self._lock:
      self._ended.add(key)
      parts = self._parts.pop(key, {})
      answers = self._evaluations.pop(key, {})
    for part in parts.values():
      part.set_result(False)
    for answer in answers.values():
      answer.set_exception(evaluation.Lost('it is lost'))

  @property
  def obeyed(self) -> int:
    """Number of orders that all servers have executed, once all have joined."""
    return min(server.doing['obeyed'] for server in self._servers())

  def give_up(self, reason: str) -> None:
    """Makes the event loop end the run with `Unmendable`; from any thread.

    Waits for answers of servers end with the same exception.

    Args:
      reason: Message of the exception.
    """
    super().give_up(reason)
    self._orders.fail(Unmendable(reason))

  def _close_others(self) -> None:
    with self._lock:
      servers = list(self._remote.values())
    for server in servers:
      self.send(server.stream, self._end)
    self._orders.fail(Unmendable('The run is over.'))
    if self._own:
      self._own.close(self._timeout_s)

  def _absent(self) -> list[str]:
    with self._lock:
      servers = set(range(1, self._num_servers)) - set(self._remote)
    return [f'server {k}' for k in sorted(servers)] + super()._absent()

  def _checked(self, hello: Any) -> dict[str, Any]:
    return checked.hello(
      hello, workers=len(self.members), servers=self._num_servers
    )

  def _handle(self, stream: Stream, hello: Any) -> None:
    hello = self._greeted(stream, hello)
    if 'server' in hello:
      self._serve_server(stream, hello)
    else:
      self._serve_worker(stream, hello)

  def _worker_ranks(self, index: int) -> dict[str, Rank]:
    ranks = super()._worker_ranks(index)
    if not self._dedicated and 0 < index < self._num_servers:
      ranks[f'server {index}'] = self._server_ranks[index]
    return ranks

  def _serve_server(self, stream: Stream, hello: Mapping[str, Any]) -> None:
    index, name = hello['server'], f'server {hello["server"]}'
    rank = self._server_ranks[index]
    ranks: dict[str, Rank] = {name: rank}
    if not self._dedicated:
      ranks[f'worker {index}'] = self.members[index]
    taken = self._take_rank(stream, index, hello['process'], ranks)
    if taken is None:
      return
    visit, before = taken
    if before is not None:  # If it is alive, it reconnects and is refused.
      before.stream.cancel('A newer incarnation of it is there.')
    server, life = RemoteServer(visit), visit.life
    try:
      stream.send(self._first)
      while True:
        message = stream.receive()
        said = checked.of_server(message.header, stream.peer)
        visit.seen = time.monotonic()
        self._roll.seen(name, life, said.get('doing', ''))
        if 'beat' in said:
          server.doing = said.get('orders') or server.doing
          stream.send({'beat': said['beat'], 'clock': time.monotonic()})
        elif 'address' in said:
          server.address = said['address']
          self._take_in(index, server)
        elif 'event' in said:
          self.told(index, said, _noted(message.chunks, visit))
    except TransportError as error:
      self._roll.lost(name, life, str(error))
      with self._lock:
        if rank.holder is visit:
          rank.holder = None
        mine = self._remote.get(index) is server
        if mine and not self._begun:
          del self._remote[index]
      if mine and self._begun:
        self.give_up(f'Server {index} is lost: {error}')

  def _take_in(self, index: int, server: RemoteServer) -> None:
    """Records a server that can be reached, for the run to use.

    Workers that have connected to its predecessor are evicted: they rejoin.

    Args:
      index: The server.
      server: Its new process.

    Raises:
      Closed: If the run has begun, or another process has the rank by now.
    """
    with self._lock:
      if self._begun or self._server_ranks[index].holder is not server.visit:
        raise Closed('The run goes on with another server.')
      before = self._addresses.get(index, server.address)
      self._addresses[index] = server.address
      self._remote[index] = server
      told = [visit for visit in self._visits if visit.told]
    if before != server.address:
      # A new process does not know the workers of its predecessor.
      reason = f'Server {index} has come back as another process.'
      for visit in told:
        self.evict(visit.index, visit.stream, reason)
    self._came()
    self.events.put({'event': 'here'})

  def _came(self) -> None:
    """Sends workers the servers' addresses, once all can be reached."""
    with self._lock:
      servers = [server.address for server in self._servers()]
      visits = [visit for visit in self._visits if not visit.told]
      for visit in visits if servers else ():
        visit.told = True
    for visit in visits if servers else ():
      self.send(visit.stream, {'servers': servers})

  def _servers(self) -> list[Server | RemoteServer]:
    """Returns all servers, or none if one has not joined; under the lock."""
    if self._own is None or len(self._remote) < self._num_servers - 1:
      return []
    return [self._own, *(self._remote[k] for k in range(1, self._num_servers))]

  def told(
    self, server: int, event: dict[str, Any], body: Iterable[np.ndarray]
  ) -> None:
    """Handles a report of a server; from any thread.

    Args:
      server: The server.
      event: The event that it reports.
      body: Bytes that belong to the event.

    Raises:
      Corrupt: If the server answers a question that it was not asked.
    """
    if event['event'] == 'unmendable':
      self.give_up(f'Server {server}: {event["reason"]}')
    elif event['event'] in ('saved', 'snapshot'):
      self._answers.take(server, event, body)
    elif self._has_lived(event['worker'], event['life']):
      self.events.put(event | {'server': server, 'at': time.monotonic()})

  def _has_lived(self, worker: int, life: int) -> bool:
    """Returns whether an incarnation exists; servers have it from workers."""
    return worker < len(self.members) and life < self.members[worker].lives

  def _watch_others(self, now: float) -> None:
    with self._lock:
      servers = list(self._remote.items())
    for index, server in servers:
      silent = now - server.visit.seen > self._timeout_s
      reason = 'It was silent for too long.' if silent else ''
      if reason := reason or self._stuck(server.doing):
        if self._begun:
          self.give_up(f'Server {index} is lost: {reason}')
        server.stream.cancel(reason)
    if self._own and (reason := self._stuck(self._own.doing)):
      self.give_up(f'Server 0 is lost: {reason}')

  def _stuck(self, doing: Mapping[str, Any]) -> str:
    """Returns why a server has missed its deadline; '' if it has not."""
    if not doing['order']:
      return ''
    return self._deadlines.server(
      doing['order'], doing['since_s'], doing['usual_s']
    )


def _noted(
  chunks: Iterator[np.ndarray], visit: Incarnation
) -> Iterator[np.ndarray]:
  """Yields chunks; each counts as a heartbeat, which it may delay."""
  for chunk in chunks:
    visit.seen = time.monotonic()
    yield chunk
