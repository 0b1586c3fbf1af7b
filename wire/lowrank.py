"""Matrices of a gradient as products of two thin ones; the rest is kept.

PowerSGD (Vogels et al., 2019): one step of a power iteration, which starts
where that of the last gradient has ended.  To a server both factors travel; in
a sum among workers they are summed one after the other.  What is no matrix
travels as it is.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.checks import require
from wire import dense
from wire.codec import (
  Codec,
  Message,
  Room,
  Rows,
  State,
  Summed,
  Talk,
  Wire,
)
from wire.thin import Thin

_ITEM = 4


def make(*, rank: int) -> Wire:
  """Returns a wire whose pushes are factors; its pulls are dense float32.

  A convolution's kernel is the matrix of its outputs and all else.  With
  several servers each share has matrices of the rows that lie in it whole.

  Args:
    rank: Columns of a factor.  Matrices that would not become smaller travel as
      they are.

  Raises:
    ValueError: If it is below 1.
  """
  require(rank >= 1, 'rank', 'at least 1', rank)
  exact = dense.cast(jnp.dtype('float32'))
  return Wire(push=_codec(rank, None), pull=exact, stats=exact)


def _codec(rank: int, matrices: Sequence[Rows] | None) -> Codec:
  own = _Factors(
    rank,
    None
    if matrices is None
    else tuple(
      each
      for each in matrices
      if rank * (each.rows + each.columns) < each.rows * each.columns
    ),
  )
  return Codec(
    init=own.init,
    encode=own.encode,
    decode=own.decode,
    size_bytes=own.size_bytes,
    rounds=(own.say_left, own.say_right, own.end),
    hosted=own.talk,
    shaped=lambda matrices: _codec(rank, matrices),
  )


class _Factors(NamedTuple):
  """What of a vector becomes factors.

  Attributes:
    rank: Columns of each.
    known: The matrices, in the order in which they lie; None if nobody has said
      where they are.
  """

  rank: int
  known: Sequence[Rows] | None

  @property
  def matrices(self) -> Sequence[Rows]:
    """The matrices."""
    given = self.known is not None
    require(given, 'rank', 'vectors with matrices, as of a model', 'none')
    return self.known or ()

  def size_bytes(self, n: int) -> int:
    """Returns how long both factors of all matrices and the rest are."""
    factors = sum(self.rank * (m.rows + m.columns) for m in self.matrices)
    return _ITEM * (factors + sum(end - start for start, end in self._gaps(n)))

  def init(self, n: int, worker: Any) -> State:
    """Returns factors to begin with, the same for all workers."""
    del worker
    rights = [
      jax.random.normal(jax.random.key(number), (each.columns, self.rank))
      for number, each in enumerate(self.matrices)
    ]
    return State(jnp.zeros(n), common=rights)

  def encode(self, state: State, vector: jax.Array) -> tuple[Message, State]:
    """Returns the factors and the rest."""
    whole = state.kept + vector
    lefts = list(map(_orthogonal, self._products(whole, state.common)))
    rights = self._products(whole, lefts, across=True)
    sent = self._joined(lefts, rights, self._rest(whole), vector.size)
    message = lefts, rights, self._rest(whole)
    return message, State(whole - sent, common=rights)

  def decode(self, message: Message, n: int) -> jax.Array:
    """Returns the products, and the rest between them."""
    lefts, rights, rest = message
    return self._joined(lefts, rights, rest, n)

  def say_left(self, state: State, vector: jax.Array) -> tuple[Any, Any]:
    """Says the first factors, and the rest."""
    whole = state.kept + vector
    said = [*self._products(whole, state.common), self._rest(whole)]
    return _flat(said), whole

  def say_right(self, whole: Any, heard: jax.Array) -> tuple[Any, Any]:
    """Says the second ones, of what the first have become in the sum."""
    sizes = [(each.rows, self.rank) for each in self.matrices]
    *lefts, rest = _split(heard, sizes)
    lefts = list(map(_orthogonal, lefts))
    rights = self._products(whole, lefts, across=True)
    return _flat(rights), (lefts, rights, rest, whole)

  def end(self, carried: Any, heard: jax.Array) -> tuple[Summed, State]:
    """Returns the sum; each worker keeps its part of what is missing."""
    lefts, rights, rest, whole = carried
    n = whole.size
    sizes = [(each.columns, self.rank) for each in self.matrices]
    *summed, _ = _split(heard, sizes)
    sent = self._joined(lefts, rights, self._rest(whole), n)
    total = self._joined(lefts, summed, rest, n)
    return Summed(total), State(whole - sent, common=summed)

  def talk(
    self, state: State, vector: np.ndarray, scale: float, room: Room
  ) -> Talk:
    """Returns the same conversation for hosts."""
    gaps = [slice(start, end) for start, end in self._gaps(vector.size)]
    own = Thin(self.rank, self.matrices, gaps)
    return own.talk(state, vector, scale, room)

  def _products(
    self, vector: jax.Array, factors: Sequence[jax.Array], across: bool = False
  ) -> list[jax.Array]:
    """Returns each matrix, or its transpose, times a factor."""
    found = []
    for each, factor in zip(self.matrices, factors, strict=True):
      end = each.start + each.rows * each.columns
      matrix = vector[each.start : end].reshape(each.rows, each.columns)
      found.append(_product(matrix.T if across else matrix, factor))
    return found

  def _rest(self, vector: jax.Array) -> jax.Array:
    gaps = list(self._gaps(vector.size))
    return _flat([vector[start:end] for start, end in gaps])

  def _joined(
    self,
    lefts: Sequence[jax.Array],
    rights: Sequence[jax.Array],
    rest: jax.Array,
    n: int,
  ) -> jax.Array:
    """Returns a vector of the products of factors, and the rest."""
    vector, used = jnp.zeros(n), 0
    for each, one, other in zip(self.matrices, lefts, rights, strict=True):
      matrix = _product(one, other.T).reshape(-1)
      vector = jax.lax.dynamic_update_slice(vector, matrix, (each.start,))
    for start, end in self._gaps(n):
      part = rest[used : used + end - start]
      vector = jax.lax.dynamic_update_slice(vector, part, (start,))
      used += end - start
    return vector

  def _gaps(self, n: int) -> Iterator[tuple[int, int]]:
    """Yields where what is no matrix starts and ends."""
    last = 0
    for each in self.matrices:
      if each.start > last:
        yield last, each.start
      last = each.start + each.rows * each.columns
    if n > last:
      yield last, n


def _product(one: jax.Array, other: jax.Array) -> jax.Array:
  # Who sends and who receives must get the same: no short formats of GPUs.
  return jnp.matmul(one, other, precision='highest')


def _orthogonal(matrix: jax.Array) -> jax.Array:
  return jnp.linalg.qr(matrix)[0]


def _flat(parts: Sequence[jax.Array]) -> jax.Array:
  return jnp.concatenate([jnp.zeros(0), *(part.reshape(-1) for part in parts)])


def _split(
  vector: jax.Array, shapes: Sequence[tuple[int, int]]
) -> list[jax.Array]:
  """Returns matrices that lie end to end, and what is whole."""
  found, start = [], 0
  for rows, columns in shapes:
    end = start + rows * columns
    found.append(vector[start:end].reshape(rows, columns))
    start = end
  return [*found, vector[start:]]
