"""Unequal shares of concurrent transfers on links.

TCP connections that start together rarely end together: one with a larger
window gets more of a link and ends first, and its worker continues earlier.
Equal shares would keep equal workers in step for ever.  What one connection is
ahead of another is about as many bytes, however long transfers are: shares of
long ones are nearly equal.
"""

import dataclasses
import math

import numpy as np

from configs import declared

_SIGMA_BYTES = 1e5  # Size of a transfer whose weight has the deviation sigma.
_LEAST_BYTES = 50e3  # Smaller ones have the deviation of this size.
_STREAM = 0x5348415245  # Apart from the draws of compute times.


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Shares:
  """Weights of transfers, lognormal of median 1.

  The standard deviation of the logarithm is inversely proportional to the
  transfer's bytes.  A weight depends on the seed, the two hosts and the number
  of transfers between them before, and not on the order of other transfers.
  """

  is_state = True  # Plain data: checkpoints hold it.

  _sigma: float
  _seed: int
  _counts: dict[tuple[int, int], int]  # Transfers up to now, by hosts.

  def __init__(self, *, sigma: float, seed: int):
    """Creates shares without a transfer.

    Args:
      sigma: Standard deviation of the logarithm of the weight of 100 kB; 0 for
        equal shares.
      seed: Seed of the draws, from 0 to 2^64 - 1.

    Raises:
      ValueError: If `sigma` is out of its range.
    """
    declared.check('cluster.network', share_sigma=sigma)
    self._sigma, self._seed = float(sigma), seed
    self._counts = {}

  def draw(self, src: int, dst: int, size_bytes: float) -> float:
    """Returns the weight of the next transfer from one host to another.

    Args:
      src: Host that sends.
      dst: Host that receives.
      size_bytes: Bytes of the transfer.
    """
    if not self._sigma:
      return 1.0
    number = self._counts.get((src, dst), 0)
    self._counts[src, dst] = number + 1
    philox = np.random.Philox(
      key=np.array([self._seed, _STREAM], np.uint64),
      counter=np.array([0, number, src, dst], np.uint64),
    )
    normal = float(np.random.Generator(philox).standard_normal())
    scale = _SIGMA_BYTES / max(size_bytes, _LEAST_BYTES)
    return math.exp(self._sigma * scale * normal)
