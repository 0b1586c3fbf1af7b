"""Local steps: a worker's push is the displacement of its own copy.

An iteration divides its examples into batches.  From the version that it has
pulled, the worker takes one step of the inner optimizer for each batch, on a
copy of its own, and pushes the *displacement*: the parameters that it pulled
minus those that it reached.  Displacements have the sign of gradients, so that
an outer optimizer applies their average as it would apply a mean gradient: SGD
of rate 1 moves to the average of the workers' copies (local SGD), Nesterov's
momentum gives DiLoCo (arXiv 2311.08105).

The state of the inner optimizer stays with the worker, from one iteration to
the next.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

from data.stream import Ranges, size
from learning.gradient import TaskGradient
from wire.codec import Payload


def unchanged(tree: Any) -> Any:
  """Returns a pytree as it is."""
  return tree


class LocalSteps:
  """Pushes of several steps of an inner optimizer: see `Gradient`.

  Attributes:
    gradient: Computation of the gradient of each step.
  """

  def __init__(
    self,
    gradient: TaskGradient,
    tx: optax.GradientTransformation,
    *,
    worker_batch: int,
    constrain: Callable[[Any], Any] = unchanged,
  ):
    """Compiles nothing yet.

    Args:
      gradient: Computes the gradient of each step.
      tx: Inner optimizer, built for learning rate 1.
      worker_batch: Examples of a step; the last step of an iteration may have
        fewer.
      constrain: Function of parameters and optimizer state, traced, that says
        how they lie on several devices.
    """
    self.gradient = gradient
    self._worker_batch = worker_batch
    self._init = jax.jit(tx.init)

    def step(
      params: Any, state: Any, total: Any, examples: jax.Array, rate: jax.Array
    ) -> tuple[Any, Any]:
      mean = jax.tree.map(lambda leaf: leaf / examples, total)
      updates, state = tx.update(mean, state, params)
      updates = jax.tree.map(lambda u: u * rate, updates)
      reached: tuple[Any, Any] = constrain(
        (optax.apply_updates(params, updates), state)
      )
      return reached

    def displacement(pulled: Any, reached: Any, examples: jax.Array) -> Any:
      return jax.tree.map(
        lambda before, after: (before - after) * examples, pulled, reached
      )

    # The state of the iteration before is still needed: its push may be lost.
    self._step = jax.jit(step)
    self._displacement = jax.jit(displacement)
    self._constrain = constrain
    if constrain is not unchanged:
      self._constrain = jax.jit(constrain)

  @property
  def computed(self) -> int:
    """Number of examples computed so far, with padding."""
    return self.gradient.computed

  def init(self, params: Any) -> Any:
    """Returns the state of a worker's inner optimizer at its start."""
    return self._init(params)

  def push(
    self,
    params: Any,
    ranges: Ranges,
    state: Any,
    *,
    worker: int,
    iteration: int,
    scale: float = 1.0,
    rate: float | None = None,
  ) -> tuple[Payload, jax.Array, Any]:
    """Returns a worker's displacement times its examples, loss and state.

    Args:
      params: Pytree of arrays: the version that the worker has pulled.
      ranges: Positions of the examples in the stream.
      state: State of the inner optimizer.
      worker: Index of the worker, for its random keys.
      iteration: Number of its iteration, for its random keys.
      scale: Unused, 1: there is no loss scale.
      rate: Learning rate of the inner steps.

    Returns:
      The payload; the loss, summed over the examples, each at the parameters
      of its step; and the state of the inner optimizer afterwards.

    Raises:
      ValueError: If there is no example or no learning rate.
    """
    del scale
    if rate is None:
      raise ValueError('rate: expected a learning rate, got None.')
    reached, stats, loss = params, None, None
    for number, step in enumerate(self._cut(ranges)):
      payload, one = self.gradient(
        reached,
        step,
        worker=worker,
        iteration=iteration,
        step=number,
      )
      reached, state = self._step(
        reached,
        state,
        payload.gradient,
        np.float32(size(step)),
        np.float32(rate),
      )
      stats = payload.stats if stats is None else self._add(stats, payload)
      loss = one if loss is None else loss + one
    if loss is None:
      raise ValueError('ranges: expected at least one example, got none.')
    moved = self._displacement(params, reached, np.float32(size(ranges)))
    return Payload(moved, stats), loss, state

  def prepare(self, ranges: Ranges) -> None:
    """Gathers the examples of a later call, batch by batch."""
    self.gradient.prepare(*self._cut(ranges))

  def place(self, tree: Any) -> Any:
    """Returns a pytree with its arrays on the device of pushes."""
    return self.gradient.place(tree)

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    """Compiles every program that calls need.

    Args:
      params: Pytree of arrays.
      examples: Examples of an iteration, the largest one if they change; None
        if there is no bound.
      changing: Whether later iterations may have fewer.

    Returns:
      A payload of every kind that may be pushed.
    """
    before = self.computed
    step = self._worker_batch
    self.gradient.warm_up(params, step, changing=changing)
    state = self._constrain(self.init(params))
    payloads = []
    # One step, a step after a step, and the rest of an iteration.
    for count in sorted({step, 2 * step, (examples or 0) % step or step}):
      payload, _, state = self.push(
        params, ((0, count),), state, worker=0, iteration=0, rate=0.0
      )
      payloads.append(jax.block_until_ready(payload))
    self.gradient.computed = before
    return payloads[-1:]

  def _add(self, stats: Any, payload: Payload) -> Any:
    """Returns the sum of statistics."""
    return self.gradient.add(stats, payload.stats)

  def _cut(self, ranges: Ranges) -> Sequence[Ranges]:
    """Returns the positions of each step."""
    steps, current, free = [], [], self._worker_batch
    for start, stop in ranges:
      while start < stop:
        taken = min(free, stop - start)
        current.append((start, start + taken))
        start, free = start + taken, free - taken
        if not free:
          steps.append(tuple(current))
          current, free = [], self._worker_batch
    return [*steps, tuple(current)] if current else steps
