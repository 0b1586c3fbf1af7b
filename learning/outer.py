"""Outer optimizers, which apply the displacements of local steps.

Arguments are the fields of config.outer.NAME (`configs.fields`), checked.
They are built with learning rate 1, as those of `learning.optimizer`; the
learner multiplies their result by config.outer.learning_rate.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from configs import declared


def sgd() -> optax.GradientTransformation:
  """Returns plain averaging: at rate 1 with all workers, local SGD."""
  return optax.sgd(1.0)


@declared.check_arguments('outer.nesterov')
def nesterov(*, momentum: float) -> optax.GradientTransformation:
  """Returns Nesterov's momentum, the outer optimizer of DiLoCo, at rate 1."""
  return optax.sgd(1.0, momentum=momentum, nesterov=True)


class DelayedState(NamedTuple):
  """State of `delayed_nesterov`.

  Attributes:
    updates: Number of updates since momentum was applied, int32.
    momentum: Pytree like the parameters.
    buffer: Sum of the displacements since then, like the parameters.
  """

  updates: jax.Array
  momentum: Any
  buffer: Any


@declared.check_arguments('outer.delayed_nesterov')
def delayed_nesterov(
  *, momentum: float, delay: int
) -> optax.GradientTransformation:
  """Returns Nesterov's momentum that is applied once in `delay` updates.

  For asynchronous schemes, where each update is of one worker and momentum on
  every one of them diverges.  With displacement d_t and N = `delay`,

    m <- momentum m + (d_{t-N+1} + ... + d_t) / N,  step_t = d_t + N momentum m

  for every N-th update, and step_t = d_t for the others.  As the learner
  multiplies updates of single workers by about 1 / N (reduction 'mean' with N
  workers), N updates move as far as one update of Nesterov's momentum with the
  mean of their displacements.  With `delay` 1 it is `nesterov`.  After Liu et
  al., 'Asynchronous Local-SGD training for language modeling', arXiv
  2401.09135.
  """

  def init(params: Any) -> DelayedState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return DelayedState(jnp.zeros((), jnp.int32), zeros, zeros)

  def update(
    updates: Any, state: DelayedState, params: Any = None
  ) -> tuple[Any, DelayedState]:
    del params
    is_due = state.updates == delay - 1
    buffer = jax.tree.map(jnp.add, state.buffer, updates)
    mean = jax.tree.map(
      lambda old, total: jnp.where(is_due, momentum * old + total / delay, old),
      state.momentum,
      buffer,
    )
    steps = jax.tree.map(
      lambda one, m: -jnp.where(is_due, one + delay * momentum * m, one),
      updates,
      mean,
    )
    buffer = jax.tree.map(lambda total: jnp.where(is_due, 0, total), buffer)
    count = jnp.where(is_due, 0, state.updates + 1)
    return steps, DelayedState(count, mean, buffer)

  return optax.GradientTransformation(init, update)
