"""Chunks of a gradient travel, those with the largest L1 norms; the rest waits.

Coarse-grained sparse communication (Sun et al., 'Optimizing Network Performance
for Distributed DNN Training on GPU Clusters: ImageNet/AlexNet Training in 1.5
Minutes', 2019).  What is not sent is kept and added to the next gradient.  To a
server each worker sends the chunks that it chooses, with their numbers.  In a
sum among workers the norms are summed first, so that all choose the same chunks
and what travels is a shorter dense vector.  Chunks may travel in half of
float32: what rounding takes away is kept, too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.checks import require
from wire import dense, hosted
from wire.codec import Codec, Early, Halves, Message, State, Summed, Wire

_CORRECTIONS = ('none', 'masked', 'local')
_ITEM = 4  # Bytes of a number, and of a chunk's number.
_PARTS = 8  # In which a chunk is added.
_EXACT = 1e-9  # By which a share of chunks may be off, as floats are.

# Of a worker: `left`, which is to be sent, and in some cases `velocity`.
Vectors = Mapping[str, jax.Array]


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
    dtype: 'float32', 'bfloat16' or 'float16': of the numbers of chunks.
    sparsity: Share of the chunks that does not travel, rounded down to whole
      chunks.
    chunk: Numbers of a chunk.
    correction: What becomes of momentum.  'none': the optimiser treats what has
      not arrived as zeros.  'masked': an update leaves numbers that have not
      arrived, and the optimiser's state of them, as they are.  'local': workers
      apply momentum before they choose, and forget that of chunks that they
      send, while not all travel (Lin et al., 'Deep Gradient Compression',
      2018); the optimiser has none.
    momentum: Of 'local', else 0.
    select_lag: 0: chunks are chosen by the norms of what they hold.  1: by
      what was left in them the last time, which is known before the gradient.
    warmup: Sparsities before, rising.
    warmup_epochs: How long each of them is used.

  Raises:
    ValueError: If an argument is out of range.
  """
  require(chunk >= 1, 'chunk', 'at least 1', chunk)
  require(0 <= sparsity < 1, 'sparsity', 'at least 0, below 1', sparsity)
  path = [0, *warmup, sparsity]
  rising = f'rising numbers from 0 to {sparsity}'
  valid = path == sorted(path) and all(0 <= each < 1 for each in path)
  require(valid, 'warmup', rising, warmup)
  require(warmup_epochs > 0, 'warmup_epochs', 'more than 0', warmup_epochs)
  known = f'one of {list(_CORRECTIONS)}'
  require(correction in _CORRECTIONS, 'correction', known, correction)
  local = correction == 'local'
  none = f'0, as workers have none with {correction!r}'
  expected = 'above 0, below 1' if local else none
  valid = 0 < momentum < 1 if local else momentum == 0
  require(valid, 'momentum', expected, momentum)
  require(select_lag in (0, 1), 'select_lag', '0 or 1', select_lag)
  codecs = [
    _Chunks(
      *(each, chunk, correction, momentum, bool(select_lag)), dense.known(dtype)
    ).codec()
    for each in (*warmup, sparsity)
  ]
  exact = dense.cast(jnp.dtype('float32'))
  return Wire(
    push=codecs[-1],
    pull=exact,
    stats=exact,
    before=[
      ((number + 1) * warmup_epochs, codec)
      for number, codec in enumerate(codecs[:-1])
    ],
  )


