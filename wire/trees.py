"""Pushes and pulls as trees: what becomes of them where no byte really moves.

For a runtime in one process.  It encodes and decodes with the codecs that
`wire.flat` uses between hosts, but gives a codec which treats each number by
itself the leaves of a tree as they are: laying them end to end costs more than
all the rest.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wire.codec import Codec, Message, Payload, State, Wire
from wire.flat import Flat


class Trees(NamedTuple):
  """What becomes of trees on their way.

  Attributes:
    init: Returns what a worker's codec remembers at first.
    encode: Returns the message of a payload, and what is remembered then.
    decode: Returns the payload that a message stands for.
    pull: Returns the parameters that workers get, of those that are held.
    dtype: As of the codec of pushes.
  """

  init: Callable[[], State]
  encode: Callable[[State, Payload], tuple[Message, State]]
  decode: Callable[[Message], Payload]
  pull: Callable[[Any], Any]
  dtype: np.dtype | None


def make(wire: Wire, params: Any, stats: Any, *, servers: int) -> Trees:
  """Returns how trees like these travel.

  Args:
    wire: The codecs.
    params: Pytree of arrays.  Only float32 leaves are encoded where a codec
      treats each number by itself; others travel as they are.
    stats: The same; () if there are none.
    servers: How many share them: each gets a message of its own.
  """
  if wire.plain or not jax.tree.leaves(
    params
  ):  # Or numbers that are not there.
    return Trees(
      init=tuple,
      encode=_same,
      decode=lambda message: message,
      pull=lambda params: params,
      dtype=np.dtype(np.float32),
    )
  if wire.elementwise:
    return _leafwise(wire, Payload(_is_coded(params), _is_coded(stats)))
  return _shared(Flat(params, stats, servers=servers, wire=wire))


def _same(state: State, payload: Payload) -> tuple[Message, State]:
  return payload, state


def _leafwise(wire: Wire, coded: Payload) -> Trees:
  # Not in one program: XLA may leave out a cast and the one back, as more
  # precise is allowed, and copies what a codec leaves as it is.
  def both(coder: Callable[..., Any], payload: Payload) -> Payload:
    return Payload(
      _mapped(coder, wire.push, coded.gradient, payload.gradient),
      _mapped(coder, wire.stats, coded.stats, payload.stats),
    )

  def pull(params: Any) -> Any:
    message = _mapped(_encoded, wire.pull, coded.gradient, params)
    return _mapped(_decoded, wire.pull, coded.gradient, message)

  return Trees(
    init=tuple,
    encode=lambda state, payload: (both(_encoded, payload), state),
    decode=lambda message: both(_decoded, message),
    pull=pull,
    dtype=wire.push.dtype,
  )


def _mapped(
  coder: Callable[[Codec, jax.Array], Any], codec: Codec, coded: Any, tree: Any
) -> Any:
  return jax.tree.map(
    lambda is_coded, leaf: coder(codec, leaf) if is_coded else leaf, coded, tree
  )


def _encoded(codec: Codec, leaf: jax.Array) -> Message:
  return codec.encode((), leaf)[0]


def _decoded(codec: Codec, leaf: Message) -> jax.Array:
  return codec.decode(leaf, leaf.size)


def _shared(flat: Flat) -> Trees:
  def encode(states: State, payload: Payload) -> tuple[Message, State]:
    messages, states, _ = flat.encode(states, payload)
    return messages, states

  @jax.jit
  def decode(messages: Message) -> Payload:
    return Payload(
      *flat.joined([flat.decode(each, k) for k, each in enumerate(messages)])
    )

  outgoing = jax.jit(flat.outgoing_of)
  return Trees(
    init=flat.init,
    encode=encode,
    decode=decode,
    pull=lambda params: flat.pulled(outgoing(params))[0],
    dtype=None,
  )


def elements(tree: Any) -> int:
  """Returns how many float32 numbers a tree has."""
  leaves = jax.tree.leaves(tree)
  return sum(leaf.size for leaf in leaves if leaf.dtype == jnp.float32)


def other_bytes(tree: Any) -> int:
  """Returns the bytes of a tree's other numbers."""
  leaves = jax.tree.leaves(tree)
  return sum(leaf.nbytes for leaf in leaves if leaf.dtype != jnp.float32)


def _is_coded(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: leaf.dtype == jnp.float32, tree)
