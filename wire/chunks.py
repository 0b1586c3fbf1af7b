"""Settings of chunked sparse communication, and the sizes of its messages.

Both implementations, `wire.sparse` in JAX and `wire.sparse_numpy`, are built on
them.
"""

from typing import NamedTuple

import numpy as np

from configs.checks import require

_ITEM = 4  # Bytes of a float32, and of the index of a chunk.
_ROUNDING = 1e-9  # Allowed rounding error of a share of chunks.


class ChunkSettings(NamedTuple):
  """Selection of the chunks of a vector that are sent.

  Attributes:
    sparsity: Share of the chunks that is not sent, rounded down.
    chunk: Numbers of a chunk; those that the last one lacks are 0.
    correction: Treatment of momentum: 'none', 'masked' or 'local'.
    momentum: Momentum that workers apply with 'local', else 0.
    lags: Whether chunks are chosen by norms of before the gradient.
    dtype: Dtype of the numbers that are sent.
  """

  sparsity: float
  chunk: int
  correction: str
  momentum: float
  lags: bool
  dtype: np.dtype

  @property
  def needs_norms(self) -> bool:
    """True if an allreduce sums norms before it can choose chunks."""
    return bool(self.sparsity) and not self.lags

  def count_chunks(self, n: int) -> int:
    """Returns the number of chunks of n numbers."""
    expected = f'at most {n}, the numbers that travel together'
    require(self.chunk <= n, 'chunk', expected, self.chunk)
    return -(-n // self.chunk)

  def count_sent(self, n: int) -> int:
    """Returns the number of chunks that are sent of n numbers, at least one."""
    count = self.count_chunks(n)
    return max(count - int(self.sparsity * count + _ROUNDING), 1)

  def sends_all(self, n: int) -> bool:
    """Returns whether all chunks of n numbers are sent."""
    return self.count_sent(n) == self.count_chunks(n)

  def count_values(self, n: int) -> int:
    """Returns how many of n numbers are sent, with padding of chunks."""
    return n if self.sends_all(n) else self.count_sent(n) * self.chunk

  def count_streamable(self, n: int) -> int:
    """Returns the number of chunks that are known to be sent, 0 if all are."""
    return 0 if self.sends_all(n) else self.count_sent(n)

  def size_bytes(self, n: int) -> int:
    """Returns the bytes of a message of n numbers: values, and indices."""
    values = self.dtype.itemsize * self.count_values(n)
    return values + _ITEM * self.count_streamable(n)
