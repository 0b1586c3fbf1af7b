"""Tasks: initial parameters, a loss per example, and measures of evaluations.

Runtimes know a model only as a `Task`, so that anything that JAX can
differentiate can be trained under every scheme.
"""

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models import gradients


class Task(NamedTuple):
  """A learning problem.

  Attributes:
    params: Initial parameters, a pytree of arrays.  For checkpoints its nodes
      have to be dictionaries, lists, tuples and dataclasses.
    loss: Function (params, inputs [B, ...], targets [B, ...], key) -> (float32
      [B], the loss of each example; the batch's statistics, like `stats`).
      `key` is for dropout and the like.
    correct: Function (params, stats, inputs [B, ...], targets [B, ...]) ->
      float32 [B], the share of each example's targets that is correct, whose
      mean is the measure 'accuracy'.  None if the task has no accuracy.
    stats: Initial running statistics, such as those of batch normalisation: a
      pytree of arrays, averaged over the batches of training, and read only by
      `correct` and `others`.  () if the model has none.
    others: Other measures than accuracy: functions like `correct`, by name.
    weigh: Function (targets [B, ...]) -> float32 [B], number of each example's
      targets that count, from 0 to all of them; None if all count.  In updates
      and evaluations an example weighs in proportion: `loss`, `correct` and
      `others` are means over the targets that count, finite without any.
    derived: Functions of these means by name, such as a perplexity, by name.
    primary: Name of the measure by which runs are compared first.
    falling: Names of the measures that are better where they are smaller.
  """

  params: Any
  loss: Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
  correct: Callable[[Any, Any, jax.Array, jax.Array], jax.Array] | None = None
  stats: Any = ()
  others: Mapping[
    str, Callable[[Any, Any, jax.Array, jax.Array], jax.Array]
  ] = {}
  weigh: Callable[[jax.Array], jax.Array] | None = None
  derived: Mapping[str, Callable[[Mapping[str, float]], float]] = {}
  primary: str = 'accuracy'
  falling: Collection[str] = ()

  @property
  def evaluated(
    self,
  ) -> dict[str, Callable[[Any, Any, jax.Array, jax.Array], jax.Array]]:
    """Measures of examples, functions like `correct`, by name."""
    accuracy = {'accuracy': self.correct} if self.correct else {}
    return {**accuracy, **self.others}

  @property
  def measures(self) -> dict[str, str]:
    """Directions of all measures, 'rises' or 'falls', the primary one first.

    Raises:
      ValueError: If `primary` or `falling` names another measure.
    """
    names = [*self.evaluated, *self.derived]
    for field, got in (('primary', [self.primary]), ('falling', self.falling)):
      for name in got:
        if name not in names:
          raise ValueError(
            f'task.{field}: expected some of the measures {names}, got '
            f'{name!r}.'
          )
    return {
      name: 'falls' if name in self.falling else 'rises'
      for name in dict.fromkeys((self.primary, *names))
    }


