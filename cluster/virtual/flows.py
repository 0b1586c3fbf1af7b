"""What a network keeps of its flows and links; plain data."""

import dataclasses
import math


@dataclasses.dataclass(slots=True)
class Flow:
  """A flow that has not drained."""

  is_state = True  # Plain data: checkpoints hold it.

  ends: list[tuple[int, int]]  # Each finite link and the other one, or itself.
  latency: float
  left: float  # Bytes left when it last was in no group.
  owner: int = -1  # Link whose group it is in; -1 for none.
  mark: float = 0.0  # Bytes that group will have served when it has drained.
  home: int = -1  # Link whose pool it is in; -1 for none.
  cap: float = math.inf  # Capacity of its other link.


@dataclasses.dataclass(slots=True)
class Link:
  """A link, the group of flows that it holds back, and its pool."""

  is_state = True  # Plain data: checkpoints hold it.

  capacity: float
  count: int = 0  # Flows that cross it, and below the same by other link.
  flows: dict[int, dict[int, None]] = dataclasses.field(default_factory=dict)
  level: float = math.inf  # Rate of each flow of the group.
  served: float = 0.0  # Bytes that each could have had by `stamp`.
  stamp: float = 0.0
  due: float = math.inf  # When the first one drains.
  queue: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  caps: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  split: int = 0  # So many of `caps` are below the level of the pool.
  taken: float = 0.0  # Their sum.
  share: float = 0.0  # Key in the order for filling; 0 when not in it.

  def serve(self, now: float) -> None:
    """Counts what the group has been served until now."""
    if not self.queue:
      # From zero again, so that equal histories at different links stay equal.
      self.served = 0.0
    elif now > self.stamp:
      self.served += self.level * (now - self.stamp)
    self.stamp = now

  def drain_time(self) -> float:
    """Returns when the first of the group drains."""
    return self.stamp + (self.queue[0][0] - self.served) / self.level

  def pool_level(self) -> float:
    """Returns the rate of the flows of the pool that no cap holds back."""
    if self.queue:
      return (self.capacity - self.taken) / len(self.queue)
    return math.inf if self.taken <= self.capacity else 0.0

  def release(self, cap: float) -> None:
    """Counts one flow less at its cap."""
    self.split -= 1
    # Exactly zero when none is left: rounding must not build up for ever.
    self.taken = self.taken - cap if self.split else 0.0
