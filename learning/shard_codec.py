"""Messages between workers and parameter servers.

Each server holds an even share of the parameters and one of the running
statistics, wherever the leaves begin and end (`Layout.shards`).  A message has
two parts, what the codec makes of the share's parameters and of its
statistics; the second is () without statistics.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learning.layout import Layout, concatenate
from learning.residuals import Residuals, named_leaves
from wire.codec import Codec, Message, Payload, State, Wire, scale_residual

_Compiled = Callable[..., Any]


class ShardCodec:
  """Encoder and decoder of the pushes and pulls of all servers' shares.

  Attributes:
    params: The parameters that it was built from, or their shapes.
    layout: Layout of parameters and statistics, without padding.
    sizes: Numbers of parameters and of statistics of each server's share.
    wire: The codecs.
    has_residual: Whether a worker's codec keeps a residual.
    init: Compiled `init(worker)`: initial codec states of a worker, one for
      each server.
    encode: Compiled `encode(states, payload, stage, scale)`: see `_encode`.
    decode: Compiled `decode(message, server, stage)`: payload of a server's
      part of a push, float32 vectors.
    encode_pull: Compiled `encode_pull(params, stats)`: message of a server's
      share for workers, given its float32 vectors.
    encode_pulls: Compiled `encode_pulls(params, stats)`: messages of all
      servers, given pytrees.
    decode_pulls: Compiled `decode_pulls(messages)`: parameters and statistics,
      pytrees, given the messages of all servers.
    join: Compiled `join(shares)`: the same, given the float32 vectors of all
      servers, pairs or payloads.

  Args:
    stats: The same of running statistics; () if there are none.
    servers: Number of servers.

  Raises:
    ValueError: If a leaf is not float32, if there are more servers than
      numbers, or if a codec's `size_bytes` is wrong.
  """

  def __init__(self, params: Any, stats: Any, *, servers: int, wire: Wire):
    self.params, self.wire, self._stats = params, wire, stats
    self.layout = Layout(params, stats, alignment_bytes=4)
    self._shards = self.layout.shards(servers)
    self.sizes = [shard.sizes for shard in self._shards]
    matrices = [self.layout.matrices(*shard.params) for shard in self._shards]
    fitted = [
      wire.for_matrices(each) if any(matrices) else wire for each in matrices
    ]
    self._codecs = list(zip(*(each.pushes for each in fitted), strict=True))
    self.init: _Compiled = jax.jit(self._init)
    self.encode: _Compiled = jax.jit(self._encode, static_argnums=2)
    self.decode: _Compiled = jax.jit(self._decode, static_argnums=(1, 2))
    self.encode_pull: _Compiled = jax.jit(self._encode_pull)
    self.encode_pulls: _Compiled = jax.jit(self._encode_pulls)
    self.decode_pulls: _Compiled = jax.jit(self._decode_pulls)
    self.join: _Compiled = jax.jit(self._join)
    states = jax.eval_shape(self._init, 0)
    self.has_residual = bool(
      jax.tree.leaves([state.residual for state in states])
    )
    payload = Payload(params, stats)
    pushes = [
      jax.eval_shape(
        functools.partial(self._encode, stage=stage), states, payload
      )[0]
      for stage in range(len(self._codecs))
    ]
    pulls = jax.eval_shape(self._encode_pulls, params, stats)
    for stage, of_stage in enumerate(pushes):
      for server, messages in enumerate(zip(of_stage, pulls, strict=True)):
        expected = tuple(map(_size_bytes, messages))
        got = self.push_bytes(server, stage), self.pull_bytes(server)
        if got != expected:
          raise ValueError(
            f'size_bytes: expected {expected}, as push and pull are, got {got}.'
          )
    self._pushes = [list(map(_ByteFormat, each)) for each in pushes]
    self._pulls = list(map(_ByteFormat, pulls))

  def initial_shard(self, server: int) -> tuple[jax.Array, Any]:
    """Returns a server's vectors of the initial parameters and statistics."""
    return self._split(self.params, self._stats)[server]

  def split_shard(self, vector: np.ndarray, server: int) -> tuple[Any, Any]:
    """Returns parameters and statistics of a server, as views of a vector.

    Args:
      vector: Parameters and then statistics of the server.
      server: Index of the server.

    Returns:
      Vectors of both; () in place of statistics if there are none.
    """
    params, stats = self.sizes[server]
    return vector[:params], vector[params:] if stats else ()

  def push_bytes(self, server: int, stage: int = 0) -> int:
    """Returns the bytes of a server's part of a push.

    Args:
      server: Index of the server.
      stage: Index of the wire's stage.
    """
    params, stats = self.sizes[server]
    codec: Codec = self._codecs[stage][server]
    return codec.size_bytes(params) + self.wire.stats.size_bytes(stats)

  def pull_bytes(self, server: int) -> int:
    """Returns the bytes of a server's part of a pull."""
    return self.wire.pull_bytes(*self.sizes[server])

  def push_message(
    self, sent: np.ndarray, server: int, stage: int = 0
  ) -> Message:
    """Returns a server's part of a push as views of its bytes.

    Args:
      sent: Uint8 [push_bytes(server, stage)].
      server: Index of the server.
      stage: Index of the wire's stage.
    """
    return self._pushes[stage][server].message(sent)

  def pull_message(self, sent: np.ndarray, server: int) -> Message:
    """Returns a server's part of a pull as views of its bytes.

    Args:
      sent: Uint8 [pull_bytes(server)].
      server: Index of the server.
    """
    return self._pulls[server].message(sent)

  def residuals(self, states: Sequence[State]) -> Residuals:
    """Returns a worker's residuals by parameter.

    They depend neither on the number of servers nor on the worker, so that
    other workers, and runs with other numbers of servers, can inherit them.

    Args:
      states: The worker's codec states, one for each server.

    Returns:
      Float32 arrays, each of the shape of the parameter whose name its key ends
      with.  The residual's own name, if the codec has several, precedes it and
      a colon.
    """
    shards = jax.device_get([state.residual for state in states])
    vectors = jax.tree.map(lambda *parts: np.concatenate(parts), *shards)
    return {
      _key(residual, name): leaf
      for residual, vector in named_leaves(vectors)
      for name, leaf in named_leaves(self.layout.unflatten(vector))
    }

  def inherit(
    self,
    states: Sequence[State],
    residuals: Sequence[Mapping[str, np.ndarray]],
  ) -> list[State]:
    """Returns a worker's codec states with the sum of others' residuals.

    Args:
      states: Codec states without residuals.
      residuals: Results of `residuals` of the others; may be empty.

    Raises:
      ValueError: If residuals belong to other parameters or another wire.
    """
    names = self.residuals(states)
    for other in residuals:
      if other.keys() != names.keys():
        raise ValueError(
          f'wire: expected residuals of {sorted(names)}, got {sorted(other)}.'
        )
    if not residuals:
      return list(states)
    ends = np.cumsum([size for size, _ in self.sizes])[:-1]
    leaves = [jax.tree.leaves(state.residual) for state in states]
    parameters = [name for name, _ in named_leaves(self.params)]
    for number, (residual, _) in enumerate(named_leaves(states[0].residual)):
      vector = np.zeros(self.layout.gradient_size, np.float32)
      for leaf, name in enumerate(parameters):
        each = [other[_key(residual, name)] for other in residuals]
        self.layout.write_leaf(vector, leaf, np.sum(each, axis=0))
      for of_server, part in zip(leaves, np.split(vector, ends), strict=True):
        of_server[number] = jax.device_put(part)
    return [
      state._replace(
        residual=jax.tree.unflatten(
          jax.tree.structure(state.residual), of_server
        )
      )
      for state, of_server in zip(states, leaves, strict=True)
    ]

  def _init(self, worker: int) -> list[State]:
    pairs = zip(self._codecs[-1], self.sizes, strict=True)
    return [codec.init(size, worker) for codec, (size, _) in pairs]

  def _encode(
    self,
    states: Sequence[State],
    payload: Payload,
    stage: int = 0,
    scale: float = 1.0,
  ) -> tuple[list[Message], list[State], jax.Array]:
    """Returns messages and next states by server; whether all is finite."""
    # Residuals are not multiplied by the scale, as the next gradient may have
    # another one, a power of two.  Statistics may be infinite or NaN: they are
    # checked where they are used.  The gradient must be finite also after
    # encoding.
    messages, after = [], []
    for codec, state, (gradient, stats) in zip(
      self._codecs[stage],
      states,
      self._split(payload.gradient, payload.stats),
      strict=True,
    ):
      message, state = codec.encode(scale_residual(state, scale), gradient)
      messages.append((message, self._encode_stats(stats)))
      after.append(scale_residual(state, 1 / scale))
    leaves = jax.tree.leaves(payload.gradient)
    if self.wire.push.overflows:
      sent = jax.tree.leaves([pushed for pushed, _ in messages])
      leaves = [leaf for leaf in sent if jnp.issubdtype(leaf, jnp.floating)]
    # The largest number is NaN if one of them is.
    peaks = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
    return messages, after, jnp.isfinite(jnp.array(peaks)).all()

  def _decode(self, message: Message, server: int, stage: int = 0) -> Payload:
    """Returns the payload of a server's part of a push, float32 vectors."""
    (encoded, stats), (size, rest) = message, self.sizes[server]
    share = self._codecs[stage][server].decode(encoded, size)
    stats = self.wire.stats.decode(stats, rest).vector if rest else ()
    return Payload(share.vector, stats, share.arrived)

  def _encode_pull(self, params: jax.Array, stats: Any) -> Message:
    codec = self.wire.pull
    message, _ = codec.encode(codec.init(params.size, 0), params)
    return message, self._encode_stats(stats)

  def _encode_pulls(self, params: Any, stats: Any) -> list[Message]:
    shares = self._split(params, stats)
    return [self._encode_pull(*share) for share in shares]

  def _decode_pulls(self, messages: Sequence[Message]) -> tuple[Any, Any]:
    return self._join(
      [
        (
          self.wire.pull.decode(params, size).vector,
          self.wire.stats.decode(stats, rest).vector if rest else (),
        )
        for (params, stats), (size, rest) in zip(
          messages, self.sizes, strict=True
        )
      ]
    )

  def _join(self, shares: Sequence[tuple[Any, ...]]) -> tuple[Any, Any]:
    params = concatenate([params for params, *_ in shares])
    stats = concatenate([stats for _, stats, *_ in shares if len(stats)])
    return self.layout.unflatten(params), self.layout.unflatten_stats(stats)

  def _split(self, params: Any, stats: Any) -> list[tuple[jax.Array, Any]]:
    """Returns each server's vectors of two pytrees."""
    params_P = self.layout.flatten(params)
    stats_S = self.layout.flatten_stats(stats)
    return [
      (
        params_P[slice(*shard.params)],
        stats_S[slice(*shard.stats)] if shard.sizes[1] else (),
      )
      for shard in self._shards
    ]

  def _encode_stats(self, stats: Any) -> Message:
    return self.wire.stats.encode(State(), stats)[0] if len(stats) else ()


class _ByteFormat:
  """Positions of a message's arrays among its bytes."""

  def __init__(self, like: Message):
    leaves, self._tree = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size * leaf.dtype.itemsize for leaf in leaves])
    self._parts = [
      (slice(start, end), leaf.dtype, leaf.shape)
      for start, end, leaf in zip([0, *ends[:-1]], ends, leaves, strict=True)
    ]

  def message(self, sent: np.ndarray) -> Message:
    """Returns the message whose bytes are in an array, as views of it."""
    return jax.tree.unflatten(
      self._tree,
      [
        sent[part].view(dtype).reshape(shape)
        for part, dtype, shape in self._parts
      ],
    )


def byte_views(message: Message) -> list[np.ndarray]:
  """Returns the bytes, uint8, of each non-empty array of a message."""
  arrays = map(np.asarray, jax.tree.leaves(message))
  return [array.reshape(-1).view(np.uint8) for array in arrays if array.size]


def _size_bytes(message: Message) -> int:
  leaves = jax.tree.leaves(message)
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _key(residual: str, name: str) -> str:
  return f'{residual}:{name}' if residual else name
