"""Codecs that send all numbers as float32, bfloat16 or float16.

Parameters are stored and summed in float32; numbers are rounded, to nearest,
only on their way.  Magnitudes from 65,520 on become infinite in float16, which
is noticed before an update is applied.  Running statistics are sent as float32.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from configs import declared
from wire.codec import Codec, PartialVector, State, Wire

_Numbers = TypeVar('_Numbers', jax.Array, np.ndarray)


@declared.check_arguments('wire.dense')
def make(*, dtype: str) -> Wire:
  """Returns a wire whose pushes and pulls are cast to one dtype.

  Args:
    dtype: 'float32', which changes nothing, 'bfloat16' or 'float16'.

  Raises:
    ValueError: If `dtype` is another one; names the field.
  """
  codec = cast(jnp.dtype(dtype))
  return Wire(push=codec, pull=codec, stats=cast(jnp.dtype('float32')))


def cast(dtype: np.dtype) -> Codec:
  """Returns the codec that casts numbers; arrays may be of JAX or NumPy."""
  return Codec(
    init=lambda n, worker: State(),
    encode=lambda state, vector: (_as(vector, dtype), state),
    decode=lambda message, n: PartialVector(_as(message, jnp.float32)),
    size_bytes=lambda n: n * dtype.itemsize,
    elementwise=True,
    dtype=dtype,
    overflows=dtype == jnp.float16,
  )


def _as(numbers: _Numbers, dtype: np.dtype | type) -> _Numbers:
  # NumPy would copy what is of that dtype already.
  return numbers if numbers.dtype == dtype else numbers.astype(dtype)
