"""Models with random parameters from NumPy, without compilation."""

import jax
import numpy as np
from flax import nnx


def model(make):
  """Returns the model of `make`, with parameters drawn by NumPy."""
  graph, shapes = nnx.split(nnx.eval_shape(make))
  rng = np.random.default_rng(0)
  numbers = jax.tree.map(
    lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype) / 2, shapes
  )
  return nnx.merge(graph, jax.device_put(numbers))
