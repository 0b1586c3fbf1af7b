"""Recurrent networks: a cell that reads a window of observations.

The state of the cell is zero before each window, so that a prediction depends
on the stored observations alone, and training needs no state of other workers.
"""

import dataclasses
from typing import Any

import jax
from flax import nnx

from predict import online, predictor


@dataclasses.dataclass(frozen=True)
class RecurrentArchitecture:
  """Cell and sizes of a recurrent network.

  Attributes:
    cell: Name of the cell in `flax.nnx`.
    window: Number of observations that the cell reads.
    factors: Number of driving factors, F.
    hidden: Width of the cell's state.
  """

  is_state = True  # Plain data: checkpoints hold it.

  cell: str
  window: int
  factors: int
  hidden: int

  def build(self, rngs: nnx.Rngs) -> nnx.Module:
    cell = getattr(nnx, self.cell)(self.factors + 2, self.hidden, rngs=rngs)
    return Recurrent(cell=cell, hidden=self.hidden, rngs=rngs)


class Recurrent(nnx.Module):
  """A cell and a linear map of its last output, initially zero."""

  def __init__(self, *, cell: nnx.RNNCellBase, hidden: int, rngs: nnx.Rngs):
    self.cell = cell
    self.output = nnx.Linear(
      hidden, 1, kernel_init=nnx.initializers.zeros, rngs=rngs
    )

  def __call__(self, windows: jax.Array) -> jax.Array:
    """Returns outputs, [B], for standardised windows, [B, window, F + 2]."""
    # The carry is zero, whatever the generator.
    carry = self.cell.initialize_carry(windows[:, 0].shape, nnx.Rngs(0))
    for row in range(windows.shape[1]):
      carry, hidden = self.cell(carry, windows[:, row])
    outputs: jax.Array = self.output(hidden)
    return outputs[:, 0]


def make(
  cell: str,
  *,
  num_workers: int,
  num_factors: int,
  seed: int,
  window: int,
  hidden: int,
  **training: Any,
) -> online.Online:
  """Returns a predictor with a recurrent network.

  Args:
    cell: Name of the cell in `flax.nnx`.
    num_factors: Number of driving factors; may be 0.
    seed: Seed of the parameters and of the training samples.
    window: Number of observations that the network reads.
    hidden: Width of the cell's state.
    **training: Remaining arguments of `online.make`.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  return online.make(
    RecurrentArchitecture(
      cell=cell, window=window, factors=num_factors, hidden=hidden
    ),
    num_workers=num_workers,
    num_factors=num_factors,
    seed=seed,
    **training,
  )
