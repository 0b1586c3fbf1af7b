"""The interface of codecs, and the codecs that a run uses.

A codec compresses gradients before they are sent.  `make(...)` of the module
that config.wire.name names returns a `Wire`, which has the codecs of gradients,
parameters and running statistics.  A codec's functions are pure, have fixed
shapes and can be jitted: its state is an argument and a result.  The size of a
message is known before the gradient is.
"""

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

# A pytree of arrays: an encoded vector.
Message = Any


class State(NamedTuple):
  """The state of one worker's codec between two vectors: pytrees of arrays.

  Attributes:
    residual: The part of earlier gradients that has not been sent (error
      feedback); arrays, float32 [n].  A worker that takes the place of others
      takes over the sum of their residuals.
    local: State that each worker has for itself, such as a random key.
    replicated: State that is equal on all workers of an allreduce, such as the
      norms of the last sum; a worker that joins them copies it.
  """

  residual: Any = ()
  local: Any = ()
  replicated: Any = ()


def scale_residual(state: State, scale: Any) -> State:
  """Returns a state whose residual is multiplied by a number."""
  residual = jax.tree.map(lambda array: array * scale, state.residual)
  return state._replace(residual=residual)


class Payload(NamedTuple):
  """A push, summed over its examples.

  Attributes:
    gradient: Pytree like the parameters.
    stats: Statistics of the batch, times its examples; like `Task.stats`.
    arrived: Pytree of bool like the gradient: the numbers that have arrived, if
      an update must not change the others; () if all have.
  """

  gradient: Any
  stats: Any
  arrived: Any = ()


class PartialVector(NamedTuple):
  """A decoded or reduced vector, of which some numbers may not have arrived.

  Attributes:
    vector: Float32 [n]; 0 where a number has not arrived.
    arrived: Bool [n]: the numbers that have arrived, if an update must not
      change the others; () if all have.
  """

  vector: Any
  arrived: Any = ()


class Rows(NamedTuple):
  """Whole rows of a matrix that lie in a vector, one after the other.

  Attributes:
    start: Position of the first number in the vector.
    rows: Number of rows.
    columns: Number of columns.
  """

  start: int
  rows: int
  columns: int


class Workspace:
  """NumPy arrays that one worker's allreduces reuse.

  Allocating them each time would cost more than the work in them.

  Attributes:
    nonzero_rows: By name of an array: indices of the rows that may differ from
      0, where they are known.
  """

  def __init__(self, **arrays: np.ndarray):
    self._arrays = arrays
    self.nonzero_rows: dict[str, np.ndarray] = {}

  def array(self, name: str, size: int, dtype: Any = np.float32) -> np.ndarray:
    """Returns an array [size] with the content of its last use.

    A new array has any content.

    Args:
      name: Name of the array; equal names and sizes give the same array.
      size: Number of elements.
      dtype: Dtype of the elements.
    """
    found = self._arrays.get(name)
    if found is None or found.size != size:
      found = self._arrays[name] = np.empty(size, dtype)
      self.nonzero_rows.pop(name, None)
    return found


# The allreduce of one worker: yields a contribution, float32 [k], is sent the
# sum of all workers' contributions, and so on, round by round.  Returns the
# reduced vector, the same on all workers, and the worker's next state.
Rounds = Generator[Any, Any, tuple[PartialVector, State]]


class HalfPrecision(NamedTuple):
  """The part of an allreduce's last contribution that travels in 16 bits.

  Attributes:
    dtype: The dtype, to which these numbers have been rounded; their sum is
      rounded once, too.
    count: Returns how many numbers that are, the first ones of the
      contribution, for a vector of n numbers.
  """

  dtype: np.dtype
  count: Callable[[int], int]


