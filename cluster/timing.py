"""Server and gradient of a run that only keeps time: sizes, no numbers.

They have the methods of `Server` and `Gradient` that a cluster and a journal
use.
"""

from typing import Any

from data.stream import Ranges


class TimingServer:
  """Counts versions of parameters that have a size and no values.

  Attributes:
    size_bytes: Of a push and of a pull.
    version: Updates applied.
    examples: Examples in them.
    params: None.
    stats: None.
    learning_rate: None.
  """

  params = stats = learning_rate = None

  def __init__(self, *, size_bytes: int):
    """Starts at version 0; `size_bytes` is checked by the caller."""
    self.size_bytes = size_bytes
    self.version = 0
    self.examples = 0
    self._sums: dict[int, int] = {}

  def warm_up(self) -> None:
    """Nothing to compile."""

  def add(self, update: int, payload: None, examples: int) -> None:
    """Counts a push into an update."""
    self._sums[update] = self._sums.get(update, 0) + examples

  def commit(self, update: int) -> None:
    """Applies an update; the version becomes one higher."""
    self.version += 1
    self.examples += self._sums.pop(update)

  def snapshot(self) -> None:
    """Returns nothing that could be evaluated."""

  def state(self) -> Any:
    """Returns what commits and sums change."""
    return self.version, self.examples, self._sums

  def restore(self, state: Any) -> None:
    """Goes back to where `state` was taken."""
    self.version, self.examples, self._sums = state


class TimingGradient:
  """Computes nothing.

  Attributes:
    padding_share: None.
  """

  padding_share = None

  def __call__(
    self, params: None, ranges: Ranges, *, worker: int, iteration: int
  ) -> tuple[None, None]:
    """Returns no payload and no loss."""
    return None, None

  def warm_up(self, params: None, examples: int) -> None:
    """Nothing to compile."""

  def state(self) -> None:
    """Nothing changes."""

  def restore(self, state: None) -> None:
    """Nothing changes."""
