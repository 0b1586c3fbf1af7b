"""The data set of own_loss.py: a function of two numbers, drawn by a seed."""

import numpy as np

from data.dataset import Dataset, Split


def make(*, directory: str, count: int = 800, noise: float = 0.05) -> Dataset:
  """Returns the data set.

  Args:
    directory: Unused, as nothing is read.
    count: Number of examples, half of them for testing.
    noise: Standard deviation of the targets' noise.
  """
  del directory
  rng = np.random.default_rng(0)
  inputs = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
  targets = np.sin(3 * inputs[:, 0]) * inputs[:, 1]
  targets += rng.normal(0, noise, count).astype(np.float32)
  half = count // 2
  return Dataset(
    train=Split(inputs[:half], targets[:half]),
    test=Split(inputs[half:], targets[half:]),
  )
