"""Sums among workers that take a conversation: codecs with rounds, compiled.

In each round a worker says an array, and hears the sum of what all have said.
All speak of vectors of one length, and get the same sum in the end.  On hosts
a codec may do in NumPy what is compiled else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wire.codec import Codec, Room, Rows, State, Summed, Talk, Wire, scaled


class Talks:
  """The conversations of a run.

  Attributes:
    size: Numbers of each vector.
    said: How many numbers each round says, by the stage of the wire.
    halves: How many of these travel as what, in the last round: the first ones.
    overflows: Whether finite numbers may become infinite on their way.
    most: Rounds of the stage that has most of them.
    codecs: Of vectors like these, stage by stage.
    early: What of the first round can travel early, stage by stage.
    init: Compiled: what a worker remembers at first, of the worker.
  """

  def __init__(
    self, wire: Wire, size: int, rows: Sequence[Rows], *, hosted: bool
  ):
    """Compiles nothing yet.

    Args:
      wire: Its codecs of gradients have rounds.
      size: Numbers of each vector.
      rows: The matrices in it.
      hosted: Whether hosts sum, and not XLA.

    Raises:
      ValueError: If they do not fit the codecs; names a setting of the wire.
    """
    self.size = size
    self.codecs = [_shaped(codec, rows) for codec in wire.pushes]
    self.init = jax.jit(lambda worker: self.codecs[-1].init(size, worker))
    self.said = [self._said(codec) for codec in self.codecs]
    self.halves = [self._halves(codec) for codec in self.codecs]
    self.overflows = any(codec.overflows for codec in self.codecs)
    self.most = max(map(len, self.said))
    self.early = [
      codec.early if codec.early and codec.early.count(size) else None
      for codec in self.codecs
    ]
    self.hosted = hosted
    self._rounds: list[list[Callable[..., Any]]] = [
      [*map(jax.jit, rounds), _Last(last, size)]
      for *rounds, last in (codec.rounds for codec in self.codecs)
    ]
    self._scaled = jax.jit(scaled)

  def talk(
    self, state: State, vector: Any, *, stage: int, scale: float, room: Room
  ) -> Talk:
    """Returns a conversation: yields arrays, float32 [n], is sent their sums.

    It returns the sum, and what is remembered then.  What the worker keeps of
    its own does not depend on what it hears last.

    Args:
      state: What it remembers.
      vector: Its own, float32 [size]; on hosts an array of NumPy, which may be
        written over and become part of what is remembered.
      stage: Of the wire.
      scale: A power of two, by which the vector is multiplied, as are those of
        all: what is kept is not.
      room: Used again by the next conversation; the sum is in it, on hosts.
    """
    hosted = self.codecs[stage].hosted
    if self.hosted and hosted:
      return hosted(state, vector, scale, room)
    return self._compiled(state, vector, stage, scale)

  def _compiled(
    self, state: State, vector: Any, stage: int, scale: float
  ) -> Talk:
    carried = state if scale == 1 else self._scaled(state, np.float32(scale))
    heard = vector
    *talks, last = self._rounds[stage]
    own = set(map(id, jax.tree.leaves(state)))
    for say in talks:
      said, carried = say(carried, heard)
      heard = yield said
    # JAX hands on what a round has left as it is: the caller's.
    carried = jax.tree.map(
      lambda leaf: jnp.copy(leaf) if id(leaf) in own else leaf, carried
    )
    summed, state = last(carried, heard)
    if scale != 1:
      state = self._scaled(state, np.float32(1 / scale))
    return summed, state

  def size_bytes(self, stage: int) -> list[int]:
    """Returns how long what each round says is."""
    count, dtype = self.halves[stage]
    sizes = [4 * numbers for numbers in self.said[stage]]
    return [*sizes[:-1], sizes[-1] - count * (4 - dtype.itemsize)]

  def together(
    self,
    states: Mapping[int, State],
    vectors: Mapping[int, jax.Array],
    *,
    stage: int,
    scale: float,
  ) -> tuple[Summed, dict[int, State]]:
    """Returns what all get and remember, if all are here; by worker."""
    talks = {
      worker: self.talk(
        states[worker],
        np.array(vector) if self.hosted else vector,
        stage=stage,
        scale=scale,
        room=Room(),
      )
      for worker, vector in sorted(vectors.items())
    }
    said = [next(talk) for talk in talks.values()]
    count, dtype = self.halves[stage]
    for left in reversed(range(len(self.said[stage]))):
      total = np.asarray(said[0])
      for each in said[1:]:
        total = total + np.asarray(each)
      if not left and count:
        total = np.array(total)
        with np.errstate(over='ignore', invalid='ignore'):
          total[:count] = total[:count].astype(dtype)
      said, ends = [], {}
      for worker, talk in talks.items():
        try:
          said.append(talk.send(total))
        except StopIteration as end:
          summed, ends[worker] = end.value
    return summed, ends

  def warm_up(self, vector: jax.Array) -> Iterator[Summed]:
    """Compiles all of it for vectors like this one; yields a sum by stage."""
    for stage in range(len(self.codecs)):
      states = {0: self.init(0)}
      for scale in (1.0, 2.0):  # Of what is remembered, too.
        summed, states = self.together(
          states, {0: vector}, stage=stage, scale=scale
        )
      yield jax.block_until_ready(summed)

  def _halves(self, codec: Codec) -> tuple[int, np.dtype]:
    if codec.halves is None:
      return 0, np.dtype(np.float32)
    return codec.halves.count(self.size), codec.halves.dtype

  def _said(self, codec: Codec) -> list[int]:
    said = []
    carried = jax.eval_shape(lambda: codec.init(self.size, 0))
    heard = jax.ShapeDtypeStruct((self.size,), jnp.float32)
    for say in codec.rounds[:-1]:
      heard, carried = jax.eval_shape(say, carried, heard)
      said.append(heard.size)
    return said


class _Last:
  """The last round, compiled: in the memory of the vectors carried to it.

  A copy of all that is kept would cost more than all else that it does.
  """

  def __init__(self, last: Callable[..., Any], size: int):
    """Takes the round, and the numbers of a vector."""
    self._last, self._size = last, size
    self._run = jax.jit(self._joined, donate_argnums=0, static_argnums=2)

  def __call__(self, carried: Any, heard: Any) -> Any:
    """Returns what the round does; `carried` is of no use afterwards."""
    leaves, tree = jax.tree.flatten(carried)
    whole = tuple(
      leaf.shape == (self._size,) and leaf.dtype == jnp.float32
      for leaf in leaves
    )
    pairs = [*zip(leaves, whole, strict=True)]
    given = [leaf for leaf, is_whole in pairs if is_whole]
    others = [leaf for leaf, is_whole in pairs if not is_whole]
    return self._run(given, others, (tree, whole), heard)

  def _joined(
    self, given: list[Any], others: list[Any], how: Any, heard: Any
  ) -> Any:
    tree, whole = how
    sources = {True: iter(given), False: iter(others)}
    leaves = [next(sources[is_whole]) for is_whole in whole]
    return self._last(jax.tree.unflatten(tree, leaves), heard)


def _shaped(codec: Codec, rows: Sequence[Rows]) -> Codec:
  return codec.shaped(rows) if codec.shaped and rows else codec
