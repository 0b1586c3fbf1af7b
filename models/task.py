"""What a run learns: parameters, a loss per example, and what counts as right.

The runtimes know a model only as a Task, so anything that JAX can
differentiate can be trained under every scheme.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Task(NamedTuple):
  """A learning problem.

  Attributes:
    params: Initial parameters, a pytree of arrays.
    loss: (params, inputs [B, ...], targets [B], key) -> float32 [B], the loss
      of each example; `key` is for dropout and the like.
    correct: (params, inputs [B, ...], targets [B]) -> bool [B].
  """

  params: Any
  loss: Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array]
  correct: Callable[[Any, jax.Array, jax.Array], jax.Array]


def classification(
  model: nnx.Module, prepare: Callable[[jax.Array], jax.Array]
) -> Task:
  """Returns the task of naming each input's class by cross-entropy.

  Args:
    model: Called as model(inputs, rngs=...); its only state is parameters.
    prepare: Stored inputs -> the model's inputs; part of the compiled step.
  """
  graph, state = nnx.split(model)
  # A dict of arrays: JAX takes Variables apart in Python at every call.
  params = nnx.to_pure_dict(state)

  def loss(params, inputs, targets, key):
    rngs = nnx.Rngs(dropout=key)
    logits = nnx.merge(graph, params)(prepare(inputs), rngs=rngs)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)

  def correct(params, inputs, targets):
    logits = nnx.merge(graph, params)(prepare(inputs))
    return jnp.argmax(logits, axis=-1) == targets

  return Task(params=params, loss=loss, correct=correct)
