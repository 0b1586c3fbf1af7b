"""A server's share in pieces that are summed and served one by one.

For pipelined routes: a piece is served as soon as all workers of the superstep
have sent it, and travels back while they send what follows.  That is ahead of
the coordinator, which alone says what counts: a push that all servers have whole.  So
every server keeps the last version, and the pushes, until the coordinator commits.
If a worker is lost whose push does not count, pieces of which it was a part are
void: they are made again of the others' pushes, and the release sends them
anew, whole.  Thus no example is applied in part, or on some servers only, and a
checkpoint in the middle of a superstep is that of a server without pieces: the
last version, and the sums of the pushes that count.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cluster.network import memory
from cluster.parameter_server.servers import Key
from learning.layout import reshard, split_evenly
from learning.learning import Learner
from learning.shard_codec import byte_views
from wire.codec import Payload, Wire

_ITEM = np.dtype(np.float32).itemsize


class _Piece:
  """One piece.

  Attributes:
    learner: Holds it as the coordinator has last committed it.
    size: Elements.
    pushes: What workers of the superstep have sent, float32 [size].
    ahead: `learner` after the update of `pushes`; None until they are all.
    step: The superstep after which it is as `sent` has it.
    sent: The newest version, bytes as they travel.
  """

  def __init__(self, learner: Learner, size: int):
    self.learner = learner
    self.size = size
    self.pushes: dict[Key, np.ndarray] = {}
    self.ahead: Learner | None = None
    self.step = 0
    self.sent: np.ndarray = np.empty(0, np.uint8)


class Pieces:
  """Has the methods of a Learner that a server uses, and those of pieces.

  Attributes:
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
    count: int,
  ):
    """Cuts the share into pieces.

    Args:
      make_learner: Makes the learner of parameters and statistics.
      params: Float32 vector.
      wire: Whose codecs treat each number by itself.
      count: How many pieces, as far as there are so many elements.
    """
    self._wire = wire
    self.sizes = split_evenly(len(params), min(count, len(params)))
    first = make_learner(params[: self.sizes[0]], ())
    self._pieces = [_Piece(first, self.sizes[0])]
    ends = np.cumsum(self.sizes)
    for size, end in list(zip(self.sizes, ends, strict=True))[1:]:
      learner = first.twin(params[end - size : end], ())
      self._pieces.append(_Piece(learner, size))
    self._step = 0
    # Of the superstep's workers, and what their pushes are to be divided by.
    self._examples: dict[Key, int] = {}
    self._scales: dict[Key, float] = {}
    self._expected: set[Key] = set()  # Of them, those that live.
    self._counted: set[Key] = set()  # Whose push the coordinator has added,
    self._update = 0  # to this update.
    self._void = False  # Whether what was served has been made again.
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

  def expect(self, released: Mapping[Key, tuple[int, float]]) -> bool:
    """Starts a superstep of these workers, with their examples and scales.

    Returns:
      Whether the pieces that were served in the one before are the version.
    """
    with self._changed:
      for piece in self._pieces:  # If nobody's push counted.
        self._undo(piece)
        piece.pushes = {}
      valid, self._void = not self._void, False
      self._step += 1
      self._examples = {key: count for key, (count, _) in released.items()}
      self._scales = {key: scale for key, (_, scale) in released.items()}
      self._expected = set(released)
      return valid

  def void(self, key: Key) -> None:
    """Takes a worker's pieces, from now on, for what is not to be applied."""
    with self._changed:
      self._examples[key] = 0

  def take(self, key: Key, number: int, chunk: np.ndarray) -> None:
    """Takes a worker's piece, uint8, which may complete it.

    Args:
      key: The worker.
      number: Of the piece.
      chunk: Is kept, so it must not change.
    """
    piece = self._pieces[number]
    sent = self._wire.push.decode(chunk.view(self._dtype), piece.size).vector
    with self._changed:
      if key in self._expected:
        scale = self._scales[key]
        piece.pushes[key] = sent if scale == 1 else sent / np.float32(scale)
        self._advance(piece)

  def leave(self, key: Key) -> None:
    """Expects a worker no more, which may complete pieces.

    Its push is forgotten unless it counts.
    """
    with self._changed:
      if key not in self._expected:
        return
      self._expected.remove(key)
      for piece in self._pieces:
        if key not in self._counted and piece.pushes.pop(key, None) is not None:
          self._undo(piece)
        self._advance(piece)
      self._changed.notify_all()

  def served(self, key: Key) -> Iterator[np.ndarray]:
    """Returns the next version of each piece, uint8, once it is there.

    It ends early if the worker leaves.
    """
    return self._after(self._step, key)

  def _after(self, step: int, key: Key) -> Iterator[np.ndarray]:
    for piece in self._pieces:
      with self._changed:
        self._changed.wait_for(
          lambda p=piece: p.step >= step or key not in self._expected
        )
        if key not in self._expected:
          return
      yield piece.sent

  def outgoing(self) -> list[np.ndarray]:
    """Returns the whole share as it travels, uint8 [n] each."""
    return [piece.sent for piece in self._pieces]

  def warm_up(self, like: Payload | None = None) -> None:
    """Compiles everything that pieces need, of all numbers."""
    del like
    for piece in self._pieces:
      piece.learner.warm_up()
      self._renew(piece)

  def add(
    self, update: int, payload: Key, examples: int, *, scale: float
  ) -> None:
    """Counts the push of a worker, of which all pieces are here."""
    del scale  # They are divided by it.
    with self._changed:
      self._counted.add(payload)
      self._update = update

  def commit(self, update: int) -> None:
    """Makes the version that is ahead the version."""
    with self._changed:
      for piece in self._pieces:
        if piece.ahead is None:  # The sum is of a checkpoint.
          piece.learner.commit(update)
          self._renew(piece)
        else:
          piece.learner, piece.ahead = piece.ahead, None
        piece.pushes = {}
      self._counted.clear()

  def state(self) -> Any:
    """Returns what a learner of the whole share would return."""
    with self._changed:
      states = [self._summed(piece).state() for piece in self._pieces]
    return jax.tree.map(_joined, *states)

  def restore(self, state: Any) -> None:
    """Goes back to where `state` was taken, whoever's it was."""
    sizes = [(size, 0) for size in self.sizes]
    for number, piece in enumerate(self._pieces):
      piece.learner.restore(reshard([state], sizes, number))
      self._renew(piece)

  @property
  def version(self) -> int:
    """Updates that the coordinator has ordered."""
    return self._pieces[0].learner.version

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
    there = piece.pushes.keys()
    if piece.ahead or not there or not there >= self._expected:
      return
    piece.ahead = piece.learner.fork()
    self._add(piece.ahead, 0, piece, there)
    piece.ahead.commit(0)
    piece.step = self._step
    self._renew(piece)
    self._changed.notify_all()

  def _undo(self, piece: _Piece) -> None:
    """Goes back to the last version of a piece, if it is ahead."""
    if piece.ahead:
      piece.ahead = None
      piece.step = self._step - 1
      self._renew(piece)
      self._void = True

  def _summed(self, piece: _Piece) -> Learner:
    """Returns the last version's learner, with the pushes that count added."""
    if not self._counted:
      return piece.learner
    learner = piece.learner.fork()
    self._add(learner, self._update, piece, self._counted)
    return learner

  def _add(
    self, learner: Learner, update: int, piece: _Piece, keys: Iterable[Key]
  ) -> None:
    """Adds the sum of pushes, always in the same order, to an update."""
    keys = sorted(key for key in keys if self._examples[key])
    if not keys:  # Nothing is finite.
      return
    total = memory.aligned(piece.size * _ITEM).view(np.float32)
    total[:] = piece.pushes[keys[0]]
    for key in keys[1:]:
      total += piece.pushes[key]
    payload = Payload(jax.device_put(total, may_alias=True), ())
    examples = sum(self._examples[key] for key in keys)
    learner.add(update, payload, examples, pushes=len(keys))

  def _renew(self, piece: _Piece) -> None:
    params = (piece.ahead or piece.learner).params
    (piece.sent,) = byte_views(self._encode(params))


def _joined(*leaves: Any) -> Any:
  return jnp.concatenate(leaves) if np.ndim(leaves[0]) else leaves[0]
