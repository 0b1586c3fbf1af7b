"""Local steps whose pushes are fragments: see `learning.fragments`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learning.fragments import Fragments
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.local_steps import LocalSteps
from wire.codec import Payload


class FragmentState(NamedTuple):
  """A worker's state between two iterations.

  Attributes:
    optimizer: State of the inner optimizer.
    params: Its own parameters, a pytree.
    version: Version from which it has computed last; -1 before the first.
  """

  optimizer: Any
  params: Any
  version: Any


class FragmentSteps(LocalSteps):
  """Pushes of one fragment each, from a worker's own parameters.

  Args:
    gradient: Computes the gradient of each step.
    tx: Inner optimizer, built for learning rate 1.
    fragments: Division of the parameters.
    worker_batch: Examples of a step; the last step of an iteration may have
      fewer.
    overlap_steps: Steps that follow the computation of the displacement.
    blend: Weight of the worker's own parameters when a fragment arrives.
  """

  def __init__(
    self,
    gradient: TaskGradient,
    tx: optax.GradientTransformation,
    fragments: Fragments,
    *,
    worker_batch: int,
    overlap_steps: int,
    blend: float,
  ):
    super().__init__(gradient, tx, worker_batch=worker_batch)
    self.fragments = fragments
    self._overlap_steps = overlap_steps
    self._blend = blend

    def mix(own: Sequence[Any], summed: Sequence[Any]) -> list[Any]:
      return [
        blend * one + (1 - blend) * other
        for one, other in zip(own, summed, strict=True)
      ]

    def displacement(
      version: Any, own: Any, weight: jax.Array, fragment: int
    ) -> Any:
      """Returns the displacement of a fragment, and 0 for other leaves."""
      chosen = {*fragments.leaves[fragment]}
      leaves, structure = jax.tree.flatten(version)
      moved = [
        (before - after) * weight if leaf in chosen else jnp.zeros_like(after)
        for leaf, (before, after) in enumerate(
          zip(leaves, jax.tree.leaves(own), strict=True)
        )
      ]
      return jax.tree.unflatten(structure, moved)

    self._mix = jax.jit(mix)
    self._fragment = jax.jit(displacement, static_argnums=3)

  def init(self, params: Any) -> FragmentState:
    return FragmentState(super().init(params), params, np.int32(-1))

  def push(
    self,
    params: Any,
    iteration: Iteration,
    state: FragmentState,
    *,
    send: Callable[[Any], None] | None = None,
  ) -> tuple[Payload, jax.Array, FragmentState]:
    """Returns a fragment's displacement times its weight, loss and state.

    Args:
      params: Pytree of arrays: the version that the worker has.
      iteration: The iteration, without a loss scale.
      state: State of the worker.
      send: Called with the displacement once it is known, before the last
        steps; its leaves of other fragments are 0.

    Returns:
      As in `LocalSteps.push`.

    Raises:
      ValueError: If there is no example or no learning rate.
    """
    ranges, version = iteration.ranges, iteration.version
    fragment = self.fragments.at(version)
    own = self._merge(params, state, version)
    batches = self._cut(ranges)
    first = max(len(batches) - self._overlap_steps, 0)
    progress = self._begin(own, iteration, state.optimizer)
    progress.take(batches[:first])
    weight = np.float32(self.weigh(ranges))
    moved = self._fragment(params, progress.params, weight, fragment)
    if send:
      send(moved)
    progress.take(batches[first:])
    payload, loss = progress.payload(moved)
    after = FragmentState(progress.state, progress.params, np.int32(version))
    return payload, loss, after

  def _lengths(self, examples: int | None) -> list[int]:
    """Returns examples of iterations in which each fragment is merged, too."""
    return [*super()._lengths(examples), *[1] * (self.fragments.count + 1)]

  def _merge(self, params: Any, state: FragmentState, version: int) -> Any:
    """Returns a worker's own parameters after the arrival of a fragment."""
    before = int(state.version)
    if before < 0 or before != version - 1:
      return params
    chosen = self.fragments.leaves[self.fragments.at(before)]
    own, structure = jax.tree.flatten(state.params)
    leaves = jax.tree.leaves(params)
    summed = [leaves[leaf] for leaf in chosen]
    if self._blend:
      summed = self._mix([own[leaf] for leaf in chosen], summed)
    for leaf, array in zip(chosen, summed, strict=True):
      own[leaf] = array
    return jax.tree.unflatten(structure, own)
