"""Gradients as integers of 8 bits, rounded at random, with a scale per chunk.

A number becomes one of the two multiples of its chunk's scale between which it
lies, the nearer the likelier, so that it is right in the mean and nothing has
to be remembered of it (Alistarh et al., 'QSGD', 2017).
"""

from typing import Any

import jax
import jax.numpy as jnp

from configs.checks import require
from wire import dense
from wire.codec import Codec, Message, State, Wire

_LARGEST = 127  # Of an integer.


def make(*, chunk: int, seed: int) -> Wire:
  """Returns a wire whose pushes are integers; its pulls are dense float32.

  Args:
    chunk: Numbers that share a scale, the largest of them over 127.
    seed: Of the rounding; each worker has a key of its own.

  Raises:
    ValueError: If an argument is out of range.
  """
  require(chunk >= 1, 'chunk', 'at least 1', chunk)
  require(0 <= seed < 2**32, 'seed', '0 to 2^32 - 1', seed)

  def init(n: int, worker: Any) -> State:
    del n
    key = jax.random.fold_in(jax.random.key(seed), worker)
    return State(own=jax.random.key_data(key))

  def cut(vector: jax.Array) -> jax.Array:
    return jnp.pad(vector, (0, -vector.size % chunk)).reshape(-1, chunk)

  def encode(state: State, vector: jax.Array) -> tuple[Message, State]:
    key, now = jax.random.split(jax.random.wrap_key_data(state.own))
    rows = cut(vector)
    scales = jnp.max(jnp.abs(rows), axis=1) / _LARGEST
    steps = rows / jnp.where(scales == 0, 1, scales)[:, None]
    # Of numbers that are whole already nothing is lost: the rest is exact.
    lower = jnp.floor(steps)
    lower += jax.random.uniform(now, steps.shape) < steps - lower
    whole = jnp.clip(lower, -_LARGEST, _LARGEST).astype(jnp.int8)
    message = scales, whole.reshape(-1)[: vector.size]
    return message, state._replace(own=jax.random.key_data(key))

  def decode(message: Message, n: int) -> jax.Array:
    scales, whole = message
    rows = cut(whole.astype(jnp.float32)) * scales[:, None]
    return rows.reshape(-1)[:n]

  exact = dense.cast(jnp.dtype('float32'))
  push = Codec(
    init=init,
    encode=encode,
    decode=decode,
    size_bytes=lambda n: n + 4 * -(-n // chunk),
  )
  return Wire(push=push, pull=exact, stats=exact)
