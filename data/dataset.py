"""What every data set is: two splits and how to standardise their inputs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Split(NamedTuple):
  """Examples, in the order in which the data set stores them.

  Attributes:
    inputs: Uint8 or float32 [N, H, W, C], or int32 [N, T], tokens from 0.
      Inputs that are too large for memory are an object with an array's
      `shape`, `dtype` and length which, indexed by a slice or by integers,
      returns the array of these rows.
    targets: Int32 [N], classes from 0; of tokens [N, T], what follows each.
  """

  inputs: np.ndarray
  targets: np.ndarray


class Dataset(NamedTuple):
  """A training and a test split of one task.

  Attributes:
    train: Examples to learn from.
    test: Examples to measure accuracy on.
    num_classes: Number of classes, or of different tokens.  This and what
      follows is for `prepare` and the models of models/; a task of one's own
      may do without.
    mean: Per channel, of training inputs; of uint8 ones after scaling to 0..1.
      Empty for tokens.
    std: Per channel, likewise.
  """

  train: Split
  test: Split
  num_classes: int = 0
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()

  @property
  def input_shape(self) -> tuple[int, ...]:
    """Height, width and channels of one example, or its number of tokens."""
    return self.train.inputs.shape[1:]

  def check(self) -> None:
    """Checks that both splits have as many targets as inputs, and any.

    Raises:
      ValueError: If they have not; names the split.
    """
    for name, split in (('train', self.train), ('test', self.test)):
      inputs, targets = len(split.inputs), len(split.targets)
      if not inputs == targets > 0:
        raise ValueError(
          f'{name}: expected as many targets as inputs, and at least one, got '
          f'{inputs} inputs and {targets} targets.'
        )

  def prepare(self, inputs: jax.Array | np.ndarray) -> jax.Array:
    """Returns standardised inputs, float32 [B, H, W, C], or the same tokens.

    Pure, and meant to run inside the jitted step: images then travel to the
    device as bytes, a quarter of their size as floats.

    Args:
      inputs: Uint8 or float32 [B, H, W, C], or int32 [B, T] if `mean` is empty;
        rows of a split.

    Raises:
      ValueError: If `inputs` is of another type.
    """
    if not self.mean:
      if inputs.dtype != np.int32:
        raise ValueError(f'inputs: expected int32 tokens, got {inputs.dtype}.')
      return jnp.asarray(inputs)
    if inputs.dtype not in (np.uint8, np.float32):
      raise ValueError(
        f'inputs: expected uint8 or float32, got {inputs.dtype}.'
      )
    scale = 1 / 255 if inputs.dtype == np.uint8 else 1.0
    per_channel = (1, 1, 1, -1)
    mean = np.reshape(np.float32(self.mean), per_channel)
    std = np.reshape(np.float32(self.std), per_channel)
    return (jnp.asarray(inputs, np.float32) * scale - mean) / std
