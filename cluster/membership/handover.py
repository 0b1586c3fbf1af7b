"""Transfer of a replica's state to another process, from several sources.

The process that needs the state requests it from members that have it, at
addresses that the coordinator sends.  A request may contain the digest of the
state that the process has: a source with the same state answers with the digest
alone.  Otherwise the source describes its arrays, and sends the ranges of bytes
that it is asked for.

A receiver asks each source for the next range that is missing, so that sources
send in proportion to their rates.  The ranges of a source that is lost are
fetched from the others, and so are those of a source that is much slower, once
all ranges are taken.  Sources with another state than the first that answers,
as replicas on unlike processors have, are used only once all sources of the
first state are lost.  A source whose state would not fit into memory is not
used.  The receiver verifies the digest of the whole.

Updates travel in the same way: a source that retains the sums of some updates
sends those since a version as one state.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from absl import logging

from cluster.network import memory
from cluster.network.frame_reader import Receiving
from cluster.network.heartbeat import within
from cluster.network.loop_streams import LoopListener, LoopStream
from cluster.network.messages import (
  MAX_SOURCES,
  RANGE_REQUEST,
  STATE,
  STATE_RANGE,
  STATE_REQUEST,
  Done,
  RangeRequest,
  SameState,
  Source,
  StateArrays,
  StateRange,
  StateRequest,
)
from cluster.network.streams import (
  STATES,
  Corrupt,
  Port,
  Security,
  Stream,
  TransportError,
  chunked,
  connect,
)
from learning.digest import digest
from outputs import serialization
from system import clock, processes, threads

# Size of a chunk, and bytes that have to arrive within a timeout: many
# processes may share the source's link, as all do when a run resumes.
_STEP = 1 << 18
_RANGE_BYTES = 1 << 22
_REQUESTS = 2  # Ranges that a source has to send: it never waits for requests.
# A source is slow if it takes longer for a range than a number of seconds and
# of times as long as another one takes, which has nothing left to do.
_SLOW_S, _SLOW_TIMES = 2.0, 4
_POLL_S = 0.1
_MAX_DIMENSIONS = 32  # Of an array.

_Kind = tuple[np.dtype, Sequence[int]]  # Dtype and shape of an array.


class SourceLost(TransportError):
  """No source is left from which the state can be fetched.

  Attributes:
    worker: Rank of the first source that was lost.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(reason)
    self.worker = worker


class ArrayPlace(NamedTuple):
  """Place of an array in the plain data of a state.

  Attributes:
    number: Number of the array.
    is_jax: Whether it is an array of JAX, not of NumPy.
  """

  number: int
  is_jax: bool


class StateCopy:
  """A state whose arrays are in host memory, which later updates do not change.

  On CPUs this copies nothing: XLA does not reuse the memory of an array for
  which there is a NumPy view.

  Attributes:
    plain: The plain data, uint8 [n].
    arrays: Path and content of each array.
  """

  def __init__(self, state: Any):
    """Copies a state from its devices.

    Args:
      state: Plain data and arrays; NumPy arrays must not be changed later.
    """
    self.plain, self.arrays = _split(state)
    contents = (array for _, array in self.arrays)
    self._tree = jax.tree.map(
      lambda leaf: next(contents) if _is_array(leaf) else leaf, state
    )

  @processes.CachedProperty
  def digest(self) -> str:
    """Digest of the state."""
    return digest(self._tree)

  @property
  def size_bytes(self) -> int:
    """Size of the arrays, bytes."""
    return sum(array.nbytes for _, array in self.arrays)


