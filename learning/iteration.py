"""Which iteration of a worker is computed."""

from typing import NamedTuple

from data.stream import Ranges


class Iteration(NamedTuple):
  """An iteration of a worker, as it is computed; plain data.

  Attributes:
    ranges: Positions of its examples in the stream.
    worker: Index of the worker, for its random key.
    number: Number of the worker's iteration, for its random key.
    scale: Factor of the gradient, but not of the loss: see `learning.scaling`.
    rate: Learning rate of local steps; None without a model.
    version: Number of the version from which it starts, which gives the
      fragment to push.
  """

  ranges: Ranges
  worker: int
  number: int
  scale: float = 1.0
  rate: float | None = None
  version: int = 0
