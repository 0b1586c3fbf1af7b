"""What a run is made of that only keeps time: no numbers.

Each class has the methods of the one without `Timing` in its name that a
cluster and a journal use.
"""

from typing import Any

import numpy as np

from data.stream import Ranges
from learning.gradient import Payload
from wire.flat import even


class TimingServer:
  """Counts versions of parameters that have no values.

  Attributes:
    version: Updates applied.
    examples: Examples in them.
    params: None.
    stats: None.
    learning_rate: None.
  """

  params = stats = learning_rate = None

  def __init__(self):
    """Starts at version 0."""
    self.version = 0
    self.examples = 0
    self._sums: dict[int, int] = {}

  def twin(self, params: Any, stats: Any) -> 'TimingServer':
    """Returns another one."""
    return TimingServer()

  def warm_up(self) -> None:
    """Nothing to compile."""

  def add(self, update: int, payload: None, examples: int) -> None:
    """Counts a push into an update."""
    self._sums[update] = self._sums.get(update, 0) + examples

  def commit(self, update: int) -> None:
    """Applies an update; the version becomes one higher."""
    self.version += 1
    self.examples += self._sums.pop(update)

  def state(self) -> Any:
    """Returns what commits and sums change."""
    return {
      'version': self.version,
      'examples': self.examples,
      'sums': self._sums,
    }

  def restore(self, state: Any) -> None:
    """Goes back to where `state` was taken."""
    self.version, self.examples = state['version'], state['examples']
    self._sums = state['sums']


class TimingGradient:
  """Computes nothing.

  Attributes:
    computed: 0.
    padding_share: None.
  """

  computed = 0
  padding_share = None

  def __call__(
    self, params: None, ranges: Ranges, *, worker: int, iteration: int
  ) -> tuple[None, None]:
    """Returns no payload and no loss."""
    return None, None

  def placed(self, tree: Any) -> Any:
    """Returns the tree: nothing is computed anywhere."""
    return tree

  def warm_up(
    self, params: None, examples: int | None, *, changing: bool
  ) -> list[None]:
    """Nothing to compile; returns what is pushed."""
    return [None]

  def state(self) -> None:
    """Nothing changes."""

  def restore(self, state: None) -> None:
    """Nothing changes."""

  def prepare(self, ranges: Ranges) -> None:
    """Nothing to prepare."""


class TimingWire:
  """Carries bytes that stand for nothing."""

  def __init__(self, *, size_bytes: int):
    """Keeps the size of a push and of a pull, checked by the caller."""
    self._size_bytes = size_bytes

  def size_bytes(self, tree: None) -> int:
    """Returns the bytes of a push and of a pull."""
    return self._size_bytes

  def pushed(self, payload: None) -> None:
    """Returns no payload."""

  def pulled(self, params: None) -> None:
    """Returns no parameters."""

  def warm_up(self, params: None, stats: None) -> None:
    """Nothing to compile."""


class TimingLayout:
  """Zeros in the place of parameters.

  Attributes:
    sizes: Of each server's vector, bytes.
    dtype: Of the vectors.
  """

  def __init__(self, size_bytes: int, *, num_servers: int):
    """Splits the bytes evenly."""
    self.sizes = [(size,) for size in even(size_bytes, num_servers)]
    self.dtype = np.dtype(np.uint8)
    self._zeros = [np.zeros(size, np.uint8) for (size,) in self.sizes]

  def initial(self, server: int) -> Payload:
    """Returns a server's share, and no statistics."""
    return Payload(self._zeros[server], ())

  def pack(self, payload: None) -> tuple[list[np.ndarray], bool]:
    """Returns the vectors of all servers, and that they are finite."""
    return self._zeros, True

  def unpack(self, vectors: list[np.ndarray]) -> tuple[None, None]:
    """Returns no parameters and no statistics."""
    return None, None

  def vector(self, params: None, stats: None) -> np.ndarray:
    """Returns the longest server's vector."""
    return self._zeros[0]

  def whole(self, params: None, stats: None) -> np.ndarray:
    """Returns the same."""
    return self._zeros[0]

  def split(self, vector: np.ndarray, server: int) -> None:
    """Returns no payload."""

  def size_bytes(self, server: int) -> int:
    """Returns how long a server's vector is."""
    return self.sizes[server][0]
