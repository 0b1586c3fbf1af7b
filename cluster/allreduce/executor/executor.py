"""The host executor: sums pools of numbers over a forest, between hosts.

One thread does it all: every connection, both directions, all trees.  Its rules
are in `exchange`, its connections in `generation`, `door` and `links`.

Memory: besides the pool, half of it again if anything travels in half of
float32; chunks that cannot be added yet, of each worker whose
parts this one adds at most a window of them (see `Executor.bound_bytes`), and
the system's buffers.  A window is what the forest carries in some time, or two
chunks for each of its trees, or eight, whichever is most.

A wait ends: a peer that does not answer is gone after `timeout_s`, one that is
slow is waited for until `abandon`.  An error in the thread that nobody expected
ends it, too: the generation has failed, and the thread serves the next one.
"""

import contextlib
import functools
import math
import ssl
from collections.abc import Sequence

import numpy as np

from cluster.allreduce.executor import links, program
from cluster.allreduce.executor.errors import (
  Abandoned,
  ExecutorFailed,
  PeerLost,
)
from cluster.allreduce.executor.exchange import Exchange
from cluster.allreduce.executor.generation import Generation, Usage
from cluster.allreduce.executor.links import Hello, Link
from cluster.allreduce.executor.listener import Door
from cluster.allreduce.executor.loop import Loop
from cluster.allreduce.executor.program import Group, Program, Roles
from cluster.allreduce.executor.reduction import Forming, Reduction
from cluster.network import memory, sockets
from cluster.network.errors import Closed, TransportError
from cluster.network.handshake import Security
from configs.checks import require
from topology.forests.dealing import CHUNK_BYTES

__all__ = ['Executor', 'Group', 'Reduction', 'Usage']
_PROGRAMS = 8  # Layouts of pools whose programs are kept.


