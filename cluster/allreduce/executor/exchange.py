"""State of an allreduce in one lane of a worker: chunks to send, arrivals.

No sockets, threads or clocks here.  A chunk's partial sums are added in float32
in one order, whatever the order of arrival: this worker's own, then those of
the children one after the other.  A chunk that travels in half precision is
rounded to nearest as it is sent up, be it one worker's contribution or a
partial sum; the root rounds the whole sum once, and all workers get that
result, also the root.

The lowest chunk is sent first.  A partial sum is sent up only if its chunk is
within the window: a number of chunks from the lowest one on whose sum has not
arrived.  So a worker with little to send over a tree does not run ahead and
take the receiver's link from workers that have more.  The memory for chunks
that cannot be added yet is bounded: `Roles.ahead_bytes` for each worker whose
partial sums are added here, which no window exceeds.  The lowest chunk that is
not final everywhere is always within the window, so that no deadlock is
possible.
"""

import collections
import heapq
from typing import NamedTuple

import numpy as np

from cluster.allreduce.executor.program import (
  DTYPES,
  FLOAT16,
  FLOAT32,
  Program,
)
from cluster.network.errors import Corrupt
from cluster.network.frames import DOWN, UP
from topology.forests import dealing


class ReceiveBuffers:
  """Reusable memory for partial sums that cannot be added yet.

  Attributes:
    lent_bytes: Size of the buffers in use.
    peak_bytes: Largest size that has been in use.
    limit_bytes: Largest size that may be in use.
  """

  def __init__(self, limit_bytes: int):
    """Creates buffers that are allocated when they are needed."""
    self.limit_bytes = limit_bytes
    self.lent_bytes = self.peak_bytes = 0
    self._free: dict[int, list[memoryview]] = {}  # By size.
    self._free_bytes = 0

  def take(self, size: int) -> memoryview:
    """Lends a buffer of a size in bytes.

    Raises:
      Corrupt: If that exceeds the limit: peers have sent too much.
    """
    if self.lent_bytes + size > self.limit_bytes:
      raise Corrupt(f'more than {self.limit_bytes} bytes ahead')
    self.lent_bytes += size
    self.peak_bytes = max(self.peak_bytes, self.lent_bytes)
    if self._free.get(size):
      self._free_bytes -= size
      return self._free[size].pop()
    if self.lent_bytes + self._free_bytes > self.limit_bytes:
      self._free.clear()  # Buffers of other sizes.
      self._free_bytes = 0
    return memoryview(bytearray(size))

  def give_back(self, buffer: memoryview) -> None:
    """Takes a whole buffer back."""
    size = len(buffer)
    self.lent_bytes -= size
    self._free.setdefault(size, []).append(buffer)
    self._free_bytes += size


class Outgoing(NamedTuple):
  """A chunk to send.

  Attributes:
    kind: UP or DOWN.
    chunk: Number of the chunk.
    body: Bytes to send, a view of the gradient buffer.
    dtype: Dtype of its numbers: position in
      `program.DTYPES`.
  """

  kind: int
  chunk: int
  body: memoryview
  dtype: int


