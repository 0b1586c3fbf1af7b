"""NARX: a nonlinear autoregression with exogenous inputs (driving factors).

  v[k] = F(v[k-1], ..., v[k-d], c[k], c[k-1], ..., c[k-d])

with speeds v, driving factors c (those read before iteration k are current),
and F a perceptron of one hidden tanh layer beside a linear part.  F gives the
distance from the exponential average of the speeds, and past speeds are given
as distances from it too; the average itself goes to the hidden layer only.  So
the linear part stays valid when a worker settles at a new speed.  NARX is the
predictor of Chen et al., 'Semi-dynamic load balancing: efficient distributed
learning in non-dedicated environments', SoCC 2020; sizes, training and the
average are this project's.  predict/online.py trains the network.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from configs import declared
from predict import online, predictor


@dataclasses.dataclass(frozen=True)
class NarxArchitecture:
  """Sizes of a NARX network.

  Attributes:
    lags: Number of past speeds and factors among the inputs, d.
    factors: Number of driving factors, F.
    hidden: Width of the tanh layer.
  """

  is_state = True  # Plain data: checkpoints hold it.

  lags: int
  factors: int
  hidden: int

  @property
  def window(self) -> int:
    """Number of rows that hold d speeds and d + 1 readings of factors."""
    return self.lags + 1

  def build(self, rngs: nnx.Rngs) -> nnx.Module:
    inputs = self.lags + self.window * self.factors + 1
    return Narx(inputs=inputs, hidden=self.hidden, rngs=rngs)


class Narx(nnx.Module):
  """A perceptron plus a linear map, with an initial output of zero.

  Args:
    inputs: Number of inputs, the average of the speeds among them.
    hidden: Width of the tanh layer.
  """

  def __init__(self, *, inputs: int, hidden: int, rngs: nnx.Rngs):
    self.hidden = nnx.Linear(inputs, hidden, rngs=rngs)
    self.output = nnx.Linear(
      hidden + inputs - 1, 1, kernel_init=nnx.initializers.zeros, rngs=rngs
    )

  def __call__(self, windows: jax.Array) -> jax.Array:
    """Returns outputs, [B], for standardised windows, [B, lags + 1, F + 2]."""
    level = windows[:, -1, -1:]
    # A row's factors were read after its speed, so that d + 1 readings of
    # factors come with one speed too many: the oldest.
    factors = windows[:, :, 1:-1].reshape(len(windows), -1)
    x = jnp.concatenate([windows[:, 1:, 0] - level, factors], axis=1)
    hidden = jnp.tanh(self.hidden(jnp.concatenate([x, level], axis=1)))
    outputs: jax.Array = self.output(jnp.concatenate([hidden, x], axis=1))
    return outputs[:, 0]


@declared.check_arguments('batching.lb_bsp.predictor.narx')
def make(
  *,
  num_workers: int,
  num_factors: int,
  seed: int,
  lags: int,
  hidden: int,
  **training: Any,
) -> online.Online:
  """Returns a NARX predictor.

  Args:
    num_factors: Number of driving factors; may be 0.
    seed: Seed of the parameters and of the training samples.
    lags: Number of past speeds and factors among the inputs, d.
    hidden: Width of the tanh layer.
    **training: Remaining arguments of `online.make`.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  return online.make(
    NarxArchitecture(lags=lags, factors=num_factors, hidden=hidden),
    num_workers=num_workers,
    num_factors=num_factors,
    seed=seed,
    **training,
  )
