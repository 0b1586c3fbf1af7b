"""Layout of parameters and statistics in one flat float32 vector.

A vector has the leaves of the parameters (or of a gradient), then those of the
running statistics, then the step statistics of an iteration:

  | leaf | leaf | ... | padding | statistics | padding | step statistics |

This is the only description of that vector.  Parameter servers hold even
shares of the first two parts (`Layout.shards`).  Allreduce sums the whole
vector bucket by bucket (`Layout.buckets`), with the gradient's leaves in the
order in which the backward pass computes them, so that a bucket can be sent
while later ones are computed (lazy allreduce: Sun et al., 'Optimizing Network
Performance for Distributed DNN Training on GPU Clusters: ImageNet/AlexNet
Training in 1.5 Minutes', 2019).  Residuals of codecs and their checkpoints are
vectors of the gradient's part.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.checks import require
from wire.codec import Payload, Rows

FLOAT32 = np.dtype(np.float32)
_ITEM = FLOAT32.itemsize
# XLA reads host memory without a copy where it starts at a multiple of this.
ALIGNMENT_BYTES = 64


class Bucket(NamedTuple):
  """A part of the vector that is summed as one message.

  Attributes:
    start: Position of its first number.
    end: Position after its last number.
    dtype: Dtype in which its numbers travel.
    leaves: Indices of the gradient's leaves that end in it, in their order in
      the vector.
  """

  start: int
  end: int
  dtype: np.dtype
  leaves: tuple[int, ...] = ()

  @property
  def bounds(self) -> tuple[int, int]:
    """Positions of the bucket's first number and after its last one."""
    return self.start, self.end

  @property
  def size_bytes(self) -> int:
    """Bytes of the bucket's numbers as they travel."""
    return (self.end - self.start) * self.dtype.itemsize


class Shard(NamedTuple):
  """One server's share of the parameters and of the statistics.

  Attributes:
    params: Positions of its first parameter and after its last one.
    stats: Positions of its first statistic and after its last one, counted
      from the first statistic of the layout.
  """

  params: tuple[int, int]
  stats: tuple[int, int]

  @property
  def sizes(self) -> tuple[int, int]:
    """Numbers of parameters and of statistics."""
    return self.params[1] - self.params[0], self.stats[1] - self.stats[0]


class _Place(NamedTuple):
  """Position of a leaf: its first number, the one after its last, its shape."""

  start: int
  end: int
  shape: tuple[int, ...]


