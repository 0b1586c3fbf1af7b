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

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

from data.stream import Ranges
from learning import warm_up
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from wire.codec import Payload


def unchanged(tree: Any) -> Any:
  """Returns a pytree as it is."""
  return tree


class LocalSteps:
  """Pushes of several steps of an inner optimizer: see `Gradient`.

  Attributes:
    gradient: Computation of the gradient of each step.

  Args:
    tx: Inner optimizer, built for learning rate 1.
    worker_batch: Examples of a step; the last step of an iteration may have
      fewer.
    constrain: Function of parameters and optimizer state, traced, that says
      how they lie on several devices.
  """

  def __init__(
    self,
    gradient: TaskGradient,
    tx: optax.GradientTransformation,
    *,
    worker_batch: int,
    constrain: Callable[[Any], Any] = unchanged,
  ):
    self.gradient = gradient
    self._worker_batch = worker_batch
    self._init = jax.jit(tx.init)

    def step(
      params: Any, state: Any, total: Any, weight: jax.Array, rate: jax.Array
    ) -> tuple[Any, Any]:
      mean = jax.tree.map(lambda leaf: leaf / weight, total)
      updates, state = tx.update(mean, state, params)
      updates = jax.tree.map(lambda u: u * rate, updates)
      reached: tuple[Any, Any] = constrain(
        (optax.apply_updates(params, updates), state)
      )
      return reached

    def displacement(pulled: Any, reached: Any, weight: jax.Array) -> Any:
      return jax.tree.map(
        lambda before, after: (before - after) * weight, pulled, reached
      )

    # The state of the iteration before is still needed: its push may be lost.
    self._step = jax.jit(step)
    self._displacement = jax.jit(displacement)
    self._constrain = constrain
    if constrain is not unchanged:
      self._constrain = jax.jit(constrain)

  @property
  def computed(self) -> int:
    return self.gradient.computed

  def init(self, params: Any) -> Any:
    return self._init(params)

  def push(
    self, params: Any, iteration: Iteration, state: Any
  ) -> tuple[Payload, jax.Array, Any]:
    """Returns a worker's displacement times its weight, loss and state.

    The weight is that of the examples of all steps.  A step whose examples
    weigh nothing changes neither parameters nor state.

    Args:
      params: Pytree of arrays: the version that the worker has pulled.
      iteration: The iteration, without a loss scale.
      state: State of the inner optimizer.

    Returns:
      The payload; the loss, a weighted sum over the examples, each at the
      parameters of its step; and the state of the inner optimizer afterwards.

    Raises:
      ValueError: If there is no example or no learning rate.
    """
    progress = self._begin(params, iteration, state)
    progress.take(self._cut(iteration.ranges))
    weight = np.float32(self.weigh(iteration.ranges))
    moved = self._displacement(params, progress.params, weight)
    payload, loss = progress.payload(moved)
    return payload, loss, progress.state

  def prepare(self, ranges: Ranges) -> None:
    self.gradient.prepare(*self._cut(ranges))

  def weigh(self, ranges: Ranges) -> float:
    return self.gradient.weigh(ranges)

  def place(self, tree: Any) -> Any:
    return self.gradient.place(tree)

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    step = self._worker_batch
    self.gradient.warm_up(params, step, changing=changing)
    state, lengths = self._constrain(self.init(params)), self._lengths(examples)
    return warm_up.compute_pushes(self, params, state, lengths)[-1:]

  def _lengths(self, examples: int | None) -> list[int]:
    """Returns examples of iterations that together use all other programs."""
    step = self._worker_batch
    # One step, a step after a step, and the rest of an iteration.
    return sorted({step, 2 * step, (examples or 0) % step or step})

  def _begin(
    self, params: Any, iteration: Iteration, state: Any
  ) -> '_Progress':
    """Returns the progress of an iteration before its first step."""
    if iteration.rate is None:
      raise ValueError('rate: expected a learning rate, got None.')
    rate = np.float32(iteration.rate)
    return _Progress(self.gradient, self._step, iteration, rate, params, state)

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


@dataclasses.dataclass
class _Progress:
  """Local steps of an iteration so far.

  Attributes:
    gradient: Computation of the gradient of each step.
    step: Function that applies one.
    iteration: The iteration.
    rate: Learning rate, float32.
    params: Parameters reached.
    state: State of the inner optimizer.
    steps: Number of steps.
    stats: Sum of the statistics; None before the first step.
    loss: Sum of the losses; None before the first step.
  """

  gradient: TaskGradient
  step: Callable[..., tuple[Any, Any]]
  iteration: Iteration
  rate: np.float32
  params: Any
  state: Any
  steps: int = 0
  stats: Any = None
  loss: jax.Array | None = None

  def take(self, batches: Sequence[Ranges]) -> None:
    """Takes a step on each batch."""
    _, worker, number, *_ = self.iteration
    for batch in batches:
      payload, loss = self.gradient(
        self.params, Iteration(batch, worker, number), step=self.steps
      )
      weight = self.gradient.weigh(batch)
      if weight:
        self.params, self.state = self.step(
          *(self.params, self.state, payload.gradient),
          *(np.float32(weight), self.rate),
        )
      if self.loss is None:
        self.stats, self.loss = payload.stats, loss
      else:
        self.stats = self.gradient.add(self.stats, payload.stats)
        self.loss = self.loss + loss
      self.steps += 1

  def payload(self, moved: Any) -> tuple[Payload, jax.Array]:
    """Returns a displacement with the statistics, and the loss."""
    if self.loss is None:
      raise ValueError('ranges: expected at least one example, got none.')
    return Payload(moved, self.stats), self.loss