def supervised(
  model: nnx.Module,
  *,
  loss: Callable[[jax.Array, jax.Array], jax.Array],
  correct: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
  others: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {},
  primary: str = 'accuracy',
  falling: Collection[str] = (),
  prepare: Callable[[jax.Array], Any] = jnp.asarray,
  augment: Callable[[Any, jax.Array], Any] = lambda inputs, _: inputs,
) -> Task:
  """Returns the task of fitting a Flax NNX model to targets.

  Args:
    model: Module that is called as model(inputs, rngs=...), with rngs None in
      evaluation; or, if its `__call__` has no argument `rngs`, as model(inputs)
      after `model.train()` or `model.eval()`.  Its state is parameters
      (`nnx.Param`) and running statistics (`nnx.BatchStat`), which after a call
      in training are those of its batch.
      It may compute in bfloat16 or float16; its outputs are cast to float32.
    loss: Function (outputs [B, ...], targets [B, ...]) -> float32 [B].
    correct: Function of the same arguments -> float32 [B], 0 to 1; None if the
      task has no accuracy.
    others: Other measures than accuracy: functions like `correct`, by name.
    primary: As of `Task`.
    falling: As of `Task`.
    prepare: Function from stored inputs to those of the model; compiled.
    augment: Function (inputs of the model, key) -> inputs to train on;
      compiled.

  Raises:
    ValueError: If the model has state of another kind, or averages running
      statistics by itself.
  """
  graph, *states = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
  params, stats, other = states
  if jax.tree.leaves(other):
    kinds = sorted(
      {type(leaf).__name__ for _, leaf in nnx.to_flat_state(other)}
    )
    raise ValueError(
      f'model: expected nnx.Param and nnx.BatchStat, got state of type {kinds}.'
      '  For dropout create nnx.Dropout(rate) without rngs, and call it with '
      'those of __call__: layer(x, rngs=rngs, deterministic=rngs is None).'
    )

  takes_rngs = _takes_rngs(model)
  for _, module in nnx.iter_modules(model):
    if isinstance(module, nnx.BatchNorm) and module.momentum:
      raise ValueError(
        'model: expected nnx.BatchNorm(..., momentum=0.0), as the server '
        f'averages over batches, got {module.momentum}.'
      )
    if isinstance(module, nnx.Dropout) and not takes_rngs:
      raise ValueError(
        'model: expected __call__(inputs, *, rngs=None), as it has nnx.Dropout,'
        f' got __call__{inspect.signature(model.__call__)}.'
      )

  def call(merged: Any, inputs: Any, rngs: nnx.Rngs | None) -> Any:
    if takes_rngs:
      return _to_float32(merged(inputs, rngs=rngs))
    if rngs is None:
      merged.eval()
    else:
      merged.train()
    return _to_float32(merged(inputs))

  def loss_function(
    params: Any, inputs: jax.Array, targets: jax.Array, key: jax.Array
  ) -> tuple[jax.Array, Any]:
    augment_key, dropout_key = jax.random.split(key)
    changed = augment(prepare(inputs), augment_key)
    merged = nnx.merge(graph, params, start, {})
    outputs = call(merged, changed, nnx.Rngs(dropout=dropout_key))
    seen = nnx.to_pure_dict(nnx.state(merged, nnx.BatchStat))
    return loss(outputs, targets), seen

  def measure(
    params: Any,
    stats: Any,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    function: Callable[[jax.Array, jax.Array], jax.Array],
  ) -> jax.Array:
    merged = nnx.merge(graph, params, stats, {})
    return function(call(merged, prepare(inputs), None), targets)

  # Dictionaries of arrays: JAX flattens Variables in Python at every call.
  start = nnx.to_pure_dict(stats)
  return Task(
    nnx.to_pure_dict(params),
    loss_function,
    correct=functools.partial(measure, function=correct) if correct else None,
    stats=start,
    others={
      name: functools.partial(measure, function=function)
      for name, function in others.items()
    },
    primary=primary,
    falling=falling,
  )


def classification(
  model: nnx.Module,
  prepare: Callable[[jax.Array], Any] = jnp.asarray,
  augment: Callable[[Any, jax.Array], Any] = lambda inputs, _: inputs,
  *,
  top: int = 0,
  has_loss: bool = False,
) -> Task:
  """Returns the task of predicting the class of each example, by cross-entropy.

  Args:
    model: Module as in `supervised` that returns logits, [B, classes].
    prepare: As in `supervised`.
    augment: As in `supervised`.
    top: Number of largest logits among which the class is counted as another
      measure beside accuracy; the first of equal ones are taken.  0 for none.
    has_loss: Whether evaluations also give `test_loss`, the mean cross-entropy
      of an example in nats.

  Raises:
    ValueError: As in `supervised`.
  """
  loss = gradients.softmax_cross_entropy
  return supervised(
    model,
    loss=loss,
    correct=lambda logits, targets: _is_among(logits, targets, 1),
    others=_top_accuracy(top) | ({'test_loss': loss} if has_loss else {}),
    falling=('test_loss',) if has_loss else (),
    prepare=prepare,
    augment=augment,
  )


