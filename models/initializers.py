"""Initial kernels and dense layers of the models."""

import functools
import math
from typing import Any

import jax
import numpy as np
from flax import nnx

FLOAT32 = np.dtype(np.float32)
# Standard deviation of a normal variable truncated to -2 and 2.
_TRUNCATED_STD = 0.87962566103423978


def he_normal(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
  """Returns a random kernel of variance 2/fan-in, normal within two sigma.

  He et al., 'Delving Deep into Rectifiers' (2015): with half of this variance,
  the default of Flax, each layer with ReLU halves the variance of its input,
  and VGG of 16 layers hardly learns.  The numbers are those of
  `jax.nn.initializers.he_normal`, but drawn as one row: XLA takes seconds to
  compile the drawing of a small kernel with four axes.

  Args:
    key: Typed random key.
    shape: Shape of the kernel; the last axis is that of the outputs.
  """
  return _truncated(key, shape, dtype, math.sqrt(2 / math.prod(shape[:-1])))


def _truncated(
  key: jax.Array, shape: tuple[int, ...], dtype: Any, std: float
) -> jax.Array:
  row = jax.random.truncated_normal(key, -2, 2, (math.prod(shape),), dtype)
  return row.reshape(shape) * (std / _TRUNCATED_STD)


def dense(
  features: int, out: int, rngs: nnx.Rngs, dtype: np.dtype
) -> nnx.Linear:
  """Returns a dense layer with an initial kernel of `he_normal`.

  Args:
    features: Number of inputs.
    out: Number of outputs.
    dtype: Dtype of its computations; its parameters are float32.
  """
  return nnx.Linear(
    features, out, kernel_init=he_normal, dtype=dtype, rngs=rngs
  )


def linear(
  features: int,
  out: int,
  rngs: nnx.Rngs,
  dtype: np.dtype,
  *,
  gain: float = 1.0,
) -> nnx.Linear:
  """Returns a dense layer without bias, of kernel variance gain^2/fan-in.

  LeCun et al., 'Efficient BackProp' (1998): with a gain of 1, results have the
  variance of inputs.

  Args:
    features: Number of inputs.
    out: Number of outputs.
    dtype: Dtype of its computations; its parameters are float32.
    gain: Initial standard deviation of results over that of inputs.
  """
  init = functools.partial(_truncated, std=gain / math.sqrt(features))
  return nnx.Linear(
    features, out, use_bias=False, kernel_init=init, dtype=dtype, rngs=rngs
  )
