"""Parameters as flat vectors: what travels between workers and servers.

Every server holds an even share of the parameters and one of the running
statistics, whatever layers these belong to, and its messages are both in one
vector: the parameters' share first.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learning.gradient import Payload

PIECES = 64  # Of a server's share, if they travel one by one (pipelined BSP).


def even(size: int, parts: int) -> list[int]:
  """Splits a size as evenly as possible, larger parts first."""
  each, rest = divmod(size, parts)
  return [each + (part < rest) for part in range(parts)]


class Layout:
  """Which element of which leaf lies where.

  Attributes:
    sizes: Of each server's vector: elements of parameters and of statistics.
    dtype: Of the vectors that travel.
  """

  def __init__(self, params: Any, stats: Any, *, num_servers: int, dtype: str):
    """Lays the leaves end to end.

    Args:
      params: Pytree of float32 arrays.
      stats: The same; () if there are none.
      num_servers: How many servers share them.
      dtype: 'float32' or 'bfloat16', of what travels.

    Raises:
      ValueError: If a leaf is not float32, or if there are more servers than
        elements.
    """
    for leaf in jax.tree.leaves((params, stats)):
      if leaf.dtype != jnp.float32:
        raise ValueError(f'task: expected float32 leaves, got {leaf.dtype}.')
    self.dtype = jnp.dtype(dtype)
    totals = [_elements(tree) for tree in (params, stats)]
    for total in totals:
      if 0 < total < num_servers:
        raise ValueError(
          f'servers: expected at most {total}, one for each element, got '
          f'{num_servers}.'
        )
    shares = [even(total, num_servers) for total in totals]
    self.sizes = list(zip(*shares, strict=True))
    self._starts = [np.cumsum([0, *share[:-1]]).tolist() for share in shares]

    def pack(payload):
      whole = _flat(payload.gradient), _flat(payload.stats)
      cuts = [self._cut(whole, server) for server in range(num_servers)]
      vectors = [_flat(cut).astype(self.dtype) for cut in cuts]
      # The largest is NaN if one of them is.
      leaves = jax.tree.leaves(payload.gradient)
      peaks = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
      return vectors, jnp.isfinite(jnp.array(peaks)).all()

    def unpack(vectors):
      shares = [
        self.split(vector, server) for server, vector in enumerate(vectors)
      ]
      return [
        _unflat(_flat(parts), like)
        for parts, like in zip(
          zip(*shares, strict=True), (params, stats), strict=True
        )
      ]

    self.pack = jax.jit(pack)
    self._unpack = jax.jit(unpack)
    self._initial = params, stats

  def vector(self, params: Any, stats: Any) -> jax.Array:
    """Returns a server's share as it travels."""
    return self.whole(params, stats).astype(self.dtype)

  def whole(self, params: Any, stats: Any) -> jax.Array:
    """Returns a server's share, a float32 vector."""
    return _flat((params, stats))

  def split(self, vector: jax.Array, server: int) -> Payload:
    """Returns what `vector` was made of, in float32."""
    size, rest = self.sizes[server]
    vector = vector.astype(jnp.float32)
    return Payload(vector[:size], vector[size:] if rest else ())

  def unpack(self, vectors: list[jax.Array]) -> tuple[Any, Any]:
    """Returns parameters and statistics from the vectors of all servers."""
    params, stats = self._unpack(vectors)
    return params, stats

  def initial(self, server: int) -> Payload:
    """Returns a server's share of what the layout was made from."""
    whole = tuple(_flat(tree) for tree in self._initial)
    return self.split(_flat(self._cut(whole, server)), server)

  def size_bytes(self, server: int) -> int:
    """Returns how long a server's vector is."""
    return sum(self.sizes[server]) * self.dtype.itemsize

  def _cut(self, whole: tuple[jax.Array, jax.Array], server: int) -> list:
    return [
      flat[start : start + size]
      for flat, start, size in zip(
        whole,
        [starts[server] for starts in self._starts],
        self.sizes[server],
        strict=True,
      )
    ]


def share(
  states: Sequence[Any], sizes: Sequence[tuple[int, int]], index: int
) -> Any:
  """Returns one server's state, from states of perhaps another number of them.

  Args:
    states: Of all servers; vectors are shares of parameters or of statistics.
    sizes: Elements of both in each share of today.
    index: Which share is wanted.
  """
  cuts = {}
  for kind in zip(*sizes, strict=True):
    ends = np.cumsum(kind).tolist()
    cuts[ends[-1]] = slice(ends[index] - kind[index], ends[index])

  def cut(*leaves):
    if not np.ndim(leaves[0]):
      return leaves[0]
    whole = jnp.concatenate(leaves)
    return whole[cuts[len(whole)]]

  return jax.tree.map(cut, *states)


def _elements(tree: Any) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _flat(tree: Any) -> jax.Array:
  leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
  if len(leaves) == 1:
    return leaves[0]  # Without a copy.
  # XLA's concatenation of large arrays is many times slower on CPUs.
  flat, start = jnp.zeros(sum(leaf.size for leaf in leaves)), 0
  for leaf in leaves:
    flat = jax.lax.dynamic_update_slice(flat, leaf, (start,))
    start += leaf.size
  return flat


def _unflat(flat: jax.Array, like: Any) -> Any:
  leaves, structure = jax.tree.flatten(like)
  ends = np.cumsum([leaf.size for leaf in leaves])
  return structure.unflatten(
    flat[end - leaf.size : end].reshape(leaf.shape)
    for end, leaf in zip(ends, leaves, strict=True)
  )