class Handover:
  """Listener that sends the learner's state to processes that request it.

  Attributes:
    address: 'address:port' of the listener.
  """

  def __init__(
    self,
    port: Port,
    state: Callable[[StateRequest], tuple[Any, str]],
    timeout_s: float,
    *,
    service: str = STATES,
  ):
    """Starts to listen for requests.

    Args:
      port: Port of this process.
      state: Returns the state of a request, perhaps as a `StateCopy`, and its
        digest; called in other threads.  Raises LookupError if this process
        does not have it.
      timeout_s: Seconds after which a receiver that takes nothing is lost.
      service: Name of the service on the port.
    """
    self._state, self._timeout_s = state, timeout_s
    self._pool = threads.ThreadPoolExecutor(1, 'handover')
    self._listener = LoopListener(port, self._serve, service=service)
    self.address = self._listener.address

  def close(self) -> None:
    """Stops listening."""
    self._listener.close(0.0)
    self._pool.shutdown(wait=False, cancel_futures=True)

  def _serve(self, stream: LoopStream, hello: msgspec.Raw) -> Receiving[None]:
    """Sends a state to one receiver; in the thread of all streams."""
    try:
      request = STATE_REQUEST.decode(hello)
    except ValueError as error:
      raise Corrupt(f'sent another hello: {error}') from error
    stream.limit_silence(self._timeout_s)
    # Copies from a device, and digests, take a while.
    described = self._pool.submit(self._describe, stream, request)
    while isinstance(
      wanted := (yield from stream.receive(RANGE_REQUEST, 0))[0], RangeRequest
    ):
      # A receiver requests ranges of a description that it has got.
      parts = described.result() if described.done() else []
      size = sum(part.size for part in parts)
      start, stop = wanted.start, wanted.stop
      if not start < stop <= size:
        raise Corrupt(f'expected a range of {size} bytes, got {start}:{stop}')
      stream.send(StateRange(start), _slices(parts, start, stop), stop - start)

  def _describe(
    self, stream: LoopStream, request: StateRequest
  ) -> list[np.ndarray]:
    """Sends the description of a state, or that the receiver has the same.

    Returns:
      The bytes of the state's arrays, uint8 [n] each; none if there is no
      state to send.
    """
    try:
      state, found = self._state(request)
    except LookupError as error:
      stream.end(str(error))
      return []
    # The receiver gets the reason, and the log the whole error.
    except Exception as error:
      stream.end(f'{type(error).__name__}: {error}')
      logging.exception('%s: a state cannot be sent', stream.peer)
      return []
    if request.digest == found:
      stream.send(SameState(found))
      return []
    copy = state if isinstance(state, StateCopy) else StateCopy(state)
    plain, arrays = copy.plain, copy.arrays
    described = [
      (path, str(array.dtype), array.shape) for path, array in arrays
    ]
    stream.send(
      StateArrays(described, found), chunked([plain], _STEP), plain.size
    )
    return [_bytes(array) for _, array in arrays]


def fetch(
  sources: Sequence[Source],
  version: int,
  security: Security,
  timeout_s: float,
  *,
  step: Callable[[], None] = lambda: None,
  known: str = '',
  digest_s: float = 0.0,
  is_retained: bool = False,
  since: int | None = None,
  service: str = STATES,
) -> tuple[Any, str]:
  """Returns the learner's state of a version, and its digest.

  Args:
    sources: Ranks of replicas, and the addresses of their `Handover`s; those
      after the first `MAX_SOURCES` are not used.
    version: Number of the version.
    security: Credentials of the streams.
    timeout_s: Limit of each connection, and of each 256 KiB, seconds.
    step: Called after each 256 KiB, in threads.
    known: Digest of the state that the caller has; '' for none.
    digest_s: Further limit of the first answer, before which a source may have
      to compute the digest, seconds.
    is_retained: Whether the sources retain the state, or updates.
    since: Version from which to fetch the updates in place of a state; None to
      fetch the state.
    service: Name of the service of the sources.

  Returns:
    The state, whose digest the caller has to verify once its arrays are placed,
    and the digest.  The state is None if the caller has the same one.

  Raises:
    SourceLost: If the state cannot be fetched from any source.
  """
  sources = sources[:MAX_SOURCES]
  transfer = _Transfer(
    StateRequest(version, known, is_retained, since),
    security,
    timeout_s,
    step,
    digest_s,
    service,
  )
  for place, source in enumerate(sources):
    threads.Thread(
      target=transfer.receive_from, args=(place, source), daemon=True
    ).start()
  errors = transfer.wait(len(sources))
  for (worker, _), error in zip(sources, errors, strict=True):
    if error is not None and not isinstance(error, TransportError):
      raise error
    if error is not None and not transfer.is_complete:
      raise SourceLost(worker, str(error)) from error
  return transfer.result()


def copy_state(state: Any) -> Any:
  """Returns a copy of a state like one that `fetch` returns."""
  plain, arrays = _split(state)
  copies = _allocate([(array.dtype, array.shape) for _, array in arrays])
  for copy, (_, array) in zip(copies, arrays, strict=True):
    copy[...] = array
  return _join(_decode(plain, len(copies)), copies)