class Exchange:
  """State of one allreduce in one lane of a worker.

  Attributes:
    program: Program that it follows.
    steps: Number of chunks that were sent or received.
    low: Lowest chunk whose sum has not arrived; the number of chunks at the
      end.
    window: Number of chunks, from the lowest without a sum on, whose partial
      sums may be sent; `adapt_window` changes it.
    pending_receivers: Receivers for which chunks were queued; the caller
      clears it.
    finite: Whether all sums in float16 were finite so far; sums in other
      dtypes count as finite.
  """

  def __init__(
    self,
    program: Program,
    buffer: np.ndarray,
    received: ReceiveBuffers,
    halves: np.ndarray,
  ):
    """Creates the state of an allreduce with no bucket ready.

    Args:
      program: Program to follow.
      buffer: Gradient buffer, float32 [n], contiguous: this worker's
        contribution, and at the end the sums.
      received: Memory for chunks that cannot be added yet.
      halves: Workspace, uint16 [n], for chunks that travel in half precision.
    """
    self.program = program
    self.window = dealing.window(
      program.roles.forest,
      chunk_bytes=program.chunk_bytes,
      lanes=program.roles.lanes,
    )
    self.finite = True
    self.steps = 0
    self.low = 0
    self.pending_receivers: set[int] = set()
    self._buffer = buffer
    self._bytes = _bytes_of(buffer)
    self._halves = halves
    self._received = received
    self._count = self._unfinished = len(program.starts)
    self._has_halves = any(program.dtypes)
    self._is_final = bytearray(self._count)
    # Number of children's partial sums in each sum; -1 before this worker's
    # own contribution is ready.
    self._num_added = [-1] * self._count
    self._is_sent_up = bytearray(self._count)  # Sent completely.
    self._staged: dict[tuple[int, int], memoryview] = {}
    self._staged_bytes: collections.Counter[int] = collections.Counter()
    self._queues: dict[int, list[int]] = {w: [] for w in program.num_sent}
    self._beyond_window: list[int] = []  # Heap of chunks.
    self._unreceived = dict(program.num_received)
    self._unsent = dict(program.num_sent)
    self._num_unsent = sum(program.num_sent.values())
    self._taken: dict[int, int] = {}  # Queue entry that is sent, by receiver.

  @property
  def done(self) -> bool:
    """True once the buffer holds all sums and has sent all that peers need."""
    return not self._unfinished and not self._num_unsent

  @property
  def num_chunks(self) -> int:
    """Number of chunks."""
    return self._count

  @property
  def num_unsent(self) -> int:
    """Number of chunks that are still to be sent."""
    return self._num_unsent

  def needs(self, worker: int) -> bool:
    """Returns whether chunks from or to a worker are still outstanding."""
    return self.expects(worker) or self._unsent.get(worker, 0) > 0

  def expects(self, worker: int) -> bool:
    """Returns whether chunks from a worker are still outstanding."""
    return self._unreceived.get(worker, 0) > 0

  def waits_for(self, index: int) -> tuple[int, ...]:
    """Returns the workers that the lowest chunk waits for.

    May be called from any thread; the result may then be slightly outdated.

    Args:
      index: Index of this worker.
    """
    low = self.low
    if low >= self._count:
      return tuple(sorted(w for w, count in self._unsent.items() if count))
    role = self.program.chunk_roles[low]
    num_added = self._num_added[low]
    if num_added < 0:
      return (index,)
    if num_added < len(role.children):
      missing = role.children[num_added:]
      return tuple(w for w in missing if (low, w) not in self._staged)
    upstream = {role.parent, role.source}
    return tuple(sorted(w for w in upstream if w is not None))

  def ready(self, index: int) -> None:
    """Marks a bucket as holding this worker's contribution.

    Raises:
      ValueError: If it was ready before.
    """
    for chunk in range(*self.program.bucket_chunks[index]):
      if self._num_added[chunk] >= 0:
        raise ValueError(
          f'index: expected each bucket once, got {index} again.'
        )
      self._num_added[chunk] = 0
      self._add(chunk)

  def allocate(
    self, worker: int, kind: int, chunk: int, size: int, dtype: int = 0
  ) -> memoryview:
    """Returns the memory into which the body of a frame is to be received.

    Raises:
      Corrupt: If a worker may not send it now.
    """
    self.check(worker, kind, chunk, size, dtype)
    if kind == UP:
      return self._received.take(size)
    return self._body(chunk)

  def check(
    self, worker: int, kind: int, chunk: int, size: int, dtype: int = 0
  ) -> None:
    """Raises Corrupt if a worker may not send a chunk now."""
    program = self.program
    if not 0 <= chunk < self._count or size != program.sizes[chunk]:
      raise Corrupt(f'chunk {chunk} of {size} bytes is not in the buffer')
    if dtype != program.dtypes[chunk]:
      raise Corrupt(f'chunk {chunk} is of another dtype, {dtype}')
    role, num_added = program.chunk_roles[chunk], self._num_added[chunk]
    if kind == UP:
      valid = worker in role.children[max(num_added, 0) :]
      valid = valid and (chunk, worker) not in self._staged
      staged_bytes = self._staged_bytes[worker] + size
      valid = valid and staged_bytes <= program.roles.ahead_bytes
    else:
      # A sum that arrives before this worker's part was sent cannot have it.
      valid = kind == DOWN and worker == role.source
      valid = valid and bool(self._is_sent_up[chunk])
      valid = valid and not self._is_final[chunk]
    if not valid:
      raise Corrupt(f'chunk {chunk} (kind {kind}) must not be sent now')

  def arrived(
    self, worker: int, kind: int, chunk: int, body: memoryview
  ) -> None:
    """Takes a chunk that has arrived in the memory given by `allocate`."""
    self.steps += 1
    self._unreceived[worker] -= 1
    if kind == DOWN:
      self._finish(chunk)
    else:
      self._staged[chunk, worker] = body
      self._staged_bytes[worker] += len(body)
      if self._num_added[chunk] >= 0:
        self._add(chunk)

  def take(self, worker: int) -> Outgoing | None:
    """Returns the next chunk to send to a worker; None if there is none now."""
    queue = self._queues[worker]
    if not queue:
      return None
    self._taken[worker] = entry = heapq.heappop(queue)
    chunk, is_up = divmod(entry, 2)
    dtype = self.program.dtypes[chunk]
    return Outgoing(UP if is_up else DOWN, chunk, self._body(chunk), dtype)

  def sent(self, worker: int) -> None:
    """Notes that the chunk that was taken last is sent: it may change again."""
    self.steps += 1
    self._unsent[worker] -= 1
    self._num_unsent -= 1
    chunk, is_up = divmod(self._taken[worker], 2)
    if is_up:
      self._is_sent_up[chunk] = 1

  def adapt_window(self, round_trip_s: float) -> None:
    """Sets the window by a measured round trip.

    Args:
      round_trip_s: Shortest measured time from a chunk's sending to the arrival
        of its sum, seconds, in the tree in which it is longest.
    """
    self.window = dealing.window(
      self.program.roles.forest,
      chunk_bytes=self.program.chunk_bytes,
      round_trip_s=round_trip_s,
      lanes=self.program.roles.lanes,
    )
    self._queue_within_window()

  def _body(self, chunk: int) -> memoryview:
    """Returns the bytes of a chunk as it travels."""
    half = self._half(chunk)
    if half is not None:
      return _bytes_of(half.view(np.uint8))
    program = self.program
    return self._bytes[4 * program.starts[chunk] : 4 * program.stops[chunk]]

  def _part(self, chunk: int) -> np.ndarray:
    """Returns a chunk of the buffer, float32."""
    program = self.program
    return self._buffer[program.starts[chunk] : program.stops[chunk]]

  def _half(self, chunk: int) -> np.ndarray | None:
    """Returns a chunk in half precision; None if it travels in float32."""
    program = self.program
    dtype = program.dtypes[chunk] if self._has_halves else FLOAT32
    if dtype == FLOAT32:
      return None
    half = self._halves[program.starts[chunk] : program.stops[chunk]]
    return half.view(DTYPES[dtype])

  def _add(self, chunk: int) -> None:
    """Adds staged parts in their order; passes the sum on once it is whole."""
    role, num_added = self.program.chunk_roles[chunk], self._num_added[chunk]
    while num_added < len(role.children):
      child = role.children[num_added]
      body = self._staged.pop((chunk, child), None)
      if body is None:
        break
      self._staged_bytes[child] -= len(body)
      part, dtype = self._part(chunk), DTYPES[self.program.dtypes[chunk]]
      np.add(part, np.frombuffer(body, dtype), out=part)
      self._received.give_back(body)
      num_added += 1
    self._num_added[chunk] = num_added
    if num_added < len(role.children):
      return
    half = self._half(chunk)
    if half is not None:
      # The copy warms the cache: casts that wait for memory take several times
      # as long.
      part = self._part(chunk)
      half[...] = part if role.children else part.copy()
    if role.parent is None:
      self._finish(chunk)
    elif chunk < self.low + self.window:
      self._queue(role.parent, 2 * chunk + 1)
    else:
      heapq.heappush(self._beyond_window, chunk)

  def _finish(self, chunk: int) -> None:
    half = self._half(chunk)
    if half is not None:
      part = self._part(chunk)
      part[...] = half
      if self.program.dtypes[chunk] == FLOAT16:
        # The float32 sum of finite float16 numbers is finite.
        self.finite = self.finite and bool(np.isfinite(np.sum(part)))
    self._is_final[chunk] = 1
    self._unfinished -= 1
    for worker in self.program.chunk_roles[chunk].sinks:
      self._queue(worker, 2 * chunk)
    if chunk == self.low:
      low = self._is_final.find(0, chunk)
      self.low = self._count if low < 0 else low
      self._queue_within_window()

  def _queue_within_window(self) -> None:
    end = self.low + self.window
    while self._beyond_window and self._beyond_window[0] < end:
      next_chunk = heapq.heappop(self._beyond_window)
      parent = self.program.chunk_roles[next_chunk].parent
      if parent is not None:
        self._queue(parent, 2 * next_chunk + 1)

  def _queue(self, worker: int, entry: int) -> None:
    heapq.heappush(self._queues[worker], entry)
    self.pending_receivers.add(worker)


def _bytes_of(array: np.ndarray) -> memoryview:
  """Returns a writable view of an array's bytes."""
  return array.data.cast('B') if array.size else memoryview(bytearray())
