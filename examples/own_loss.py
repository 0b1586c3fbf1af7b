"""A regression with its own loss and measures, chosen by name.

  python main.py --config=configs/default.py \
    --config.model.name=examples.own_loss --config.data.name=examples.own_data

A perceptron learns a function of two numbers by Huber's loss.  examples/own.sh
has this in every command: runs, real processes, sweeps, comparisons, tuning.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from models import task


class Curve(nnx.Module):
  """Perceptron of one hidden layer with one output."""

  def __init__(self, inputs: int, width: int, rngs: nnx.Rngs):
    self.hidden = nnx.Linear(inputs, width, rngs=rngs)
    self.last = nnx.Linear(width, 1, rngs=rngs)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns predictions [B] of inputs [B, features]."""
    return self.last(nnx.tanh(self.hidden(inputs)))[:, 0]


def make(
  *,
  input_shape: tuple[int, ...],
  num_classes: int,
  seed: int,
  dtype: np.dtype[Any],
  width: int = 32,
  delta: float = 0.5,
) -> task.Task:
  """Returns the task.

  Args:
    input_shape: Shape of an example's inputs, [features].
    num_classes: Unused, as there are no classes.
    seed: Seed of the parameters.
    dtype: Unused, as layers compute in float32.
    delta: Error from which the loss is linear.
  """
  del num_classes, dtype
  return task.supervised(
    Curve(*input_shape, width, nnx.Rngs(seed)),
    loss=functools.partial(optax.huber_loss, delta=delta),
    others={
      'mse': optax.squared_error,
      'mae': lambda outputs, targets: jnp.abs(outputs - targets),
    },
    primary='mse',
    falling=('mse', 'mae'),
  )
