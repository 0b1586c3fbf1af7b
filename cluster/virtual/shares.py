"""Unequal shares of concurrent transfers on links.

TCP connections that start together rarely end together: those with the larger
windows get more of a link and end first, and their workers continue earlier.
Equal shares would keep equal workers in step for ever.
"""

import math

import numpy as np

from configs.checks import require


class Shares:
  """Weights of transfers, lognormal of median 1.

  A weight depends on the seed, the two hosts and the number of transfers
  between them before, and so not on the order of other transfers.
  """

  is_state = True  # Plain data: checkpoints hold it.

  def __init__(self, *, sigma: float, seed: int):
    """Creates shares without a transfer.

    Args:
      sigma: Standard deviation of the logarithm of a weight; 0 for equal
        shares.
      seed: Seed of the draws, from 0 to 2^64 - 1.

    Raises:
      ValueError: If `sigma` is out of its range.
    """
    require(0 <= sigma < math.inf, 'share_sigma', 'finite, >= 0', sigma)
    self._sigma, self._seed = float(sigma), seed
    self._counts: dict[tuple[int, int], int] = {}

  def draw(self, src: int, dst: int) -> float:
    """Returns the weight of the next transfer from one host to another."""
    if not self._sigma:
      return 1.0
    number = self._counts.get((src, dst), 0)
    self._counts[src, dst] = number + 1
    philox = np.random.Philox(
      key=np.array([self._seed, _STREAM], np.uint64),
      counter=np.array([0, number, src, dst], np.uint64),
    )
    normal = np.random.Generator(philox).standard_normal()
    return math.exp(self._sigma * float(normal))


_STREAM = 0x5348415245  # Apart from the draws of compute times.
