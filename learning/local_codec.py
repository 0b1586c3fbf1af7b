"""Encoding of pushes and pulls within one process, where no bytes move.

The virtual runtime rounds and sparsifies exactly as real workers and servers
do.  It has its own code path beside `ShardCodec` because most codecs treat
every number by itself: leaves are then encoded as they are, since copying them
into a vector costs more on CPUs than everything else (see `ShardCodec` for
other codecs, which are given the vectors of the servers' shares).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learning.residuals import l1_norms
from learning.shard_codec import ShardCodec
from wire.codec import Codec, Message, Payload, State, Wire


class LocalCodec:
  """Encoder and decoder of whole pushes and pulls, which are pytrees.

  Attributes:
    dtype: Dtype that numbers are rounded to, if the codec of pushes does
      nothing else to them; None if it does.
    overflows: Whether finite numbers may become infinite.
    stages: Number of the wire's stages.
    has_residual: Whether workers keep residuals.

  Args:
    wire: The codecs; None for messages that are the payloads themselves.
    params: Pytree of arrays.  Only float32 leaves are encoded by a codec that
      treats each number by itself; others travel as they are.
    stats: The same of running statistics; () if there are none.
    servers: Number of servers, each of which gets a message of its own.

  Raises:
    ValueError: If `ShardCodec` refuses the arguments.
  """

  def __init__(
    self,
    wire: Wire | None = None,
    params: Any = (),
    stats: Any = (),
    *,
    servers: int = 1,
  ):
    self._wire: Wire | None = None  # Codecs of leaves.
    self._shards: ShardCodec | None = None
    self.dtype: np.dtype | None = np.dtype(np.float32)
    self.overflows, self.stages, self.has_residual = False, 1, False
    # Runs without a model have no parameters, and nothing to encode.
    if wire is None or wire.plain or not jax.tree.leaves(params):
      return
    self.overflows = wire.push.overflows
    if wire.elementwise:
      self._wire, self.dtype = wire, wire.push.dtype
      self._is_coded = Payload(_is_float32(params), _is_float32(stats))
      return
    self._shards = ShardCodec(params, stats, servers=servers, wire=wire)
    self._stats = stats
    self.dtype, self.stages = None, len(wire.pushes)
    self.has_residual = self._shards.has_residual
    self._decode: Callable[[Message, int], Payload] = jax.jit(
      self._decode_shards, static_argnums=1
    )

  def init(self, worker: int) -> Any:
    """Returns the initial codec states of a worker."""
    return self._shards.init(worker) if self._shards else ()

  def encode(
    self, states: Any, payload: Payload, stage: int, scale: float
  ) -> tuple[Message, Any]:
    """Returns the message of a push, and the worker's next codec states.

    Args:
      states: The worker's codec states.
      payload: Gradient, multiplied by `scale`, and statistics.
      stage: Index of the wire's stage.
      scale: The worker's loss scale.
    """
    if self._shards:
      message, after, _ = self._shards.encode(states, payload, stage, scale)
      return message, after
    return self._map_payload(_encode, payload), states

  def decode(self, message: Message, stage: int) -> Payload:
    """Returns the payload of a message.

    Args:
      message: First result of `encode`.
      stage: Index of the wire's stage.
    """
    if self._shards:
      return self._decode(message, stage)
    return self._map_payload(_decode, message)

  def pull(self, params: Any) -> Any:
    """Returns the parameters that workers receive, given those of servers.

    If the wire changes nothing, they are the same arrays.
    """
    if self._shards:
      messages = self._shards.encode_pulls(params, self._stats)
      return self._shards.decode_pulls(messages)[0]
    if not self._wire:
      return params
    codec, is_coded = self._wire.pull, self._is_coded.gradient
    message = _map_leaves(_encode, codec, is_coded, params)
    return _map_leaves(_decode, codec, is_coded, message)

  def push_bytes(self, stage: int) -> list[int] | None:
    """Returns the bytes of each server's part of a push.

    Args:
      stage: Index of the wire's stage.

    Returns:
      One size for each server; None if the codec treats each number by itself,
      as a message can then be cut anywhere.
    """
    if not self._shards:
      return None
    servers = range(len(self._shards.sizes))
    return [self._shards.push_bytes(server, stage) for server in servers]

  def residual_norms(self, states: Any) -> dict[str, float]:
    """Returns the L1 norms of a worker's residuals by parameter.

    Args:
      states: The worker's codec states.

    Returns:
      Norms by name of the parameter; {} if the codec keeps no residual.
    """
    if not self._shards or not self.has_residual:
      return {}
    return l1_norms(self._shards.residuals(states))

  def _decode_shards(self, messages: Any, stage: int) -> Payload:
    shards = self._shards
    if shards is None:
      raise RuntimeError('Expected messages of shards, got others.')
    parts = [shards.decode(each, k, stage) for k, each in enumerate(messages)]
    payload = Payload(*shards.join(parts))
    if not jax.tree.leaves([part.arrived for part in parts]):
      return payload
    arrived, _ = shards.join([(part.arrived, part.stats) for part in parts])
    return payload._replace(arrived=arrived)

  def _map_payload(self, function: '_Coder', payload: Payload) -> Payload:
    """Returns a payload whose leaves were encoded or decoded one by one."""
    # Encoding and decoding are separate programs: in one, XLA may omit a cast
    # to less precision and back, and it copies leaves left alone by a codec.
    if not self._wire:
      return payload
    push, stats = self._wire.push, self._wire.stats
    is_coded = self._is_coded
    return Payload(
      _map_leaves(function, push, is_coded.gradient, payload.gradient),
      _map_leaves(function, stats, is_coded.stats, payload.stats),
    )


_Coder = Callable[[Codec, Any], Any]


def _map_leaves(
  function: _Coder, codec: Codec, is_coded: Any, tree: Any
) -> Any:
  return jax.tree.map(
    lambda coded, leaf: function(codec, leaf) if coded else leaf, is_coded, tree
  )


def _encode(codec: Codec, leaf: jax.Array) -> Message:
  return codec.encode(State(), leaf)[0]


def _decode(codec: Codec, leaf: Any) -> jax.Array:
  vector: jax.Array = codec.decode(leaf, leaf.size).vector
  return vector


def _is_float32(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: leaf.dtype == jnp.float32, tree)