class Executor:
  """The allreduce executor of one worker, for all its memberships.

  `form` and `begin` are for one thread at a time, the others for any.

  Attributes:
    address: 'host:port' that other executors connect to.
  """

  def __init__(
    self,
    index: int,
    *,
    host: str,
    security: Security,
    timeout_s: float,
    workers: int = 1,
    chunk_bytes: int = CHUNK_BYTES,
  ):
    """Listens from here on.

    Args:
      index: Of this worker.
      host: IPv4 address to listen on, and no other.
      security: Of the run; both `certificate` and `key`, or neither.
      timeout_s: Seconds after which a peer that does not answer is gone.
      workers: How many there are in all groups, at most.
      chunk_bytes: Of a chunk, at most; a multiple of 4.

    Raises:
      TransportError: If the address cannot be listened on, or the process has
        no descriptors left.
      ssl.SSLError: If the certificate is none, or is not that of the key.
      ValueError: If an argument is out of its range.
    """
    expected = 'the IPv4 address of an interface'
    require(sockets.is_specific(host), 'host', expected, host)
    valid = bool(security.certificate) == bool(security.key)
    require(valid, 'security', 'both certificate and key', 'one of them')
    require(timeout_s > 0, 'timeout_s', 'a time above 0', timeout_s)
    valid = chunk_bytes > 0 and chunk_bytes % 4 == 0
    require(valid, 'chunk_bytes', 'a multiple of 4 above 0', chunk_bytes)
    self._index, self._timeout_s = index, timeout_s
    self._chunk_bytes = chunk_bytes
    self._roles: Roles | None = None
    self._programs: dict[tuple, Program] = {}
    self._halves = np.empty(0, np.uint16)
    self._generation: Generation | None = None
    self._reduction: Reduction | None = None  # The last.
    self._waiter: Reduction | Forming | None = None
    self._usage: dict[int, Usage] = {}
    self._formed = -1  # Generation that was formed last.
    self._last = -1  # Generation that was left.
    self._least: float = -1  # Those before were abandoned.
    self._closed = False
    self._failure: ExecutorFailed | None = None  # Since the last `form`.
    with contextlib.ExitStack() as stack:
      try:
        sock = stack.enter_context(links.listening(host))
        contexts = links.contexts(security)
        self._loop = Loop(
          f'executor-{index}',
          each=self._each,
          tick=self._tick,
          failed=self._fail,
          ended=self._ended,
        )
      except ssl.SSLError:
        raise
      except OSError as error:
        raise TransportError(f'{host}: {error}') from error
      stack.pop_all()
    self._door = Door(
      self._loop,
      sock,
      security,
      contexts,
      index=index,
      workers=workers,
      timeout_s=timeout_s,
      came=self._came,
      short=self._fail_forming,
    )
    self.address = self._door.address
    # What float16 cannot hold becomes infinite, and is looked at in the end.
    self._loop.call(lambda: np.seterr(over='ignore', invalid='ignore'))
    self._loop.call(self._door.open)

  @property
  def bound_bytes(self) -> int:
    """The most memory for chunks that cannot be added yet, in the group."""
    own = self._roles
    return len(own.adding) * own.window * own.chunk_bytes if own else 0

  def form(self, group: Group, limit_s: float | None = None) -> None:
    """Connects this worker with the others of a new generation.

    Returns when its neighbours have done the same.  The generation before is
    left.

    Args:
      group: Its members.
      limit_s: Seconds within which others have to come; None for `timeout_s`.

    Raises:
      PeerLost: If a member cannot be reached, or is gone.
      ExecutorFailed: If this executor cannot take part, whoever the members
        are; a later generation may be formed all the same.
      Abandoned: If the generation was abandoned, before or meanwhile.
      TransportError: If not all have come in time; says who.
      ValueError: If the forest is none for the members, or the generation is
        not a later one.
    """
    number, last = group.generation, self._formed
    require(number > last, 'generation', f'one after {last}', number)
    own = program.roles(group, self._index, chunk_bytes=self._chunk_bytes)
    found = {}
    for worker in own.receivers:
      try:
        found[worker] = sockets.resolved(group.addresses[worker])
      except OSError as error:
        raise PeerLost(worker, str(error)) from error
    forming = Forming()
    start = functools.partial(self._start, group, own, found, forming)
    if self._loop.ask(start) is None:
      raise self._failure or Abandoned('the executor is closed')
    self._roles, self._formed = own, number
    self._programs = {}
    limit_s = self._timeout_s if limit_s is None else limit_s
    if not forming.done.wait(limit_s):
      self._loop.ask(functools.partial(self._late, limit_s))
    if forming.error:
      raise forming.error

  def begin(
    self,
    iteration: int,
    pool: np.ndarray,
    ranges: Sequence[tuple[int, int]],
    dtypes: Sequence[np.dtype] | None = None,
  ) -> Reduction:
    """Begins the sum of an iteration's pools.

    Args:
      iteration: Its number, the same on all workers, above those before.
      pool: float32 [n], contiguous; becomes the sum, in place.
      ranges: First element of each range, and the one after its last: in
        order, all of the pool.  The same on all workers.
      dtypes: What the numbers of each range travel as; None for float32.

    Returns:
      What takes ranges and waits; none of them is ready yet.

    Raises:
      ExecutorFailed: If the executor has ended with an error.
      Abandoned: If there is no generation.
      ValueError: If an argument is not as it should be, or the iteration
        before has not ended.
    """
    valid = pool.dtype == np.float32 and pool.ndim == 1
    valid = valid and pool.flags.c_contiguous and pool.flags.writeable
    expected = 'float32 [n], contiguous, writeable'
    require(valid, 'pool', expected, (pool.dtype.name, pool.shape))
    if self._closed and self._failure:
      raise self._failure
    generation, own = self._generation, self._roles
    if generation is None or own is None:
      raise Abandoned('there is no generation')
    last = generation.iteration
    require(iteration > last, 'iteration', f'one after {last}', iteration)
    ended = self._reduction is None or self._reduction.ended
    require(ended, 'begin', 'the iteration before to have ended', last)
    key = pool.size, tuple(ranges), tuple(dtypes or ())
    if key not in self._programs:
      if len(self._programs) == _PROGRAMS:
        self._programs.clear()
      self._programs[key] = program.program(own, pool.size, ranges, dtypes)
    if dtypes and self._halves.size < pool.size:
      self._halves = memory.aligned(2 * pool.size).view(np.uint16)
    buffers = generation.buffers
    exchange = Exchange(self._programs[key], pool, buffers, self._halves)

    def tell_ready(index: int) -> None:
      self._loop.call(lambda: generation.ready(iteration, index))

    reduction = Reduction(self._index, exchange, tell_ready)
    self._reduction = reduction

    def start() -> None:
      if self._generation is generation:
        self._waiter = reduction
        generation.begin(iteration, exchange)
      else:
        reduction.end(self._failure or Abandoned('the generation was left'))

    if not self._loop.call(start):
      reduction.end(self._failure or Abandoned('the executor is closed'))
    return reduction

  def abandon(self, before: float = math.inf) -> None:
    """Ends the reduction that runs, and the generation; from any thread.

    Who waits gets Abandoned; so do others, once they hear of it.

    Args:
      before: Generations of lower numbers are abandoned, also those that are
        not formed yet; infinity for the one that there is.
    """
    self._loop.ask(functools.partial(self._abandon, before))

  def traffic(self) -> dict[int, Usage]:
    """Returns bytes and busy seconds by peer since the executor was opened."""
    return self._loop.ask(self._used) or dict(self._usage)

  def unanswered(self) -> int:
    """Returns how often this was asked since the thread came to it last."""
    return self._loop.unanswered()

  def close(self) -> None:
    """Abandons the generation, and ends the listener and the thread."""
    self._loop.close()

  # What follows is for the thread of the loop.

  def _make_generation(self, group: Group, own: Roles) -> Generation:
    return Generation(self._loop, group, own, self._index, self._told)

  def _start(
    self, group: Group, own: Roles, found: dict[int, str], forming: Forming
  ) -> bool:
    if self._closed or group.generation < self._least:
      abandoned = Abandoned('the generation was abandoned')
      forming.end((self._closed and self._failure) or abandoned)
      return True
    self._failure = None
    self._leave()
    self._waiter = forming
    generation = self._make_generation(group, own)
    self._generation = generation
    for worker, address in found.items():
      if generation.error:
        break
      hello = Hello(group.generation, self._index, worker)
      host = group.addresses[worker].rpartition(':')[0]
      done = functools.partial(generation.add_out, worker)
      failed = functools.partial(generation.lost, worker)
      self._door.connect(address, host, hello, done, failed)
    for link, hello in self._door.claim(group.generation):
      self._came(link, hello)
    generation.check_formed()
    return True

  def _abandon(self, before: float) -> None:
    if before < math.inf:
      self._least = max(self._least, before)
    if self._generation and self._generation.group.generation < before:
      self._leave()

  def _late(self, limit_s: float) -> None:
    generation = self._generation
    if isinstance(self._waiter, Forming) and generation:
      missing = sorted(generation.missing)
      generation.fail(
        Closed(f'workers {missing} have not come within {limit_s:g} s')
      )

  def _came(self, link: Link, hello: Hello) -> bool:
    """Admits or refuses a peer that need not wait; returns whether it did."""
    now = self._generation
    number = now.group.generation if now else self._last
    if hello.generation > number:
      return False
    if now is None or hello.generation < number:
      self._door.refuse(link, f'generation {hello.generation} is over')
    elif not now.expects(hello.sender):
      self._door.refuse(link, f'worker {hello.sender} is not expected')
    else:
      try:
        links.admit(link)
      except OSError as error:
        now.lost(hello.sender, error)
        link.close()
      else:
        now.add_in(hello.sender, link)
    return True

  def _told(self, error: Exception | None) -> None:
    waiter, self._waiter = self._waiter, None
    if waiter:
      waiter.end(error)

  def _leave(self) -> None:
    generation, self._generation = self._generation, None
    self._door.hang_up()
    if generation:
      self._last = generation.group.generation
      self._usage = self._used(generation)
      generation.leave()

  def _used(self, now: Generation | None = None) -> dict[int, Usage]:
    now = now or self._generation
    total = dict(self._usage)
    for worker, usage in (now.usage() if now else {}).items():
      before = total.get(worker, Usage(0, 0, 0.0))
      pairs = zip(before, usage, strict=True)
      total[worker] = Usage(*(a + b for a, b in pairs))
    return total

  def _fail(self, error: Exception) -> None:
    """Ends what others wait for, after an error that nobody expected."""
    reason = f'{type(error).__name__}: {error}'
    self._failure = failure = ExecutorFailed(self._index, reason)
    failure.__cause__ = error
    if not self._closed:
      self._door.reopen()  # Its own handler may be the one that has failed.
    self._told(failure)
    if self._generation:
      self._generation.fail(failure)

  def _fail_forming(self, error: OSError) -> None:
    """Fails a generation whose members cannot connect to this worker."""
    generation = self._generation
    if generation and generation.missing:
      reason = error.strerror or str(error)
      generation.fail(ExecutorFailed(self._index, reason))

  def _each(self) -> None:
    if self._generation:
      self._generation.flush()

  def _tick(self) -> None:
    self._loop.ticking = self._door.tick()

  def _ended(self, error: Exception | None) -> None:
    self._closed = True
    if error:
      self._fail(error)
    self._leave()
    self._door.close()