class _Chunks(NamedTuple):
  """Which chunks of a vector travel.

  Attributes:
    sparsity: As of `make`, and so are the others.
    chunk: Numbers of each; those that the last one lacks are zeros.
    correction: Of momentum.
    momentum: Of 'local'.
    lags: Whether chunks are chosen by what was left in them.
    dtype: Of what travels.
  """

  sparsity: float
  chunk: int
  correction: str
  momentum: float
  lags: bool
  dtype: np.dtype

  def codec(self) -> Codec:
    """Returns the codec."""
    at_once = self.lags or not self.sparsity
    masked = self.correction == 'masked' and self.sparsity > 0
    early = Early(
      self.chunk,
      lambda n: 0 if self._all_travel(n) else self.sent_of(n),
      lambda state, n: hosted.chosen(np.asarray(state.common), self.sent_of(n)),
      lambda kept, vector: hosted.rounded(
        np.asarray(self.added(kept, vector)['left']), self.dtype
      ),
    )
    return Codec(
      init=self._init,
      encode=self._encode,
      decode=self._decode,
      size_bytes=self._size_bytes,
      arrived=self._arrived if masked else None,
      multiple=self.chunk,
      early=early if self.lags else None,
      hosted=hosted.Hosted(
        self.chunk,
        self.sent_of,
        self.momentum,
        self.lags,
        dense=not self.sparsity,
        masked=self.correction == 'masked',
        dtype=self.dtype,
      ).talk,
      halves=None
      if self.dtype == jnp.float32
      else Halves(self.dtype, self._values_of),
      overflows=self.dtype == jnp.float16,
      rounds=[
        *([self._say] if at_once else [self._say_norms, self._say_chosen]),
        self._end,
      ],
    )

  def all_of(self, n: int) -> int:
    """Returns how many chunks n numbers are."""
    expected = f'at most {n}, the numbers that travel together'
    require(self.chunk <= n, 'chunk', expected, self.chunk)
    return -(-n // self.chunk)

  def sent_of(self, n: int) -> int:
    """Returns how many of them travel, at least one."""
    count = self.all_of(n)
    return max(count - int(self.sparsity * count + _EXACT), 1)

  def added(self, kept: Vectors, vector: jax.Array) -> Vectors:
    """Returns what there is to be sent with a new gradient."""
    if self.correction != 'local':
      return {'left': kept['left'] + vector}
    velocity = self.momentum * kept['velocity'] + vector
    return {'left': kept['left'] + velocity, 'velocity': velocity}

  def norms(self, vector: jax.Array) -> jax.Array:
    """Returns the sum of the absolute numbers of each chunk, [chunks]."""
    # XLA adds long rows many times slower on CPUs.
    parts = math.gcd(self.chunk, _PARTS)
    rows = jnp.abs(self._cut(vector)).reshape(-1, parts, self.chunk // parts)
    return jnp.sum(jnp.sum(rows, axis=1), axis=1)

  def chosen(self, norms: jax.Array, n: int) -> jax.Array:
    """Returns the chunks that travel, ascending; of equal ones the first."""
    _, chunks = jax.lax.top_k(norms, self.sent_of(n))
    return jnp.sort(chunks)

  def packed(self, vector: jax.Array, chunks: jax.Array) -> jax.Array:
    """Returns the numbers of the chunks, end to end."""
    return self._cut(vector)[chunks].reshape(-1)

  def merged(self, values: jax.Array, chunks: jax.Array, n: int) -> jax.Array:
    """Returns a vector of n numbers, zeros but for those of the chunks."""
    blank = jnp.zeros((self.all_of(n), self.chunk), values.dtype)
    rows = values.reshape(-1, self.chunk)
    whole = blank.at[chunks].set(rows, unique_indices=True)
    return whole.reshape(-1)[:n]

  def without(self, kept: Vectors, chunks: jax.Array, lost: Any) -> Vectors:
    """Returns what is kept once the chunks have been sent.

    Args:
      kept: Before.
      chunks: Those.
      lost: What rounding took from them, [chunks, chunk]; 0 for nothing.
    """

    def put(vector: jax.Array, rest: Any) -> jax.Array:
      rows = self._cut(vector).at[chunks]
      whole = rows.set(rest, unique_indices=True)
      return whole.reshape(-1)[: vector.size]

    rests = {'left': lost, 'velocity': 0.0}
    return {what: put(vector, rests[what]) for what, vector in kept.items()}

  def _init(self, n: int, worker: Any) -> State:
    del worker
    kept = ['left', 'velocity'] if self.correction == 'local' else ['left']
    count = self.all_of(n)
    norms = jnp.zeros(count) if self.lags else ()
    return State({what: jnp.zeros(n) for what in kept}, common=norms)

  def _size_bytes(self, n: int) -> int:
    numbers = self.dtype.itemsize * self._values_of(n)
    return numbers + (0 if self._all_travel(n) else _ITEM * self.sent_of(n))

  def _encode(self, state: State, vector: jax.Array) -> tuple[Message, State]:
    kept = self.added(state.kept, vector)
    norms = state.common if self.lags else self.norms(kept['left'])
    values, chunks, state = self._taken(state, kept, norms)
    values = values.astype(self.dtype)  # As they are: rounded already.
    return values if chunks is None else (values, chunks), state

  def _decode(self, message: Message, n: int) -> jax.Array:
    if self._all_travel(n):
      return message.astype(jnp.float32)
    values, chunks = message
    return self.merged(values.astype(jnp.float32), chunks, n)

  def _arrived(self, message: Message, n: int) -> jax.Array:
    if self._all_travel(n):
      return jnp.ones(n, bool)
    return self._mask(message[1], n)

  def _say_norms(self, state: State, vector: jax.Array) -> tuple[Any, Any]:
    kept = self.added(state.kept, vector)
    return self.norms(kept['left']), (state, kept)

  def _say_chosen(self, carried: Any, norms: jax.Array) -> tuple[Any, Any]:
    state, kept = carried
    values, chunks, state = self._taken(state, kept, norms)
    return values, (state, chunks)

  def _say(self, state: State, vector: jax.Array) -> tuple[Any, Any]:
    kept = self.added(state.kept, vector)
    values, chunks, state = self._taken(state, kept, state.common)
    if self.lags:
      values = jnp.concatenate([values, state.common])
    return values, (state, chunks)

  def _end(self, carried: Any, heard: jax.Array) -> tuple[Any, Any]:
    state, chunks = carried
    n = state.kept['left'].size
    if self.lags:
      heard, norms = jnp.split(heard, [heard.size - self.all_of(n)])
      state = state._replace(common=norms)
    if chunks is None:
      return Summed(heard), state
    masked = self.correction == 'masked'
    arrived = self._mask(chunks, n) if masked else ()
    return Summed(self.merged(heard, chunks, n), arrived), state

  def _taken(
    self, state: State, kept: Vectors, norms: Any
  ) -> tuple[jax.Array, jax.Array | None, State]:
    """Returns the numbers that travel; of which chunks, if not of all; a state.

    Args:
      state: Of before.
      kept: With the new gradient.
      norms: By which chunks are chosen.
    """
    left, n = kept['left'], kept['left'].size
    chunks = None if self._all_travel(n) else self.chosen(norms, n)
    common: Any = self.norms(left) if self.lags else ()
    if chunks is None:  # Nothing has waited, so the velocity is not stale.
      values = self._rounded(left)
      kept = {**kept, 'left': left - values}
      common = jnp.zeros_like(common) if self.lags else ()
    else:
      exact = self.packed(left, chunks)
      values = self._rounded(exact)
      lost: Any = 0.0
      if self.dtype != jnp.float32:
        lost = self._cut(exact - values)
      kept = self.without(kept, chunks, lost)
      if self.lags:
        common = common.at[chunks].set(0, unique_indices=True)
    return values, chunks, state._replace(kept=kept, common=common)

  def _rounded(self, values: jax.Array) -> jax.Array:
    """Returns numbers as they travel, in float32."""
    if self.dtype == jnp.float32:
      return values
    # XLA may leave out a cast and the one back.
    kind = jnp.finfo(self.dtype)
    return jax.lax.reduce_precision(values, kind.nexp, kind.nmant)

  def _values_of(self, n: int) -> int:
    return n if self._all_travel(n) else self.sent_of(n) * self.chunk

  def _all_travel(self, n: int) -> bool:
    return self.sent_of(n) == self.all_of(n)

  def _mask(self, chunks: jax.Array, n: int) -> jax.Array:
    return self.merged(jnp.ones(len(chunks) * self.chunk, bool), chunks, n)

  def _cut(self, vector: jax.Array) -> jax.Array:
    lacks = -vector.size % self.chunk
    if lacks:
      vector = jnp.pad(vector, (0, lacks))
    return vector.reshape(-1, self.chunk)
