"""A multilayer perceptron on flattened inputs.

The smallest model that learns: for tests, and for runs whose subject is the
synchronisation rather than the network.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx

from configs import declared
from models import sizes
from models.initializers import FLOAT32, dense


@declared.check_arguments('model.mlp')
def make(
  *,
  input_shape: tuple[int, ...],
  num_classes: int,
  seed: int,
  hidden: Sequence[int],
  dtype: np.dtype = FLOAT32,
) -> nnx.Module:
  """Returns a perceptron whose only state is its parameters.

  Args:
    input_shape: Shape of an example, such as height, width and channels.
    num_classes: Number of logits.
    seed: Seed of the initial parameters.
    hidden: Width of each hidden layer; none is logistic regression.
    dtype: Dtype that layers compute in.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(input_shape, num_classes)
  return MLP(
    widths=(math.prod(input_shape), *hidden, num_classes),
    dtype=dtype,
    rngs=nnx.Rngs(seed),
  )


class MLP(nnx.Module):
  """Dense layers with ReLU between them."""

  def __init__(self, *, widths: Sequence[int], dtype: np.dtype, rngs: nnx.Rngs):
    self.layers = nnx.List(
      dense(features, out, rngs, dtype)
      for features, out in itertools.pairwise(widths)
    )

  def __call__(
    self, inputs: jax.Array, *, rngs: nnx.Rngs | None = None
  ) -> jax.Array:
    """Returns logits, [B, num_classes].

    Args:
      inputs: Float32 [B, ...], standardised.
      rngs: Unused, as nothing is random.

    Raises:
      ValueError: If the inputs are tokens.
    """
    del rngs
    if isinstance(inputs, tuple):  # Tokens, and the ends of documents.
      raise ValueError(
        'inputs: expected arrays of numbers, got tokens of documents, for '
        "which there is config.model.name='transformer'."
      )
    x = inputs.reshape(len(inputs), -1)
    *hidden, logits = self.layers
    for layer in hidden:
      x = nnx.relu(layer(x))
    return logits(x)


def _check(input_shape: tuple[int, ...], num_classes: int) -> None:
  if min(input_shape, default=0) < 1:
    raise ValueError(
      f'input_shape: expected sizes of at least 1, got {input_shape}.'
    )
  sizes.check_classes(num_classes)