def next_token(
  model: nnx.Module,
  prepare: Callable[[jax.Array], Any] = jnp.asarray,
  *,
  top: int = 0,
  bytes_per_token: float | None = None,
) -> Task:
  """Returns the task of predicting the next token at each of T positions.

  Targets that are negative do not count.  The loss of an example is the mean
  cross-entropy of its other targets, in nats.  Examples weigh by the number of
  these, so that all tokens weigh alike.  Evaluations give

    accuracy: The share of tokens that have the largest logit.
    test_loss: The mean cross-entropy of a token, in nats.
    perplexity: e to the power of the test loss, at most e^700.
    bits_per_byte: The test loss in bits, divided by the bytes per token.  It
      does not depend on the vocabulary.

  The last one that there is is the primary measure.

  Args:
    model: Module as in `supervised` that returns logits, [B, T, vocabulary].
    prepare: As in `supervised`.
    top: As in `classification`.
    bytes_per_token: Bytes of text per token in the mean; None if unknown, for
      no bits per byte.

  Raises:
    ValueError: As in `supervised`.
  """

  def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    classes = jnp.maximum(targets, 0)
    each = gradients.softmax_cross_entropy(logits, classes)
    return _mean_of_tokens(each, targets)

  def correct(
    logits: jax.Array, targets: jax.Array, *, top: int = 1
  ) -> jax.Array:
    return _mean_of_tokens(_is_among(logits, targets, top), targets)

  derived = {'perplexity': lambda means: math.exp(min(means['test_loss'], 700))}
  if bytes_per_token is not None:
    bits = 1 / math.log(2) / bytes_per_token
    derived['bits_per_byte'] = lambda means: means['test_loss'] * bits
  others = {
    name: functools.partial(correct, top=top) for name in _top_accuracy(top)
  }
  return supervised(
    model,
    loss=loss,
    correct=correct,
    others={**others, 'test_loss': loss},
    prepare=prepare,
  )._replace(
    weigh=_count_tokens,
    derived=derived,
    primary=[*derived][-1],
    falling=('test_loss', *derived),
  )


def _top_accuracy(
  top: int,
) -> dict[str, Callable[[jax.Array, jax.Array], jax.Array]]:
  """Returns the measure of accuracy among the `top` logits; none for 0."""
  if not top:
    return {}
  return {f'top{top}_accuracy': functools.partial(_is_among, top=top)}


def _is_among(logits: jax.Array, targets: jax.Array, top: int) -> jax.Array:
  """Returns 1.0 where a target's logit is among the largest, else 0.0."""
  # Of equal logits the first ones are taken.
  if top == 1:
    found = jnp.argmax(logits, axis=-1) == targets
  else:
    _, largest = jax.lax.top_k(logits, top)
    found = (largest == targets[..., None]).any(axis=-1)
  return found.astype(jnp.float32)


def _mean_of_tokens(values: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the mean of each row's values that have targets, float32 [B]."""
  total = jnp.where(targets >= 0, values, 0.0).sum(axis=1)
  return total / jnp.maximum(_count_tokens(targets), 1.0)


def _count_tokens(targets: jax.Array) -> jax.Array:
  """Returns the number of targets of each row, float32 [B]."""
  return (targets >= 0).astype(jnp.float32).sum(axis=1)


def _takes_rngs(model: nnx.Module) -> bool:
  """Returns whether a model may be called with an argument `rngs`."""
  parameters = inspect.signature(model.__call__).parameters
  is_open = any(
    each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
  )
  return 'rngs' in parameters or is_open


def _to_float32(outputs: Any) -> Any:
  """Returns a model's outputs, cast to float32 if in half precision."""
  half_precision = jnp.bfloat16, jnp.float16
  return jax.tree.map(
    lambda leaf: (
      leaf.astype(jnp.float32) if leaf.dtype in half_precision else leaf
    ),
    outputs,
  )
