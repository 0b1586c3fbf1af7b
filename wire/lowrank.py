"""Codec that sends matrices of a gradient as products of two thin factors.

PowerSGD (Vogels et al., 2019): one step of a power iteration for each gradient,
which starts from the factors of the last one.  What the factors miss is a
residual, which is added to the next gradient.  To a server both factors are
sent; an allreduce sums the left factors first, and then the right ones that
follow from them.  Numbers outside of matrices are sent as they are.

An allreduce of NumPy vectors, on hosts, has an implementation of its own: there
XLA makes each product in newly allocated memory and passes over it again.  The
one in NumPy passes over matrices block by block of their rows, in memory that
is used again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs import declared
from configs.checks import require
from wire import dense
from wire.codec import (
  Codec,
  Message,
  PartialVector,
  Rounds,
  Rows,
  State,
  Wire,
  Workspace,
  scale_residual,
)

_ITEM = 4  # Bytes of a float32.
_BLOCK = 2**15  # Numbers that stay in a core's cache while they are used.


@declared.check_arguments('wire.lowrank')
def make(*, rank: int) -> Wire:
  """Returns a wire whose pushes are factors; its pulls are dense float32.

  The kernel of a convolution is the matrix whose columns are its output
  channels.  With several servers each share has the matrices of the rows that
  lie in it whole.

  Args:
    rank: Columns of a factor.  Matrices that would not become smaller are sent
      as they are.

  Raises:
    ValueError: If it is below 1; names the field.
  """
  return _wire(rank, None)


def _wire(rank: int, matrices: Sequence[Rows] | None) -> Wire:
  if matrices is not None:
    matrices = tuple(
      each
      for each in matrices
      if rank * (each.rows + each.columns) < each.rows * each.columns
    )
  exact = dense.cast(jnp.dtype('float32'))
  return Wire(
    push=_codec(_FactorSettings(rank, matrices)),
    pull=exact,
    stats=exact,
    fit=lambda matrices: _wire(rank, matrices),
  )


class _FactorSettings(NamedTuple):
  """Matrices of a vector that are sent as factors.

  Attributes:
    rank: Columns of each factor.
    known_matrices: The matrices in the order in which they lie; None if they
      have not been given.
  """

  rank: int
  known_matrices: Sequence[Rows] | None

  @property
  def matrices(self) -> Sequence[Rows]:
    """The matrices."""
    given = self.known_matrices is not None
    require(given, 'rank', 'vectors with matrices, as of a model', 'none')
    return self.known_matrices or ()

  def size_bytes(self, n: int) -> int:
    """Returns the bytes of all factors and of the numbers between matrices."""
    factors = sum(self.rank * (m.rows + m.columns) for m in self.matrices)
    between: int = sum(gap.stop - gap.start for gap in self.gaps(n))
    return _ITEM * (factors + between)

  def gaps(self, n: int) -> Iterator[slice]:
    """Yields the places of a vector [n] that lie in no matrix."""
    last = 0
    for each in self.matrices:
      if each.start > last:
        yield slice(last, each.start)
      last = each.start + each.rows * each.columns
    if n > last:
      yield slice(last, n)


def _codec(settings: _FactorSettings) -> Codec:
  compiled, on_host = _JaxFactors(*settings), _NumpyFactors(*settings)

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
  )


class _JaxFactors(_FactorSettings):
  """Implementation in JAX, for servers and for XLA's collectives."""

  def init(self, n: int, worker: Any) -> State:
    """Returns random right factors, the same for all workers."""
    del worker
    rights = [
      jax.random.normal(jax.random.key(number), (each.columns, self.rank))
      for number, each in enumerate(self.matrices)
    ]
    return State(jnp.zeros(n), replicated=rights)

  def encode(self, state: State, vector: jax.Array) -> tuple[Message, State]:
    """Returns the left and right factors, and the numbers between matrices."""
    total = state.residual + vector
    lefts = list(map(_orthogonal, self._products(total, state.replicated)))
    rights = self._products(total, lefts, transpose=True)
    rest = self._rest(total)
    sent = self._assemble(lefts, rights, rest, vector.size)
    return (lefts, rights, rest), State(total - sent, replicated=rights)

  def decode(self, message: Message, n: int) -> PartialVector:
    """Returns the products of the factors, and the numbers between them."""
    lefts, rights, rest = message
    return PartialVector(self._assemble(lefts, rights, rest, n))

  def allreduce(self, state: State, vector: jax.Array, scale: float) -> Rounds:
    """Yields left factors and numbers between matrices, then right factors."""
    if scale != 1:
      state = _scale_residual(state, np.float32(scale))
    contribution, total = _project(self, state, vector)
    reduced = yield contribution
    contribution, *left_sums = _project_back(self, total, reduced)
    reduced = yield contribution
    result, state = _finish(self, total, left_sums, contribution, reduced)
    if scale != 1:
      state = _scale_residual(state, np.float32(1 / scale))
    return result, state

  def project(
    self, state: State, vector: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the first contribution, and residual and gradient together."""
    total = state.residual + vector
    products = self._products(total, state.replicated)
    return _concatenate([*products, self._rest(total)]), total

  def project_back(
    self, total: jax.Array, reduced: jax.Array
  ) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Returns the second contribution, of the sum of the first ones."""
    shapes = [(each.rows, self.rank) for each in self.matrices]
    *lefts, rest = _split(reduced, shapes)
    lefts = list(map(_orthogonal, lefts))
    rights = self._products(total, lefts, transpose=True)
    return _concatenate(rights), lefts, rest

  def finish(
    self,
    total: jax.Array,
    left_sums: tuple[list[jax.Array], jax.Array],
    contribution: jax.Array,
    reduced: jax.Array,
  ) -> tuple[PartialVector, State]:
    """Returns the reduced vector, and what the worker's own factors miss."""
    (lefts, rest), n = left_sums, total.size
    shapes = [(each.columns, self.rank) for each in self.matrices]
    *own_rights, _ = _split(contribution, shapes)
    *rights, _ = _split(reduced, shapes)
    sent = self._assemble(lefts, own_rights, self._rest(total), n)
    vector = self._assemble(lefts, rights, rest, n)
    return PartialVector(vector), State(total - sent, replicated=rights)

  def _products(
    self,
    vector: jax.Array,
    factors: Sequence[jax.Array],
    transpose: bool = False,
  ) -> list[jax.Array]:
    """Returns each matrix, or its transpose, times a factor."""
    found = []
    for each, factor in zip(self.matrices, factors, strict=True):
      end = each.start + each.rows * each.columns
      matrix = vector[each.start : end].reshape(each.rows, each.columns)
      found.append(_product(matrix.T if transpose else matrix, factor))
    return found

  def _rest(self, vector: jax.Array) -> jax.Array:
    """Returns the numbers between matrices, end to end."""
    return _concatenate([vector[gap] for gap in self.gaps(vector.size)])

  def _assemble(
    self,
    lefts: Sequence[jax.Array],
    rights: Sequence[jax.Array],
    rest: jax.Array,
    n: int,
  ) -> jax.Array:
    """Returns the vector of products of factors, and numbers between them."""
    vector, used = jnp.zeros(n), 0
    for each, left, right in zip(self.matrices, lefts, rights, strict=True):
      matrix = _product(left, right.T).reshape(-1)
      vector = jax.lax.dynamic_update_slice(vector, matrix, (each.start,))
    for gap in self.gaps(n):
      length = gap.stop - gap.start
      part = rest[used : used + length]
      vector = jax.lax.dynamic_update_slice(vector, part, (gap.start,))
      used += length
    return vector


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
  # Sender and receiver must get the same: no short formats of GPUs.
  return jnp.matmul(left, right, precision='highest')


def _orthogonal(matrix: jax.Array) -> jax.Array:
  return jnp.linalg.qr(matrix)[0]


def _concatenate(parts: Sequence[jax.Array]) -> jax.Array:
  return jnp.concatenate([jnp.zeros(0), *(part.reshape(-1) for part in parts)])


def _split(
  vector: jax.Array, shapes: Sequence[tuple[int, int]]
) -> list[jax.Array]:
  """Returns the matrices that lie end to end in a vector, and what follows."""
  found, start = [], 0
  for rows, columns in shapes:
    end = start + rows * columns
    found.append(vector[start:end].reshape(rows, columns))
    start = end
  return [*found, vector[start:]]


# Compiled: what a worker does between two sums.
_scale_residual = jax.jit(scale_residual)
_project = jax.jit(_JaxFactors.project, static_argnums=0)
_project_back = jax.jit(_JaxFactors.project_back, static_argnums=0)
# In the memory of `total`: a copy would cost more than all else it does.
_finish = jax.jit(_JaxFactors.finish, static_argnums=0, donate_argnums=1)


class _NumpyFactors(_FactorSettings):
  """NumPy implementation of a worker's part in the low-rank allreduce."""

  def allreduce(
    self, state: State, vector: np.ndarray, scale: float, workspace: Workspace
  ) -> Rounds:
    """Yields left factors and numbers between matrices, then right factors."""
    # A worker whose gradient is not finite has reported that already.
    with np.errstate(over='ignore', invalid='ignore'):
      contribution = self._project(state, vector, np.float32(scale), workspace)
    reduced = np.asarray((yield contribution))
    rows = [each.rows for each in self.matrices]
    left_sums, rest = self._factors(reduced, rows)
    lefts = [np.linalg.qr(left)[0].astype(np.float32) for left in left_sums]
    rest = rest.copy()  # The next sum may lie where this one does.
    with np.errstate(over='ignore', invalid='ignore'):
      contribution = self._project_back(lefts, vector, workspace)
    reduced = np.array((yield contribution))
    with np.errstate(over='ignore', invalid='ignore'):
      total = self._multiply(lefts, contribution, reduced, vector, workspace)
      if scale != 1:
        vector *= np.float32(1 / scale)
    for gap, numbers in self._between(rest, vector.size):
      total[gap], vector[gap] = numbers, 0
    replicated, _ = self._factors(reduced, self._columns)
    return PartialVector(total), State(vector, replicated=replicated)

  @property
  def _columns(self) -> list[int]:
    return [each.columns for each in self.matrices]

  def _project(
    self,
    state: State,
    vector: np.ndarray,
    scale: np.float32,
    workspace: Workspace,
  ) -> np.ndarray:
    """Adds the residual to a vector; returns the first contribution."""
    residual = np.asarray(state.residual)
    between = sum(gap.stop - gap.start for gap in self.gaps(vector.size))
    rows = [each.rows for each in self.matrices]
    contribution = workspace.array('lefts', self.rank * sum(rows) + between)
    lefts, rest = self._factors(contribution, rows)
    for each, left, right in zip(
      self.matrices, lefts, state.replicated, strict=True
    ):
      factor = np.asarray(right)
      for place, lines in _blocks(each):
        vector[place] += _times(residual[place], scale)
        np.matmul(_matrix(vector, place, each), factor, out=left[lines])
    for gap, numbers in self._between(rest, vector.size):
      vector[gap] += _times(residual[gap], scale)
      numbers[...] = vector[gap]
    return contribution

  def _project_back(
    self, lefts: Sequence[np.ndarray], vector: np.ndarray, workspace: Workspace
  ) -> np.ndarray:
    """Returns the second contribution, of the orthogonal left factors."""
    contribution = workspace.array('rights', self.rank * sum(self._columns))
    rights, _ = self._factors(contribution, self._columns)
    contribution[...] = 0
    for each, left, right in zip(self.matrices, lefts, rights, strict=True):
      for place, lines in _blocks(each):
        right += _matrix(vector, place, each).T @ left[lines]
    return contribution

  def _multiply(
    self,
    lefts: Sequence[np.ndarray],
    contribution: np.ndarray,
    reduced: np.ndarray,
    vector: np.ndarray,
    workspace: Workspace,
  ) -> np.ndarray:
    """Returns the reduced products; takes the worker's own from a vector."""
    longest = max((each.columns for each in self.matrices), default=0)
    scratch = workspace.array('scratch', max(_BLOCK, longest))
    total = workspace.array('sum', vector.size)
    (own_rights, _), (rights, _) = (
      self._factors(numbers, self._columns)
      for numbers in (contribution, reduced)
    )
    for each, left, own_right, right in zip(
      self.matrices, lefts, own_rights, rights, strict=True
    ):
      for place, lines in _blocks(each):
        np.matmul(left[lines], right.T, out=_matrix(total, place, each))
        sent = scratch[: place.stop - place.start]
        np.matmul(left[lines], own_right.T, out=sent.reshape(-1, each.columns))
        vector[place] -= sent
    return total

  def _factors(
    self, numbers: np.ndarray, lengths: Sequence[int]
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the factors that lie end to end in a vector, and what follows."""
    found, start = [], 0
    for length in lengths:
      end = start + length * self.rank
      found.append(numbers[start:end].reshape(length, self.rank))
      start = end
    return found, numbers[start:]

  def _between(
    self, rest: np.ndarray, n: int
  ) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields places of a vector [n] in no matrix, and their part of `rest`."""
    start = 0
    for gap in self.gaps(n):
      end = start + gap.stop - gap.start
      yield gap, rest[start:end]
      start = end


def _blocks(matrix: Rows) -> Iterator[tuple[slice, slice]]:
  """Yields, for blocks of rows, their place in the vector and their indices."""
  step = max(_BLOCK // matrix.columns, 1)
  for first in range(0, matrix.rows, step):
    last = min(first + step, matrix.rows)
    start = matrix.start
    yield (
      slice(start + first * matrix.columns, start + last * matrix.columns),
      slice(first, last),
    )


def _matrix(vector: np.ndarray, place: slice, each: Rows) -> Any:
  return vector[place].reshape(-1, each.columns)


def _times(residual: np.ndarray, scale: np.float32) -> np.ndarray:
  return residual if scale == 1 else residual * scale
