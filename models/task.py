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
    loss: (params, inputs [B, ...], targets [B, ...], key) -> float32 [B], the
      loss of each example; `key` is for dropout and the like.
    correct: (params, inputs [B, ...], targets [B, ...]) -> float32 [B], the
      share of each example's targets that is right.
  """

  params: Any
  loss: Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array]
  correct: Callable[[Any, jax.Array, jax.Array], jax.Array]


def classification(
  model: nnx.Module,
  prepare: Callable[[jax.Array], jax.Array],
  augment: Callable[[jax.Array, jax.Array], jax.Array],
) -> Task:
  """Returns the task of naming the class of each target, by cross-entropy.

  Examples have one target, or one at each of T places, which count alike.

  Args:
    model: Called as model(inputs, rngs=...), returns logits [B, classes] or
      [B, T, classes]; its only state is parameters.
    prepare: Stored inputs -> the model's inputs; part of the compiled step.
    augment: (the model's inputs, key) -> those to train on, likewise.

  Raises:
    ValueError: If the model has other state, such as running statistics.
  """
  graph, state, other = nnx.split(model, nnx.Param, ...)
  if jax.tree.leaves(other):
    raise ValueError(
      'norm: expected a model whose only state is parameters, got one with '
      'running statistics, which no scheme synchronises yet.'
    )
  # A dict of arrays: JAX takes Variables apart in Python at every call.
  params = nnx.to_pure_dict(state)

  def loss(params, inputs, targets, key):
    augment_key, dropout_key = jax.random.split(key)
    rngs = nnx.Rngs(dropout=dropout_key)
    changed = augment(prepare(inputs), augment_key)
    logits = nnx.merge(graph, params, {})(changed, rngs=rngs)
    return _mean_of_places(
      optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    )

  def correct(params, inputs, targets):
    logits = nnx.merge(graph, params, {})(prepare(inputs))
    return _mean_of_places(jnp.argmax(logits, axis=-1) == targets)

  return Task(params=params, loss=loss, correct=correct)


def _mean_of_places(values: jax.Array) -> jax.Array:
  return values.reshape(len(values), -1).astype(jnp.float32).mean(axis=1)
