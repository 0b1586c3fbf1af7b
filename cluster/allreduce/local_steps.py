"""Local steps of a replica, in the place of its gradient.

A reducer sums a displacement as it sums a gradient.  No part of it is known
before the last step, so that nothing is sent earlier.  The state of the inner
optimizer is the worker's own: replicas share the learner, with the outer
optimizer, and no digest or handover includes the inner one.
"""

from typing import TYPE_CHECKING, Any

import jax

from data.stream import Ranges
from learning.gradient_buffer import Sink
from learning.iteration import Iteration
from learning.learning import Overlap, Pushes
from wire.codec import Payload

if TYPE_CHECKING:  # Runs without a model start without Flax.
  from learning.fragment_steps import FragmentSteps


class ReplicaSteps:
  """A `Streaming` computation of displacements.

  Attributes:
    state: State of the inner optimizer; a call replaces it, and the one before
      stays valid.
    overlap: NONE, as all leaves are final at once.
    copies: None.
    ready: Share of an iteration's computing before the displacement is known.
  """

  overlap = Overlap.NONE
  copies = None
  ready = 1.0

  def __init__(self, pushes: Pushes):
    """Compiles nothing yet.

    Args:
      pushes: Computes the displacements.
    """
    self.state: Any = ()
    self._pushes = pushes

  @property
  def computed(self) -> int:
    """Number of examples computed so far, with padding."""
    return self._pushes.computed

  def __call__(
    self, params: Any, iteration: Iteration
  ) -> tuple[Payload, jax.Array | None]:
    """Returns the displacement times its weight, and the loss."""
    payload, loss, self.state = self._pushes.push(params, iteration, self.state)
    return payload, loss

  def stream(
    self, params: Any, iteration: Iteration, sink: Sink
  ) -> tuple[Any, jax.Array | None]:
    """Computes a displacement, and hands its leaves to a sink at the end."""
    payload, loss = self(params, iteration)
    leaves, stats = jax.device_get(
      (jax.tree.leaves(payload.gradient), payload.stats)
    )
    for leaf, array in enumerate(leaves):
      sink(leaf, array)
    return stats, loss

  def prepare(self, ranges: Ranges) -> None:
    """Gathers the examples of a later call."""
    self._pushes.prepare(ranges)

  def weigh(self, ranges: Ranges) -> float:
    """Returns the weight of examples, in examples: see `Computation`."""
    return self._pushes.weigh(ranges)

  def place(self, tree: Any) -> Any:
    """Returns a pytree with its arrays on the device of pushes."""
    return self._pushes.place(tree)

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    """Compiles every program that calls need; see `Computation`."""
    return self._pushes.warm_up(params, examples, changing=changing)


class FragmentReplicaSteps(ReplicaSteps):
  """A `Streaming` computation of displacements of fragments.

  Its leaves are handed over before the last steps, while these run.
  """

  def __init__(self, pushes: 'FragmentSteps'):
    """Compiles nothing yet.

    Args:
      pushes: Computes the displacements.
    """
    super().__init__(pushes)
    self._steps, self.ready = pushes, pushes.fragments.ready
    self.overlap = Overlap.STEPS if self.ready < 1 else Overlap.NONE

  def stream(
    self, params: Any, iteration: Iteration, sink: Sink
  ) -> tuple[Any, jax.Array | None]:
    """Computes a displacement, and hands over the leaves of its fragment."""
    fragments = self._steps.fragments
    chosen = fragments.leaves[fragments.at(iteration.version)]

    def send(moved: Any) -> None:
      leaves = jax.tree.leaves(moved)
      arrays = jax.device_get([leaves[leaf] for leaf in chosen])
      for leaf, array in zip(chosen, arrays, strict=True):
        sink(leaf, array)

    payload, loss, self.state = self._steps.push(
      params, iteration, self.state, send=send
    )
    return jax.device_get(payload.stats), loss
