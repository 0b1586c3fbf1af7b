"""All numbers travel, each by itself, in float32, or rounded to half of that.

Who holds the parameters keeps and sums them in float32; a number is rounded, to
nearest, only on its way.  What float16 cannot hold, from 65,520 on, becomes
infinite, and is noticed before it is applied.  Running statistics travel as
they are.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from configs.checks import require
from wire.codec import Codec, State, Wire

_DTYPES = ('float32', 'bfloat16', 'float16')
_Numbers = TypeVar('_Numbers', jax.Array, np.ndarray)


def make(*, dtype: str) -> Wire:
  """Returns a wire whose pushes and pulls are of one dtype.

  Args:
    dtype: 'float32', which changes nothing, 'bfloat16' or 'float16'.

  Raises:
    ValueError: If `dtype` is another one.
  """
  codec = cast(known(dtype))
  return Wire(push=codec, pull=codec, stats=cast(jnp.dtype('float32')))


def known(name: str) -> np.dtype:
  """Returns a dtype that numbers may travel as.

  Raises:
    ValueError: If it is another one; names the field `dtype`.
  """
  require(name in _DTYPES, 'dtype', f'one of {list(_DTYPES)}', name)
  return jnp.dtype(name)


def cast(dtype: np.dtype) -> Codec:
  """Returns the codec that casts; for arrays of JAX and of NumPy alike."""
  return Codec(
    init=lambda n, worker: State(),
    encode=lambda state, vector: (_as(vector, dtype), state),
    decode=lambda message, n: _as(message, jnp.float32),
    size_bytes=lambda n: n * dtype.itemsize,
    elementwise=True,
    dtype=dtype,
    overflows=dtype == jnp.float16,
  )


def _as(numbers: _Numbers, dtype: np.dtype | type) -> _Numbers:
  # NumPy would copy what is of that dtype already.
  return numbers if numbers.dtype == dtype else numbers.astype(dtype)
