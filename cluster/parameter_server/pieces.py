"""A server's share in pieces that are summed and sent back one by one.

On pipelined routes a piece is sent back as soon as all workers of the superstep
have pushed it, while they push the next ones.  The server is then ahead of the
coordinator, which alone decides which pushes count: those that all servers have
received whole.  Every server therefore keeps the last version and the pushes
until the coordinator commits.

If a worker is lost whose push does not count, the pieces with a part of it are
void: they are summed again without it, and the release sends them again, as a
whole.  Thus no example is applied in part, or on some servers only.  A
checkpoint in the middle of a superstep is that of a server without pieces: the
last version, and the sums of the pushes that count.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cluster.network import memory
from cluster.parameter_server.store import Key
from learning import warm_up
from learning.layout import reshard, split_evenly
from learning.learning import Learner
from learning.shard_codec import byte_views
from wire.codec import Payload, State, Wire

_ITEM = np.dtype(np.float32).itemsize


class _Piece:
  """A piece of a server's share.

  Attributes:
    learner: The version that the coordinator has committed last.
    size: Number of elements.
    pushes: Pushes of the superstep's workers, float32 [size].
    ahead: `learner` after the update by `pushes`; None until all are there.
    step: Superstep that has made `sent`.
    sent: Newest version, encoded, uint8 [n].
  """

  def __init__(self, learner: Learner, size: int):
    self.learner = learner
    self.size = size
    self.pushes: dict[Key, np.ndarray] = {}
    self.ahead: Learner | None = None
    self.step = 0
    self.sent: np.ndarray = np.empty(0, np.uint8)


class Pieces:
  """A share in pieces, with the methods of a Learner that a server uses.

  All methods are called in one thread.

  Attributes:
    sizes: Number of elements of each piece.
    stats: Always empty: pipelined servers hold no running statistics.
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
    """Cuts a server's share into pieces.

    Args:
      make_learner: Returns a learner of parameters and statistics.
      params: Parameters of the share, float32 [n].
      wire: Elementwise codecs of pushes and pulls.
      count: Number of pieces, if the share has as many elements.
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
    # Examples, weights and loss scales of the superstep's workers.
    self._examples: dict[Key, int] = {}
    self._weights: dict[Key, float] = {}
    self._scales: dict[Key, float] = {}
    self._expected: set[Key] = set()  # Workers of the superstep that live.
    self._counted: set[Key] = set()  # Workers whose push was added to an
    self._update = 0  # update of this number.
    self._void = False  # Whether a piece was sent back and then undone.
    self._encode = jax.jit(lambda params: wire.pull.encode(State(), params)[0])
    one = jax.ShapeDtypeStruct((1,), jnp.float32)
    pushed = jax.eval_shape(
      lambda vector: wire.push.encode(State(), vector)[0], one
    )
    self._dtype = pushed.dtype  # Dtype of encoded pushes.
    for piece in self._pieces:
      self._renew(piece)

  def piece_bytes(self) -> list[int]:
    """Returns the bytes of each piece of a push."""
    return [self._wire.push.size_bytes(size) for size in self.sizes]

  def expect(self, released: Mapping[Key, tuple[int, float]]) -> bool:
    """Starts a superstep.

    Args:
      released: Number of examples and loss scale of each worker.

    Returns:
      Whether the pieces that the superstep before has sent back are valid.
    """
    for piece in self._pieces:  # If no push counted.
      self._undo(piece)
      piece.pushes = {}
    valid, self._void = not self._void, False
    self._step += 1
    self._examples = {key: count for key, (count, _) in released.items()}
    self._weights = {}
    self._scales = {key: scale for key, (_, scale) in released.items()}
    self._expected = set(released)
    return valid

  def weigh(self, key: Key, weight: float) -> None:
    """Sets the weight of a worker's push, in examples, before its pieces."""
    self._weights[key] = weight

  def void(self, key: Key) -> None:
    """Excludes a worker's push from updates: its pieces are not finite."""
    self._examples[key] = 0

  def take(self, key: Key, number: int, chunk: np.ndarray) -> bool:
    """Adds a worker's part of a piece.

    Args:
      key: The worker.
      number: Number of the piece.
      chunk: Encoded part, uint8 [n]; it must not change afterwards.

    Returns:
      Whether the piece is complete.
    """
    if key not in self._expected:
      return False
    piece = self._pieces[number]
    sent = self._wire.push.decode(chunk.view(self._dtype), piece.size).vector
    scale = self._scales[key]
    piece.pushes[key] = sent if scale == 1 else sent / np.float32(scale)
    self._advance(piece)
    return piece.ahead is not None

  def leave(self, key: Key) -> None:
    """Removes a worker from the superstep, which may complete pieces.

    Its push is dropped unless it counts.
    """
    if key not in self._expected:
      return
    self._expected.remove(key)
    for piece in self._pieces:
      if key not in self._counted and piece.pushes.pop(key, None) is not None:
        self._undo(piece)
      self._advance(piece)

  def complete_from(self, number: int) -> Iterator[np.ndarray]:
    """Yields the next version of pieces, uint8 [n], in order.

    Ends before the first piece that not all workers of the superstep have
    pushed.

    Args:
      number: Number of the first piece.
    """
    for piece in self._pieces[number:]:
      if piece.step < self._step:
        return
      yield piece.sent

  def outgoing(self) -> list[np.ndarray]:
    """Returns the pieces of the current version, encoded, uint8 [n] each."""
    return [piece.sent for piece in self._pieces]

  def warm_up(self) -> None:
    """Compiles the programs of all pieces."""
    for piece in self._pieces:
      payload = Payload(piece.learner.params, ())
      warm_up.apply_updates(piece.learner, payload, adds=True)
      self._renew(piece)

  def add(self, update: int, key: Key) -> None:
    """Adds a worker's push, all of whose pieces are here, to an update.

    `take` has divided its pieces by the loss scale.
    """
    self._counted.add(key)
    self._update = update

  def commit(self, update: int) -> None:
    """Makes the version that includes an update the current one."""
    for piece in self._pieces:
      if piece.ahead is None:  # The sum comes from a checkpoint.
        piece.learner.commit(update)
        self._renew(piece)
      else:
        piece.learner, piece.ahead = piece.ahead, None
      piece.pushes = {}
    self._counted.clear()

  def state(self) -> Any:
    """Returns the state that a learner of the whole share would have."""
    states = [self._add_counted(piece).state() for piece in self._pieces]
    return jax.tree.map(_joined, *states)

  def restore(self, state: Any) -> None:
    """Restores a state of a learner of the share, with or without pieces.

    A superstep that was under way is void.
    """
    self._expected, self._counted = set(), set()
    sizes = [(size, 0) for size in self.sizes]
    for number, piece in enumerate(self._pieces):
      piece.pushes, piece.ahead = {}, None
      piece.learner.restore(reshard({0: state}, 1, sizes, number))
      self._renew(piece)

  @property
  def version(self) -> int:
    """Number of updates that the coordinator has committed."""
    return self._pieces[0].learner.version

  @property
  def examples(self) -> int:
    """Number of examples in applied updates."""
    return self._pieces[0].learner.examples

  @property
  def params(self) -> jax.Array:
    """Parameters of the share, float32 [n]."""
    return jnp.concatenate([piece.learner.params for piece in self._pieces])

  def _advance(self, piece: _Piece) -> None:
    """Computes the next version of a piece if all workers have pushed it."""
    there = piece.pushes.keys()
    if piece.ahead or not there or not there >= self._expected:
      return
    piece.ahead = piece.learner.fork()
    self._add(piece.ahead, 0, piece, there)
    piece.ahead.commit(0)
    piece.step = self._step
    self._renew(piece)

  def _undo(self, piece: _Piece) -> None:
    """Returns a piece that is ahead to its last version."""
    if piece.ahead:
      piece.ahead = None
      piece.step = self._step - 1
      self._renew(piece)
      self._void = True

  def _add_counted(self, piece: _Piece) -> Learner:
    """Returns the last version's learner with the counted pushes added."""
    if not self._counted:
      return piece.learner
    learner = piece.learner.fork()
    self._add(learner, self._update, piece, self._counted)
    return learner

  def _add(
    self, learner: Learner, update: int, piece: _Piece, keys: Iterable[Key]
  ) -> None:
    """Adds the sum of pushes to an update, in the order of the workers."""
    keys = sorted(key for key in keys if self._examples[key])
    if not keys:  # No push is finite.
      return
    total = memory.aligned(piece.size * _ITEM).view(np.float32)
    total[:] = piece.pushes[keys[0]]
    for key in keys[1:]:
      total += piece.pushes[key]
    payload = Payload(jax.device_put(total, may_alias=True), ())
    learner.add(
      update,
      payload,
      sum(self._examples[key] for key in keys),
      weight=sum(self._weights[key] for key in keys),
      pushes=len(keys),
    )

  def _renew(self, piece: _Piece) -> None:
    params = (piece.ahead or piece.learner).params
    (piece.sent,) = byte_views(self._encode(params))


def _joined(*leaves: Any) -> Any:
  return jnp.concatenate(leaves) if np.ndim(leaves[0]) else leaves[0]
