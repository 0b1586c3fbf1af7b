"""State of one allreduce at one worker: chunks to send, effects of arrivals.

No sockets, threads or clocks here.  A chunk's parts are added in float32 in one
order, whatever the order of arrival: this worker's own, then those of the
children one after the other.  A chunk that travels in half of that is rounded,
to nearest, as it is sent up, be it one worker's part or a sum of some; the root
rounds the whole sum once, and everybody has that, also the root.

The lowest chunk goes first, and the part of a chunk goes up only if it is
within the window: so many chunks from the lowest on whose sum is not here yet.
So a worker that has little to do for a tree does not run ahead and take the
receiver's link from those who have more, and what is received before it can be
added is bounded: for each worker whose parts are added here, at most a window
of chunks.  The lowest chunk of all that are not final everywhere is always
within, so that nobody waits for ever.
"""

import collections
import heapq
from typing import NamedTuple

import numpy as np

from cluster.allreduce.executor.frames import DOWN, DTYPES, FLOAT16, FLOAT32, UP
from cluster.allreduce.executor.program import Program
from cluster.network.errors import Corrupt


class Buffers:
  """Memory for parts of sums that cannot be added yet; used again.

  Attributes:
    lent: How many are in use.
    peak: The most that have been.
    most: The most that may be.
  """

  def __init__(self, most: int, chunk_bytes: int):
    """Creates a pool of buffers, which are allocated when they are needed.

    Args:
      most: The most that may be in use.
      chunk_bytes: Of each.
    """
    self.most = most
    self.lent = self.peak = 0
    self._chunk_bytes = chunk_bytes
    self._free: list[memoryview] = []

  def take(self) -> memoryview:
    """Returns one.

    Raises:
      Corrupt: If there are as many as there may be: peers have sent more than
        their windows.
    """
    if self.lent == self.most:
      raise Corrupt(f'more than {self.most} chunks ahead')
    self.lent += 1
    self.peak = max(self.peak, self.lent)
    if self._free:
      return self._free.pop()
    return memoryview(np.empty(self._chunk_bytes, np.uint8))

  def give(self, buffer: memoryview) -> None:
    """Takes one back, or a part of it from its beginning."""
    self.lent -= 1
    self._free.append(memoryview(buffer.obj))


class Outgoing(NamedTuple):
  """A chunk to be sent.

  Attributes:
    kind: UP or DOWN.
    chunk: Its number.
    body: Of the pool, bytes as they travel.
    dtype: What its numbers are: the place in `frames.DTYPES`.
  """

  kind: int
  chunk: int
  body: memoryview
  dtype: int