class StreamablePrefix(NamedTuple):
  """Chunks that an allreduce sends before the gradient is complete.

  The state before the gradient chooses them.  They are the beginning of the
  first contribution, one after the other.

  Attributes:
    chunk: Numbers of a chunk; those that the vector's last chunk lacks are 0.
    count: Returns the number of chunks that travel of a vector of n numbers; 0
      if all travel, which is no prefix.
    choose: Returns these chunks' indices, int [count], ascending, of the state
      and n; in NumPy.
    encode: Returns a chunk's part of the contribution, of the residual's and
      the gradient's numbers of the chunk; in NumPy.
  """

  chunk: int
  count: Callable[[int], int]
  choose: Callable[[State, int], np.ndarray]
  encode: Callable[[Any, np.ndarray], np.ndarray]

  def buckets(self, n: int, bucket_bytes: float) -> list[tuple[int, int]]:
    """Returns (first chunk, end) of each bucket: chunks that travel together.

    Args:
      n: Numbers of the vector.
      bucket_bytes: Smallest size of a bucket in float32, except if all chunks
        together have less.
    """
    count = self.count(n)
    least = max(int(min(bucket_bytes, 2**62)) // (4 * self.chunk), 1)
    starts = range(0, max(count - least, 0) + 1, least)
    return [*itertools.pairwise([*starts, count])]


class Codec(NamedTuple):
  """A compression of vectors: functions, an optional allreduce, properties.

  Attributes:
    init: Returns the state before the first vector, of the number of elements
      and the index of the worker; workers that round at random need different
      random keys.
    encode: Returns the message of a vector, float32 [n], and the next state, of
      the state and the vector.
    decode: Returns the `PartialVector` that a message stands for, of the
      message and n, which the message's shapes need not tell.
    size_bytes: Returns the bytes of a message, of n.
    allreduce: Returns the `Rounds` of one worker, of its state, its vector,
      the scale of the vector and a `Workspace`.  The scale is a power of two
      that all vectors are multiplied by, and residuals are not.  A vector that
      is a NumPy array may be overwritten and become part of the next state; the
      reduced vector may lie in the workspace.  Residual and local state must
      not depend on the last sum.  None if messages are not summed on their way,
      or if sums need no more than a cast (see `dtype`).
    elementwise: Whether each number is encoded by itself, without state.  Then
      a codec may be given arrays of any shape, leaves of a tree one by one, and
      parts of a vector.
    dtype: The dtype of a codec that only casts; sums among workers are cast to
      it, too.  None for all others.
    padding: Number of numbers; vectors in an allreduce are padded to a multiple
      of it.
    overflows: Whether finite numbers may become infinite on their way.
    half_precision: The part of the last contribution that travels in 16 bits;
      None for no part.
    streamable: The part of the first contribution that can be sent before the
      gradient is complete; None for no part.
  """

  init: Callable[[int, Any], State]
  encode: Callable[[State, jax.Array], tuple[Message, State]]
  decode: Callable[[Message, int], PartialVector]
  size_bytes: Callable[[int], int]
  allreduce: Callable[[State, Any, float, Workspace], Rounds] | None = None
  elementwise: bool = False
  dtype: np.dtype | None = None
  padding: int = 1
  overflows: bool = False
  half_precision: HalfPrecision | None = None
  streamable: StreamablePrefix | None = None


class Wire(NamedTuple):
  """The codecs of a run.

  Attributes:
    push: Codec of gradients.
    pull: Codec of parameters; it has no state, as all workers get the same.
    stats: Codec of running statistics, both ways; it has no state.
    warmup: Codecs of gradients that are used before `push`, each with the
      number of epochs until which it is, ascending.  Their states are alike.
    fit: Returns the wire for vectors in which these matrices lie; None if the
      codecs treat all vectors alike.
  """

  push: Codec
  pull: Codec
  stats: Codec
  warmup: Sequence[tuple[float, Codec]] = ()
  fit: 'Callable[[Sequence[Rows]], Wire] | None' = None

  @property
  def pushes(self) -> Sequence[Codec]:
    """The codecs of gradients, stage by stage."""
    return [*(codec for _, codec in self.warmup), self.push]

  def stage(self, epochs: float) -> int:
    """Returns the index in `pushes` of the codec in use after `epochs`.

    Args:
      epochs: Epochs of examples in applied updates.
    """
    return sum(until <= epochs for until, _ in self.warmup)

  def for_matrices(self, matrices: Sequence[Rows]) -> 'Wire':
    """Returns the wire for vectors that contain these matrices.

    It is this wire itself if its codecs treat all vectors alike.

    Args:
      matrices: Rows of matrices, by their positions in the vector.
    """
    return self.fit(matrices) if self.fit else self

  @property
  def elementwise(self) -> bool:
    """True if all codecs encode each number by itself."""
    return all(codec.elementwise for codec in self._codecs)

  @property
  def plain(self) -> bool:
    """True if all codecs are the identity, and return their argument itself."""
    return self.elementwise and all(map(_is_identity, self._codecs))

  def push_bytes(self, params: int, stats: int, stage: int = -1) -> int:
    """Returns the bytes of a push.

    Args:
      params: Number of parameters.
      stats: Number of statistics.
      stage: Index in `pushes`; the last by default, after all warm-up.
    """
    push = self.pushes[stage]
    return push.size_bytes(params) + self.stats.size_bytes(stats)

  def pull_bytes(self, params: int, stats: int) -> int:
    """Returns the bytes of a pull, the same in all stages.

    Args:
      params: Number of parameters.
      stats: Number of statistics.
    """
    return self.pull.size_bytes(params) + self.stats.size_bytes(stats)

  @property
  def _codecs(self) -> Sequence[Codec]:
    return [*self.pushes, self.pull, self.stats]


def _is_identity(codec: Codec) -> bool:
  vector = cast(
    jax.Array, np.zeros(1, np.float32)
  )  # A NumPy array compiles nothing.
  message, _ = codec.encode(State(), vector)
  return message is vector and codec.decode(message, 1).vector is vector
