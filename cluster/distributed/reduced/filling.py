"""A pool that a gradient is written into."""

from collections.abc import Callable

import numpy as np

from cluster.distributed.faults import Fault, Kind
from learning.pool import Filling, Pool


class CheckedFilling(Filling):
  """A filling that notices numbers that are not finite.

  Attributes:
    finite: Whether all were so far.
  """

  def __init__(
    self,
    pool: Pool,
    vector: np.ndarray,
    ready: Callable[[int], None],
    fault: Fault | None,
  ):
    """Nothing is there yet.

    Args:
      pool: What lies where.
      vector: Float32 [pool.size].
      ready: Told of each range that is full.
      fault: What goes wrong with the gradient on purpose, if anything.
    """
    super().__init__(pool, vector, ready)
    self.finite = True
    self._spoils = fault is not None and fault.kind == Kind.NAN

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Takes a leaf's numbers."""
    if self._spoils:
      array = array * np.float32('nan')
    # A sum is not finite if a number is not, and seldom else.
    if not np.isfinite(np.sum(array)) and not np.isfinite(array).all():
      self.finite = False
    super().put(leaf, array)
