"""What travels, as an interface: codecs, and the wire that they make up.

A wire is made by `make(...)` of the module that config.wire.name names.  Its
codecs are pure functions of fixed shapes that can be jitted; what they remember
is an argument and a result.  How many bytes a vector becomes is known before
the vector is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import jax
import numpy as np

# Plain pytrees: what one worker's codec remembers (a residual, a mask), and
# what a vector becomes on its way.
State = Any
Message = Any


class Payload(NamedTuple):
  """What a push carries, summed over its examples.

  Attributes:
    gradient: Pytree like the parameters.
    stats: The batch's statistics times its examples, like `Task.stats`.
  """

  gradient: Any
  stats: Any


class Collective(Protocol):
  """What a route that sums among workers offers a codec."""

  def sum(
    self,
    message: Message,
    add: Callable[[Message, Message], Message] | None = None,
  ) -> Message:
    """Returns the sum of all workers' messages, the same on each of them."""

  def gather(self, message: Message) -> Message:
    """Returns all workers' messages, along a new leading axis."""


class Codec(NamedTuple):
  """What a vector becomes on its way, and back.

  Attributes:
    init: Returns what a worker remembers before its first vector, of the number
      of elements.
    encode: Returns what travels of a vector, float32 [n], and what is
      remembered then.
    decode: Returns the vector, float32 [n], that a message stands for, given
      n: shapes of messages need not tell it.
    size_bytes: Returns how long the message of n elements is.
    elementwise: Whether each number becomes one number by itself, and nothing
      is remembered.  Such a codec may be given an array of any shape, the
      leaves of a tree one by one, or a part of a vector.
    dtype: Of what each number is rounded to, if that is all that becomes of it,
      and float32 if nothing does: sums among workers round likewise.  None if
      something else does.
    add: Adds two messages that meet on their way; None if that takes decoding.
    reduce: Sums vectors of all workers where that takes a conversation (norms
      first, say): returns the sum and what is remembered then.
  """

  init: Callable[[int], State]
  encode: Callable[[State, jax.Array], tuple[Message, State]]
  decode: Callable[[Message, int], jax.Array]
  size_bytes: Callable[[int], int]
  elementwise: bool = False
  dtype: np.dtype | None = None
  add: Callable[[Message, Message], Message] | None = None
  reduce: (
    Callable[[State, jax.Array, Collective], tuple[jax.Array, State]] | None
  ) = None


class Wire(NamedTuple):
  """The codecs of a run.

  Attributes:
    push: Of gradients.
    pull: Of parameters; it remembers nothing, as all workers get the same.
    stats: Of running statistics, both ways; it remembers nothing.
  """

  push: Codec
  pull: Codec
  stats: Codec

  @property
  def elementwise(self) -> bool:
    """Whether all codecs treat each number by itself."""
    return all(codec.elementwise for codec in self)

  @property
  def plain(self) -> bool:
    """Whether all codecs hand over the very vector that they are given."""
    return self.elementwise and all(map(_changes_nothing, self))

  def push_bytes(self, params: int, stats: int) -> int:
    """Returns how long a push of so many elements of both is."""
    return self.push.size_bytes(params) + self.stats.size_bytes(stats)

  def pull_bytes(self, params: int, stats: int) -> int:
    """Returns how long a pull of so many elements of both is."""
    return self.pull.size_bytes(params) + self.stats.size_bytes(stats)


def _changes_nothing(codec: Codec) -> bool:
  vector = cast(jax.Array, np.zeros(1, np.float32))  # Which compiles nothing.
  message, _ = codec.encode((), vector)
  return message is vector and codec.decode(message, 1) is vector