class Layout:
  """Positions of leaves, shards and buckets in a flat float32 vector.

  Padding is never written; it has to be zero from the start.

  Attributes:
    size: Numbers of the vector.
    gradient_size: Numbers of its first part, which has the gradient's leaves
      and the padding between and behind them.
    order: Indices of the gradient's leaves in the order of their positions.
    buckets: Buckets in the order of their positions; they cover the vector.
    bucket_of: Index of the bucket in which each leaf of the gradient ends, by
      the index of the leaf.

  Args:
    params: Pytree of float32 arrays, or of their shapes and dtypes.
    stats: The same of the running statistics; () if there are none.
    order: Indices of the leaves of `params` in the order of their positions;
      None for the order of the tree.
    only: Indices of the leaves that are in the vector; None for all.  Others
      are read as 0.
    bucket_bytes: Bytes, counted in float32, at which a bucket is closed after
      the current leaf: 0 for a bucket per leaf, infinity for one bucket.  The
      last bucket has the leaves that are left, the statistics and the step
      statistics.
    dtype: Dtype in which gradients travel.  If it is not float32, the last
      bucket has the statistics and the step statistics alone, in float32.
    step_statistics: Numbers at the end of the vector.
    blank: Numbers behind the gradient's leaves that take space but belong to
      no leaf.
    multiple: Divisor of `gradient_size`, which is padded accordingly.
    alignment_bytes: Bytes to a multiple of which each leaf is aligned; 4 for
      no padding between leaves.

  Raises:
    ValueError: If a leaf is not float32, or an argument is out of range.
  """

  def __init__(
    self,
    params: Any,
    stats: Any = (),
    *,
    order: Sequence[int] | None = None,
    only: Sequence[int] | None = None,
    bucket_bytes: float = math.inf,
    dtype: np.dtype = FLOAT32,
    step_statistics: int = 0,
    blank: int = 0,
    multiple: int = 1,
    alignment_bytes: int = ALIGNMENT_BYTES,
  ):
    leaves, self._params_tree = jax.tree.flatten(params)
    stats_leaves, self._stats_tree = jax.tree.flatten(stats)
    for leaf in (*leaves, *stats_leaves):
      if leaf.dtype != np.float32:
        raise ValueError(f'task: expected float32 leaves, got {leaf.dtype}.')
    indices = list(range(len(leaves)))
    order = indices if order is None else order
    expected = f'each of 0 to {len(leaves) - 1} once'
    require(sorted(order) == indices, 'order', expected, list(order))
    require(bucket_bytes >= 0, 'bucket_bytes', 'at least 0', bucket_bytes)
    least = 'at least 0'
    require(step_statistics >= 0, 'step_statistics', least, step_statistics)
    require(blank >= 0, 'blank', least, blank)
    chosen = {*(order if only is None else only)}
    self.order = tuple(leaf for leaf in order if leaf in chosen)
    unit = alignment_bytes // _ITEM
    places = _placed([leaves[index] for index in self.order], 0, unit)
    by_leaf = dict(zip(self.order, places, strict=True))
    self._leaves = [by_leaf.get(index) for index in indices]
    self._shapes = [leaf.shape for leaf in leaves]
    end = (places[-1].end if places else 0) + blank
    self.gradient_size = _aligned(end, math.lcm(multiple, unit))
    self._stats = _placed(stats_leaves, self.gradient_size, unit)
    end = self._stats[-1].end if stats_leaves else self.gradient_size
    self._stats_size = end - self.gradient_size
    self._step_statistics = _aligned(end, unit)
    self.size = self._step_statistics + step_statistics
    last = self.size if dtype == FLOAT32 else self.gradient_size
    cuts = _cuts(places, last, bucket_bytes / _ITEM, unit)
    if cuts[-1] < self.size:
      cuts.append(self.size)
    # The bucket of a leaf is that of its last number.
    ends = [max(place.end - 1, 0) for place in places]
    found = np.searchsorted(cuts, ends, side='right') - 1
    self.bucket_of: Mapping[int, int] = dict(
      zip(self.order, found.tolist(), strict=True)
    )
    self.buckets = tuple(
      Bucket(
        start,
        end,
        dtype if end <= last else FLOAT32,
        tuple(leaf for leaf in self.order if self.bucket_of[leaf] == number),
      )
      for number, (start, end) in enumerate(itertools.pairwise(cuts))
    )

  @property
  def size_bytes(self) -> int:
    """Bytes of all buckets as they travel."""
    return sum(bucket.size_bytes for bucket in self.buckets)

  def combined_buckets(self, combine_bytes: float) -> list[Bucket]:
    """Returns the buckets, joined until each has at least `combine_bytes`.

    Neighbours of different dtypes are never joined, and a bucket is never
    divided.

    Args:
      combine_bytes: Smallest size of a result as it travels; 0 to join none.
    """
    joined: list[Bucket] = []
    for bucket in self.buckets:
      last = joined[-1] if joined else None
      if (
        last and last.dtype == bucket.dtype and last.size_bytes < combine_bytes
      ):
        leaves = last.leaves + bucket.leaves
        joined[-1] = last._replace(end=bucket.end, leaves=leaves)
      else:
        joined.append(bucket)
    return joined

  def shards(self, count: int) -> list[Shard]:
    """Returns even shares of the parameters and of the statistics.

    Args:
      count: Number of servers.

    Raises:
      ValueError: If there are more servers than parameters or statistics.
    """
    sizes = self.gradient_size, self._stats_size
    check_servers(sizes, count)
    return [
      Shard(params, stats)
      for params, stats in zip(*(_spans(n, count) for n in sizes), strict=True)
    ]

  def matrices(self, start: int = 0, end: int | None = None) -> list[Rows]:
    """Returns the matrices in a part of the gradient, as far as their rows fit.

    A leaf with two axes or more is a matrix whose columns are its last axis.

    Args:
      start: Position of the part's first number.
      end: Position after its last number; None for the end of the gradient.

    Returns:
      Matrices of whole rows, positions counted from `start`.
    """
    end = self.gradient_size if end is None else end
    matrices = []
    for place in sorted(place for place in self._leaves if place):
      columns = place.shape[-1] if len(place.shape) > 1 else 0
      if not columns or place.end == place.start:
        continue
      first = max(-(-(start - place.start) // columns), 0)
      last = (min(end, place.end) - place.start) // columns
      if last > first:
        offset = place.start + first * columns - start
        matrices.append(Rows(offset, last - first, columns))
    return matrices

  def flatten(self, gradient: Any) -> jax.Array:
    """Returns a gradient's vector, float32 [gradient_size]; traceable."""
    vector = jnp.zeros(self.gradient_size, jnp.float32)
    return _written(vector, gradient, self._leaves, 0)

  def flatten_stats(self, stats: Any) -> jax.Array:
    """Returns the vector of the statistics alone, float32; traceable."""
    vector = jnp.zeros(self._stats_size, jnp.float32)
    return _written(vector, stats, self._stats, self.gradient_size)

  def pack(self, payload: Payload, step_statistics: Any) -> jax.Array:
    """Returns the whole vector, float32 [size]; traceable.

    Args:
      payload: Gradient and statistics.
      step_statistics: Float32 vector.
    """
    vector = jnp.zeros(self.size, jnp.float32)
    vector = _written(vector, payload.gradient, self._leaves, 0)
    vector = _written(vector, payload.stats, self._stats, 0)
    start = (self._step_statistics,)
    return jax.lax.dynamic_update_slice(vector, step_statistics, start)

  def unflatten(self, vector: Any) -> Any:
    """Returns the gradient in a vector [gradient_size] or longer.

    Its leaves are views if the vector is a NumPy array; traceable.  Leaves that
    are not in the vector are zeros.
    """
    leaves = [
      np.zeros(shape, np.float32) if place is None else _view(vector, place, 0)
      for place, shape in zip(self._leaves, self._shapes, strict=True)
    ]
    return jax.tree.unflatten(self._params_tree, leaves)

  def unflatten_stats(self, vector: Any) -> Any:
    """Returns the statistics in a vector as `flatten_stats` returns it."""
    first = self.gradient_size
    return jax.tree.unflatten(
      self._stats_tree, [_view(vector, place, first) for place in self._stats]
    )

  def payload(self, vector: Any) -> Payload:
    """Returns gradient and statistics in a vector [size], as `unflatten`."""
    stats = [_view(vector, place, 0) for place in self._stats]
    return Payload(
      self.unflatten(vector), jax.tree.unflatten(self._stats_tree, stats)
    )

  def step_statistics(self, vector: Any) -> Any:
    """Returns the step statistics in a vector [size], as `unflatten`."""
    return vector[self._step_statistics :]

  def write_leaf(self, vector: np.ndarray, leaf: int, array: Any) -> None:
    """Copies a leaf of the gradient to its position.

    Args:
      vector: Float32 [gradient_size] or longer.
      leaf: Index of the leaf.
      array: Numbers, of the leaf's shape.

    Raises:
      ValueError: If the leaf is not in the vector.
    """
    place = self._leaves[leaf]
    if place is None:
      raise ValueError(f'leaf: expected one of {self.order}, got {leaf}.')
    _view(vector, place, 0)[...] = array

  def write_stats(self, vector: np.ndarray, stats: Any) -> None:
    """Copies the statistics to their positions in a vector [size]."""
    for place, array in zip(self._stats, jax.tree.leaves(stats), strict=True):
      _view(vector, place, 0)[...] = array


def split_evenly(size: int, parts: int) -> list[int]:
  """Divides a size into parts that are as even as possible, larger ones first.

  Example:
    >>> split_evenly(10, 4)
    [3, 3, 2, 2]
  """
  each, rest = divmod(size, parts)
  return [each + (part < rest) for part in range(parts)]


def check_servers(totals: Sequence[int], servers: int) -> None:
  """Checks that servers can share parameters and statistics.

  Args:
    totals: Numbers of each; 0 if there are none.
    servers: Number of servers.

  Raises:
    ValueError: If there are more servers than numbers.
  """
  for total in totals:
    most = f'at most {total}, one for each element'
    require(not 0 < total < servers, 'servers', most, servers)


def required_shards(
  count: int, sizes: Sequence[tuple[int, int]], index: int
) -> range:
  """Returns the range of old servers whose shards overlap a new server's shard.

  Args:
    count: Number of old servers, which had even shares.
    sizes: Numbers of parameters and statistics of each new server.
    index: Index of the new server.
  """
  overlapping, parts = [], [*_kinds(count, sizes, index)]
  for before, start, size in parts:
    stops = np.cumsum(before).tolist()
    overlapping += [
      k
      for k in range(count)
      if start < stops[k] and stops[k] - before[k] < start + size
    ]
  found = range(min(overlapping, default=0), max(overlapping, default=0) + 1)
  first, second = (
    (before[found.start : found.stop], start - sum(before[: found.start]), size)
    for before, start, size in parts
  )
  # Vectors of the same lengths would not tell which kind they are.
  is_unclear = first[0] == second[0] and first != second
  return range(count) if is_unclear else found


def reshard(
  states: Mapping[int, Any],
  count: int,
  sizes: Sequence[tuple[int, int]],
  index: int,
) -> Any:
  """Returns one server's state, from the states of any number of servers.

  Args:
    states: States of servers that there were, pytrees, by index: those of
      `required_shards` at least.  Their vectors are shards of parameters or of
      statistics; everything else is the same in all.
    count: Number of servers that there were, with even shares.
    sizes: Numbers of parameters and statistics of each server that there is.
    index: Index of the server that the result is for.
  """
  given = sorted(states)
  cuts = {}
  for before, start, size in _kinds(count, sizes, index):
    start -= sum(before[: given[0]])
    cuts[tuple(before[k] for k in given)] = slice(start, start + size)

  def cut(*leaves: Any) -> Any:
    if not np.ndim(leaves[0]):
      return leaves[0]
    part = cuts[tuple(len(leaf) for leaf in leaves)]
    if len(leaves) == 1 and part == slice(0, len(leaves[0])):
      return leaves[0]
    return jnp.concatenate(leaves)[part]

  return jax.tree.map(cut, *(states[k] for k in given))


def _kinds(
  count: int, sizes: Sequence[tuple[int, int]], index: int
) -> Iterator[tuple[list[int], int, int]]:
  """Yields, for both kinds, earlier sizes, and start and size of a share."""
  for kind in zip(*sizes, strict=True):
    yield split_evenly(sum(kind), count), sum(kind[:index]), kind[index]


def concatenate(vectors: Sequence[jax.Array]) -> jax.Array:
  """Returns vectors end to end; many times faster than XLA's own on CPUs.

  A single vector is returned as it is, without a copy.
  """
  if len(vectors) == 1:
    return vectors[0]
  dtype = vectors[0].dtype if len(vectors) else np.float32
  whole, start = jnp.zeros(sum(each.size for each in vectors), dtype), 0
  for each in vectors:
    whole = jax.lax.dynamic_update_slice(whole, each, (start,))
    start += each.size
  return whole


def count_float32(tree: Any) -> int:
  """Returns the number of float32 numbers of a pytree."""
  leaves = jax.tree.leaves(tree)
  return sum(leaf.size for leaf in leaves if leaf.dtype == jnp.float32)


def other_bytes(tree: Any) -> int:
  """Returns the bytes of a pytree's leaves that are not float32."""
  leaves = jax.tree.leaves(tree)
  return sum(leaf.nbytes for leaf in leaves if leaf.dtype != jnp.float32)


def _placed(leaves: Sequence[Any], start: int, unit: int) -> list[_Place]:
  """Returns the positions of leaves, each aligned to `unit` numbers."""
  places = []
  for leaf in leaves:
    end = start + math.prod(leaf.shape)
    places.append(_Place(start, end, leaf.shape))
    start = _aligned(end, unit)
  return places


def _aligned(position: int, unit: int) -> int:
  """Returns the first multiple of `unit` that is not below a position."""
  return -(-position // unit) * unit


def _spans(size: int, count: int) -> list[tuple[int, int]]:
  ends = np.cumsum([0, *split_evenly(size, count)]).tolist()
  return list(itertools.pairwise(ends))


def _cuts(
  places: Sequence[_Place], size: int, least: float, unit: int
) -> list[int]:
  """Returns where buckets start, and the end of the last one."""
  cuts, numbers = [0], 0
  for place in places:
    numbers += place.end - place.start
    if numbers and numbers >= least:
      cuts.append(min(_aligned(place.end, unit), size))
      numbers = 0
  if size > cuts[-1] or len(cuts) == 1:
    cuts.append(size)
  return cuts


def _written(
  vector: jax.Array, tree: Any, places: Sequence[_Place | None], start: int
) -> jax.Array:
  """Returns a vector with leaves at their positions, counted from `start`."""
  for place, leaf in zip(places, jax.tree.leaves(tree), strict=True):
    if place is None:
      continue
    # XLA's concatenation of large arrays is many times slower on CPUs.
    at = (place.start - start,)
    vector = jax.lax.dynamic_update_slice(vector, jnp.ravel(leaf), at)
  return vector


def _view(vector: Any, place: _Place, start: int) -> Any:
  return vector[place.start - start : place.end - start].reshape(place.shape)