@dataclasses.dataclass(eq=False)
class _Stream:
  """A stream from a source, and the ranges that were requested on it.

  Attributes:
    stream: The stream.
    began: Monotonic time of the first request.
    moved: Monotonic time of the last whole range, or of the first request.
    requested: Numbers of the ranges that have not arrived, in order.
    received: Number of the ranges that have.
  """

  stream: Stream
  began: float
  moved: float
  requested: collections.deque[int]
  received: int = 0

  @property
  def range_s(self) -> float:
    """Mean time of a range, seconds; 0 before the first."""
    return (self.moved - self.began) / max(self.received, 1)


class _Transfer:
  """A state that arrives from several sources, with a thread for each."""

  def __init__(
    self,
    request: StateRequest,
    security: Security,
    timeout_s: float,
    step: Callable[[], None],
    digest_s: float,
    service: str,
  ):
    self._request, self._security = request, security
    self._timeout_s, self._step = timeout_s, step
    self._answer_s = timeout_s + digest_s
    self._service = service
    self._changed = threads.Condition()
    self._known = ''  # Digest of the caller's state, if it is the same.
    self._described: StateArrays | None = None
    self._tree: Any = None
    self._arrays: list[np.ndarray] = []
    self._parts: list[np.ndarray] = []
    self._missing: collections.deque[int] = collections.deque()
    self._left = 0  # Ranges that have not arrived.
    self._size = 0
    self._streams: list[_Stream] = []
    self._ended: dict[int, Exception | None] = {}  # Sources, by place.

  @property
  def is_complete(self) -> bool:
    """True once the whole state has arrived, or is known to be the same."""
    is_whole = self._described is not None and not self._left
    return bool(self._known) or is_whole

  def result(self) -> tuple[Any, str]:
    """Returns the state, None if it is known, and its digest."""
    if self._known or self._described is None:
      return None, self._known
    return _join(self._tree, self._arrays), self._described.digest

  def wait(self, count: int) -> list[Exception | None]:
    """Waits until the state is complete, or no source is left.

    A source that cannot be reached, perhaps for a whole timeout, holds no
    complete state up.

    Args:
      count: Number of sources.

    Returns:
      The error that has ended each source; None if it was needed no longer.
    """
    with self._changed:
      self._changed.wait_for(
        lambda: self.is_complete or len(self._ended) == count
      )
      return [self._ended.get(place) for place in range(count)]

  def receive_from(self, place: int, source: Source) -> None:
    """Receives ranges from a source until the state is complete.

    Args:
      place: Place of the source among all.
      source: The source.
    """
    error: Exception | None
    try:
      error = self._receive_from(*source)
    except Exception as failure:  # `fetch` raises it.
      error = failure
    with self._changed:
      self._ended[place] = error
      self._changed.notify_all()

  def _receive_from(self, worker: int, address: str) -> TransportError | None:
    """Returns the error that has ended a source; None if not needed longer."""
    try:
      stream = connect(
        address,
        self._request,
        self._security,
        self._timeout_s,
        service=self._service,
        waits=lambda: not self.is_complete,
      )
      try:
        self._receive(stream, worker)
      finally:
        stream.close()
    except TransportError as error:
      with self._changed:
        if self.is_complete:
          return None
      logging.warning(
        'Worker %d does not send its state any longer: %s', worker, error
      )
      return error
    return None

  def _receive(self, stream: Stream, worker: int) -> None:
    with within(stream, self._answer_s):
      message = stream.receive(STATE)
    header = message.header
    if isinstance(header, SameState):
      if not header.digest or header.digest != self._request.digest:
        raise Corrupt(f'expected another state, got the same: {header.digest}')
      with self._changed:
        self._known = header.digest
        self._changed.notify_all()
      stream.send(Done())
      return
    kinds = _check_description(header, message.size_bytes)
    plain = memory.aligned(message.size_bytes)
    self._fill(stream, plain)
    tree = _decode(plain, len(kinds))
    now = clock.monotonic()
    own = _Stream(stream, now, now, collections.deque())
    if not self._take_part(own, worker, header, tree, kinds):
      stream.send(Done())
      return
    try:
      while self._request_ranges(own):
        self._receive_range(own)
    finally:
      with self._changed:
        self._streams.remove(own)
        self._missing.extend(own.requested)
        self._changed.notify_all()
    stream.send(Done())

  def _take_part(
    self,
    own: _Stream,
    worker: int,
    found: StateArrays,
    tree: Any,
    kinds: Sequence[_Kind],
  ) -> bool:
    """Waits until the state of a source is the one that is fetched.

    That is the state of the first source that answers; of another one once all
    sources of that state are lost.

    Args:
      own: Stream from the source, which counts as one of this state then.
      worker: Rank of the source.
      found: Its description of the state.
      tree: The state, with an `ArrayPlace` for each array.
      kinds: Dtypes and shapes of the arrays.

    Returns:
      Whether to fetch from it; False once the state is complete.
    """
    has_logged = False
    with self._changed:
      while not self.is_complete:
        if self._described != found and not self._streams:
          self._begin(found, tree, kinds)
        if self._described == found:
          self._streams.append(own)
          return True
        if not has_logged:
          has_logged = True
          logging.info('Worker %d has another state.', worker)
        self._changed.wait(_POLL_S)
    return False

  def _begin(
    self, found: StateArrays, tree: Any, kinds: Sequence[_Kind]
  ) -> None:
    """Begins to fetch a state from its first byte; under the lock."""
    self._arrays = _allocate(kinds)
    self._described, self._tree = found, tree
    self._parts = [_bytes(array) for array in self._arrays]
    self._size = sum(part.size for part in self._parts)
    self._left = math.ceil(self._size / _RANGE_BYTES)
    self._missing = collections.deque(range(self._left))

  def _request_ranges(self, own: _Stream) -> bool:
    """Requests ranges from a source, waiting until some are missing.

    Returns:
      Whether any are requested; False once the state is complete.
    """
    while True:
      wanted = []
      with self._changed:
        while self._missing and len(own.requested) < _REQUESTS:
          if not own.requested:
            own.moved = clock.monotonic()
          wanted.append(self._missing.popleft())
          own.requested.append(wanted[-1])
        if not own.requested:
          if self.is_complete:
            return False
          self._cancel_slow(own)
          self._changed.wait(_POLL_S)
          continue
      for number in wanted:
        start = number * _RANGE_BYTES
        stop = min(start + _RANGE_BYTES, self._size)
        own.stream.send(RangeRequest(start, stop))
      return True

  def _cancel_slow(self, own: _Stream) -> None:
    """Ends streams that are much slower than one that has nothing to do."""
    limit_s = _SLOW_S + _SLOW_TIMES * own.range_s
    now = clock.monotonic()
    for other in self._streams:
      if other.requested and now - other.moved > limit_s:
        other.stream.cancel(f'no range for {now - other.moved:.1f} s')

  def _receive_range(self, own: _Stream) -> None:
    """Receives the oldest range that was requested from a source."""
    start = own.requested[0] * _RANGE_BYTES
    stop = min(start + _RANGE_BYTES, self._size)
    with within(own.stream, self._timeout_s):
      message = own.stream.receive(STATE_RANGE)
    if (message.header.start, message.size_bytes) != (start, stop - start):
      raise Corrupt(
        f'expected {stop - start} bytes at {start}, got {message.size_bytes} '
        f'at {message.header.start}'
      )
    for piece in _slices(self._parts, start, stop):
      self._fill(own.stream, piece)
    with self._changed:
      own.requested.popleft()
      own.received, own.moved = own.received + 1, clock.monotonic()
      self._left -= 1
      if not self._left:
        self._changed.notify_all()

  def _fill(self, stream: Stream, into: np.ndarray) -> None:
    """Receives bytes into memory, uint8 [n], in chunks."""
    start = 0
    while start < into.size:
      with within(stream, self._timeout_s):
        part = into[start:]
        start += stream.receive_chunk(part.size, part.data).size
      self._step()


