"""A server's share in pieces that are summed and served one by one.

For pipelined routes: a piece becomes the next version as soon as all workers of
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

from cluster.distributed.served.orders import Key
from cluster.transport import memory
from learning.learning import Learner
from wire.codec import Payload, Wire
from wire.flat import PIECES, even, share, views


class _Piece:
  """One piece.

  Attributes:
    learner: Holds it.
    size: Elements.
    total: Sum of what the workers `got` have sent.
    examples: Of those.
    sent: The newest version, bytes as they travel.
  """

  def __init__(self, learner: Learner, size: int):
    self.learner = learner
    self.size = size
    self.total: np.ndarray | None = None
    self.got: set[Key] = set()
    self.examples = 0
    self.sent: np.ndarray = np.empty(0, np.uint8)


class Pieces:
  """Has the methods of a Learner that a server uses, and those of pieces.

  Attributes:
    version: Updates that the lead has ordered.
    sizes: Elements of each piece.
    stats: There are none.
  """

  stats = ()

  def __init__(
    self,
    make_learner: Callable[[Any, Any], Learner],
    params: jax.Array,
    *,
    wire: Wire,
  ):
    """Cuts the share into pieces.

    Args:
      make_learner: Makes the learner of parameters and statistics.
      params: Float32 vector.
      wire: Whose codecs treat each number by itself.
    """
    self.version = 0
    self._wire = wire
    self.sizes = even(len(params), min(PIECES, len(params)))
    first = make_learner(params[: self.sizes[0]], ())
    self._pieces = [_Piece(first, self.sizes[0])]
    ends = np.cumsum(self.sizes)
    for size, end in list(zip(self.sizes, ends, strict=True))[1:]:
      learner = first.twin(params[end - size : end], ())
      self._pieces.append(_Piece(learner, size))
    self._expected: dict[Key, int] = {}
    self._changed = threading.Condition()
    self._encode = jax.jit(lambda params: wire.pull.encode((), params)[0])
    one = jax.ShapeDtypeStruct((1,), jnp.float32)
    pushed = jax.eval_shape(lambda vector: wire.push.encode((), vector)[0], one)
    self._dtype = pushed.dtype  # Of what is pushed.
    for piece in self._pieces:
      self._renew(piece)

  def piece_bytes(self) -> list[int]:
    """Returns how long each piece of a push is."""
    return [self._wire.push.size_bytes(size) for size in self.sizes]

  def expect(self, examples: Mapping[Key, int]) -> None:
    """Starts a superstep of these workers, with their examples."""
    with self._changed:
      self._expected = dict(examples)

  def take(self, key: Key, number: int, chunk: np.ndarray) -> None:
    """Sums a worker's piece, uint8, which may complete it."""
    piece = self._pieces[number]
    with self._changed:
      if key not in self._expected:
        return
      sent = chunk.view(self._dtype)
      sent = self._wire.push.decode(sent, piece.size)
      if piece.total is None:
        total = memory.aligned(sent.nbytes)
        piece.total = total.view(np.float32)
        piece.total[:] = sent
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
      before = [piece.learner.version for piece in self._pieces]
    return self._after(before, key)

  def _after(self, before: list[int], key: Key) -> Iterator[np.ndarray]:
    for piece, version in zip(self._pieces, before, strict=True):
      with self._changed:
        self._changed.wait_for(
          lambda p=piece, v=version: (
            p.learner.version > v or key not in self._expected
          )
        )
        if key not in self._expected:
          return
      yield piece.sent

  def outgoing(self) -> list[np.ndarray]:
    """Returns the whole share as it travels, uint8 [n] each."""
    return [piece.sent for piece in self._pieces]

  def warm_up(self) -> None:
    """Compiles everything that pieces need."""
    for piece in self._pieces:
      piece.learner.warm_up()
      self._renew(piece)

  def add(self, update: int, payload: None, examples: int) -> None:
    """Nothing: it is summed already."""

  def commit(self, update: int) -> None:
    """Counts an update that the pieces have made already."""
    self.version += 1

  def state(self) -> Any:
    """Returns what a learner of the whole share would return."""
    with self._changed:
      states = [piece.learner.state() for piece in self._pieces]
    return jax.tree.map(_joined, *states) | {'version': self.version}

  def restore(self, state: Any) -> None:
    """Goes back to where `state` was taken, whoever's it was."""
    self.version = state['version']
    for number, piece in enumerate(self._pieces):
      sizes = [(size, 0) for size in self.sizes]
      piece.learner.restore(share([state], sizes, number))
      self._renew(piece)

  @property
  def examples(self) -> int:
    """Examples in the updates."""
    return self._pieces[0].learner.examples

  @property
  def params(self) -> jax.Array:
    """The share's parameters, a vector."""
    return jnp.concatenate([piece.learner.params for piece in self._pieces])

  def _advance(self, piece: _Piece) -> None:
    """Makes the next version of a piece if all have sent theirs."""
    if piece.total is None or not piece.got.issuperset(self._expected):
      return
    total = jax.device_put(piece.total, may_alias=True)
    piece.learner.add(0, Payload(total, ()), piece.examples)
    piece.learner.commit(0)
    piece.total, piece.examples = None, 0
    piece.got.clear()
    self._renew(piece)
    self._changed.notify_all()

  def _renew(self, piece: _Piece) -> None:
    (piece.sent,) = views(self._encode(piece.learner.params))


def _joined(*leaves: Any) -> Any:
  return jnp.concatenate(leaves) if np.ndim(leaves[0]) else leaves[0]
