"""What every data set is: two splits in memory and how to standardise them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Split(NamedTuple):
  """Examples, in the order in which the data set stores them.

  Attributes:
    inputs: Uint8 or float32 [N, H, W, C].
    targets: Int32 [N], classes from 0.
  """

  inputs: np.ndarray
  targets: np.ndarray


class Dataset(NamedTuple):
  """A training and a test split of one classification task.

  Attributes:
    train: Examples to learn from.
    test: Examples to measure accuracy on.
    num_classes: Number of classes.
    mean: Per channel, of training inputs; of uint8 ones after scaling to 0..1.
    std: Per channel, likewise.
  """

  train: Split
  test: Split
  num_classes: int
  mean: tuple[float, ...]
  std: tuple[float, ...]

  @property
  def input_shape(self) -> tuple[int, int, int]:
    """Height, width and channels of one example."""
    return self.train.inputs.shape[1:]

  def prepare(self, inputs: jax.Array | np.ndarray) -> jax.Array:
    """Returns standardised inputs, float32 [B, H, W, C].

    Pure, and meant to run inside the jitted step: images then travel to the
    device as bytes, a quarter of their size as floats.

    Args:
      inputs: Uint8 or float32 [B, H, W, C], rows of a split.

    Raises:
      ValueError: If `inputs` is of another type.
    """
    if inputs.dtype not in (np.uint8, np.float32):
      raise ValueError(
        f'inputs: expected uint8 or float32, got {inputs.dtype}.'
      )
    scale = 1 / 255 if inputs.dtype == np.uint8 else 1.0
    per_channel = (1, 1, 1, -1)
    mean = np.reshape(np.float32(self.mean), per_channel)
    std = np.reshape(np.float32(self.std), per_channel)
    return (jnp.asarray(inputs, np.float32) * scale - mean) / std