def _split(state: Any) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
  """Returns a state's plain data, uint8 [n], and its arrays with their paths.

  Arrays are in the order of the pytree, which is the same in all processes.

  Raises:
    TypeError: If the state has arrays that are not leaves of the pytree.
  """
  arrays = []

  def place(path: tuple[Any, ...], leaf: Any) -> Any:
    if not _is_array(leaf):
      return leaf
    arrays.append((jax.tree_util.keystr(path), leaf))
    return ArrayPlace(len(arrays) - 1, isinstance(leaf, jax.Array))

  plain, hidden = serialization.dump(
    jax.tree_util.tree_map_with_path(place, state)
  )
  if hidden:
    raise TypeError(f'Expected arrays in a pytree, got {len(hidden)} others.')
  numbers = jax.device_get([array for _, array in arrays])
  return np.frombuffer(plain, np.uint8), [
    (path, _contiguous(number))
    for (path, _), number in zip(arrays, numbers, strict=True)
  ]


def _decode(plain: np.ndarray, count: int) -> Any:
  """Returns a state from its plain data, with an `ArrayPlace` for each array.

  Args:
    plain: The plain data, uint8 [n].
    count: Number of arrays.

  Raises:
    Corrupt: If it is no state, or has places of other arrays.
  """
  try:
    tree = serialization.load(plain.data, ())
    leaves = jax.tree.leaves(tree, is_leaf=_is_place)
  except ValueError as error:
    raise Corrupt(f'sent no state: {error}') from error
  places = [leaf for leaf in leaves if _is_place(leaf)]
  numbers = [place.number for place in places]
  if not all(type(n) is int and 0 <= n < count for n in numbers):
    raise Corrupt(f'expected places of {count} arrays, got {numbers}')
  return tree


