"""Gaussian classes: inputs of any size that need no file.

For tests and for timing: a class is one random prototype, an example is its
prototype under noise as strong as itself.
"""

import numpy as np

from configs import declared
from data.dataset import Dataset, Split

_SEED = 0  # Fixed, so that runs with different seeds share one data set.
_CELLS = 4  # A prototype is a coarse pattern, which pooling does not erase.


@declared.check_arguments('data.synthetic')
def make(
  *,
  directory: str | None,
  num_train: int,
  num_test: int,
  pixels: int,
  channels: int,
  num_classes: int,
) -> Dataset:
  """Returns balanced classes, float32 [N, pixels, pixels, channels].

  The test examples have the same prototypes.  The same arguments give the same
  examples.

  Args:
    directory: Unused, as nothing is read.
    num_train: Number of examples to train on.
    num_test: Number of examples to test on.
    pixels: Height and width of an example.
    channels: Numbers of a pixel.
    num_classes: Number of classes.

  Raises:
    ValueError: If a number is less than 1.
  """
  del directory
  rng = np.random.default_rng(_SEED)
  prototypes = _prototypes(rng, num_classes, pixels, channels)
  return Dataset(
    train=_split(rng, prototypes, num_train),
    test=_split(rng, prototypes, num_test),
    num_classes=num_classes,
    mean=(0.0,) * channels,
    std=(float(np.sqrt(2)),) * channels,  # Prototype and noise add up.
  )


def _prototypes(
  rng: np.random.Generator, num_classes: int, pixels: int, channels: int
) -> np.ndarray:
  cells = rng.standard_normal((num_classes, _CELLS, _CELLS, channels))
  nearest = np.arange(pixels) * _CELLS // pixels
  return cells[:, nearest][:, :, nearest].astype(np.float32)


def _split(
  rng: np.random.Generator, prototypes: np.ndarray, size: int
) -> Split:
  targets = np.arange(size, dtype=np.int32) % len(prototypes)
  inputs = rng.standard_normal((size, *prototypes.shape[1:]), np.float32)
  inputs += prototypes[targets]
  return Split(inputs, targets)
