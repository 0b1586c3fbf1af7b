"""Pushes and pulls as vectors: what travels between workers and servers.

Every server holds an even share of the parameters and one of the running
statistics, whatever layers these belong to.  A message is what the codecs make
of both: a pair, of which the second is () if there are no statistics.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.checks import require
from wire.codec import (
  Message,
  Payload,
  Rows,
  State,
  Wire,
  scale_residual,
)

# Of all shares together, if they travel one by one (pipelined), and the bytes
# that each has at least: each costs time of the host, whosever it is.
PIECES, PIECE_BYTES = 64, 2**14
# A worker sends a piece once the one so many before it is back: so all keep
# pace, and what waits in the queues of the links stays short.
AHEAD = 4


def pieces(servers: int, push_bytes: int) -> int:
  """Returns in how many pieces each share travels.

  Args:
    servers: How many shares there are.
    push_bytes: Of a worker's push to all of them.
  """
  return max(1, min(PIECES, push_bytes // PIECE_BYTES) // servers)


def even(size: int, parts: int) -> list[int]:
  """Splits a size as evenly as possible, larger parts first."""
  each, rest = divmod(size, parts)
  return [each + (part < rest) for part in range(parts)]


def check_servers(totals: Sequence[int], servers: int) -> None:
  """Checks that servers can share parameters and statistics.

  Args:
    totals: Elements of each; 0 if there are none.
    servers: How many there are to be.

  Raises:
    ValueError: If there are more servers than elements.
  """
  for total in totals:
    most = f'at most {total}, one for each element'
    require(not 0 < total < servers, 'servers', most, servers)


class Flat:
  """Which element of which leaf lies where, and what travels of it.

  Attributes:
    params: What it was made from: how a worker's parameters look.
    sizes: Of each server's share: elements of parameters and of statistics.
    wire: The codecs.
    keeps: Whether a worker's codec keeps what it has not sent.
    init: Compiled: what a worker's codec remembers at first, for each server,
      of the worker.
    encode: Compiled: each server's messages of a payload, what is remembered
      after them, and whether all of the gradient is finite, also as it travels,
      of what was remembered before, the payload, the stage, and the scale by
      which the gradient is multiplied.
    pulled: Compiled: parameters and statistics, trees, of all messages.
    joined: Compiled: the same of all servers' vectors, float32.
    taken: `decode`, compiled.
    sent: `outgoing`, compiled.
  """

  def __init__(self, params: Any, stats: Any, *, servers: int, wire: Wire):
    """Lays the leaves end to end.

    Args:
      params: Pytree of float32 arrays.
      stats: The same; () if there are none.
      servers: How many share them.
      wire: The codecs.

    Raises:
      ValueError: If a leaf is not float32, or if there are more servers than
        elements.
    """
    for leaf in jax.tree.leaves((params, stats)):
      if leaf.dtype != jnp.float32:
        raise ValueError(f'task: expected float32 leaves, got {leaf.dtype}.')
    totals = [_elements(tree) for tree in (params, stats)]
    check_servers(totals, servers)
    self.params, self.wire = params, wire
    self._stats = stats
    shares = [even(total, servers) for total in totals]
    self.sizes = list(zip(*shares, strict=True))
    starts = [np.cumsum([0, *share[:-1]]).tolist() for share in shares]
    self._starts = list(zip(*starts, strict=True))
    rows = [list(self._rows(server)) for server in range(servers)]
    fitted = [wire.for_matrices(r) if any(rows) else wire for r in rows]
    self._codecs = list(zip(*(each.pushes for each in fitted), strict=True))
    self.init = jax.jit(self._init)
    self.encode = jax.jit(self._encode, static_argnums=2)
    self.taken = jax.jit(self.decode, static_argnums=(1, 2))
    self.sent = jax.jit(self.outgoing)
    self.pulled = jax.jit(self._pulled)
    self.joined = jax.jit(self._joined)
    payload, states = Payload(params, stats), jax.eval_shape(self._init, 0)
    self.keeps = bool(jax.tree.leaves([state.residual for state in states]))
    pushed = [
      jax.eval_shape(
        functools.partial(self._encode, stage=stage), states, payload
      )[0]
      for stage in range(len(self._codecs))
    ]
    pulled = jax.eval_shape(self.outgoing_of, params)
    for stage, pushes in enumerate(pushed):
      for server, sent in enumerate(zip(pushes, pulled, strict=True)):
        told = self.push_bytes(server, stage), self.pull_bytes(server)
        are = tuple(map(_size_bytes, sent))
        if told != are:
          raise ValueError(
            f'size_bytes: expected {are}, as push and pull are, got {told}.'
          )
    self._pushes = [list(map(_Layout, pushes)) for pushes in pushed]
    self._pulls = list(map(_Layout, pulled))

  def decode(self, message: Message, server: int, stage: int = 0) -> Payload:
    """Returns the vectors of a server's share of a push, float32."""
    (vector, stats), (size, rest) = message, self.sizes[server]
    share = self._codecs[stage][server].decode(vector, size)
    stats = self.wire.stats.decode(stats, rest).vector if rest else ()
    return Payload(share.vector, stats, share.arrived)

  def outgoing(self, params: jax.Array, stats: Any) -> Message:
    """Returns what workers get of a server's share, of its vectors."""
    codec = self.wire.pull
    message, _ = codec.encode(codec.init(params.size, 0), params)
    return message, _encoded(self.wire, stats)

  def outgoing_of(self, params: Any) -> list[Message]:
    """Returns all servers' messages of a pull, of trees."""
    shares = self._cut(params, self._stats)
    return [self.outgoing(*share) for share in shares]

  def initial(self, server: int) -> tuple[jax.Array, Any]:
    """Returns a server's vectors of what this was made from, float32."""
    return self._cut(self.params, self._stats)[server]

  def split(self, whole: np.ndarray, server: int) -> tuple[Any, Any]:
    """Returns a server's vectors, given end to end, float32."""
    size, rest = self.sizes[server]
    return whole[:size], whole[size:] if rest else ()

  def push_bytes(self, server: int, stage: int = 0) -> int:
    """Returns how long a server's message of a push is."""
    size, rest = self.sizes[server]
    stats_bytes = self.wire.stats.size_bytes(rest)
    return self._codecs[stage][server].size_bytes(size) + stats_bytes

  def pull_bytes(self, server: int) -> int:
    """Returns how long a server's message of a pull is."""
    return self.wire.pull_bytes(*self.sizes[server])

  def push_of(self, sent: np.ndarray, server: int, stage: int = 0) -> Message:
    """Returns a server's message of a push, views of the bytes of it.

    Args:
      sent: uint8 [push_bytes(server, stage)].
      server: Which one.
      stage: Of the wire's.
    """
    return self._pushes[stage][server](sent)

  def pull_of(self, sent: np.ndarray, server: int) -> Message:
    """Returns a server's message of a pull, likewise."""
    return self._pulls[server](sent)

  def _rows(self, server: int) -> Iterator[Rows]:
    """Yields the matrices of which a server's share has whole rows."""
    first = self._starts[server][0]
    last, start = first + self.sizes[server][0], 0
    for leaf in jax.tree.leaves(self.params):
      columns = leaf.shape[-1] if leaf.ndim > 1 and leaf.size else 0
      if columns:
        above = max(-(-(first - start) // columns), 0)
        below = min((last - start) // columns, leaf.size // columns)
        if below > above:
          yield Rows(start + above * columns - first, below - above, columns)
      start += leaf.size

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
    """Returns each server's message, what is remembered, and if all is finite.

    Statistics need not be: they are checked where they are used.  What is kept
    is not scaled: the next gradient may have another scale, a power of two.
    """
    messages, after = [], []
    for codec, state, (gradient, stats) in zip(
      self._codecs[stage],
      states,
      self._cut(payload.gradient, payload.stats),
      strict=True,
    ):
      message, state = codec.encode(scale_residual(state, scale), gradient)
      messages.append((message, _encoded(self.wire, stats)))
      after.append(scale_residual(state, 1 / scale))
    # The largest is NaN if one of them is.
    leaves = jax.tree.leaves(payload.gradient)
    if self.wire.push.overflows:
      sent = jax.tree.leaves([pushed for pushed, _ in messages])
      leaves = [leaf for leaf in sent if jnp.issubdtype(leaf, jnp.floating)]
    peaks = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
    return messages, after, jnp.isfinite(jnp.array(peaks)).all()

  def _pulled(self, messages: Sequence[Message]) -> tuple[Any, Any]:
    """Returns parameters and statistics, trees, from all servers' messages."""
    return self._joined(
      [
        (
          self.wire.pull.decode(vector, size).vector,
          self.wire.stats.decode(stats, rest).vector if rest else (),
        )
        for (vector, stats), (size, rest) in zip(
          messages, self.sizes, strict=True
        )
      ]
    )

  def _joined(self, shares: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Returns trees from the vectors of all servers, or from payloads."""
    params = [params for params, *_ in shares]
    stats = [stats for _, stats, *_ in shares]
    return (
      _unflat(_flat(params), self.params),
      _unflat(_flat(stats), self._stats),
    )

  def _cut(self, params: Any, stats: Any) -> list[tuple[jax.Array, Any]]:
    """Returns each server's vectors of two trees."""
    params_P, stats_S = _flat(params), _flat(stats)
    return [
      (
        params_P[first : first + size],
        stats_S[second : second + rest] if rest else (),
      )
      for (first, second), (size, rest) in zip(
        self._starts, self.sizes, strict=True
      )
    ]


def share(
  states: Sequence[Any], sizes: Sequence[tuple[int, int]], index: int
) -> Any:
  """Returns one server's state, from states of perhaps another number of them.

  Args:
    states: Of all servers; vectors are shares of parameters or of statistics.
    sizes: Elements of both in each share of today.
    index: Which share is wanted.
  """
  cuts = {}
  for kind in zip(*sizes, strict=True):
    ends = np.cumsum(kind).tolist()
    cuts[ends[-1]] = slice(ends[index] - kind[index], ends[index])

  def cut(*leaves: Any) -> Any:
    if not np.ndim(leaves[0]):
      return leaves[0]
    whole = jnp.concatenate(leaves)
    return whole[cuts[len(whole)]]

  return jax.tree.map(cut, *states)


def views(message: Message) -> list[np.ndarray]:
  """Returns the bytes of a message, uint8 [n] for each array that has any."""
  arrays = map(np.asarray, jax.tree.leaves(message))
  return [array.reshape(-1).view(np.uint8) for array in arrays if array.size]


def _elements(tree: Any) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _size_bytes(message: Message) -> int:
  leaves = jax.tree.leaves(message)
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


class _Layout:
  """Where the arrays of a message are among its bytes."""

  def __init__(self, like: Message):
    """Lays arrays like these end to end."""
    leaves, self._structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size * leaf.dtype.itemsize for leaf in leaves])
    self._parts = [
      (slice(start, end), leaf.dtype, leaf.shape)
      for start, end, leaf in zip([0, *ends[:-1]], ends, leaves, strict=True)
    ]

  def __call__(self, sent: np.ndarray) -> Message:
    """Returns the arrays of a message, in the place of its bytes."""
    return jax.tree.unflatten(
      self._structure,
      [
        sent[part].view(dtype).reshape(shape)
        for part, dtype, shape in self._parts
      ],
    )


def _encoded(wire: Wire, stats: Any) -> Message:
  return wire.stats.encode(State(), stats)[0] if len(stats) else ()


def _flat(tree: Any) -> jax.Array:
  leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
  if len(leaves) == 1:
    return leaves[0]  # Without a copy.
  # XLA's concatenation of large arrays is many times slower on CPUs.
  dtype = leaves[0].dtype if leaves else np.float32
  flat_N, start = jnp.zeros(sum(leaf.size for leaf in leaves), dtype), 0
  for leaf in leaves:
    flat_N = jax.lax.dynamic_update_slice(flat_N, leaf, (start,))
    start += leaf.size
  return flat_N


def _unflat(flat_N: jax.Array, like: Any) -> Any:
  leaves, structure = jax.tree.flatten(like)
  ends = np.cumsum([leaf.size for leaf in leaves])
  return jax.tree.unflatten(
    structure,
    [
      flat_N[end - leaf.size : end].reshape(leaf.shape)
      for end, leaf in zip(ends, leaves, strict=True)
    ],
  )
