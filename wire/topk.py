"""Codec that sends the numbers of largest magnitude, with their positions.

Each worker chooses its own numbers, and adds those that it has not sent to its
next gradient (error feedback: Stich et al., 'Sparsified SGD with Memory',
2018).
"""

import jax
import jax.numpy as jnp

from configs import declared
from wire import dense
from wire.codec import Codec, Message, PartialVector, State, Wire

_ROUNDING = 1e-9  # Allowed rounding error of a share of numbers.


@declared.check_arguments('wire.topk')
def make(*, sparsity: float) -> Wire:
  """Returns a wire whose pushes are numbers; its pulls are dense float32.

  A number takes 8 bytes with its position: below a sparsity of 0.5 messages are
  longer than dense ones.

  Args:
    sparsity: Share of the numbers that is not sent, rounded down to whole
      numbers.

  Raises:
    ValueError: If it is out of range.
  """

  def count_sent(n: int) -> int:
    return max(n - int(sparsity * n + _ROUNDING), 1)

  def encode(state: State, vector: jax.Array) -> tuple[Message, State]:
    total, count = state.residual + vector, count_sent(vector.size)
    if count == vector.size:
      return total, State(jnp.zeros_like(total))
    # The first ones of equal magnitude.
    _, positions = jax.lax.top_k(jnp.abs(total), count)
    residual = total.at[positions].set(0, unique_indices=True)
    return (total[positions], positions), State(residual)

  def decode(message: Message, n: int) -> PartialVector:
    if count_sent(n) == n:
      return PartialVector(message)
    values, positions = message
    vector = jnp.zeros(n).at[positions].set(values, unique_indices=True)
    return PartialVector(vector)

  exact = dense.cast(jnp.dtype('float32'))
  push = Codec(
    init=lambda n, worker: State(jnp.zeros(n)),
    encode=encode,
    decode=decode,
    size_bytes=lambda n: (4 if count_sent(n) == n else 8) * count_sent(n),
  )
  return Wire(push=push, pull=exact, stats=exact)
