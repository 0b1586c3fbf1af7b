"""What recurrent networks share: a cell that reads the last observations.

Its state starts at zero before each window, so that a worker's prediction
depends on what is kept only, and training needs no state of other workers.
"""

import dataclasses
from typing import Any

import jax
from flax import nnx

from predict import online, predictor


@dataclasses.dataclass(frozen=True)
class Shape:
  """Of the network.

  Attributes:
    cell: Name of the cell in `flax.nnx`.
    window: Observations that it reads.
    factors: Driving factors.
    hidden: Width of its state.
  """

  is_state = True  # Plain data: checkpoints hold it.

  cell: str
  window: int
  factors: int
  hidden: int

  def build(self, rngs: nnx.Rngs) -> nnx.Module:
    """Returns the network."""
    cell = getattr(nnx, self.cell)(self.factors + 2, self.hidden, rngs=rngs)
    return Recurrent(cell=cell, rngs=rngs)


class Recurrent(nnx.Module):
  """A cell and a linear map of its last output, which is zero at first."""

  def __init__(self, *, cell: nnx.Module, rngs: nnx.Rngs):
    """Draws the parameters of the linear map."""
    self.cell = cell
    self.output = nnx.Linear(
      cell.hidden_features, 1, kernel_init=nnx.initializers.zeros, rngs=rngs
    )

  def __call__(self, windows: jax.Array) -> jax.Array:
    """Returns [B] for standardised windows [B, window, F + 2]."""
    # Zeros: what is random about it is not used.
    carry = self.cell.initialize_carry(windows[:, 0].shape, nnx.Rngs(0))
    for row in range(windows.shape[1]):
      carry, hidden = self.cell(carry, windows[:, row])
    return self.output(hidden)[:, 0]


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
  """Returns a predictor.

  Args:
    cell: Name of the cell in `flax.nnx`.
    num_workers: Number of workers.
    num_factors: Number of driving factors; may be 0.
    seed: Of the parameters and of the draws.
    window: Observations that the network reads.
    hidden: Width of its state.
    **training: The other arguments of `online.make`.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  predictor.check_integer('window', window, at_least=1)
  predictor.check_integer('hidden', hidden, at_least=1)
  return online.make(
    Shape(cell=cell, window=window, factors=num_factors, hidden=hidden),
    num_workers=num_workers,
    num_factors=num_factors,
    seed=seed,
    **training,
  )
