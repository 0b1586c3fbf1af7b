"""Settings of low-rank compression, and the sizes that follow from them.

Both implementations, `wire.lowrank` in JAX and `wire.lowrank_numpy`, are built
on them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from configs.checks import require
from wire.codec import Rows

_ITEM = 4  # Bytes of a float32.


class FactorSettings(NamedTuple):
  """Matrices of a vector that are sent as factors.

  Attributes:
    rank: Columns of each factor.
    known_matrices: The matrices in the order in which they lie; None if they
      have not been given.
  """

  rank: int
  known_matrices: Sequence[Rows] | None

  @property
  def matrices(self) -> Sequence[Rows]:
    """The matrices.

    Raises:
      ValueError: If they have not been given; names the field `rank`.
    """
    given = self.known_matrices is not None
    require(given, 'rank', 'vectors with matrices, as of a model', 'none')
    return self.known_matrices or ()

  def size_bytes(self, n: int) -> int:
    """Returns the bytes of all factors and of the numbers between matrices."""
    factors = sum(self.rank * (m.rows + m.columns) for m in self.matrices)
    between: int = sum(gap.stop - gap.start for gap in self.gaps(n))
    return _ITEM * (factors + between)

  def gaps(self, n: int) -> Iterator[slice]:
    """Yields the places of a vector [n] that lie in no matrix."""
    last = 0
    for each in self.matrices:
      if each.start > last:
        yield slice(last, each.start)
      last = each.start + each.rows * each.columns
    if n > last:
      yield slice(last, n)
