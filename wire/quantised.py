"""Codec that sends gradients as 8-bit integers with a scale per chunk.

A number is rounded at random to one of the two multiples of its chunk's scale
next to it, the nearer the likelier.  The expected value is exact, so that no
residual is needed (Alistarh et al., 'QSGD', 2017).
"""

from typing import Any

import jax
import jax.numpy as jnp

from configs.checks import require
from wire import dense
from wire.codec import Codec, Message, PartialVector, State, Wire

_LARGEST = 127  # Largest magnitude of an integer.


def make(*, chunk: int, seed: int) -> Wire:
  """Returns a wire whose pushes are integers; its pulls are dense float32.

  Args:
    chunk: Numbers that share a scale: their largest magnitude divided by 127.
    seed: Seed of the rounding; each worker has a random key of its own.

  Raises:
    ValueError: If an argument is out of range.
  """
  require(chunk >= 1, 'chunk', 'at least 1', chunk)
  require(0 <= seed < 2**32, 'seed', '0 to 2^32 - 1', seed)

  def init(n: int, worker: Any) -> State:
    del n
    key = jax.random.fold_in(jax.random.key(seed), worker)
    return State(local=jax.random.key_data(key))

  def split_chunks(vector: jax.Array) -> jax.Array:
    return jnp.pad(vector, (0, -vector.size % chunk)).reshape(-1, chunk)

  def encode(state: State, vector: jax.Array) -> tuple[Message, State]:
    key, rounding_key = jax.random.split(jax.random.wrap_key_data(state.local))
    rows = split_chunks(vector)
    scales = jnp.max(jnp.abs(rows), axis=1) / _LARGEST
    steps = rows / jnp.where(scales == 0, 1, scales)[:, None]
    # Whole numbers stay as they are, as their difference to `lower` is exact.
    lower = jnp.floor(steps)
    lower += jax.random.uniform(rounding_key, steps.shape) < steps - lower
    whole = jnp.clip(lower, -_LARGEST, _LARGEST).astype(jnp.int8)
    message = scales, whole.reshape(-1)[: vector.size]
    return message, state._replace(local=jax.random.key_data(key))

  def decode(message: Message, n: int) -> PartialVector:
    scales, whole = message
    rows = split_chunks(whole.astype(jnp.float32)) * scales[:, None]
    return PartialVector(rows.reshape(-1)[:n])

  exact = dense.cast(jnp.dtype('float32'))
  push = Codec(
    init=init,
    encode=encode,
    decode=decode,
    size_bytes=lambda n: n + 4 * -(-n // chunk),
  )
  return Wire(push=push, pull=exact, stats=exact)
