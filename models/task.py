"""What a run learns: parameters, a loss per example, and what counts as right.

The runtimes know a model only as a Task, so anything that JAX can
differentiate can be trained under every scheme.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models import gradients


class Task(NamedTuple):
  """A learning problem.

  Attributes:
    params: Initial parameters, a pytree of arrays: of dictionaries, lists,
      tuples and dataclasses if there are to be checkpoints.
    loss: (params, inputs [B, ...], targets [B, ...], key) -> (float32 [B], the
      loss of each example; the batch's statistics, like `stats`).  `key` is for
      dropout and the like.
    correct: (params, stats, inputs [B, ...], targets [B, ...]) -> float32 [B],
      the share of each example's targets that is right.
    stats: Initial running statistics, of batch normalisation say: a pytree of
      arrays, averaged over the batches that were trained on and read by
      `correct` alone.  () if the model has none.
    others: What is evaluated beside accuracy: functions like `correct`, by
      name.
  """

  params: Any
  loss: Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
  correct: Callable[[Any, Any, jax.Array, jax.Array], jax.Array]
  stats: Any = ()
  others: Mapping[
    str, Callable[[Any, Any, jax.Array, jax.Array], jax.Array]
  ] = {}


def supervised(
  model: nnx.Module,
  *,
  loss: Callable[[jax.Array, jax.Array], jax.Array],
  correct: Callable[[jax.Array, jax.Array], jax.Array],
  others: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {},
  prepare: Callable[[jax.Array], jax.Array] = jnp.asarray,
  augment: Callable[[jax.Array, jax.Array], jax.Array] = lambda inputs, _: (
    inputs
  ),
) -> Task:
  """Returns the task of fitting a Flax NNX model to targets.

  Args:
    model: Called as model(inputs, rngs=...), with rngs None in evaluation.  Its
      state is parameters (`nnx.Param`) and running statistics (`nnx.BatchStat`)
      which hold, after a call in training, those of this very batch.  It may
      compute in bfloat16 or float16; losses are of what comes out in float32.
    loss: (outputs [B, ...], targets [B, ...]) -> float32 [B].
    correct: Likewise -> float32 [B], 0 to 1.
    others: Functions like `correct`, evaluated beside it, by name.
    prepare: Stored inputs -> the model's inputs; part of the compiled step.
    augment: (the model's inputs, key) -> those to train on, likewise.

  Raises:
    ValueError: If the model has state of another kind, or averages running
      statistics by itself.
  """
  graph, params, stats, other = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
  if jax.tree.leaves(other):
    kinds = sorted(
      {type(leaf).__name__ for _, leaf in nnx.to_flat_state(other)}
    )
    raise ValueError(
      f'model: expected nnx.Param and nnx.BatchStat, got state of type {kinds}.'
    )

  for _, module in nnx.iter_modules(model):
    if isinstance(module, nnx.BatchNorm) and module.momentum:
      raise ValueError(
        'model: expected batch normalization of momentum 0, as the server '
        f'averages over batches, got {module.momentum}.'
      )

  def loss_of(
    params: Any, inputs: jax.Array, targets: jax.Array, key: jax.Array
  ) -> tuple[jax.Array, Any]:
    augment_key, dropout_key = jax.random.split(key)
    changed = augment(prepare(inputs), augment_key)
    merged = nnx.merge(graph, params, start, {})
    outputs = _widened(merged(changed, rngs=nnx.Rngs(dropout=dropout_key)))
    seen = nnx.to_pure_dict(nnx.state(merged, nnx.BatchStat))
    return loss(outputs, targets), seen

  def correct_of(
    params: Any,
    stats: Any,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    correct: Callable[[jax.Array, jax.Array], jax.Array] = correct,
  ) -> jax.Array:
    merged = nnx.merge(graph, params, stats, {})
    return correct(_widened(merged(prepare(inputs), rngs=None)), targets)

  # Dicts of arrays: JAX takes Variables apart in Python at every call.
  start = nnx.to_pure_dict(stats)
  more = {
    name: functools.partial(correct_of, correct=function)
    for name, function in others.items()
  }
  return Task(nnx.to_pure_dict(params), loss_of, correct_of, start, more)


def classification(
  model: nnx.Module,
  prepare: Callable[[jax.Array], jax.Array],
  augment: Callable[[jax.Array, jax.Array], jax.Array],
  *,
  top: int = 0,
) -> Task:
  """Returns the task of naming the class of each target, by cross-entropy.

  Examples have one target, or one at each of T places, which count alike.

  Args:
    model: As in `supervised`; it returns logits [B, classes] or
      [B, T, classes].
    prepare: As in `supervised`.
    augment: As in `supervised`.
    top: Beside accuracy, how often the class is among so many of the largest
      logits; of equal ones, the first are taken.  0 for accuracy alone.

  Raises:
    ValueError: As in `supervised`.
  """

  def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return _mean_of_places(gradients.softmax_cross_entropy(logits, targets))

  def correct(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return _mean_of_places(jnp.argmax(logits, axis=-1) == targets)

  def among(logits: jax.Array, targets: jax.Array) -> jax.Array:
    _, largest = jax.lax.top_k(logits, top)
    return _mean_of_places((largest == targets[..., None]).any(axis=-1))

  return supervised(
    model,
    loss=loss,
    correct=correct,
    others={f'top{top}_accuracy': among} if top else {},
    prepare=prepare,
    augment=augment,
  )


def _widened(outputs: Any) -> Any:
  """Returns what a model puts out, in float32 where it is in half of that."""
  halves = jnp.bfloat16, jnp.float16
  return jax.tree.map(
    lambda leaf: leaf.astype(jnp.float32) if leaf.dtype in halves else leaf,
    outputs,
  )


def _mean_of_places(values: jax.Array) -> jax.Array:
  return values.reshape(len(values), -1).astype(jnp.float32).mean(axis=1)