class Exchange:
  """The state.

  Attributes:
    program: That it follows.
    steps: Grows with each chunk that comes or goes.
    low: The lowest chunk whose sum is not here; their number at the end.
    woken: Receivers for whom there is something new; to be cleared by others.
    finite: Whether all sums in float16 were finite so far; others are taken to
      be.
  """

  def __init__(
    self,
    program: Program,
    pool: np.ndarray,
    buffers: Buffers,
    halves: np.ndarray,
  ):
    """Starts with no range ready.

    Args:
      program: To follow.
      pool: float32 [n], contiguous; this worker's numbers, and at the end the
        sums.
      buffers: For what cannot be added yet.
      halves: uint16 [n]; where chunks of half of float32 are as they travel, if
        there are any.
    """
    self.program = program
    self.finite = True
    self.steps = 0
    self.low = 0
    self.woken: set[int] = set()
    self._pool = pool
    self._bytes = memoryview(pool).cast('B') if pool.size else memoryview(b'')
    self._halves = halves
    self._buffers = buffers
    count = len(program.starts)
    self._count = self._left = count
    self._halved = any(program.dtypes)
    self._final = bytearray(count)
    # Parts that are in the sum: -1 before this worker's own, then children.
    self._added = [-1] * count
    self._sent_up = bytearray(count)  # Chunks whose part has gone up whole.
    self._staged: dict[tuple[int, int], memoryview] = {}
    self._staged_of: collections.Counter[int] = collections.Counter()
    self._queues: dict[int, list[int]] = {w: [] for w in program.goes}
    self._held: list[int] = []  # Chunks beyond the window.
    self._comes, self._goes = dict(program.comes), dict(program.goes)
    self._going = sum(program.goes.values())
    self._last: dict[int, int] = {}  # Entry of a queue, by receiver.

  @property
  def done(self) -> bool:
    """True once the pool holds all sums and has sent all that peers need."""
    return not self._left and not self._going

  @property
  def going(self) -> int:
    """Chunks that are still to go."""
    return self._going

  def needs(self, worker: int) -> bool:
    """Returns whether chunks from or to a worker are still outstanding."""
    return self._comes.get(worker, 0) > 0 or self._goes.get(worker, 0) > 0

  def expects(self, worker: int) -> bool:
    """Returns whether chunks are still to come from a worker."""
    return self._comes.get(worker, 0) > 0

  def waits_for(self, index: int) -> tuple[int, ...]:
    """Returns whom the lowest chunk waits for; `index` is this worker's.

    May be called from any thread: what it says may then be of a moment ago.
    """
    low = self.low
    if low >= self._count:
      return tuple(sorted(w for w, left in self._goes.items() if left))
    role = self.program.parts[low]
    added = self._added[low]
    if added < 0:
      return (index,)
    if added < len(role.children):
      rest = role.children[added:]
      return tuple(w for w in rest if (low, w) not in self._staged)
    waits = {role.parent, role.source} - {None}
    return tuple(sorted(w for w in waits if w is not None))

  def ready(self, index: int) -> None:
    """Takes a range of the pool that has this worker's numbers.

    Raises:
      ValueError: If it was ready before.
    """
    for chunk in range(*self.program.chunks[index]):
      if self._added[chunk] >= 0:
        raise ValueError(f'index: expected each range once, got {index} again.')
      self._added[chunk] = 0
      self._add(chunk)

  def place(
    self, worker: int, kind: int, chunk: int, size: int, dtype: int = 0
  ) -> memoryview:
    """Returns where the body of a frame is to be received.

    Raises:
      Corrupt: If a worker may not send it now.
    """
    self.check(worker, kind, chunk, size, dtype)
    if kind == UP:
      return self._buffers.take()[:size]
    return self._body(chunk)

  def check(
    self, worker: int, kind: int, chunk: int, size: int, dtype: int = 0
  ) -> None:
    """Raises Corrupt if a worker may not send a chunk now."""
    program = self.program
    if not 0 <= chunk < self._count or size != program.sizes[chunk]:
      raise Corrupt(f'chunk {chunk} of {size} bytes is none of the pool')
    if dtype != program.dtypes[chunk]:
      raise Corrupt(f'chunk {chunk} is of another dtype, {dtype}')
    role, added = program.parts[chunk], self._added[chunk]
    if kind == UP:
      valid = worker in role.children[max(added, 0) :]
      valid = valid and (chunk, worker) not in self._staged
      valid = valid and self._staged_of[worker] < program.roles.window
    else:
      # A sum that comes before this worker's part has gone cannot have it.
      valid = kind == DOWN and worker == role.source
      valid = valid and self._sent_up[chunk] and not self._final[chunk]
    if not valid:
      raise Corrupt(f'chunk {chunk} (kind {kind}) is not for now')

  def arrived(
    self, worker: int, kind: int, chunk: int, body: memoryview
  ) -> None:
    """Takes a chunk that has arrived, at the place given or in a buffer."""
    self.steps += 1
    self._comes[worker] -= 1
    if kind == DOWN:
      self._finish(chunk)
    else:
      self._staged[chunk, worker] = body
      self._staged_of[worker] += 1
      if self._added[chunk] >= 0:
        self._add(chunk)

  def take(self, worker: int) -> Outgoing | None:
    """Returns what to send to a worker next, None for nothing now."""
    queue = self._queues[worker]
    if not queue:
      return None
    self._last[worker] = entry = heapq.heappop(queue)
    chunk, up = divmod(entry, 2)
    dtype = self.program.dtypes[chunk]
    return Outgoing(UP if up else DOWN, chunk, self._body(chunk), dtype)

  def sent(self, worker: int) -> None:
    """Notes that what was taken last has been sent: it may change again."""
    self.steps += 1
    self._goes[worker] -= 1
    self._going -= 1
    chunk, up = divmod(self._last[worker], 2)
    if up:
      self._sent_up[chunk] = 1

  def _body(self, chunk: int) -> memoryview:
    """Returns a chunk as it travels."""
    half = self._half(chunk)
    if half is not None:
      return memoryview(half.view(np.uint8))
    program = self.program
    return self._bytes[4 * program.starts[chunk] : 4 * program.stops[chunk]]

  def _part(self, chunk: int) -> np.ndarray:
    """Returns a chunk's numbers, float32."""
    program = self.program
    return self._pool[program.starts[chunk] : program.stops[chunk]]

  def _half(self, chunk: int) -> np.ndarray | None:
    """Returns a chunk's numbers as they travel; None if that is float32."""
    program = self.program
    dtype = program.dtypes[chunk] if self._halved else FLOAT32
    if dtype == FLOAT32:
      return None
    half = self._halves[program.starts[chunk] : program.stops[chunk]]
    return half.view(DTYPES[dtype])

  def _add(self, chunk: int) -> None:
    """Adds the parts whose turn it is; passes the sum on if it is whole."""
    role, added = self.program.parts[chunk], self._added[chunk]
    while added < len(role.children):
      child = role.children[added]
      body = self._staged.pop((chunk, child), None)
      if body is None:
        break
      self._staged_of[child] -= 1
      part, dtype = self._part(chunk), DTYPES[self.program.dtypes[chunk]]
      np.add(part, np.frombuffer(body, dtype), out=part)
      self._buffers.give(body)
      added += 1
    self._added[chunk] = added
    if added < len(role.children):
      return
    half = self._half(chunk)
    if half is not None:
      # Of warm memory: casts that wait for memory take several times longer.
      part = self._part(chunk)
      half[...] = part if role.children else part.copy()
    if role.parent is None:
      self._finish(chunk)
    elif chunk < self.low + self.program.roles.window:
      self._queue(role.parent, 2 * chunk + 1)
    else:
      heapq.heappush(self._held, chunk)

  def _finish(self, chunk: int) -> None:
    half = self._half(chunk)
    if half is not None:
      part = self._part(chunk)
      part[...] = half
      if self.program.dtypes[chunk] == FLOAT16:
        # Of finite numbers of float16 the sum is finite.
        self.finite = self.finite and bool(np.isfinite(np.sum(part)))
    self._final[chunk] = 1
    self._left -= 1
    for worker in self.program.parts[chunk].sinks:
      self._queue(worker, 2 * chunk)
    if chunk == self.low:
      low = self._final.find(0, chunk)
      self.low = self._count if low < 0 else low
      end = self.low + self.program.roles.window
      while self._held and self._held[0] < end:
        held = heapq.heappop(self._held)
        self._queue(self.program.parts[held].parent, 2 * held + 1)

  def _queue(self, worker: int, entry: int) -> None:
    heapq.heappush(self._queues[worker], entry)
    self.woken.add(worker)
