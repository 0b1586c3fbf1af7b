"""State of a network's flows and links; plain data."""

import dataclasses
import math


@dataclasses.dataclass(slots=True)
class Flow:
  """A flow that has not drained, and the group or pool that it is in."""

  is_state = True  # Plain data: checkpoints hold it.

  ends: list[tuple[int, int]]  # Each finite link and the other one, or itself.
  latency: float
  left: float  # Bytes left at the time at which it last was in no group.
  owner: int = -1  # Link whose group it is in; -1 for none.
  mark: float = 0.0  # Bytes that the group has served once it has drained.
  home: int = -1  # Link whose pool it is in; -1 for none.
  cap: float = math.inf  # Capacity of its other link.


@dataclasses.dataclass(slots=True)
class Link:
  """A link, the group of flows that it limits, and its pool."""

  is_state = True  # Plain data: checkpoints hold it.

  capacity: float
  count: int = (
    0  # Number of flows that cross it; `flows` has them by other link.
  )
  flows: dict[int, dict[int, None]] = dataclasses.field(default_factory=dict)
  level: float = math.inf  # Rate of each flow of the group.
  served: float = 0.0  # Bytes that each flow could have sent by `stamp`.
  stamp: float = 0.0
  due: float = math.inf  # Time of the first drain.
  queue: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  caps: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  split: int = 0  # Number of `caps` below the level of the pool.
  taken: float = 0.0  # Sum of these caps.
  share: float = 0.0  # Key in the order for filling; 0 when not in it.

  def serve(self, now: float) -> None:
    """Counts the bytes that the group has been served until now."""
    if not self.queue:
      # From zero again, so that equal histories at different links stay equal.
      self.served = 0.0
    elif now > self.stamp:
      self.served += self.level * (now - self.stamp)
    self.stamp = now

  def drain_time(self) -> float:
    """Returns the time of the group's first drain, seconds."""
    return self.stamp + (self.queue[0][0] - self.served) / self.level

  def pool_level(self) -> float:
    """Returns the rate of each flow of the pool that is below its cap."""
    if self.queue:
      return (self.capacity - self.taken) / len(self.queue)
    return math.inf if self.taken <= self.capacity else 0.0

  def release(self, cap: float) -> None:
    """Removes one flow from those at their caps."""
    self.split -= 1
    # Exactly zero without flows: rounding errors must not add up.
    self.taken = self.taken - cap if self.split else 0.0
