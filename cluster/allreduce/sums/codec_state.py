"""The state of a worker's codec between multi-round allreduces, by version.

A failed iteration is repeated by the members that are alive, from the states
before it.  If other workers have received all sums and this worker has not, its
contribution has still been sent, and it continues with the state after it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from learning import placement
from learning.layout import Layout
from wire.codec import PartialVector, State, Workspace
from wire.multi_round import MultiRoundAllreduce


class NoCodecState:
  """State of a codec without residuals."""

  has_residual = False
  replicated: Any = ()

  def reset(self) -> None:
    """Returns at once: there is no state to reset."""

  def drop_residual(self) -> None:
    """Returns at once: there is no residual."""

  def resume(self, version: int, replicated: Any) -> None:
    """Returns at once: no state depends on the version."""

  def commit(self, version: int) -> None:
    """Returns at once: no state depends on the version."""

  def for_checkpoint(self) -> None:
    """Returns None: a checkpoint stores nothing of such a codec."""

  def restore(self, version: int, saved: None) -> None:
    """Returns at once: a checkpoint holds nothing of it."""


class CodecState:
  """The state of one worker's codec.

  Attributes:
    has_residual: True.
    multi_round: The allreduce that the state belongs to.
    layout: Layout of gradients.
    version: Version of the learner that the state belongs to.
    residual_sum: Sum of all workers' residuals, float32, one after the other;
      None if it has not been collected at this version.
  """

  has_residual = True

  def __init__(
    self,
    multi_round: MultiRoundAllreduce,
    layout: Layout,
    index: int,
    place_arrays: Callable[[Any], Any] = lambda tree: tree,
  ):
    """Creates the state of a worker that has sent nothing.

    Args:
      multi_round: The allreduce.
      layout: Layout of gradients.
      index: Index of the worker.
      place_arrays: Returns a tree with its arrays on the device of gradients.
    """
    self.multi_round, self.layout = multi_round, layout
    self._index, self._place_arrays = index, place_arrays
    self._to_vector = jax.jit(layout.flatten)
    self.reset()

  def reset(self) -> None:
    """Returns to the initial state, at version 0."""
    self.version, self._state = 0, self._first()
    # State of the next version, if others have received all sums of an
    # iteration and this worker has not.
    self._unconfirmed: State | None = None
    self.residual_sum: np.ndarray | None = None

  def device(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which codecs run: on the CPU if hosts reduce."""
    if self.multi_round.uses_numpy:
      return placement.on_cpu()
    return contextlib.nullcontext()

  def warm_up(self, vector: Any) -> Iterator[PartialVector]:
    """Compiles the allreduce; yields a result by stage of the wire."""
    results = self.multi_round.warm_up(vector)
    while True:
      with self.device():
        reduced = next(results, None)
      if reduced is None:
        return
      yield reduced

  @property
  def replicated(self) -> Any:
    """The part of the state that is equal on all workers."""
    return self._state.replicated

  def resume(self, version: int, replicated: Any) -> None:
    """Continues at the version of a learner that was fetched.

    Args:
      version: Version of the learner.
      replicated: Replicated part of the state of the worker that it came from.
    """
    if version != self.version:
      is_next = version == self.version + 1
      self._state = (self._unconfirmed if is_next else None) or self._first()
      self.version = version
    self._state = self._state._replace(
      replicated=self._place_arrays(replicated)
    )
    self._unconfirmed = self.residual_sum = None

  def drop_residual(self) -> None:
    """Sets the residual to zero, at the same version.

    For a worker that has outlived its coordinator: the next one has restored
    the sum of all residuals, so that this one would count twice.
    """
    self._state = self._first()._replace(replicated=self._state.replicated)
    self._unconfirmed = self.residual_sum = None

  def free_vector(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the first vector that shares no memory with the residual.

    Called when a new iteration begins: by then all workers have received the
    sums of the previous iteration, or none has.
    """
    self._unconfirmed = None
    leaves = jax.tree.leaves(self._state.residual)
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
    return next(
      vector
      for vector in vectors
      if not any(np.may_share_memory(leaf, vector) for leaf in arrays)
    )

  def start(
    self, vector: Any, *, stage: int, scale: float, workspace: Workspace
  ) -> 'WorkerRounds':
    """Starts an allreduce of a vector, from the state at this version.

    Args:
      vector: Gradient and statistics of this worker, as
        `MultiRoundAllreduce.start` takes them.
      stage: Index of the wire's codec.
      scale: Loss scale of the gradient.
      workspace: Scratch arrays.
    """
    return WorkerRounds(
      self, vector, stage=stage, scale=scale, workspace=workspace
    )

  def note_unconfirmed(self, state: State) -> None:
    """Stores the next state, in case other workers complete the iteration."""
    self._unconfirmed = state

  def commit(self, version: int, state: State | None = None) -> None:
    """Moves to a version and its state; None if the state is unchanged."""
    self._state, self.version = state or self._state, version
    self._unconfirmed = self.residual_sum = None

  @property
  def state(self) -> State:
    """The state at this version."""
    return self._state

  def flat_residual(self) -> np.ndarray:
    """Returns the arrays of the residual one after the other, float32."""
    leaves = jax.tree.leaves(self._state.residual)
    return np.concatenate([np.asarray(leaf) for leaf in leaves])

  def for_checkpoint(self) -> dict[str, Any] | None:
    """Returns all workers' state for a checkpoint; None if not collected."""
    if self.residual_sum is None:
      return None
    leaves, tree = jax.tree.flatten(self._state.residual)
    parts = np.split(self.residual_sum, len(leaves))
    residual = jax.tree.unflatten(
      tree, [self.layout.unflatten(p) for p in parts]
    )
    return {'residual': residual, 'replicated': self._state.replicated}

  def restore(self, version: int, saved: dict[str, Any] | None) -> None:
    """Replaces this worker's residual by the sum of all workers' residuals.

    Only the worker in the coordinator's process calls this, when a run resumes
    from a checkpoint; the residuals of the other workers start at zero.

    Args:
      version: Version of the learner in the checkpoint, to which the state then
        belongs: `resume` at another version resets the residual.
      saved: Result of `for_checkpoint`, whose replicated part is restored, too;
        None if no residuals had been collected: the state is then reset.
    """
    self.reset()
    self.version = version
    if saved is not None:
      with self.device():
        residual = jax.tree.map(
          lambda _, tree: self._to_vector(tree),
          self._state.residual,
          saved['residual'],
        )
      self._state = self._place_arrays(
        self._state._replace(residual=residual, replicated=saved['replicated'])
      )

  def _first(self) -> State:
    with self.device():
      state: State = self._place_arrays(self.multi_round.init(self._index))
    return state


class WorkerRounds:
  """Rounds of one multi-round allreduce, as one worker runs them."""

  def __init__(
    self,
    codec_state: CodecState,
    vector: Any,
    *,
    stage: int,
    scale: float,
    workspace: Workspace,
  ):
    """Starts an allreduce; arguments as of `MultiRoundAllreduce.start`."""
    self._codec_state = codec_state
    multi_round = codec_state.multi_round
    self._rounds = multi_round.start(
      codec_state.state,
      vector,
      stage=stage,
      scale=scale,
      workspace=workspace,
    )
    self._remaining = len(multi_round.contribution_sizes[stage])
    self._result: tuple[PartialVector, State] | None = None

  def first_contribution(self) -> Any:
    """Returns the contribution of the first round, float32 [n]."""
    with self._codec_state.device():
      return next(self._rounds)

  @property
  def is_last(self) -> bool:
    """True in the last round."""
    return self._remaining == 1

  def next_contribution(self, total: Any) -> Any:
    """Continues with the sum of a round; returns the next contribution.

    None after the last round.
    """
    self._remaining -= 1
    with self._codec_state.device():
      try:
        return self._rounds.send(total)
      except StopIteration as end:
        # The sum may be overwritten from here on.
        self._result = jax.block_until_ready(end.value)
        return None

  def give_up_last_sum(self, size: int) -> None:
    """Stores the next state, as the last sum will not be received.

    Residual and local state do not depend on it.

    Args:
      size: Numbers of the last contribution.
    """
    self.next_contribution(np.zeros(size, np.float32))
    _, state = self._ended
    self._codec_state.note_unconfirmed(state)

  @property
  def reduced(self) -> PartialVector:
    """The result of the allreduce, after the last round."""
    return self._ended[0]

  def finish(self, version: int) -> None:
    """Commits the next codec state, as all workers have received all sums."""
    self._codec_state.commit(version, self._ended[1])

  @property
  def _ended(self) -> tuple[PartialVector, State]:
    if self._result is None:
      raise RuntimeError('Expected that all rounds are over, got some left.')
    return self._result
