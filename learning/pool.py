"""The pool: all that a worker adds to an iteration, end to end in one vector.

The gradient's leaves come first, in the order in which the backward pass makes
them, then the statistics, then numbers of the books.  The vector is cut into
ranges, each of which travels once it is full (lazy allreduce: Sun et al.,
'Optimizing Network Performance for Distributed DNN Training on GPU Clusters:
ImageNet/AlexNet Training in 1.5 Minutes', 2019).

The vector is float32.  Gradients may travel rounded; statistics and books never
do, and then are a range by themselves.
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from configs.checks import require
from wire import residuals
from wire.codec import Payload, Rows
from wire.residuals import Residuals

FLOAT32 = np.dtype(np.float32)
_ITEM = FLOAT32.itemsize
# Numbers: each leaf starts at a multiple of so many, as XLA copies what does
# not start at one of 64 bytes.
_ALIGNED = 64 // _ITEM


class Into(Protocol):
  """Takes a gradient leaf by leaf, in any order, from any thread."""

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Takes a leaf's numbers; the array is used again afterwards."""


class Pool:
  """Which number lies where.

  Between leaves there may be numbers that stand for nothing.  Nobody writes
  them: they are to be 0 from the start.

  Attributes:
    size: Numbers in all, float32.
    gradient: Of these the first so many, which are the gradient's, with what
      lies between its leaves.
    order: The gradient's leaves, by index, as they lie in the pool.
    ranges: Where each range starts and ends; together they are the pool.
    dtypes: What the numbers of each range travel as.
    range_of: Of each leaf of the gradient: the index of its range.
    leaves_of: Of each range: its leaves of the gradient, by index, in order.
  """

  def __init__(
    self,
    params: Any,
    stats: Any,
    order: Sequence[int],
    *,
    bucket_bytes: float,
    books: int,
    blank: int = 0,
    multiple: int = 1,
    dtype: np.dtype = FLOAT32,
  ):
    """Lays the leaves end to end.

    Args:
      params: Pytree of float32 arrays, or of their shapes.
      stats: The same; () if there are none.
      order: Indices of the leaves of `params`, as they are to lie.
      bucket_bytes: A range, of whole leaves, is closed as soon as it has at
        least so many bytes of float32: 0 for one per leaf, infinity for one in
        all.  The last one has what is left open, the statistics and the books.
      books: Numbers at the end, whatever they stand for.
      blank: Numbers before them that stand for nothing but take their time.
      multiple: Of which the numbers before the statistics are to be one.
      dtype: What gradients and blanks travel as.  If that is not float32, then
        the last range has the statistics and the books alone.

    Raises:
      ValueError: If a leaf is not float32, or an argument is out of range.
    """
    leaves, self._params = jax.tree.flatten(params)
    others, self._stats = jax.tree.flatten(stats)
    for leaf in (*leaves, *others):
      if leaf.dtype != np.float32:
        raise ValueError(f'task: expected float32 leaves, got {leaf.dtype}.')
    numbers = list(range(len(leaves)))
    each = f'each of 0 to {len(leaves) - 1} once'
    require(sorted(order) == numbers, 'order', each, list(order))
    require(bucket_bytes >= 0, 'bucket_bytes', 'at least 0', bucket_bytes)
    require(books >= 0, 'books', 'at least 0', books)
    require(blank >= 0, 'blank', 'at least 0', blank)
    self.order = tuple(order)
    places = _laid([leaves[number] for number in self.order], 0)
    mine = dict(zip(self.order, places, strict=True))
    self._leaves = [mine[number] for number in numbers]
    step = math.lcm(multiple, _ALIGNED)
    end = (places[-1][1] if places else 0) + blank
    self.gradient = -(-end // step) * step
    self._others = _laid(others, self.gradient)
    last = self._others[-1][1] if others else self.gradient
    self._books = _aligned(last)
    self.size = self._books + books
    last = self.size if dtype == FLOAT32 else self.gradient
    cuts = _cuts(places[: len(leaves)], last, bucket_bytes / _ITEM)
    if cuts[-1] < self.size:
      cuts.append(self.size)
    self.ranges = tuple(itertools.pairwise(cuts))
    self.dtypes = tuple(
      dtype if end <= last else FLOAT32 for _, end in self.ranges
    )
    # The range in which its last number is.
    ends = [max(end - 1, 0) for _, end, _ in self._leaves]
    found = np.searchsorted(cuts, ends, side='right') - 1
    self.range_of = tuple(found.tolist())
    self.leaves_of = tuple(
      tuple(leaf for leaf in self.order if self.range_of[leaf] == number)
      for number in range(len(self.ranges))
    )

  @property
  def size_bytes(self) -> int:
    """Bytes of all numbers, as they travel."""
    return sum(
      (end - start) * dtype.itemsize
      for (start, end), dtype in zip(self.ranges, self.dtypes, strict=True)
    )

  @property
  def rows(self) -> list[Rows]:
    """The matrices of the gradient: of what has more than one axis."""
    return [
      Rows(start, (end - start) // shape[-1], shape[-1])
      for start, end, shape in sorted(self._leaves)
      if len(shape) > 1 and end > start
    ]

  def whole(self, gradient: Any) -> Any:
    """Returns a gradient as it lies in a pool, float32 [gradient]; traced."""
    vector = jnp.zeros(self.gradient, jnp.float32)
    # XLA's concatenation is many times slower on CPUs.
    for (start, _, _), leaf in zip(
      self._leaves, jax.tree.leaves(gradient), strict=True
    ):
      vector = jax.lax.dynamic_update_slice(vector, leaf.ravel(), (start,))
    return vector

  def leaves(self, vector: Any) -> Any:
    """Returns the gradient that lies in a vector [gradient], or larger."""
    return jax.tree.unflatten(
      self._params,
      [vector[start:end].reshape(shape) for start, end, shape in self._leaves],
    )

  def named(self, vectors: Any) -> Residuals:
    """Returns the arrays of gradients that lie in vectors, by parameter.

    Args:
      vectors: Pytree of float32 [gradient].
    """
    return residuals.from_tree(jax.tree.map(self.leaves, jax.device_get(vectors)))

  def payload(self, vector: Any) -> Payload:
    """Returns gradient and statistics, which for an array of NumPy are views.

    Args:
      vector: Float32 [size]; one that is traced will do.
    """
    stats = jax.tree.unflatten(
      self._stats,
      [vector[start:end].reshape(shape) for start, end, shape in self._others],
    )
    return Payload(self.leaves(vector), stats)

  def parts(self, payload: Payload, books: Any) -> Iterator[tuple[int, Any]]:
    """Yields where each part of the pool starts, and what lies there."""
    trees = (payload.gradient, payload.stats)
    for tree, own in zip(trees, (self._leaves, self._others), strict=True):
      for (start, _, _), leaf in zip(own, jax.tree.leaves(tree), strict=True):
        yield start, leaf
    yield self._books, books

  def put(self, vector: np.ndarray, leaf: int, array: Any) -> None:
    """Writes the numbers of one leaf of the gradient into their place.

    Args:
      vector: Float32 [size].
      leaf: Its index among the leaves.
      array: As large as it is.
    """
    start, end, shape = self._leaves[leaf]
    vector[start:end].reshape(shape)[...] = array

  def put_stats(self, vector: np.ndarray, stats: Any) -> None:
    """Writes all statistics into their places."""
    for (start, end, shape), array in zip(
      self._others, jax.tree.leaves(stats), strict=True
    ):
      vector[start:end].reshape(shape)[...] = array

  def books(self, vector: Any) -> Any:
    """Returns the numbers of the books, a view; a traced vector will do."""
    return vector[self._books :]


class Filling:
  """Fills a pool leaf by leaf, and tells which range is full: an Into.

  The last range is full once `finish` has been called, and so are those without
  leaves.
  """

  def __init__(
    self, pool: Pool, vector: np.ndarray, ready: Callable[[int], None]
  ):
    """Nothing is there yet.

    Args:
      pool: What lies where.
      vector: Float32 [pool.size].
      ready: Told the index of each range as soon as it is full, once, by the
        thread that filled it.
    """
    self._pool, self._vector, self._ready = pool, vector, ready
    self._lock = threading.Lock()
    self._left = [0] * len(pool.ranges)
    for number in pool.range_of:
      self._left[number] += 1
    # For what comes after the gradient.
    self._after = {n for n, left in enumerate(self._left) if not left}
    self._after.add(len(self._left) - 1)
    for number in self._after:
      self._left[number] += 1

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Takes a leaf's numbers."""
    self._pool.put(self._vector, leaf, array)
    self._done(self._pool.range_of[leaf])

  def finish(self, stats: Any, books: Sequence[float] = ()) -> None:
    """Takes what comes after the gradient, once."""
    self._pool.put_stats(self._vector, stats)
    self._pool.books(self._vector)[...] = books
    for number in sorted(self._after):
      self._done(number)

  def _done(self, number: int) -> None:
    with self._lock:
      self._left[number] -= 1
      full = not self._left[number]
    if full:
      self._ready(number)


def backward_order(gradient: Callable[..., Any], *args: Any) -> tuple[int, ...]:
  """Returns the order in which a function makes the leaves of what it returns.

  It is that of the equations of its jaxpr, and so the same in every process
  that has the same function, shapes and version of JAX.  What comes out of a
  loop comes when it ends; leaves that come together are in order of index.

  Args:
    gradient: Returns a pytree of arrays; traced, never computed.
    *args: Of it: arrays or their shapes.

  Returns:
    The indices of the leaves.

  Example:
    >>> import jax.numpy as jnp
    >>> loss = lambda p, x: jnp.sin(jnp.sin(x * p['a']) * p['b'])
    >>> backward_order(jax.grad(loss), {'a': 1.0, 'b': 2.0}, 3.0)
    (1, 0)
  """
  jaxpr = jax.make_jaxpr(gradient)(*args).jaxpr
  places = _places(jaxpr)
  return tuple(sorted(range(len(places)), key=lambda leaf: places[leaf]))


def _places(jaxpr: Any) -> list[tuple[int, ...]]:
  """Returns where each output of a jaxpr is made: its equation, inner ones."""
  makers = {
    id(var): (number, equation, position)
    for number, equation in enumerate(jaxpr.eqns)
    for position, var in enumerate(equation.outvars)
  }
  wanted = {}
  for var in jaxpr.outvars:
    if id(var) in makers:
      number, equation, _ = makers[id(var)]
      wanted[number] = _inner(equation)
  places = []
  for var in jaxpr.outvars:
    if id(var) not in makers:  # An input, or a number.
      places.append((-1,))
      continue
    number, _, position = makers[id(var)]
    inner = wanted[number]
    places.append((number, *(inner[position] if inner else ())))
  return places


def _inner(equation: Any) -> list[tuple[int, ...]]:
  """Returns where the outputs of a call are made in it; [] if it is none."""
  for value in equation.params.values():
    jaxpr = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
    if isinstance(jaxpr, core.Jaxpr) and (
      len(jaxpr.outvars) == len(equation.outvars)
    ):
      return _places(jaxpr)
  return []


def _laid(
  leaves: Sequence[Any], start: int
) -> list[tuple[int, int, tuple[int, ...]]]:
  """Returns where leaves that lie end to end start and end, and shapes."""
  places = []
  for leaf in leaves:
    end = start + math.prod(leaf.shape)
    places.append((start, end, leaf.shape))
    start = _aligned(end)
  return places


def _aligned(number: int) -> int:
  """Returns the first number from here on at which a leaf may start."""
  return -(-number // _ALIGNED) * _ALIGNED


def _cuts(
  leaves: Sequence[tuple[int, int, Any]], size: int, least: float
) -> list[int]:
  """Returns where ranges start, and the end of the last one.

  Args:
    leaves: Where each leaf of the gradient starts and ends.
    size: Of what is cut.
    least: Numbers that close a range.
  """
  cuts, has = [0], 0
  for start, end, _ in leaves:
    has += end - start
    if has and has >= least:
      cuts.append(min(_aligned(end), size))
      has = 0
  if size > cuts[-1] or len(cuts) == 1:
    cuts.append(size)
  return cuts
