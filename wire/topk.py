"""The numbers of a gradient that are largest travel; the rest waits.

Each worker sends those of its own choice, with their places, and adds what it
has not sent to its next gradient (error feedback: Stich et al., 'Sparsified SGD
with Memory', 2018).
"""

import jax
import jax.numpy as jnp

from configs.checks import require
from wire import dense
from wire.codec import Codec, Message, State, Wire

_EXACT = 1e-9  # By which a share of numbers may be off, as floats are.


def make(*, sparsity: float) -> Wire:
  """Returns a wire whose pushes are numbers; its pulls are dense float32.

  A number that travels takes 8 bytes, with its place: below a sparsity of a
  half that is more than dense.

  Args:
    sparsity: Share of the numbers that does not travel, rounded down to whole
      numbers.

  Raises:
    ValueError: If it is out of range.
  """
  require(0 <= sparsity < 1, 'sparsity', 'at least 0, below 1', sparsity)

  def sent_of(n: int) -> int:
    return max(n - int(sparsity * n + _EXACT), 1)

  def encode(state: State, vector: jax.Array) -> tuple[Message, State]:
    left, count = state.kept + vector, sent_of(vector.size)
    if count == vector.size:
      return left, State(jnp.zeros_like(left))
    _, places = jax.lax.top_k(jnp.abs(left), count)  # Of equal ones the first.
    rest = left.at[places].set(0, unique_indices=True)
    return (left[places], places), State(rest)

  def decode(message: Message, n: int) -> jax.Array:
    if sent_of(n) == n:
      return message
    values, places = message
    return jnp.zeros(n).at[places].set(values, unique_indices=True)

  exact = dense.cast(jnp.dtype('float32'))
  push = Codec(
    init=lambda n, worker: State(jnp.zeros(n)),
    encode=encode,
    decode=decode,
    size_bytes=lambda n: (4 if sent_of(n) == n else 8) * sent_of(n),
  )
  return Wire(push=push, pull=exact, stats=exact)
