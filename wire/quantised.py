"""Codec that sends gradients as integers of 8, 4 or 2 bits, a scale per chunk.

Integers are -127 to 127, -7 to 7, or -1, 0 and 1: zero is one of them, and no
sign is favoured.  Several share a byte.

With error feedback a number is rounded to the nearest step, and the error is
added to the next gradient (Karimireddy et al., 'Error Feedback Fixes SignSGD',
2019).  As zero is a step, no error is larger than its number, and that of a
chunk's largest number is smaller, so residuals stay bounded.  Few bits need a
clip below the largest number, which would leave most of a chunk at zero: of
`_CLIPS` the one with the least squared error is taken.

Without, a number is rounded at random to one of the two steps next to it, the
nearer the likelier.  The expected value is exact (Alistarh et al., 'QSGD',
2017), but with few bits the variance exceeds the square of the gradient.  It is
new with each message.
"""

from typing import Any

import jax
import jax.numpy as jnp

from configs import declared
from configs.checks import require
from wire import dense
from wire.codec import Codec, Message, PartialVector, State, Wire

# Largest integers over the largest number of a chunk: half octaves.
_CLIPS = [2 ** (-i / 2) for i in range(8)]


@declared.check_arguments('wire.quantised')
def make(*, bits: int, chunk: int, error_feedback: bool, seed: int) -> Wire:
  """Returns a wire whose pushes are integers; its pulls are dense float32.

  Args:
    bits: Bits of an integer: 8, 4 or 2.
    chunk: Numbers that share a scale.
    error_feedback: Whether numbers are rounded to the nearest step and errors
      are kept as a residual; else numbers are rounded at random.
    seed: Seed of random rounding; each worker has a random key of its own.

  Raises:
    ValueError: If an argument is out of range, or is a seed that error feedback
      would ignore.
  """
  expected = '0, as error_feedback rounds nothing at random'
  require(seed == 0 or not error_feedback, 'seed', expected, seed)
  largest = 2 ** (bits - 1) - 1
  # 8 bits have steps enough for the largest number of any chunk.
  clips = _CLIPS if error_feedback and bits < 8 else [1.0]

  def init(n: int, worker: Any) -> State:
    if error_feedback:
      return State(jnp.zeros(n))
    key = jax.random.fold_in(jax.random.key(seed), worker)
    return State(local=jax.random.key_data(key))

  def split_chunks(vector: jax.Array) -> jax.Array:
    return jnp.pad(vector, (0, -vector.size % chunk)).reshape(-1, chunk)

  def choose_scales(rows: jax.Array) -> jax.Array:
    peaks: jax.Array = jnp.max(jnp.abs(rows), axis=1)  # NaN if one number is.
    if len(clips) == 1:
      return jnp.divide(peaks, largest)
    units = rows / jnp.where(peaks > 0, peaks, 1)[:, None]
    errors = []
    for clip in clips:
      step = clip / largest
      rounded = jnp.clip(jnp.round(units / step), -largest, largest)
      errors.append(jnp.sum(jnp.square(units - rounded * step), axis=1))
    best = jnp.argmin(jnp.stack(errors), axis=0)
    return jnp.multiply(peaks, (jnp.array(clips, jnp.float32) / largest)[best])

  def encode_whole(whole: jax.Array, n: int) -> jax.Array:
    clipped = jnp.clip(whole, -largest, largest).astype(jnp.int8)
    return pack(clipped.reshape(-1)[:n], bits)

  def encode_nearest(state: State, vector: jax.Array) -> tuple[Message, State]:
    total = state.residual + vector
    rows = split_chunks(total)
    scales = choose_scales(rows)
    whole = jnp.round(_divide(rows, scales))
    message = scales, encode_whole(whole, total.size)
    return message, State(total - decode(message, total.size).vector)

  def encode_random(state: State, vector: jax.Array) -> tuple[Message, State]:
    key, rounding_key = jax.random.split(jax.random.wrap_key_data(state.local))
    rows = split_chunks(vector)
    scales = choose_scales(rows)
    steps = _divide(rows, scales)
    # Whole numbers stay as they are, as their difference to `lower` is exact.
    lower = jnp.floor(steps)
    lower += jax.random.uniform(rounding_key, steps.shape) < steps - lower
    message = scales, encode_whole(lower, vector.size)
    return message, state._replace(local=jax.random.key_data(key))

  def decode(message: Message, n: int) -> PartialVector:
    scales, packed = message
    whole = unpack(packed, bits, n).astype(jnp.float32)
    return PartialVector(
      (split_chunks(whole) * scales[:, None]).reshape(-1)[:n]
    )

  exact = dense.cast(jnp.dtype('float32'))
  push = Codec(
    init=init,
    encode=encode_nearest if error_feedback else encode_random,
    decode=decode,
    size_bytes=lambda n: -(-n * bits // 8) + 4 * -(-n // chunk),
  )
  return Wire(push=push, pull=exact, stats=exact)


def pack(whole: jax.Array, bits: int) -> jax.Array:
  """Returns integers of few bits, several in a byte.

  Args:
    whole: Int8 [n], each in the range of two's complement of `bits` bits.
    bits: 8, 4 or 2.

  Returns:
    Uint8 [n bits / 8, rounded up].  The first integer of a byte has its lowest
    bits; unused bits of the last byte are 0.
  """
  count = 8 // bits
  codes = jax.lax.bitcast_convert_type(whole, jnp.uint8) & (2**bits - 1)
  rows = jnp.pad(codes, (0, -whole.size % count)).reshape(-1, count)
  # No two of a byte have a bit in common.
  return jnp.sum(rows << _shifts(bits), axis=1, dtype=jnp.uint8)


def unpack(packed: jax.Array, bits: int, n: int) -> jax.Array:
  """Returns the integers that `pack` was given, int8 [n].

  Args:
    packed: Result of `pack`.
    bits: Bits of an integer, as for `pack`: 8, 4 or 2.
    n: Number of the integers.
  """
  codes = (packed[:, None] >> _shifts(bits)).reshape(-1)[:n]
  # The highest bit is the sign, which the shift back copies.
  high = jax.lax.bitcast_convert_type(codes << (8 - bits), jnp.int8)
  return high >> (8 - bits)


def _shifts(bits: int) -> jax.Array:
  return jnp.arange(0, 8, bits, dtype=jnp.uint8)


def _divide(rows: jax.Array, scales: jax.Array) -> jax.Array:
  """Returns rows in units of their scales; unchanged where a scale is 0."""
  return rows / jnp.where(scales == 0, 1, scales)[:, None]
