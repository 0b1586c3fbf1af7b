"""Codec that sends the chunks of a gradient with the largest L1 norms.

Coarse-grained sparse communication (Sun et al., 'Optimizing Network Performance
for Distributed DNN Training on GPU Clusters: ImageNet/AlexNet Training in 1.5
Minutes', 2019).  Chunks that are not sent are a residual, which is added to the
next gradient.  To a server each worker sends chunks of its own choice, with
their indices.  An allreduce sums the norms first, so that all workers choose
the same chunks and the values are a shorter dense vector.  Chunks may be sent
in 16 bits: what rounding takes away stays in the residual.

An allreduce of NumPy vectors, on hosts, has an implementation of its own: there
XLA's passes over newly allocated memory cost several times what the work in
them does.  The one in NumPy passes over vectors once, block by block, in memory
that is used again.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs import declared
from configs.checks import require
from wire import dense
from wire.codec import (
  Codec,
  HalfPrecision,
  Message,
  PartialVector,
  Rounds,
  State,
  StreamablePrefix,
  Wire,
  Workspace,
  scale_residual,
)

_ITEM = 4  # Bytes of a float32, and of the index of a chunk.
_ROUNDING = 1e-9  # Allowed rounding error of a share of chunks.
_PARTS = 8  # In which XLA adds a chunk.
_BLOCK = 2**15  # Numbers that stay in a core's cache while they are used.

# A residual: `unsent` numbers, and with local momentum their `velocity`.
Vectors = Mapping[str, Any]


@declared.check_arguments('wire.sparse')
def make(
  *,
  dtype: str,
  sparsity: float,
  chunk: int,
  correction: str,
  momentum: float,
  select_lag: int,
  warmup: Sequence[float],
  warmup_epochs: float,
) -> Wire:
  """Returns a wire whose pushes are chunks; its pulls are dense float32.

  Args:
    dtype: Dtype of the numbers of chunks: 'float32', 'bfloat16' or 'float16'.
    sparsity: Share of the chunks that is not sent, rounded down to whole
      chunks.
    chunk: Numbers of a chunk.
    correction: Treatment of momentum.  'none': the optimiser treats numbers
      that have not arrived as zeros.  'masked': an update leaves these numbers,
      and the optimiser's state of them, as they are.  'local': workers apply
      momentum before they choose, and reset that of chunks that they send,
      unless all are sent (Lin et al., 'Deep Gradient Compression', 2018); the
      optimiser has none.
    momentum: Momentum of 'local', else 0.
    select_lag: 0: chunks are chosen by the norms of gradient and residual.  1:
      by those of the last residual, which are known before the gradient.
    warmup: Sparsities of the first epochs, rising.
    warmup_epochs: Epochs for which each of them is used.

  Raises:
    ValueError: If an argument is out of range; names the field.
  """
  path = [0, *warmup, sparsity]
  rising = f'rising numbers from 0 to {sparsity}'
  require(path == sorted(path), 'warmup', rising, warmup)
  local = correction == 'local'
  none = f'0, as workers have none with {correction!r}'
  expected = 'above 0, below 1' if local else none
  valid = 0 < momentum < 1 if local else momentum == 0
  require(valid, 'momentum', expected, momentum)
  lags, parsed = bool(select_lag), jnp.dtype(dtype)
  codecs = [
    _codec(ChunkSettings(each, chunk, correction, momentum, lags, parsed))
    for each in (*warmup, sparsity)
  ]
  exact = dense.cast(jnp.dtype('float32'))
  return Wire(
    push=codecs[-1],
    pull=exact,
    stats=exact,
    warmup=[
      ((number + 1) * warmup_epochs, codec)
      for number, codec in enumerate(codecs[:-1])
    ],
  )


class ChunkSettings(NamedTuple):
  """Selection of the chunks of a vector that are sent.

  Attributes:
    sparsity: Share of the chunks that is not sent, rounded down.
    chunk: Numbers of a chunk; those that the last one lacks are 0.
    correction: Treatment of momentum: 'none', 'masked' or 'local'.
    momentum: Momentum that workers apply with 'local', else 0.
    lags: Whether chunks are chosen by the norms of the previous iteration.
    dtype: Dtype of the numbers that are sent.
  """

  sparsity: float
  chunk: int
  correction: str
  momentum: float
  lags: bool
  dtype: np.dtype

  @property
  def needs_norms(self) -> bool:
    """True if an allreduce sums norms before it can choose chunks."""
    return bool(self.sparsity) and not self.lags

  def count_chunks(self, n: int) -> int:
    """Returns the number of chunks of n numbers; the last may be padded.

    Raises:
      ValueError: If a chunk has more than n numbers.
    """
    expected = f'at most {n}, the numbers that travel together'
    require(self.chunk <= n, 'chunk', expected, self.chunk)
    return -(-n // self.chunk)

  def count_sent(self, n: int) -> int:
    """Returns the number of chunks that are sent of n numbers, at least one."""
    count = self.count_chunks(n)
    return max(count - int(self.sparsity * count + _ROUNDING), 1)

  def sends_all(self, n: int) -> bool:
    """Returns whether all chunks of n numbers are sent."""
    return self.count_sent(n) == self.count_chunks(n)

  def count_values(self, n: int) -> int:
    """Returns how many of n numbers are sent, with padding of chunks."""
    return n if self.sends_all(n) else self.count_sent(n) * self.chunk

  def count_streamable(self, n: int) -> int:
    """Returns the number of chunks that are known to be sent, 0 if all are."""
    return 0 if self.sends_all(n) else self.count_sent(n)

  def size_bytes(self, n: int) -> int:
    """Returns the bytes of a message of n numbers: values, and indices."""
    values = self.dtype.itemsize * self.count_values(n)
    return values + _ITEM * self.count_streamable(n)


def _codec(settings: ChunkSettings) -> Codec:
  compiled, on_host = _JaxChunks(*settings), _NumpyChunks(*settings)

  def allreduce(
    state: State, vector: Any, scale: float, workspace: Workspace
  ) -> Rounds:
    if isinstance(vector, np.ndarray):
      return on_host.allreduce(state, vector, scale, workspace)
    return compiled.allreduce(state, vector, scale)

  return Codec(
    init=compiled.init,
    encode=compiled.encode,
    decode=compiled.decode,
    size_bytes=settings.size_bytes,
    allreduce=allreduce,
    padding=settings.chunk,
    overflows=settings.dtype == jnp.float16,
    half_precision=None
    if settings.dtype == jnp.float32
    else HalfPrecision(settings.dtype, settings.count_values),
    streamable=StreamablePrefix(
      chunk=settings.chunk,
      count=settings.count_streamable,
      choose=on_host.choose_from_state,
      encode=on_host.encode_chunk,
    )
    if settings.lags
    else None,
  )


class _JaxChunks(ChunkSettings):
  """Implementation in JAX, for servers and for XLA's collectives."""

  def init(self, n: int, worker: Any) -> State:
    """Returns a residual of zeros."""
    del worker
    names = ['unsent', 'velocity'] if self.correction == 'local' else ['unsent']
    count = self.count_chunks(n)
    norms = jnp.zeros(count) if self.lags else ()
    return State({name: jnp.zeros(n) for name in names}, replicated=norms)

  def encode(self, state: State, vector: jax.Array) -> tuple[Message, State]:
    """Returns the values of chunks, and their indices unless all are sent."""
    residual = self._accumulate(state.residual, vector)
    norms = state.replicated if self.lags else self._norms(residual['unsent'])
    values, chunks, state = self._extract(state, residual, norms)
    values = values.astype(self.dtype)  # Exact: they are rounded already.
    return values if chunks is None else (values, chunks), state

  def decode(self, message: Message, n: int) -> PartialVector:
    """Returns the vector with the values, and zeros elsewhere."""
    masked = self.correction == 'masked' and self.sparsity > 0
    if self.sends_all(n):
      vector = message.astype(jnp.float32)
      return PartialVector(vector, jnp.ones(n, bool) if masked else ())
    values, chunks = message
    arrived = self._mask(chunks, n) if masked else ()
    values = values.astype(jnp.float32)
    return PartialVector(self._scatter(values, chunks, n), arrived)

  def allreduce(self, state: State, vector: jax.Array, scale: float) -> Rounds:
    """Yields the norms, unless they are known, and the values of chunks."""
    if scale != 1:
      state = _scale_residual(state, np.float32(scale))
    if self.needs_norms:
      norms, residual = _begin(self, state, vector)
      norms = yield norms
      values, chunks, state = _choose(self, state, residual, norms)
    else:
      values, chunks, state = _choose_at_once(self, state, vector)
    total = yield values
    reduced, state = _finish(
      self, state.residual, state._replace(residual=()), chunks, total
    )
    if scale != 1:
      state = _scale_residual(state, np.float32(1 / scale))
    return reduced, state

  def begin(self, state: State, vector: jax.Array) -> tuple[jax.Array, Vectors]:
    """Returns the norms of chunks, and residual and gradient together."""
    residual = self._accumulate(state.residual, vector)
    return self._norms(residual['unsent']), residual

  def choose(
    self, state: State, residual: Vectors, norms: jax.Array
  ) -> tuple[jax.Array, jax.Array | None, State]:
    """Returns values of chunks, their indices, and the next state."""
    return self._extract(state, residual, norms)

  def choose_at_once(
    self, state: State, vector: jax.Array
  ) -> tuple[jax.Array, jax.Array | None, State]:
    """Like `choose`, but by the norms of the previous iteration.

    The new norms follow the values, so that one sum carries both.
    """
    residual = self._accumulate(state.residual, vector)
    values, chunks, state = self._extract(state, residual, state.replicated)
    if self.lags:
      values = jnp.concatenate([values, state.replicated])
    return values, chunks, state

  def finish(
    self, residual: Vectors, state: State, chunks: Any, total: jax.Array
  ) -> tuple[PartialVector, State]:
    """Returns the reduced vector and the next state, of the sum of values."""
    n = residual['unsent'].size
    state = state._replace(residual=residual)
    if self.lags:
      total, norms = jnp.split(total, [total.size - self.count_chunks(n)])
      state = state._replace(replicated=norms)
    if chunks is None:
      return PartialVector(total), state
    arrived = self._mask(chunks, n) if self.correction == 'masked' else ()
    return PartialVector(self._scatter(total, chunks, n), arrived), state

  def _accumulate(self, residual: Vectors, vector: jax.Array) -> Vectors:
    """Returns a residual with a new gradient."""
    if self.correction != 'local':
      return {'unsent': residual['unsent'] + vector}
    velocity = self.momentum * residual['velocity'] + vector
    return {'unsent': residual['unsent'] + velocity, 'velocity': velocity}

  def _norms(self, vector: jax.Array) -> jax.Array:
    """Returns the L1 norm of each chunk, float32 [chunks]."""
    # XLA adds long rows many times slower on CPUs.
    parts = math.gcd(self.chunk, _PARTS)
    rows = jnp.abs(self._split(vector)).reshape(-1, parts, self.chunk // parts)
    return jnp.sum(jnp.sum(rows, axis=1), axis=1)

  def _extract(
    self, state: State, residual: Vectors, norms: Any
  ) -> tuple[jax.Array, jax.Array | None, State]:
    """Moves the values that are sent from a residual into an array."""
    unsent, n = residual['unsent'], residual['unsent'].size
    chunks = None if self.sends_all(n) else self._largest(norms, n)
    replicated: Any = self._norms(unsent) if self.lags else ()
    if chunks is None:  # Nothing has waited, so the velocity is not stale.
      values = self._round(unsent)
      residual = {**residual, 'unsent': unsent - values}
      replicated = jnp.zeros_like(replicated) if self.lags else ()
    else:
      exact = self._split(unsent)[chunks].reshape(-1)
      values = self._round(exact)
      lost: Any = 0.0
      if self.dtype != jnp.float32:
        lost = self._split(exact - values)
      residual = self._remove(residual, chunks, lost)
      if self.lags:
        replicated = replicated.at[chunks].set(0, unique_indices=True)
    state = state._replace(residual=residual, replicated=replicated)
    return values, chunks, state

  def _largest(self, norms: jax.Array, n: int) -> jax.Array:
    """Returns chunks of largest norm, ascending; the first of equal ones."""
    _, chunks = jax.lax.top_k(norms, self.count_sent(n))
    return jnp.sort(chunks)

  def _round(self, values: jax.Array) -> jax.Array:
    """Returns numbers rounded to the dtype that is sent, in float32."""
    if self.dtype == jnp.float32:
      return values
    # XLA may leave out a cast and the one back.
    info = jnp.finfo(self.dtype)
    return jax.lax.reduce_precision(values, info.nexp, info.nmant)

  def _remove(self, residual: Vectors, chunks: jax.Array, lost: Any) -> Vectors:
    """Returns a residual without the chunks that are sent."""

    def put(vector: jax.Array, rest: Any) -> jax.Array:
      rows = self._split(vector).at[chunks]
      whole = rows.set(rest, unique_indices=True)
      return whole.reshape(-1)[: vector.size]

    rests = {'unsent': lost, 'velocity': 0.0}
    return {name: put(vector, rests[name]) for name, vector in residual.items()}

  def _scatter(self, values: jax.Array, chunks: jax.Array, n: int) -> jax.Array:
    """Returns a vector [n], zero but for the values of the chunks."""
    blank = jnp.zeros((self.count_chunks(n), self.chunk), values.dtype)
    rows = values.reshape(-1, self.chunk)
    whole = blank.at[chunks].set(rows, unique_indices=True)
    return whole.reshape(-1)[:n]

  def _mask(self, chunks: jax.Array, n: int) -> jax.Array:
    """Returns which numbers lie in the chunks, bool [n]."""
    return self._scatter(jnp.ones(len(chunks) * self.chunk, bool), chunks, n)

  def _split(self, vector: jax.Array) -> jax.Array:
    """Returns the chunks of a vector, [chunks, chunk]."""
    missing = -vector.size % self.chunk
    if missing:
      vector = jnp.pad(vector, (0, missing))
    return vector.reshape(-1, self.chunk)


# Compiled: what a worker does between two sums.
_scale_residual = jax.jit(scale_residual)
_begin = jax.jit(_JaxChunks.begin, static_argnums=0)
_choose = jax.jit(_JaxChunks.choose, static_argnums=0)
_choose_at_once = jax.jit(_JaxChunks.choose_at_once, static_argnums=0)
# In the memory of the residual: a copy would cost more than all else it does.
_finish = jax.jit(_JaxChunks.finish, static_argnums=0, donate_argnums=1)


class _NumpyChunks(ChunkSettings):
  """NumPy implementation of a worker's part in the sparse allreduce."""

  def allreduce(
    self, state: State, vector: np.ndarray, scale: float, workspace: Workspace
  ) -> Rounds:
    """Yields the norms, unless they are known, and the values of chunks."""
    n = vector.size
    residual, own_norms = self._accumulate(
      state.residual, vector, np.float32(scale), workspace
    )
    norms = state.replicated
    if self.needs_norms:
      norms = yield own_norms
    unsent, chunks = residual['unsent'].reshape(-1, self.chunk), None
    if not self.sends_all(n):
      chunks = self.choose(np.asarray(norms), n)
    count = self.count_values(n)
    contribution = workspace.array(
      'contribution', count + (len(unsent) if self.lags else 0)
    )
    rows = contribution[:count].reshape(-1, self.chunk)
    if chunks is None:  # Nothing has waited, so the velocity is not stale.
      rows[...], own_norms[...] = unsent, 0
      unsent[...] = _round_in_place(rows, self.dtype)
    else:
      np.take(unsent, chunks, axis=0, out=rows, mode='clip')
      own_norms[chunks] = 0
      for each in residual.values():
        each.reshape(-1, self.chunk)[chunks] = 0
      if self.dtype != np.float32:
        unsent[chunks] = _round_in_place(rows, self.dtype)
    if self.lags:
      contribution[count:] = own_norms
    if scale != 1:
      for each in residual.values():
        each *= np.float32(1 / scale)
    total = yield contribution
    replicated: Any = np.array(total[count:]) if self.lags else ()
    return (
      self._reduced(np.asarray(total)[:count], chunks, n, workspace),
      State(residual, replicated=replicated),
    )

  def choose(self, norms: np.ndarray, n: int) -> np.ndarray:
    """Returns chunks of largest norm, ascending; the first of equal ones."""
    order = np.argsort(-norms, kind='stable')
    return np.sort(order[: self.count_sent(n)])

  def choose_from_state(self, state: State, n: int) -> np.ndarray:
    """Returns the chunks that the norms of the previous iteration choose."""
    return self.choose(np.asarray(state.replicated), n)

  def encode_chunk(self, residual: Vectors, vector: np.ndarray) -> np.ndarray:
    """Returns the values of a chunk, of its residual and its gradient."""
    if self.momentum:
      vector = self.momentum * residual['velocity'] + vector
    return round_to(residual['unsent'] + vector, self.dtype)

  def _accumulate(
    self,
    residual: Any,
    vector: np.ndarray,
    scale: np.float32,
    workspace: Workspace,
  ) -> tuple[Vectors, np.ndarray]:
    """Returns the residual with a new gradient, and its norms, [chunks]."""
    before = {name: np.asarray(each) for name, each in residual.items()}
    after = {'unsent': vector}
    if self.momentum:
      spare = _other_array(before['unsent'], workspace)
      after = {'unsent': spare, 'velocity': vector}
    norms = np.empty(vector.size // self.chunk, np.float32)
    rows = max(_BLOCK // self.chunk, 1)
    scratch = workspace.array('scratch', rows * self.chunk)
    # A worker whose gradient is not finite has reported that already.
    with np.errstate(over='ignore', invalid='ignore'):
      for first, place in self._blocks(vector.size, rows):
        new, old = after['unsent'][place], before['unsent'][place]
        block = scratch[: new.size]
        if self.momentum:
          velocity = vector[place]
          np.multiply(
            before['velocity'][place], np.float32(self.momentum), out=block
          )
          if scale != 1:
            block *= scale
          velocity += block
        if scale != 1:
          old = np.multiply(old, scale, out=block)
        np.add(old, vector[place], out=new)
        np.abs(new, out=block)
        parts = block.reshape(-1, self.chunk)
        np.add.reduce(parts, axis=1, out=norms[first : first + len(parts)])
    return after, norms

  def _blocks(self, n: int, rows: int) -> Iterator[tuple[int, slice]]:
    """Yields the first chunk and the place of each block of `rows` chunks."""
    step = rows * self.chunk
    for number, start in enumerate(range(0, n, step)):
      yield number * rows, slice(start, min(start + step, n))

  def _reduced(
    self,
    values: np.ndarray,
    chunks: np.ndarray | None,
    n: int,
    workspace: Workspace,
  ) -> PartialVector:
    """Returns the reduced vector, in the workspace, of the sum of values."""
    vector = workspace.array('sum', n)
    if chunks is None:
      vector[...] = values
      workspace.nonzero_rows.pop('sum', None)
      return PartialVector(vector)
    rows = values.reshape(-1, self.chunk)
    self._scatter(workspace, 'sum', vector, chunks, rows)
    if self.correction != 'masked':
      return PartialVector(vector)
    arrived = workspace.array('arrived', n, bool)
    self._scatter(workspace, 'arrived', arrived, chunks, True)
    return PartialVector(vector, arrived)

  def _scatter(
    self,
    workspace: Workspace,
    name: str,
    array: np.ndarray,
    chunks: np.ndarray,
    values: np.ndarray | bool,
  ) -> None:
    """Writes values into chunks of an array of the workspace, 0 elsewhere."""
    rows = array.reshape(-1, self.chunk)
    rows[workspace.nonzero_rows.get(name, slice(None))] = 0
    rows[chunks] = values
    workspace.nonzero_rows[name] = chunks


def round_to(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """Returns float32 numbers rounded to a dtype, in float32."""
  if dtype == np.float32:
    return numbers
  with np.errstate(over='ignore'):  # The sum is checked for infinities.
    rounded: np.ndarray = numbers.astype(dtype).astype(np.float32)
  return rounded


def _round_in_place(numbers: np.ndarray, dtype: np.dtype) -> Any:
  """Rounds numbers in place; returns what that takes away."""
  if dtype == np.float32:
    return 0
  exact, numbers[...] = numbers.copy(), round_to(numbers, dtype)
  with np.errstate(invalid='ignore'):
    return exact - numbers


def _other_array(used: np.ndarray, workspace: Workspace) -> np.ndarray:
  """Returns that of two arrays in which `used` does not lie."""
  names = ('unsent', 'unsent, too')
  both = [workspace.array(name, used.size) for name in names]
  return both[int(np.may_share_memory(used, both[0]))]