def _join(tree: Any, arrays: Sequence[np.ndarray]) -> Any:
  """Returns a state with arrays in their places."""

  def place(leaf: Any) -> Any:
    if not _is_place(leaf):
      return leaf
    array = arrays[leaf.number]
    return jax.device_put(array) if leaf.is_jax else array

  return jax.tree.map(place, tree, is_leaf=_is_place)


def _is_place(leaf: Any) -> bool:
  return isinstance(leaf, ArrayPlace)


def _slices(
  parts: Sequence[np.ndarray], start: int, stop: int
) -> Iterator[np.ndarray]:
  """Yields the bytes of a range of all parts, in chunks within one part."""
  ends = itertools.accumulate(part.size for part in parts)
  for part, end in zip(parts, ends, strict=True):
    begin = end - part.size
    first, last = max(start - begin, 0), min(stop - begin, part.size)
    for at in range(first, last, _STEP):
      yield part[at : min(at + _STEP, last)]


def _is_array(leaf: Any) -> bool:
  return isinstance(leaf, jax.Array | np.ndarray)


def _contiguous(array: np.ndarray) -> np.ndarray:
  # `ascontiguousarray` gives an array of no dimensions one.
  return np.ascontiguousarray(array).reshape(np.shape(array))


def _check_description(found: StateArrays, plain_bytes: int) -> list[_Kind]:
  """Returns dtype and shape of each array that a source describes.

  Args:
    found: The description.
    plain_bytes: Size of the plain data, bytes.

  Raises:
    Corrupt: If it describes no arrays of numbers, or more than fits into the
      memory of this host.
  """
  kinds: list[_Kind] = []
  for path, name, shape in found.arrays:
    try:
      dtype = jnp.dtype(name)
    except (TypeError, ValueError) as error:
      raise Corrupt(f'expected {path} to have a dtype, got {error}') from error
    is_number = jnp.issubdtype(dtype, np.number) or dtype == np.bool_
    if not is_number or len(shape) > _MAX_DIMENSIONS:
      raise Corrupt(
        f'expected {path} to have numbers and up to {_MAX_DIMENSIONS} '
        f'dimensions, got {dtype} and {len(shape)}'
      )
    kinds.append((dtype, shape))
  # NumPy multiplies lengths of empty arrays, too.
  size_bytes = plain_bytes + sum(
    dtype.itemsize * math.prod(max(length, 1) for length in shape)
    for dtype, shape in kinds
  )
  if size_bytes > (available_bytes := memory.available_bytes()):
    raise Corrupt(
      f'expected a state of up to {available_bytes} bytes, which are available '
      f'in memory, got one of {size_bytes}'
    )
  return kinds


def _allocate(kinds: Sequence[_Kind]) -> list[np.ndarray]:
  """Returns arrays of some dtypes and shapes, as XLA takes without a copy."""
  sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in kinds]
  return [
    part.view(dtype).reshape(shape)
    for part, (dtype, shape) in zip(
      memory.aligned_arrays(sizes), kinds, strict=True
    )
  ]


def _bytes(array: np.ndarray) -> np.ndarray:
  return array.reshape(-1).view(np.uint8)
