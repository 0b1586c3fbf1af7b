"""What travels in pushes and pulls: floating-point numbers of a chosen dtype.

Servers hold the parameters and sum pushes in the precision of the model; a
number is rounded only on its way.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.checks import require
from learning.gradient import Payload

_DTYPES = ('float32', 'bfloat16')


class Wire:
  """What a push or a pull is when it arrives, and how many bytes it was.

  Attributes:
    dtype: Of floating-point numbers on the way; integers and the like travel as
      they are.
  """

  def __init__(self, *, dtype: str):
    """Compiles nothing yet.

    Args:
      dtype: 'float32', which changes nothing, or 'bfloat16'.

    Raises:
      ValueError: If `dtype` is another one.
    """
    require(dtype in _DTYPES, 'dtype', f'one of {list(_DTYPES)}', dtype)
    self.dtype = jnp.dtype(dtype)
    self._rounds = dtype == 'bfloat16'
    self._round = jax.jit(lambda tree: jax.tree.map(_rounded, tree))
    self._newest = (None, None)  # Parameters pulled last, and them rounded.

  def size_bytes(self, tree: Any) -> int:
    """Returns the bytes of a pytree of arrays on the wire."""
    return sum(
      leaf.size * self.dtype.itemsize
      if self._rounds and _is_floating(leaf)
      else leaf.nbytes
      for leaf in jax.tree.leaves(tree)
    )

  def pushed(self, payload: Any) -> Any:
    """Returns what a server gets: a pytree, its numbers rounded to nearest."""
    return self._round(payload) if self._rounds else payload

  def pulled(self, params: Any) -> Any:
    """Returns what workers get, likewise; it is computed once for a version."""
    if not self._rounds:
      return params
    if self._newest[0] is not params:
      self._newest = params, self._round(params)
    return self._newest[1]

  def warm_up(self, params: Any, stats: Any) -> None:
    """Compiles what pushes and pulls like these need."""
    self.pulled(params)
    jax.block_until_ready(self.pushed(Payload(params, stats)))


def _rounded(leaf: jax.Array) -> jax.Array:
  if not _is_floating(leaf):
    return leaf
  # XLA may leave out a cast to bfloat16 and back: more precise is allowed.
  return jax.lax.reduce_precision(leaf, exponent_bits=8, mantissa_bits=7)


def _is_floating(leaf: jax.Array | np.ndarray) -> bool:
  return jnp.issubdtype(leaf.dtype, jnp.floating)
