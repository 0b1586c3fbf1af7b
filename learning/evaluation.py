"""Evaluation of versions of a model."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.dataset import Split
from models.task import Task

MOST_EXAMPLES = 512  # That are computed at once.
_WEIGHT = 'weight'  # Key of the weights' sum, beside the sums of figures.


class TaskEvaluation:
  """Measures of versions of a model on a split.

  Attributes:
    measures: Directions of the measures, the primary one first: see `Task`.

  Args:
    task: Task that is learned.
    test: Examples.
    batch: Most examples that are computed at once; the last batch is padded
      and masked.
    matmul: Precision of products and convolutions, as in `TaskGradient`.
  """

  def __init__(
    self,
    task: Task,
    test: Split,
    *,
    batch: int = MOST_EXAMPLES,
    matmul: str | None = 'float32',
  ):
    self._inputs, self._targets = test
    self._batch = min(batch, len(test.targets))

    self.measures = task.measures
    self._derived = task.derived
    self._is_weighted = task.weigh is not None
    functions = task.evaluated

    def sum_measures(
      params: Any,
      stats: Any,
      inputs: jax.Array,
      targets: jax.Array,
      real: jax.Array,
    ) -> dict[str, jax.Array]:
      mask, found = jnp.arange(len(targets)) < real, {}
      for name, function in functions.items():
        with jax.default_matmul_precision(matmul):
          values = function(params, stats, inputs, targets)
        is_accuracy = function is task.correct
        field = 'task.correct' if is_accuracy else f'task.others[{name!r}]'
        check_each(field, values, mask)
        if task.weigh is not None:
          values *= task.weigh(targets)
        found[name] = jnp.sum(jnp.where(mask, values, 0.0))
      if task.weigh is not None:
        weights = jnp.where(mask, task.weigh(targets), 0.0)
        found[_WEIGHT] = jnp.sum(weights)
      return found

    def is_finite(params: Any) -> jax.Array:
      leaves = jax.tree.leaves(params)
      return jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]).all()

    self._sum = jax.jit(sum_measures)
    self._is_finite = jax.jit(is_finite)

  def __call__(self, params: Any, stats: Any) -> dict[str, float]:
    batches = [
      self._sum_batch(params, stats, start)
      for start in range(0, len(self._targets), self._batch)
    ]
    sums = {
      name: sum(float(batch[name]) for batch in batches) for name in batches[0]
    }
    total = float(len(self._targets))
    if self._is_weighted:
      total = sums.pop(_WEIGHT) or 1.0  # Without a target, sums are 0.
    means = {name: each / total for name, each in sums.items()}
    figures = means | {name: of(means) for name, of in self._derived.items()}
    for name, value in figures.items():
      if not math.isfinite(value):
        raise FloatingPointError(f'The measure {name} is {value}.')
    return figures

  def warm_up(self, params: Any, stats: Any) -> None:
    jax.block_until_ready(self._sum_batch(params, stats, 0))

  def _sum_batch(self, params: Any, stats: Any, start: int) -> Any:
    """Returns the sums of a batch's measures, and of its weights."""
    stop = start + self._batch
    return self._sum(
      params,
      stats,
      padded(self._inputs[start:stop], self._batch),
      padded(self._targets[start:stop], self._batch),
      np.int32(min(self._batch, len(self._targets) - start)),
    )

  def is_finite(self, params: Any) -> bool:
    return bool(self._is_finite(params))


def check_each(name: str, values: jax.Array, mask: jax.Array) -> None:
  """Raises ValueError unless a function of a task returns a value per example.

  Args:
    name: Name of the task's function, for the message.
    values: Its result.
    mask: Bool [N], whether each example is real and no padding.

  Raises:
    ValueError: If the shape of `values` is not [N].
  """
  if values.shape != mask.shape:
    raise ValueError(
      f'{name}: expected one value for each of {len(mask)} examples, got an '
      f'array of shape {values.shape}.'
    )


def padded(array: np.ndarray, length: int) -> np.ndarray:
  """Returns an array, [n, ...], with its rows repeated up to a length.

  It is the array itself if it has that length already.
  """
  if len(array) == length:
    return array
  # Zeros would distort the statistics of a normalised batch.
  return array[np.arange(length) % len(array)]
