"""Pushes and pulls as trees: what becomes of them where no byte really moves.

For a runtime in one process.  It encodes and decodes with the codecs that
`wire.flat` uses between hosts, but gives a codec which treats each number by
itself the leaves of a tree as they are: laying them end to end costs more than
all the rest.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wire import residuals
from wire.codec import Codec, Message, Payload, State, Wire
from wire.flat import Flat


class Trees(NamedTuple):
  """What becomes of trees on their way.

  Attributes:
    init: Returns what a worker's codec remembers at first, of the worker.
    encode: Returns the message of a payload, and what is remembered then, of
      what was remembered before, the payload, the stage of the wire, and the
      scale by which the gradient is multiplied.
    decode: Returns the payload that a message stands for, of it and the stage.
    pull: Returns the parameters that workers get, of those that are held.
    dtype: As of the codec of pushes.
    overflows: Likewise.
    push_bytes: Returns how long a message to each server is, of the stage;
      None if nobody has laid that down, as any part of a message is one.
    kept_l1: Returns the sum of the absolute numbers that a worker has not sent
      yet, by parameter, of what it remembers; None if workers keep nothing.
    stages: Of the wire.
  """

  init: Callable[[int], Any]
  encode: Callable[[Any, Payload, int, float], tuple[Message, Any]]
  decode: Callable[[Message, int], Payload]
  pull: Callable[[Any], Any]
  dtype: np.dtype | None
  overflows: bool = False
  push_bytes: Callable[[int], Sequence[int]] | None = None
  kept_l1: Callable[[Any], dict[str, float]] | None = None
  stages: int = 1


def make(wire: Wire, params: Any, stats: Any, *, servers: int) -> Trees:
  """Returns how trees like these travel.

  Args:
    wire: The codecs.
    params: Pytree of arrays.  Only float32 leaves are encoded where a codec
      treats each number by itself; others travel as they are.
    stats: The same; () if there are none.
    servers: How many share them: each gets a message of its own.
  """
  if wire.plain or not jax.tree.leaves(params):  # Numbers that are not there.
    return plain()
  if wire.elementwise:
    return _leafwise(wire, Payload(_is_coded(params), _is_coded(stats)))
  return _shared(Flat(params, stats, servers=servers, wire=wire))


def plain() -> Trees:
  """Returns how trees travel of which nothing else becomes."""
  return Trees(
    init=lambda worker: (),
    encode=_same,
    decode=lambda message, stage: message,
    pull=lambda params: params,
    dtype=np.dtype(np.float32),
  )


def _same(
  state: Any, payload: Payload, stage: int, scale: float
) -> tuple[Message, Any]:
  del stage, scale
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
    init=lambda worker: (),
    encode=lambda state, payload, *_: (both(_encoded, payload), state),
    decode=lambda message, stage: both(_decoded, message),
    pull=pull,
    dtype=wire.push.dtype,
    overflows=wire.push.overflows,
  )


def _mapped(
  coder: Callable[[Codec, jax.Array], Any], codec: Codec, coded: Any, tree: Any
) -> Any:
  return jax.tree.map(
    lambda is_coded, leaf: coder(codec, leaf) if is_coded else leaf, coded, tree
  )


def _encoded(codec: Codec, leaf: jax.Array) -> Message:
  return codec.encode(State(), leaf)[0]


def _decoded(codec: Codec, leaf: Message) -> jax.Array:
  return codec.decode(leaf, leaf.size).vector


def _shared(flat: Flat) -> Trees:
  servers = range(len(flat.sizes))

  def encode(
    states: Any, payload: Payload, stage: int, scale: float
  ) -> tuple[Message, Any]:
    messages, states, _ = flat.encode(states, payload, stage, scale)
    return messages, states

  @functools.partial(jax.jit, static_argnums=1)
  def decode(messages: Message, stage: int) -> Payload:
    shares = [flat.decode(each, k, stage) for k, each in enumerate(messages)]
    payload = Payload(*flat.joined(shares))
    if not jax.tree.leaves([each.arrived for each in shares]):
      return payload
    arrived, _ = flat.joined([(each.arrived, each.stats) for each in shares])
    return payload._replace(arrived=arrived)

  outgoing = jax.jit(flat.outgoing_of)

  def kept_l1(states: Any) -> dict[str, float]:
    return residuals.l1_norms(residuals.by_parameter(flat, states))

  return Trees(
    init=flat.init,
    encode=encode,
    decode=decode,
    pull=lambda params: flat.pulled(outgoing(params))[0],
    dtype=None,
    overflows=flat.wire.push.overflows,
    push_bytes=lambda stage: [flat.push_bytes(k, stage) for k in servers],
    kept_l1=kept_l1 if flat.keeps else None,
    stages=len(flat.wire.pushes),
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
