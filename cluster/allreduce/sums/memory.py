"""What a worker of sums by conversations remembers, by version of the learner.

An iteration that fails is repeated by those who live, from what they remembered
before it.  If others have heard all of it and this worker has not, it has still
sent its part, and goes on without.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from learning import placement
from learning.layout import Layout
from wire.codec import State, Summed
from wire.talks import Talks


class Nothing:
  """Of who remembers nothing."""

  keeps = False
  common: Any = ()

  def forget(self) -> None:
    """There is nothing."""

  def recall(self, version: int, common: Any) -> None:
    """There is nothing."""

  def note(self, version: int) -> None:
    """There is nothing."""

  def saved(self) -> None:
    """Returns None: there is nothing."""

  def restore(self, version: int, saved: None) -> None:
    """There is nothing."""


class Memory:
  """Of one worker.

  Attributes:
    keeps: True.
    talks: The conversations.
    layout: Of the vectors.
    version: Of the learner, at which it is known.
    total: What all workers together keep; None if nobody has asked.
  """

  keeps = True

  def __init__(
    self,
    talks: Talks,
    layout: Layout,
    index: int,
    placed: Callable[[Any], Any] = lambda tree: tree,
  ):
    """Remembers nothing.

    Args:
      talks: The conversations.
      layout: Of the vectors.
      index: Which worker.
      placed: Returns a tree with its arrays where vectors will be.
    """
    self.talks, self.layout = talks, layout
    self._index, self._placed = index, placed
    self._whole = jax.jit(layout.flatten)
    self.forget()

  def forget(self) -> None:
    """Begins anew, with another life of the worker."""
    self.version, self._state = 0, self.fresh()
    # At the next version, if others have heard what this worker has not.
    self._unheard: State | None = None
    self.total: np.ndarray | None = None

  def fresh(self) -> State:
    """Returns what this worker begins with."""
    with self.place():
      return self._placed(self.talks.init(self._index))

  def place(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context of the device of the codec: the CPU if hosts sum."""
    if self.talks.hosted:
      return placement.on_cpu()
    return contextlib.nullcontext()

  def warm_up(self, vector: Any) -> Iterator[Summed]:
    """Compiles all conversations; yields what comes of each."""
    talks = self.talks.warm_up(vector)
    while True:
      with self.place():
        summed = next(talks, None)
      if summed is None:
        return
      yield summed

  @property
  def common(self) -> Any:
    """What is the same on all workers."""
    return self._state.common

  def recall(self, version: int, common: Any) -> None:
    """Goes on at a version.

    Args:
      version: Of the learner.
      common: What the one has from whom the learner has come.
    """
    if version != self.version:
      sent = self._unheard if version == self.version + 1 else None
      self._state = sent or self.fresh()
      self.version = version
    self._state = self._state._replace(common=self._placed(common))
    self._unheard = self.total = None

  def free(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the first vector in which nothing lies that is remembered.

    It is for an iteration that begins: that of before has been heard by all, or
    by nobody.
    """
    self._unheard = None
    leaves = jax.tree.leaves(self._state.kept)
    mine = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
    return next(
      vector
      for vector in vectors
      if not any(np.may_share_memory(leaf, vector) for leaf in mine)
    )

  def talk(self, vector: Any, **how: Any) -> 'Talking':
    """Begins a conversation; arguments are those of `Talks.talk`."""
    return Talking(self, vector, **how)

  def sent(self, state: State) -> None:
    """Notes what is remembered if the last that it has said is heard."""
    self._unheard = state

  def note(self, version: int, state: State | None = None) -> None:
    """Remembers what it is at the next version; None for the same."""
    self._state, self.version = state or self._state, version
    self._unheard = self.total = None

  @property
  def state(self) -> State:
    """What it is at this version."""
    return self._state

  def kept(self) -> np.ndarray:
    """Returns all that is kept, end to end, float32."""
    leaves = jax.tree.leaves(self._state.kept)
    return np.concatenate([np.asarray(leaf) for leaf in leaves])

  def saved(self) -> dict[str, Any] | None:
    """Returns what a checkpoint has of all workers; None if it is nothing."""
    if self.total is None:
      return None
    leaves, tree = jax.tree.flatten(self._state.kept)
    parts = np.split(self.total, len(leaves))
    kept = jax.tree.unflatten(
      tree, [self.layout.unflatten(part) for part in parts]
    )
    return {'kept': kept, 'common': self._state.common}

  def restore(self, version: int, saved: dict[str, Any] | None) -> None:
    """Takes over what all have kept, of a checkpoint."""
    self.forget()
    self.version = version
    if saved is not None:
      with self.place():
        kept = jax.tree.map(
          lambda _, tree: self._whole(tree), self._state.kept, saved['kept']
        )
      state = self._state._replace(kept=kept, common=saved['common'])
      self._state = self._placed(state)


class Talking:
  """A worker's part in one conversation.

  Attributes:
    summed: What has come of it, once all has been heard.
  """

  def __init__(self, memory: Memory, vector: Any, *, stage: int, **how: Any):
    """Begins; arguments are those of `Talks.talk`."""
    self._memory = memory
    self._talk = memory.talks.talk(memory.state, vector, stage=stage, **how)
    self._left = len(memory.talks.said[stage])
    self._after: State | None = None
    self.summed: Summed | None = None

  def begin(self) -> jax.Array:
    """Returns what is said first, float32 [n]."""
    with self._memory.place():
      return next(self._talk)

  @property
  def last(self) -> bool:
    """Whether nothing will be said after this."""
    return self._left == 1

  def hear(self, heard: Any) -> jax.Array | None:
    """Takes in the sum; returns what is said next, None at the end."""
    self._left -= 1
    with self._memory.place():
      try:
        return self._talk.send(heard)
      except StopIteration as end:
        # What it has heard may be written over from here on.
        self.summed, self._after = jax.block_until_ready(end.value)
        return None

  def unheard(self, heard: Any) -> None:
    """The last was said, and its sum will not be heard.

    Args:
      heard: Of the shape of the sum: what is kept does not depend on it.
    """
    self.hear(heard)
    if self._after is not None:
      self._memory.sent(self._after)

  def end(self, version: int) -> None:
    """All have heard all of it, and the learner is at this version."""
    self._memory.note(version, self._after)
