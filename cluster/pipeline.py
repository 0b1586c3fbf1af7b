"""A server's share in pieces that are summed and served one by one.

For pipelined BSP: a piece becomes the next version as soon as all workers of
the superstep have sent it, and travels back while they send what follows.  If a
worker dies, the pieces that it had sent count, and the others are without it;
so do pieces if a checkpoint is made in the middle of a superstep.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cluster.gradient import Payload
from cluster.layout import even, share
from cluster.server import Server
from cluster.servers import Key

PIECES = 32
_AHEAD = 4  # Pieces that a worker may have sent before the slowest one.


class _Piece:
  """One piece.

  Attributes:
    server: Holds it.
    size: Elements of parameters and of statistics.
    total: Sum of what the workers `got` have sent, float32.
    examples: Of those.
    vector: Of the newest version, bytes as they travel.
  """

  def __init__(self, server: Server, size: tuple[int, int]):
    self.server = server
    self.size = size
    self.total: np.ndarray | None = None
    self.got: set[Key] = set()
    self.examples = 0
    self.vector: np.ndarray = np.empty(0, np.uint8)


class Pipeline:
  """Has the methods of a `Server` that a shard uses, and those of pieces.

  Attributes:
    version: Updates that the lead has ordered.
  """

  def __init__(
    self,
    make_server: Callable[[Any, Any], Server],
    params: jax.Array,
    stats: Any,
    *,
    dtype: np.dtype,
  ):
    """Cuts the share into pieces.

    Args:
      make_server: Makes the server of parameters and statistics.
      params: Float32 vector.
      stats: The same; () if there are none.
      dtype: Of what travels.
    """
    self.version = 0
    self._dtype = dtype
    self._sizes = _sizes(len(params), len(stats))
    self._pieces = []
    start, begin = 0, 0
    for size, rest in self._sizes:
      server = make_server(
        params[start : start + size] if size else (),
        stats[begin : begin + rest] if rest else (),
      )
      self._pieces.append(_Piece(server, (size, rest)))
      start, begin = start + size, begin + rest
    self._expected: dict[Key, int] = {}
    self._made = 0  # Pieces of this superstep that are complete.
    self._changed = threading.Condition()
    self._vector = jax.jit(
      lambda *parts: jnp.concatenate(parts).astype(self._dtype)
    )
    for piece in self._pieces:
      self._renew(piece)

  def expect(self, examples: Mapping[Key, int]) -> None:
    """Starts a superstep of these workers, with their examples."""
    with self._changed:
      self._expected = dict(examples)
      self._made = 0

  def take(self, key: Key, number: int, chunk: np.ndarray) -> None:
    """Sums a worker's piece, uint8, which may complete it.

    It lets the others catch up first: who is not read from sends no more, and
    leaves the links to them.
    """
    piece = self._pieces[number]
    with self._changed:
      self._changed.wait_for(
        lambda: number < self._made + _AHEAD or key not in self._expected
      )
      if key not in self._expected:
        return
      sent = chunk.view(self._dtype)
      if piece.total is None:
        piece.total = sent.astype(np.float32)
      else:
        piece.total += sent
      piece.got.add(key)
      piece.examples += self._expected[key]
      self._advance(piece)

  def leave(self, key: Key) -> None:
    """Expects a worker no more, which may complete pieces."""
    with self._changed:
      if self._expected.pop(key, None) is not None:
        for piece in self._pieces:
          self._advance(piece)
        self._changed.notify_all()

  def served(self, key: Key) -> Iterator[np.ndarray]:
    """Returns the next version of each piece, uint8, once it is there.

    It ends early if the worker leaves.
    """
    with self._changed:
      before = [piece.server.version for piece in self._pieces]
    return self._after(before, key)

  def _after(self, before: list[int], key: Key) -> Iterator[np.ndarray]:
    for piece, version in zip(self._pieces, before, strict=True):
      with self._changed:
        self._changed.wait_for(
          lambda p=piece, v=version: (
            p.server.version > v or key not in self._expected
          )
        )
        if key not in self._expected:
          return
      yield piece.vector

  def pieces(self) -> list[int]:
    """Returns how many elements each piece has."""
    return [sum(size) for size in self._sizes]

  def vector(self) -> np.ndarray:
    """Returns the whole share as it travels, uint8."""
    return np.concatenate([piece.vector for piece in self._pieces])

  def warm_up(self) -> None:
    """Compiles everything that pieces need."""
    for piece in self._pieces:
      piece.server.warm_up()
      self._renew(piece)

  def add(self, update: int, payload: None, examples: int) -> None:
    """Nothing: it is summed already."""

  def commit(self, update: int) -> None:
    """Counts an update that the pieces have made already."""
    self.version += 1

  def state(self) -> Any:
    """Returns what a server of the whole share would return."""
    with self._changed:
      states = [piece.server.state() for piece in self._pieces]
    return jax.tree.map(_joined, *states) | {'version': self.version}

  def restore(self, state: Any) -> None:
    """Goes back to where `state` was taken, whoever's it was."""
    self.version = state['version']
    for number, piece in enumerate(self._pieces):
      piece.server.restore(share([state], self._sizes, number))
      self._renew(piece)

  @property
  def examples(self) -> int:
    """Examples in the updates."""
    return self._pieces[0].server.examples

  @property
  def params(self) -> jax.Array:
    """The share's parameters, a vector."""
    return jnp.concatenate([p.server.params for p in self._pieces if p.size[0]])

  @property
  def stats(self) -> Any:
    """The share's statistics, a vector; () if there are none."""
    stats = [p.server.stats for p in self._pieces if p.size[1]]
    return jnp.concatenate(stats) if stats else ()

  def _advance(self, piece: _Piece) -> None:
    """Makes the next version of a piece if all have sent theirs."""
    if piece.total is None or not piece.got.issuperset(self._expected):
      return
    size, rest = piece.size
    payload = Payload(
      jnp.array(piece.total[:size]) if size else (),
      jnp.array(piece.total[size:]) if rest else (),
    )
    piece.server.add(0, payload, piece.examples)
    piece.server.commit(0)
    piece.total, piece.examples = None, 0
    piece.got.clear()
    self._made += 1
    self._renew(piece)
    self._changed.notify_all()

  def _renew(self, piece: _Piece) -> None:
    if piece.server.params is None:  # Nothing is learned.
      size_bytes = sum(piece.size) * self._dtype.itemsize
      piece.vector = np.zeros(size_bytes, np.uint8)
      return
    parts = [
      part
      for part, size in zip(
        (piece.server.params, piece.server.stats), piece.size, strict=True
      )
      if size
    ]
    piece.vector = np.asarray(self._vector(*parts)).view(np.uint8)


def _sizes(params: int, stats: int) -> list[tuple[int, int]]:
  """Returns how many elements of each are in the pieces, in order."""
  sizes = []
  for size in even(params + stats, min(PIECES, params + stats)):
    here = min(size, params)
    params -= here
    sizes.append((here, size - here))
  return sizes


def _joined(*leaves: Any) -> Any:
  return jnp.concatenate(leaves) if np.ndim(leaves[0]) else leaves[0]
